//! The 16-byte header of a frame. It is checked before anything that it announces is believed.

use crc_fast::{CrcAlgorithm, Digest};

use crate::error_code::ProtocolError;

/// Length of a frame header.
pub const HEADER_BYTES: usize = 16;

/// Types from this one on may be ignored by a peer that does not know them.
const FIRST_OPTIONAL_TYPE: u8 = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameType {
    Hello = 1,
    Welcome = 2,
    Messages = 3,
    Open = 4,
    Accept = 5,
    Reject = 6,
    Data = 7,
    Done = 8,
    Ack = 9,
    Window = 10,
    Cancel = 11,
    Ping = 12,
    Pong = 13,
    GoAway = 14,
    /// A type of a later version that may be ignored.
    Optional = FIRST_OPTIONAL_TYPE as isize,
}

impl FrameType {
    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Messages,
            4 => Self::Open,
            5 => Self::Accept,
            6 => Self::Reject,
            7 => Self::Data,
            8 => Self::Done,
            9 => Self::Ack,
            10 => Self::Window,
            11 => Self::Cancel,
            12 => Self::Ping,
            13 => Self::Pong,
            14 => Self::GoAway,
            FIRST_OPTIONAL_TYPE.. => Self::Optional,
            _ => return None,
        })
    }
}

/// The header of a frame. Its own check has been verified, the checksum of the frame not yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    pub frame_type: FrameType,
    pub flags: u8,
    /// 0: the frame concerns the link as a whole.
    pub stream: u32,
    pub payload_bytes: u32,
    crc: u32,
    /// CRC32C of the first fields, which the checksum of the frame continues.
    seed: u32,
}

impl FrameHeader {
    /// Parses and checks a header. `max_payload_bytes` is what this end has announced.
    pub fn parse(
        bytes: &[u8; HEADER_BYTES],
        max_payload_bytes: u32,
    ) -> Result<Self, ProtocolError> {
        let &[code, flags, check_0, check_1, ref rest @ ..] = bytes;
        let (stream, rest) = split_u32(rest);
        let (payload_bytes, rest) = split_u32(rest);
        let (crc, _) = split_u32(rest);
        let seed = seed(bytes);
        if header_check(seed, crc) != u16::from_le_bytes([check_0, check_1]) {
            return Err(ProtocolError::corrupted(
                "the check of a frame header does not match",
            ));
        }
        let frame_type =
            FrameType::from_code(code).ok_or(ProtocolError::violation("unknown type of frame"))?;
        if payload_bytes > max_payload_bytes {
            return Err(ProtocolError::too_large(
                "a frame is longer than this end accepts",
            ));
        }
        Ok(Self {
            frame_type,
            flags,
            stream,
            payload_bytes,
            crc,
            seed,
        })
    }

    /// Whether the payload is the one that the checksum was computed of.
    pub fn matches(&self, payload: &[u8]) -> bool {
        extend_checksum(self.seed, payload) == self.crc
    }
}

fn split_u32(bytes: &[u8]) -> (u32, &[u8]) {
    let (number, rest) = bytes
        .split_first_chunk()
        .expect("the header has 16 bytes and three numbers");
    (u32::from_le_bytes(*number), rest)
}

/// From this size on, the other implementation is faster: it combines two kinds of instructions.
const LARGE_PART_BYTES: usize = 8 * 1024;

/// The CRC32C of what `crc` was computed of, followed by `part`.
fn extend_checksum(crc: u32, part: &[u8]) -> u32 {
    if part.len() < LARGE_PART_BYTES {
        return crc32c::crc32c_append(crc, part);
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(part);
    digest.finalize() as u32
}

/// CRC32C of type, flags, stream and length.
fn seed(header: &[u8; HEADER_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..2]), &header[4..12])
}

/// Both halves of the CRC32C of the header without the check. A test shows that every single changed bit alters it.
fn header_check(seed: u32, crc: u32) -> u16 {
    let all = crc32c::crc32c_append(seed, &crc.to_le_bytes());
    (all >> 16) as u16 ^ all as u16
}

/// Encodes the header of a frame whose payload consists of `parts`.
pub fn encode_header(
    frame_type: FrameType,
    flags: u8,
    stream: u32,
    parts: &[&[u8]],
) -> [u8; HEADER_BYTES] {
    let payload_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let payload_bytes =
        u32::try_from(payload_bytes).expect("frames are limited to less than 4 GiB");
    let mut header = [0; HEADER_BYTES];
    header[0] = frame_type as u8;
    header[1] = flags;
    header[4..8].copy_from_slice(&stream.to_le_bytes());
    header[8..12].copy_from_slice(&payload_bytes.to_le_bytes());
    let seed = seed(&header);
    let crc = parts
        .iter()
        .fold(seed, |crc, part| extend_checksum(crc, part));
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header[2..4].copy_from_slice(&header_check(seed, crc).to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_code::ErrorCode;

    const LIMIT: u32 = 1 << 20;

    #[test]
    fn a_header_comes_back() {
        let header = encode_header(FrameType::Data, 3, 77, &[b"ab", b"c"]);
        let parsed = FrameHeader::parse(&header, LIMIT).unwrap();
        assert_eq!(parsed.frame_type, FrameType::Data);
        assert_eq!((parsed.flags, parsed.stream), (3, 77));
        assert_eq!(parsed.payload_bytes, 3);
        assert!(parsed.matches(b"abc"));
        assert!(!parsed.matches(b"abd"));
    }

    #[test]
    fn large_parts_have_the_same_checksum() {
        let content: Vec<u8> = (0..100_003_u32).map(|i| ((i * 7) >> 3) as u8).collect();
        for len in [LARGE_PART_BYTES - 1, LARGE_PART_BYTES, 65_537, 100_003] {
            for crc in [0, 1, u32::MAX] {
                let expected = crc32c::crc32c_append(crc, &content[..len]);
                assert_eq!(extend_checksum(crc, &content[..len]), expected, "{len}");
            }
        }
    }

    #[test]
    fn one_or_two_changed_bits_of_a_header_are_noticed() {
        for (stream, payload) in [(0, &b""[..]), (1, b"x"), (u32::MAX, &[0xff; 300])] {
            let header = encode_header(FrameType::Messages, 0, stream, &[payload]);
            let bits = HEADER_BYTES * 8;
            for (a, b) in (0..bits).flat_map(|a| (a..bits).map(move |b| (a, b))) {
                let mut changed = header;
                changed[a / 8] ^= 1 << (a % 8);
                if a != b {
                    changed[b / 8] ^= 1 << (b % 8);
                }
                if let Ok(parsed) = FrameHeader::parse(&changed, LIMIT) {
                    // The short check misses a few pairs; the checksum of the frame does not.
                    assert_ne!(a, b, "bit {a}");
                    assert!(!parsed.matches(payload), "bits {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn the_announced_length_is_limited() {
        let payload = [0; 100];
        let header = encode_header(FrameType::Data, 0, 1, &[&payload]);
        assert!(FrameHeader::parse(&header, 100).is_ok());
        let error = FrameHeader::parse(&header, 99).unwrap_err();
        assert_eq!(error.code, ErrorCode::TOO_LARGE);
    }
}
