//! Appends rows, and waits until they are as durable as the fsync policy demands.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::config::Fsync;
use crate::error::SeriesError;
use crate::handle::Series;
use crate::lock::lock;
use crate::partitioning::partition_of;
use crate::point::{DeviceNo, Point};
use crate::shared::{DurableCallback, SeriesShared};

/// Identifies the sync that makes submitted rows durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncTicket(u64);

impl Series {
    /// Appends a row: points of one device and one time. Rows may arrive in any order of times. If a key
    /// already has a value at this time, the new value replaces it. When this returns, the row survives the
    /// end of the process and, with [`Fsync::Always`], a power failure.
    pub fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), SeriesError> {
        let ticket = self.submit(device, ts_ms, points)?;
        self.wait_until_durable(ticket)
    }

    /// Like [`append`](Self::append), without waiting for a sync:
    /// [`wait_until_durable`](Self::wait_until_durable) does that.
    #[inline]
    pub fn submit(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<SyncTicket, SeriesError> {
        let shared = self.shared();
        shared.check_admission()?;
        check_time(shared, ts_ms)?;
        lock(&shared.partitions[partition_of(device)].partition)
            .append(shared, device, ts_ms, points)?;
        Ok(self.ticket())
    }

    /// Appends `count` rows in their order per device, with one lock per partition, without waiting for a sync. Reports the
    /// rejected rows, in any order; the other rows are appended.
    pub fn submit_row_refs<'r, 'p: 'r>(
        &self,
        count: usize,
        row: impl Fn(usize) -> (DeviceNo, i64, &'r [Point<'p>]),
        rejected: &mut dyn FnMut(usize, SeriesError),
    ) -> SyncTicket {
        let shared = self.shared();
        let there = (0..count).fold(0_u32, |there, at| there | 1 << partition_of(row(at).0));
        for (index, cell) in shared.partitions.iter().enumerate() {
            if there & (1 << index) == 0 {
                continue;
            }
            let of_part = (0..count).filter(|&at| partition_of(row(at).0) == index);
            if let Err(error) = shared.check_admission() {
                // Not one after the other: each attempt might block for seconds.
                of_part.for_each(|at| rejected(at, clone_batch_error(&error)));
                continue;
            }
            let mut part = lock(&cell.partition);
            for at in of_part {
                let (device, ts_ms, points) = row(at);
                let result = check_time(shared, ts_ms)
                    .and_then(|()| part.append(shared, device, ts_ms, points));
                if let Err(error) = result {
                    rejected(at, error);
                }
            }
        }
        self.ticket()
    }

    #[inline]
    fn ticket(&self) -> SyncTicket {
        match self.shared().config.fsync {
            // The next sync to begin covers all rows appended before.
            Fsync::Always => SyncTicket(self.shared().syncs_begun.load(Ordering::SeqCst) + 1),
            Fsync::Every(_) | Fsync::Never => SyncTicket(0),
        }
    }

    /// Waits until submitted rows are as durable as the fsync policy demands: for a sync with
    /// [`Fsync::Always`], otherwise not at all.
    pub fn wait_until_durable(&self, ticket: SyncTicket) -> Result<(), SeriesError> {
        if ticket.0 == 0 {
            return Ok(());
        }
        let shared = self.shared();
        let mut syncs = lock(&shared.syncs);
        while syncs.done < ticket.0 {
            if shared.is_closing.load(Ordering::Acquire) {
                return Err(SeriesError::Closed);
            }
            if syncs.wanted < ticket.0 {
                syncs.wanted = ticket.0;
                SeriesShared::wake(&shared.maintenance);
            }
            syncs = shared
                .synced
                .wait(syncs)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Whether rows become durable only with a sync that callers have to wait for.
    pub fn needs_sync_wait(&self) -> bool {
        self.shared().config.fsync == Fsync::Always
    }

    /// Calls `safe` when all rows submitted so far are as durable as the fsync policy demands: immediately,
    /// or on a thread of the series. A store that is closed before that drops the callback.
    pub fn notify_when_durable(&self, safe: DurableCallback) {
        let (shared, ticket) = (self.shared(), self.ticket());
        let mut syncs = lock(&shared.syncs);
        if syncs.done >= ticket.0 {
            drop(syncs);
            safe();
            return;
        }
        syncs.callbacks.push((ticket.0, safe));
        if syncs.wanted < ticket.0 {
            syncs.wanted = ticket.0;
            drop(syncs);
            SeriesShared::wake(&shared.maintenance);
        }
    }

    /// Forces all rows appended so far to disk, whatever the policy.
    pub fn sync(&self) -> Result<(), SeriesError> {
        let begun = self.shared().syncs_begun.load(Ordering::SeqCst);
        self.wait_until_durable(SyncTicket(begun + 1))
    }
}

/// Clones an error that rejects every row, once per row.
fn clone_batch_error(error: &SeriesError) -> SeriesError {
    match error {
        SeriesError::Full(why) => SeriesError::Full(why),
        SeriesError::Closed => SeriesError::Closed,
        _ => SeriesError::Busy,
    }
}

#[inline]
fn check_time(shared: &SeriesShared, ts_ms: i64) -> Result<(), SeriesError> {
    let oldest_ms = shared.oldest_ms.load(Ordering::Relaxed);
    let newest_ms = shared.newest_ms.load(Ordering::Relaxed);
    if (oldest_ms..=newest_ms).contains(&ts_ms) {
        return Ok(());
    }
    Err(time_error(shared, ts_ms))
}

#[cold]
fn time_error(shared: &SeriesShared, ts_ms: i64) -> SeriesError {
    if ts_ms > shared.newest_ms.load(Ordering::Relaxed) {
        return SeriesError::Future {
            ts_ms,
            max_future_ms: shared.config.max_future_ms,
        };
    }
    SeriesError::TooOld {
        ts_ms,
        retention_ms: shared.longest_retention().unwrap_or(i64::MAX),
    }
}
