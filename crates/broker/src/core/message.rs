//! A message in the broker. [`MessageView`] borrows it from a read buffer, a batch from another shard, or a stored
//! [`Message`]; [`Message`] owns it for a queue, an in-flight window or the retained store.
//!
//! Properties are in wire form without topic alias and subscription identifiers, so that they can be forwarded
//! unchanged. The message expiry in them is the publisher's and is counted down on encoding.

use bytes::Bytes;
use mqtt::{Properties, Property, QoS};

use super::outbox::SHARE_FROM_BYTES;

/// No expiry.
pub(crate) const NEVER_MS: u64 = u64::MAX;

#[derive(Clone, Copy)]
pub struct MessageView<'a> {
    pub topic: &'a str,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
    /// The payload again, if it is large and already shared.
    pub(crate) shared_payload: Option<&'a Bytes>,
    pub qos: QoS,
    pub retain: bool,
    /// Milliseconds since the Unix epoch.
    pub received_ms: u64,
    pub(crate) expires_ms: u64,
    /// Client id of the publisher; empty for messages of the broker itself.
    pub from_client_id: &'a str,
    pub from_username: &'a str,
    /// Whether a hook requested it, see [`Hooks::take_outgoing`](crate::hooks::Hooks::take_outgoing).
    pub is_derived: bool,
    /// Distinguishes messages received by this node in the same millisecond: the shard in the low 8 bits, a counter
    /// above.
    pub number: u32,
}

impl<'a> MessageView<'a> {
    /// A message as published by a client, to test hooks without a broker.
    pub fn from_client(
        client_id: &'a str,
        topic: &'a str,
        payload: &'a [u8],
        received_ms: u64,
    ) -> Self {
        Self {
            topic,
            payload,
            qos: QoS::AtMostOnce,
            received_ms,
            from_client_id: client_id,
            ..Self::unknown()
        }
    }
}

impl MessageView<'_> {
    /// Placeholder for a message of which nothing is known.
    pub(crate) fn unknown() -> Self {
        Self {
            topic: "",
            properties: Properties::EMPTY,
            payload: &[],
            shared_payload: None,
            qos: QoS::AtLeastOnce,
            retain: false,
            received_ms: 0,
            expires_ms: NEVER_MS,
            from_client_id: "",
            from_username: "",
            is_derived: false,
            number: 0,
        }
    }

    /// Bytes it counts for in a queue.
    pub(crate) fn size(&self) -> usize {
        self.topic.len()
            + self.from_client_id.len()
            + self.from_username.len()
            + self.properties.as_bytes().len()
            + self.payload.len()
    }
}

/// When a message published now with these properties expires.
pub(crate) fn expiry_time_ms(properties: Properties<'_>, now_ms: u64) -> u64 {
    if properties.is_empty() {
        return NEVER_MS;
    }
    match properties.message_expiry_interval() {
        Some(seconds) => now_ms + u64::from(seconds) * 1000,
        None => NEVER_MS,
    }
}

/// One allocation holds publisher, topic, properties and a small payload, one after the other.
pub(crate) struct Message {
    bytes: Box<[u8]>,
    large_payload: Option<Bytes>,
    received_ms: u64,
    expires_ms: u64,
    properties_len: u32,
    topic_len: u16,
    client_id_len: u16,
    username_len: u16,
    number: u32,
    /// QoS, retain and derived: [`QOS`], [`RETAIN`], [`DERIVED`].
    flags: u8,
}

const QOS: u8 = 3;
const RETAIN: u8 = 1 << 2;
const DERIVED: u8 = 1 << 3;

impl Message {
    pub(crate) fn new(view: &MessageView<'_>) -> Self {
        let large = match view.shared_payload {
            Some(shared) => Some(shared.clone()),
            None if view.payload.len() >= SHARE_FROM_BYTES => {
                Some(Bytes::copy_from_slice(view.payload))
            }
            None => None,
        };
        let mut flags = view.qos as u8;
        flags |= if view.retain { RETAIN } else { 0 };
        flags |= if view.is_derived { DERIVED } else { 0 };
        let properties = view.properties.as_bytes();
        // User names may have up to 65,535 bytes like every MQTT string, so every length but one fits 16 bits.
        let inline = if large.is_some() {
            &[][..]
        } else {
            view.payload
        };
        let mut bytes = Vec::with_capacity(
            view.from_client_id.len()
                + view.from_username.len()
                + view.topic.len()
                + properties.len()
                + inline.len(),
        );
        bytes.extend_from_slice(view.from_client_id.as_bytes());
        bytes.extend_from_slice(view.from_username.as_bytes());
        bytes.extend_from_slice(view.topic.as_bytes());
        bytes.extend_from_slice(properties);
        bytes.extend_from_slice(inline);
        Self {
            bytes: bytes.into_boxed_slice(),
            large_payload: large,
            received_ms: view.received_ms,
            expires_ms: view.expires_ms,
            properties_len: properties.len() as u32,
            topic_len: view.topic.len() as u16,
            client_id_len: view.from_client_id.len() as u16,
            username_len: view.from_username.len() as u16,
            number: view.number,
            flags,
        }
    }

    #[inline]
    pub(crate) fn view(&self) -> MessageView<'_> {
        let client_id_len = usize::from(self.client_id_len);
        let topic_at = client_id_len + usize::from(self.username_len);
        let (text, rest) = self.bytes.split_at(topic_at + usize::from(self.topic_len));
        let text = str_from_utf8(text);
        let (properties, inline) = rest.split_at(self.properties_len as usize);
        MessageView {
            topic: &text[topic_at..],
            properties: Properties::from_validated(properties),
            payload: self.large_payload.as_deref().unwrap_or(inline),
            shared_payload: self.large_payload.as_ref(),
            qos: QoS::try_from(self.flags & QOS).expect("was written from a QoS"),
            retain: self.flags & RETAIN != 0,
            received_ms: self.received_ms,
            expires_ms: self.expires_ms,
            from_client_id: &text[..client_id_len],
            from_username: &text[client_id_len..topic_at],
            is_derived: self.flags & DERIVED != 0,
            number: self.number,
        }
    }

    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms <= now_ms
    }

    pub(crate) fn received_ms(&self) -> u64 {
        self.received_ms
    }

    /// Bytes this message counts for in a queue.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.large_payload.as_ref().map_or(0, Bytes::len)
    }
}

/// Converts bytes that were copied from a `str` back. The conversion is checked: a few nanoseconds for about forty
/// bytes do not justify `unsafe`.
#[inline]
pub(crate) fn str_from_utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("these bytes were copied from a str")
}

/// Copies `properties` without topic alias and subscription identifiers into `out`.
pub(crate) fn copy_forwardable(properties: Properties<'_>, out: &mut Vec<u8>) {
    for (span, property) in properties.spans() {
        if !matches!(
            property,
            Property::TopicAlias(_) | Property::SubscriptionIdentifier(_)
        ) {
            out.extend_from_slice(&properties.as_bytes()[span]);
        }
    }
}
