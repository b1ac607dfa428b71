//! CONNACK (MQTT 5.0 section 3.2).

use crate::error::{Error, ReasonCode};
use crate::frame::put_header;
use crate::properties::{Properties, PropertyScope};
use crate::reader::Reader;
use crate::types::{PacketType, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnAck<'a> {
    pub session_present: bool,
    /// The reason code of version 5, whatever version the connection uses; see [`v3_return_code`].
    pub code: ReasonCode,
    pub properties: Properties<'a>,
}

/// The equivalent return code of versions 3.1 and 3.1.1; 0 for success or if there is none.
pub fn v3_return_code(code: ReasonCode) -> u8 {
    match code {
        ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => 1,
        ReasonCode::CLIENT_IDENTIFIER_NOT_VALID => 2,
        ReasonCode::SERVER_UNAVAILABLE
        | ReasonCode::SERVER_BUSY
        | ReasonCode::SERVER_SHUTTING_DOWN
        | ReasonCode::QUOTA_EXCEEDED
        | ReasonCode::USE_ANOTHER_SERVER
        | ReasonCode::SERVER_MOVED
        | ReasonCode::CONNECTION_RATE_EXCEEDED => 3,
        ReasonCode::BAD_USER_NAME_OR_PASSWORD => 4,
        ReasonCode::NOT_AUTHORIZED | ReasonCode::BANNED => 5,
        _ => 0,
    }
}

fn reason_from_v3(code: u8) -> Result<ReasonCode, Error> {
    Ok(match code {
        0 => ReasonCode::SUCCESS,
        1 => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
        2 => ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
        3 => ReasonCode::SERVER_UNAVAILABLE,
        4 => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        5 => ReasonCode::NOT_AUTHORIZED,
        _ => {
            return Err(Error::malformed_packet(
                "CONNACK: return code must be 0 to 5",
            ));
        }
    })
}

impl<'a> ConnAck<'a> {
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let flags = reader.u8("CONNACK: expected the acknowledge flags")?;
        let code = reader.u8("CONNACK: expected a reason code after the flags")?;
        let mut properties = Properties::EMPTY;
        let code = if version == Version::V5 {
            properties = Properties::decode(&mut reader, PropertyScope::ConnAck)?;
            parse_reason_code(code)?
        } else {
            reason_from_v3(code)?
        };
        // Version 3.1 does not use the flags byte.
        let flags = if version == Version::V31 { 0 } else { flags };
        if flags > 1 {
            return Err(Error::malformed_packet(
                "CONNACK: reserved flags are set [MQTT-3.2.2-1]",
            ));
        }
        if flags == 1 && code != ReasonCode::SUCCESS {
            return Err(Error::protocol_error(
                "CONNACK: a session is present although the connection is rejected [MQTT-3.2.2-6]",
            ));
        }
        reader.expect_end("CONNACK: bytes after the packet")?;
        Ok(Self {
            session_present: flags == 1,
            code,
            properties,
        })
    }

    /// Before version 5, a rejection without a return code (see [`v3_return_code`]) appends nothing. The server then
    /// closes the connection without a CONNACK [MQTT-3.2.2-6 of version 3.1.1].
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let is_v5 = version == Version::V5;
        let code = if is_v5 {
            self.code.0
        } else {
            v3_return_code(self.code)
        };
        if self.code.is_error() && code == 0 {
            return;
        }
        let properties_len = if is_v5 {
            self.properties.encoded_len()
        } else {
            0
        };
        put_header((PacketType::ConnAck as u8) << 4, 2 + properties_len, out);
        let has_flags = version != Version::V31;
        let session_present = self.session_present && has_flags && !self.code.is_error();
        out.extend_from_slice(&[u8::from(session_present), code]);
        if is_v5 {
            self.properties.encode(out);
        }
    }
}

