//! CONNECT (MQTT 5.0 section 3.1, MQTT 3.1.1 section 3.1, MQTT 3.1 section 3.1).

use crate::error::{Error, ReasonCode};
use crate::frame::put_header;
use crate::properties::{Properties, PropertyScope};
use crate::reader::{Reader, put_binary, put_u16};
use crate::topic::has_wildcards;
use crate::types::{PacketType, QoS, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect<'a> {
    pub version: Version,
    /// Before version 5, the flag clean session.
    pub clean_start: bool,
    /// Seconds; 0 disables the keep alive.
    pub keep_alive_s: u16,
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub will: Option<Will<'a>>,
    pub properties: Properties<'a>,
    /// Bit 7 of the level byte, by which mosquitto bridges ask not to receive their own messages.
    pub is_bridge: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Will<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub properties: Properties<'a>,
}

const USERNAME: u8 = 1 << 7;
const PASSWORD: u8 = 1 << 6;
const WILL_RETAIN: u8 = 1 << 5;
const WILL: u8 = 1 << 2;
const CLEAN_START: u8 = 1 << 1;

impl<'a> Connect<'a> {
    pub fn decode(body: &'a [u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let name = reader.binary("CONNECT: expected a protocol name [MQTT-3.1.2-1]")?;
        let level = reader.u8("CONNECT: expected a protocol level after the protocol name")?;
        let bridge = level & 0x80 != 0;
        let version = match (name, level & 0x7f) {
            (b"MQIsdp", 3) => Version::V31,
            (b"MQTT", 4) => Version::V311,
            (b"MQTT", 5) => Version::V5,
            (b"MQIsdp" | b"MQTT", _) => {
                return Err(Error {
                    reason: ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
                    detail: "CONNECT: protocol level must be 3, 4 or 5 [MQTT-3.1.2-2]",
                });
            }
            _ => {
                return Err(Error {
                    reason: ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
                    detail: "CONNECT: protocol name must be MQTT or MQIsdp [MQTT-3.1.2-1]",
                });
            }
        };
        let flags = reader.u8("CONNECT: expected the connect flags after the protocol level")?;
        let will_qos = check_flags(flags, version)?;
        let keep_alive = reader.u16("CONNECT: expected two bytes of keep alive after the flags")?;
        let is_v5 = version == Version::V5;
        let mut properties = Properties::EMPTY;
        if is_v5 {
            properties = Properties::decode(&mut reader, PropertyScope::Connect)?;
        }
        let client_id = reader.string(
            "CONNECT: client identifier: expected a length and UTF-8 without U+0000 [MQTT-3.1.3-4]",
        )?;
        let mut will = None;
        if flags & WILL != 0 {
            let mut properties = Properties::EMPTY;
            if is_v5 {
                properties = Properties::decode(&mut reader, PropertyScope::Will)?;
            }
            let topic = reader.string(
                "CONNECT: will topic: expected a length and UTF-8 without U+0000 [MQTT-3.1.3-11]",
            )?;
            if topic.is_empty() || has_wildcards(topic) {
                return Err(Error {
                    reason: ReasonCode::TOPIC_NAME_INVALID,
                    detail: "CONNECT: the will topic is empty or has a wildcard",
                });
            }
            let payload =
                reader.binary("CONNECT: will payload: expected a length and that many bytes")?;
            let retain = flags & WILL_RETAIN != 0;
            will = Some(Will {
                topic,
                payload,
                qos: will_qos,
                retain,
                properties,
            });
        }
        // Version 3.1: the remaining length takes precedence over the flags, so user name and password may be absent.
        let may_be_missing = version == Version::V31;
        let mut username = None;
        if flags & USERNAME != 0 && !(may_be_missing && reader.is_empty()) {
            username = Some(reader.string(
                "CONNECT: user name: expected a length and UTF-8 without U+0000 [MQTT-3.1.3-12]",
            )?);
        }
        let mut password = None;
        if flags & PASSWORD != 0 && !(may_be_missing && reader.is_empty()) {
            password =
                Some(reader.binary("CONNECT: password: expected a length and that many bytes")?);
        }
        reader.expect_end("CONNECT: bytes after the payload")?;
        Ok(Self {
            version,
            clean_start: flags & CLEAN_START != 0,
            keep_alive_s: keep_alive,
            client_id,
            username,
            password,
            will,
            properties,
            is_bridge: bridge,
        })
    }

