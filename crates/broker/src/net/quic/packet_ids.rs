//! Packet identifiers in encoded packets.

use mqtt::PacketType;

/// The type of a packet, and the position of its packet identifier, if it has one. The packet may be incomplete.
pub(super) fn packet_id_position(packet: &[u8]) -> Option<(PacketType, usize)> {
    let kind = PacketType::from_first_byte(*packet.first()?)?;
    let length_bytes = packet[1..]
        .iter()
        .take(4)
        .position(|byte| byte & 0x80 == 0)?
        + 1;
    let body = 1 + length_bytes;
    match kind {
        PacketType::Publish if packet[0] & 0b0110 == 0 => None,
        PacketType::Publish => {
            let topic = packet.get(body..body + 2)?;
            let topic_len = usize::from(u16::from_be_bytes([topic[0], topic[1]]));
            Some((kind, body + 2 + topic_len))
        }
        PacketType::PubAck
        | PacketType::PubRec
        | PacketType::PubRel
        | PacketType::PubComp
        | PacketType::Subscribe
        | PacketType::SubAck
        | PacketType::Unsubscribe
        | PacketType::UnsubAck => Some((kind, body)),
        _ => None,
    }
}

pub(super) fn read_id(packet: &[u8], at: usize) -> Option<u16> {
    let bytes = packet.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

pub(super) fn write_id(packet: &mut [u8], at: usize, id: u16) {
    if let Some(bytes) = packet.get_mut(at..at + 2) {
        bytes.copy_from_slice(&id.to_be_bytes());
    }
}
