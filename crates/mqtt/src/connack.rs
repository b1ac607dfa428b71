//! CONNACK (MQTT 5.0 section 3.2).

use crate::frame::put_header;
use crate::properties::{Properties, Scope};
use crate::reader::Reader;
use crate::{Error, PacketType, ReasonCode, Version};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnAck<'a> {
    pub session_present: bool,
    /// Of version 5 whatever the connection speaks; see [`v3_return_code`].
    pub code: ReasonCode,
    pub properties: Properties<'a>,
}

/// The return code of versions 3.1 and 3.1.1 that says the same; 0 if none does, or for success.
pub fn v3_return_code(code: ReasonCode) -> u8 {
    match code {
        ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => 1,
        ReasonCode::CLIENT_IDENTIFIER_NOT_VALID => 2,
        ReasonCode::SERVER_UNAVAILABLE
        | ReasonCode::SERVER_BUSY
        | ReasonCode::SERVER_SHUTTING_DOWN
        | ReasonCode::QUOTA_EXCEEDED
        | ReasonCode::USE_ANOTHER_SERVER
        | ReasonCode::SERVER_MOVED => 3,
        ReasonCode::BAD_USER_NAME_OR_PASSWORD => 4,
        ReasonCode::NOT_AUTHORIZED | ReasonCode::BANNED => 5,
        _ => 0,
    }
}

fn from_v3(code: u8) -> Result<ReasonCode, Error> {
    Ok(match code {
        0 => ReasonCode::SUCCESS,
        1 => ReasonCode::UNSUPPORTED_PROTOCOL_VERSION,
        2 => ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
        3 => ReasonCode::SERVER_UNAVAILABLE,
        4 => ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        5 => ReasonCode::NOT_AUTHORIZED,
        _ => return Err(Error::malformed("CONNACK: return code must be 0 to 5")),
    })
}

impl<'a> ConnAck<'a> {
    pub fn decode(body: &'a [u8], version: Version) -> Result<Self, Error> {
        let mut reader = Reader::new(body);
        let flags = reader.u8("CONNACK: acknowledge flags")?;
        if flags > 1 {
            return Err(Error::malformed(
                "CONNACK: reserved flags are set [MQTT-3.2.2-1]",
            ));
        }
        let code = reader.u8("CONNACK: reason code")?;
        let mut properties = Properties::EMPTY;
        let code = if version == Version::V5 {
            properties = Properties::decode(&mut reader, Scope::ConnAck)?;
            if code != 0 && code < 0x80 {
                return Err(Error::protocol("CONNACK: no such reason code"));
            }
            ReasonCode(code)
        } else {
            from_v3(code)?
        };
        reader.end("CONNACK: bytes after the packet")?;
        Ok(Self {
            session_present: flags == 1,
            code,
            properties,
        })
    }

    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let is_v5 = version == Version::V5;
        let len = 2 + if is_v5 {
            self.properties.encoded_len()
        } else {
            0
        };
        put_header((PacketType::ConnAck as u8) << 4, len, out);
        out.push(u8::from(self.session_present && !self.code.is_error()));
        if is_v5 {
            out.push(self.code.0);
            self.properties.encode(out);
        } else {
            out.push(v3_return_code(self.code));
        }
    }
}
