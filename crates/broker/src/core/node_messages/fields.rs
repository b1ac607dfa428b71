//! Kinds and fields of the messages between nodes: how they are written and read.

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::core::cross_shard_batch::BatchError;

pub(super) const ANNOUNCEMENTS: u8 = 1;
pub(super) const COMPLETE: u8 = 2;
pub(super) const APPLIED: u8 = 3;
pub(super) const BATCH: u8 = 4;
pub(super) const LOGGED: u8 = 5;
pub(super) const RETAINED_DIGESTS: u8 = 6;
pub(super) const SESSIONS: u8 = 7;
pub(super) const TUNNEL: u8 = 8;
pub(super) const STREAM: u8 = 9;
pub(super) const STORE_STATE: u8 = 10;
pub(super) const SUCCESSION: u8 = 11;
pub(super) const EXCLUSIVES: u8 = 12;

/// Bytes of session messages, or of those about exclusive subscriptions, in one message.
const SESSIONS_BYTES: usize = 64 << 10;

/// Why a message of another node cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum NodeMessageError {
    #[error("it ends early")]
    Short,
    #[error("its kind {0} is unknown")]
    Kind(u8),
    #[error("a topic filter or group in it is invalid")]
    Filter,
    #[error("a client id, topic, node name or address in it is invalid")]
    Name,
    #[error("{0} bytes follow its end")]
    Excess(usize),
    #[error("an application message in it is invalid: {0}")]
    Batch(#[from] BatchError),
}

pub(super) fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u32_le(text.len() as u32);
    out.put_slice(text.as_bytes());
}

/// Splits these parts of a message into messages of bounded size, with their number in each.
pub(super) fn encode_split<T>(
    kind: u8,
    messages: &[T],
    encode: impl Fn(&T, &mut BytesMut),
    mut send: impl FnMut(Bytes),
) {
    let mut rest = messages;
    while !rest.is_empty() {
        let mut body = BytesMut::new();
        let mut count = 0;
        while count < rest.len() && body.len() < SESSIONS_BYTES {
            encode(&rest[count], &mut body);
            count += 1;
        }
        rest = &rest[count..];
        let mut out = BytesMut::with_capacity(9 + body.len());
        out.put_u8(kind);
        out.put_u64_le(count as u64);
        out.put_slice(&body);
        send(out.freeze());
    }
}

/// Reads the fields of a message one after the other.
pub(super) struct NodeMessageReader<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> NodeMessageReader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], NodeMessageError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(NodeMessageError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, NodeMessageError> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u32(&mut self) -> Result<u32, NodeMessageError> {
        let taken = self.take(4)?;
        Ok(u32::from_le_bytes([taken[0], taken[1], taken[2], taken[3]]))
    }

    pub(super) fn u64(&mut self) -> Result<u64, NodeMessageError> {
        Ok(u64::from(self.u32()?) | u64::from(self.u32()?) << 32)
    }

    /// A text; `invalid` is the error if it is not UTF-8.
    pub(super) fn text(&mut self, invalid: NodeMessageError) -> Result<&'a str, NodeMessageError> {
        let len = self.u32()? as usize;
        std::str::from_utf8(self.take(len)?).map_err(|_| invalid)
    }

    pub(super) fn filter(&mut self) -> Result<Box<str>, NodeMessageError> {
        let text = self.text(NodeMessageError::Filter)?;
        // It may begin like an extension: `$share/g/$queue/a` subscribes to `$queue/a`.
        match mqtt::validate_topic_filter(text, &mqtt::TopicLimits::NONE) {
            Ok(()) => Ok(text.into()),
            Err(_) => Err(NodeMessageError::Filter),
        }
    }

    pub(super) fn name(&mut self) -> Result<Box<str>, NodeMessageError> {
        Ok(self.text(NodeMessageError::Name)?.into())
    }

    pub(super) fn take_rest(&mut self) -> Bytes {
        Bytes::copy_from_slice(std::mem::take(&mut self.rest))
    }
}
