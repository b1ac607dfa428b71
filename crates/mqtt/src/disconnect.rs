//! DISCONNECT (MQTT 5.0 section 3.14).

use crate::frame::put_header;
use crate::properties::{Properties, Scope};
use crate::reader::Reader;
use crate::{Direction, Error, PacketType, ReasonCode, Version};

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
            return Err(Error::malformed(
                "DISCONNECT: it has no body before version 5",
            ));
        }
        packet.reason = ReasonCode(reader.u8("DISCONNECT: reason code")?);
        if !is_valid(packet.reason, direction) {
            return Err(Error::protocol(
                "DISCONNECT: not a reason code of its sender",
            ));
        }
        if !reader.is_empty() {
            let scope = match direction {
                Direction::FromClient => Scope::DisconnectFromClient,
                Direction::FromServer => Scope::DisconnectFromServer,
            };
            packet.properties = Properties::decode(&mut reader, scope)?;
            reader.end("DISCONNECT: bytes after the properties")?;
        }
        Ok(packet)
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let first_byte = (PacketType::Disconnect as u8) << 4;
        if version != Version::V5 {
            return put_header(first_byte, 0, out);
        }
        encode_reason(first_byte, self.reason, self.properties, out);
    }
}

/// DISCONNECT and AUTH: nothing for success without properties, else reason and properties.
pub(crate) fn encode_reason(
    first_byte: u8,
    reason: ReasonCode,
    properties: Properties<'_>,
    out: &mut Vec<u8>,
) {
    match (reason, properties.is_empty()) {
        (ReasonCode::SUCCESS, true) => put_header(first_byte, 0, out),
        (_, true) => {
            put_header(first_byte, 1, out);
            out.push(reason.0);
        }
        _ => {
            put_header(first_byte, 1 + properties.encoded_len(), out);
            out.push(reason.0);
            properties.encode(out);
        }
    }
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
            either || matches!(reason.0, 0x87 | 0x89 | 0x8b | 0x8d..=0x8f | 0x9a..=0xa2)
        }
    }
}
