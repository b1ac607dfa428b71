//! The maintenance thread: syncs the log at the interval of the policy, removes unneeded segments once that is safe, and
//! monitors free space. Slow operations run here rather than on the writer.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::file_system::{FileSystem, LogFile};
use super::frame::SegmentHead;
use super::log_mark::LogMarksFile;
use super::segments::segment_path;
use super::shared::{StoreShared, increment, lock};
use crate::config::{Fsync, StoreConfig};
use crate::health::HealthFlag;

/// Interval of checks of free space, and of retries.
const TICK: Duration = Duration::from_millis(500);

/// A position in the log: the frames up to `lsn` end here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) lsn: u64,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
}

/// A segment to remove once a frame is on disk.
#[derive(Clone, Copy)]
pub(crate) struct SegmentRemoval {
    pub(crate) lsn: u64,
    pub(crate) segment: u32,
    /// The head of the segment that is the oldest afterwards. It is rewritten first, because only it shows where the log begins.
    pub(crate) new_oldest: Option<SegmentHead>,
    /// The first segment of the log after the removal, if there is any.
    pub(crate) next: Option<u32>,
}

#[derive(Default)]
struct MaintenanceState {
    /// Frames up to here are written and not known to be on disk.
    dirty_end: Option<LogPosition>,
    /// The files with unsynced data.
    files: Vec<Arc<dyn LogFile>>,
    synced: LogPosition,
    /// The oldest segment with a written frame.
    oldest: Option<u32>,
    /// A sync failed: the writer has to rewrite everything behind `synced`.
    has_failed: bool,
    is_syncing: bool,
    /// Whether a caller waits for the unsynced data to be on disk.
    is_urgent: bool,
    /// Segments to remove, in this order.
    removals: VecDeque<SegmentRemoval>,
    /// When to retry a failed removal.
    removals_retry_at: Option<Instant>,
    is_stopping: bool,
}

impl MaintenanceState {
    fn next_removal(&self) -> Option<SegmentRemoval> {
        let is_due = |due: Instant| due <= Instant::now();
        let next = self.removals.front().copied();
        next.filter(|_| !self.has_failed && self.removals_retry_at.is_none_or(is_due))
    }
}

pub(crate) struct LogMaintenance {
    state: Mutex<MaintenanceState>,
    wakeup: Condvar,
    synced_lsn: AtomicU64,
    pub(super) marks: LogMarksFile,
    shared: Arc<StoreShared>,
    files: Arc<dyn FileSystem>,
    dir: std::path::PathBuf,
    config: StoreConfig,
}

impl LogMaintenance {
    pub(crate) fn new(
        shared: Arc<StoreShared>,
        files: Arc<dyn FileSystem>,
        dir: std::path::PathBuf,
        config: StoreConfig,
        synced: LogPosition,
        (marks, oldest): (LogMarksFile, Option<u32>),
    ) -> Self {
        let state = MaintenanceState {
            synced,
            oldest,
            ..MaintenanceState::default()
        };
        Self {
            state: Mutex::new(state),
            wakeup: Condvar::new(),
            synced_lsn: AtomicU64::new(synced.lsn),
            marks,
            shared,
            files,
            dir,
            config,
        }
    }

    pub(crate) fn synced_lsn(&self) -> u64 {
        self.synced_lsn.load(Ordering::Acquire)
    }

    /// Records that frames up to `mark` were written, the last of them to `file`.
    pub(crate) fn record_write(&self, file: &Arc<dyn LogFile>, mark: LogPosition) {
        let mut state = lock(&self.state);
        let is_last = |last: &Arc<dyn LogFile>| Arc::ptr_eq(last, file);
        if !state.files.last().is_some_and(is_last) {
            state.files.push(Arc::clone(file));
        }
        self.set_written(&mut state, mark);
        if state.dirty_end.replace(mark).is_none() {
            self.wakeup.notify_one();
        }
    }

