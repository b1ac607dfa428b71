//! Messages of one priority on their way to the peer, kept until they are acknowledged.
//!
//! Tiny messages are copied into the content of the next frame while they are in the cache of the processor; a frame is
//! the unit that is sent, kept and freed. Larger messages are frames of their own and are not copied.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use content::RangeSet;

use crate::core::credit::SendCredit;
use crate::error_code::ProtocolError;
use crate::message::MESSAGE_OVERHEAD_BYTES;
use crate::priority::Priority;
use crate::wire::entries::{entry_bytes, put_entry, take_entry};
use crate::wire::header::FrameType;
use crate::wire::writer::FrameWriter;

/// Longest content of a frame with several messages.
const MAX_BATCH_BYTES: usize = 32 * 1024 - 16;
/// Size of the buffers that such frames are parts of.
const BATCH_BUFFER_BYTES: usize = 64 * 1024;
/// Least room for the begin of a frame with several messages.
const MIN_BATCH_ROOM_BYTES: usize = 4 * 1024;

#[derive(Debug, Clone)]
enum FrameContent {
    /// One message.
    Message(Bytes),
    /// Messages with their lengths.
    Entries(Bytes),
}

/// Messages with successive numbers that are sent together.
#[derive(Debug)]
struct OutgoingFrame {
    first: u64,
    count: u64,
    /// Of the messages, without their lengths.
    bytes: u64,
    content: FrameContent,
    /// The peer had all of it when the carrier began.
    is_known: bool,
}

impl OutgoingFrame {
    fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Credit that it takes.
    fn cost(&self) -> u64 {
        self.bytes + self.count * MESSAGE_OVERHEAD_BYTES
    }

    /// Credit that its first message takes.
    fn first_cost(&self) -> u64 {
        let len = match &self.content {
            FrameContent::Message(payload) => payload.len(),
            FrameContent::Entries(entries) => {
                take_entry(&mut &entries[..]).map_or(0, |message| message.len())
            }
        };
        len as u64 + MESSAGE_OVERHEAD_BYTES
    }

    /// Splits off the messages from `count` on.
    fn split_off(&mut self, count: u64) -> Self {
        let FrameContent::Entries(entries) = &mut self.content else {
            unreachable!("one message is not split");
        };
        let mut rest = &entries[..];
        let mut bytes = 0;
        for _ in 0..count {
            bytes += take_entry(&mut rest).map_or(0, |message| message.len() as u64);
        }
        let split = entries.split_off(entries.len() - rest.len());
        let other = Self {
            first: self.first + count,
            count: self.count - count,
            bytes: self.bytes - bytes,
            content: FrameContent::Entries(split),
            is_known: self.is_known,
        };
        self.count = count;
        self.bytes = bytes;
        other
    }

    /// How many of its messages can be sent with this credit.
    fn affordable(&self, credit: u64) -> u64 {
        let FrameContent::Entries(entries) = &self.content else {
            return u64::from(self.cost() <= credit);
        };
        let (mut rest, mut cost, mut count) = (&entries[..], 0, 0);
        while let Some(message) = take_entry(&mut rest) {
            cost += message.len() as u64 + MESSAGE_OVERHEAD_BYTES;
            if cost > credit {
                break;
            }
            count += 1;
        }
        count
    }
}

/// The numbering of a lane, and its messages of one frame.
#[derive(Debug)]
pub(crate) struct OutgoingLane {
    priority: Priority,
    next_number: u64,
    /// Not acknowledged, in the order of their numbers.
    frames: VecDeque<OutgoingFrame>,
    /// Index of the first one that has not been sent on this carrier.
    unsent: usize,
    /// Tiny messages after `frames`, to which others can be added: the number of the first, and how many there are.
    open: Option<(u64, u64)>,
    open_entries: BytesMut,
    open_bytes: u64,
    /// Of all messages, with an overhead for each.
    queued_bytes: u64,
    /// Of the messages that have not been sent on this carrier, likewise.
    unsent_bytes: u64,
    acknowledged: RangeSet,
}

impl OutgoingLane {
    pub(crate) fn new(priority: Priority) -> Self {
        Self {
            priority,
            next_number: 1,
            frames: VecDeque::new(),
            unsent: 0,
            open: None,
            open_entries: BytesMut::new(),
            open_bytes: 0,
            queued_bytes: 0,
            unsent_bytes: 0,
            acknowledged: RangeSet::up_to(1),
        }
    }

    /// The lowest number that is not acknowledged.
    pub(crate) fn first(&self) -> u64 {
        self.acknowledged.contiguous_end(0)
    }