/// MQTT 5.0 table 3-1.
fn parse_reason_code(code: u8) -> Result<ReasonCode, Error> {
    match code {
        0x00 | 0x80..=0x8a | 0x8c | 0x90 | 0x95 | 0x97 | 0x99..=0x9d | 0x9f => Ok(ReasonCode(code)),
        _ => Err(Error::protocol_error(
            "CONNACK: not one of its reason codes [MQTT-3.2.2-8]",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{MALFORMED, PROTOCOL, reason_from_server};

    const V31: Version = Version::V31;
    const V311: Version = Version::V311;
    const V5: Version = Version::V5;

    fn encoded(session_present: bool, code: ReasonCode, version: Version) -> Vec<u8> {
        let mut out = Vec::new();
        let connack = ConnAck {
            session_present,
            code,
            properties: Properties::EMPTY,
        };
        connack.encode(version, &mut out);
        out
    }

    #[test]
    fn mqtt_3_2_2_1_reserved_flags_are_0() {
        for flags in 2..=255 {
            assert_eq!(reason_from_server(&[0x20, 3, flags, 0, 0], V5), MALFORMED);
            assert_eq!(reason_from_server(&[0x20, 2, flags, 0], V311), MALFORMED);
            assert_eq!(reason_from_server(&[0x20, 2, flags, 0], V31), None);
        }
    }

    #[test]
    fn version_3_1_has_no_session_present() {
        assert!(!ConnAck::decode(&[1, 0], V31).unwrap().session_present);
        assert_eq!(encoded(true, ReasonCode::SUCCESS, V31), [0x20, 2, 0, 0]);
        assert_eq!(encoded(true, ReasonCode::SUCCESS, V311), [0x20, 2, 1, 0]);
    }

    #[test]
    fn mqtt_3_2_2_6_no_session_is_present_in_a_rejection() {
        assert_eq!(reason_from_server(&[0x20, 3, 1, 0x87, 0], V5), PROTOCOL);
        assert_eq!(reason_from_server(&[0x20, 2, 1, 5], V311), PROTOCOL);
        assert_eq!(
            encoded(true, ReasonCode::NOT_AUTHORIZED, V5),
            [0x20, 3, 0, 0x87, 0]
        );
    }

    #[test]
    fn mqtt_3_2_2_8_the_reason_code_is_one_of_table_3_1() {
        let rejected: Vec<u8> = (0..=255)
            .filter(|&code| reason_from_server(&[0x20, 3, 0, code, 0], V5).is_some())
            .collect();
        let valid = [
            0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8c, 0x90,
            0x95, 0x97, 0x99, 0x9a, 0x9b, 0x9c, 0x9d, 0x9f,
        ];
        assert!((0..=255).all(|code| valid.contains(&code) != rejected.contains(&code)));
    }

    #[test]
    fn table_3_1_of_version_3_1_1_has_six_return_codes() {
        for code in 0..=255 {
            let found = reason_from_server(&[0x20, 2, 0, code], V311);
            assert_eq!(found.is_none(), code < 6, "{code}");
            let there_and_back = reason_from_v3(code).map(v3_return_code);
            assert!(there_and_back.is_err() || there_and_back == Ok(code));
        }
    }

    #[test]
    fn mqtt_3_2_2_6_of_3_1_1_a_rejection_without_a_return_code_is_not_sent() {
        for version in [V31, V311] {
            assert_eq!(encoded(false, ReasonCode::MALFORMED_PACKET, version), []);
            assert_eq!(encoded(false, ReasonCode::BANNED, version), [0x20, 2, 0, 5]);
        }
        assert_eq!(
            encoded(false, ReasonCode::MALFORMED_PACKET, V5),
            [0x20, 3, 0, 0x81, 0]
        );
    }

    #[test]
    fn section_3_2_3_connack_has_no_payload() {
        assert_eq!(reason_from_server(&[0x20, 4, 0, 0, 0, 0], V5), MALFORMED);
        assert_eq!(reason_from_server(&[0x20, 3, 0, 0, 0], V311), MALFORMED);
        assert_eq!(reason_from_server(&[0x20, 2, 0, 0], V5), MALFORMED);
        assert_eq!(reason_from_server(&[0x20, 1, 0], V311), MALFORMED);
    }
}
