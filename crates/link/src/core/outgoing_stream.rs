//! A stream, or a message of several frames, on its way to the peer.

use std::collections::VecDeque;

use bytes::Bytes;
use content::{ContentDigest, RangeSet};

use crate::core::credit::SendCredit;
use crate::error_code::ErrorCode;
use crate::message::MessageId;
use crate::wire::control::{Cancel, Done, Open, StreamKind};
use crate::wire::header::FrameType;
use crate::wire::payload::MAX_RANGES;
use crate::wire::writer::FrameWriter;

/// Why a stream failed: the peer's or the application's code and text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub struct StreamError {
    pub code: ErrorCode,
    pub text: String,
}

#[derive(Debug)]
struct StreamPiece {
    offset: u64,
    bytes: Bytes,
}

impl StreamPiece {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// What the carrier knows of the stream.
#[derive(Debug, Default)]
struct CarrierPart {
    /// The number of the stream on this carrier; `None`: OPEN has not been sent.
    wire_id: Option<u32>,
    awaits_accept: bool,
    /// The peer's answer was in HELLO or WELCOME, before OPEN.
    is_accepted_early: bool,
    is_done_sent: bool,
    is_cancel_sent: bool,
    credit: SendCredit,
}

#[derive(Debug)]
pub(crate) struct OutgoingStream {
    id: MessageId,
    open: Open,
    /// It is a message that the application has passed as a whole.
    is_message: bool,
    /// OPEN has been sent on a former carrier, or the application resumes a transfer.
    is_resumed: bool,
    /// Not sent on this carrier, by offset.
    pending: VecDeque<StreamPiece>,
    /// Sent and not acknowledged, by offset.
    retained: VecDeque<StreamPiece>,
    unacknowledged_bytes: u64,
    /// The end of what the application has written.
    written_end: u64,
    /// What the peer has received or stored.
    known_to_peer: RangeSet,
    acknowledged: RangeSet,
    done: Option<Done>,
    failure: Option<StreamError>,
    carrier: CarrierPart,
}

impl OutgoingStream {
    pub(crate) fn new(id: MessageId, open: Open) -> Self {
        Self {
            id,
            is_resumed: open.is_resume,
            open,
            is_message: false,
            pending: VecDeque::new(),
            retained: VecDeque::new(),
            unacknowledged_bytes: 0,
            written_end: 0,
            known_to_peer: RangeSet::new(),
            acknowledged: RangeSet::new(),
            done: None,
            failure: None,
            carrier: CarrierPart::default(),
        }
    }

    /// A message with this content.
    pub(crate) fn of_message(id: MessageId, open: Open, content: Bytes) -> Self {
        let mut stream = Self::new(id, open);
        stream.is_message = true;
        let size = content.len() as u64;
        stream.write(0, content);
        stream.finish(size, None);
        stream
    }

    pub(crate) fn is_message(&self) -> bool {
        self.is_message
    }

    pub(crate) fn kind(&self) -> StreamKind {
        self.open.kind
    }

    pub(crate) fn wire_id(&self) -> Option<u32> {
        self.carrier.wire_id
    }

    pub(crate) fn unacknowledged_bytes(&self) -> u64 {
        self.unacknowledged_bytes
    }

    /// Bytes in memory of a message that the peer has not acknowledged as a whole.
    pub(crate) fn kept_message_bytes(&self) -> u64 {
        match self.is_message && self.failure.is_none() {
            true => self.written_end,
            false => 0,
        }
    }

    pub(crate) fn acknowledged(&self) -> &RangeSet {
        &self.acknowledged
    }

    /// What the peer has. A stream that resumes nothing is regarded as accepted until the peer rejects it.
    pub(crate) fn accepted(&self) -> Option<&RangeSet> {
        let is_answered = self.carrier.wire_id.is_some() && !self.carrier.awaits_accept;
        is_answered.then_some(&self.known_to_peer)
    }

    pub(crate) fn failure(&self) -> Option<&StreamError> {
        self.failure.as_ref()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.done.is_some()
    }

    pub(crate) fn written_end(&self) -> u64 {
        self.written_end
    }

    /// Whether everything has been sent on this carrier.
    pub(crate) fn is_sent(&self) -> bool {
        self.carrier.is_done_sent
    }

