//! Helpers of the unit tests: bytes in, the reason of the rejection out.

use crate::{Direction, Packet, ReasonCode, Version, split_frame};

pub(crate) const MALFORMED: Option<ReasonCode> = Some(ReasonCode::MALFORMED_PACKET);
pub(crate) const PROTOCOL: Option<ReasonCode> = Some(ReasonCode::PROTOCOL_ERROR);

/// The reason why a server rejects this packet from a client; `None` if it accepts it.
pub(crate) fn reason_from_client(bytes: &[u8], version: Version) -> Option<ReasonCode> {
    rejection_reason(bytes, version, Direction::FromClient)
}

/// The reason why a client rejects this packet from a server; `None` if it accepts it.
pub(crate) fn reason_from_server(bytes: &[u8], version: Version) -> Option<ReasonCode> {
    rejection_reason(bytes, version, Direction::FromServer)
}

fn rejection_reason(bytes: &[u8], version: Version, direction: Direction) -> Option<ReasonCode> {
    let frame = match split_frame(bytes, u32::MAX) {
        Ok(frame) => frame.expect("a test gives whole packets"),
        Err(error) => return Some(error.reason),
    };
    assert_eq!(frame.len, bytes.len(), "a test gives one packet");
    match Packet::decode(frame, version, direction) {
        Ok(_) => None,
        Err(error) => Some(error.reason),
    }
}

/// Builds a packet from these parts and adds the remaining length.
pub(crate) fn packet(first_byte: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut bytes = Vec::new();
    crate::frame::put_header(first_byte, body.len(), &mut bytes);
    bytes.extend_from_slice(&body);
    bytes
}
