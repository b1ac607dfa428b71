//! Batches of application messages between this node and another one, over interruptions of their channel.
//!
//! Batches with messages above QoS 0 are numbered within a *stream*, whose number is unique. The sender keeps each until
//! the receiver has it in its log, and sends those that are left again when the receiver is reached again. The receiver
//! ignores what it has got already; if it has started again, it does not know the stream and takes everything.

use std::collections::VecDeque;

use bytes::Bytes;

/// What has to be in logs before something is confirmed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LogRequirement {
    /// Slots of nodes, and the batches that they have to log.
    pub(super) batches: Vec<(u8, u64)>,
    /// Shards of this node, one bit each, and the turn of the node router that they have to log.
    pub(super) turns: Vec<(u64, u64)>,
}

impl LogRequirement {
    /// Waits for `other` besides the node in a slot, if it waits for that node.
    pub(super) fn add_to_node(&mut self, slot: u8, other: &LogRequirement) {
        if self.batches.iter().any(|&(of, _)| of == slot) {
            self.batches.extend_from_slice(&other.batches);
            self.turns.extend_from_slice(&other.turns);
        }
    }

    /// Waits for `other` instead of the node in a slot, if it waits for that node.
    pub(super) fn replace_node(&mut self, slot: u8, other: &LogRequirement) {
        let before = self.batches.len();
        self.batches.retain(|&(of, _)| of != slot);
        if self.batches.len() < before {
            self.batches.extend_from_slice(&other.batches);
            self.turns.extend_from_slice(&other.turns);
        }
    }
}

/// The numbered batches for a node.
pub(super) struct SentBatches {
    stream: u64,
    last: u64,
    logged: u64,
    /// Those that are not in its log, as they were sent.
    unlogged: VecDeque<Bytes>,
    unlogged_bytes: usize,
}

impl SentBatches {
    /// `stream` was never used before.
    pub(super) fn new(stream: u64) -> Self {
        Self {
            stream,
            last: 0,
            logged: 0,
            unlogged: VecDeque::new(),
            unlogged_bytes: 0,
        }
    }

    /// As [`new`](Self::new); the batches are numbered after `last`.
    pub(super) fn continuing(stream: u64, last: u64) -> Self {
        Self {
            last,
            logged: last,
            ..Self::new(stream)
        }
    }

    pub(super) fn stream(&self) -> u64 {
        self.stream
    }

    /// The number of the last batch.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Keeps the next batch.
    pub(super) fn push(&mut self, message: Bytes) {
        self.last += 1;
        self.unlogged_bytes += message.len();
        self.unlogged.push_back(message);
    }

    /// The node has all batches up to a number in its log.
    pub(super) fn record_logged(&mut self, number: u64) {
        while self.logged < number.min(self.last) {
            self.logged += 1;
            if let Some(message) = self.unlogged.pop_front() {
                self.unlogged_bytes -= message.len();
            }
        }
    }

    pub(super) fn is_logged(&self, number: u64) -> bool {
        self.logged >= number
    }

    pub(super) fn unlogged(&self) -> impl Iterator<Item = &Bytes> {
        self.unlogged.iter()
    }

    /// The number of the first one of these.
    pub(super) fn first_unlogged(&self) -> u64 {
        self.logged + 1
    }

    pub(super) fn unlogged_bytes(&self) -> usize {
        self.unlogged_bytes
    }
}

/// The numbered batches of a node.
#[derive(Default)]
pub(super) struct ReceivedBatches {
    stream: u64,
    last: u64,
    logged: u64,
    /// Batches that are not in all logs yet.
    waiting: VecDeque<(u64, LogRequirement)>,
}

impl ReceivedBatches {
    /// The batches that follow belong to a stream. Returns the last batch of it that is logged, if it is known.
    pub(super) fn begin(&mut self, stream: u64) -> Option<u64> {
        if self.stream == stream {
            return (self.logged > 0).then_some(self.logged);
        }
        *self = Self {
            stream,
            ..Self::default()
        };
        None
    }

    /// Whether a batch has not been received before.
    pub(super) fn receive(&mut self, number: u64) -> bool {
        let is_new = number > self.last;
        self.last = self.last.max(number);
        is_new
    }

    /// A received batch is confirmed when `requirement` is met.
    pub(super) fn confirm_when(&mut self, number: u64, requirement: LogRequirement) {
        self.waiting.push_back((number, requirement));
    }

    /// The last batch that is logged, if there is a later one than before.
    pub(super) fn poll_logged(&mut self, is_met: impl Fn(&LogRequirement) -> bool) -> Option<u64> {
        let before = self.logged;
        while let Some((number, _)) = self
            .waiting
            .pop_front_if(|(_, requirement)| is_met(requirement))
        {
            self.logged = number;
        }
        (self.logged > before).then_some(self.logged)
    }

    /// What the batches wait for.
    pub(super) fn requirements(&mut self) -> impl Iterator<Item = &mut LogRequirement> {
        self.waiting.iter_mut().map(|(_, requirement)| requirement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_kept_until_they_are_logged() {
        let mut sent = SentBatches::new(7);
        for message in ["one", "two", "three"] {
            sent.push(Bytes::from_static(message.as_bytes()));
        }
        sent.record_logged(2);
        assert!(sent.is_logged(2) && !sent.is_logged(3));
        assert_eq!(sent.unlogged().collect::<Vec<_>>(), ["three"]);
        assert_eq!(sent.unlogged_bytes(), 5);
        // Another node has confirmed more than was sent.
        sent.record_logged(u64::MAX);
        assert_eq!(sent.unlogged_bytes(), 0);
        assert!(!sent.is_logged(4));
    }

    #[test]
    fn a_batch_that_is_sent_again_is_received_once() {
        let mut received = ReceivedBatches::default();
        assert_eq!(received.begin(7), None);
        assert!(received.receive(1) && received.receive(2));
        received.confirm_when(1, LogRequirement::default());
        assert_eq!(received.poll_logged(|_| true), Some(1));
        assert_eq!(received.poll_logged(|_| true), None);
        assert_eq!(received.begin(7), Some(1));
        assert!(!received.receive(2) && received.receive(3));
        assert_eq!(received.begin(8), None);
        assert!(received.receive(1));
    }

    #[test]
    fn a_requirement_waits_for_other_logs_instead_of_a_node_that_is_given_up() {
        let other = LogRequirement {
            batches: vec![(4, 9)],
            turns: vec![(1, 5)],
        };
        let mut waits = LogRequirement {
            batches: vec![(2, 3), (3, 7)],
            turns: Vec::new(),
        };
        waits.replace_node(2, &other);
        assert_eq!(waits.batches, [(3, 7), (4, 9)]);
        assert_eq!(waits.turns, [(1, 5)]);
        let mut unrelated = LogRequirement::default();
        unrelated.replace_node(2, &other);
        assert_eq!(unrelated, LogRequirement::default());
    }
}
