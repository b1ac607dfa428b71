//! The keeper's thread: clock, syncs, the write-ahead log's next file, room on disk, and freezing what is old.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::config::Fsync;
use crate::shared::{Shared, Trouble, count, lock, now_ms};
use crate::wal::PARTITIONS;

const TICK: Duration = Duration::from_millis(100);
const SLOW_TICK: Duration = Duration::from_secs(1);

pub(crate) fn run(shared: &Arc<Shared>) {
    let mut keeper = Keeper {
        shared,
        synced_at: Instant::now(),
        slow_at: None,
    };
    while !shared.is_closing.load(Ordering::Acquire) {
        keeper.tick();
        std::thread::park_timeout(keeper.pause());
    }
}

struct Keeper<'a> {
    shared: &'a Shared,
    synced_at: Instant,
    slow_at: Option<Instant>,
}

impl Keeper<'_> {
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
            sync(shared);
        }
        if let Err(error) = shared.wal.prepare() {
            // A block that is wanted while there is no file says so to its caller.
            if !shared.has(Trouble::DiskFull) {
                tracing::warn!(%error, "the next file of the telemetry write-ahead log cannot be prepared");
            }
        }
        if self.slow_at.is_none_or(|at| at.elapsed() >= SLOW_TICK) {
            self.slow_at = Some(Instant::now());
            self.look_at_room();
            shared.spare.shrink();
            self.freeze_old();
        }
    }

    fn pause(&self) -> Duration {
        if !self.shared.wal.is_used() {
            // Whoever takes the first block wakes it.
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

    fn look_at_room(&self) {
        let shared = self.shared;
        match rustix::fs::statvfs(&shared.dir) {
            Ok(stat) => {
                let free = stat.f_bavail.saturating_mul(stat.f_frsize);
                shared.counters.free_bytes.store(free, Ordering::Relaxed);
                let is_full = free < shared.config.min_free_bytes;
                if shared.set(Trouble::DiskFull, is_full) {
                    match is_full {
                        true => tracing::error!(
                            free,
                            "the telemetry store has too little room and accepts nothing more"
                        ),
                        false => tracing::info!(free, "the telemetry store has room again"),
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the room left for telemetry cannot be seen"),
        }
    }

    /// Rows that have waited for long, or that keep the write-ahead log from shrinking, go to segment files.
    fn freeze_old(&self) {
        let shared = self.shared;
        let now_ms = shared.clock_ms.load(Ordering::Relaxed);
        let flush_after_ms = shared.config.flush_after.as_millis() as i64;
        let is_long = shared.wal.bytes.load(Ordering::Relaxed) > shared.config.max_wal_bytes;
        let pinned = if is_long {
            shared.wal.pinned_by(&shared.flushed())
        } else {
            Vec::new()
        };
        for (partition, cell) in shared.parts.iter().enumerate() {
            let mut part = lock(&cell.part);
            let is_old = !part.active.is_empty() && now_ms - part.active.since_ms >= flush_after_ms;
            if is_old || pinned.contains(&partition) {
                part.freeze(shared);
            }
        }
        // What was left by partitions without rows may go without a flush.
        if is_long && let Err(error) = shared.wal.release(&shared.flushed()) {
            count(&shared.counters.errors, 1);
            tracing::warn!(%error, "a file of the telemetry write-ahead log stays");
        }
    }
}

/// Forces everything appended so far to disk and tells those who wait.
pub(crate) fn sync(shared: &Shared) {
    let number = shared.syncs_begun.fetch_add(1, Ordering::SeqCst) + 1;
    let last: [u64; PARTITIONS] =
        std::array::from_fn(|at| shared.parts[at].last_lsn.load(Ordering::Acquire));
    let started = Instant::now();
    let result = shared.wal.sync();
    count(&shared.counters.syncs, 1);
    let took_us = started.elapsed().as_micros() as u64;
    shared
        .counters
        .last_sync_us
        .store(took_us, Ordering::Relaxed);
    match result {
        Ok(()) => {
            for (partition, (cell, lsn)) in shared.parts.iter().zip(last).enumerate() {
                let before = cell.synced_lsn.fetch_max(lsn, Ordering::Release);
                shared.guard.synced(partition, lsn.max(before));
            }
            if shared.set(Trouble::Sync, false) {
                tracing::info!("the telemetry write-ahead log can be forced to disk again");
            }
            shared.synced_upto(number);
        }
        Err(error) => {
            count(&shared.counters.errors, 1);
            if shared.set(Trouble::Sync, true) {
                tracing::error!(%error, "the telemetry write-ahead log cannot be forced to disk; its rows go to segment files");
            }
            // What the file has is unknown from now on; it is written no more, and all its rows go elsewhere.
            shared.wal.leave();
            for cell in &shared.parts {
                lock(&cell.part).freeze(shared);
            }
            shared.rescue_upto.store(number, Ordering::Release);
            Shared::wake(&shared.flusher);
        }
    }
}
