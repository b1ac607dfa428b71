//! Messages that a hook publishes.

use mqtt::{Properties, PropertiesBuf, QoS};

use crate::message::str_from_utf8;

/// One message to be published, with its origin.
#[derive(Debug, Clone, Copy)]
pub struct MessageDraft<'a> {
    /// A valid topic name.
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub properties: &'a PropertiesBuf,
    pub qos: QoS,
    pub retain: bool,
    /// The publisher as reported to hooks and in queue listings; empty: the node itself.
    pub client_id: &'a str,
    pub username: &'a str,
    /// Passed to [`Hooks::publish`](crate::Hooks::publish) when the message is published.
    pub tag: u64,
}

/// Messages one after the other in one buffer, in the order of publication.
#[derive(Default)]
pub struct OutgoingMessages {
    bytes: Vec<u8>,
    spans: Vec<DraftSpan>,
}

/// Position of a message in the buffer; the default is the first message.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutgoingPosition {
    message: usize,
    byte: usize,
}

/// Lengths of the parts of one message.
struct DraftSpan {
    topic: usize,
    properties: usize,
    payload: usize,
    client_id: usize,
    username: usize,
    qos: QoS,
    retain: bool,
    tag: u64,
}

/// A message borrowed from the buffer.
pub struct MessageDraftView<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub properties: Properties<'a>,
    pub qos: QoS,
    pub retain: bool,
    pub client_id: &'a str,
    pub username: &'a str,
    pub tag: u64,
}

impl OutgoingMessages {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Content bytes of all messages.
    #[inline]
    pub fn content_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Approximate memory use in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<DraftSpan>()
    }

    #[inline]
    pub fn push(&mut self, draft: &MessageDraft<'_>) {
        let properties = draft.properties.as_properties().as_bytes();
        for part in [
            draft.topic.as_bytes(),
            draft.client_id.as_bytes(),
            draft.username.as_bytes(),
            properties,
            draft.payload,
        ] {
            self.bytes.extend_from_slice(part);
        }
        self.spans.push(DraftSpan {
            topic: draft.topic.len(),
            properties: properties.len(),
            payload: draft.payload.len(),
            client_id: draft.client_id.len(),
            username: draft.username.len(),
            qos: draft.qos,
            retain: draft.retain,
            tag: draft.tag,
        });
    }

    /// Removes all messages and keeps the allocation.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = MessageDraftView<'_>> {
        let mut position = OutgoingPosition::default();
        std::iter::from_fn(move || {
            let (draft, next) = self.message_at(position)?;
            position = next;
            Some(draft)
        })
    }

    /// The message at a position, and the position of the next one.
    #[inline]
    pub fn message_at(
        &self,
        position: OutgoingPosition,
    ) -> Option<(MessageDraftView<'_>, OutgoingPosition)> {
        let span = self.spans.get(position.message)?;
        let mut left = &self.bytes[position.byte..];
        let mut take = |len: usize| {
            let (part, rest) = left.split_at(len);
            left = rest;
            part
        };
        let text = str_from_utf8;
        let draft = MessageDraftView {
            topic: text(take(span.topic)),
            client_id: text(take(span.client_id)),
            username: text(take(span.username)),
            properties: Properties::from_validated(take(span.properties)),
            payload: take(span.payload),
            qos: span.qos,
            retain: span.retain,
            tag: span.tag,
        };
        let next = OutgoingPosition {
            message: position.message + 1,
            byte: self.bytes.len() - left.len(),
        };
        Some((draft, next))
    }
}
