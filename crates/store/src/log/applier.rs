//! The applier's thread: applies the keyed records of the log to the LSM library.
//!
//! The log is the library's write-ahead log. A batch is acknowledged once it is in the log. The library receives it a moment
//! later, together with the number of the frame (`applied`), in one atomic write. Batches it lacks when the process ends are
//! read from the log when the store is opened. Segments stay until the library has them on disk. If the library fails,
//! it is closed, reopened, and supplied from the log.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::file_system::FileSystem;
use super::frame::{FLAG_KEYED, FrameReader, NextFrame, SEGMENT_HEAD};
use super::maintenance::LogMaintenance;
use super::recovery;
use super::shared::{StoreShared, increment, lock};
use crate::batch::{FRAME_HEAD, StoreBatch};
use crate::config::Fsync;
use crate::error::{StoreError, io_error};
use crate::health::HealthFlag;
use crate::keyed_state::{KeyedDatabase, KeyedState};

/// Size of batches queued for the library above which the writer waits.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Size of one write to the library.
const MAX_WRITE_BYTES: usize = 4 << 20;
/// How long applied changes may stay unsynced; the log has them.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);

#[derive(Default)]
struct ApplierState {
    queue: VecDeque<(u64, StoreBatch)>,
    is_urgent: bool,
    is_stopping: bool,
}

pub(crate) struct Applier {
    state: Mutex<ApplierState>,
    wakeup: Condvar,
    queued_bytes: AtomicUsize,
    on_disk_lsn: AtomicU64,
    pub(super) shared: Arc<StoreShared>,
    pub(super) maintenance: Arc<LogMaintenance>,
    keyed: Arc<KeyedState>,
    files: Arc<dyn FileSystem>,
    dir: PathBuf,
    fsync: Fsync,
}

