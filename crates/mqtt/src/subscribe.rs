//! SUBSCRIBE and SUBACK (MQTT 5.0 sections 3.8 and 3.9).

use std::fmt;

use crate::error::Error;
use crate::frame::put_header;
use crate::properties::{Properties, PropertyScope};
use crate::reader::{Reader, binary_len, put_binary, put_u16};
use crate::types::{PacketType, QoS, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    pub filters: SubscribeFilters<'a>,
}

/// The options of one subscription. Before version 5 only the QoS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscriptionOptions {
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// 0: send retained messages at each subscribe; 1: only for a new subscription; 2: never.
    pub retain_handling: u8,
}

impl SubscriptionOptions {
    pub fn new(qos: QoS) -> Self {
        Self {
            qos,
            ..Self::default()
        }
    }

    fn decode(byte: u8, version: Version) -> Result<Self, Error> {
        if version != Version::V5 {
            // Version 3.1 ignores the upper six bits.
            let byte = if version == Version::V31 {
                byte & 3
            } else {
                byte
            };
            return QoS::try_from(byte).map(Self::new).map_err(|_| {
                Error::malformed_packet("SUBSCRIBE: expected QoS 0, 1 or 2 [MQTT-3.8.3-4 of 3.1.1]")
            });
        }
        if byte & 0xc0 != 0 {
            return Err(Error::malformed_packet(
                "SUBSCRIBE: reserved option bits are set [MQTT-3.8.3-5]",
            ));
        }
        let qos = QoS::try_from(byte & 3).map_err(|_| {
            Error::protocol_error("SUBSCRIBE: QoS 3 does not exist (section 3.8.3.1)")
        })?;
        let retain_handling = byte >> 4 & 3;
        if retain_handling == 3 {
            return Err(Error::protocol_error(
                "SUBSCRIBE: retain handling 3 does not exist (section 3.8.3.1)",
            ));
        }
        Ok(Self {
            qos,
            no_local: byte & 4 != 0,
            retain_as_published: byte & 8 != 0,
            retain_handling,
        })
    }

    fn to_byte(self, version: Version) -> u8 {
        let qos = self.qos as u8;
        if version != Version::V5 {
            return qos;
        }
        qos | u8::from(self.no_local) << 2
            | u8::from(self.retain_as_published) << 3
            | (self.retain_handling & 3) << 4
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscribeFilter<'a> {
    /// Valid UTF-8. Whether it is a valid topic filter is not checked, because errors are reported per
    /// filter.
    pub filter: &'a str,
    pub options: SubscriptionOptions,
}

/// The validated filters of a SUBSCRIBE; at least one.
#[derive(Clone, Copy)]
pub struct SubscribeFilters<'a> {
    bytes: &'a [u8],
    version: Version,
    len: usize,
}

impl<'a> SubscribeFilters<'a> {
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = SubscribeFilter<'a>> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        let version = self.version;
        std::iter::from_fn(move || next_filter(&mut reader, version).ok())
    }
}

/// Compares the meaning: version 3.1 has ignored bits on the wire.
impl PartialEq for SubscribeFilters<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SubscribeFilters<'_> {}

impl fmt::Debug for SubscribeFilters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn next_filter<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<SubscribeFilter<'a>, Error> {
    let filter = reader.string(
        "SUBSCRIBE: topic filter: expected a length and UTF-8 without U+0000 [MQTT-3.8.3-1]",
    )?;
    let options = reader
        .u8("SUBSCRIBE: expected a byte of options after each topic filter [MQTT-3.8.3-2]")?;
    let options = SubscriptionOptions::decode(options, version)?;
    if options.no_local && filter.starts_with("$share/") {
        return Err(Error::protocol_error(
            "SUBSCRIBE: no local on a shared subscription [MQTT-3.8.3-4]",
        ));
    }
    Ok(SubscribeFilter { filter, options })
}

impl<'a> Subscribe<'a> {
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let packet_id = reader
            .packet_id("SUBSCRIBE: expected a packet identifier that is not 0 [MQTT-2.2.1-3]")?;
        let mut properties = Properties::EMPTY;
        if version == Version::V5 {
            properties = Properties::decode(&mut reader, PropertyScope::Subscribe)?;
        }
        let bytes = reader.rest();
        let mut len = 0;
        while !reader.is_empty() {
            next_filter(&mut reader, version)?;
            len += 1;
        }
        if len == 0 {
            return Err(Error::protocol_error(
                "SUBSCRIBE: no topic filter [MQTT-3.8.3-2]",
            ));
        }
        Ok(Self {
            packet_id,
            properties,
            filters: SubscribeFilters {
                bytes,
                version,
                len,
            },
        })
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let mut subscribe = SubscribeBuf::new(self.packet_id);
        for filter in self.filters.iter() {
            subscribe.push(filter.filter, filter.options);
        }
        subscribe.encode(self.properties, version, out);
    }
}

