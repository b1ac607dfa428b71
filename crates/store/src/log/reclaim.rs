//! Reclaiming of segments: oldest first; live entries are copied to the end of the log.
//!
//! It is always the oldest segment, because every record refers to earlier entries. When all segments before a `done`
//! are gone, it has no effect and needs no copy. A segment is removed when its frames and the copies are on disk and
//! the library has the segment's keyed state on disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::frame::{Frame, SEGMENT_HEAD};
use super::maintenance::SegmentRemoval;
use super::read_job::{ReadJob, SegmentChunk};
use super::record::{LogRecord, LogRecords};
use super::shared::increment;
use super::writer::LogWriter;
use crate::batch::StoreBatch;
use crate::health::HealthFlag;

/// Garbage of fewer segments than this is not worth copying.
const MIN_GARBAGE_SEGMENTS: u64 = 4;

/// Reclaims segments step by step, between the rounds of the writer.
#[derive(Default)]
pub(super) struct Reclaimer {
    /// The segment being copied, and the offset reached.
    copying: Option<(u32, u64)>,
    /// Whether a part of it is being read.
    is_reading: bool,
    /// Segments below this number are rewritten, however much of them is live.
    compact_below: u32,
    /// Whether the oldest segment cannot be read to its end, so that none can be removed.
    is_stuck: bool,
}

impl Reclaimer {
    /// One step; `true` if it copied or removed something and another step makes sense.
    pub(super) fn step(&mut self, writer: &mut LogWriter) -> bool {
        self.begin_compaction(writer);
        if let Some(chunk) = writer.shared.take_chunk() {
            self.is_reading = false;
            if writer.has_backlog() {
                // A `done` that the copies must not overtake may still wait to be written. The part is read again later.
                return false;
            }
            self.copy_chunk(writer, &chunk);
            return true;
        }
        if self.is_reading || self.is_stuck || writer.has_backlog() {
            return false;
        }
        let may_go = self.advance_oldest_segment(writer);
        self.end_compaction(writer);
        may_go
    }

    /// Removes the oldest segment, or requests its next part for copying.
    fn advance_oldest_segment(&mut self, writer: &mut LogWriter) -> bool {
        let head_id = writer.segments.writing_segment_id();
        let Some(oldest) = writer.segments.all.front() else {
            return false;
        };
        let id = oldest.id;
        if id == head_id {
            return false;
        }
        let is_wanted = writer.index.live_in(id).count == 0 || self.is_copying_worth_it(writer, id);
        if !is_wanted {
            return false;
        }
        if oldest.last_lsn > writer.maintenance.synced_lsn() {
            writer.maintenance.request_sync();
            return false;
        }
        if oldest.keyed_lsn > writer.applier.on_disk_lsn() {
            writer.applier.request_sync();
            return false;
        }
        if writer.index.live_in(id).count == 0 {
            self.copying = None;
            writer.segments.all.pop_front();
            writer.index.forget_segment(id);
            writer.shared.written_log.record_removal(id);
            let next = writer.segments.all.front().map(|segment| segment.id);
            let new_oldest = writer
                .segments
                .unsynced_oldest_head(writer.maintenance.synced_lsn());
            writer.maintenance.queue_removal(SegmentRemoval {
                lsn: writer.written_lsn,
                segment: id,
                new_oldest,
                next,
            });
            return true;
        }
        let offset = match self.copying {
            Some((copying, offset)) if copying == id => offset,
            _ => SEGMENT_HEAD as u64,
        };
        self.copying = Some((id, offset));
        if offset >= oldest.used {
            self.is_stuck = true;
            let live = writer.index.live_in(id).count;
            tracing::error!(
                segment = id,
                live,
                "message log segment still has live entries after copying; keeping it"
            );
            return false;
        }
        let job = ReadJob::Chunk {
            segment: id,
            file: Arc::clone(&oldest.file),
            seed: oldest.seed,
            offset,
            end: oldest.used,
        };
        self.is_reading = writer.jobs.send(job).is_ok();
        false
    }

