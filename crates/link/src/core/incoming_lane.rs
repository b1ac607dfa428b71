//! Messages of one priority from the peer: which have arrived, which are acknowledged, which wait for the application.
//!
//! The record that excludes duplicates consists of all numbers below the first gap, and of the ranges after it. A peer
//! may be ahead of the first gap by the horizon at most, so that the record is limited and never forgets.

use std::collections::VecDeque;
use std::ops::Range;

use content::RangeSet;

use crate::error_code::{ErrorCode, ProtocolError};
use crate::message::{MessageBatch, ReceivedMessage};
use crate::size_class::SizeClassTable;
use crate::wire::payload::take_ranges;

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

    pub(crate) fn check_horizon(&self, end: u64, horizon: u32) -> Result<(), ProtocolError> {
        let first_gap = self.received.contiguous_end(0);
        if end > first_gap + u64::from(horizon) {
            return Err(ProtocolError {
                code: ErrorCode::LIMIT_EXCEEDED,
                detail: "the number of a message is beyond the horizon",
            });
        }
        Ok(())
    }

    pub(crate) fn record_received(&mut self, numbers: Range<u64>) {
        self.received.insert(numbers);
    }

    /// A message that has already arrived was sent again: its acknowledgement may be lost.
    pub(crate) fn repeat_acknowledgement(&mut self, number: u64) {
        if self.acknowledged.contains(number) {
            self.to_announce.insert(number..number + 1);
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