/// A builder of SUBSCRIBE packets.
#[derive(Debug, Clone, Default)]
pub struct SubscribeBuf {
    packet_id: u16,
    filters: Vec<(String, SubscriptionOptions)>,
}

impl SubscribeBuf {
    pub fn new(packet_id: u16) -> Self {
        Self {
            packet_id,
            filters: Vec::new(),
        }
    }

    pub fn push(&mut self, filter: &str, options: SubscriptionOptions) {
        self.filters.push((filter.to_owned(), options));
    }

    pub fn encode(&self, properties: Properties<'_>, version: Version, out: &mut Vec<u8>) {
        let is_v5 = version == Version::V5;
        let filters: usize = self
            .filters
            .iter()
            .map(|(filter, _)| binary_len(filter.as_bytes()) + 1)
            .sum();
        let len = 2 + filters + if is_v5 { properties.encoded_len() } else { 0 };
        put_header((PacketType::Subscribe as u8) << 4 | 2, len, out);
        put_u16(self.packet_id, out);
        if is_v5 {
            properties.encode(out);
        }
        for (filter, options) in &self.filters {
            put_binary(filter.as_bytes(), out);
            out.push(options.to_byte(version));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubAck<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    /// One code per topic filter, in order.
    pub codes: &'a [u8],
}

impl<'a> SubAck<'a> {
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let packet_id = reader
            .packet_id("SUBACK: expected a packet identifier that is not 0 [MQTT-2.2.1-3]")?;
        let mut properties = Properties::EMPTY;
        if version == Version::V5 {
            properties = Properties::decode(&mut reader, PropertyScope::Ack)?;
        }
        let codes = reader.rest();
        validate_codes(codes, |code| is_valid_code(code, version))?;
        Ok(Self {
            packet_id,
            properties,
            codes,
        })
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        encode_ack_codes(
            PacketType::SubAck,
            self.packet_id,
            self.properties,
            self.codes,
            version,
            out,
        );
    }
}

/// Table 3-8 of MQTT 5.0 and MQTT-3.9.3-2 of 3.1.1; for 3.1, servers use the failure code of 3.1.1.
fn is_valid_code(code: u8, version: Version) -> bool {
    match code {
        0x00..=0x02 | 0x80 => true,
        0x83 | 0x87 | 0x8f | 0x91 | 0x97 | 0x9e | 0xa1 | 0xa2 => version == Version::V5,
        _ => false,
    }
}

/// SUBACK and UNSUBACK contain at least one code.
pub(crate) fn validate_codes(codes: &[u8], is_valid: impl Fn(u8) -> bool) -> Result<(), Error> {
    if codes.is_empty() {
        return Err(Error::protocol_error(
            "SUBACK, UNSUBACK: expected a reason code for each topic filter [MQTT-3.8.4-6]",
        ));
    }
    if codes.iter().all(|&code| is_valid(code)) {
        Ok(())
    } else {
        Err(Error::protocol_error(
            "SUBACK, UNSUBACK: not one of its reason codes [MQTT-3.9.3-2, MQTT-3.11.3-2]",
        ))
    }
}

/// SUBACK and UNSUBACK share one format.
pub(crate) fn encode_ack_codes(
    kind: PacketType,
    packet_id: u16,
    properties: Properties<'_>,
    codes: &[u8],
    version: Version,
    out: &mut Vec<u8>,
) {
    let is_v5 = version == Version::V5;
    let len = 2 + codes.len() + if is_v5 { properties.encoded_len() } else { 0 };
    put_header((kind as u8) << 4, len, out);
    put_u16(packet_id, out);
    if is_v5 {
        properties.encode(out);
    }
    out.extend_from_slice(codes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{
        MALFORMED, PROTOCOL, packet, reason_from_client, reason_from_server,
    };

    const ALL: [Version; 3] = [Version::V31, Version::V311, Version::V5];

    /// Packet identifier 1 and no properties.
    fn head(version: Version) -> &'static [u8] {
        if version == Version::V5 {
            &[0, 1, 0]
        } else {
            &[0, 1]
        }
    }

    fn subscribe(version: Version, payload: &[u8]) -> Option<crate::ReasonCode> {
        reason_from_client(&packet(0x82, &[head(version), payload]), version)
    }

    fn suback(version: Version, codes: &[u8]) -> Option<crate::ReasonCode> {
        reason_from_server(&packet(0x90, &[head(version), codes]), version)
    }

    #[test]
    fn mqtt_2_2_1_3_the_packet_identifier_is_not_0() {
        for version in ALL {
            let tail = &head(version)[2..];
            let bytes = packet(0x82, &[&[0, 0], tail, &[0, 1, b'a', 0]]);
            assert_eq!(reason_from_client(&bytes, version), PROTOCOL);
            let bytes = packet(0x90, &[&[0, 0], tail, &[0]]);
            assert_eq!(reason_from_server(&bytes, version), PROTOCOL);
        }
    }

    #[test]
    fn mqtt_3_8_3_1_a_filter_is_utf_8() {
        for version in ALL {
            for filter in [
                &[0, 1, 0xff, 0][..],
                &[0, 1, 0, 0],
                &[0, 3, 0xed, 0xa0, 0x80, 0],
            ] {
                assert_eq!(subscribe(version, filter), MALFORMED);
            }
        }
    }

    #[test]
    fn mqtt_3_8_3_2_there_is_at_least_one_filter_with_options() {
        for version in ALL {
            assert_eq!(subscribe(version, &[]), PROTOCOL);
            assert_eq!(subscribe(version, &[0, 1, b'a']), MALFORMED);
            assert_eq!(subscribe(version, &[0, 1, b'a', 0, 0, 1, b'b']), MALFORMED);
            assert_eq!(subscribe(version, &[0, 1, b'a', 0, 0, 1, b'b', 2]), None);
        }
    }

    #[test]
    fn mqtt_3_8_3_4_no_local_is_not_for_shared_subscriptions() {
        let shared = |options| [b"\0\x0a$share/g/a".as_slice(), &[options]].concat();
        assert_eq!(subscribe(Version::V5, &shared(0b100)), PROTOCOL);
        assert_eq!(subscribe(Version::V5, &shared(0b1000)), None);
    }

    #[test]
    fn mqtt_3_8_3_5_reserved_option_bits_are_0() {
        for byte in 0..=255_u8 {
            let expected = match byte {
                0x40.. => MALFORMED,
                _ if byte & 3 == 3 || byte & 0x30 == 0x30 => PROTOCOL,
                _ => None,
            };
            assert_eq!(
                subscribe(Version::V5, &[0, 1, b'a', byte]),
                expected,
                "{byte:#04x}"
            );
        }
    }

    #[test]
    fn mqtt_3_8_3_4_of_3_1_1_the_options_are_a_qos() {
        for byte in 0..=255_u8 {
            let expected = if byte < 3 { None } else { MALFORMED };
            assert_eq!(subscribe(Version::V311, &[0, 1, b'a', byte]), expected);
            // Version 3.1 ignores the upper bits.
            let expected = if byte & 3 < 3 { None } else { MALFORMED };
            assert_eq!(subscribe(Version::V31, &[0, 1, b'a', byte]), expected);
        }
        let found = SubscriptionOptions::decode(0b1111_1101, Version::V31);
        assert_eq!(found, Ok(SubscriptionOptions::new(QoS::AtLeastOnce)));
    }

    #[test]
    fn an_invalid_filter_is_reported_in_suback() {
        for version in ALL {
            assert_eq!(subscribe(version, &[0, 0, 0]), None);
            assert_eq!(subscribe(version, &[0, 3, b'#', b'/', b'a', 0]), None);
        }
    }

    #[test]
    fn mqtt_3_8_4_6_suback_has_a_code_for_each_filter() {
        for version in ALL {
            assert_eq!(suback(version, &[]), PROTOCOL);
            assert_eq!(suback(version, &[0, 1, 2, 0x80]), None);
        }
    }

    #[test]
    fn mqtt_3_9_3_2_suback_has_the_codes_of_its_table() {
        let old = [0x00, 0x01, 0x02, 0x80];
        let new = [0x83, 0x87, 0x8f, 0x91, 0x97, 0x9e, 0xa1, 0xa2];
        for code in 0..=255 {
            let expected = |is_valid| if is_valid { None } else { PROTOCOL };
            let is_old = old.contains(&code);
            assert_eq!(suback(Version::V31, &[0, code]), expected(is_old));
            assert_eq!(suback(Version::V311, &[0, code]), expected(is_old));
            let is_valid = is_old || new.contains(&code);
            assert_eq!(
                suback(Version::V5, &[0, code]),
                expected(is_valid),
                "{code:#04x}"
            );
        }
    }
}