    /// Records that frames up to `mark` were written and synced by the writer itself.
    pub(crate) fn record_synced_write(&self, mark: LogPosition) {
        let mut state = lock(&self.state);
        self.set_written(&mut state, mark);
        self.set_synced(&mut state, mark);
        if !state.removals.is_empty() {
            self.wakeup.notify_one();
        }
    }

    /// Records that frames up to `mark` are in the log, whose oldest segment has its head on disk.
    fn set_written(&self, state: &mut MaintenanceState, mark: LogPosition) {
        self.marks.set_written(mark.lsn);
        if state.oldest.is_none() {
            state.oldest = Some(mark.segment);
            self.marks.set_first_segment(state.oldest);
        }
    }

    /// Records that frames up to `mark` are on disk.
    fn set_synced(&self, state: &mut MaintenanceState, mark: LogPosition) {
        state.synced = mark;
        self.synced_lsn.store(mark.lsn, Ordering::Release);
        self.marks.set_synced(mark.lsn);
    }

    /// Requests an early sync, whatever the policy.
    pub(crate) fn request_sync(&self) {
        let mut state = lock(&self.state);
        if state.dirty_end.is_some() && !state.is_urgent {
            state.is_urgent = true;
            self.wakeup.notify_one();
        }
    }

    /// Where rewriting has to begin after a failed sync.
    pub(crate) fn failed_sync_position(&self) -> Option<LogPosition> {
        let state = lock(&self.state);
        state.has_failed.then_some(state.synced)
    }

    /// Records that everything unsynced was rewritten to these files, from `start` to `end`.
    pub(crate) fn record_rewrite(
        &self,
        start: LogPosition,
        end: LogPosition,
        files: Vec<Arc<dyn LogFile>>,
    ) {
        let mut state = lock(&self.state);
        state.synced = start;
        state.dirty_end = Some(end);
        state.files = files;
        state.has_failed = false;
        state.is_urgent = true;
        self.wakeup.notify_one();
    }

    /// Queues a segment for removal; removals happen in the order of these calls.
    pub(crate) fn queue_removal(&self, removal: SegmentRemoval) {
        lock(&self.state).removals.push_back(removal);
        self.wakeup.notify_one();
    }

    pub(crate) fn is_removing(&self) -> bool {
        !lock(&self.state).removals.is_empty()
    }

