//! CONNECT (MQTT 5.0 section 3.1, MQTT 3.1.1 section 3.1, MQTT 3.1 section 3.1).

use crate::frame::put_header;
use crate::properties::{Properties, Scope};
use crate::reader::{Reader, put_binary, put_u16};
use crate::{Error, PacketType, QoS, ReasonCode, Version, has_wildcards};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect<'a> {
    pub version: Version,
    /// Clean session before version 5.
    pub clean_start: bool,
    /// Seconds; 0: none.
    pub keep_alive: u16,
    pub client_id: &'a str,
    pub username: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub will: Option<Will<'a>>,
    pub properties: Properties<'a>,
    /// Bit 7 of the level byte, by which bridges of mosquitto ask not to get back what they send.
    pub bridge: bool,
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
        let name = reader.binary("CONNECT: protocol name")?;
        let level = reader.u8("CONNECT: protocol level")?;
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
        let flags = reader.u8("CONNECT: flags")?;
        let will_qos = check_flags(flags, version)?;
        let keep_alive = reader.u16("CONNECT: keep alive")?;
        let is_v5 = version == Version::V5;
        let mut properties = Properties::EMPTY;
        if is_v5 {
            properties = Properties::decode(&mut reader, Scope::Connect)?;
        }
        let client_id = reader.string("CONNECT: client identifier [MQTT-3.1.3-4]")?;
        let mut will = None;
        if flags & WILL != 0 {
            let mut properties = Properties::EMPTY;
            if is_v5 {
                properties = Properties::decode(&mut reader, Scope::Will)?;
            }
            let topic = reader.string("CONNECT: will topic [MQTT-3.1.3-11]")?;
            if topic.is_empty() || has_wildcards(topic) {
                return Err(Error {
                    reason: ReasonCode::TOPIC_NAME_INVALID,
                    detail: "CONNECT: the will topic is empty or has a wildcard",
                });
            }
            let payload = reader.binary("CONNECT: will payload")?;
            let retain = flags & WILL_RETAIN != 0;
            will = Some(Will {
                topic,
                payload,
                qos: will_qos,
                retain,
                properties,
            });
        }
        let mut username = None;
        if flags & USERNAME != 0 {
            username = Some(reader.string("CONNECT: user name [MQTT-3.1.3-12]")?);
        }
        let mut password = None;
        if flags & PASSWORD != 0 {
            password = Some(reader.binary("CONNECT: password")?);
        }
        reader.end("CONNECT: bytes after the payload")?;
        Ok(Self {
            version,
            clean_start: flags & CLEAN_START != 0,
            keep_alive,
            client_id,
            username,
            password,
            will,
            properties,
            bridge,
        })
    }

    /// What the properties of a CONNECT say as far as they can be read, for the answer to one that is not valid.
    /// Empty before version 5.
    pub fn readable_properties(body: &'a [u8]) -> Properties<'a> {
        let mut reader = Reader::new(body);
        let is_v5 = reader.binary("").is_ok_and(|name| name == b"MQTT")
            && reader.u8("").is_ok_and(|level| level & 0x7f == 5);
        // Flags and keep alive.
        if !is_v5 || reader.take(3, "").is_err() {
            return Properties::EMPTY;
        }
        Properties::decode_readable(&mut reader)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(64);
        let name: &[u8] = if self.version == Version::V31 {
            b"MQIsdp"
        } else {
            b"MQTT"
        };
        put_binary(name, &mut body);
        body.push(self.version.level() | if self.bridge { 0x80 } else { 0 });
        let mut flags = if self.clean_start { CLEAN_START } else { 0 };
        if let Some(will) = &self.will {
            flags |= WILL | (will.qos as u8) << 3 | if will.retain { WILL_RETAIN } else { 0 };
        }
        flags |= if self.username.is_some() { USERNAME } else { 0 };
        flags |= if self.password.is_some() { PASSWORD } else { 0 };
        body.push(flags);
        put_u16(self.keep_alive, &mut body);
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

fn check_flags(flags: u8, version: Version) -> Result<QoS, Error> {
    if flags & 1 != 0 {
        return Err(Error::malformed(
            "CONNECT: the reserved flag is set [MQTT-3.1.2-3]",
        ));
    }
    let will_qos = QoS::try_from(flags >> 3 & 3)
        .map_err(|_| Error::malformed("CONNECT: will QoS 3 does not exist [MQTT-3.1.2-12]"))?;
    if flags & WILL == 0 && (will_qos != QoS::AtMostOnce || flags & WILL_RETAIN != 0) {
        return Err(Error::malformed(
            "CONNECT: will QoS or will retain without a will [MQTT-3.1.2-11, MQTT-3.1.2-13]",
        ));
    }
    if version != Version::V5 && flags & PASSWORD != 0 && flags & USERNAME == 0 {
        return Err(Error::malformed(
            "CONNECT: a password without a user name [MQTT-3.1.2-22]",
        ));
    }
    Ok(will_qos)
}
