//! The bytes that a shard keeps of incomplete packets.
//!
//! Other shards see the total in steps, so that a packet that arrives in several reads changes no memory that they read.

/// Bytes that connections of a shard keep of packets that are incomplete or may not be processed yet.
#[derive(Debug, Default)]
pub(crate) struct PartialPacketBudget {
    total: usize,
    by_listener: Vec<usize>,
    /// The total that other shards see.
    published: usize,
}

/// Difference from which other shards see another total.
const PUBLISH_STEP_BYTES: usize = 64 << 10;

impl PartialPacketBudget {
    pub(crate) fn new(listeners: usize) -> Self {
        Self {
            total: 0,
            by_listener: vec![0; listeners],
            published: 0,
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The total, which the caller shows other shards.
    pub(super) fn publish(&mut self) -> usize {
        self.published = self.total;
        self.total
    }

    /// As [`Self::publish`], if other shards see a total that differs much from it.
    pub(super) fn publish_step(&mut self) -> Option<usize> {
        let is_step = self.total.abs_diff(self.published) >= PUBLISH_STEP_BYTES;
        is_step.then(|| self.publish())
    }

    pub(super) fn of_listener(&self, listener: u16) -> usize {
        self.by_listener[usize::from(listener)]
    }

    pub(super) fn replace_bytes(&mut self, listener: u16, from: usize, to: usize) {
        self.total = self.total + to - from;
        let of_listener = &mut self.by_listener[usize::from(listener)];
        *of_listener = *of_listener + to - from;
    }
}
