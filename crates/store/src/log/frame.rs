//! Encoding of frames and segment heads.
//!
//! A segment is a head and then frames up to a frame head of zeros, or the end of the file. All numbers are little-endian.
//!
//! | head of a segment | | head of a frame | |
//! |---|---|---|---|
//! | 0 | `TIDELOG` and a zero | 0 | `TGFR` |
//! | 8 | layout version (4) | 4 | length of the records (4) |
//! | 12 | CRC32C of 8..12 and 16..64 (4) | 8 | CRC32C of length, 12..32 and the records (4) |
//! | 16 | salt (8) | 12 | shard (2) |
//! | 24 | number of the segment (4), zero (4) | 14 | flags (2) |
//! | 32 | lsn of the first frame (8) | 16 | lsn (8) |
//! | 40 | lsn of the frame before it (8) | 24 | lsn known to be on disk (8) |
//! | 48 | lsn known to be on disk (8) | 32 | records |
//! | 56 | time it was made, ms (8) | | |
//!
//! Frames are numbered consecutively (lsn). The salt of a segment is part of the CRC of its frames. Remains of an
//! earlier file on the disk, or a payload that looks like a frame, are thus not mistaken for one.

use std::io;

use super::file_system::LogFile;
use crate::batch::FRAME_HEAD;

pub(crate) const LAYOUT_VERSION: u32 = 1;
pub(crate) const SEGMENT_HEAD: usize = 64;
const SEGMENT_MAGIC: &[u8; 8] = b"TIDELOG\0";
const FRAME_MAGIC: [u8; 4] = *b"TGFR";
const READ_BYTES: usize = 1 << 20;

/// Contains entries copied so that an older segment can be removed.
pub(crate) const FLAG_COPY: u16 = 1;
/// Contains records for the keyed state.
pub(crate) const FLAG_KEYED: u16 = 2;
/// Numbers before this frame's are missing, because their frames could not be repaired.
pub(crate) const FLAG_GAP: u16 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) salt: u64,
    pub(crate) id: u32,
    pub(crate) first_lsn: u64,
    /// The number of the preceding frame: one less, unless numbers were left out.
    pub(crate) follows_lsn: u64,
    pub(crate) synced_lsn: u64,
    pub(crate) created_ms: u64,
}

/// A segment without a valid head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentHeadError {
    Torn(&'static str),
    /// Written by a program with another layout.
    Version(u32),
}

impl SegmentHead {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEAD] {
        let mut bytes = [0; SEGMENT_HEAD];
        bytes[..8].copy_from_slice(SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.id.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first_lsn.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.follows_lsn.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.synced_lsn.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.created_ms.to_le_bytes());
        let crc = head_checksum(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `Ok(None)`: nothing was ever written here.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, SegmentHeadError> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if bytes.len() < SEGMENT_HEAD {
            return Err(SegmentHeadError::Torn(
                "the file ends within the segment head",
            ));
        }
        if bytes[..8] != *SEGMENT_MAGIC {
            return Err(SegmentHeadError::Torn(
                "the file does not begin with a segment head",
            ));
        }
        let version = u32_at(bytes, 8);
        if u32_at(bytes, 12) != head_checksum(bytes) {
            return Err(SegmentHeadError::Torn(
                "the checksum of the segment head is wrong",
            ));
        }
        if version != LAYOUT_VERSION {
            return Err(SegmentHeadError::Version(version));
        }
        Ok(Some(Self {
            salt: u64_at(bytes, 16),
            id: u32_at(bytes, 24),
            first_lsn: u64_at(bytes, 32),
            follows_lsn: u64_at(bytes, 40),
            synced_lsn: u64_at(bytes, 48),
            created_ms: u64_at(bytes, 56),
        }))
    }

    /// Initial value for the checksums of this segment's frames.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.encode()[16..28])
    }
}

