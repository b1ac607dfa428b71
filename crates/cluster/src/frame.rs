//! The frames of a channel between two nodes.
//!
//! All numbers are little-endian.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 1 | version of the format, 1 |
//! | 1 | 1 | flags: 1 open, 2 data, 4 last frame of a message, 8 frames are missing |
//! | 2 | 2 | length of the sender's name |
//! | 4 | 4 | CRC32C of everything else |
//! | 8 | 8 | number of the sender's end of the channel |
//! | 16 | 8 | number of the receiver's end, 0 if the sender does not know it |
//! | 24 | 8 | number of the data frame; frames are numbered from 1 |
//! | 32 | 8 | number of the last data frame that the sender of this frame has received, with all before it |
//! | 40 | n | name of the sender |
//! | 40+n | | data |

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::member::NodeName;

const VERSION: u8 = 1;
/// Bytes before the name.
const FIXED_BYTES: usize = 40;
/// Bytes of a frame besides its data, with the longest name.
pub const FRAME_HEAD_BYTES: usize = FIXED_BYTES + 64;

pub(crate) const OPEN: u8 = 1;
pub(crate) const DATA: u8 = 2;
pub(crate) const LAST: u8 = 4;
pub(crate) const MISSING: u8 = 8;

/// Why bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("the frame ends early")]
    Short,
    #[error("the frame has version {0} of the format, expected {VERSION}")]
    Version(u8),
    #[error("the checksum of the frame is wrong")]
    Checksum,
    #[error("the name of the sender is invalid")]
    Sender,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) sender: NodeName,
    pub(crate) flags: u8,
    pub(crate) from_end: u64,
    pub(crate) to_end: u64,
    pub(crate) number: u64,
    pub(crate) received: u64,
    pub(crate) data: Bytes,
}

impl Frame {
    pub(crate) fn encode(&self) -> Bytes {
        let name = self.sender.as_str().as_bytes();
        let mut out = BytesMut::with_capacity(FIXED_BYTES + name.len() + self.data.len());
        out.extend_from_slice(&[VERSION, self.flags]);
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for number in [self.from_end, self.to_end, self.number, self.received] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(name);
        out.extend_from_slice(&self.data);
        let checksum = checksum(&out);
        out[4..8].copy_from_slice(&checksum.to_le_bytes());
        out.freeze()
    }

    pub(crate) fn decode(bytes: &Bytes) -> Result<Self, FrameError> {
        if bytes.len() < FIXED_BYTES {
            return Err(FrameError::Short);
        }
        if bytes[0] != VERSION {
            return Err(FrameError::Version(bytes[0]));
        }
        let number_at = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let expected = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if checksum(bytes) != expected {
            return Err(FrameError::Checksum);
        }
        let name_end = FIXED_BYTES + usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let name = bytes.get(FIXED_BYTES..name_end).ok_or(FrameError::Short)?;
        let name = std::str::from_utf8(name).map_err(|_| FrameError::Sender)?;
        Ok(Self {
            sender: NodeName::new(name).map_err(|_| FrameError::Sender)?,
            flags: bytes[1],
            from_end: number_at(8),
            to_end: number_at(16),
            number: number_at(24),
            received: number_at(32),
            data: bytes.slice(name_end..),
        })
    }
}

/// Of an encoded frame without its bytes 4 to 7.
fn checksum(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[..4]), &frame[8..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        Frame {
            sender: NodeName::new("node-1").expect("valid"),
            flags: DATA | LAST,
            from_end: 1,
            to_end: u64::MAX,
            number: 3,
            received: 4,
            data: Bytes::from_static(b"content"),
        }
    }

    #[test]
    fn a_frame_is_decoded_as_it_was_encoded() {
        assert_eq!(Frame::decode(&frame().encode()), Ok(frame()));
    }

    #[test]
    fn every_damaged_byte_and_every_shortened_frame_is_detected() {
        let encoded = frame().encode();
        for at in 0..encoded.len() {
            let mut damaged = encoded.to_vec();
            damaged[at] ^= 0x10;
            assert!(Frame::decode(&damaged.into()).is_err(), "byte {at}");
            assert!(Frame::decode(&encoded.slice(..at)).is_err(), "{at} bytes");
        }
    }
}
