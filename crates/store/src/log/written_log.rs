//! What of the log is written, published by the writer for readers of the log ([`LogTail`](super::tail::LogTail)).
//!
//! The writer takes one lock per group. Readers hold it only to look up a segment, never while they read a file.
//!
//! A removed segment stays in the list, with its open file, while a reader has not read it. The disk space it takes is
//! limited. A reader that falls further behind is told that its position is gone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::file_system::LogFile;
use super::locking::lock;
use super::segments::Segment;

/// Called by the writer after each group.
pub(crate) type LogWatcher = dyn Fn() + Send + Sync;

/// The written part of a segment.
#[derive(Clone)]
pub(crate) struct WrittenSegment {
    pub(crate) id: u32,
    pub(crate) seed: u32,
    pub(crate) file: Arc<dyn LogFile>,
    /// Bytes in use by the head and frames.
    pub(crate) used: u64,
    /// The frame before the first one.
    follows_lsn: u64,
    last_lsn: u64,
    /// The segment is no longer part of the log; its file is or will be unlinked.
    is_removed: bool,
}

impl WrittenSegment {
    fn new(segment: &Segment) -> Self {
        Self {
            id: segment.id,
            seed: segment.seed,
            file: Arc::clone(&segment.file),
            used: segment.used,
            follows_lsn: segment.head.follows_lsn,
            last_lsn: segment.last_lsn,
            is_removed: false,
        }
    }
}

/// How a reader continues.
pub(crate) enum NextRead {
    /// It reads this segment, up to the bytes in use.
    Segment(WrittenSegment),
    /// It has read everything up to this frame, the last one written.
    NothingNew(u64),
    /// The next frame is no longer in the log.
    Gone,
}

/// The position of a registered reader.
struct ReaderPosition {
    number: u64,
    /// The last frame it has read.
    lsn: u64,
}

#[derive(Default)]
struct WrittenLogState {
    written_lsn: u64,
    /// Oldest first; removed ones are in front.
    segments: VecDeque<WrittenSegment>,
    readers: Vec<ReaderPosition>,
    last_reader: u64,
    /// Limit on the bytes of removed segments.
    max_removed_bytes: u64,
    /// The last frame in the log when the store was opened, and the last number in use, which is higher if the keyed state knew
    /// later frames. There are no frames between the two.
    recovered_lsn: u64,
    opened_lsn: u64,
}

impl WrittenLogState {
    /// The first segment after `segment` that contains the frame after `lsn`. Repeated frames may be in several.
    fn segment_with_next(&self, segment: Option<u32>, lsn: u64) -> Option<&WrittenSegment> {
        let mut later = self.segments.iter().filter(|at| Some(at.id) > segment);
        later.find(|at| at.follows_lsn <= lsn && at.last_lsn > lsn)
    }

    fn next_read(&self, place: Option<(u32, u64)>, lsn: u64) -> NextRead {
        if let Some((id, offset)) = place
            && let Some(current) = self.segments.iter().find(|at| at.id == id)
            && current.used > offset
        {
            return NextRead::Segment(current.clone());
        }
        if let Some(next) = self.segment_with_next(place.map(|(id, _)| id), lsn) {
            return NextRead::Segment(next.clone());
        }
        let lsn = if (self.recovered_lsn..self.opened_lsn).contains(&lsn) {
            self.opened_lsn
        } else {
            lsn
        };
        if lsn == self.written_lsn {
            NextRead::NothingNew(lsn)
        } else {
            NextRead::Gone
        }
    }

    /// Takes removed segments that no reader needs out of the list, and the oldest ones while they take more than `max_bytes`.
    /// The caller drops them without the lock: closing a file that was unlinked frees its space, which takes time.
    fn take_unneeded(&mut self, max_bytes: u64) -> Vec<WrittenSegment> {
        let slowest = self.readers.iter().map(|reader| reader.lsn).min();
        let removed = self.segments.iter().filter(|at| at.is_removed);
        let mut bytes: u64 = removed.map(|at| at.used).sum();
        let mut unneeded = Vec::new();
        while let Some(oldest) = self.segments.front()
            && oldest.is_removed
            && (bytes > max_bytes || slowest.is_none_or(|lsn| lsn >= oldest.last_lsn))
        {
            bytes -= oldest.used;
            unneeded.extend(self.segments.pop_front());
        }
        unneeded
    }
}

#[derive(Default)]
pub(crate) struct WrittenLog {
    state: Mutex<WrittenLogState>,
    /// As in the state. It changes only under the lock.
    written_lsn: AtomicU64,
    has_watcher: AtomicBool,
    watcher: Mutex<Option<Arc<LogWatcher>>>,
}

