//! State shared by callers and threads of the store.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::config::{PolicyAssignment, RetentionPolicy, SeriesConfig};
use crate::deletions::Deletions;
use crate::directory;
use crate::error::SeriesError;
use crate::key_dictionary::KeyDictionary;
use crate::lock::lock;
use crate::memtable::ChunkPool;
use crate::partition::Partition;
use crate::partitioning::PARTITION_COUNT;
use crate::series_marks::{Manifest, SeriesMarks};
use crate::wal::Wal;

/// How long a caller is blocked while the flusher is behind.
const MAX_HOLD: Duration = Duration::from_secs(5);

/// The wall clock in the type of row times.
pub(crate) fn now_ms() -> i64 {
    i64::try_from(wall_clock::now_ms()).unwrap_or(i64::MAX)
}

/// Reasons for rejecting rows or reporting bad health.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum HealthFlag {
    /// The file system has too little free space.
    DiskFull = 1,
    /// The write-ahead log cannot be forced to disk.
    Sync = 2,
    /// Segment files cannot be written.
    Flush = 4,
    /// The flusher is behind.
    Behind = 8,
    /// Segment files cannot be forced to disk.
    Settle = 16,
}

#[derive(Default)]
pub(crate) struct SeriesCounters {
    pub(crate) rows: AtomicU64,
    pub(crate) points: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) flushed_bytes: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) merged_bytes: AtomicU64,
    pub(crate) expired_files: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) stalls: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) last_sync_us: AtomicU64,
    pub(crate) free_bytes: AtomicU64,
    pub(crate) damaged_files: AtomicU64,
}

