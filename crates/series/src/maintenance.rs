//! The maintenance thread: clock, syncs, the next file of the write-ahead log, free disk space, and freezing
//! of old memtables.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::config::Fsync;
use crate::lock::lock;
use crate::partitioning::PARTITION_COUNT;
use crate::shared::{HealthFlag, SeriesShared, increment, now_ms};

const TICK: Duration = Duration::from_millis(100);
const SLOW_TICK: Duration = Duration::from_secs(1);

pub(crate) fn run(shared: &Arc<SeriesShared>) {
    let mut worker = Maintenance {
        shared,
        synced_at: Instant::now(),
        slow_at: None,
    };
    while !shared.is_closing.load(Ordering::Acquire) {
        worker.tick();
        std::thread::park_timeout(worker.pause());
    }
}

struct Maintenance<'a> {
    shared: &'a SeriesShared,
    synced_at: Instant,
    slow_at: Option<Instant>,
}

impl Maintenance<'_> {
    fn tick(&mut self) {
        let shared = self.shared;
        shared.set_clock(now_ms());
        let wanted = {
            let syncs = lock(&shared.syncs);
            syncs.wanted > syncs.done
        };
        let is_due = match shared.config.fsync {
            Fsync::Always | Fsync::Never => false,
            Fsync::Every(interval) => self.synced_at.elapsed() >= interval,
        };
        if wanted || is_due {
            self.synced_at = Instant::now();
            sync_log(shared);
        }
        if let Err(error) = shared.wal.prepare_next_file() {
            // If a block is needed while there is no file, its caller gets the error.
            if !shared.has_flag(HealthFlag::DiskFull) {
                tracing::warn!(%error, "preparation of the next telemetry write-ahead log file failed; retrying");
            }
        }
        if self.slow_at.is_none_or(|at| at.elapsed() >= SLOW_TICK) {
            self.slow_at = Some(Instant::now());
            self.check_free_space();
            shared.chunk_pool.shrink();
            self.freeze_old_memtables();
        }
    }

    fn pause(&self) -> Duration {
        if !self.shared.wal.is_used() {
            // The caller that takes the first block wakes this thread.
            return SLOW_TICK;
        }
        match self.shared.config.fsync {
            Fsync::Every(interval) => {
                let left = interval.saturating_sub(self.synced_at.elapsed());
                left.clamp(Duration::from_micros(100), TICK)
            }
            Fsync::Always | Fsync::Never => TICK,
        }
    }

    fn check_free_space(&self) {
        let shared = self.shared;
        match rustix::fs::statvfs(&shared.dir) {
            Ok(stat) => {
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                shared.counters.free_bytes.store(free, Ordering::Relaxed);
                let is_full = free < shared.config.min_free_bytes;
                if shared.set_flag(HealthFlag::DiskFull, is_full) {
                    match is_full {
                        true => tracing::error!(
                            directory = %shared.dir.display(),
                            free_bytes = free,
                            min_free_bytes = shared.config.min_free_bytes,
                            "time series store has too little free disk space; rejecting new rows"
                        ),
                        false => tracing::info!(
                            directory = %shared.dir.display(),
                            free_bytes = free,
                            "time series store has enough free disk space again; accepting rows"
                        ),
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, directory = %shared.dir.display(), "free disk space of the time series store cannot be determined")
            }
        }
    }

    /// Freezes memtables whose rows have waited long or keep the write-ahead log from shrinking.
    fn freeze_old_memtables(&self) {
        let shared = self.shared;
        let now_ms = shared.clock_ms.load(Ordering::Relaxed);
        let flush_after_ms = shared.config.flush_after.as_millis() as i64;
        let is_long = shared.wal.bytes.load(Ordering::Relaxed) > shared.config.max_wal_bytes;
        let pinned = if is_long {
            shared.wal.pinning_partitions(&shared.flushed_lsns())
        } else {
            Vec::new()
        };
        for (partition, cell) in shared.partitions.iter().enumerate() {
            let mut part = lock(&cell.partition);
            let is_old = !part.active.is_empty() && now_ms - part.active.since_ms >= flush_after_ms;
            if is_old || pinned.contains(&partition) {
                part.freeze(shared);
            }
        }
        // Files of partitions without rows may be removable without a flush.
        if is_long && let Err(error) = shared.wal.remove_flushed_files(&shared.flushed_lsns()) {
            increment(&shared.counters.errors, 1);
            tracing::warn!(%error, "removal of telemetry write-ahead log files failed; retrying");
        }
    }
}

/// Forces everything appended so far to disk and notifies the waiting callers.
pub(crate) fn sync_log(shared: &SeriesShared) {
    let number = shared.syncs_begun.fetch_add(1, Ordering::SeqCst) + 1;
    let last: [u64; PARTITION_COUNT] =
        std::array::from_fn(|at| shared.partitions[at].last_lsn.load(Ordering::Acquire));
    let started = Instant::now();
    let result = shared.wal.sync();
    increment(&shared.counters.syncs, 1);
    let duration_us = started.elapsed().as_micros() as u64;
    shared
        .counters
        .last_sync_us
        .store(duration_us, Ordering::Relaxed);
    match result {
        Ok(()) => {
            for (partition, (cell, lsn)) in shared.partitions.iter().zip(last).enumerate() {
                let before = cell.synced_lsn.fetch_max(lsn, Ordering::Release);
                shared.marks.set_synced(partition, lsn.max(before));
            }
            if shared.set_flag(HealthFlag::Sync, false) {
                tracing::info!("telemetry write-ahead log sync recovered");
            }
            shared.notify_synced(number);
        }
        Err(error) => {
            increment(&shared.counters.errors, 1);
            if shared.set_flag(HealthFlag::Sync, true) {
                tracing::error!(%error, "telemetry write-ahead log sync failed; writing its rows to segment files");
            }
            // From now on the content of the file is unknown; it is not written any more, and all its rows go
            // to segment files.
            shared.wal.retire_open_file();
            for cell in &shared.partitions {
                lock(&cell.partition).freeze(shared);
            }
            shared.failed_sync.store(number, Ordering::Release);
            SeriesShared::wake(&shared.flusher);
        }
    }
}
