//! Reads packets from the server, independent of the codec under test, and panics on what no server may send.

use super::kind;

/// The value of a property of 5.0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Byte(u8),
    U16(u16),
    U32(u32),
    Varint(u32),
    String(String),
    Binary(Vec<u8>),
    Pair(String, String),
}

/// A packet from the server, taken apart. Fields that its kind does not have are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packet {
    /// The upper half of the first byte; see [`kind`].
    pub kind: u8,
    /// The lower half of the first byte.
    pub flags: u8,
    /// The whole packet as it came.
    pub bytes: Vec<u8>,
    pub packet_id: Option<u16>,
    /// Of PUBLISH.
    pub topic: String,
    /// Of PUBLISH the message, of SUBACK and UNSUBACK the codes.
    pub payload: Vec<u8>,
    /// The return or reason code of CONNACK, of acknowledgements, DISCONNECT and AUTH (0 where left out).
    pub reason: u8,
    /// Of CONNACK.
    pub session_present: bool,
    /// In the order they came.
    pub properties: Vec<(u8, Value)>,
}

impl Packet {
    /// Takes one whole packet apart. `version` is the protocol level of the connection.
    pub fn parse(bytes: &[u8], version: u8) -> Packet {
        let header = 1
            + bytes[1..]
                .iter()
                .take_while(|byte| **byte & 0x80 != 0)
                .count()
            + 1;
        let mut packet = Packet {
            kind: bytes[0] >> 4,
            flags: bytes[0] & 15,
            bytes: bytes.to_vec(),
            ..Packet::default()
        };
        let mut reader = PacketReader {
            left: &bytes[header..],
            packet: bytes,
        };
        packet.read_body(&mut reader, version);
        assert!(
            reader.left.is_empty(),
            "{} surplus bytes at the end of {bytes:02x?}",
            reader.left.len()
        );
        packet
    }

    fn read_body(&mut self, reader: &mut PacketReader<'_>, version: u8) {
        let v5 = version == 5;
        match self.kind {
            kind::CONNACK => {
                self.expect_flags(0);
                let flags = reader.u8();
                assert!(
                    flags <= 1,
                    "reserved CONNACK flags set: {:02x?}",
                    self.bytes
                );
                self.session_present = flags == 1;
                self.reason = reader.u8();
                if v5 {
                    self.properties = reader.properties();
                }
            }
            kind::PUBLISH => {
                assert!(self.qos() < 3, "PUBLISH with QoS 3: {:02x?}", self.bytes);
                self.topic = reader.string();
                if self.qos() > 0 {
                    self.packet_id = Some(reader.packet_id());
                }
                if v5 {
                    self.properties = reader.properties();
                }
                self.payload = reader.rest().to_vec();
            }
            kind::PUBACK | kind::PUBREC | kind::PUBREL | kind::PUBCOMP => {
                self.expect_flags(if self.kind == kind::PUBREL { 2 } else { 0 });
                self.packet_id = Some(reader.packet_id());
                self.read_optional_reason(reader, v5);
            }
            kind::SUBACK | kind::UNSUBACK => {
                self.expect_flags(0);
                self.packet_id = Some(reader.packet_id());
                if v5 {
                    self.properties = reader.properties();
                }
                if v5 || self.kind == kind::SUBACK {
                    self.payload = reader.rest().to_vec();
                    assert!(!self.payload.is_empty(), "no codes: {:02x?}", self.bytes);
                }
            }
            kind::PINGRESP => self.expect_flags(0),
            kind::DISCONNECT | kind::AUTH if v5 => {
                self.expect_flags(0);
                self.read_optional_reason(reader, v5);
            }
            _ => panic!(
                "no server may send this with protocol level {version}: {:02x?}",
                self.bytes
            ),
        }
    }

    fn read_optional_reason(&mut self, reader: &mut PacketReader<'_>, v5: bool) {
        if v5 && !reader.left.is_empty() {
            self.reason = reader.u8();
            if !reader.left.is_empty() {
                self.properties = reader.properties();
            }
        }
    }

