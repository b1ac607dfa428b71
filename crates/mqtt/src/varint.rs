//! Variable byte integers (MQTT 5.0 section 1.5.5): seven bits per byte, at most four bytes.

use crate::error::Error;

pub const MAX_VARINT: u32 = 268_435_455;

/// Encoded length of `value` in bytes.
#[inline]
pub const fn varint_len(value: u32) -> usize {
    match value {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    }
}

/// Appends `value`, which must be at most [`MAX_VARINT`].
#[inline]
pub fn encode_varint(mut value: u32, out: &mut Vec<u8>) {
    debug_assert!(value <= MAX_VARINT);
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Decodes the value at the front of `bytes` and returns it with its length. Returns `Ok(None)` if it is incomplete,
/// and `Err` if it has a fifth byte or is longer than necessary [MQTT-1.5.5-1].
#[inline]
pub fn decode_varint(bytes: &[u8]) -> Result<Option<(u32, usize)>, Error> {
    match decode_varint_lenient(bytes)? {
        Some((value, len)) if len != varint_len(value) => Err(Error::malformed_packet(
            "variable byte integer: longer than its value needs [MQTT-1.5.5-1]",
        )),
        decoded => Ok(decoded),
    }
}

/// Like [`decode_varint`], but accepts overlong encodings such as `0x80 0x00`, which are not forbidden before version
/// 5.
#[inline]
pub(crate) fn decode_varint_lenient(bytes: &[u8]) -> Result<Option<(u32, usize)>, Error> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(4).enumerate() {
        value |= u32::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    if bytes.len() < 4 {
        return Ok(None);
    }
    Err(Error::malformed_packet(
        "variable byte integer: longer than four bytes",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_at_every_boundary() {
        for value in [
            0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, MAX_VARINT,
        ] {
            let mut bytes = Vec::new();
            encode_varint(value, &mut bytes);
            assert_eq!(bytes.len(), varint_len(value));
            assert_eq!(decode_varint(&bytes), Ok(Some((value, bytes.len()))));
            assert_eq!(decode_varint(&bytes[..bytes.len() - 1]), Ok(None));
        }
    }

    #[test]
    fn a_fifth_byte_is_rejected_when_the_fourth_announces_it() {
        assert!(decode_varint(&[0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(decode_varint_lenient(&[0xff, 0xff, 0xff, 0x80]).is_err());
    }

    #[test]
    fn mqtt_1_5_5_1_the_shortest_form_is_the_only_one() {
        for bytes in [&[0x80, 0x00][..], &[0xff, 0x00], &[0x80, 0x80, 0x80, 0x00]] {
            assert!(decode_varint(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(
            decode_varint_lenient(&[0xff, 0x80, 0x00]),
            Ok(Some((127, 3)))
        );
    }
}