    /// The last number that is in use; 0: none.
    pub(crate) fn last_number(&self) -> u64 {
        self.next_number - 1
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    pub(crate) fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
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

    /// Adds a message that is not copied.
    pub(crate) fn push(&mut self, number: u64, payload: Bytes) {
        let bytes = payload.len() as u64;
        self.add_bytes(bytes);
        self.close_frame();
        self.frames.push_back(OutgoingFrame {
            first: number,
            count: 1,
            bytes,
            content: FrameContent::Message(payload),
            is_known: false,
        });
    }

    /// Adds a copy of a tiny message to the frame of the ones before.
    pub(crate) fn push_copy(&mut self, number: u64, payload: &[u8]) {
        let entry_bytes = entry_bytes(payload);
        if entry_bytes > MAX_BATCH_BYTES {
            return self.push(number, Bytes::copy_from_slice(payload));
        }
        let len = self.open_entries.len() + entry_bytes;
        let is_next = self
            .open
            .is_some_and(|(first, count)| first + count == number);
        if !is_next || len > MAX_BATCH_BYTES || len > self.open_entries.capacity() {
            self.close_frame();
            if self.open_entries.capacity() < entry_bytes.max(MIN_BATCH_ROOM_BYTES) {
                self.open_entries.reserve(BATCH_BUFFER_BYTES);
            }
        }
        put_entry(&mut self.open_entries, payload);
        self.open_bytes += payload.len() as u64;
        self.open.get_or_insert((number, 0)).1 += 1;
        self.add_bytes(payload.len() as u64);
    }

    fn add_bytes(&mut self, bytes: u64) {
        self.queued_bytes += bytes + MESSAGE_OVERHEAD_BYTES;
        self.unsent_bytes += bytes + MESSAGE_OVERHEAD_BYTES;
    }

    /// Ends the frame to which tiny messages are added.
    fn close_frame(&mut self) {
        let Some((first, count)) = self.open.take() else {
            return;
        };
        self.frames.push_back(OutgoingFrame {
            first,
            count,
            bytes: std::mem::take(&mut self.open_bytes),
            content: FrameContent::Entries(self.open_entries.split().freeze()),
            is_known: false,
        });
    }

    /// Restores what a journal has kept: `messages` are those that are not acknowledged, in order.
    pub(crate) fn restore(
        &mut self,
        next_number: u64,
        acknowledged: RangeSet,
        messages: impl IntoIterator<Item = (u64, Bytes)>,
        tiny_limit_bytes: usize,
    ) {
        *self = Self::new(self.priority);
        self.next_number = next_number;
        self.acknowledged.insert_all(&acknowledged);
        for (number, payload) in messages {
            if payload.len() < tiny_limit_bytes {
                self.push_copy(number, &payload);
            } else {
                self.push(number, payload);
            }
        }
    }

    /// Begins a carrier: everything is unsent, except what the peer has.
    pub(crate) fn begin_carrier(&mut self, mut known: RangeSet) {
        known.insert_all(&self.acknowledged);
        self.close_frame();
        self.unsent = 0;
        self.unsent_bytes = 0;
        let frames = std::mem::take(&mut self.frames);
        for mut frame in frames {
            // Parts of which the peer has all messages, or none.
            loop {
                let missing = known.first_missing(frame.first..frame.end());
                frame.is_known = missing
                    .as_ref()
                    .is_none_or(|missing| missing.start > frame.first);
                let end = match missing {
                    Some(missing) if missing.start == frame.first => missing.end,
                    Some(missing) => missing.start,
                    None => frame.end(),
                };
                let rest = (end < frame.end()).then(|| frame.split_off(end - frame.first));
                if !frame.is_known {
                    self.unsent_bytes += frame.cost();
                }
                self.frames.push_back(frame);
                match rest {
                    Some(rest) => frame = rest,
                    None => break,
                }
            }
        }
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
        while let Some(front) = self.frames.front()
            && (front.end() <= first || self.acknowledged.covers(front.first..front.end()))
        {
            self.queued_bytes -= front.cost();
            if self.unsent == 0 && !front.is_known {
                self.unsent_bytes -= front.cost();
            }
            self.frames.pop_front();
            self.unsent = self.unsent.saturating_sub(1);
        }
        Ok(())
    }

    /// Whether a message can be sent with this credit.
    pub(crate) fn is_ready(&mut self, credit: &SendCredit) -> bool {
        while let Some(frame) = self.frames.get(self.unsent) {
            if !frame.is_known {
                let available = credit.available();
                return available >= frame.cost() || available >= frame.first_cost();
            }
            self.unsent += 1;
        }
        if self.open.is_none() {
            return false;
        }
        let first = take_entry(&mut &self.open_entries[..]).map_or(0, |message| message.len());
        credit.available() >= first as u64 + MESSAGE_OVERHEAD_BYTES
    }

    /// Writes the next frame, or as many of its messages as the credit permits. Call it only if
    /// [`is_ready`](Self::is_ready). Returns the bytes of the messages.
    pub(crate) fn send(&mut self, credit: &mut SendCredit, writer: &mut FrameWriter) -> u64 {
        if self.unsent == self.frames.len() {
            self.close_frame();
        }
        let Some(frame) = self.frames.get_mut(self.unsent) else {
            return 0;
        };
        if frame.cost() > credit.available() {
            let count = frame.affordable(credit.available());
            if count == 0 {
                return 0;
            }
            let rest = frame.split_off(count);
            self.frames.insert(self.unsent + 1, rest);
        }
        let frame = &self.frames[self.unsent];
        let flags = self.priority as u8;
        match &frame.content {
            FrameContent::Message(payload) => {
                let mut fields = Vec::with_capacity(20);
                disk::varint::put(&mut fields, frame.first);
                disk::varint::put(&mut fields, payload.len() as u64);
                writer.push(FrameType::Messages, flags, 0, &fields, payload.clone());
            }
            FrameContent::Entries(entries) => {
                writer.push_messages(flags, frame.first, entries.clone());
            }
        }
        credit.spend(frame.cost());
        self.unsent_bytes -= frame.cost();
        self.unsent += 1;
        frame.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::reader::FrameReader;

    fn message(number: u64) -> Bytes {
        Bytes::from(vec![number as u8; number as usize % 100])
    }

    fn lane(numbers: impl IntoIterator<Item = u64>) -> OutgoingLane {
        let mut lane = OutgoingLane::new(Priority::Normal);
        lane.next_number = 10_000;
        for number in numbers {
            lane.push_copy(number, &message(number));
        }
        lane
    }

    /// The numbers that the lane sends with this credit, which it does not exceed.
    fn sent(lane: &mut OutgoingLane, credit: u64) -> Vec<u64> {
        let mut writer = FrameWriter::default();
        let mut credit = SendCredit::new(credit);
        while lane.is_ready(&credit) {
            let before = credit.available();
            assert!(lane.send(&mut credit, &mut writer) <= before);
        }
        let mut slices = VecDeque::new();
        writer.take(&mut slices);
        let mut reader = FrameReader::new();
        for slice in slices {
            reader.push(&slice);
        }
        let mut numbers = Vec::new();
        while let Some(frame) = reader.next_frame().expect("valid frames") {
            let mut rest = &frame.payload[..];
            let mut number = disk::varint::take(&mut rest).expect("a number");
            while let Some(content) = take_entry(&mut rest) {
                assert_eq!(content, message(number));
                numbers.push(number);
                number += 1;
            }
        }
        numbers
    }

    #[test]
    fn credit_splits_frames_between_messages() {
        let mut lane = lane(1..1000);
        let cost = |numbers: std::ops::Range<u64>| -> u64 {
            numbers
                .map(|number| message(number).len() as u64 + MESSAGE_OVERHEAD_BYTES)
                .sum()
        };
        assert_eq!(sent(&mut lane, cost(1..2) - 1), []);
        assert_eq!(sent(&mut lane, cost(1..500) - 1), Vec::from_iter(1..499));
        assert_eq!(sent(&mut lane, cost(499..1000)), Vec::from_iter(499..1000));
        assert_eq!(sent(&mut lane, u64::MAX), []);
    }

    #[test]
    fn what_the_peer_has_is_not_repeated() {
        // 300 is a message of several frames, and not in the lane.
        let mut lane = lane((1..300).chain(301..700));
        let mut known = RangeSet::new();
        for range in [0..1, 5..6, 100..200, 299..310, 650..700] {
            known.insert(range);
        }
        assert_eq!(sent(&mut lane, u64::MAX).len(), 698);
        lane.acknowledge(&RangeSet::up_to(3)).expect("was sent");
        lane.begin_carrier(known.clone());
        let expected = (3..650).filter(|number| !known.contains(*number));
        assert_eq!(sent(&mut lane, u64::MAX), Vec::from_iter(expected));
    }

    #[test]
    fn acknowledged_messages_are_forgotten() {
        let mut lane = lane(1..3000);
        assert_eq!(sent(&mut lane, u64::MAX), Vec::from_iter(1..3000));
        assert!(lane.queued_bytes() > 0);
        let mut ranges = RangeSet::new();
        ranges.insert(2000..3000);
        lane.acknowledge(&ranges).expect("was sent");
        assert!(!lane.is_settled(1999) && lane.is_settled(2000));
        lane.acknowledge(&RangeSet::up_to(2000)).expect("was sent");
        assert_eq!(lane.queued_bytes(), 0);
        assert_eq!(sent(&mut lane, u64::MAX), []);
        let error = lane.acknowledge(&RangeSet::up_to(10_001));
        assert!(error.is_err());
    }
}
