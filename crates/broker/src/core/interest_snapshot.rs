//! What a node of the cluster announces after it has returned.

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::node_messages::Announcement;

/// What a node that has returned announces. What it wanted before stays valid until it has announced everything, so that
/// no message misses it meanwhile.
#[derive(Default)]
pub(super) struct InterestSnapshot {
    filters: HashSet<Box<str>, RandomState>,
    /// Groups by filter.
    groups: HashMap<Box<str>, Vec<Box<str>>, RandomState>,
}

impl InterestSnapshot {
    pub(super) fn record(&mut self, announcements: &[Announcement]) {
        for announcement in announcements {
            match announcement {
                Announcement::Filter { filter, wanted } => match wanted {
                    true => drop(self.filters.insert(filter.clone())),
                    false => drop(self.filters.remove(filter)),
                },
                // Without members it is removed anyway.
                Announcement::Members { filter, group, .. } => {
                    let groups = self.groups.entry(filter.clone()).or_default();
                    groups.push(group.clone());
                }
            }
        }
    }

    pub(super) fn has_filter(&self, filter: &str) -> bool {
        self.filters.contains(filter)
    }

    pub(super) fn has_group(&self, filter: &str, name: &str) -> bool {
        let groups = self.groups.get(filter);
        groups.is_some_and(|groups| groups.iter().any(|group| **group == *name))
    }
}
