//! The bytes that a shard keeps of incomplete packets.

/// Bytes that connections of a shard keep of packets that are incomplete or may not be processed yet.
#[derive(Debug, Default)]
pub(crate) struct PartialPacketBudget {
    total: usize,
    by_listener: Vec<usize>,
}

impl PartialPacketBudget {
    pub(crate) fn new(listeners: usize) -> Self {
        Self {
            total: 0,
            by_listener: vec![0; listeners],
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
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