    /// Adds content. Pieces come in ascending order of their offsets.
    pub(crate) fn write(&mut self, offset: u64, bytes: Bytes) {
        self.unacknowledged_bytes += bytes.len() as u64;
        let piece = StreamPiece { offset, bytes };
        self.written_end = piece.end();
        self.pending.push_back(piece);
    }

    pub(crate) fn finish(&mut self, size: u64, digest: Option<ContentDigest>) {
        self.done = Some(Done { size, digest });
    }

    /// Ends the stream; CANCEL tells the peer, also in answer to its REJECT.
    pub(crate) fn fail(&mut self, failure: StreamError) {
        self.pending.clear();
        self.retained.clear();
        self.unacknowledged_bytes = 0;
        self.failure.get_or_insert(failure);
    }

    pub(crate) fn begin_carrier(&mut self) {
        self.is_resumed |= self.carrier.wire_id.is_some();
        self.carrier = CarrierPart::default();
        if self.is_message && self.failure.is_none() {
            self.acknowledged.clear();
            self.unacknowledged_bytes = self.written_end;
        }
        self.known_to_peer = self.acknowledged.clone();
        // `retained` precedes what has not been sent.
        while let Some(piece) = self.retained.pop_back() {
            self.pending.push_front(piece);
        }
        let pending = self.pending.make_contiguous();
        pending.sort_by_key(|piece| piece.offset);
    }

    /// The peer has named the stream in the handshake: it is continued without waiting for ACCEPT, which will follow.
    pub(crate) fn continue_at(&mut self, credit: u64, received: &RangeSet) {
        if self.is_resumed && self.open.kind == StreamKind::Stream {
            self.carrier.is_accepted_early = true;
            self.carrier.credit = SendCredit::new(credit);
            self.known_to_peer.insert_all(received);
        }
    }

    /// Handles ACCEPT. Returns whether the peer still has what it has acknowledged, which is not kept here.
    pub(crate) fn accept(&mut self, credit: u64, received: &RangeSet) -> bool {
        self.carrier.awaits_accept = false;
        self.carrier.credit.raise(credit);
        self.known_to_peer.insert_all(received);
        // A list with the greatest number of ranges may be incomplete.
        received.range_count() == MAX_RANGES
            || self.acknowledged.iter().all(|range| received.covers(range))
    }

    pub(crate) fn raise_credit(&mut self, credit: u64) {
        self.carrier.credit.raise(credit);
    }

    /// Drops content that the peer has stored. That of a message is kept until its number is acknowledged: a peer that was
    /// restarted has lost what it had read of it, and only this end can send it again.
    pub(crate) fn acknowledge(&mut self, ranges: &RangeSet) {
        if self.failure.is_some() {
            return;
        }
        self.acknowledged.insert_all(ranges);
        if self.is_message {
            let acknowledged = self.acknowledged.count().min(self.written_end);
            self.unacknowledged_bytes = self.written_end - acknowledged;
            return;
        }
        let acknowledged = &self.acknowledged;
        let mut freed = 0;
        self.retained.retain(|piece| {
            let is_covered = acknowledged.covers(piece.offset..piece.end());
            freed += if is_covered {
                piece.bytes.len() as u64
            } else {
                0
            };
            !is_covered
        });
        self.unacknowledged_bytes -= freed;
    }

    /// Whether a frame can be sent. `data_credit` is that of all streams or messages, `is_slot_free` says whether the
    /// peer accepts another stream.
    pub(crate) fn is_ready(&self, data_credit: &SendCredit, is_slot_free: bool) -> bool {
        if self.failure.is_some() {
            return !self.carrier.is_cancel_sent;
        }
        if self.carrier.wire_id.is_none() {
            return is_slot_free;
        }
        if self.carrier.awaits_accept {
            return false;
        }
        match self.pending.front() {
            Some(piece) if piece.bytes.is_empty() => true,
            Some(piece) => {
                self.known_to_peer
                    .first_missing(piece.offset..piece.end())
                    .is_none()
                    || self.available(data_credit) > 0
            }
            None => self.done.is_some() && !self.carrier.is_done_sent,
        }
    }

    fn available(&self, data_credit: &SendCredit) -> u64 {
        match self.open.kind {
            StreamKind::Message => data_credit.available(),
            StreamKind::Stream => data_credit.available().min(self.carrier.credit.available()),
        }
    }