    /// Whether everything written is on disk.
    #[cfg(test)]
    pub(crate) fn is_all_synced(&self) -> bool {
        let state = lock(&self.state);
        let written = state.dirty_end.is_none() && !state.has_failed;
        written && state.synced.lsn == self.synced_lsn() && !state.is_syncing
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).is_stopping = true;
        self.wakeup.notify_one();
    }

    pub(crate) fn run(&self) {
        let mut last_sync = Instant::now();
        let mut last_look = Instant::now();
        loop {
            let due = self.wait_for_work(last_sync);
            if due {
                last_sync = Instant::now();
                self.sync();
            }
            self.remove_due_segments();
            if last_look.elapsed() >= TICK {
                last_look = Instant::now();
                self.check_free_space();
            }
            let state = lock(&self.state);
            let is_clean = state.dirty_end.is_none() || state.has_failed;
            if state.is_stopping && is_clean {
                return;
            }
        }
    }

    /// Waits for work; returns whether to sync.
    fn wait_for_work(&self, last_sync: Instant) -> bool {
        let started = Instant::now();
        let mut state = lock(&self.state);
        loop {
            let can_sync = state.dirty_end.is_some() && !state.has_failed;
            if can_sync && (state.is_urgent || state.is_stopping) {
                return true;
            }
            let mut rest = TICK.saturating_sub(started.elapsed());
            if let (Fsync::Every(interval), true) = (self.config.fsync, can_sync) {
                let due_in = interval.saturating_sub(last_sync.elapsed());
                if due_in.is_zero() {
                    return true;
                }
                rest = rest.min(due_in);
            }
            let first = state.next_removal();
            let can_remove = first.is_some_and(|first| first.lsn <= state.synced.lsn);
            if rest.is_zero() || can_remove || state.is_stopping {
                return false;
            }
            // With this policy nothing else syncs.
            if self.config.fsync == Fsync::Never && first.is_some() && can_sync {
                return true;
            }
            let waited = self.wakeup.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn sync(&self) {
        let (mark, files) = {
            let mut state = lock(&self.state);
            let Some(mark) = state.dirty_end.take() else {
                return;
            };
            state.is_urgent = false;
            state.is_syncing = true;
            let files = std::mem::take(&mut state.files);
            (mark, files)
        };
        let started = Instant::now();
        let result = files.iter().try_for_each(|file| file.sync());
        let counters = &self.shared.counters;
        increment(&counters.fsyncs, files.len() as u64);
        let duration_us = started.elapsed().as_micros() as u64;
        counters.last_fsync_us.store(duration_us, Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.is_syncing = false;
        match result {
            Ok(()) => {
                self.set_synced(&mut state, mark);
                drop(state);
                if self.shared.set_flag(HealthFlag::Sync, false) {
                    tracing::info!("message log sync recovered");
                }
                self.shared.wake();
            }
            Err(error) => {
                state.has_failed = true;
                state.dirty_end.get_or_insert(mark);
                drop(state);
                increment(&counters.write_errors, 1);
                if self.shared.set_flag(HealthFlag::Sync, true) {
                    tracing::error!(%error, "message log sync failed; rewriting unsynced frames to a new segment");
                }
                self.shared.wake();
            }
        }
    }

    fn remove_due_segments(&self) {
        loop {
            let Some(removal) = lock(&self.state).next_removal() else {
                return;
            };
            if removal.lsn > self.synced_lsn() {
                return;
            }
            let segment = removal.segment;
            // One by one, each durably: a younger segment may record that an entry of an older one is done.
            let head = removal
                .new_oldest
                .map_or(Ok(()), |head| self.write_head(&head));
            let marked = head.and_then(|()| self.write_first_segment_mark(removal.next));
            let removed =
                marked.and_then(
                    |()| match self.files.remove(&segment_path(&self.dir, segment)) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                        _ => self.files.sync_dir(&self.dir),
                    },
                );
            if let Err(error) = removed {
                increment(&self.shared.counters.write_errors, 1);
                tracing::warn!(segment, %error, "message log segment removal failed; retrying");
                lock(&self.state).removals_retry_at = Some(Instant::now() + TICK);
                return;
            }
            lock(&self.state).removals.pop_front();
            self.shared.wake();
        }
    }

    /// Durably records with which segment the log begins from now on.
    fn write_first_segment_mark(&self, segment: Option<u32>) -> io::Result<()> {
        lock(&self.state).oldest = segment;
        self.marks.set_first_segment(segment);
        self.marks.sync()
    }

    /// Writes the head of a segment to disk through a separate file; a failure is also reported to the owner of the log file.
    fn write_head(&self, head: &SegmentHead) -> io::Result<()> {
        let file = self.files.open(&segment_path(&self.dir, head.id))?;
        file.write_at(&head.encode(), 0)?;
        let synced = file.sync();
        if synced.is_err() {
            let mut state = lock(&self.state);
            // Frames behind it may also be lost.
            state.has_failed = true;
            let synced = state.synced;
            state.dirty_end.get_or_insert(synced);
            drop(state);
            self.shared.wake();
        }
        synced
    }

    pub(crate) fn check_free_space(&self) {
        let Ok(free) = self.files.free_bytes(&self.dir) else {
            return;
        };
        self.shared
            .counters
            .free_bytes
            .store(free, Ordering::Relaxed);
        let min = self.config.min_free_bytes;
        let is_full = if self.shared.has_flag(HealthFlag::DiskFull) {
            free < min + min / 8
        } else {
            free < min
        };
        if self.shared.set_flag(HealthFlag::DiskFull, is_full) {
            if is_full {
                tracing::error!(
                    free_bytes = free,
                    min_free_bytes = min,
                    "disk full; rejecting new messages for persistent sessions"
                );
            } else {
                tracing::info!(free_bytes = free, "disk space is available again");
            }
            self.shared.wake();
        }
    }
}
