//! The public handle of the store.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::{Fsync, PolicyAssignment, SeriesConfig};
use crate::deletions::{Deletion, Deletions};
use crate::directory;
use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::inspection::{Inspection, InspectionMode};
use crate::key_dictionary::KeyDictionary;
use crate::lock::lock;
use crate::partition::Partition;
use crate::partitioning::PARTITION_COUNT;
use crate::partitioning::partition_of;
use crate::point::{DeviceNo, KeyId, Point, SeriesRow};
use crate::query::{self, RangeQuery, RowOrder};
use crate::replay::replay_wal;
use crate::series_marks::{self, SeriesMarks};
use crate::shared::{HealthFlag, SeriesShared, SeriesSharedParts};
use crate::summary::{IntervalSummary, Intervals};
use crate::wal::recovery::WalTruncation;
use crate::{committer, flusher, maintenance, merger, verifier};

/// Findings of an open.
#[derive(Debug, Clone, Default)]
pub struct SeriesOpenReport {
    /// Rows that were in the write-ahead log only.
    pub recovered_rows: u64,
    /// Ends that were truncated after a crash or a power failure.
    pub truncations: Vec<WalTruncation>,
    pub keys: u32,
    /// Auxiliary files without data of their own that were damaged or missing and are rewritten, with the
    /// consequences.
    pub problems: Vec<String>,
}

/// Health of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesHealth {
    Ok,
    /// No room: rows are rejected.
    Full,
    /// A disk fails, or writing is behind.
    Failed,
}

/// Counters since the start, and present sizes.
#[derive(Debug, Clone, Default)]
pub struct SeriesStats {
    pub rows: u64,
    pub points: u64,
    pub keys: u64,
    pub wal_bytes: u64,
    /// Rows in memory that are in no segment file yet.
    pub memtable_bytes: u64,
    pub segments: u64,
    pub segment_bytes: u64,
    /// Points in segment files; an overwritten point counts until it is merged.
    pub segment_points: u64,
    pub flushes: u64,
    pub flushed_bytes: u64,
    pub merges: u64,
    pub merged_bytes: u64,
    /// Segment files removed because of their age.
    pub expired_files: u64,
    pub errors: u64,
    /// Appends that were blocked because the flusher was behind.
    pub stalls: u64,
    pub syncs: u64,
    pub last_sync_us: u64,
    pub free_bytes: u64,
    /// Segment files found damaged since the start.
    pub damaged_files: u64,
}

/// Polling interval of waiting callers, in case a notification is missed.
const FLUSH_POLL: Duration = Duration::from_millis(50);

/// One directory of time series. Clones share the store; it is closed with the last of them.
#[derive(Clone)]
pub struct Series {
    inner: Arc<SeriesInner>,
}

