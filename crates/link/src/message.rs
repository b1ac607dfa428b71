//! Messages and what identifies them.

use std::collections::VecDeque;
use std::fmt;

use bytes::{Buf as _, Bytes, BytesMut};

use crate::priority::Priority;
use crate::size_class::{SizeClass, SizeClassTable};
use crate::wire::entries::take_entry;

/// Credit that every message of one frame takes beside its length, so that empty messages are limited, too.
pub(crate) const MESSAGE_OVERHEAD_BYTES: u64 = 32;

/// Identifies a message or stream of one direction of a link: its number in the lane of its priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    pub priority: Priority,
    pub number: u64,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}", self.priority, self.number)
    }
}

/// Content in one or several pieces. Content of one frame is in one piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    first: Bytes,
    others: Vec<Bytes>,
}

impl Payload {
    pub(crate) fn from_pieces(mut pieces: VecDeque<Bytes>) -> Self {
        Self {
            first: pieces.pop_front().unwrap_or_default(),
            others: pieces.into(),
        }
    }

    pub fn len(&self) -> usize {
        self.pieces().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The content in one piece; it is copied if there are several.
    pub fn into_bytes(self) -> Bytes {
        if self.others.is_empty() {
            return self.first;
        }
        let mut bytes = BytesMut::with_capacity(self.len());
        for piece in self.pieces() {
            bytes.extend_from_slice(piece);
        }
        bytes.freeze()
    }
}

impl From<Bytes> for Payload {
    fn from(first: Bytes) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }
}

/// A message from the peer. Its payload may share a buffer with other messages; copy it if it is kept for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    pub id: MessageId,
    pub payload: Payload,
    pub class: SizeClass,
    /// Credit that the message occupies.
    cost: u64,
}

impl ReceivedMessage {
    /// A message that a journal has kept; it occupies no window.
    pub(crate) fn restored(id: MessageId, payload: Bytes, table: &SizeClassTable) -> Self {
        Self {
            id,
            class: table.classify(payload.len()),
            payload: payload.into(),
            cost: 0,
        }
    }

    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }
}

/// Messages from the peer with successive numbers that arrived in one frame, or one larger message.
///
/// Reading the messages of a batch costs less than taking them one by one, if they are small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageBatch {
    first: MessageId,
    count: u64,
    content: BatchContent,
    /// Credit that the messages occupy.
    cost: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BatchContent {
    /// Messages with their lengths. They have been checked.
    Entries(Bytes),
    Message(Payload),
}

impl MessageBatch {
    /// `entries` are valid and contain `count` messages.
    pub(crate) fn new(first: MessageId, count: u64, entries: Bytes, cost: u64) -> Self {
        let content = BatchContent::Entries(entries);
        Self {
            first,
            count,
            content,
            cost,
        }
    }

    /// A message of one frame.
    pub(crate) fn one(id: MessageId, payload: Payload) -> Self {
        let cost = payload.len() as u64 + MESSAGE_OVERHEAD_BYTES;
        Self {
            cost,
            ..Self::large(id, payload)
        }
    }

    /// A message of several frames.
    pub(crate) fn large(id: MessageId, payload: Payload) -> Self {
        Self {
            first: id,
            count: 1,
            cost: payload.len() as u64,
            content: BatchContent::Message(payload),
        }
    }

    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The priority of all messages, and the number of the first one; the others follow.
    pub fn first_id(&self) -> MessageId {
        self.first
    }

    /// Calls `read` with the number and the pieces of each message, in order.
    pub fn for_each<'a>(&'a self, mut read: impl FnMut(u64, PayloadPieces<'a>)) {
        match &self.content {
            BatchContent::Message(payload) => {
                read(self.first.number, PayloadPieces::Payload(payload));
            }
            BatchContent::Entries(entries) => {
                let mut rest = &entries[..];
                let mut number = self.first.number;
                while let Some(message) = take_entry(&mut rest) {
                    read(number, PayloadPieces::Slice(message));
                    number += 1;
                }
            }
        }
    }

    /// Takes the first message out of the batch; `None`: it is empty.
    pub(crate) fn take_first(&mut self, table: &SizeClassTable) -> Option<ReceivedMessage> {
        if self.count == 0 {
            return None;
        }
        let (payload, cost): (Payload, u64) = match &mut self.content {
            BatchContent::Message(payload) => (std::mem::take(payload), self.cost),
            BatchContent::Entries(entries) => {
                let mut rest = &entries[..];
                let message = take_entry(&mut rest)?;
                let (len, start) = (message.len(), entries.len() - rest.len());
                let message = entries.slice_ref(message);
                entries.advance(start);
                (message.into(), len as u64 + MESSAGE_OVERHEAD_BYTES)
            }
        };
        let id = self.first;
        self.first.number += 1;
        self.count -= 1;
        self.cost -= cost;
        Some(ReceivedMessage {
            id,
            class: table.classify(payload.len()),
            payload,
            cost,
        })
    }
}

/// The content of a message in a [`MessageBatch`].
#[derive(Debug, Clone, Copy)]
pub enum PayloadPieces<'a> {
    Slice(&'a [u8]),
    Payload(&'a Payload),
}

impl<'a> PayloadPieces<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::Slice(slice) => slice.len(),
            Self::Payload(payload) => payload.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first piece; that of a small message is all of it.
    pub fn first(&self) -> &'a [u8] {
        match self {
            Self::Slice(slice) => slice,
            Self::Payload(payload) => payload.pieces().next().map_or(&[], |piece| &piece[..]),
        }
    }
}