/// Writes the head of a frame whose records are in place.
pub(crate) fn seal(frame: &mut [u8], seed: u32, lsn: u64, synced_lsn: u64, shard: u16, flags: u16) {
    let len = (frame.len() - FRAME_HEAD) as u32;
    frame[..4].copy_from_slice(&FRAME_MAGIC);
    frame[4..8].copy_from_slice(&len.to_le_bytes());
    frame[12..14].copy_from_slice(&shard.to_le_bytes());
    frame[14..16].copy_from_slice(&flags.to_le_bytes());
    frame[16..24].copy_from_slice(&lsn.to_le_bytes());
    frame[24..32].copy_from_slice(&synced_lsn.to_le_bytes());
    let crc = checksum(frame, seed);
    frame[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// Computes the seed with which the checksum of a frame is valid, independent of the segment head; `None` if there is none.
///
/// A checksum is a linear function of its initial value, so the equation for its 32 bits can be solved. A corrupted frame also
/// has a solution; only a second frame confirms the seed.
pub(super) fn solve_seed(frame: &[u8]) -> Option<u32> {
    let without = checksum(frame, 0);
    let mut wanted = u32_at(frame, 8) ^ without;
    // The effect of each seed bit, and the bits it represents; reduced to one leading bit each.
    let mut rows: [Option<(u32, u32)>; 32] = [None; 32];
    for bit in 0..32 {
        let (mut change, mut bits) = (checksum(frame, 1 << bit) ^ without, 1 << bit);
        while change != 0 {
            let place = &mut rows[change.ilog2() as usize];
            match place {
                Some((other, others)) => (change, bits) = (change ^ *other, bits ^ *others),
                None => {
                    *place = Some((change, bits));
                    break;
                }
            }
        }
    }
    let mut seed = 0;
    while wanted != 0 {
        let (change, bits) = rows[wanted.ilog2() as usize]?;
        wanted ^= change;
        seed ^= bits;
    }
    Some(seed)
}

/// Includes the version: a changed version is damage, which can be repaired, not the layout of another program.
fn head_checksum(head: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[8..12]), &head[16..SEGMENT_HEAD])
}

fn checksum(frame: &[u8], seed: u32) -> u32 {
    let crc = crc32c::crc32c_append(seed, &frame[4..8]);
    crc32c::crc32c_append(crc, &frame[12..])
}

/// A complete frame with a valid checksum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// Offset of the frame in its segment.
    pub(crate) offset: u64,
    pub(crate) lsn: u64,
    pub(crate) synced_lsn: u64,
    pub(crate) shard: u16,
    pub(crate) flags: u16,
    pub(crate) records: &'a [u8],
    /// Head and records.
    pub(crate) whole: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses the frame at the start of `bytes`, which may continue behind it.
    pub(crate) fn parse(bytes: &'a [u8], offset: u64, seed: u32) -> Result<Self, &'static str> {
        if bytes.len() < FRAME_HEAD || bytes[..4] != FRAME_MAGIC {
            return Err("no frame begins here");
        }
        let end = FRAME_HEAD + u32_at(bytes, 4) as usize;
        let Some(frame) = bytes.get(..end) else {
            return Err("the frame is incomplete");
        };
        if u32_at(frame, 8) != checksum(frame, seed) {
            return Err("the checksum of the frame is wrong");
        }
        Ok(Self {
            offset,
            lsn: u64_at(frame, 16),
            synced_lsn: u64_at(frame, 24),
            shard: u16::from_le_bytes([frame[12], frame[13]]),
            flags: u16::from_le_bytes([frame[14], frame[15]]),
            records: &frame[FRAME_HEAD..],
            whole: frame,
        })
    }

    /// Offset of its first record in the segment.
    pub(crate) fn records_at(&self) -> u32 {
        (self.offset + FRAME_HEAD as u64) as u32
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + (FRAME_HEAD + self.records.len()) as u64
    }
}

/// The content at an offset of a segment.
#[derive(Debug)]
pub(crate) enum NextFrame<'a> {
    Frame(Frame<'a>),
    /// Zeros, or the end of the file.
    End,
    /// Neither a frame nor an end.
    Damaged(&'static str),
}

/// Reads frames sequentially.
pub(crate) struct FrameReader<'f> {
    file: &'f dyn LogFile,
    seed: u32,
    /// Offset of the next frame.
    pub(crate) offset: u64,
    /// Reading stops at this offset.
    end: u64,
    /// Size of one read, unless a frame is larger.
    read_bytes: usize,
    buffer: Vec<u8>,
    /// Offset of the buffer in the file.
    buffer_at: u64,
}