struct SeriesInner {
    shared: Arc<SeriesShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Series {
    /// Opens a directory; creates it if it does not exist.
    pub fn open(
        dir: &Path,
        config: SeriesConfig,
    ) -> Result<(Self, SeriesOpenReport), SeriesOpenError> {
        config.check()?;
        let lock_file = directory::lock_or_create(dir, config.window_ms)?;
        let is_synced = config.fsync != Fsync::Never;
        let expected = series_marks::read_expected(dir)?;
        let inspection = &mut Inspection::new(InspectionMode::Start);
        let keys = KeyDictionary::open(dir, config.max_keys, is_synced, expected.keys)?;
        let (deletions, of_parts) = Deletions::open(dir, is_synced, expected.next_deletion)?;
        let segments_dir = dir.join(directory::SEGMENTS);
        let (found, next_file_id) = directory::open_segments(&segments_dir, &expected, inspection)?;
        let of_keys = (&expected, keys.len());
        let replayed = replay_wal(dir, &config, &found, of_parts, of_keys, inspection)?;
        let guard = SeriesMarks::create(dir, replayed.last_lsn, keys.len(), deletions.next_number)?;
        let guard = Arc::new(guard);
        keys.set_marks(&guard);
        let report = SeriesOpenReport {
            recovered_rows: replayed.rows,
            truncations: replayed.truncations,
            keys: keys.len(),
            problems: expected.problems(),
        };
        let mut index = 0..PARTITION_COUNT;
        let parts = replayed
            .partitions
            .map(|part| Partition::new(index.next().expect("one for each partition"), part));
        let mut parts = parts;
        for segment in found {
            let part = &mut parts[segment.meta.partition];
            part.replace_files(&[], [Arc::new(segment)]);
        }
        let shared = Arc::new(SeriesShared::new(SeriesSharedParts {
            dir: dir.to_owned(),
            config,
            keys,
            wal: replayed.wal,
            partitions: parts,
            flushed: replayed.flushed,
            deletions,
            next_file_id,
            lock: lock_file,
            marks: guard,
            manifest: expected.manifest,
        }));
        committer::write_manifest(&shared, shared.flushed_lsns())?;
        let series = Self {
            inner: Arc::new(SeriesInner {
                shared,
                threads: Mutex::default(),
            }),
        };
        series
            .start()
            .map_err(io_error("start a thread for", dir))?;
        Ok((series, report))
    }

    fn start(&self) -> std::io::Result<()> {
        let shared = &self.inner.shared;
        let mut threads = lock(&self.inner.threads);
        let mut spawn = |name: &str, run: fn(&Arc<SeriesShared>)| {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || run(&shared))?;
            let handle = thread.thread().clone();
            threads.push(thread);
            Ok::<_, std::io::Error>(handle)
        };
        let worker = spawn("series-maintenance", maintenance::run)?;
        shared.wal.set_maintenance_thread(worker.clone());
        let _ = shared.maintenance.set(worker);
        let _ = shared.flusher.set(spawn("series-flusher", flusher::run)?);
        let _ = shared
            .committer
            .set(spawn("series-committer", committer::run)?);
        let _ = shared.merger.set(spawn("series-merger", merger::run)?);
        let verifier = spawn("series-verifier", verifier::run)?;
        let _ = shared.verifier.set(verifier);
        Ok(())
    }

    pub(crate) fn shared(&self) -> &SeriesShared {
        &self.inner.shared
    }

    /// Returns the key of this name; creates it if it does not exist. Creation writes to disk; a look-up
    /// takes no lock.
    pub fn get_or_create_key(&self, name: &str) -> Result<KeyId, SeriesError> {
        self.shared().keys.get_or_create(name)
    }

