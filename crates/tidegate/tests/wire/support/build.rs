//! Packets built by hand, byte by byte, independent of the codec under test. Nothing is checked: a test may build
//! what the specification forbids.

/// A length-prefixed UTF-8 string (or binary datum).
pub fn string(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut out = (u16::try_from(bytes.len()).unwrap()).to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// A variable byte integer.
pub fn varint(mut value: u32) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let byte = (value % 128) as u8;
        value /= 128;
        out.push(if value > 0 { byte | 0x80 } else { byte });
        if value == 0 {
            return out;
        }
    }
}

/// First byte, remaining length, body.
pub fn frame(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first_byte];
    out.extend(varint(body.len() as u32));
    out.extend_from_slice(body);
    out
}

/// PUBACK, PUBREC, PUBREL (with its flags 0010) or PUBCOMP in the short form that 3.1.1 and 5.0 share.
pub fn ack(kind: u8, packet_id: u16) -> Vec<u8> {
    frame(
        kind << 4 | if kind == 6 { 2 } else { 0 },
        &packet_id.to_be_bytes(),
    )
}

/// The long form of 5.0, with a reason code and properties.
pub fn ack_reason(kind: u8, packet_id: u16, reason: u8, properties: &Props) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    body.push(reason);
    body.extend(properties.bytes());
    frame(kind << 4 | if kind == 6 { 2 } else { 0 }, &body)
}

/// Properties of 5.0, in the order they are added.
#[derive(Debug, Clone, Default)]
pub struct Props(Vec<u8>);

impl Props {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn byte(self, id: u8, value: u8) -> Self {
        self.raw(&[id, value])
    }

    pub fn u16(self, id: u8, value: u16) -> Self {
        self.raw(&[id]).raw(&value.to_be_bytes())
    }

    pub fn u32(self, id: u8, value: u32) -> Self {
        self.raw(&[id]).raw(&value.to_be_bytes())
    }

    pub fn varint(self, id: u8, value: u32) -> Self {
        self.raw(&[id]).raw(&varint(value))
    }

    /// A UTF-8 string or binary data.
    pub fn string(self, id: u8, value: impl AsRef<[u8]>) -> Self {
        self.raw(&[id]).raw(&string(value))
    }

    pub fn pair(self, id: u8, key: &str, value: &str) -> Self {
        self.raw(&[id]).raw(&string(key)).raw(&string(value))
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// With the length in front.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = varint(self.0.len() as u32);
        out.extend_from_slice(&self.0);
        out
    }
}

/// The will of a [`Connect`].
#[derive(Debug, Clone)]
pub struct Will {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub properties: Props,
}

impl Will {
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        Self {
            topic: topic.as_ref().to_vec(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            retain: false,
            properties: Props::new(),
        }
    }

    pub fn qos(mut self, qos: u8) -> Self {
        self.qos = qos;
        self
    }

    pub fn retain(mut self) -> Self {
        self.retain = true;
        self
    }

    pub fn properties(mut self, properties: Props) -> Self {
        self.properties = properties;
        self
    }
}

/// CONNECT. `new` is a clean session without keep-alive.
#[derive(Debug, Clone)]
pub struct Connect {
    pub version: u8,
    pub client_id: Vec<u8>,
    pub clean: bool,
    pub keep_alive: u16,
    pub will: Option<Will>,
    pub username: Option<Vec<u8>>,
    pub password: Option<Vec<u8>>,
    pub properties: Props,
    /// Instead of "MQTT" ("MQIsdp" for level 3).
    pub protocol_name: Option<Vec<u8>>,
    /// Instead of the flags that follow from the rest.
    pub flags: Option<u8>,
}

impl Connect {
    /// `version` is the protocol level: 3 for 3.1, 4 for 3.1.1, 5 for 5.0.
    pub fn new(version: u8, client_id: impl AsRef<[u8]>) -> Self {
        Self {
            version,
            client_id: client_id.as_ref().to_vec(),
            clean: true,
            keep_alive: 0,
            will: None,
            username: None,
            password: None,
            properties: Props::new(),
            protocol_name: None,
            flags: None,
        }
    }

    /// A session that stays. In 5.0 it also needs a session expiry interval: see [`Connect::properties`].
    pub fn persistent(mut self) -> Self {
        self.clean = false;
        self
    }

    pub fn keep_alive(mut self, seconds: u16) -> Self {
        self.keep_alive = seconds;
        self
    }

    pub fn will(mut self, will: Will) -> Self {
        self.will = Some(will);
        self
    }

    pub fn username(mut self, username: impl AsRef<[u8]>) -> Self {
        self.username = Some(username.as_ref().to_vec());
        self
    }

    pub fn password(mut self, password: impl AsRef<[u8]>) -> Self {
        self.password = Some(password.as_ref().to_vec());
        self
    }

    pub fn properties(mut self, properties: Props) -> Self {
        self.properties = properties;
        self
    }

