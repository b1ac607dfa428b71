//! Reads the log in order while the store runs, to copy it to another node.
//!
//! Frames are read from the files of the segments, as far as the writer has published them (`written_log.rs`). After a failed
//! write or sync, the writer repeats frames in a later segment with the same numbers. The reader skips numbers that it has
//! returned, and continues in a repetition where a segment is unreadable.

use std::path::PathBuf;
use std::sync::Arc;

use super::frame::{FLAG_GAP, FrameReader, NextFrame, SEGMENT_HEAD};
use super::segments::segment_path;
use super::shared::StoreShared;
use super::written_log::{NextRead, WrittenSegment};
use crate::error::{StoreError, io_error};
use crate::health::HealthFlag;

/// Bytes of the numbers in front of the records of each frame.
const CHUNK_FRAME_HEAD: usize = 12;
/// Size of one read from a file.
const MIN_READ_BYTES: usize = 64 << 10;
const MAX_READ_BYTES: usize = 1 << 20;

/// What [`LogTail::read`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailChunk {
    /// Everything up to this log sequence number has been returned.
    pub last_lsn: u64,
    /// Number of frames. It is 0 if only numbers without content were passed: the numbers of lost frames, or numbers that were
    /// left out when the store was opened.
    pub frames: u32,
}

/// Reads the frames of a log in order while the store runs; made by [`Store::tail_log`](crate::Store::tail_log).
///
/// While it exists, the store keeps the files of removed segments that it has not read, up to an eighth of
/// [`max_log_bytes`](crate::StoreConfig::max_log_bytes), and none while the disk is full. Drop it when it is not read any more.
pub struct LogTail {
    shared: Arc<StoreShared>,
    dir: PathBuf,
    /// Its number as a reader.
    number: u64,
    /// The last frame that was returned or skipped.
    lsn: u64,
    segment: Option<WrittenSegment>,
    /// Where the next frame begins in the segment.
    offset: u64,
}

/// Frames appended so far, and the length that the output may reach.
struct ChunkOutput<'a> {
    out: &'a mut Vec<u8>,
    max_len: usize,
    frames: u32,
}

impl ChunkOutput<'_> {
    /// Appends a frame; `false` if it has no room.
    fn append(&mut self, lsn: u64, records: &[u8]) -> bool {
        let len = CHUNK_FRAME_HEAD + records.len();
        if self.frames > 0 && len > self.max_len.saturating_sub(self.out.len()) {
            return false;
        }
        self.out.reserve(len);
        self.out.extend_from_slice(&lsn.to_le_bytes());
        self.out
            .extend_from_slice(&(records.len() as u32).to_le_bytes());
        self.out.extend_from_slice(records);
        self.frames += 1;
        true
    }
}

impl LogTail {
    pub(crate) fn new(
        shared: Arc<StoreShared>,
        dir: PathBuf,
        after_lsn: Option<u64>,
    ) -> Result<Self, StoreError> {
        let Some((number, lsn)) = shared.written_log.add_reader(after_lsn) else {
            let lsn = after_lsn.unwrap_or(0);
            return Err(StoreError::LogPositionGone { lsn });
        };
        Ok(Self {
            shared,
            dir,
            number,
            lsn,
            segment: None,
            offset: 0,
        })
    }

    /// Log sequence number up to which everything has been returned.
    pub fn position(&self) -> u64 {
        self.lsn
    }