    /// Returns the key of this name. If it does not exist, it is reserved if `admit`, which gets the number of keys
    /// that can still be created, agrees; `None`: it does not. Rows with a reserved key are rejected until
    /// [`commit_keys`](Self::commit_keys).
    pub fn reserve_key(
        &self,
        name: &str,
        admit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<KeyId>, SeriesError> {
        self.shared().keys.reserve(name, admit)
    }

    /// Writes all reserved keys to disk, together.
    pub fn commit_keys(&self) -> Result<(), SeriesError> {
        self.shared().keys.commit()
    }

    /// Whether the key exists and is not only reserved.
    pub fn has_key(&self, key: KeyId) -> bool {
        key.0 < self.shared().keys.len()
    }

    pub fn find_key(&self, name: &str) -> Option<KeyId> {
        self.shared().keys.find(name)
    }

    pub fn key_name(&self, key: KeyId) -> Option<&str> {
        self.shared().keys.name(key)
    }

    /// Passes the latest value of each key that has one, or of the given keys, in no particular order.
    pub fn latest(
        &self,
        device: DeviceNo,
        keys: Option<&[KeyId]>,
        each: &mut dyn FnMut(i64, Point<'_>),
    ) -> Result<(), SeriesError> {
        query::latest(self.shared(), device, keys, each)
    }

    /// Passes rows in order of their times, each time once, with all points or those of the given keys.
    pub fn range(
        &self,
        device: DeviceNo,
        keys: Option<&[KeyId]>,
        range: &RangeQuery,
        each: &mut dyn FnMut(SeriesRow<'_>) -> ControlFlow<()>,
    ) -> Result<(), SeriesError> {
        query::range(self.shared(), device, keys, range, each)
    }

    /// Passes the last values of a key, newest first.
    pub fn last(
        &self,
        device: DeviceNo,
        key: KeyId,
        limit: usize,
        each: &mut dyn FnMut(i64, Point<'_>),
    ) -> Result<(), SeriesError> {
        let range = RangeQuery {
            limit,
            order: RowOrder::NewestFirst,
            ..RangeQuery::default()
        };
        self.range(device, Some(&[key]), &range, &mut |row| {
            row.points.iter().for_each(|point| each(row.ts_ms, *point));
            ControlFlow::Continue(())
        })
    }

    /// Passes an [`IntervalSummary`] for each device, key and interval with values. The intervals of a device
    /// and key are consecutive, ascending.
    pub fn aggregate(
        &self,
        devices: &[DeviceNo],
        keys: &[KeyId],
        intervals: &Intervals,
        each: &mut dyn FnMut(DeviceNo, KeyId, i64, &IntervalSummary),
    ) -> Result<(), SeriesError> {
        query::aggregate(self.shared(), devices, keys, intervals, each)
    }

    /// Deletes all rows of a device. Rows may be appended again, but device numbers must not be reused.
    pub fn delete_device(&self, device: DeviceNo) -> Result<(), SeriesError> {
        self.delete_range(device, None, i64::MIN, i64::MAX)
    }

    /// Deletes the values of the given keys, or of all keys, in [`from_ms`, `to_ms`).
    pub fn delete_range(
        &self,
        device: DeviceNo,
        keys: Option<&[KeyId]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), SeriesError> {
        let shared = self.shared();
        if shared.is_closing.load(Ordering::Acquire) {
            return Err(SeriesError::Closed);
        }
        let mut file = lock(&shared.deletions);
        // Held until the deletion is recorded, so that each row is clearly before or after it.
        let mut part = lock(&shared.partitions[partition_of(device)].partition);
        let lsn = part.active.next_lsn - 1;
        let deletion = |key| Deletion {
            number: 0,
            device: device.0,
            key,
            from_ms,
            to_ms,
            lsn,
        };
        let mut deletions: Vec<Deletion> = match keys {
            None => vec![deletion(None)],
            Some(keys) => keys.iter().map(|key| deletion(Some(*key))).collect(),
        };
        file.add(&mut deletions)?;
        shared.marks.set_deletions(file.next_number, file.is_synced);
        part.delete(shared, &deletions);
        Ok(())
    }

    /// Devices that have rows, ascending; some of them may have none left.
    pub fn devices(&self) -> Result<Vec<DeviceNo>, SeriesError> {
        query::devices(self.shared())
    }

    /// Writes all rows to segment files, and waits until these are on disk.
    pub fn flush(&self) -> Result<(), SeriesError> {
        let shared = self.shared();
        for cell in &shared.partitions {
            lock(&cell.partition).freeze(shared);
        }
        SeriesShared::wake(&shared.flusher);
        let mut guard = lock(&shared.room_lock);
        while shared.frozen_bytes.load(Ordering::Acquire) > 0
            || shared.uncommitted.load(Ordering::Acquire) > 0
        {
            if shared.has_flag(HealthFlag::Flush) || shared.has_flag(HealthFlag::Settle) {
                return Err(SeriesError::Full("segment files cannot be written"));
            }
            if shared.is_closing.load(Ordering::Acquire) {
                return Err(SeriesError::Closed);
            }
            let (again, _) = shared
                .room
                .wait_timeout(guard, FLUSH_POLL)
                .unwrap_or_else(PoisonError::into_inner);
            guard = again;
        }
        Ok(())
    }

    /// Merges all that can be merged and applies policies and deletions now; waits for completion.
    pub fn compact(&self) -> Result<(), SeriesError> {
        let shared = self.shared();
        let mut done = lock(&shared.merges_done);
        // The running pass may have checked already: the second one to end has begun after this call.
        let target = *done + 2;
        while *done < target {
            if shared.is_closing.load(Ordering::Acquire) {
                return Err(SeriesError::Closed);
            }
            shared.is_merge_requested.store(true, Ordering::Release);
            SeriesShared::wake(&shared.merger);
            let (again, _) = shared
                .merged
                .wait_timeout(done, FLUSH_POLL)
                .unwrap_or_else(PoisonError::into_inner);
            done = again;
        }
        Ok(())
    }

    /// Replaces the retention policies. A merge in progress completes with the previous ones.
    ///
    /// # Errors
    /// If a policy is invalid; nothing changes then.
    pub fn set_policies(&self, assignment: PolicyAssignment) -> Result<(), SeriesOpenError> {
        let shared = self.shared();
        assignment.check(shared.config.window_ms)?;
        *lock(&shared.assignment) = Arc::new(assignment);
        Ok(())
    }

    /// Whether rows arrive faster than files are written: appends are blocked then.
    #[inline]
    pub fn is_flush_behind(&self) -> bool {
        self.shared().has_flag(HealthFlag::Behind)
    }

    /// Whether rows are rejected: too little free disk space, or segment files cannot be written.
    #[inline]
    pub fn is_full(&self) -> bool {
        let shared = self.shared();
        shared.has_flag(HealthFlag::DiskFull)
            || shared.has_flag(HealthFlag::Behind)
                && (shared.has_flag(HealthFlag::Flush) || shared.has_flag(HealthFlag::Settle))
    }

    pub fn health(&self) -> SeriesHealth {
        let shared = self.shared();
        if shared.has_flag(HealthFlag::DiskFull) {
            SeriesHealth::Full
        } else if shared.health_flags() != 0 {
            SeriesHealth::Failed
        } else {
            SeriesHealth::Ok
        }
    }

    pub fn stats(&self) -> SeriesStats {
        let shared = self.shared();
        let counters = &shared.counters;
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = SeriesStats {
            rows: get(&counters.rows),
            points: get(&counters.points),
            keys: u64::from(shared.keys.len()),
            wal_bytes: get(&shared.wal.bytes),
            memtable_bytes: shared.frozen_bytes.load(Ordering::Relaxed) as u64,
            flushes: get(&counters.flushes),
            flushed_bytes: get(&counters.flushed_bytes),
            merges: get(&counters.merges),
            merged_bytes: get(&counters.merged_bytes),
            expired_files: get(&counters.expired_files),
            errors: get(&counters.errors),
            stalls: get(&counters.stalls),
            syncs: get(&counters.syncs),
            last_sync_us: get(&counters.last_sync_us),
            free_bytes: get(&counters.free_bytes),
            damaged_files: get(&counters.damaged_files),
            ..SeriesStats::default()
        };
        for cell in &shared.partitions {
            let part = lock(&cell.partition);
            stats.rows += part.active.rows;
            stats.points += part.active.points;
            stats.memtable_bytes += part.active.bytes() as u64;
            stats.segments += part.files.len() as u64;
            stats.segment_bytes += part.files.iter().map(|file| file.bytes).sum::<u64>();
            stats.segment_points += part.files.iter().map(|file| file.meta.points).sum::<u64>();
        }
        stats
    }

    /// Stops accepting rows, forces the present ones to disk and ends the threads. Also done when the last
    /// clone is dropped.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl SeriesInner {
    fn close(&self) {
        let shared = &self.shared;
        let mut threads = lock(&self.threads);
        if threads.is_empty() {
            return;
        }
        shared.is_closing.store(true, Ordering::Release);
        // Appends that have passed admission may still be running: wait until they are done.
        for cell in &shared.partitions {
            drop(lock(&cell.partition));
        }
        let threads_of = [
            &shared.maintenance,
            &shared.flusher,
            &shared.committer,
            &shared.merger,
            &shared.verifier,
        ];
        threads_of.into_iter().for_each(SeriesShared::wake);
        shared.synced.notify_all();
        shared.room.notify_all();
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("telemetry store thread panicked");
            }
        }
        if shared.config.fsync != Fsync::Never {
            maintenance::sync_log(shared);
        }
        // The next start reads the rows of files without a final name from the log.
        let _ = committer::commit_segments(shared);
        shared.wal.drop_prepared();
    }
}

impl Drop for SeriesInner {
    fn drop(&mut self) {
        self.close();
    }
}
