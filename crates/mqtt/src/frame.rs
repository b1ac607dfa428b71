//! Finding packets in a stream of bytes: the fixed header (MQTT 5.0 section 2.1).

use crate::{Error, PacketType, ReasonCode, varint::decode_varint};

/// One whole packet: its first byte, and what follows the fixed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub first_byte: u8,
    pub body: &'a [u8],
    /// Bytes of the whole packet, fixed header included.
    pub len: usize,
}

/// The packet at the front of `buf`; `None` if it is not whole yet. A header that cannot be right, or announces more
/// than `max_packet_size` bytes, is refused as soon as it shows.
#[inline]
pub fn split_frame(buf: &[u8], max_packet_size: u32) -> Result<Option<Frame<'_>>, Error> {
    let [first_byte, rest @ ..] = buf else {
        return Ok(None);
    };
    // The usual case first: a valid header whose remaining length fits one byte.
    let (remaining, header_len) = match rest.first() {
        Some(&len) if len < 0x80 => (u32::from(len), 2),
        _ => {
            check_first_byte(*first_byte)?;
            match decode_varint(rest) {
                Ok(Some((value, len))) => (value, 1 + len),
                Ok(None) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    };
    check_first_byte(*first_byte)?;
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

/// Length of the packet at the front of `buf`, once its fixed header is whole.
pub fn frame_len(buf: &[u8]) -> Result<Option<usize>, Error> {
    let [first_byte, rest @ ..] = buf else {
        return Ok(None);
    };
    check_first_byte(*first_byte)?;
    match decode_varint(rest) {
        Ok(Some((remaining, len))) => Ok(Some(1 + len + remaining as usize)),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Type 0 is reserved, and every type but PUBLISH has flags that are fixed [MQTT-2.1.3-1].
#[inline]
fn check_first_byte(first_byte: u8) -> Result<(), Error> {
    const PUBLISH: u8 = PacketType::Publish as u8;
    let flags = first_byte & 0x0f;
    match first_byte >> 4 {
        PUBLISH if flags & 0b0110 == 0b0110 => Err(Error::malformed(
            "PUBLISH: QoS 3 does not exist [MQTT-3.3.1-4]",
        )),
        PUBLISH if flags & 0b1110 == 0b1000 => Err(Error::malformed(
            "PUBLISH: DUP is set at QoS 0 [MQTT-3.3.1-2]",
        )),
        PUBLISH => Ok(()),
        0 => Err(Error::malformed("fixed header: packet type 0 is reserved")),
        // PUBREL, SUBSCRIBE, UNSUBSCRIBE
        6 | 8 | 10 if flags == 0b0010 => Ok(()),
        6 | 8 | 10 => Err(Error::malformed(
            "fixed header: the flags must be 0010 [MQTT-2.1.3-1]",
        )),
        _ if flags == 0 => Ok(()),
        _ => Err(Error::malformed(
            "fixed header: the flags must be 0000 [MQTT-2.1.3-1]",
        )),
    }
}

/// Writes a fixed header and then `body`, whose length `len` is known.
pub(crate) fn put_header(first_byte: u8, len: usize, out: &mut Vec<u8>) {
    out.reserve(5 + len);
    out.push(first_byte);
    crate::varint::encode_varint(len as u32, out);
}
