//! UNSUBSCRIBE and UNSUBACK (MQTT 5.0 sections 3.10 and 3.11).

use crate::error::Error;
use crate::frame::put_header;
use crate::properties::{Properties, PropertyScope};
use crate::reader::{Reader, put_binary, put_u16};
use crate::subscribe::{encode_ack_codes, validate_codes};
use crate::types::{PacketType, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsubscribe<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    pub filters: UnsubscribeFilters<'a>,
}

/// The validated filters of an UNSUBSCRIBE; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsubscribeFilters<'a> {
    bytes: &'a [u8],
    len: usize,
}

const FILTER: &str =
    "UNSUBSCRIBE: topic filter: expected a length and UTF-8 without U+0000 [MQTT-3.10.3-1]";

impl<'a> UnsubscribeFilters<'a> {
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || reader.string(FILTER).ok())
    }
}

impl<'a> Unsubscribe<'a> {
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let packet_id = reader
            .packet_id("UNSUBSCRIBE: expected a packet identifier that is not 0 [MQTT-2.2.1-3]")?;
        let mut properties = Properties::EMPTY;
        if version == Version::V5 {
            properties = Properties::decode(&mut reader, PropertyScope::Unsubscribe)?;
        }
        let bytes = reader.rest();
        let mut len = 0;
        while !reader.is_empty() {
            reader.string(FILTER)?;
            len += 1;
        }
        if len == 0 {
            return Err(Error::protocol_error(
                "UNSUBSCRIBE: no topic filter [MQTT-3.10.3-2]",
            ));
        }
        Ok(Self {
            packet_id,
            properties,
            filters: UnsubscribeFilters { bytes, len },
        })
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let mut unsubscribe = UnsubscribeBuf::new(self.packet_id);
        for filter in self.filters.iter() {
            unsubscribe.push(filter);
        }
        unsubscribe.encode(self.properties, version, out);
    }
}

/// A builder of UNSUBSCRIBE packets.
#[derive(Debug, Clone, Default)]
pub struct UnsubscribeBuf {
    packet_id: u16,
    filters: Vec<u8>,
}

impl UnsubscribeBuf {
    pub fn new(packet_id: u16) -> Self {
        Self {
            packet_id,
            filters: Vec::new(),
        }
    }

    pub fn push(&mut self, filter: &str) {
        put_binary(filter.as_bytes(), &mut self.filters);
    }

    pub fn encode(&self, properties: Properties<'_>, version: Version, out: &mut Vec<u8>) {
        let is_v5 = version == Version::V5;
        let len = 2 + self.filters.len() + if is_v5 { properties.encoded_len() } else { 0 };
        put_header((PacketType::Unsubscribe as u8) << 4 | 2, len, out);
        put_u16(self.packet_id, out);
        if is_v5 {
            properties.encode(out);
        }
        out.extend_from_slice(&self.filters);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsubAck<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    /// One code per topic filter, in order; absent on the wire before version 5.
    pub codes: &'a [u8],
}

impl<'a> UnsubAck<'a> {
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let packet_id = reader
            .packet_id("UNSUBACK: expected a packet identifier that is not 0 [MQTT-2.2.1-3]")?;
        if version != Version::V5 {
            reader.expect_end("UNSUBACK: bytes after the packet identifier")?;
            return Ok(Self {
                packet_id,
                properties: Properties::EMPTY,
                codes: &[],
            });
        }
        let properties = Properties::decode(&mut reader, PropertyScope::Ack)?;
        let codes = reader.rest();
        // Table 3-9.
        validate_codes(codes, |code| {
            matches!(code, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8f | 0x91)
        })?;
        Ok(Self {
            packet_id,
            properties,
            codes,
        })
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let codes = if version == Version::V5 {
            self.codes
        } else {
            &[]
        };
        encode_ack_codes(
            PacketType::UnsubAck,
            self.packet_id,
            self.properties,
            codes,
            version,
            out,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{
        MALFORMED, PROTOCOL, packet, reason_from_client, reason_from_server,
    };

    const ALL: [Version; 3] = [Version::V31, Version::V311, Version::V5];

    fn unsubscribe(version: Version, packet_id: u8, payload: &[u8]) -> Option<crate::ReasonCode> {
        let properties: &[u8] = if version == Version::V5 { &[0] } else { &[] };
        reason_from_client(
            &packet(0xa2, &[&[0, packet_id], properties, payload]),
            version,
        )
    }

    #[test]
    fn mqtt_2_2_1_3_the_packet_identifier_is_not_0() {
        for version in ALL {
            assert_eq!(unsubscribe(version, 0, &[0, 1, b'a']), PROTOCOL);
            assert_eq!(reason_from_server(&[0xb0, 2, 0, 0], version), PROTOCOL);
        }
    }

    #[test]
    fn mqtt_3_10_3_1_a_filter_is_utf_8() {
        for version in ALL {
            assert_eq!(unsubscribe(version, 1, &[0, 1, 0xff]), MALFORMED);
            assert_eq!(unsubscribe(version, 1, &[0, 1, 0]), MALFORMED);
            assert_eq!(unsubscribe(version, 1, &[0, 2, b'a']), MALFORMED);
        }
    }

    #[test]
    fn mqtt_3_10_3_2_there_is_at_least_one_filter() {
        for version in ALL {
            assert_eq!(unsubscribe(version, 1, &[]), PROTOCOL);
            assert_eq!(unsubscribe(version, 1, &[0, 1, b'a', 0, 1, b'b']), None);
        }
    }

    #[test]
    fn mqtt_3_11_3_2_unsuback_has_the_codes_of_its_table() {
        let valid = [0x00, 0x11, 0x80, 0x83, 0x87, 0x8f, 0x91];
        for code in 0..=255 {
            let expected = if valid.contains(&code) {
                None
            } else {
                PROTOCOL
            };
            let bytes = [0xb0, 5, 0, 1, 0, 0, code];
            assert_eq!(
                reason_from_server(&bytes, Version::V5),
                expected,
                "{code:#04x}"
            );
        }
        assert_eq!(
            reason_from_server(&[0xb0, 3, 0, 1, 0], Version::V5),
            PROTOCOL
        );
    }

    #[test]
    fn section_3_11_of_3_1_1_unsuback_is_a_packet_identifier_only() {
        for version in &ALL[..2] {
            assert_eq!(reason_from_server(&[0xb0, 2, 0, 1], *version), None);
            assert_eq!(reason_from_server(&[0xb0, 3, 0, 1, 0], *version), MALFORMED);
        }
    }
}
