//! Small types used by all packets.

/// The protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    V31,
    V311,
    V5,
}

impl Version {
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V31 => "3.1",
            Version::V311 => "3.1.1",
            Version::V5 => "5.0",
        }
    }

    /// The protocol level in CONNECT.
    pub fn protocol_level(self) -> u8 {
        match self {
            Version::V31 => 3,
            Version::V311 => 4,
            Version::V5 => 5,
        }
    }
}

/// Quality of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum QoS {
    #[default]
    AtMostOnce = 0,
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

impl TryFrom<u8> for QoS {
    type Error = u8;

    #[inline]
    fn try_from(value: u8) -> Result<Self, u8> {
        match value {
            0 => Ok(QoS::AtMostOnce),
            1 => Ok(QoS::AtLeastOnce),
            2 => Ok(QoS::ExactlyOnce),
            other => Err(other),
        }
    }
}

/// The upper four bits of a packet's first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PacketType {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketType {
    /// Parses a packet's first byte; only type 0 does not exist.
    #[inline]
    pub fn from_first_byte(first_byte: u8) -> Option<Self> {
        use PacketType::*;
        const ALL: [PacketType; 15] = [
            Connect,
            ConnAck,
            Publish,
            PubAck,
            PubRec,
            PubRel,
            PubComp,
            Subscribe,
            SubAck,
            Unsubscribe,
            UnsubAck,
            PingReq,
            PingResp,
            Disconnect,
            Auth,
        ];
        ALL.get(usize::from(first_byte >> 4).wrapping_sub(1))
            .copied()
    }
}

/// The sender of the packet to decode. Some packets, properties and reason codes are allowed from one side only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    FromClient,
    FromServer,
}