impl<'f> FrameReader<'f> {
    pub(crate) fn new(file: &'f dyn LogFile, seed: u32, offset: u64, end: u64) -> Self {
        Self {
            file,
            seed,
            offset,
            end,
            read_bytes: READ_BYTES,
            buffer: Vec::new(),
            buffer_at: offset,
        }
    }

    /// Reads this many bytes at once, for a reader that may need only the first frames.
    pub(crate) fn with_read_bytes(mut self, read_bytes: usize) -> Self {
        self.read_bytes = read_bytes;
        self
    }

    pub(crate) fn next(&mut self) -> io::Result<NextFrame<'_>> {
        let head = self.read_ahead(FRAME_HEAD)?;
        if head.iter().all(|&byte| byte == 0) {
            return Ok(NextFrame::End);
        }
        if head.len() < FRAME_HEAD || head[..4] != FRAME_MAGIC {
            return Ok(NextFrame::Damaged("no frame begins here"));
        }
        let len = FRAME_HEAD + u32_at(head, 4) as usize;
        if self.offset + len as u64 > self.end {
            return Ok(NextFrame::Damaged("the frame is incomplete"));
        }
        let (offset, seed) = (self.offset, self.seed);
        self.read_ahead(len)?;
        let start = (offset - self.buffer_at) as usize;
        match Frame::parse(&self.buffer[start..], offset, seed) {
            Ok(frame) => {
                self.offset = frame.end();
                Ok(NextFrame::Frame(frame))
            }
            Err(detail) => Ok(NextFrame::Damaged(detail)),
        }
    }

    /// Returns up to `len` bytes from the offset on; fewer only at the end.
    fn read_ahead(&mut self, len: usize) -> io::Result<&[u8]> {
        let start = (self.offset - self.buffer_at) as usize;
        let len = len.min(self.end.saturating_sub(self.offset) as usize);
        if self.buffer.len() < start + len {
            let rest = self.buffer.len().saturating_sub(start);
            self.buffer.drain(..self.buffer.len() - rest);
            self.buffer_at = self.offset;
            let wanted = len.max(self.read_bytes);
            let wanted = wanted.min((self.end - self.offset) as usize);
            self.buffer.resize(wanted, 0);
            let at = self.offset + rest as u64;
            let read = self.file.read_at(&mut self.buffer[rest..], at)?;
            self.buffer.truncate(rest + read);
        }
        let start = (self.offset - self.buffer_at) as usize;
        let end = self.buffer.len().min(start + len);
        Ok(&self.buffer[start..end])
    }
}

/// Searches for complete frames anywhere from `offset` on.
pub(crate) fn find_later_frames(
    file: &dyn LogFile,
    seed: u32,
    offset: u64,
    found: &mut dyn FnMut(Frame<'_>),
) -> io::Result<()> {
    let len = file.len()?;
    let mut at = offset;
    while let Some(start) = find_magic(file, at)? {
        // From a complete frame on, the others follow.
        let mut reader = FrameReader::new(file, seed, start, len);
        at = start + 1;
        while let NextFrame::Frame(frame) = reader.next()? {
            at = frame.end();
            found(frame);
        }
    }
    Ok(())
}

/// The first offset from `at` on where a frame may begin.
pub(super) fn find_magic(file: &dyn LogFile, mut at: u64) -> io::Result<Option<u64>> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        let read = file.read_at(&mut chunk, at)?;
        if read < FRAME_HEAD {
            return Ok(None);
        }
        let start = chunk[..read]
            .windows(FRAME_MAGIC.len())
            .position(|window| window == FRAME_MAGIC);
        match start {
            Some(start) => return Ok(Some(at + start as u64)),
            // A magic may begin within the last three bytes.
            None => at += (read - (FRAME_MAGIC.len() - 1)) as u64,
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..].first_chunk::<4>();
    u32::from_le_bytes(*field.expect("the caller has checked the length of the head"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..].first_chunk::<8>();
    u64::from_le_bytes(*field.expect("the caller has checked the length of the head"))
}
