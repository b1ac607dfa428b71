//! A stream, or a message of several frames, from the peer.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use content::RangeSet;

use crate::core::credit::ReceiveCredit;
use crate::core::outgoing_stream::StreamError;
use crate::error_code::ProtocolError;
use crate::wire::control::{Done, Open, StreamKind};
use crate::wire::payload::take_ranges;

/// A piece of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub offset: u64,
    pub bytes: Bytes,
}

impl Chunk {
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// The result of reading a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamRead {
    /// Nothing has arrived since.
    Pending,
    Chunk(Chunk),
    /// All content has been read. The receiver verifies the digest, then completes or rejects the stream.
    End(Done),
    /// The peer cancelled the stream.
    Cancelled(StreamError),
}

/// How far the answer of this end is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamAnswer {
    /// The application has not decided.
    Undecided,
    Accepted,
    Rejected(StreamError),
}

#[derive(Debug)]
pub(crate) struct IncomingStream {
    pub(crate) open: Open,
    pub(crate) answer: StreamAnswer,
    /// On this carrier; `None`: the peer has not opened it there.
    pub(crate) wire_id: Option<u32>,
    pub(crate) is_answer_sent: bool,
    received: RangeSet,
    acknowledged: RangeSet,
    to_announce: RangeSet,
    chunks: VecDeque<Chunk>,
    buffered_bytes: u64,
    done: Option<Done>,
    /// The size of the content if DONE came on a former carrier.
    complete_size: Option<u64>,
    cancelled: Option<StreamError>,
    credit: ReceiveCredit,
}

impl IncomingStream {
    pub(crate) fn new(open: Open) -> Self {
        Self {
            open,
            answer: StreamAnswer::Undecided,
            wire_id: None,
            is_answer_sent: false,
            received: RangeSet::new(),
            acknowledged: RangeSet::new(),
            to_announce: RangeSet::new(),
            chunks: VecDeque::new(),
            buffered_bytes: 0,
            done: None,
            complete_size: None,
            cancelled: None,
            credit: ReceiveCredit::default(),
        }
    }

    /// The carrier is gone.
    pub(crate) fn end_carrier(&mut self) {
        self.wire_id = None;
        self.is_answer_sent = false;
        self.complete_size = self
            .done
            .take()
            .map(|done| done.size)
            .or(self.complete_size);
    }

    /// The peer opens or resumes the stream on a carrier.
    pub(crate) fn begin_carrier(&mut self, wire_id: u32, open: Open, window: u64) {
        self.wire_id = Some(wire_id);
        self.is_answer_sent = false;
        // Without OPEN's flag the peer uses the whole window at once, which is possible because nothing is buffered.
        self.credit = ReceiveCredit::new(window, self.buffered_bytes);
        self.to_announce = self.acknowledged.clone();
        self.open = open;
    }

    /// Accepts the stream. The content of `received` is stored.
    pub(crate) fn accept(&mut self, received: &RangeSet) {
        self.answer = StreamAnswer::Accepted;
        self.received.insert_all(received);
        self.acknowledged.insert_all(received);
        self.to_announce.insert_all(received);
    }

    pub(crate) fn reject(&mut self, failure: StreamError) {
        self.answer = StreamAnswer::Rejected(failure);
        self.is_answer_sent = false;
        self.chunks.clear();
        self.buffered_bytes = 0;
    }

    pub(crate) fn cancel(&mut self, failure: StreamError) {
        self.cancelled = Some(failure);
        self.chunks.clear();
        self.buffered_bytes = 0;
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.is_some()
    }

    /// Whether all content has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        let size = self.done.map(|done| done.size).or(self.complete_size);
        size.is_some_and(|size| self.received.covers(0..size))
    }

    pub(crate) fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }

    pub(crate) fn received(&self) -> &RangeSet {
        &self.received
    }

    /// Credit for ACCEPT.
    pub(crate) fn granted(&self) -> u64 {
        self.credit.granted()
    }

    /// Takes DATA. Returns how many of its bytes are new.
    pub(crate) fn receive(&mut self, offset: u64, mut bytes: Bytes) -> Result<u64, ProtocolError> {
        let len = bytes.len() as u64;
        let end = offset
            .checked_add(len)
            .ok_or(ProtocolError::violation("DATA ends beyond 2^64"))?;
        if self.open.size.is_some_and(|size| end > size) {
            return Err(ProtocolError::violation(
                "DATA ends beyond the size that OPEN named",
            ));
        }
        if self.done.is_some() {
            return Err(ProtocolError::violation("DATA after DONE"));
        }
        if self.open.kind == StreamKind::Stream {
            self.credit.receive(len)?;
        }
        if self.cancelled.is_some() || matches!(self.answer, StreamAnswer::Rejected(_)) {
            self.credit.release(len);
            return Ok(0);
        }
        let mut new = 0;
        let mut at = offset;
        // Content that overlaps with what has arrived is a repetition.
        while let Some(missing) = self.received.first_missing(at..end) {
            let _ = bytes.split_to((missing.start - at) as usize);
            let piece = bytes.split_to((missing.end - missing.start) as usize);
            new += piece.len() as u64;
            self.chunks.push_back(Chunk {
                offset: missing.start,
                bytes: piece,
            });
            at = missing.end;
            self.received.insert(missing);
        }
        self.buffered_bytes += new;
        self.credit.release(len - new);
        Ok(new)
    }

    pub(crate) fn receive_done(&mut self, done: Done) -> Result<(), ProtocolError> {
        if self.open.size.is_some_and(|size| size != done.size) || self.received.end() > done.size {
            return Err(ProtocolError::violation(
                "DONE names another size than OPEN, or less than was sent",
            ));
        }
        // Rejected streams ignore data, so nothing of them is complete.
        let is_rejected =
            matches!(self.answer, StreamAnswer::Rejected(_)) || self.cancelled.is_some();
        if !is_rejected && !self.received.covers(0..done.size) {
            return Err(ProtocolError::violation("DONE before all content was sent"));
        }
        if done.digest.map(|digest| digest.algorithm) != self.open.digest {
            return Err(ProtocolError::violation(
                "DONE has another digest than OPEN announced",
            ));
        }
        self.done = Some(done);
        Ok(())
    }

    /// Reads the next piece, whose credit is released.
    pub(crate) fn read(&mut self) -> StreamRead {
        if let Some(failure) = &self.cancelled {
            return StreamRead::Cancelled(failure.clone());
        }
        match self.chunks.pop_front() {
            Some(chunk) => {
                let len = chunk.bytes.len() as u64;
                self.buffered_bytes -= len;
                self.credit.release(len);
                StreamRead::Chunk(chunk)
            }
            None => self.done.map_or(StreamRead::Pending, StreamRead::End),
        }
    }

    /// All pieces of a message that is complete.
    pub(crate) fn take_message(&mut self) -> Option<VecDeque<Bytes>> {
        self.done?;
        self.buffered_bytes = 0;
        let chunks = std::mem::take(&mut self.chunks);
        Some(chunks.into_iter().map(|chunk| chunk.bytes).collect())
    }

    pub(crate) fn acknowledge(&mut self, range: Range<u64>) {
        self.acknowledged.insert(range.clone());
        self.to_announce.insert(range);
    }

    pub(crate) fn has_acknowledgement(&self) -> bool {
        !self.to_announce.is_empty()
    }

    pub(crate) fn take_acknowledgement(&mut self) -> RangeSet {
        take_ranges(&mut self.to_announce)
    }

    pub(crate) fn window_announcement(&mut self) -> Option<u64> {
        self.credit.announcement()
    }
}