    fn expect_flags(&self, flags: u8) {
        assert_eq!(
            self.flags, flags,
            "wrong flags in the fixed header: {:02x?}",
            self.bytes
        );
    }

    /// Of PUBLISH.
    pub fn qos(&self) -> u8 {
        self.flags >> 1 & 3
    }

    /// Of PUBLISH.
    pub fn retain(&self) -> bool {
        self.flags & 1 == 1
    }

    /// Of PUBLISH.
    pub fn dup(&self) -> bool {
        self.flags & 8 == 8
    }

    /// The packet identifier; panics if the packet has none.
    pub fn id(&self) -> u16 {
        self.packet_id
            .unwrap_or_else(|| panic!("no packet identifier in {self:?}"))
    }

    /// The payload as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.payload).expect("the payload is text")
    }

    /// The value of a property that may come at most once.
    pub fn property(&self, id: u8) -> Option<&Value> {
        let mut found = self.properties.iter().filter(|(found, _)| *found == id);
        let first = found.next();
        assert!(
            found.next().is_none(),
            "property {id:#04x} more than once in {self:?}"
        );
        first.map(|(_, value)| value)
    }

    /// The value of a number property, whatever its width.
    pub fn number(&self, id: u8) -> Option<u32> {
        self.property(id).map(|value| match value {
            Value::Byte(value) => u32::from(*value),
            Value::U16(value) => u32::from(*value),
            Value::U32(value) | Value::Varint(value) => *value,
            other => panic!("property {id:#04x} is {other:?}, not a number"),
        })
    }

    /// All values of a property that may come several times.
    pub fn property_values(&self, id: u8) -> Vec<&Value> {
        self.properties
            .iter()
            .filter(|(found, _)| *found == id)
            .map(|(_, value)| value)
            .collect()
    }
}

struct PacketReader<'a> {
    left: &'a [u8],
    /// For messages.
    packet: &'a [u8],
}

impl<'a> PacketReader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        assert!(
            self.left.len() >= count,
            "the packet is too short: {:02x?}",
            self.packet
        );
        let (taken, left) = self.left.split_at(count);
        self.left = left;
        taken
    }

    fn rest(&mut self) -> &'a [u8] {
        self.take(self.left.len())
    }

    fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn packet_id(&mut self) -> u16 {
        let id = self.u16();
        assert_ne!(id, 0, "packet identifier 0: {:02x?}", self.packet);
        id
    }

    fn varint(&mut self) -> u32 {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.u8();
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return value;
            }
        }
        panic!(
            "a variable byte integer of more than 4 bytes: {:02x?}",
            self.packet
        );
    }

    fn binary(&mut self) -> Vec<u8> {
        let length = self.u16();
        self.take(usize::from(length)).to_vec()
    }

    fn string(&mut self) -> String {
        let text = String::from_utf8(self.binary())
            .unwrap_or_else(|_| panic!("not UTF-8: {:02x?}", self.packet));
        assert!(
            !text.contains('\0'),
            "U+0000 in a string: {:02x?}",
            self.packet
        );
        text
    }

    fn properties(&mut self) -> Vec<(u8, Value)> {
        let length = self.varint() as usize;
        let mut reader = PacketReader {
            left: self.take(length),
            packet: self.packet,
        };
        let mut properties = Vec::new();
        while !reader.left.is_empty() {
            let id = reader.u8();
            let value = match id {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => Value::Byte(reader.u8()),
                0x13 | 0x21 | 0x22 | 0x23 => Value::U16(reader.u16()),
                0x02 | 0x11 | 0x18 | 0x27 => Value::U32(reader.u32()),
                0x0b => Value::Varint(reader.varint()),
                0x03 | 0x08 | 0x12 | 0x15 | 0x1a | 0x1c | 0x1f => Value::String(reader.string()),
                0x09 | 0x16 => Value::Binary(reader.binary()),
                0x26 => Value::Pair(reader.string(), reader.string()),
                _ => panic!("unknown property {id:#04x}: {:02x?}", self.packet),
            };
            properties.push((id, value));
        }
        properties
    }
}