pub(crate) fn increment(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Called when rows are as durable as the fsync policy demands.
pub type DurableCallback = Box<dyn FnOnce() + Send + Sync>;

/// Completed syncs; numbers ascend.
#[derive(Default)]
pub(crate) struct SyncProgress {
    pub(crate) done: u64,
    /// A caller waits for this sync.
    pub(crate) wanted: u64,
    /// Called when the sync of this number is complete.
    pub(crate) callbacks: Vec<(u64, DurableCallback)>,
}

impl SyncProgress {
    /// Removes and returns the callbacks that are due.
    fn take_due_callbacks(&mut self) -> Vec<DurableCallback> {
        let done = self.done;
        let called = self.callbacks.extract_if(.., |(number, _)| *number <= done);
        called.map(|(_, safe)| safe).collect()
    }
}

/// The fields that each partition's appends touch, on their own cache lines, so that partitions do not slow
/// each other down.
#[repr(align(128))]
pub(crate) struct SharedPartition {
    pub(crate) partition: Mutex<Partition>,
    /// The last row appended.
    pub(crate) last_lsn: AtomicU64,
    /// The last row known to be on disk.
    pub(crate) synced_lsn: AtomicU64,
    /// Up to this row, all rows are in segment files on disk.
    pub(crate) flushed_lsn: AtomicU64,
}

pub(crate) struct SeriesShared {
    pub(crate) dir: PathBuf,
    pub(crate) config: SeriesConfig,
    pub(crate) keys: KeyDictionary,
    pub(crate) wal: Wal,
    pub(crate) partitions: [SharedPartition; PARTITION_COUNT],
    /// The clock of the rows, set every tick: rows outside the permitted range are rejected.
    pub(crate) clock_ms: AtomicI64,
    pub(crate) oldest_ms: AtomicI64,
    pub(crate) newest_ms: AtomicI64,
    health_flags: AtomicU8,
    pub(crate) is_closing: AtomicBool,
    /// See [`SeriesConfig::freeze_bytes`].
    pub(crate) freeze_bytes: usize,
    /// Memory of flushed rows, for reuse.
    pub(crate) chunk_pool: ChunkPool,
    /// Frozen rows that wait for a segment file.
    pub(crate) frozen_bytes: AtomicUsize,
    pub(crate) room: Condvar,
    pub(crate) room_lock: Mutex<()>,
    pub(crate) syncs_begun: AtomicU64,
    pub(crate) syncs: Mutex<SyncProgress>,
    /// The last sync that failed, whose rows were left to the flusher; 0 if there is none.
    pub(crate) failed_sync: AtomicU64,
    pub(crate) synced: Condvar,
    pub(crate) maintenance: OnceLock<Thread>,
    pub(crate) flusher: OnceLock<Thread>,
    pub(crate) committer: OnceLock<Thread>,
    pub(crate) merger: OnceLock<Thread>,
    pub(crate) verifier: OnceLock<Thread>,
    /// Number of segment files that are not known to be on disk; `commit_lock` serialises commits.
    pub(crate) uncommitted: AtomicUsize,
    pub(crate) commit_lock: Mutex<()>,
    /// Everything that can be merged is to be merged now.
    pub(crate) is_merge_requested: AtomicBool,
    pub(crate) merges_done: Mutex<u64>,
    pub(crate) merged: Condvar,
    pub(crate) assignment: Mutex<Arc<PolicyAssignment>>,
    pub(crate) counters: SeriesCounters,
    /// The list of deletions; its lock serialises additions.
    pub(crate) deletions: Mutex<Deletions>,
    pub(crate) file_ids: AtomicU64,
    /// Marks outside the logs.
    pub(crate) marks: Arc<SeriesMarks>,
    /// The manifest as last written; its lock serialises writes.
    pub(crate) manifest: Mutex<Manifest>,
    /// Held as long as the store is open.
    pub(crate) _lock: File,
}

pub(crate) struct SeriesSharedParts {
    pub(crate) dir: PathBuf,
    pub(crate) config: SeriesConfig,
    pub(crate) keys: KeyDictionary,
    pub(crate) wal: Wal,
    pub(crate) partitions: [Partition; PARTITION_COUNT],
    pub(crate) flushed: [u64; PARTITION_COUNT],
    pub(crate) deletions: Deletions,
    pub(crate) next_file_id: u64,
    pub(crate) lock: File,
    pub(crate) marks: Arc<SeriesMarks>,
    pub(crate) manifest: Manifest,
}

impl SeriesShared {
    pub(crate) fn new(start: SeriesSharedParts) -> Self {
        let mut flushed = start.flushed.into_iter();
        let frozen = start.partitions.iter().flat_map(|part| &part.frozen);
        let frozen_bytes = frozen.map(|memtable| memtable.bytes()).sum();
        let shared = Self {
            partitions: start.partitions.map(|part| {
                // Not that of the next row less one: a deletion may have used numbers of rows that are lost, and marks of rows that
                // never existed would be reported as further losses.
                let last_lsn = part.follows_lsn;
                let flushed_lsn = flushed.next().unwrap_or(0);
                SharedPartition {
                    partition: Mutex::new(part),
                    last_lsn: AtomicU64::new(last_lsn),
                    // Recovery has forced the rows it kept to disk.
                    synced_lsn: AtomicU64::new(last_lsn),
                    flushed_lsn: AtomicU64::new(flushed_lsn),
                }
            }),
            assignment: Mutex::new(Arc::new(start.config.assignment.clone())),
            dir: start.dir,
            freeze_bytes: start.config.freeze_bytes(),
            chunk_pool: ChunkPool::new(start.config.memtable_bytes / 8, start.config.chunk_bytes()),
            config: start.config,
            keys: start.keys,
            wal: start.wal,
            clock_ms: AtomicI64::new(0),
            oldest_ms: AtomicI64::new(0),
            newest_ms: AtomicI64::new(0),
            health_flags: AtomicU8::new(0),
            is_closing: AtomicBool::new(false),
            frozen_bytes: AtomicUsize::new(frozen_bytes),
            room: Condvar::new(),
            room_lock: Mutex::new(()),
            syncs_begun: AtomicU64::new(0),
            syncs: Mutex::default(),
            failed_sync: AtomicU64::new(0),
            synced: Condvar::new(),
            maintenance: OnceLock::new(),
            flusher: OnceLock::new(),
            committer: OnceLock::new(),
            merger: OnceLock::new(),
            verifier: OnceLock::new(),
            uncommitted: AtomicUsize::new(0),
            commit_lock: Mutex::new(()),
            is_merge_requested: AtomicBool::new(false),
            merges_done: Mutex::new(0),
            merged: Condvar::new(),
            counters: SeriesCounters::default(),
            deletions: Mutex::new(start.deletions),
            file_ids: AtomicU64::new(start.next_file_id),
            marks: start.marks,
            manifest: Mutex::new(start.manifest),
            _lock: start.lock,
        };
        shared.set_clock(now_ms());
        shared
    }

    /// Sets the time against which rows are checked until the next tick.
    pub(crate) fn set_clock(&self, now_ms: i64) {
        self.clock_ms.store(now_ms, Ordering::Relaxed);
        let oldest = self
            .longest_retention()
            .map_or(-MAX_TS, |ms| now_ms.saturating_sub(ms).max(-MAX_TS));
        self.oldest_ms.store(oldest, Ordering::Relaxed);
        let newest = now_ms.saturating_add(self.config.max_future_ms).min(MAX_TS);
        self.newest_ms.store(newest, Ordering::Relaxed);
    }

    /// The longest retention of all policies, `None` if one keeps its points without limit.
    pub(crate) fn longest_retention(&self) -> Option<i64> {
        let assignment = Arc::clone(&lock(&self.assignment));
        let policies = &assignment.policies;
        let fallback = RetentionPolicy::default();
        let standard = (!policies.iter().any(|(number, _)| *number == 0)).then_some(&fallback);
        let all = policies.iter().map(|(_, policy)| policy).chain(standard);
        all.map(|policy| policy.retention_ms)
            .try_fold(0, |longest, ms| ms.map(|ms| longest.max(ms)))
    }

    pub(crate) fn has_flag(&self, flag: HealthFlag) -> bool {
        self.health_flags.load(Ordering::Relaxed) & flag as u8 != 0
    }

    /// Sets or clears a flag; returns whether that is a change.
    pub(crate) fn set_flag(&self, flag: HealthFlag, is_there: bool) -> bool {
        let bit = flag as u8;
        let before = match is_there {
            true => self.health_flags.fetch_or(bit, Ordering::AcqRel),
            false => self.health_flags.fetch_and(!bit, Ordering::AcqRel),
        };
        (before & bit != 0) != is_there
    }

    pub(crate) fn health_flags(&self) -> u8 {
        self.health_flags.load(Ordering::Relaxed)
    }

    /// Rejects or blocks the caller while there is no room for rows.
    #[inline]
    pub(crate) fn check_admission(&self) -> Result<(), SeriesError> {
        const STOPS: u8 = HealthFlag::DiskFull as u8 | HealthFlag::Behind as u8;
        if self.health_flags() & STOPS == 0 && !self.is_closing.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.wait_for_room()
    }

    #[cold]
    fn wait_for_room(&self) -> Result<(), SeriesError> {
        if self.is_closing.load(Ordering::Acquire) {
            return Err(SeriesError::Closed);
        }
        if self.has_flag(HealthFlag::DiskFull) {
            return Err(SeriesError::Full(
                "the file system has less room than min_free_bytes",
            ));
        }
        increment(&self.counters.stalls, 1);
        let until = Instant::now() + MAX_HOLD;
        let mut guard = lock(&self.room_lock);
        while self.has_flag(HealthFlag::Behind) {
            if self.has_flag(HealthFlag::Flush) || self.has_flag(HealthFlag::Settle) {
                return Err(SeriesError::Full("segment files cannot be written"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SeriesError::Busy);
            }
            let (again, _) = self
                .room
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner);
            guard = again;
        }
        Ok(())
    }

    /// Rows have been frozen, or have been written to a segment file.
    pub(crate) fn adjust_frozen_bytes(&self, more: usize, less: usize) {
        let before = self.frozen_bytes.fetch_add(more, Ordering::AcqRel);
        let now = (before + more).saturating_sub(less);
        self.frozen_bytes
            .fetch_sub(less.min(before + more), Ordering::AcqRel);
        // Together with the rows in active memtables they take no more than the limit.
        let is_behind = now > self.config.memtable_bytes / 2;
        if is_behind != self.has_flag(HealthFlag::Behind) {
            let _guard = lock(&self.room_lock);
            self.set_flag(HealthFlag::Behind, is_behind);
            self.room.notify_all();
        }
    }

    pub(crate) fn wake(thread: &OnceLock<Thread>) {
        if let Some(thread) = thread.get() {
            thread.unpark();
        }
    }

    pub(crate) fn segments_dir(&self) -> PathBuf {
        self.dir.join(directory::SEGMENTS)
    }

    pub(crate) fn next_file_id(&self) -> u64 {
        self.file_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// All rows frozen before this failed sync are in segment files, which is equivalent.
    pub(crate) fn complete_rescue(&self, up_to: u64) {
        if up_to > 0 {
            let _ =
                self.failed_sync
                    .compare_exchange(up_to, 0, Ordering::AcqRel, Ordering::Relaxed);
            self.notify_synced(up_to);
            if self.set_flag(HealthFlag::Sync, false) {
                tracing::info!("rows of the failed telemetry log sync are now in segment files");
            }
        }
    }

    /// Notifies callers that wait for this sync or an earlier one.
    pub(crate) fn notify_synced(&self, number: u64) {
        let mut syncs = lock(&self.syncs);
        syncs.done = syncs.done.max(number);
        let called = syncs.take_due_callbacks();
        drop(syncs);
        self.synced.notify_all();
        called.into_iter().for_each(|safe| safe());
    }

    pub(crate) fn flushed_lsns(&self) -> [u64; PARTITION_COUNT] {
        std::array::from_fn(|at| self.partitions[at].flushed_lsn.load(Ordering::Acquire))
    }
}

/// Times further away cannot be stored: far beyond any calendar date.
pub(crate) const MAX_TS: i64 = 1 << 59;
