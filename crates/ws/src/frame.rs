//! Frame headers (RFC 6455 section 5.2): parsing and encoding, and encoding of whole frames.

use crate::mask::apply_mask;
use crate::{Error, Role, close_codes};

/// Longest frame header: two bytes, a 64-bit length, a masking key.
pub const MAX_HEADER_BYTES: usize = 14;
pub(crate) const MAX_CONTROL_PAYLOAD_BYTES: usize = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
/// The first reserved bit, in the first frame of a compressed message (RFC 7692 section 6).
const COMPRESSED: u8 = 0x40;
const MASKED: u8 = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    pub const fn is_control(self) -> bool {
        self as u8 >= 8
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }
}

/// The header of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IncomingHeader {
    pub(crate) is_final: bool,
    pub(crate) is_compressed: bool,
    pub(crate) opcode: Opcode,
    pub(crate) payload_bytes: u64,
    /// All zero in a frame from a server.
    pub(crate) mask: [u8; 4],
    /// Length of the header itself.
    pub(crate) header_bytes: usize,
}

impl IncomingHeader {
    /// Parses the header at the front of `buf`; `None` if it is incomplete. An error is reported at the first
    /// byte that shows it. `role` is the local role; `has_compression`: messages may be compressed.
    #[inline]
    pub(crate) fn parse(
        buf: &[u8],
        role: Role,
        has_compression: bool,
    ) -> Result<Option<Self>, Error> {
        let Some(&first) = buf.first() else {
            return Ok(None);
        };
        let Some(opcode) = Opcode::from_bits(first & 0x0F) else {
            return Err(Error::protocol_error("unknown frame opcode"));
        };
        let is_first = matches!(opcode, Opcode::Text | Opcode::Binary);
        let is_compressed = has_compression && is_first && first & RESERVED == COMPRESSED;
        if first & RESERVED != 0 && !is_compressed {
            return Err(Error::protocol_error("reserved bit set in a frame header"));
        }
        let is_final = first & FIN != 0;
        if opcode.is_control() && !is_final {
            return Err(Error::protocol_error("fragmented control frame"));
        }
        let Some(&second) = buf.get(1) else {
            return Ok(None);
        };
        match (role, second & MASKED != 0) {
            (Role::Server, false) => {
                return Err(Error::protocol_error("frame from a client without a mask"));
            }
            (Role::Client, true) => {
                return Err(Error::protocol_error("frame from a server with a mask"));
            }
            (Role::Server, true) | (Role::Client, false) => {}
        }
        let short_length = second & !MASKED;
        if opcode.is_control() && usize::from(short_length) > MAX_CONTROL_PAYLOAD_BYTES {
            return Err(Error::protocol_error("control frame longer than 125 bytes"));
        }
        let (payload_bytes, mask_at) = match short_length {
            126 => match buf.get(2..4) {
                Some(&[a, b]) => (u64::from(u16::from_be_bytes([a, b])), 4),
                _ => return Ok(None),
            },
            127 => match buf.get(2..10).and_then(|bytes| bytes.first_chunk::<8>()) {
                Some(&bytes) => (u64::from_be_bytes(bytes), 10),
                None => return Ok(None),
            },
            length => (u64::from(length), 2),
        };
        let shortest = match payload_bytes {
            0..=125 => 2,
            126..=0xFFFF => 4,
            _ => 10,
        };
        if mask_at != shortest {
            return Err(Error::protocol_error(
                "frame length not in its shortest form",
            ));
        }
        if payload_bytes >> 63 != 0 {
            return Err(Error::protocol_error(
                "frame length with its highest bit set",
            ));
        }
        let (mask, header_bytes) = match role {
            Role::Client => ([0; 4], mask_at),
            Role::Server => match buf
                .get(mask_at..)
                .and_then(|bytes| bytes.first_chunk::<4>())
            {
                Some(&mask) => (mask, mask_at + 4),
                None => return Ok(None),
            },
        };
        Ok(Some(Self {
            is_final,
            is_compressed,
            opcode,
            payload_bytes,
            mask,
            header_bytes,
        }))
    }
}

/// The encoded header of a frame, for callers that write header and payload with one vectored write.
#[derive(Debug, Clone, Copy)]
pub struct FrameHeader {
    bytes: [u8; MAX_HEADER_BYTES],
    len: u8,
}

impl FrameHeader {
    /// The header of an unfragmented frame with `payload_bytes` of payload. A client passes a fresh `mask`
    /// ([`crate::MaskKeys`]) and masks the payload with it ([`apply_mask`]); a server passes none.
    #[inline]
    pub fn new(opcode: Opcode, payload_bytes: usize, mask: Option<[u8; 4]>) -> Self {
        Self::fragment(opcode, true, payload_bytes, mask)
    }

    /// The header of one fragment of a message. The first fragment has the message's opcode, the following ones
    /// [`Opcode::Continuation`]; `is_final` marks the last.
    #[inline]
    pub fn fragment(
        opcode: Opcode,
        is_final: bool,
        payload_bytes: usize,
        mask: Option<[u8; 4]>,
    ) -> Self {
        debug_assert!(
            !opcode.is_control() || (is_final && payload_bytes <= MAX_CONTROL_PAYLOAD_BYTES)
        );
        let mut bytes = [0; MAX_HEADER_BYTES];
        bytes[0] = if is_final { FIN } else { 0 } | opcode as u8;
        let masked = if mask.is_some() { MASKED } else { 0 };
        let mut len = match payload_bytes {
            0..=125 => {
                bytes[1] = masked | payload_bytes as u8;
                2
            }
            126..=0xFFFF => {
                bytes[1] = masked | 126;
                bytes[2..4].copy_from_slice(&(payload_bytes as u16).to_be_bytes());
                4
            }
            _ => {
                bytes[1] = masked | 127;
                bytes[2..10].copy_from_slice(&(payload_bytes as u64).to_be_bytes());
                10
            }
        };
        if let Some(mask) = mask {
            bytes[len..len + 4].copy_from_slice(&mask);
            len += 4;
        }
        Self {
            bytes,
            len: len as u8,
        }
    }

