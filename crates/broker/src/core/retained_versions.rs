//! What makes the retained messages of several nodes equal: a version and a digest of each, and recent removals.

use super::hash_state::RandomState;
use hashbrown::HashMap;
use hooks::{MessageView, NEVER_MS};
use mqtt::{Properties, QoS};
use std::collections::VecDeque;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Buckets of topics; only those with different digests are exchanged.
pub(crate) const BUCKETS: usize = 1024;

/// Removals that are remembered. A node that was away for longer may bring back a message that was removed meanwhile.
const MAX_REMOVALS: usize = 100_000;

/// Topics that belong to one node: its own figures.
pub(crate) const NODE_TOPICS: &str = "$SYS/";

/// The digests of all buckets.
pub(crate) type RetainedDigests = [u64; BUCKETS];

/// Versions of the retained messages of a node in a cluster.
pub(crate) struct RetainedVersions {
    pub(super) digests: RetainedDigests,
    /// When the messages of topics were removed.
    pub(super) removals: HashMap<Box<str>, u64, RandomState>,
    /// Topics in the order of their removal; some may have a message again.
    removal_order: VecDeque<Box<str>>,
}

impl Default for RetainedVersions {
    fn default() -> Self {
        Self {
            digests: [0; BUCKETS],
            removals: HashMap::default(),
            removal_order: VecDeque::new(),
        }
    }
}

/// The bucket of a topic, the same on all nodes.
pub(crate) fn bucket_of(topic: &str) -> usize {
    (xxh3_64(topic.as_bytes()) % BUCKETS as u64) as usize
}

/// The removal of a topic's message, as a message.
pub(crate) fn removal_message(topic: &str, received_ms: u64) -> MessageView<'_> {
    MessageView {
        topic,
        properties: Properties::EMPTY,
        payload: &[],
        shared_payload: None,
        qos: QoS::AtMostOnce,
        retain: true,
        received_ms,
        expires_ms: NEVER_MS,
        from_client_id: "",
        from_username: "",
        is_derived: false,
        number: 0,
    }
}

impl RetainedVersions {
    /// Adds a message to the digest of its bucket, or removes it.
    pub(super) fn toggle(&mut self, view: &MessageView<'_>) {
        if view.topic.starts_with(NODE_TOPICS) {
            return;
        }
        let topic = xxh3_64(view.topic.as_bytes());
        let seed = topic.rotate_left(17) ^ view.received_ms;
        let bucket = (topic % BUCKETS as u64) as usize;
        self.digests[bucket] ^= xxh3_64_with_seed(view.payload, seed);
    }

    pub(super) fn record_removal(&mut self, topic: &str, received_ms: u64) {
        if self.removals.insert(topic.into(), received_ms).is_some() {
            return;
        }
        self.removal_order.push_back(topic.into());
        if self.removal_order.len() > MAX_REMOVALS
            && let Some(oldest) = self.removal_order.pop_front()
        {
            self.removals.remove(&oldest);
        }
    }

    /// The removals in the given buckets.
    pub(super) fn removals_in(&self, is_requested: impl Fn(usize) -> bool) -> Vec<(Box<str>, u64)> {
        let removals = self.removals.iter();
        removals
            .filter(|(topic, _)| is_requested(bucket_of(topic)))
            .map(|(topic, &received_ms)| (topic.clone(), received_ms))
            .collect()
    }
}