    /// Writes the next frame. Returns the bytes of content in it.
    pub(crate) fn send(
        &mut self,
        allocate_wire_id: impl FnOnce() -> u32,
        stream_window_bytes: u64,
        max_chunk_bytes: usize,
        data_credit: &mut SendCredit,
        writer: &mut FrameWriter,
    ) -> usize {
        let flags = self.id.priority as u8;
        let mut fields = Vec::new();
        if let Some(failure) = &self.failure {
            let cancel = Cancel {
                number: self.id.number,
                code: failure.code,
                text: failure.text.clone(),
            };
            cancel.encode(&mut fields);
            let wire_id = self.carrier.wire_id.unwrap_or(0);
            writer.push(FrameType::Cancel, flags, wire_id, &fields, Bytes::new());
            self.carrier.is_cancel_sent = true;
            return 0;
        }
        let Some(wire_id) = self.carrier.wire_id else {
            let wire_id = allocate_wire_id();
            self.open.is_resume = self.is_resumed;
            self.open.encode(&mut fields);
            writer.push(FrameType::Open, flags, wire_id, &fields, Bytes::new());
            self.carrier.wire_id = Some(wire_id);
            if !self.carrier.is_accepted_early {
                self.carrier.awaits_accept = self.is_resumed;
                let credit = if self.is_resumed {
                    0
                } else {
                    stream_window_bytes
                };
                self.carrier.credit = SendCredit::new(credit);
            }
            return 0;
        };
        self.skip_known();
        if self.pending.front().is_some() {
            return self.send_chunk(wire_id, max_chunk_bytes, data_credit, writer);
        }
        if let Some(done) = self.done
            && !self.carrier.is_done_sent
        {
            done.encode(&mut fields);
            writer.push(FrameType::Done, flags, wire_id, &fields, Bytes::new());
            self.carrier.is_done_sent = true;
        }
        0
    }

    /// Removes content from the front of `pending` that the peer has.
    fn skip_known(&mut self) {
        while let Some(mut piece) = self.pending.pop_front() {
            let missing = self.known_to_peer.first_missing(piece.offset..piece.end());
            let known_bytes = missing.map_or(piece.end(), |missing| missing.start) - piece.offset;
            // Less than the length of the piece, which is in memory.
            let known = piece.bytes.split_to(known_bytes as usize);
            let rest = StreamPiece {
                offset: piece.offset + known_bytes,
                bytes: piece.bytes,
            };
            if !known.is_empty() {
                self.retain(StreamPiece {
                    offset: piece.offset,
                    bytes: known,
                });
            }
            if !rest.bytes.is_empty() {
                self.pending.push_front(rest);
                return;
            }
        }
    }

    fn send_chunk(
        &mut self,
        wire_id: u32,
        max_chunk_bytes: usize,
        data_credit: &mut SendCredit,
        writer: &mut FrameWriter,
    ) -> usize {
        let available = usize::try_from(self.available(data_credit)).unwrap_or(usize::MAX);
        let known_from = |piece: &StreamPiece| {
            let missing = self.known_to_peer.first_missing(piece.offset..piece.end());
            missing.map_or(0, |missing| (missing.end - missing.start) as usize)
        };
        let Some(len) = self.pending.front().map(known_from) else {
            return 0;
        };
        let len = len.min(max_chunk_bytes).min(available);
        let (Some(front), true) = (self.pending.front_mut(), len > 0) else {
            return 0;
        };
        let chunk = StreamPiece {
            offset: front.offset,
            bytes: front.bytes.split_to(len),
        };
        front.offset += len as u64;
        if front.bytes.is_empty() {
            self.pending.pop_front();
        }
        data_credit.spend(len as u64);
        self.carrier.credit.spend(len as u64);
        writer.push(
            FrameType::Data,
            self.id.priority as u8,
            wire_id,
            &chunk.offset.to_le_bytes(),
            chunk.bytes.clone(),
        );
        self.retain(chunk);
        len
    }

    /// Keeps a piece until it is acknowledged.
    fn retain(&mut self, piece: StreamPiece) {
        if !self.is_message && self.acknowledged.covers(piece.offset..piece.end()) {
            self.unacknowledged_bytes -= piece.bytes.len() as u64;
        } else {
            self.retained.push_back(piece);
        }
    }
}
