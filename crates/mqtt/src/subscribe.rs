//! SUBSCRIBE and SUBACK (MQTT 5.0 sections 3.8 and 3.9).

use crate::frame::put_header;
use crate::properties::{Properties, Scope};
use crate::reader::{Reader, put_binary, put_u16};
use crate::{Error, PacketType, QoS, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    pub filters: SubscribeFilters<'a>,
}

/// What a client wants of one subscription. Before version 5 only the QoS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscriptionOptions {
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// 0: retained messages at each subscribe; 1: only if the subscription is new; 2: never.
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
        let qos = QoS::try_from(byte & 3)
            .map_err(|_| Error::protocol("SUBSCRIBE: QoS 3 does not exist [MQTT-3.8.3-4]"))?;
        if version != Version::V5 {
            return match byte {
                0..=2 => Ok(Self::new(qos)),
                _ => Err(Error::malformed(
                    "SUBSCRIBE: reserved bits of the QoS are set",
                )),
            };
        }
        let retain_handling = byte >> 4 & 3;
        if byte & 0xc0 != 0 {
            return Err(Error::malformed(
                "SUBSCRIBE: reserved option bits are set [MQTT-3.8.3-5]",
            ));
        }
        if retain_handling == 3 {
            return Err(Error::protocol(
                "SUBSCRIBE: retain handling 3 does not exist",
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
            | self.retain_handling << 4
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscribeFilter<'a> {
    /// Valid UTF-8; whether it is a topic filter is not checked, since that is answered filter by filter.
    pub filter: &'a str,
    pub options: SubscriptionOptions,
}

/// The filters of a SUBSCRIBE, checked, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

fn next_filter<'a>(
    reader: &mut Reader<'a>,
    version: Version,
) -> Result<SubscribeFilter<'a>, Error> {
    let filter = reader.string("SUBSCRIBE: topic filter [MQTT-3.8.3-1]")?;
    let options = reader.u8("SUBSCRIBE: options of a topic filter")?;
    let options = SubscriptionOptions::decode(options, version)?;
    if options.no_local && filter.starts_with("$share/") {
        return Err(Error::protocol(
            "SUBSCRIBE: no local on a shared subscription [MQTT-3.8.3-4]",
        ));
    }
    Ok(SubscribeFilter { filter, options })
}

impl<'a> Subscribe<'a> {
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id("SUBSCRIBE: packet identifier [MQTT-2.2.1-3]")?;
        let mut properties = Properties::EMPTY;
        if version == Version::V5 {
            properties = Properties::decode(&mut reader, Scope::Subscribe)?;
        }
        let bytes = reader.rest();
        let mut len = 0;
        while !reader.is_empty() {
            next_filter(&mut reader, version)?;
            len += 1;
        }
        if len == 0 {
            return Err(Error::protocol("SUBSCRIBE: no topic filter [MQTT-3.8.3-2]"));
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

/// A SUBSCRIBE being put together.
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
            .map(|(filter, _)| filter.len() + 3)
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
    /// One per topic filter, in order.
    pub codes: &'a [u8],
}

impl<'a> SubAck<'a> {
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id("SUBACK: packet identifier")?;
        let mut properties = Properties::EMPTY;
        if version == Version::V5 {
            properties = Properties::decode(&mut reader, Scope::Ack)?;
        }
        Ok(Self {
            packet_id,
            properties,
            codes: reader.rest(),
        })
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        encode_answer(
            PacketType::SubAck,
            self.packet_id,
            self.properties,
            self.codes,
            version,
            out,
        );
    }
}

/// SUBACK and UNSUBACK have one shape.
pub(crate) fn encode_answer(
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
