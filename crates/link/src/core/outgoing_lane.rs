//! Messages of one priority on their way to the peer, kept until they are acknowledged.

use std::collections::VecDeque;

use bytes::Bytes;
use content::RangeSet;

use crate::core::credit::{MESSAGE_OVERHEAD_BYTES, SendCredit};
use crate::error_code::ProtocolError;
use crate::priority::Priority;
use crate::wire::header::FrameType;
use crate::wire::writer::FrameWriter;

/// Longest payload of a frame with several messages.
const MAX_BATCH_BYTES: usize = 32 * 1024;

#[derive(Debug)]
struct OutgoingMessage {
    number: u64,
    payload: Bytes,
}

/// The numbering of a lane, and its messages of one frame.
#[derive(Debug)]
pub(crate) struct OutgoingLane {
    priority: Priority,
    next_number: u64,
    /// Not acknowledged, in the order of their numbers.
    messages: VecDeque<OutgoingMessage>,
    /// Index of the first one that has not been sent on this carrier.
    unsent: usize,
    queued_bytes: u64,
    acknowledged: RangeSet,
    /// Numbers that the peer had when the carrier began.
    known_to_peer: RangeSet,
}

impl OutgoingLane {
    pub(crate) fn new(priority: Priority) -> Self {
        Self {
            priority,
            next_number: 1,
            messages: VecDeque::new(),
            unsent: 0,
            queued_bytes: 0,
            acknowledged: RangeSet::up_to(1),
            known_to_peer: RangeSet::new(),
        }
    }

    /// The lowest number that is not acknowledged.
    pub(crate) fn first(&self) -> u64 {
        self.acknowledged.contiguous_end(0)
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    pub(crate) fn is_settled(&self, number: u64) -> bool {
        self.acknowledged.contains(number)
    }

    /// Whether everything with a number is acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.first() == self.next_number
    }

    /// Takes the next number, unless it is too far ahead of the acknowledged ones.
    pub(crate) fn next_number(&mut self, horizon: u32) -> Option<u64> {
        if self.next_number >= self.first() + u64::from(horizon) {
            return None;
        }
        self.next_number += 1;
        Some(self.next_number - 1)
    }

    pub(crate) fn push(&mut self, number: u64, payload: Bytes) {
        self.queued_bytes += payload.len() as u64 + MESSAGE_OVERHEAD_BYTES;
        self.messages.push_back(OutgoingMessage { number, payload });
    }

    /// Restores what a journal has kept: `messages` are those that are not acknowledged, in order.
    pub(crate) fn restore(
        &mut self,
        next_number: u64,
        acknowledged: RangeSet,
        messages: impl IntoIterator<Item = (u64, Bytes)>,
    ) {
        *self = Self::new(self.priority);
        self.next_number = next_number;
        self.acknowledged.insert_all(&acknowledged);
        for (number, payload) in messages {
            self.push(number, payload);
        }
    }

    /// Begins a carrier: everything is unsent, except what the peer has.
    pub(crate) fn begin_carrier(&mut self, known_to_peer: RangeSet) {
        self.unsent = 0;
        self.known_to_peer = known_to_peer;
    }

    /// Handles an acknowledgement.
    pub(crate) fn acknowledge(&mut self, ranges: &RangeSet) -> Result<(), ProtocolError> {
        if ranges.end() > self.next_number {
            return Err(ProtocolError::violation(
                "ACK names a message that was not sent",
            ));
        }
        self.acknowledged.insert_all(ranges);
        let first = self.first();
        while let Some(front) = self.messages.front()
            && (front.number < first || self.acknowledged.contains(front.number))
        {
            self.queued_bytes -= front.payload.len() as u64 + MESSAGE_OVERHEAD_BYTES;
            self.messages.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
        }
        Ok(())
    }

    /// Whether a message can be sent with this credit.
    pub(crate) fn is_ready(&mut self, credit: &SendCredit) -> bool {
        while let Some(message) = self.messages.get(self.unsent) {
            if !self.acknowledged.contains(message.number)
                && !self.known_to_peer.contains(message.number)
            {
                return credit.available() >= message.payload.len() as u64 + MESSAGE_OVERHEAD_BYTES;
            }
            self.unsent += 1;
        }
        false
    }

    /// Writes one frame with the next message, or with the next messages if they are tiny. Call it only if
    /// [`is_ready`](Self::is_ready). Returns the messages and bytes sent.
    pub(crate) fn send(
        &mut self,
        tiny_limit_bytes: usize,
        credit: &mut SendCredit,
        writer: &mut FrameWriter,
    ) -> (u64, u64) {
        let Some(first) = self.messages.get(self.unsent) else {
            return (0, 0);
        };
        let number = first.number;
        let flags = self.priority as u8;
        if first.payload.len() >= tiny_limit_bytes {
            let mut fields = Vec::with_capacity(20);
            disk::varint::put(&mut fields, number);
            disk::varint::put(&mut fields, first.payload.len() as u64);
            credit.spend(first.payload.len() as u64 + MESSAGE_OVERHEAD_BYTES);
            let bytes = first.payload.len() as u64;
            writer.push(
                FrameType::Messages,
                flags,
                0,
                &fields,
                first.payload.clone(),
            );
            self.unsent += 1;
            return (1, bytes);
        }
        let available = credit.available();
        let (mut cost, mut bytes, mut expected) = (0, 0, number);
        // The first number that must not be repeated ends the batch.
        let end = self
            .known_to_peer
            .iter()
            .chain(self.acknowledged.iter())
            .map(|range| range.start)
            .filter(|start| *start > number)
            .min()
            .unwrap_or(u64::MAX);
        let messages = &mut self.messages;
        let batch = messages.range(self.unsent..).map_while(|message| {
            let len = message.payload.len() as u64;
            let fits = message.number == expected
                && message.number < end
                && message.payload.len() < tiny_limit_bytes
                && cost + len + MESSAGE_OVERHEAD_BYTES <= available;
            expected += 1;
            cost += len + MESSAGE_OVERHEAD_BYTES;
            fits.then_some(&message.payload)
        });
        let max_bytes = MAX_BATCH_BYTES.max(tiny_limit_bytes + 32);
        let count = writer.push_batch(flags, number, batch, max_bytes);
        for message in messages.range(self.unsent..self.unsent + count) {
            bytes += message.payload.len() as u64;
        }
        credit.spend(bytes + count as u64 * MESSAGE_OVERHEAD_BYTES);
        self.unsent += count;
        (count as u64, bytes)
    }
}