impl WrittenLog {
    /// Publishes the content of a log that was just opened.
    pub(crate) fn publish_recovered(
        &self,
        segments: &VecDeque<Segment>,
        recovered_lsn: u64,
        opened_lsn: u64,
        max_removed_bytes: u64,
    ) {
        let mut state = lock(&self.state);
        state.segments = segments.iter().map(WrittenSegment::new).collect();
        state.max_removed_bytes = max_removed_bytes;
        (state.recovered_lsn, state.opened_lsn) = (recovered_lsn, opened_lsn);
        state.written_lsn = opened_lsn;
        self.written_lsn.store(opened_lsn, Ordering::Release);
    }

    /// Publishes what was written to the youngest of these segments, up to the frame `written_lsn`.
    pub(super) fn publish(&self, all: &VecDeque<Segment>, written_lsn: u64) {
        let mut state = lock(&self.state);
        let last_id = state.segments.back().map(|last| last.id);
        let unchanged = all.partition_point(|segment| Some(segment.id) < last_id);
        for segment in all.range(unchanged..) {
            match state.segments.back_mut() {
                Some(last) if last.id == segment.id => {
                    last.used = segment.used;
                    last.last_lsn = segment.last_lsn;
                }
                _ => state.segments.push_back(WrittenSegment::new(segment)),
            }
        }
        state.written_lsn = written_lsn;
        self.written_lsn.store(written_lsn, Ordering::Release);
        drop(state);
        if self.has_watcher.load(Ordering::Relaxed) {
            self.call_watcher();
        }
    }

    /// Records that the oldest segment was removed from the log.
    pub(super) fn record_removal(&self, id: u32) {
        let mut state = lock(&self.state);
        if let Some(removed) = state.segments.iter_mut().find(|at| at.id == id) {
            removed.is_removed = true;
        }
        let max_bytes = state.max_removed_bytes;
        let unneeded = state.take_unneeded(max_bytes);
        drop(state);
        drop(unneeded);
    }

    /// Gives back the disk space of all removed segments, although readers may need them.
    pub(super) fn forget_all_removed(&self) {
        let unneeded = lock(&self.state).take_unneeded(0);
        drop(unneeded);
    }

    /// The last frame written.
    pub(crate) fn written_lsn(&self) -> u64 {
        self.written_lsn.load(Ordering::Acquire)
    }

    /// Returns once the writer has published what it is publishing at present. Everything that it publishes later, and checks
    /// after that, sees what the caller did before.
    pub(super) fn wait_for_publication(&self) {
        drop(lock(&self.state));
    }

    pub(crate) fn set_watcher(&self, watcher: Option<Arc<LogWatcher>>) {
        let mut current = lock(&self.watcher);
        self.has_watcher.store(watcher.is_some(), Ordering::Relaxed);
        *current = watcher;
        drop(current);
        // A group that did not see the watcher is then in the log for the caller to read.
        self.wait_for_publication();
    }

    fn call_watcher(&self) {
        let watcher = lock(&self.watcher).clone();
        if let Some(watcher) = watcher {
            watcher();
        }
    }

    /// Registers a reader that continues after a frame, or begins with the oldest segment. Returns its number and the frame after
    /// which it reads; `None` if the next frame is no longer in the log.
    pub(super) fn add_reader(&self, after_lsn: Option<u64>) -> Option<(u64, u64)> {
        let mut state = lock(&self.state);
        let oldest = state.segments.iter().find(|at| !at.is_removed);
        let oldest_lsn = oldest.map_or(state.written_lsn, |oldest| oldest.follows_lsn);
        let lsn = after_lsn.unwrap_or(oldest_lsn);
        if let NextRead::Gone = state.next_read(None, lsn) {
            return None;
        }
        state.last_reader += 1;
        let number = state.last_reader;
        state.readers.push(ReaderPosition { number, lsn });
        Some((number, lsn))
    }

    pub(super) fn remove_reader(&self, number: u64) {
        let mut state = lock(&self.state);
        state.readers.retain(|reader| reader.number != number);
        let max_bytes = state.max_removed_bytes;
        let unneeded = state.take_unneeded(max_bytes);
        drop(state);
        drop(unneeded);
    }

    /// How a reader continues that has read everything up to a frame, and a segment up to an offset.
    pub(super) fn next_read(&self, number: u64, place: Option<(u32, u64)>, lsn: u64) -> NextRead {
        let mut state = lock(&self.state);
        let mut readers = state.readers.iter_mut();
        if let Some(reader) = readers.find(|reader| reader.number == number) {
            reader.lsn = lsn;
        }
        let next = state.next_read(place, lsn);
        let max_bytes = state.max_removed_bytes;
        let unneeded = state.take_unneeded(max_bytes);
        drop(state);
        drop(unneeded);
        next
    }

    /// A later segment that repeats the frame after `lsn`.
    pub(super) fn repetition(&self, segment: u32, lsn: u64) -> Option<WrittenSegment> {
        let state = lock(&self.state);
        state.segment_with_next(Some(segment), lsn).cloned()
    }
}
