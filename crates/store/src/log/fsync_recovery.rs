//! Recovery from a failed fsync. Data acknowledged since the last successful fsync may not be on disk, and the system does not
//! retry. It is usually still in the page cache; it is read from there and written to a new segment.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::frame::{FLAG_GAP, Frame, FrameReader, NextFrame, SEGMENT_HEAD, seal};
use super::maintenance::LogPosition;
use super::writer::{LogWriter, NO_SHARD};
use crate::batch::FRAME_HEAD;

impl LogWriter {
    /// Rewrites all frames that are not known to be on disk. If that fails, the last synced position stays unchanged.
    pub(super) fn rewrite_unsynced(&mut self) -> io::Result<()> {
        let Some(from) = self.maintenance.failed_sync_position() else {
            return Ok(());
        };
        let mut frames = self.unsynced_frames(from);
        let end_lsn = self.written_lsn;
        self.segments.seal();
        for segment in &mut self.segments.all {
            // Its head may be among the lost data, and another fsync would not write it.
            if segment.id >= from.segment {
                segment.forget_head_lsn();
            }
        }
        let mut files = Vec::new();
        let mut start = None;
        for lsn in from.lsn + 1..=end_lsn {
            let mut frame = match frames.remove(&lsn) {
                Some(frame) => frame,
                None => {
                    tracing::error!(lsn, "acknowledged batch could not be read back; it is lost");
                    FrameCopy::gap()
                }
            };
            let len = frame.bytes.len() as u64;
            let has_room =
                |segment: &&mut super::segments::Segment| segment.used + len <= segment.capacity;
            if self.segments.open_segment().filter(has_room).is_none() {
                let follows_lsn = self.preceding_lsn(lsn - 1);
                self.segments
                    .begin_segment(len, follows_lsn, lsn, from.lsn)?;
            }
            let segment = self
                .segments
                .open_segment()
                .expect("room was just made in it");
            let offset = segment.used;
            seal(
                &mut frame.bytes,
                segment.seed,
                lsn,
                from.lsn,
                frame.shard,
                frame.flags,
            );
            segment.file.write_at(&frame.bytes, offset)?;
            segment.used += len;
            segment.last_lsn = lsn;
            if frame.flags & super::frame::FLAG_KEYED != 0 {
                segment.keyed_lsn = lsn;
            }
            let (id, file) = (segment.id, Arc::clone(&segment.file));
            start.get_or_insert(LogPosition {
                lsn: from.lsn,
                segment: id,
                offset: SEGMENT_HEAD as u64,
            });
            if !files.last().is_some_and(|last| Arc::ptr_eq(last, &file)) {
                files.push(file);
            }
            let base = (offset + FRAME_HEAD as u64) as u32;
            if self
                .index
                .apply(&frame.bytes[FRAME_HEAD..], id, base)
                .is_err()
            {
                tracing::error!(
                    lsn,
                    "batch contains an invalid record; ignoring the rest of the batch"
                );
            }
        }
        let end = match self.segments.all.back() {
            Some(segment) => LogPosition {
                lsn: end_lsn,
                segment: segment.id,
                offset: segment.used,
            },
            None => from,
        };
        self.maintenance
            .record_rewrite(start.unwrap_or(from), end, files);
        self.shared.written_log.publish(&self.segments.all, end_lsn);
        Ok(())
    }

    /// The frames behind a position by their numbers, as far as they are readable. An earlier recovery that failed may have
    /// written some of them twice.
    fn unsynced_frames(&self, from: LogPosition) -> BTreeMap<u64, FrameCopy> {
        let mut copied = BTreeMap::new();
        for segment in &self.segments.all {
            if segment.id < from.segment {
                continue;
            }
            // Before the first fsync the position is the beginning of a segment, where its head is.
            let start = if segment.id == from.segment {
                from.offset.max(SEGMENT_HEAD as u64)
            } else {
                SEGMENT_HEAD as u64
            };
            let mut reader = FrameReader::new(&*segment.file, segment.seed, start, segment.used);
            while let Ok(NextFrame::Frame(frame)) = reader.next() {
                copied.insert(frame.lsn, FrameCopy::from_frame(&frame));
            }
        }
        copied
    }
}

/// A frame in memory.
struct FrameCopy {
    shard: u16,
    flags: u16,
    bytes: Vec<u8>,
}

impl FrameCopy {
    fn from_frame(frame: &Frame<'_>) -> Self {
        Self {
            shard: frame.shard,
            flags: frame.flags,
            bytes: frame.whole.to_vec(),
        }
    }

    fn gap() -> Self {
        Self {
            shard: NO_SHARD,
            flags: FLAG_GAP,
            bytes: vec![0; FRAME_HEAD],
        }
    }
}