    /// The same header for the first frame of a compressed message.
    #[must_use]
    pub fn with_compressed_flag(mut self) -> Self {
        self.bytes[0] |= COMPRESSED;
        self
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Appends the header of an unfragmented frame; see [`FrameHeader::new`].
#[inline]
pub fn encode_header(
    opcode: Opcode,
    payload_bytes: usize,
    mask: Option<[u8; 4]>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(FrameHeader::new(opcode, payload_bytes, mask).as_bytes());
}

/// Appends an unfragmented frame. The payload of a ping or pong is at most 125 bytes. For close frames, use
/// [`encode_close`].
#[inline]
pub fn encode_frame(opcode: Opcode, payload: &[u8], mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    encode_header(opcode, payload.len(), mask, out);
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        apply_mask(&mut out[start..], mask);
    }
}

/// Appends a close frame. Without a code it is empty. A reason longer than [`close_codes::MAX_REASON_BYTES`] is
/// truncated at a character boundary.
pub fn encode_close(code: Option<u16>, reason: &str, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
    let mut payload = [0; MAX_CONTROL_PAYLOAD_BYTES];
    let mut len = 0;
    if let Some(code) = code {
        debug_assert!(
            close_codes::is_valid_on_wire(code),
            "{code} may not be sent"
        );
        let cut = reason.floor_char_boundary(close_codes::MAX_REASON_BYTES);
        payload[..2].copy_from_slice(&code.to_be_bytes());
        payload[2..2 + cut].copy_from_slice(&reason.as_bytes()[..cut]);
        len = 2 + cut;
    }
    encode_frame(Opcode::Close, &payload[..len], mask, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_their_shortest_form_and_read_back() {
        let lengths = [0, 1, 125, 126, 127, 0xFFFF, 0x1_0000, 0xFFFF_FFFF];
        for payload_bytes in lengths {
            for (mask, reader) in [(None, Role::Client), (Some([1, 2, 3, 4]), Role::Server)] {
                let mut out = Vec::new();
                encode_header(Opcode::Binary, payload_bytes, mask, &mut out);
                for cut in 0..out.len() {
                    assert_eq!(IncomingHeader::parse(&out[..cut], reader, false), Ok(None));
                }
                let header = IncomingHeader::parse(&out, reader, false).unwrap().unwrap();
                assert_eq!(header.payload_bytes, payload_bytes as u64);
                assert_eq!(header.header_bytes, out.len());
                assert_eq!(header.mask, mask.unwrap_or_default());
                assert!(header.is_final);
            }
        }
    }

    #[test]
    fn errors_are_found_at_the_first_wrong_byte() {
        let cases: [(&[u8], Role, &str); 11] = [
            (&[0xC2], Role::Server, "reserved bit"),
            (&[0xA2], Role::Server, "reserved bit"),
            (&[0x92], Role::Server, "reserved bit"),
            (&[0x83], Role::Server, "opcode"),
            (&[0x8B], Role::Client, "opcode"),
            (&[0x09], Role::Server, "fragmented control"),
            (&[0x82, 0x05], Role::Server, "without a mask"),
            (&[0x82, 0x85], Role::Client, "with a mask"),
            (&[0x89, 0xFE], Role::Server, "longer than 125"),
            (&[0x82, 126, 0, 125], Role::Client, "shortest form"),
            (
                &[0x82, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF],
                Role::Client,
                "shortest form",
            ),
        ];
        for (bytes, role, expected) in cases {
            let error = IncomingHeader::parse(bytes, role, false).unwrap_err();
            assert_eq!(error.code, close_codes::PROTOCOL_ERROR, "{bytes:?}");
            assert!(
                error.detail.contains(expected),
                "{bytes:?}: {}",
                error.detail
            );
            assert_eq!(
                IncomingHeader::parse(&bytes[..bytes.len() - 1], role, false),
                Ok(None),
                "{bytes:?}"
            );
        }
        let error =
            IncomingHeader::parse(&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], Role::Client, false);
        assert!(error.unwrap_err().detail.contains("highest bit"));
    }

    #[test]
    fn only_the_first_frame_of_a_message_may_be_marked_as_compressed() {
        for (first, is_permitted) in [
            (0xC1, true),
            (0xC2, true),
            (0x41, true),
            (0xC0, false),
            (0xC8, false),
            (0xC9, false),
            (0xE1, false),
            (0xD1, false),
        ] {
            for has_compression in [true, false] {
                let result = IncomingHeader::parse(&[first, 0], Role::Client, has_compression);
                assert_eq!(result.is_ok(), is_permitted && has_compression, "{first:x}");
            }
        }
        let header = FrameHeader::new(Opcode::Text, 1, None).with_compressed_flag();
        assert_eq!(header.as_bytes(), [0xC1, 1]);
    }

    #[test]
    fn close_frames_cut_long_reasons_at_a_character() {
        let mut out = Vec::new();
        encode_close(Some(close_codes::NORMAL), &"ä".repeat(100), None, &mut out);
        assert_eq!(out.len(), 2 + 2 + 122);
        assert!(std::str::from_utf8(&out[4..]).is_ok());
        out.clear();
        encode_close(None, "not sent", None, &mut out);
        assert_eq!(out, [0x88, 0]);
    }
}