    fn is_copying_worth_it(&self, writer: &LogWriter, oldest: u32) -> bool {
        if oldest < self.compact_below || self.copying.is_some() {
            return true;
        }
        let total: u64 = writer.segments.all.iter().map(|segment| segment.used).sum();
        let garbage = total.saturating_sub(writer.index.live().bytes);
        let segment_bytes = writer.segments.directory.segment_bytes;
        let is_full = writer.shared.has_flag(HealthFlag::LogFull)
            || writer.shared.has_flag(HealthFlag::DiskFull);
        let min_segments = if is_full { 2 } else { MIN_GARBAGE_SEGMENTS };
        garbage > min_segments * segment_bytes && (is_full || garbage * 5 > total * 2)
    }

    fn copy_chunk(&mut self, writer: &mut LogWriter, chunk: &SegmentChunk) {
        let Some((segment, offset)) = self.copying else {
            return;
        };
        if segment != chunk.segment || offset != chunk.offset {
            return;
        }
        if let Some(error) = &chunk.error {
            self.is_stuck = true;
            let place = chunk.offset + chunk.bytes.len() as u64;
            tracing::error!(
                segment,
                offset = place,
                error,
                "oldest message log segment cannot be read; no segment can be reclaimed"
            );
        }
        let mut copies = writer.shared.recycled_batch();
        let mut at = 0;
        while at < chunk.bytes.len() {
            let offset = chunk.offset + at as u64;
            let Ok(frame) = Frame::parse(&chunk.bytes[at..], offset, chunk.seed) else {
                break;
            };
            copy_live(writer, &frame, segment, &mut copies);
            at += frame.whole.len();
        }
        let end = chunk.offset + chunk.bytes.len() as u64;
        let is_end = chunk.bytes.is_empty();
        let end = if is_end { u64::MAX } else { end };
        self.copying = Some((segment, end));
        if !copies.is_empty() {
            increment(&writer.shared.counters.copied_bytes, copies.size() as u64);
            writer.shared.add_pending_bytes(copies.bytes.len());
            writer.write_own(copies);
        }
    }

    fn begin_compaction(&mut self, writer: &mut LogWriter) {
        if writer
            .shared
            .is_compaction_requested
            .swap(false, Ordering::AcqRel)
        {
            writer.segments.seal();
            self.compact_below = writer.segments.writing_segment_id();
            self.is_stuck = false;
            writer.shared.is_compacting.store(true, Ordering::Release);
        }
    }

    fn end_compaction(&self, writer: &LogWriter) {
        if !writer.shared.is_compacting.load(Ordering::Acquire) {
            return;
        }
        let oldest = writer.segments.all.front().map(|oldest| oldest.id);
        let is_done = oldest.is_none_or(|oldest| oldest >= self.compact_below);
        if (is_done && !writer.maintenance.is_removing()) || self.is_stuck {
            writer.shared.is_compacting.store(false, Ordering::Release);
        }
    }
}

/// Copies the live records of a frame in their present state.
fn copy_live(writer: &LogWriter, frame: &Frame<'_>, segment: u32, copies: &mut StoreBatch) {
    let base = frame.records_at();
    let mut body = None;
    for record in LogRecords::new(frame.records).flatten() {
        match record {
            LogRecord::Message { body: found, .. } => body = Some(found),
            LogRecord::Entry {
                session,
                seq,
                attributes_at,
                attributes,
                ..
            } => {
                let at = base + attributes_at;
                let Some(entry) = writer.index.entry_at(session, seq, segment, at) else {
                    continue;
                };
                if entry.is_released() {
                    copies.add_released_entry(session, seq, entry.packet_id, attributes);
                    continue;
                }
                // Once for all entries of the message.
                if let Some(body) = body.take() {
                    copies.begin_message(&[body]);
                }
                copies.add_entry(session, seq, entry.packet_id, attributes);
            }
            LogRecord::Received { session, packet_id }
                if writer.index.is_received_in(session, packet_id, segment) =>
            {
                copies.add_received_id(session, packet_id);
            }
            _ => {}
        }
    }
}