impl Applier {
    pub(crate) fn new(
        keeper: Arc<LogMaintenance>,
        shared: Arc<StoreShared>,
        keyed: Arc<KeyedState>,
        (files, dir): (Arc<dyn FileSystem>, PathBuf),
        fsync: Fsync,
        on_disk_lsn: u64,
    ) -> Self {
        Self {
            state: Mutex::default(),
            wakeup: Condvar::new(),
            queued_bytes: AtomicUsize::new(0),
            on_disk_lsn: AtomicU64::new(on_disk_lsn),
            shared,
            maintenance: keeper,
            keyed,
            files,
            dir,
            fsync,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queued_bytes.load(Ordering::Acquire) < MAX_QUEUED_BYTES
    }

    /// Queues a batch that the log contains as frame `lsn`.
    pub(crate) fn push(&self, lsn: u64, batch: StoreBatch) {
        self.queued_bytes
            .fetch_add(batch.bytes.len(), Ordering::AcqRel);
        let mut state = lock(&self.state);
        state.queue.push_back((lsn, batch));
        if state.queue.len() == 1 {
            self.wakeup.notify_one();
        }
    }

    /// The last frame up to which the library has everything on disk.
    pub(crate) fn on_disk_lsn(&self) -> u64 {
        self.on_disk_lsn.load(Ordering::Acquire)
    }

    /// Requests a sync, because segments can only be removed after it.
    pub(crate) fn request_sync(&self) {
        let mut state = lock(&self.state);
        if !state.is_urgent {
            state.is_urgent = true;
            self.wakeup.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).is_stopping = true;
        self.wakeup.notify_one();
    }

    pub(crate) fn run(&self) {
        let mut applied_lsn = self.on_disk_lsn();
        let mut last_sync = Instant::now();
        let mut last_mark = Instant::now();
        let mut is_unmarked = false;
        let mut pause = FIRST_PAUSE;
        loop {
            let is_dirty = applied_lsn > self.on_disk_lsn();
            let (mut batches, is_urgent, is_stopping) = self.wait_for_batches(is_dirty);
            let result = self.apply(&mut batches, &mut applied_lsn).and_then(|()| {
                let is_due = is_urgent || is_stopping || last_sync.elapsed() >= SYNC_INTERVAL;
                if is_due && applied_lsn > self.on_disk_lsn() {
                    last_sync = Instant::now();
                    self.sync(applied_lsn)?;
                }
                if last_mark.elapsed() >= SYNC_INTERVAL && applied_lsn <= self.on_disk_lsn() {
                    last_mark = Instant::now();
                    self.update_mark(&mut is_unmarked);
                }
                Ok(())
            });
            match result {
                Ok(()) => {
                    if self.shared.set_flag(HealthFlag::Keyed, false) {
                        tracing::info!("keyed state writes recovered");
                    }
                    pause = FIRST_PAUSE;
                    if is_stopping && batches.is_empty() && lock(&self.state).queue.is_empty() {
                        return;
                    }
                }
                Err(error) => {
                    increment(&self.shared.counters.write_errors, 1);
                    if self.shared.set_flag(HealthFlag::Keyed, true) {
                        tracing::error!(%error, "keyed state write failed; reopening it");
                    }
                    if is_stopping {
                        // The log has all of it.
                        return;
                    }
                    self.requeue(batches);
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(MAX_PAUSE);
                    match self.reopen() {
                        Ok(lsn) => applied_lsn = lsn,
                        Err(error) => {
                            tracing::warn!(%error, "keyed state reopen failed; retrying")
                        }
                    }
                }
            }
        }
    }

    /// Waits for the next batches to apply.
    fn wait_for_batches(&self, is_dirty: bool) -> (Vec<(u64, StoreBatch)>, bool, bool) {
        let mut state = lock(&self.state);
        if state.queue.is_empty() && !state.is_stopping && !(state.is_urgent && is_dirty) {
            let waited = self.wakeup.wait_timeout(state, SYNC_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut bytes = 0;
        let mut batches = Vec::new();
        while bytes < MAX_WRITE_BYTES
            && let Some((lsn, batch)) = state.queue.pop_front()
        {
            bytes += batch.bytes.len();
            batches.push((lsn, batch));
        }
        (
            batches,
            std::mem::take(&mut state.is_urgent),
            state.is_stopping,
        )
    }

    fn requeue(&self, batches: Vec<(u64, StoreBatch)>) {
        let mut state = lock(&self.state);
        for batch in batches.into_iter().rev() {
            state.queue.push_front(batch);
        }
    }

    fn apply(
        &self,
        batches: &mut Vec<(u64, StoreBatch)>,
        applied_lsn: &mut u64,
    ) -> Result<(), StoreError> {
        let db = self.keyed.healthy_db()?;
        let Some(&(last_lsn, _)) = batches.last() else {
            return Ok(());
        };
        let fresh = batches.iter().filter(|(lsn, _)| *lsn > *applied_lsn);
        let mut write = db.write();
        for (_, batch) in fresh {
            write.add(&batch.bytes[FRAME_HEAD..]);
        }
        write.commit(last_lsn.max(*applied_lsn))?;
        *applied_lsn = last_lsn.max(*applied_lsn);
        let bytes = batches.iter().map(|(_, batch)| batch.bytes.len()).sum();
        let before = self.queued_bytes.fetch_sub(bytes, Ordering::AcqRel);
        let mut spent = batches.drain(..).map(|(_, batch)| batch).collect();
        self.shared.recycle(&mut spent);
        if before >= MAX_QUEUED_BYTES {
            self.shared.wake();
        }
        Ok(())
    }

    /// Syncs the library, unless the log is not synced as far: after a power failure the library must not be ahead of the
    /// log.
    fn sync(&self, applied_lsn: u64) -> Result<(), StoreError> {
        if self.fsync != Fsync::Never && self.maintenance.synced_lsn() < applied_lsn {
            self.maintenance.request_sync();
            return Ok(());
        }
        self.keyed.db()?.sync()?;
        self.on_disk_lsn.store(applied_lsn, Ordering::Release);
        self.shared.wake();
        Ok(())
    }

    /// Updates the mark. If that fails, fewer losses are detected later.
    fn update_mark(&self, is_unmarked: &mut bool) {
        let marked = self.keyed.update_mark();
        let was_unmarked = std::mem::replace(is_unmarked, marked.is_err());
        if let Err(error) = marked
            && !was_unmarked
        {
            increment(&self.shared.counters.write_errors, 1);
            tracing::warn!(%error, "keyed state mark not written; retrying");
        }
    }

    /// Reopens the library and applies what it lacks; returns the last frame it then has.
    fn reopen(&self) -> Result<u64, StoreError> {
        let db = self.keyed.reopen()?;
        let applied_lsn = db.applied_lsn()?;
        // Batches still in memory are applied afterwards.
        let before = lock(&self.state)
            .queue
            .front()
            .map_or(u64::MAX, |(lsn, _)| *lsn);
        let caught_up = self.catch_up(&db, applied_lsn, before)?;
        self.on_disk_lsn.fetch_min(applied_lsn, Ordering::AcqRel);
        Ok(caught_up)
    }

    fn catch_up(&self, db: &KeyedDatabase, after: u64, before: u64) -> Result<u64, StoreError> {
        let mut last_lsn = after;
        for segment in recovery::open_segment_files(&self.dir, &*self.files)? {
            let Ok(Some(head)) = segment.head else {
                continue;
            };
            let start = SEGMENT_HEAD as u64;
            let mut reader = FrameReader::new(&*segment.file, head.seed(), start, segment.len);
            loop {
                let next = reader.next();
                let next = next.map_err(io_error("read", &segment.path))?;
                let NextFrame::Frame(frame) = next else { break };
                if frame.flags & FLAG_KEYED != 0 && frame.lsn > last_lsn && frame.lsn < before {
                    let mut write = db.write();
                    write.add(frame.records);
                    write.commit(frame.lsn)?;
                    last_lsn = frame.lsn;
                }
            }
        }
        Ok(last_lsn)
    }
}
