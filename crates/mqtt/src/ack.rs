//! PUBACK, PUBREC, PUBREL and PUBCOMP (MQTT 5.0 sections 3.4 to 3.7), which share one format.

use crate::error::{Error, ReasonCode};
use crate::frame::put_header;
use crate::properties::{Properties, PropertyScope};
use crate::reader::{Reader, put_u16};
use crate::types::{PacketType, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    pub packet_id: u16,
    /// Always success before version 5.
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> Ack<'a> {
    #[inline]
    pub fn decode(kind: PacketType, body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id("PUBACK, PUBREC, PUBREL, PUBCOMP: expected a packet identifier that is not 0 [MQTT-2.2.1-3]")?;
        let mut ack = Self {
            packet_id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        };
        if reader.is_empty() {
            return Ok(ack);
        }
        if version != Version::V5 {
            return Err(Error::malformed_packet(
                "PUBACK, PUBREC, PUBREL, PUBCOMP: bytes after the packet identifier",
            ));
        }
        ack.reason =
            ReasonCode(reader.u8("PUBACK, PUBREC, PUBREL, PUBCOMP: expected a reason code")?);
        if !is_valid(kind, ack.reason) {
            return Err(Error::protocol_error(
                "PUBACK, PUBREC, PUBREL, PUBCOMP: not one of its reason codes [MQTT-3.4.2-1 to 3.7.2-1]",
            ));
        }
        if !reader.is_empty() {
            ack.properties = Properties::decode(&mut reader, PropertyScope::Ack)?;
            reader.expect_end("PUBACK, PUBREC, PUBREL, PUBCOMP: bytes after the properties")?;
        }
        Ok(ack)
    }

    /// Encodes in the shortest form.
    pub fn encode(&self, kind: PacketType, version: Version, out: &mut Vec<u8>) {
        let first_byte = (kind as u8) << 4 | if kind == PacketType::PubRel { 2 } else { 0 };
        let with_properties = version == Version::V5 && !self.properties.is_empty();
        let with_reason =
            version == Version::V5 && (with_properties || self.reason != ReasonCode::SUCCESS);
        let len = 2
            + usize::from(with_reason)
            + if with_properties {
                self.properties.encoded_len()
            } else {
                0
            };
        put_header(first_byte, len, out);
        put_u16(self.packet_id, out);
        if with_reason {
            out.push(self.reason.0);
        }
        if with_properties {
            self.properties.encode(out);
        }
    }
}

fn is_valid(kind: PacketType, reason: ReasonCode) -> bool {
    // Tables 3-4 to 3-7.
    match kind {
        PacketType::PubRel | PacketType::PubComp => matches!(reason.0, 0x00 | 0x92),
        _ => matches!(
            reason.0,
            0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{
        MALFORMED, PROTOCOL, packet, reason_from_client, reason_from_server,
    };

    const KINDS: [(PacketType, u8); 4] = [
        (PacketType::PubAck, 0x40),
        (PacketType::PubRec, 0x50),
        (PacketType::PubRel, 0x62),
        (PacketType::PubComp, 0x70),
    ];
    const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

    #[test]
    fn mqtt_2_2_1_3_the_packet_identifier_is_not_0() {
        for (_, first_byte) in KINDS {
            for version in VERSIONS {
                assert_eq!(
                    reason_from_client(&[first_byte, 2, 0, 0], version),
                    PROTOCOL
                );
                assert_eq!(
                    reason_from_client(&[first_byte, 2, 0xff, 0xff], version),
                    None
                );
                assert_eq!(reason_from_client(&[first_byte, 1, 1], version), MALFORMED);
            }
        }
    }

    #[test]
    fn mqtt_3_4_2_1_to_3_7_2_1_the_reason_code_is_one_of_the_packets() {
        let publish: &[u8] = &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99];
        let release: &[u8] = &[0x00, 0x92];
        for ((_, first_byte), valid) in KINDS.into_iter().zip([publish, publish, release, release])
        {
            for code in 0..=255 {
                let expected = if valid.contains(&code) {
                    None
                } else {
                    PROTOCOL
                };
                let bytes = [first_byte, 3, 0, 1, code];
                assert_eq!(
                    reason_from_client(&bytes, Version::V5),
                    expected,
                    "{bytes:?}"
                );
                assert_eq!(reason_from_server(&bytes, Version::V5), expected);
            }
        }
    }

    #[test]
    fn section_3_4_2_reason_and_properties_may_be_left_out() {
        for (kind, _) in KINDS {
            for body in [&[0, 1][..], &[0, 1, 0], &[0, 1, 0, 0]] {
                let ack = Ack::decode(kind, body, Version::V5).unwrap();
                assert_eq!(
                    (ack.reason, ack.properties),
                    (ReasonCode::SUCCESS, Properties::EMPTY)
                );
                let mut out = Vec::new();
                ack.encode(kind, Version::V5, &mut out);
                assert_eq!(out[1..], [2, 0, 1]);
            }
        }
    }

    #[test]
    fn section_3_4_2_nothing_follows_the_properties() {
        let reason_string = [0, 1, 0, 4, 0x1f, 0, 1, b'a'];
        for (_, first_byte) in KINDS {
            let whole = packet(first_byte, &[&reason_string]);
            assert_eq!(reason_from_client(&whole, Version::V5), None);
            assert_eq!(
                reason_from_client(&packet(first_byte, &[&reason_string, &[0]]), Version::V5),
                MALFORMED
            );
            assert_eq!(
                reason_from_client(&packet(first_byte, &[&reason_string[..7]]), Version::V5),
                MALFORMED
            );
        }
    }

    #[test]
    fn section_3_4_of_3_1_1_it_is_a_packet_identifier_only() {
        for (_, first_byte) in KINDS {
            for version in &VERSIONS[..2] {
                assert_eq!(
                    reason_from_client(&[first_byte, 3, 0, 1, 0], *version),
                    MALFORMED
                );
            }
        }
    }
}
