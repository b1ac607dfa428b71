//! Messages of one priority from the peer: which have arrived, which are acknowledged, which wait for the application.
//!
//! The record that excludes duplicates consists of all numbers below the first gap, and of the ranges after it. A peer
//! may be ahead of the first gap by the horizon at most, and leaves a limited number of gaps. The record is thus
//! limited and never forgets.

use std::collections::VecDeque;
use std::ops::Range;

use content::RangeSet;

use crate::error_code::{ErrorCode, ProtocolError};
use crate::message::{MessageBatch, ReceivedMessage};
use crate::size_class::SizeClassTable;
use crate::wire::payload::take_ranges;

/// Most ranges in the record of a lane. Each gap is a stream or larger message that is not complete, of which a sender has
/// fewer at a time ([`MAX_OUTGOING_STREAMS`](crate::core::sending::MAX_OUTGOING_STREAMS)).
const MAX_RECORD_RANGES: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct IncomingLane {
    received: RangeSet,
    acknowledged: RangeSet,
    /// Acknowledged numbers that the peer has not been told.
    to_announce: RangeSet,
    pub(crate) queue: VecDeque<MessageBatch>,
}

impl IncomingLane {
    pub(crate) fn new() -> Self {
        Self {
            received: RangeSet::up_to(1),
            acknowledged: RangeSet::up_to(1),
            to_announce: RangeSet::new(),
            queue: VecDeque::new(),
        }
    }

    /// Restores what a journal has kept.
    pub(crate) fn restore(&mut self, acknowledged: RangeSet) {
        self.received = RangeSet::up_to(1);
        self.received.insert_all(&acknowledged);
        self.acknowledged = self.received.clone();
    }

    /// The peer has lost its state and begins at `first`.
    pub(crate) fn reset(&mut self, first: u64) {
        self.received = RangeSet::up_to(first);
        self.acknowledged = RangeSet::up_to(first);
        self.to_announce.clear();
    }

    /// Begins a carrier: acknowledgements of the former one may be lost. The peer will not send numbers below `first`.
    pub(crate) fn begin_carrier(&mut self, first: u64) {
        self.received.insert(0..first);
        self.acknowledged.insert(0..first);
        self.to_announce = self.acknowledged.clone();
    }

    /// Takes the first message of the queue.
    pub(crate) fn next_message(&mut self, table: &SizeClassTable) -> Option<ReceivedMessage> {
        loop {
            if let Some(message) = self.queue.front_mut()?.take_first(table) {
                return Some(message);
            }
            self.queue.pop_front();
        }
    }

    pub(crate) fn received(&self) -> &RangeSet {
        &self.received
    }

    pub(crate) fn acknowledged(&self) -> &RangeSet {
        &self.acknowledged
    }

    pub(crate) fn is_received(&self, number: u64) -> bool {
        self.received.contains(number)
    }

    /// Whether this number and all after it have not arrived, and all before it have.
    pub(crate) fn is_next(&self, number: u64) -> bool {
        self.received.range_count() == 1 && self.received.contiguous_end(0) == number
    }

    /// Whether these numbers may arrive, with regard to those that have.
    pub(crate) fn check_numbers(
        &self,
        numbers: &Range<u64>,
        horizon: u32,
    ) -> Result<(), ProtocolError> {
        let limit_exceeded = |detail| ProtocolError {
            code: ErrorCode::LIMIT_EXCEEDED,
            detail,
        };
        let first_gap = self.received.contiguous_end(0);
        if numbers.end > first_gap + u64::from(horizon) {
            return Err(limit_exceeded(
                "the number of a message is beyond the horizon",
            ));
        }
        let is_adjacent =
            self.is_received(numbers.start.saturating_sub(1)) || self.is_received(numbers.end);
        if self.received.range_count() >= MAX_RECORD_RANGES && !is_adjacent {
            return Err(limit_exceeded(
                "more gaps among the numbers of messages than this end accepts",
            ));
        }
        Ok(())
    }

    pub(crate) fn record_received(&mut self, numbers: Range<u64>) {
        self.received.insert(numbers);
    }

    /// A message that has already arrived was sent again: its acknowledgement may be lost.
    pub(crate) fn repeat_acknowledgement(&mut self, number: u64) {
        if !self.acknowledged.contains(number) {
            return;
        }
        if self.to_announce.range_count() < MAX_RECORD_RANGES {
            self.to_announce.insert(number..number + 1);
        } else {
            // A peer that repeats many single numbers, and reads nothing, is told everything.
            self.to_announce = self.acknowledged.clone();
        }
    }

    pub(crate) fn acknowledge(&mut self, numbers: Range<u64>) {
        self.acknowledged.insert(numbers.clone());
        self.to_announce.insert(numbers);
    }

    pub(crate) fn has_announcement(&self) -> bool {
        !self.to_announce.is_empty()
    }

    /// The next ranges for an ACK.
    pub(crate) fn take_announcement(&mut self) -> RangeSet {
        take_ranges(&mut self.to_announce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_a_peer_that_leaves_gaps_is_limited() {
        let mut lane = IncomingLane::new();
        let mut number = 2;
        while lane.check_numbers(&(number..number + 1), 1 << 20).is_ok() {
            lane.record_received(number..number + 1);
            lane.acknowledge(number..number + 1);
            number += 2;
        }
        assert_eq!(lane.received.range_count(), MAX_RECORD_RANGES);
        // Numbers that add no range are accepted.
        lane.check_numbers(&(number - 1..number), 1 << 20).unwrap();
        lane.check_numbers(&(1..2), 1 << 20).unwrap();
    }

    #[test]
    fn repeated_acknowledgements_are_limited() {
        let mut lane = IncomingLane::new();
        lane.record_received(1..100_000);
        lane.acknowledge(1..100_000);
        while lane.has_announcement() {
            lane.take_announcement();
        }
        for number in (1..100_000).step_by(2) {
            lane.repeat_acknowledgement(number);
            assert!(lane.to_announce.range_count() <= MAX_RECORD_RANGES);
        }
        assert!(lane.to_announce.covers(1..100_000));
    }
}
