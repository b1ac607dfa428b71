//! PUBLISH (MQTT 5.0 section 3.3).

use crate::byte_scan::{has_nul, has_nul_or_wildcard};
use crate::error::{Error, ReasonCode};
use crate::frame::put_header;
use crate::properties::{Properties, PropertyScope};
use crate::reader::{Reader, binary_len, put_binary, put_u16};
use crate::types::{Direction, PacketType, QoS, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty only in version 5 with a topic alias.
    pub topic: &'a str,
    /// 0 at QoS 0.
    pub packet_id: u16,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    /// `first_byte` must be validated by [`split_frame`](crate::split_frame).
    ///
    /// Always inlined: its result would be returned through memory.
    #[inline(always)]
    pub fn decode(
        first_byte: u8,
        body: &'a [u8],
        version: Version,
        direction: Direction,
    ) -> Result<Self, Error> {
        let qos = QoS::try_from(first_byte >> 1 & 3)
            .map_err(|_| Error::malformed_packet("PUBLISH: QoS 3 does not exist [MQTT-3.3.1-4]"))?;
        let mut reader = Reader::new(body);
        let topic = reader
            .binary("PUBLISH: topic name: expected a length and that many bytes [MQTT-3.3.2-1]")?;
        let topic = parse_topic_name(topic)?;
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => reader
                .packet_id("PUBLISH: expected a packet identifier that is not 0 [MQTT-2.2.1-3]")?,
        };
        let mut properties = Properties::EMPTY;
        if version == Version::V5 {
            let scope = match direction {
                Direction::FromClient => PropertyScope::PublishFromClient,
                Direction::FromServer => PropertyScope::PublishFromServer,
            };
            properties = Properties::decode(&mut reader, scope)?;
            if topic.is_empty() && properties.topic_alias().is_none() {
                return Err(Error::protocol_error(
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
        let len = binary_len(self.topic.as_bytes())
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

/// A topic name: UTF-8 without U+0000 and wildcards [MQTT-3.3.2-1, MQTT-3.3.2-2].
#[inline]
fn parse_topic_name(bytes: &[u8]) -> Result<&str, Error> {
    match std::str::from_utf8(bytes) {
        Ok(topic) if !has_nul_or_wildcard(bytes) => Ok(topic),
        _ => Err(topic_name_error(bytes)),
    }
}

/// A separate cold function, so that it costs the common path no registers.
#[cold]
#[inline(never)]
fn topic_name_error(bytes: &[u8]) -> Error {
    if std::str::from_utf8(bytes).is_ok() && !has_nul(bytes) {
        Error {
            reason: ReasonCode::TOPIC_NAME_INVALID,
            detail: "PUBLISH: the topic name contains a wildcard [MQTT-3.3.2-2]",
        }
    } else {
        Error::malformed_packet("PUBLISH: topic name: expected UTF-8 without U+0000 [MQTT-3.3.2-1]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{
        MALFORMED, PROTOCOL, packet, reason_from_client, reason_from_server,
    };

    const ALL: [Version; 3] = [Version::V31, Version::V311, Version::V5];
    const NAME_INVALID: Option<ReasonCode> = Some(ReasonCode::TOPIC_NAME_INVALID);

    /// A PUBLISH with this topic, packet identifier 1 if `first_byte` requires one, no properties and
    /// a payload.
    fn publish(first_byte: u8, topic: &[u8], version: Version) -> Option<ReasonCode> {
        let packet_id: &[u8] = if first_byte & 6 == 0 { &[] } else { &[0, 1] };
        let properties: &[u8] = if version == Version::V5 { &[0] } else { &[] };
        let len = (topic.len() as u16).to_be_bytes();
        let parts = [&len, topic, packet_id, properties, b"payload"];
        reason_from_client(&packet(first_byte, &parts), version)
    }

    #[test]
    fn every_valid_first_byte_is_read() {
        for version in ALL {
            for first_byte in [0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3a, 0x3b, 0x3c, 0x3d] {
                assert_eq!(publish(first_byte, b"a", version), None);
            }
        }
        let found = Publish::decode(
            0x3d,
            b"\0\x01a\0\x07p",
            Version::V311,
            Direction::FromServer,
        );
        let expected = Publish {
            dup: true,
            qos: QoS::ExactlyOnce,
            retain: true,
            topic: "a",
            packet_id: 7,
            properties: Properties::EMPTY,
            payload: b"p",
        };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn mqtt_2_2_1_2_a_packet_identifier_is_there_from_qos_1_on_only() {
        let qos_0 = Publish::decode(0x30, b"\0\x01a\0\x07", Version::V311, Direction::FromClient);
        assert_eq!(qos_0.unwrap().payload, b"\0\x07");
        assert_eq!(
            reason_from_client(&packet(0x32, &[b"\0\x01a"]), Version::V311),
            MALFORMED
        );
    }

    #[test]
    fn mqtt_2_2_1_3_the_packet_identifier_is_not_0() {
        for version in ALL {
            assert_eq!(
                reason_from_client(&packet(0x32, &[b"\0\x01a\0\0\0"]), version),
                PROTOCOL
            );
            assert_eq!(
                reason_from_client(&packet(0x34, &[b"\0\x01a\0\0\0"]), version),
                PROTOCOL
            );
        }
    }

    #[test]
    fn mqtt_3_3_2_1_the_topic_name_is_there_and_utf_8() {
        for version in ALL {
            for topic in [
                &b"\xff"[..],
                b"a\xc0\x80",
                b"\xed\xa0\x80",
                b"a\0b",
                b"\0",
                b"\xf4\x90\x80\x80",
            ] {
                assert_eq!(publish(0x30, topic, version), MALFORMED, "{topic:?}");
            }
            assert_eq!(
                publish(0x30, "a/ä/\u{10ffff}/\u{feff}".as_bytes(), version),
                None
            );
            for body in [&b""[..], b"\0", b"\0\x02a"] {
                assert_eq!(
                    reason_from_client(&packet(0x30, &[body]), version),
                    MALFORMED
                );
            }
        }
    }

    #[test]
    fn mqtt_3_3_2_2_the_topic_name_has_no_wildcards() {
        for version in ALL {
            for topic in ["#", "+", "a/#", "a+b", "+/a"] {
                assert_eq!(publish(0x30, topic.as_bytes(), version), NAME_INVALID);
            }
        }
    }

    #[test]
    fn mqtt_4_7_3_1_the_topic_name_is_not_empty() {
        assert_eq!(publish(0x30, b"", Version::V31), NAME_INVALID);
        assert_eq!(publish(0x30, b"", Version::V311), NAME_INVALID);
        // Section 3.3.2.1: empty only with a topic alias.
        assert_eq!(publish(0x30, b"", Version::V5), PROTOCOL);
        assert_eq!(
            reason_from_client(&packet(0x30, &[b"\0\0\x03\x23\0\x01"]), Version::V5),
            None
        );
    }

    #[test]
    fn mqtt_3_3_4_6_a_client_sends_no_subscription_identifier() {
        let bytes = packet(0x30, &[b"\0\x01a\x04\x0b\x01\x0b\x02"]);
        assert_eq!(reason_from_client(&bytes, Version::V5), PROTOCOL);
        assert_eq!(reason_from_server(&bytes, Version::V5), None);
    }

    #[test]
    fn section_3_3_3_the_payload_may_be_empty() {
        for version in ALL {
            assert_eq!(
                reason_from_client(&packet(0x30, &[b"\0\x01a\0"]), version),
                None
            );
        }
    }
}
