//! DISCONNECT (MQTT 5.0 section 3.14).

use crate::error::{Error, ReasonCode};
use crate::frame::put_header;
use crate::properties::{Properties, PropertyScope};
use crate::reader::Reader;
use crate::types::{Direction, PacketType, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disconnect<'a> {
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> Disconnect<'a> {
    pub fn decode(body: &'a [u8], version: Version, direction: Direction) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let mut packet = Self {
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        };
        if reader.is_empty() {
            return Ok(packet);
        }
        if version != Version::V5 {
            return Err(Error::malformed_packet(
                "DISCONNECT: has no body before version 5",
            ));
        }
        packet.reason = ReasonCode(reader.u8("DISCONNECT: expected a reason code")?);
        if !is_valid(packet.reason, direction) {
            return Err(Error::protocol_error(
                "DISCONNECT: not a reason code of its sender [MQTT-3.14.2-1]",
            ));
        }
        if !reader.is_empty() {
            let scope = match direction {
                Direction::FromClient => PropertyScope::DisconnectFromClient,
                Direction::FromServer => PropertyScope::DisconnectFromServer,
            };
            packet.properties = Properties::decode(&mut reader, scope)?;
            reader.expect_end("DISCONNECT: bytes after the properties")?;
        }
        Ok(packet)
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let first_byte = (PacketType::Disconnect as u8) << 4;
        if version != Version::V5 {
            return put_header(first_byte, 0, out);
        }
        match (self.reason, self.properties.is_empty()) {
            (ReasonCode::SUCCESS, true) => put_header(first_byte, 0, out),
            (_, true) => {
                put_header(first_byte, 1, out);
                out.push(self.reason.0);
            }
            _ => encode_reason(first_byte, self.reason, self.properties, out),
        }
    }
}

/// Encodes DISCONNECT or AUTH with reason and properties.
pub(crate) fn encode_reason(
    first_byte: u8,
    reason: ReasonCode,
    properties: Properties<'_>,
    out: &mut Vec<u8>,
) {
    put_header(first_byte, 1 + properties.encoded_len(), out);
    out.push(reason.0);
    properties.encode(out);
}

/// MQTT 5.0 table 3-10.
fn is_valid(reason: ReasonCode, direction: Direction) -> bool {
    let either = matches!(
        reason.0,
        0x00 | 0x80..=0x83 | 0x90 | 0x93..=0x99
    );
    match direction {
        Direction::FromClient => either || reason.0 == 0x04,
        Direction::FromServer => {
            // 0x8c is not in table 3-10, but table 2-6 allows it for DISCONNECT after a
            // re-authentication.
            either || matches!(reason.0, 0x87 | 0x89 | 0x8b..=0x8f | 0x9a..=0xa2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{
        MALFORMED, PROTOCOL, packet, reason_from_client, reason_from_server,
    };

    #[test]
    fn mqtt_3_14_2_1_the_reason_code_is_one_of_its_sender() {
        let client = [
            0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
        ];
        let server = [
            0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8b, 0x8c, 0x8d, 0x8e, 0x8f, 0x90, 0x93,
            0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9e, 0x9f, 0xa0, 0xa1,
            0xa2,
        ];
        for code in 0..=255 {
            let expected = |is_valid| if is_valid { None } else { PROTOCOL };
            let bytes = [0xe0, 1, code];
            assert_eq!(
                reason_from_client(&bytes, Version::V5),
                expected(client.contains(&code))
            );
            assert_eq!(
                reason_from_server(&bytes, Version::V5),
                expected(server.contains(&code))
            );
        }
    }

    #[test]
    fn section_3_14_2_reason_and_properties_may_be_left_out() {
        for body in [&[][..], &[0], &[0, 0]] {
            let found = Disconnect::decode(body, Version::V5, Direction::FromClient).unwrap();
            let mut out = Vec::new();
            found.encode(Version::V5, &mut out);
            assert_eq!(out, [0xe0, 0]);
        }
        assert_eq!(
            reason_from_client(&packet(0xe0, &[&[0, 0, 0]]), Version::V5),
            MALFORMED
        );
    }

    #[test]
    fn mqtt_3_14_2_2_a_server_sends_no_session_expiry_interval() {
        let bytes = [0xe0, 7, 0, 5, 0x11, 0, 0, 0, 9];
        assert_eq!(reason_from_client(&bytes, Version::V5), None);
        assert_eq!(reason_from_server(&bytes, Version::V5), PROTOCOL);
    }

    #[test]
    fn section_3_14_of_3_1_1_disconnect_has_no_body() {
        for version in [Version::V31, Version::V311] {
            assert_eq!(reason_from_client(&[0xe0, 0], version), None);
            assert_eq!(reason_from_client(&[0xe0, 1, 0], version), MALFORMED);
        }
    }
}