    /// The properties of a CONNECT as far as they can be parsed, for the response to an invalid one. Empty before
    /// version 5.
    pub fn readable_properties(body: &'a [u8]) -> Properties<'a> {
        let mut reader = Reader::new(body);
        let is_v5 = reader.binary("").is_ok_and(|name| name == b"MQTT")
            && reader.u8("").is_ok_and(|level| level & 0x7f == 5);
        // Skip flags and keep alive.
        if !is_v5 || reader.take(3, "").is_err() {
            return Properties::EMPTY;
        }
        Properties::decode_readable_prefix(&mut reader)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(64);
        let name: &[u8] = if self.version == Version::V31 {
            b"MQIsdp"
        } else {
            b"MQTT"
        };
        put_binary(name, &mut body);
        body.push(self.version.protocol_level() | if self.is_bridge { 0x80 } else { 0 });
        let mut flags = if self.clean_start { CLEAN_START } else { 0 };
        if let Some(will) = &self.will {
            flags |= WILL | (will.qos as u8) << 3 | if will.retain { WILL_RETAIN } else { 0 };
        }
        flags |= if self.username.is_some() { USERNAME } else { 0 };
        flags |= if self.password.is_some() { PASSWORD } else { 0 };
        body.push(flags);
        put_u16(self.keep_alive_s, &mut body);
        if self.version == Version::V5 {
            self.properties.encode(&mut body);
        }
        put_binary(self.client_id.as_bytes(), &mut body);
        if let Some(will) = &self.will {
            if self.version == Version::V5 {
                will.properties.encode(&mut body);
            }
            put_binary(will.topic.as_bytes(), &mut body);
            put_binary(will.payload, &mut body);
        }
        if let Some(username) = self.username {
            put_binary(username.as_bytes(), &mut body);
        }
        if let Some(password) = self.password {
            put_binary(password, &mut body);
        }
        put_header((PacketType::Connect as u8) << 4, body.len(), out);
        out.extend_from_slice(&body);
    }
}

/// Checks the combination of flags and returns the QoS of the will.
fn check_flags(flags: u8, version: Version) -> Result<QoS, Error> {
    if version != Version::V5 && flags & PASSWORD != 0 && flags & USERNAME == 0 {
        return Err(Error::malformed_packet(
            "CONNECT: a password without a user name [MQTT-3.1.2-22]",
        ));
    }
    // Version 3.1 ignores bit 0, and ignores the other will flags if there is no will.
    if version == Version::V31 && flags & WILL == 0 {
        return Ok(QoS::AtMostOnce);
    }
    if flags & 1 != 0 && version != Version::V31 {
        return Err(Error::malformed_packet(
            "CONNECT: the reserved flag is set [MQTT-3.1.2-3]",
        ));
    }
    let will_qos = QoS::try_from(flags >> 3 & 3).map_err(|_| {
        Error::malformed_packet("CONNECT: will QoS 3 does not exist [MQTT-3.1.2-12]")
    })?;
    if flags & WILL == 0 && (will_qos != QoS::AtMostOnce || flags & WILL_RETAIN != 0) {
        return Err(Error::malformed_packet(
            "CONNECT: will QoS or will retain without a will [MQTT-3.1.2-11, MQTT-3.1.2-13]",
        ));
    }
    Ok(will_qos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{MALFORMED, packet, reason_from_client};

    const V31: &[u8] = b"\0\x06MQIsdp\x03";
    const V311: &[u8] = b"\0\x04MQTT\x04";
    const V5: &[u8] = b"\0\x04MQTT\x05";
    /// Protocol name and level, and the bytes between keep alive and client identifier: the properties of version 5.
    const VERSIONS: [(&[u8], &[u8]); 3] = [(V31, b""), (V311, b""), (V5, b"\0")];
    const CLIENT: &[u8] = b"\0\x01c";
    const WILL_TOPIC: &[u8] = b"\0\x01w";

    fn rejected(
        (protocol, properties): (&[u8], &[u8]),
        flags: u8,
        payload: &[u8],
    ) -> Option<ReasonCode> {
        let bytes = packet(0x10, &[protocol, &[flags, 0, 60], properties, payload]);
        reason_from_client(&bytes, Version::V311)
    }

    fn decoded(protocol: &[u8], flags: u8, payload: &[u8]) -> Connect<'static> {
        let body = [protocol, &[flags, 0, 60], payload].concat().leak();
        Connect::decode(body).unwrap()
    }

    #[test]
    fn mqtt_3_1_2_1_the_protocol_name_is_mqtt() {
        for name in [
            &b"\0\x04mqtt\x04"[..],
            b"\0\x04MQTt\x05",
            b"\0\x06MQISDP\x03",
            b"\0\0\x04",
        ] {
            let found = rejected((name, b""), 2, CLIENT);
            assert_eq!(found, Some(ReasonCode::UNSUPPORTED_PROTOCOL_VERSION));
        }
        assert_eq!(
            reason_from_client(&packet(0x10, &[b"\0\x04MQ"]), Version::V311),
            MALFORMED
        );
        assert_eq!(
            reason_from_client(&packet(0x10, &[]), Version::V311),
            MALFORMED
        );
    }

    #[test]
    fn mqtt_3_1_2_2_the_protocol_level_is_3_4_or_5() {
        for name in [
            &b"\0\x04MQTT\x03"[..],
            b"\0\x04MQTT\x06",
            b"\0\x04MQTT\0",
            b"\0\x06MQIsdp\x04",
        ] {
            let found = rejected((name, b""), 2, CLIENT);
            assert_eq!(found, Some(ReasonCode::UNSUPPORTED_PROTOCOL_VERSION));
        }
    }

    #[test]
    fn a_bridge_sets_bit_7_of_the_protocol_level() {
        let connect = decoded(b"\0\x04MQTT\x84", 2, CLIENT);
        assert!(connect.is_bridge && connect.version == Version::V311);
        assert!(decoded(b"\0\x06MQIsdp\x83", 2, CLIENT).is_bridge);
        assert!(!decoded(V311, 2, CLIENT).is_bridge);
    }

    #[test]
    fn mqtt_3_1_2_3_the_reserved_flag_is_0() {
        assert_eq!(rejected(VERSIONS[0], 3, CLIENT), None);
        assert_eq!(rejected(VERSIONS[1], 3, CLIENT), MALFORMED);
        assert_eq!(rejected(VERSIONS[2], 3, CLIENT), MALFORMED);
    }

    #[test]
    fn mqtt_3_1_2_11_will_qos_is_0_without_a_will() {
        for flags in [0b0_1000, 0b1_0000, 0b1_1000] {
            assert_eq!(rejected(VERSIONS[0], flags, CLIENT), None);
            assert_eq!(rejected(VERSIONS[1], flags, CLIENT), MALFORMED);
            assert_eq!(rejected(VERSIONS[2], flags, CLIENT), MALFORMED);
        }
    }

    #[test]
    fn mqtt_3_1_2_12_will_qos_3_does_not_exist() {
        for version in VERSIONS {
            let will = [CLIENT, version.1, WILL_TOPIC, b"\0\0"].concat();
            assert_eq!(rejected(version, 0b0001_0100, &will), None);
            assert_eq!(rejected(version, 0b0001_1100, &will), MALFORMED);
        }
    }

    #[test]
    fn mqtt_3_1_2_13_will_retain_is_0_without_a_will() {
        assert_eq!(rejected(VERSIONS[0], 0b10_0000, CLIENT), None);
        assert_eq!(rejected(VERSIONS[1], 0b10_0000, CLIENT), MALFORMED);
        assert_eq!(rejected(VERSIONS[2], 0b10_0000, CLIENT), MALFORMED);
    }

    #[test]
    fn mqtt_3_1_2_9_a_will_has_properties_topic_and_payload() {
        for version in VERSIONS {
            let will = [CLIENT, version.1, WILL_TOPIC, b"\0\x01p"].concat();
            assert_eq!(rejected(version, WILL, &will), None);
            for len in 0..will.len() {
                assert_eq!(rejected(version, WILL, &will[..len]), MALFORMED, "{len}");
            }
        }
    }

    #[test]
    fn mqtt_3_1_2_16_to_19_the_flags_say_what_is_there() {
        let both = [CLIENT, b"\0\x01u\0\x01p"].concat();
        for version in &VERSIONS[1..] {
            assert_eq!(rejected(*version, USERNAME | PASSWORD, &both), None);
            assert_eq!(rejected(*version, USERNAME, &both), MALFORMED);
            assert_eq!(rejected(*version, 0, &both), MALFORMED);
            assert_eq!(
                rejected(*version, USERNAME | PASSWORD, &both[..6]),
                MALFORMED
            );
            assert_eq!(rejected(*version, USERNAME, CLIENT), MALFORMED);
        }
    }

    #[test]
    fn version_3_1_lets_user_name_and_password_be_missing() {
        let connect = decoded(V31, USERNAME | PASSWORD, CLIENT);
        assert_eq!((connect.username, connect.password), (None, None));
        let connect = decoded(V31, USERNAME | PASSWORD, b"\0\x01c\0\x01u");
        assert_eq!((connect.username, connect.password), (Some("u"), None));
        assert_eq!(rejected(VERSIONS[0], USERNAME, b"\0\x01c\0"), MALFORMED);
    }

    #[test]
    fn mqtt_3_1_2_22_no_password_without_a_user_name_before_version_5() {
        let password = [CLIENT, b"\0\x01p"].concat();
        assert_eq!(rejected(VERSIONS[0], PASSWORD, &password), MALFORMED);
        assert_eq!(rejected(VERSIONS[1], PASSWORD, &password), MALFORMED);
        assert_eq!(rejected(VERSIONS[2], PASSWORD, &password), None);
    }

    #[test]
    fn mqtt_3_1_3_3_the_client_identifier_is_there_but_may_be_empty() {
        for version in VERSIONS {
            assert_eq!(rejected(version, 2, b""), MALFORMED);
            assert_eq!(rejected(version, 2, b"\0\0"), None);
        }
    }

    #[test]
    fn mqtt_3_1_3_4_and_11_and_12_strings_are_utf_8() {
        let bad: [&[u8]; 4] = [
            b"\0\x01\xff",
            b"\0\x03\xed\xa0\x80",
            b"\0\x02\xc0\x80",
            b"\0\x01\0",
        ];
        for version in VERSIONS {
            for text in bad {
                assert_eq!(rejected(version, 0, text), MALFORMED);
                let will = [CLIENT, version.1, text, b"\0\0"].concat();
                assert_eq!(rejected(version, WILL, &will), MALFORMED);
                assert_eq!(
                    rejected(version, USERNAME, &[CLIENT, text].concat()),
                    MALFORMED
                );
            }
        }
    }

    #[test]
    fn mqtt_4_7_3_1_and_3_3_2_2_a_will_topic_is_a_topic_name() {
        for version in VERSIONS {
            for topic in [&b"\0\0"[..], b"\0\x01#", b"\0\x03a/+"] {
                let will = [CLIENT, version.1, topic, b"\0\0"].concat();
                assert_eq!(
                    rejected(version, WILL, &will),
                    Some(ReasonCode::TOPIC_NAME_INVALID)
                );
            }
        }
    }

    #[test]
    fn section_3_1_3_nothing_comes_after_the_payload() {
        for version in VERSIONS {
            assert_eq!(rejected(version, 2, b"\0\x01c\0"), MALFORMED);
        }
    }
}
