//! Encodes PUBLISH packets and acknowledgements directly into an outbox.

use hooks::{MessageView, NEVER_MS};
use mqtt::{PacketType, QoS, ReasonCode, Version};

/// The parts of a PUBLISH that differ between subscribers.
pub(crate) struct PublishEnvelope<'a> {
    pub(crate) version: Version,
    pub(crate) dup: bool,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) packet_id: u16,
    /// Topic alias, and whether it replaces the topic.
    pub(crate) alias: Option<(u16, bool)>,
    pub(crate) identifiers: &'a [u32],
}

const PROPERTY_MESSAGE_EXPIRY: u8 = 0x02;
const PROPERTY_SUBSCRIPTION_IDENTIFIER: u8 = 0x0b;
const PROPERTY_TOPIC_ALIAS: u8 = 0x23;

impl PublishEnvelope<'_> {
    fn topic_len(&self, view: &MessageView<'_>) -> usize {
        if matches!(self.alias, Some((_, true))) {
            0
        } else {
            view.topic.len()
        }
    }

    fn properties_len(&self, view: &MessageView<'_>) -> usize {
        if self.version != Version::V5 {
            return 0;
        }
        let identifiers: usize = self
            .identifiers
            .iter()
            .map(|&id| 1 + mqtt::varint_len(id))
            .sum();
        view.properties.as_bytes().len() + identifiers + if self.alias.is_some() { 3 } else { 0 }
    }

    fn remaining_len(&self, view: &MessageView<'_>, properties_len: usize) -> usize {
        2 + self.topic_len(view)
            + if self.qos == QoS::AtMostOnce { 0 } else { 2 }
            + if self.version == Version::V5 {
                mqtt::varint_len(properties_len as u32) + properties_len
            } else {
                0
            }
            + view.payload.len()
    }

    /// Length of the whole packet in bytes.
    pub(crate) fn packet_len(&self, view: &MessageView<'_>) -> usize {
        let remaining = self.remaining_len(view, self.properties_len(view));
        1 + mqtt::varint_len(remaining as u32) + remaining
    }

    /// Encodes everything but the payload.
    #[inline]
    pub(crate) fn encode_head(&self, view: &MessageView<'_>, now_ms: u64, out: &mut Vec<u8>) {
        let properties_len = self.properties_len(view);
        let remaining = self.remaining_len(view, properties_len);
        out.reserve(5 + remaining);
        out.push(
            (PacketType::Publish as u8) << 4
                | u8::from(self.dup) << 3
                | (self.qos as u8) << 1
                | u8::from(self.retain),
        );
        mqtt::encode_varint(remaining as u32, out);
        let topic = &view.topic.as_bytes()[..self.topic_len(view)];
        out.extend_from_slice(&(topic.len() as u16).to_be_bytes());
        out.extend_from_slice(topic);
        if self.qos != QoS::AtMostOnce {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
        }
        if self.version == Version::V5 {
            self.encode_properties(view, properties_len, now_ms, out);
        }
    }

    fn encode_properties(
        &self,
        view: &MessageView<'_>,
        properties_len: usize,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) {
        mqtt::encode_varint(properties_len as u32, out);
        if let Some((alias, _)) = self.alias {
            out.push(PROPERTY_TOPIC_ALIAS);
            out.extend_from_slice(&alias.to_be_bytes());
        }
        for &identifier in self.identifiers {
            out.push(PROPERTY_SUBSCRIPTION_IDENTIFIER);
            mqtt::encode_varint(identifier, out);
        }
        let at = out.len();
        out.extend_from_slice(view.properties.as_bytes());
        if view.expires_ms == NEVER_MS {
            return;
        }
        // The time a message has waited is subtracted from its expiry [MQTT-3.3.2-6].
        for (span, property) in view.properties.spans() {
            if let mqtt::Property::MessageExpiryInterval(seconds) = property {
                let waited_s = now_ms.saturating_sub(view.received_ms) / 1000;
                let left = u64::from(seconds).saturating_sub(waited_s) as u32;
                debug_assert_eq!(
                    view.properties.as_bytes()[span.start],
                    PROPERTY_MESSAGE_EXPIRY
                );
                let at = at + span.start + 1;
                out[at..at + 4].copy_from_slice(&left.to_be_bytes());
            }
        }
    }
}

/// Encodes PUBACK, PUBREC, PUBREL or PUBCOMP without properties, in the shortest form of the version.
#[inline]
pub(crate) fn encode_ack(
    kind: PacketType,
    version: Version,
    packet_id: u16,
    reason: ReasonCode,
    out: &mut Vec<u8>,
) {
    let flags = if kind == PacketType::PubRel { 2 } else { 0 };
    let [high, low] = packet_id.to_be_bytes();
    if version == Version::V5 && reason != ReasonCode::SUCCESS {
        out.extend_from_slice(&[(kind as u8) << 4 | flags, 3, high, low, reason.0]);
    } else {
        out.extend_from_slice(&[(kind as u8) << 4 | flags, 2, high, low]);
    }
}