    pub fn protocol_name(mut self, name: impl AsRef<[u8]>) -> Self {
        self.protocol_name = Some(name.as_ref().to_vec());
        self
    }

    pub fn flags(mut self, flags: u8) -> Self {
        self.flags = Some(flags);
        self
    }

    /// The flags that follow from the fields.
    pub fn natural_flags(&self) -> u8 {
        let will = self
            .will
            .as_ref()
            .map_or(0, |will| 0x04 | will.qos << 3 | u8::from(will.retain) << 5);
        u8::from(self.clean) << 1
            | will
            | u8::from(self.password.is_some()) << 6
            | u8::from(self.username.is_some()) << 7
    }

    pub fn bytes(&self) -> Vec<u8> {
        let name: &[u8] = if self.version == 3 {
            b"MQIsdp"
        } else {
            b"MQTT"
        };
        let mut body = string(self.protocol_name.as_deref().unwrap_or(name));
        body.push(self.version);
        body.push(self.flags.unwrap_or_else(|| self.natural_flags()));
        body.extend(self.keep_alive.to_be_bytes());
        if self.version == 5 {
            body.extend(self.properties.bytes());
        }
        body.extend(string(&self.client_id));
        if let Some(will) = &self.will {
            if self.version == 5 {
                body.extend(will.properties.bytes());
            }
            body.extend(string(&will.topic));
            body.extend(string(&will.payload));
        }
        for field in [&self.username, &self.password].into_iter().flatten() {
            body.extend(string(field));
        }
        frame(0x10, &body)
    }
}

/// PUBLISH. `new` is QoS 0, not retained.
#[derive(Debug, Clone)]
pub struct Publish {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub packet_id: u16,
    pub retain: bool,
    pub dup: bool,
    pub properties: Props,
}

impl Publish {
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        Self {
            topic: topic.as_ref().to_vec(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            packet_id: 0,
            retain: false,
            dup: false,
            properties: Props::new(),
        }
    }

    /// QoS 1 or 2 with a packet identifier.
    pub fn qos(mut self, qos: u8, packet_id: u16) -> Self {
        self.qos = qos;
        self.packet_id = packet_id;
        self
    }

    pub fn retain(mut self) -> Self {
        self.retain = true;
        self
    }

    pub fn dup(mut self) -> Self {
        self.dup = true;
        self
    }

    pub fn properties(mut self, properties: Props) -> Self {
        self.properties = properties;
        self
    }

    pub fn bytes(&self, version: u8) -> Vec<u8> {
        let mut body = string(&self.topic);
        if self.qos > 0 {
            body.extend(self.packet_id.to_be_bytes());
        }
        if version == 5 {
            body.extend(self.properties.bytes());
        }
        body.extend_from_slice(&self.payload);
        frame(
            0x30 | u8::from(self.dup) << 3 | self.qos << 1 | u8::from(self.retain),
            &body,
        )
    }
}

/// SUBSCRIBE with filters and their option bytes.
#[derive(Debug, Clone)]
pub struct Subscribe {
    pub packet_id: u16,
    pub filters: Vec<(Vec<u8>, u8)>,
    pub properties: Props,
}

impl Subscribe {
    pub fn new(packet_id: u16) -> Self {
        Self {
            packet_id,
            filters: Vec::new(),
            properties: Props::new(),
        }
    }

    /// `options` is the QoS in 3.1.1; in 5.0 also no local (4), retain as published (8), retain handling (16, 32).
    pub fn filter(mut self, filter: impl AsRef<[u8]>, options: u8) -> Self {
        self.filters.push((filter.as_ref().to_vec(), options));
        self
    }

    pub fn properties(mut self, properties: Props) -> Self {
        self.properties = properties;
        self
    }

    pub fn bytes(&self, version: u8) -> Vec<u8> {
        let mut body = self.packet_id.to_be_bytes().to_vec();
        if version == 5 {
            body.extend(self.properties.bytes());
        }
        for (filter, options) in &self.filters {
            body.extend(string(filter));
            body.push(*options);
        }
        frame(0x82, &body)
    }
}

/// UNSUBSCRIBE.
#[derive(Debug, Clone)]
pub struct Unsubscribe {
    pub packet_id: u16,
    pub filters: Vec<Vec<u8>>,
    pub properties: Props,
}

impl Unsubscribe {
    pub fn new(packet_id: u16) -> Self {
        Self {
            packet_id,
            filters: Vec::new(),
            properties: Props::new(),
        }
    }

    pub fn filter(mut self, filter: impl AsRef<[u8]>) -> Self {
        self.filters.push(filter.as_ref().to_vec());
        self
    }

    pub fn properties(mut self, properties: Props) -> Self {
        self.properties = properties;
        self
    }

    pub fn bytes(&self, version: u8) -> Vec<u8> {
        let mut body = self.packet_id.to_be_bytes().to_vec();
        if version == 5 {
            body.extend(self.properties.bytes());
        }
        for filter in &self.filters {
            body.extend(string(filter));
        }
        frame(0xa2, &body)
    }
}
