//! Finds packets in a stream of bytes: the fixed header (MQTT 5.0 section 2.1).

use crate::error::{Error, ReasonCode};
use crate::types::{PacketType, Version};
use crate::varint::{decode_varint_lenient, encode_varint, varint_len};

/// A complete packet: its first byte, and the bytes after the fixed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub first_byte: u8,
    pub body: &'a [u8],
    /// Length of the whole packet including the fixed header, in bytes.
    pub len: usize,
}

impl Frame<'_> {
    /// Checks that depend on the protocol version, which [`split_frame`] does not know.
    /// [`Packet::decode`](crate::Packet::decode) calls this; callers of another `decode` must call it themselves.
    #[inline]
    pub fn check_version(&self, version: Version) -> Result<(), Error> {
        const AUTH: u8 = PacketType::Auth as u8;
        match self.first_byte >> 4 {
            // Version 3.1 uses bit 3 as DUP in these packets; in later versions it is reserved.
            6 | 8 | 10 if self.first_byte & 0x0f != 0b0010 && version != Version::V31 => {
                return Err(Error::malformed_packet(
                    "fixed header: the flags must be 0010 [MQTT-2.1.3-1]",
                ));
            }
            AUTH if version != Version::V5 => {
                return Err(Error::protocol_error(
                    "AUTH: does not exist before version 5",
                ));
            }
            _ => {}
        }
        let header_len = 1 + varint_len(self.body.len() as u32);
        if version == Version::V5 && self.len != header_len + self.body.len() {
            return Err(Error::malformed_packet(
                "fixed header: the remaining length takes more bytes than it needs [MQTT-1.5.5-1]",
            ));
        }
        Ok(())
    }
}

/// Returns the packet at the front of `buf`, or `None` if it is incomplete. An invalid header, or one that announces
/// more than `max_packet_size` bytes, is rejected as soon as it is visible.
///
/// Always inlined: each packet passes it, and its result would be returned through memory.
#[inline(always)]
pub fn split_frame(buf: &[u8], max_packet_size: u32) -> Result<Option<Frame<'_>>, Error> {
    let [first_byte, rest @ ..] = buf else {
        return Ok(None);
    };
    check_first_byte(*first_byte)?;
    // Fast path: a remaining length of one byte.
    let (remaining, header_len) = match rest.first() {
        Some(&len) if len < 0x80 => (u32::from(len), 2),
        _ => match decode_varint_lenient(rest)? {
            Some((value, len)) => (value, 1 + len),
            None => return Ok(None),
        },
    };
    let len = header_len + remaining as usize;
    if len > max_packet_size as usize {
        return Err(Error {
            reason: ReasonCode::PACKET_TOO_LARGE,
            detail: "fixed header: the packet is larger than the maximum packet size",
        });
    }
    match buf.get(header_len..len) {
        Some(body) => Ok(Some(Frame {
            first_byte: *first_byte,
            body,
            len,
        })),
        None => Ok(None),
    }
}

