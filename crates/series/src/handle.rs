//! The store as others see it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::{Assignment, Config, Fsync};
use crate::deletions::{Deletion, Deletions};
use crate::directory;
use crate::error::{Error, OpenError, io_error};
use crate::guard::{self, Guard};
use crate::inspect::{Inspection, Mode};
use crate::keys::Keys;
use crate::part::{Part, partition_of};
use crate::point::{DeviceNo, KeyId, Point, Row};
use crate::query::{self, Order, Range};
use crate::replay::replay;
use crate::shared::{Shared, Start, Trouble, lock};
use crate::summary::{Intervals, Summary};
use crate::wal::PARTITIONS;
use crate::wal::recover::Cut;
use crate::{flush, keeper, merge, settle, verify};

/// What opening found.
#[derive(Debug, Clone, Default)]
pub struct OpenReport {
    /// Rows that were in the write-ahead log only.
    pub recovered_rows: u64,
    /// Ends that were torn off by a crash or a power failure.
    pub cuts: Vec<Cut>,
    pub keys: u32,
    /// Files without data of their own that were damaged or missing and are written anew, with what that means.
    pub problems: Vec<String>,
}

/// How things are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Ok,
    /// No room: rows are refused.
    Full,
    /// A disk fails, or writing is behind.
    Failed,
}

/// Figures since the start, and sizes now.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    pub rows: u64,
    pub points: u64,
    pub keys: u64,
    pub wal_bytes: u64,
    /// Rows in memory that are in no segment file yet.
    pub memory_bytes: u64,
    pub segments: u64,
    pub segment_bytes: u64,
    /// Points in segment files; one that was overwritten counts until it is merged.
    pub segment_points: u64,
    pub flushes: u64,
    pub flushed_bytes: u64,
    pub merges: u64,
    pub merged_bytes: u64,
    /// Segment files that went because of their age.
    pub expired_files: u64,
    pub errors: u64,
    /// Appends that were held because segment files were behind.
    pub stalls: u64,
    pub syncs: u64,
    pub last_sync_us: u64,
    pub free_bytes: u64,
    /// Segment files that were found damaged since the start.
    pub damaged_files: u64,
}

/// How often somebody who waits looks again, should a call be missed.
const FLUSH_POLL: Duration = Duration::from_millis(50);

