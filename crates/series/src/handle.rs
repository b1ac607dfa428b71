//! The store as others see it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::{Config, Fsync, Policy};
use crate::deletions::{Deletion, Deletions};
use crate::directory;
use crate::error::{Error, OpenError, io_error};
use crate::keys::Keys;
use crate::part::{Part, partition_of};
use crate::point::{DeviceNo, HeldRow, KeyId, Point, Row, Rows};
use crate::query::{self, Order, Range};
use crate::replay::replay;
use crate::shared::{Shared, Start, Trouble, lock};
use crate::summary::{Intervals, Summary};
use crate::wal::PARTITIONS;
use crate::wal::recover::Cut;
use crate::{flush, keeper, merge};

/// What opening found.
#[derive(Debug, Clone, Default)]
pub struct OpenReport {
    /// Rows that were in the write-ahead log only.
    pub recovered_rows: u64,
    /// Ends that were torn off by a crash or a power failure.
    pub cuts: Vec<Cut>,
    pub keys: u32,
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
}

/// How often somebody who waits looks again, should a call be missed.
const FLUSH_POLL: Duration = Duration::from_millis(50);

/// When what was submitted is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

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
        let keys = Keys::open(dir, config.max_keys, config.fsync != Fsync::Never)?;
        let (deletions, of_parts) = Deletions::open(dir, config.fsync != Fsync::Never)?;
        let (found, next_file_id) = directory::segments(&dir.join(directory::SEGMENTS))?;
        let replayed = replay(dir, &config, &found, of_parts)?;
        let report = OpenReport {
            recovered_rows: replayed.rows,
            cuts: replayed.cuts,
            keys: keys.len(),
        };
        let mut index = 0..PARTITIONS;
        let parts = replayed
            .parts
            .map(|part| Part::new(index.next().expect("one for each partition"), part));
        let mut parts = parts;
        for segment in found {
            let part = &mut parts[segment.meta.partition];
            part.change_files(&[], vec![segment]);
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
        }));
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
        let _ = shared.merger.set(spawn("series-merger", merge::run)?);
        Ok(())
    }

    fn shared(&self) -> &Shared {
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

    /// Adds a row: points of one device and one time, in any order of times. Where a key has a value at this time already, this
    /// one takes its place. When it returns, the row survives the end of this process, and with [`Fsync::Always`] a power
    /// failure.
    pub fn append(&self, device: DeviceNo, ts_ms: i64, points: &[Point<'_>]) -> Result<(), Error> {
        let ticket = self.submit(device, ts_ms, points)?;
        self.wait(ticket)
    }

    /// As [`append`](Self::append), without waiting for a sync: [`wait`](Self::wait) does.
    #[inline]
    pub fn submit(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<Ticket, Error> {
        let shared = self.shared();
        shared.admit()?;
        check_time(shared, ts_ms)?;
        lock(&shared.parts[partition_of(device)].part).append(shared, device, ts_ms, points)?;
        Ok(self.ticket())
    }

    /// Adds rows in their order per device, with one lock per partition. Where one is refused, [`RowsError`] tells which, and the
    /// others are there all the same.
    pub fn append_rows(&self, rows: &Rows) -> Result<(), RowsError> {
        let result = self.submit_rows(rows);
        let (Ok(ticket) | Err(RowsError { ticket, .. })) = result;
        self.wait(ticket).map_err(|error| RowsError {
            first: (0, error),
            refused: rows.len(),
            ticket,
        })?;
        result.map(|_| ())
    }

    /// As [`append_rows`](Self::append_rows), without waiting for a sync.
    pub fn submit_rows(&self, rows: &Rows) -> Result<Ticket, RowsError> {
        let shared = self.shared();
        let mut refused: Option<(usize, Error)> = None;
        let mut count = 0;
        let mut refuse = |at: usize, error| {
            count += 1;
            if refused.as_ref().is_none_or(|(first, _)| at < *first) {
                refused = Some((at, error));
            }
        };
        let mut there = 0_u32;
        rows.rows()
            .iter()
            .for_each(|row| there |= 1 << partition_of(row.device));
        for (index, cell) in shared.parts.iter().enumerate() {
            if there & (1 << index) == 0 {
                continue;
            }
            let admitted = shared.admit();
            let mut part = admitted.is_ok().then(|| lock(&cell.part));
            let of_part = |(_, row): &(usize, &HeldRow)| partition_of(row.device) == index;
            for (at, row) in rows.rows().iter().enumerate().filter(of_part) {
                let result = match &mut part {
                    None => shared.admit(),
                    Some(part) => check_time(shared, row.ts_ms).and_then(|()| {
                        part.append(shared, row.device, row.ts_ms, rows.points_of(row))
                    }),
                };
                if let Err(error) = result {
                    refuse(at, error);
                }
            }
        }
        match refused {
            None => Ok(self.ticket()),
            Some(first) => Err(RowsError {
                first,
                refused: count,
                ticket: self.ticket(),
            }),
        }
    }

    #[inline]
    fn ticket(&self) -> Ticket {
        match self.shared().config.fsync {
            // A sync that begins after this has all that was appended before.
            Fsync::Always => Ticket(self.shared().syncs_begun.load(Ordering::SeqCst) + 1),
            Fsync::Every(_) | Fsync::Never => Ticket(0),
        }
    }

    /// Waits until what was submitted is as safe as the fsync policy says: for a sync with [`Fsync::Always`], otherwise not at all.
    pub fn wait(&self, ticket: Ticket) -> Result<(), Error> {
        if ticket.0 == 0 {
            return Ok(());
        }
        let shared = self.shared();
        let mut syncs = lock(&shared.syncs);
        while syncs.done < ticket.0 {
            if shared.is_closing.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            if syncs.wanted < ticket.0 {
                syncs.wanted = ticket.0;
                Shared::wake(&shared.keeper);
            }
            syncs = shared
                .synced
                .wait(syncs)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_settled(&self, ticket: Ticket) -> bool {
        ticket.0 == 0 || lock(&self.shared().syncs).done >= ticket.0
    }

    /// Forces everything appended so far to disk, whatever the policy.
    pub fn sync(&self) -> Result<(), Error> {
        let begun = self.shared().syncs_begun.load(Ordering::SeqCst);
        self.wait(Ticket(begun + 1))
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
            part.delete(shared, &deletions);
        }
        Ok(())
    }

    /// Devices that have rows, ascending; some of them may have none any more.
    pub fn devices(&self) -> Result<Vec<DeviceNo>, Error> {
        query::devices(self.shared())
    }

    /// Writes all rows to segment files, and waits until that is done.
    pub fn flush(&self) -> Result<(), Error> {
        let shared = self.shared();
        for cell in &shared.parts {
            lock(&cell.part).freeze(shared);
        }
        Shared::wake(&shared.flusher);
        let mut guard = lock(&shared.room_lock);
        while shared.frozen_bytes.load(Ordering::Acquire) > 0 {
            if shared.has(Trouble::Flush) {
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

    /// Names the policy of each device, by its number. It is asked when rows go to segment files and when these are merged.
    /// Only the first one that is set counts.
    pub fn set_policy_of(&self, policy_of: impl Fn(DeviceNo) -> u8 + Send + Sync + 'static) {
        let _ = self.shared().policy_of.set(Box::new(policy_of));
    }

    /// Replaces the policies.
    pub fn set_policies(&self, policies: &[(u8, Policy)]) -> Result<(), OpenError> {
        let shared = self.shared();
        for (number, policy) in policies {
            policy.check(*number, shared.config.window_ms)?;
        }
        *lock(&shared.policies) = policies.into();
        Ok(())
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
            ..Stats::default()
        };
        for cell in &shared.parts {
            let part = lock(&cell.part);
            stats.rows += part.active.rows;
            stats.points += part.active.points;
            stats.memory_bytes += part.active.bytes as u64;
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
        for thread in [&shared.keeper, &shared.flusher, &shared.merger] {
            Shared::wake(thread);
        }
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
        shared.wal.drop_prepared();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Rows of a batch that were refused; all others were appended.
#[derive(Debug, thiserror::Error)]
#[error("row {} of a batch was refused: {} ({refused} in all)", first.0, first.1)]
pub struct RowsError {
    /// The first one's place in the batch, and why.
    pub first: (usize, Error),
    pub refused: usize,
    /// Of those that were appended.
    pub ticket: Ticket,
}

#[inline]
fn check_time(shared: &Shared, ts_ms: i64) -> Result<(), Error> {
    let oldest_ms = shared.oldest_ms.load(Ordering::Relaxed);
    let newest_ms = shared.newest_ms.load(Ordering::Relaxed);
    if (oldest_ms..=newest_ms).contains(&ts_ms) {
        return Ok(());
    }
    Err(time_refusal(shared, ts_ms))
}

#[cold]
fn time_refusal(shared: &Shared, ts_ms: i64) -> Error {
    if ts_ms > shared.newest_ms.load(Ordering::Relaxed) {
        return Error::Future {
            ts_ms,
            max_future_ms: shared.config.max_future_ms,
        };
    }
    Error::TooOld {
        ts_ms,
        retention_ms: shared.longest_retention().unwrap_or(i64::MAX),
    }
}
