//! What a node of the cluster announces after it has returned.

use super::hash_state::RandomState;
use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};

use super::filter_key::{FilterFingerprint, FilterKey};
use super::node_messages::Announcement;

/// What a node that has returned announces. What it wanted before stays valid until it has announced everything, so that
/// no message misses it meanwhile.
#[derive(Default)]
pub(super) struct InterestSnapshot {
    filters: HashTable<FilterFingerprint>,
    /// Groups by filter.
    groups: HashMap<Box<str>, Vec<Box<str>>, RandomState>,
}

impl InterestSnapshot {
    pub(super) fn record(&mut self, announcements: &[Announcement]) {
        for announcement in announcements {
            match announcement {
                Announcement::Filter { filter, wanted } => {
                    self.set_filter(FilterKey::of(filter).fingerprint, *wanted);
                }
                // Without members it is removed anyway.
                Announcement::Members { filter, group, .. } => {
                    let groups = self.groups.entry(filter.clone()).or_default();
                    groups.push(group.clone());
                }
            }
        }
    }

    fn set_filter(&mut self, filter: FilterFingerprint, wanted: bool) {
        let hash = |filter: &FilterFingerprint| filter.hash;
        let found = self
            .filters
            .entry(filter.hash, |other| *other == filter, hash);
        match (found, wanted) {
            (Entry::Vacant(entry), true) => drop(entry.insert(filter)),
            (Entry::Occupied(entry), false) => drop(entry.remove()),
            (Entry::Vacant(_), false) | (Entry::Occupied(_), true) => {}
        }
    }

    pub(super) fn has_filter(&self, filter: FilterFingerprint) -> bool {
        let found = self.filters.find(filter.hash, |other| *other == filter);
        found.is_some()
    }

    pub(super) fn has_group(&self, filter: &str, name: &str) -> bool {
        let groups = self.groups.get(filter);
        groups.is_some_and(|groups| groups.iter().any(|group| **group == *name))
    }
}
