//! Messages and what identifies them.

use std::collections::VecDeque;
use std::fmt;

use bytes::{Bytes, BytesMut};

use crate::priority::Priority;
use crate::size_class::SizeClass;

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
    pub(crate) cost: u64,
}
