//! PUBLISH (MQTT 5.0 section 3.3).

use crate::frame::put_header;
use crate::properties::{Properties, Scope};
use crate::reader::{Reader, put_binary, put_u16};
use crate::{Direction, Error, PacketType, QoS, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty only in version 5 and with a topic alias.
    pub topic: &'a str,
    /// 0 at QoS 0.
    pub packet_id: u16,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    /// `first_byte` has passed [`split_frame`](crate::split_frame).
    #[inline]
    pub fn decode(
        first_byte: u8,
        body: &'a [u8],
        version: Version,
        direction: Direction,
    ) -> Result<Self, Error> {
        let qos = QoS::try_from(first_byte >> 1 & 3)
            .map_err(|_| Error::malformed("PUBLISH: QoS 3 does not exist [MQTT-3.3.1-4]"))?;
        let mut reader = Reader::new(body);
        let topic = reader.binary("PUBLISH: topic name")?;
        let topic = topic_name(topic)?;
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => reader.packet_id("PUBLISH: packet identifier [MQTT-2.2.1-2]")?,
        };
        let mut properties = Properties::EMPTY;
        if version == Version::V5 {
            let scope = match direction {
                Direction::FromClient => Scope::PublishFromClient,
                Direction::FromServer => Scope::PublishFromServer,
            };
            properties = Properties::decode(&mut reader, scope)?;
            if topic.is_empty() && properties.topic_alias().is_none() {
                return Err(Error::protocol(
                    "PUBLISH: neither a topic name nor a topic alias",
                ));
            }
        } else if topic.is_empty() {
            return Err(Error {
                reason: ReasonCode::TOPIC_NAME_INVALID,
                detail: "PUBLISH: the topic name is empty [MQTT-4.7.3-1]",
            });
        }
        Ok(Self {
            dup: first_byte & 8 != 0,
            qos,
            retain: first_byte & 1 != 0,
            topic,
            packet_id,
            properties,
            payload: reader.rest(),
        })
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let is_v5 = version == Version::V5;
        let len = 2
            + self.topic.len()
            + if self.qos == QoS::AtMostOnce { 0 } else { 2 }
            + if is_v5 {
                self.properties.encoded_len()
            } else {
                0
            }
            + self.payload.len();
        let first_byte = (PacketType::Publish as u8) << 4
            | u8::from(self.dup) << 3
            | (self.qos as u8) << 1
            | u8::from(self.retain);
        put_header(first_byte, len, out);
        put_binary(self.topic.as_bytes(), out);
        if self.qos != QoS::AtMostOnce {
            put_u16(self.packet_id, out);
        }
        if is_v5 {
            self.properties.encode(out);
        }
        out.extend_from_slice(self.payload);
    }
}

/// UTF-8 without U+0000 and wildcards [MQTT-3.3.2-1, MQTT-3.3.2-2].
#[inline]
fn topic_name(bytes: &[u8]) -> Result<&str, Error> {
    // One pass over all bytes without a branch in it; the compiler makes it a few vector instructions.
    let mut bad = false;
    for &byte in bytes {
        bad |= byte == 0 || byte == b'+' || byte == b'#';
    }
    match std::str::from_utf8(bytes) {
        Ok(topic) if !bad => Ok(topic),
        Ok(_) if !bytes.contains(&0) => Err(Error {
            reason: ReasonCode::TOPIC_NAME_INVALID,
            detail: "PUBLISH: the topic name has a wildcard in it [MQTT-3.3.2-2]",
        }),
        _ => Err(Error::malformed(
            "PUBLISH: topic name is not valid UTF-8 [MQTT-3.3.2-1]",
        )),
    }
}
