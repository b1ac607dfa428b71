//! PUBACK, PUBREC, PUBREL and PUBCOMP (MQTT 5.0 sections 3.4 to 3.7), which have one shape.

use crate::frame::put_header;
use crate::properties::{Properties, Scope};
use crate::reader::{Reader, put_u16};
use crate::{Error, PacketType, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    pub packet_id: u16,
    /// Success before version 5.
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> Ack<'a> {
    #[inline]
    pub fn decode(kind: PacketType, body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id("acknowledgement: packet identifier")?;
        let mut ack = Self {
            packet_id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        };
        if reader.is_empty() {
            return Ok(ack);
        }
        if version != Version::V5 {
            return Err(Error::malformed(
                "acknowledgement: bytes after the packet identifier",
            ));
        }
        ack.reason = ReasonCode(reader.u8("acknowledgement: reason code")?);
        if !is_valid(kind, ack.reason) {
            return Err(Error::protocol(
                "acknowledgement: no such reason code for this packet",
            ));
        }
        if !reader.is_empty() {
            ack.properties = Properties::decode(&mut reader, Scope::Ack)?;
            reader.end("acknowledgement: bytes after the properties")?;
        }
        Ok(ack)
    }

    /// In the shortest form there is.
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
    match kind {
        PacketType::PubRel | PacketType::PubComp => matches!(reason.0, 0x00 | 0x92),
        _ => matches!(
            reason.0,
            0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99
        ),
    }
}