    /// Appends the next frames to `out`: at least one, and no more than fit into `max_bytes`. A frame is its log sequence number
    /// (u64), the length of its records (u32), both little-endian, and the records; see
    /// [`StoreBatch::from_records`](crate::StoreBatch::from_records). `None`: there is nothing new.
    ///
    /// Reads files, so it may block for the time of a disk read.
    ///
    /// # Errors
    ///
    /// [`StoreError::LogPositionGone`] if the next frame is no longer in the log. The copy is then incomplete for good and has to
    /// begin again, empty, with a new reader from the oldest segment on. After another error (an unreadable file or a wrong
    /// checksum) the position is unchanged, and a later call tries again. Nothing was appended to `out` in both cases.
    pub fn read(
        &mut self,
        max_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<TailChunk>, StoreError> {
        let before = self.lsn;
        let mut output = ChunkOutput {
            max_len: out.len().saturating_add(max_bytes),
            out,
            frames: 0,
        };
        let result = self.read_frames(&mut output);
        if self.lsn == before {
            return result.map(|()| None);
        }
        // An error comes again with the next call.
        Ok(Some(TailChunk {
            last_lsn: self.lsn,
            frames: output.frames,
        }))
    }

    fn read_frames(&mut self, output: &mut ChunkOutput<'_>) -> Result<(), StoreError> {
        let log = Arc::clone(&self.shared);
        let log = &log.written_log;
        loop {
            let place = self.segment.as_ref().map(|at| (at.id, self.offset));
            let segment = match log.next_read(self.number, place, self.lsn) {
                NextRead::Segment(segment) => segment,
                NextRead::NothingNew(lsn) => {
                    self.lsn = lsn;
                    return Ok(());
                }
                NextRead::Gone => return Err(StoreError::LogPositionGone { lsn: self.lsn }),
            };
            if place.is_none_or(|(id, _)| id != segment.id) {
                self.offset = SEGMENT_HEAD as u64;
            }
            match self.read_segment(&segment, output) {
                Ok(true) => self.segment = Some(segment),
                Ok(false) => {
                    self.segment = Some(segment);
                    return Ok(());
                }
                Err(error) => match log.repetition(segment.id, self.lsn) {
                    Some(repetition) => {
                        self.segment = Some(repetition);
                        self.offset = SEGMENT_HEAD as u64;
                    }
                    None => {
                        self.segment = Some(segment);
                        // After a failed sync the data may be lost; the writer repeats it in a moment.
                        let is_repeated_soon = self.shared.has_flag(HealthFlag::Sync);
                        return if is_repeated_soon { Ok(()) } else { Err(error) };
                    }
                },
            }
        }
    }

    /// Reads a segment on from the offset; `false` if the output is full before its end.
    fn read_segment(
        &mut self,
        segment: &WrittenSegment,
        output: &mut ChunkOutput<'_>,
    ) -> Result<bool, StoreError> {
        let path = segment_path(&self.dir, segment.id);
        let end = segment.used;
        let room = output.max_len.saturating_sub(output.out.len());
        let mut reader = FrameReader::new(&*segment.file, segment.seed, self.offset, end)
            .with_read_bytes(room.clamp(MIN_READ_BYTES, MAX_READ_BYTES));
        while self.offset < end {
            let damaged = |detail: &str, offset: u64| StoreError::Damaged {
                what: format!("{} at byte {offset}", path.display()),
                detail: detail.to_owned(),
            };
            let frame = match reader.next().map_err(io_error("read", &path))? {
                NextFrame::Frame(frame) => frame,
                NextFrame::End => return Err(damaged("a frame is missing", self.offset)),
                NextFrame::Damaged(detail) => return Err(damaged(detail, self.offset)),
            };
            if frame.lsn > self.lsn {
                let is_gap = frame.flags & FLAG_GAP != 0;
                // The head of the segment names the frame before its first one.
                let is_first = frame.offset == SEGMENT_HEAD as u64;
                if frame.lsn != self.lsn + 1 && !is_gap && !is_first {
                    let detail = "the number of the frame is out of order";
                    return Err(damaged(detail, self.offset));
                }
                if !is_gap && !output.append(frame.lsn, frame.records) {
                    return Ok(false);
                }
                self.lsn = frame.lsn;
            }
            self.offset = frame.end();
        }
        Ok(true)
    }
}

impl Drop for LogTail {
    fn drop(&mut self) {
        self.shared.written_log.remove_reader(self.number);
    }
}