/// One directory of time series. Clones are the same store; it is closed with the last of them.
#[derive(Clone)]
pub struct Series {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Series {
    /// Opens a directory, and makes it if it is not there.
    pub fn open(dir: &Path, config: Config) -> Result<(Self, OpenReport), OpenError> {
        config.check()?;
        let lock_file = directory::take(dir, config.window_ms)?;
        let is_synced = config.fsync != Fsync::Never;
        let expected = guard::read(dir)?;
        let inspection = &mut Inspection::new(Mode::Start);
        let keys = Keys::open(dir, config.max_keys, is_synced, expected.keys)?;
        let (deletions, of_parts) = Deletions::open(dir, is_synced, expected.next_deletion)?;
        let segments_dir = dir.join(directory::SEGMENTS);
        let (found, next_file_id) = directory::segments(&segments_dir, &expected, inspection)?;
        let of_keys = (&expected, keys.len());
        let replayed = replay(dir, &config, &found, of_parts, of_keys, inspection)?;
        let guard = Guard::create(dir, replayed.last_lsn, keys.len(), deletions.next_number)?;
        let guard = Arc::new(guard);
        keys.guarded_by(&guard);
        let report = OpenReport {
            recovered_rows: replayed.rows,
            cuts: replayed.cuts,
            keys: keys.len(),
            problems: expected.problems(),
        };
        let mut index = 0..PARTITIONS;
        let parts = replayed
            .parts
            .map(|part| Part::new(index.next().expect("one for each partition"), part));
        let mut parts = parts;
        for segment in found {
            let part = &mut parts[segment.meta.partition];
            part.change_files(&[], [Arc::new(segment)]);
        }
        let shared = Arc::new(Shared::new(Start {
            dir: dir.to_owned(),
            config,
            keys,
            wal: replayed.wal,
            parts,
            flushed: replayed.flushed,
            deletions,
            next_file_id,
            lock: lock_file,
            guard,
            manifest: expected.manifest,
        }));
        settle::write_manifest(&shared, shared.flushed())?;
        let series = Self {
            inner: Arc::new(Inner {
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
        let mut spawn = |name: &str, run: fn(&Arc<Shared>)| {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || run(&shared))?;
            let handle = thread.thread().clone();
            threads.push(thread);
            Ok::<_, std::io::Error>(handle)
        };
        let keeper = spawn("series-keeper", keeper::run)?;
        shared.wal.is_kept_by(keeper.clone());
        let _ = shared.keeper.set(keeper);
        let _ = shared.flusher.set(spawn("series-flusher", flush::run)?);
        let _ = shared.settler.set(spawn("series-settler", settle::run)?);
        let _ = shared.merger.set(spawn("series-merger", merge::run)?);
        let verifier = spawn("series-verifier", verify::run)?;
        let _ = shared.verifier.set(verifier);
        Ok(())
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// The key of this name, made if it is not there. Making one writes to disk; looking one up takes no lock.
    pub fn key(&self, name: &str) -> Result<KeyId, Error> {
        self.shared().keys.make(name)
    }

    pub fn find_key(&self, name: &str) -> Option<KeyId> {
        self.shared().keys.find(name)
    }

    pub fn key_name(&self, key: KeyId) -> Option<&str> {
        self.shared().keys.name(key)
    }

    /// All keys that were ever made are the numbers below this.
    pub fn keys(&self) -> u32 {
        self.shared().keys.len()
    }

    /// Gives the latest value of each key that has one, or of these keys, in no order.
    pub fn latest(
        &self,
        device: DeviceNo,
        keys: Option<&[KeyId]>,
        each: &mut dyn FnMut(i64, Point<'_>),
    ) -> Result<(), Error> {
        query::latest(self.shared(), device, keys, each)
    }

    /// Gives rows in the order of their times, each time once with all its points, or with those of these keys.
    pub fn range(
        &self,
        device: DeviceNo,
        keys: Option<&[KeyId]>,
        range: &Range,
        each: &mut dyn FnMut(Row<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        query::range(self.shared(), device, keys, range, each)
    }

    /// Gives the last values of a key, newest first.
    pub fn last(
        &self,
        device: DeviceNo,
        key: KeyId,
        limit: usize,
        each: &mut dyn FnMut(i64, Point<'_>),
    ) -> Result<(), Error> {
        let range = Range {
            limit,
            order: Order::NewestFirst,
            ..Range::default()
        };
        self.range(device, Some(&[key]), &range, &mut |row| {
            row.points.iter().for_each(|point| each(row.ts_ms, *point));
            ControlFlow::Continue(())
        })
    }

    /// Gives a [`Summary`] for each device, key and interval that has values; of one device all intervals of a key after each
    /// other, ascending.
    pub fn aggregate(
        &self,
        devices: &[DeviceNo],
        keys: &[KeyId],
        intervals: &Intervals,
        each: &mut dyn FnMut(DeviceNo, KeyId, i64, &Summary),
    ) -> Result<(), Error> {
        query::aggregate(self.shared(), devices, keys, intervals, each)
    }

    /// Takes all rows of these devices out. Rows appended later are there again, but numbers are not to be used twice.
    pub fn delete_devices(&self, devices: &[DeviceNo]) -> Result<(), Error> {
        self.delete(devices, None, i64::MIN, i64::MAX)
    }

    pub fn delete_device(&self, device: DeviceNo) -> Result<(), Error> {
        self.delete_devices(&[device])
    }

    /// Takes the values of these keys, or of all, in [`from_ms`, `to_ms`) out.
    pub fn delete_range(
        &self,
        device: DeviceNo,
        keys: Option<&[KeyId]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), Error> {
        self.delete(&[device], keys, from_ms, to_ms)
    }

    fn delete(
        &self,
        devices: &[DeviceNo],
        keys: Option<&[KeyId]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), Error> {
        let shared = self.shared();
        if shared.is_closing.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let mut file = lock(&shared.deletions);
        for (partition, cell) in shared.parts.iter().enumerate() {
            let of_part = devices
                .iter()
                .filter(|device| partition_of(**device) == partition);
            if of_part.clone().next().is_none() {
                continue;
            }
            // Until it is written down, so that rows are on one side of it or on the other.
            let mut part = lock(&cell.part);
            let deletion = |device: DeviceNo, key| Deletion {
                number: 0,
                device: device.0,
                key,
                from_ms,
                to_ms,
                lsn: part.active.next_lsn - 1,
            };
            let mut deletions: Vec<Deletion> = Vec::new();
            for &device in of_part {
                match keys {
                    None => deletions.push(deletion(device, None)),
                    Some(keys) => {
                        deletions.extend(keys.iter().map(|key| deletion(device, Some(*key))))
                    }
                }
            }
            file.add(&mut deletions)?;
            shared.guard.deletions(file.next_number, file.is_synced);
            part.delete(shared, &deletions);
        }
        Ok(())
    }

    /// Devices that have rows, ascending; some of them may have none any more.
    pub fn devices(&self) -> Result<Vec<DeviceNo>, Error> {
        query::devices(self.shared())
    }

    /// Writes all rows to segment files, and waits until these are on disk.
    pub fn flush(&self) -> Result<(), Error> {
        let shared = self.shared();
        for cell in &shared.parts {
            lock(&cell.part).freeze(shared);
        }
        Shared::wake(&shared.flusher);
        let mut guard = lock(&shared.room_lock);
        while shared.frozen_bytes.load(Ordering::Acquire) > 0
            || shared.unsettled.load(Ordering::Acquire) > 0
        {
            if shared.has(Trouble::Flush) || shared.has(Trouble::Settle) {
                return Err(Error::Full("segment files cannot be written"));
            }
            if shared.is_closing.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            let (again, _) = shared
                .room
                .wait_timeout(guard, FLUSH_POLL)
                .unwrap_or_else(PoisonError::into_inner);
            guard = again;
        }
        Ok(())
    }

    /// Merges what can be merged and applies policies and deletions, now; waits until that is done.
    pub fn compact(&self) -> Result<(), Error> {
        let shared = self.shared();
        let mut done = lock(&shared.merges_done);
        // The pass that runs may have looked already: the second one to end has begun after this.
        let target = *done + 2;
        while *done < target {
            if shared.is_closing.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            shared.merge_wanted.store(true, Ordering::Release);
            Shared::wake(&shared.merger);
            let (again, _) = shared
                .merged
                .wait_timeout(done, FLUSH_POLL)
                .unwrap_or_else(PoisonError::into_inner);
            done = again;
        }
        Ok(())
    }

    /// Says anew how long points stay. A merge that has begun ends by what was said before.
    ///
    /// # Errors
    /// If a policy cannot be; everything stays as it was.
    pub fn assign(&self, assignment: Assignment) -> Result<(), OpenError> {
        let shared = self.shared();
        assignment.check(shared.config.window_ms)?;
        *lock(&shared.assignment) = Arc::new(assignment);
        Ok(())
    }

    /// Whether rows come faster than files are written: whoever appends is held then.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.shared().has(Trouble::Behind)
    }

    /// Whether rows are refused: the file system has too little room, or segment files cannot be written.
    #[inline]
    pub fn is_full(&self) -> bool {
        let shared = self.shared();
        shared.has(Trouble::DiskFull)
            || shared.has(Trouble::Behind)
                && (shared.has(Trouble::Flush) || shared.has(Trouble::Settle))
    }

    pub fn health(&self) -> Health {
        let shared = self.shared();
        if shared.has(Trouble::DiskFull) {
            Health::Full
        } else if shared.troubles() != 0 {
            Health::Failed
        } else {
            Health::Ok
        }
    }

    pub fn stats(&self) -> Stats {
        let shared = self.shared();
        let counters = &shared.counters;
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = Stats {
            rows: get(&counters.rows),
            points: get(&counters.points),
            keys: u64::from(shared.keys.len()),
            wal_bytes: get(&shared.wal.bytes),
            memory_bytes: shared.frozen_bytes.load(Ordering::Relaxed) as u64,
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
            ..Stats::default()
        };
        for cell in &shared.parts {
            let part = lock(&cell.part);
            stats.rows += part.active.rows;
            stats.points += part.active.points;
            stats.memory_bytes += part.active.bytes() as u64;
            stats.segments += part.files.len() as u64;
            stats.segment_bytes += part.files.iter().map(|file| file.bytes).sum::<u64>();
            stats.segment_points += part.files.iter().map(|file| file.meta.points).sum::<u64>();
        }
        stats
    }

    /// Stops accepting rows, forces what there is to disk and ends the threads. Also done when the last clone goes.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Inner {
    fn close(&self) {
        let shared = &self.shared;
        let mut threads = lock(&self.threads);
        if threads.is_empty() {
            return;
        }
        shared.is_closing.store(true, Ordering::Release);
        // Whoever appends now has got past the door before: wait until it is through.
        for cell in &shared.parts {
            drop(lock(&cell.part));
        }
        let threads_of = [
            &shared.keeper,
            &shared.flusher,
            &shared.settler,
            &shared.merger,
            &shared.verifier,
        ];
        threads_of.into_iter().for_each(Shared::wake);
        shared.synced.notify_all();
        shared.room.notify_all();
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the telemetry store panicked");
            }
        }
        if shared.config.fsync != Fsync::Never {
            keeper::sync(shared);
        }
        // What has no name after that is read from the log at the next start.
        let _ = settle::settle(shared);
        shared.wal.drop_prepared();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