/// Length of the packet at the front of `buf`, once its fixed header is complete.
pub fn frame_len(buf: &[u8]) -> Result<Option<usize>, Error> {
    let [first_byte, rest @ ..] = buf else {
        return Ok(None);
    };
    check_first_byte(*first_byte)?;
    match decode_varint_lenient(rest) {
        Ok(Some((remaining, len))) => Ok(Some(1 + len + remaining as usize)),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Allowed flags per packet type, one bit for each of the sixteen values [MQTT-2.1.3-1].
const VALID_FLAGS: [u16; 16] = {
    let mut valid = [1 << 0b0000; 16];
    valid[0] = 0;
    // RETAIN is free; QoS 0, 1 and 2 without DUP, QoS 1 and 2 with it [MQTT-3.3.1-2, MQTT-3.3.1-4].
    valid[PacketType::Publish as usize] = 0b0011_1100_0011_1111;
    // Bit 3 is DUP in version 3.1; see `check_version`.
    let with_dup = 1 << 0b0010 | 1 << 0b1010;
    valid[PacketType::PubRel as usize] = with_dup;
    valid[PacketType::Subscribe as usize] = with_dup;
    valid[PacketType::Unsubscribe as usize] = with_dup;
    valid
};

#[inline]
fn check_first_byte(first_byte: u8) -> Result<(), Error> {
    if VALID_FLAGS[usize::from(first_byte >> 4)] >> (first_byte & 0x0f) & 1 != 0 {
        Ok(())
    } else {
        Err(first_byte_error(first_byte))
    }
}

#[cold]
fn first_byte_error(first_byte: u8) -> Error {
    const PUBLISH: u8 = PacketType::Publish as u8;
    Error::malformed_packet(match first_byte >> 4 {
        0 => "fixed header: packet type 0 is reserved",
        PUBLISH if first_byte & 6 == 6 => "PUBLISH: QoS 3 does not exist [MQTT-3.3.1-4]",
        PUBLISH => "PUBLISH: DUP is set at QoS 0 [MQTT-3.3.1-2]",
        6 | 8 | 10 => "fixed header: the flags must be 0010 [MQTT-2.1.3-1]",
        _ => "fixed header: the flags must be 0000 [MQTT-2.1.3-1]",
    })
}

/// Writes a fixed header for a body of `len` bytes, which the caller appends, and reserves space for both.
#[inline]
pub(crate) fn put_header(first_byte: u8, len: usize, out: &mut Vec<u8>) {
    out.reserve(5 + len);
    out.push(first_byte);
    encode_varint(len as u32, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{MALFORMED, PROTOCOL, reason_from_client};

    const V31: Version = Version::V31;
    const V311: Version = Version::V311;
    const V5: Version = Version::V5;

    #[test]
    fn mqtt_2_1_3_1_reserved_flags_have_one_value() {
        for first_byte in 0..=255_u8 {
            let flags = first_byte & 0x0f;
            let valid = match first_byte >> 4 {
                0 => false,
                3 => flags & 6 != 6 && flags & 14 != 8,
                6 | 8 | 10 => flags & 7 == 2,
                _ => flags == 0,
            };
            assert_eq!(
                split_frame(&[first_byte, 0], 100).is_ok(),
                valid,
                "{first_byte:#04x}"
            );
            // The first byte is sufficient.
            assert_eq!(split_frame(&[first_byte], 100).is_ok(), valid);
            assert_eq!(frame_len(&[first_byte]).is_ok(), valid);
        }
    }

    #[test]
    fn mqtt_3_3_1_2_dup_is_0_at_qos_0() {
        assert!(split_frame(&[0x38], 100).is_err());
        assert_eq!(split_frame(&[0x3a], 100), Ok(None));
    }

    #[test]
    fn mqtt_3_3_1_4_qos_3_does_not_exist() {
        assert!(split_frame(&[0x36], 100).is_err());
        assert!(split_frame(&[0x3f], 100).is_err());
    }

    #[test]
    fn mqtt_3_6_1_1_dup_of_pubrel_is_for_3_1_only() {
        let pubrel = [0x6a, 2, 0, 1];
        assert_eq!(reason_from_client(&pubrel, V31), None);
        assert_eq!(reason_from_client(&pubrel, V311), MALFORMED);
        assert_eq!(reason_from_client(&pubrel, V5), MALFORMED);
    }

    #[test]
    fn mqtt_3_8_1_1_and_3_10_1_1_dup_of_subscribe_and_unsubscribe_is_for_3_1_only() {
        let subscribe = [0x8a, 6, 0, 1, 0, 1, b'a', 0];
        assert_eq!(reason_from_client(&subscribe, V31), None);
        assert_eq!(reason_from_client(&subscribe, V311), MALFORMED);
        let unsubscribe = [0xaa, 5, 0, 1, 0, 1, b'a'];
        assert_eq!(reason_from_client(&unsubscribe, V31), None);
        assert_eq!(reason_from_client(&unsubscribe, V311), MALFORMED);
    }

    #[test]
    fn mqtt_1_5_5_1_the_remaining_length_is_minimal_from_version_5_on() {
        let puback = [0x40, 0x82, 0x80, 0x00, 0, 1];
        assert_eq!(reason_from_client(&puback, V31), None);
        assert_eq!(reason_from_client(&puback, V311), None);
        assert_eq!(reason_from_client(&puback, V5), MALFORMED);
        let connect = b"\x10\x8d\x00\0\x04MQTT\x05\x02\0\0\0\0\0";
        assert_eq!(reason_from_client(connect, V311), MALFORMED);
    }

    #[test]
    fn the_remaining_length_has_at_most_four_bytes() {
        assert_eq!(split_frame(&[0x30, 0xff, 0xff, 0xff], u32::MAX), Ok(None));
        assert!(split_frame(&[0x30, 0xff, 0xff, 0xff, 0x80], u32::MAX).is_err());
        assert!(frame_len(&[0x30, 0xff, 0xff, 0xff, 0x80]).is_err());
        let longest = [0x30, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(frame_len(&longest), Ok(Some(268_435_460)));
        assert_eq!(split_frame(&longest, u32::MAX), Ok(None));
    }

    #[test]
    fn mqtt_3_1_2_24_the_packet_size_counts_the_fixed_header() {
        let packet = [0x40, 2, 0, 1];
        assert!(matches!(split_frame(&packet, 4), Ok(Some(frame)) if frame.len == 4));
        let rejected = split_frame(&packet[..2], 3).unwrap_err();
        assert_eq!(rejected.reason, ReasonCode::PACKET_TOO_LARGE);
    }

    #[test]
    fn table_2_1_type_0_is_forbidden_and_15_before_version_5() {
        assert!(split_frame(&[0x00], 100).is_err());
        assert_eq!(reason_from_client(&[0xf0, 0], V311), PROTOCOL);
        assert_eq!(reason_from_client(&[0xf0, 0], V31), PROTOCOL);
    }
}
