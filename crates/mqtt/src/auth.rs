//! AUTH (MQTT 5.0 section 3.15).

use crate::disconnect::encode_reason;
use crate::error::{Error, ReasonCode};
use crate::frame::put_header;
use crate::properties::{Properties, PropertyScope};
use crate::reader::Reader;
use crate::types::{Direction, PacketType, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Success, continue authentication, or re-authenticate.
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> Auth<'a> {
    pub fn decode(body: &'a [u8], version: Version, direction: Direction) -> Result<Self, Error> {
        if version != Version::V5 {
            return Err(Error::protocol_error(
                "AUTH: does not exist before version 5",
            ));
        }
        let mut packet = Self {
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        };
        if !body.is_empty() {
            let mut reader = Reader::new(body);
            packet.reason = ReasonCode(reader.u8("AUTH: expected a reason code")?);
            packet.properties = Properties::decode(&mut reader, PropertyScope::Auth)?;
            reader.expect_end("AUTH: bytes after the properties")?;
        }
        // MQTT 5.0 table 3-11
        let is_valid = match direction {
            Direction::FromClient => matches!(packet.reason.0, 0x18 | 0x19),
            Direction::FromServer => matches!(packet.reason.0, 0x00 | 0x18),
        };
        if !is_valid {
            return Err(Error::protocol_error(
                "AUTH: not a reason code of its sender [MQTT-3.15.2-1]",
            ));
        }
        // An AUTH without a body means success, and then has no authentication method.
        if !body.is_empty() && packet.properties.authentication_method().is_none() {
            return Err(Error::protocol_error("AUTH: no authentication method"));
        }
        Ok(packet)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let first_byte = (PacketType::Auth as u8) << 4;
        if self.reason == ReasonCode::SUCCESS && self.properties.is_empty() {
            return put_header(first_byte, 0, out);
        }
        encode_reason(first_byte, self.reason, self.properties, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{
        MALFORMED, PROTOCOL, packet, reason_from_client, reason_from_server,
    };

    const METHOD: &[u8] = &[4, 0x15, 0, 1, b'm'];

    #[test]
    fn mqtt_3_15_2_1_the_reason_code_is_one_of_its_sender() {
        for code in 0..=255 {
            let bytes = packet(0xf0, &[&[code], METHOD]);
            let expected = |is_valid| if is_valid { None } else { PROTOCOL };
            assert_eq!(
                reason_from_client(&bytes, Version::V5),
                expected(matches!(code, 0x18 | 0x19))
            );
            let found = reason_from_server(&bytes, Version::V5);
            assert_eq!(found, expected(matches!(code, 0x00 | 0x18)));
        }
    }

    #[test]
    fn section_3_15_2_1_success_without_properties_has_no_body() {
        assert_eq!(reason_from_server(&[0xf0, 0], Version::V5), None);
        // Only a server may send success.
        assert_eq!(reason_from_client(&[0xf0, 0], Version::V5), PROTOCOL);
        let mut out = Vec::new();
        let success = Auth::decode(&[], Version::V5, Direction::FromServer).unwrap();
        success.encode(&mut out);
        assert_eq!(out, [0xf0, 0]);
    }

    #[test]
    fn section_3_15_2_2_2_there_is_an_authentication_method() {
        assert_eq!(
            reason_from_client(&packet(0xf0, &[&[0x18, 0]]), Version::V5),
            PROTOCOL
        );
        let data = packet(0xf0, &[&[0x18, 4, 0x16, 0, 1, 0xff]]);
        assert_eq!(reason_from_client(&data, Version::V5), PROTOCOL);
    }

    #[test]
    fn section_3_15_2_the_length_of_the_properties_is_there() {
        assert_eq!(
            reason_from_client(&packet(0xf0, &[&[0x18]]), Version::V5),
            MALFORMED
        );
        assert_eq!(
            reason_from_client(&packet(0xf0, &[&[0x18], METHOD, &[0]]), Version::V5),
            MALFORMED
        );
        let mut out = Vec::new();
        let without_method = Auth {
            reason: ReasonCode::CONTINUE_AUTHENTICATION,
            properties: Properties::EMPTY,
        };
        without_method.encode(&mut out);
        assert_eq!(out, [0xf0, 2, 0x18, 0]);
    }
}
