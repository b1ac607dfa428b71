//! A filter of a subscription tree, and the receivers of a message that the filters of a tree result in.

use std::rc::Rc;

use super::subscriber_list::{Subscriber, SubscriberList};
use super::tables::{FilterId, GroupId, Table};

/// A filter and who subscribes to it.
pub(crate) struct FilterEntry {
    pub(crate) text: Rc<str>,
    pub(crate) subscribers: SubscriberList,
    pub(crate) groups: Vec<GroupId>,
    /// Other shards with a non-shared subscriber, one bit each.
    pub(crate) remote_shards: u64,
    /// Sequence number of the last announcement of this shard's own bit to the others.
    pub(crate) announced_sequence: u64,
}

/// One session that receives a message, after overlapping subscriptions have been merged.
#[derive(Clone)]
pub(crate) struct DeliveryTarget {
    pub(crate) subscriber: Subscriber,
    /// Identifiers beyond the one in `subscriber`.
    pub(crate) more_identifiers: Option<Rc<[u32]>>,
}

/// The sessions of this shard that receive a message.
pub(crate) enum LocalTargets {
    None,
    /// Exactly one filter with local subscribers matches: its list is used directly.
    SingleFilter(FilterId),
    /// Several filters match: merged, so that a session receives the message once.
    Merged(Box<[DeliveryTarget]>),
}

/// Everything that routing a message on a topic depends on.
pub(crate) struct MatchSet {
    pub(crate) local_targets: LocalTargets,
    pub(crate) groups: Box<[GroupId]>,
    pub(crate) remote_shards: u64,
}

impl MatchSet {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.local_targets, LocalTargets::None)
            && self.groups.is_empty()
            && self.remote_shards == 0
    }

    /// Whether more than one session of this shard receives the message.
    #[inline]
    pub(crate) fn has_many_targets(&self, filters: &Table<FilterId, FilterEntry>) -> bool {
        match &self.local_targets {
            LocalTargets::None => false,
            LocalTargets::SingleFilter(filter) => filters[*filter].subscribers.len() > 1,
            LocalTargets::Merged(targets) => targets.len() > 1,
        }
    }

    /// What the set counts in a cache whose size is limited.
    pub(super) fn target_count(&self) -> usize {
        let identifiers =
            |target: &DeliveryTarget| target.more_identifiers.as_ref().map_or(0, |ids| ids.len());
        let merged = match &self.local_targets {
            LocalTargets::Merged(targets) => {
                targets.iter().map(|target| 1 + identifiers(target)).sum()
            }
            _ => 0,
        };
        1 + self.groups.len() + merged
    }
}
