//! AUTH (MQTT 5.0 section 3.15).

use crate::disconnect::encode_reason;
use crate::properties::{Properties, Scope};
use crate::reader::Reader;
use crate::{Direction, Error, PacketType, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Auth<'a> {
    /// Success, continue authentication or re-authenticate.
    pub reason: ReasonCode,
    pub properties: Properties<'a>,
}

impl<'a> Auth<'a> {
    pub fn decode(body: &'a [u8], version: Version, direction: Direction) -> Result<Self, Error> {
        if version != Version::V5 {
            return Err(Error::protocol("AUTH: it does not exist before version 5"));
        }
        let mut reader = Reader::new(body);
        let mut packet = Self {
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        };
        if !reader.is_empty() {
            packet.reason = ReasonCode(reader.u8("AUTH: reason code")?);
            if !reader.is_empty() {
                packet.properties = Properties::decode(&mut reader, Scope::Auth)?;
                reader.end("AUTH: bytes after the properties")?;
            }
        }
        // MQTT 5.0 table 3-11
        let is_valid = match direction {
            Direction::FromClient => matches!(packet.reason.0, 0x18 | 0x19),
            Direction::FromServer => matches!(packet.reason.0, 0x00 | 0x18),
        };
        if !is_valid {
            return Err(Error::protocol(
                "AUTH: not a reason code of its sender [MQTT-3.15.2-1]",
            ));
        }
        if packet.properties.authentication_method().is_none() {
            return Err(Error::protocol("AUTH: no authentication method"));
        }
        Ok(packet)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_reason(
            (PacketType::Auth as u8) << 4,
            self.reason,
            self.properties,
            out,
        );
    }
}
