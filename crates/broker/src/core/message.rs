//! A message that the broker keeps: [`Message`] owns for a queue, an in-flight window or the retained store what a
//! [`MessageView`] borrows.

use bytes::Bytes;
use hooks::{MessageView, NEVER_MS, str_from_utf8};
use mqtt::{Properties, Property, QoS};

use super::outbox::SHARE_FROM_BYTES;

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

/// Copies `properties` into `out`, without topic alias, subscription identifiers and the user property of this name.
pub(crate) fn copy_forwardable(
    properties: Properties<'_>,
    dropped_user_property: Option<&str>,
    out: &mut Vec<u8>,
) {
    for (span, property) in properties.spans() {
        let is_dropped = match property {
            Property::TopicAlias(_) | Property::SubscriptionIdentifier(_) => true,
            Property::UserProperty(name, _) => dropped_user_property == Some(name),
            _ => false,
        };
        if !is_dropped {
            out.extend_from_slice(&properties.as_bytes()[span]);
        }
    }
}
