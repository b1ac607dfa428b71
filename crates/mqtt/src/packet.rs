//! All packet types as one enum.

use crate::ack::Ack;
use crate::auth::Auth;
use crate::connack::ConnAck;
use crate::connect::Connect;
use crate::disconnect::Disconnect;
use crate::error::Error;
use crate::frame::Frame;
use crate::publish::Publish;
use crate::subscribe::{SubAck, Subscribe};
use crate::types::{Direction, PacketType, Version};
use crate::unsubscribe::{UnsubAck, Unsubscribe};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    Connect(Connect<'a>),
    ConnAck(ConnAck<'a>),
    Publish(Publish<'a>),
    PubAck(Ack<'a>),
    PubRec(Ack<'a>),
    PubRel(Ack<'a>),
    PubComp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    SubAck(SubAck<'a>),
    Unsubscribe(Unsubscribe<'a>),
    UnsubAck(UnsubAck<'a>),
    PingReq,
    PingResp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

impl<'a> Packet<'a> {
    /// Decodes a packet. CONNECT contains its own version; `version` is ignored for it.
    #[inline]
    pub fn decode(
        frame: Frame<'a>,
        version: Version,
        direction: Direction,
    ) -> Result<Packet<'a>, Error> {
        let body = frame.body;
        let kind = PacketType::from_first_byte(frame.first_byte)
            .ok_or_else(|| Error::malformed_packet("fixed header: packet type 0 is reserved"))?;
        check_direction(kind, version, direction)?;
        if kind != PacketType::Connect {
            frame.check_version(version)?;
        }
        Ok(match kind {
            PacketType::Connect => {
                let connect = Connect::decode(body)?;
                frame.check_version(connect.version)?;
                Packet::Connect(connect)
            }
            PacketType::ConnAck => Packet::ConnAck(ConnAck::decode(body, version)?),
            PacketType::Publish => {
                Packet::Publish(Publish::decode(frame.first_byte, body, version, direction)?)
            }
            PacketType::PubAck => Packet::PubAck(Ack::decode(kind, body, version)?),
            PacketType::PubRec => Packet::PubRec(Ack::decode(kind, body, version)?),
            PacketType::PubRel => Packet::PubRel(Ack::decode(kind, body, version)?),
            PacketType::PubComp => Packet::PubComp(Ack::decode(kind, body, version)?),
            PacketType::Subscribe => Packet::Subscribe(Subscribe::decode(body, version)?),
            PacketType::SubAck => Packet::SubAck(SubAck::decode(body, version)?),
            PacketType::Unsubscribe => Packet::Unsubscribe(Unsubscribe::decode(body, version)?),
            PacketType::UnsubAck => Packet::UnsubAck(UnsubAck::decode(body, version)?),
            PacketType::PingReq | PacketType::PingResp if !body.is_empty() => {
                return Err(Error::malformed_packet(
                    "PINGREQ, PINGRESP: no body is allowed",
                ));
            }
            PacketType::PingReq => Packet::PingReq,
            PacketType::PingResp => Packet::PingResp,
            PacketType::Disconnect => {
                Packet::Disconnect(Disconnect::decode(body, version, direction)?)
            }
            PacketType::Auth => Packet::Auth(Auth::decode(body, version, direction)?),
        })
    }

    /// Appends the packet in the format of `version` (CONNECT: in that of its own version).
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        match self {
            Packet::Connect(packet) => packet.encode(out),
            Packet::ConnAck(packet) => packet.encode(version, out),
            Packet::Publish(packet) => packet.encode(version, out),
            Packet::PubAck(packet)
            | Packet::PubRec(packet)
            | Packet::PubRel(packet)
            | Packet::PubComp(packet) => packet.encode(self.packet_type(), version, out),
            Packet::Subscribe(packet) => packet.encode(version, out),
            Packet::SubAck(packet) => packet.encode(version, out),
            Packet::Unsubscribe(packet) => packet.encode(version, out),
            Packet::UnsubAck(packet) => packet.encode(version, out),
            Packet::PingReq | Packet::PingResp => {
                out.extend_from_slice(&[(self.packet_type() as u8) << 4, 0]);
            }
            Packet::Disconnect(packet) => packet.encode(version, out),
            Packet::Auth(packet) => packet.encode(out),
        }
    }

    pub fn packet_type(&self) -> PacketType {
        match self {
            Packet::Connect(_) => PacketType::Connect,
            Packet::ConnAck(_) => PacketType::ConnAck,
            Packet::Publish(_) => PacketType::Publish,
            Packet::PubAck(_) => PacketType::PubAck,
            Packet::PubRec(_) => PacketType::PubRec,
            Packet::PubRel(_) => PacketType::PubRel,
            Packet::PubComp(_) => PacketType::PubComp,
            Packet::Subscribe(_) => PacketType::Subscribe,
            Packet::SubAck(_) => PacketType::SubAck,
            Packet::Unsubscribe(_) => PacketType::Unsubscribe,
            Packet::UnsubAck(_) => PacketType::UnsubAck,
            Packet::PingReq => PacketType::PingReq,
            Packet::PingResp => PacketType::PingResp,
            Packet::Disconnect(_) => PacketType::Disconnect,
            Packet::Auth(_) => PacketType::Auth,
        }
    }
}

#[inline]
fn check_direction(kind: PacketType, version: Version, direction: Direction) -> Result<(), Error> {
    use PacketType::*;
    let wrong = match direction {
        Direction::FromClient => matches!(kind, ConnAck | SubAck | UnsubAck | PingResp),
        Direction::FromServer => {
            matches!(kind, Connect | Subscribe | Unsubscribe | PingReq)
                || kind == Disconnect && version != Version::V5
        }
    };
    if wrong {
        Err(Error::protocol_error(
            "packet type: only the other side may send it",
        ))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{MALFORMED, PROTOCOL, reason_from_client, reason_from_server};

    #[test]
    fn table_2_1_each_side_sends_its_own_packets() {
        for bytes in [
            &[0x20, 2, 0, 0][..],
            &[0x90, 3, 0, 1, 0],
            &[0xb0, 2, 0, 1],
            &[0xd0, 0],
        ] {
            assert_eq!(
                reason_from_client(bytes, Version::V311),
                PROTOCOL,
                "{bytes:?}"
            );
            assert_eq!(reason_from_server(bytes, Version::V311), None, "{bytes:?}");
        }
        let connect = b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0";
        let subscribe = [0x82, 6, 0, 1, 0, 1, b'a', 0];
        let unsubscribe = [0xa2, 5, 0, 1, 0, 1, b'a'];
        for bytes in [&connect[..], &subscribe, &unsubscribe, &[0xc0, 0]] {
            assert_eq!(reason_from_client(bytes, Version::V311), None, "{bytes:?}");
            assert_eq!(
                reason_from_server(bytes, Version::V311),
                PROTOCOL,
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn table_2_1_a_server_sends_disconnect_from_version_5_on() {
        assert_eq!(reason_from_server(&[0xe0, 0], Version::V5), None);
        assert_eq!(reason_from_server(&[0xe0, 0], Version::V311), PROTOCOL);
        assert_eq!(reason_from_server(&[0xe0, 0], Version::V31), PROTOCOL);
    }

    #[test]
    fn section_3_12_ping_has_no_body() {
        assert_eq!(reason_from_client(&[0xc0, 1, 0], Version::V5), MALFORMED);
        assert_eq!(reason_from_server(&[0xd0, 1, 0], Version::V5), MALFORMED);
    }
}
