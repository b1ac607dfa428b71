//! Adding rows, and waiting until they are as safe as the fsync policy says.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::config::Fsync;
use crate::error::Error;
use crate::handle::Series;
use crate::part::partition_of;
use crate::point::{DeviceNo, Point, RowPoints, Rows};
use crate::shared::{Shared, lock};

/// When what was submitted is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Called when rows are as safe as the fsync policy says.
pub type Safe = Box<dyn FnOnce() + Send + Sync>;

impl Series {
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
        let (mut first, mut count): (Option<(usize, Error)>, usize) = (None, 0);
        let row = |at: usize| {
            let row = &rows.rows()[at];
            (row.device, row.ts_ms, rows.points_of(row))
        };
        self.submit_each(rows.len(), row, &mut |at, error| {
            count += 1;
            if first.as_ref().is_none_or(|(first, _)| at < *first) {
                first = Some((at, error));
            }
        });
        let ticket = self.ticket();
        match first {
            None => Ok(ticket),
            Some(first) => Err(RowsError {
                first,
                refused: count,
                ticket,
            }),
        }
    }

    /// As [`submit_rows`](Self::submit_rows), of so many rows that stand elsewhere. Tells which are refused, in any order.
    pub fn submit_all<'r, 'p: 'r>(
        &self,
        count: usize,
        row: impl Fn(usize) -> (DeviceNo, i64, &'r [Point<'p>]),
        refused: &mut dyn FnMut(usize, Error),
    ) -> Ticket {
        self.submit_each(count, row, refused);
        self.ticket()
    }

    fn submit_each<P: RowPoints>(
        &self,
        count: usize,
        row: impl Fn(usize) -> (DeviceNo, i64, P),
        refused: &mut dyn FnMut(usize, Error),
    ) {
        let shared = self.shared();
        let there = (0..count).fold(0_u32, |there, at| there | 1 << partition_of(row(at).0));
        for (index, cell) in shared.parts.iter().enumerate() {
            if there & (1 << index) == 0 {
                continue;
            }
            let of_part = (0..count).filter(|&at| partition_of(row(at).0) == index);
            if let Err(error) = shared.admit() {
                // Not one after the other: each might be held for seconds.
                of_part.for_each(|at| refused(at, of_all(&error)));
                continue;
            }
            let mut part = lock(&cell.part);
            for at in of_part {
                let (device, ts_ms, points) = row(at);
                let result = check_time(shared, ts_ms)
                    .and_then(|()| part.append(shared, device, ts_ms, points));
                if let Err(error) = result {
                    refused(at, error);
                }
            }
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

    /// Whether rows are only safe after a sync that is to be waited for.
    pub fn syncs_always(&self) -> bool {
        self.shared().config.fsync == Fsync::Always
    }

    /// Calls `safe` when all that was submitted until now is as safe as the fsync policy says: at once, or on a thread of the series.
    /// One that is closed before that drops it.
    pub fn when_settled(&self, safe: Safe) {
        let (shared, ticket) = (self.shared(), self.ticket());
        let mut syncs = lock(&shared.syncs);
        if syncs.done >= ticket.0 {
            drop(syncs);
            safe();
            return;
        }
        syncs.callers.push((ticket.0, safe));
        if syncs.wanted < ticket.0 {
            syncs.wanted = ticket.0;
            drop(syncs);
            Shared::wake(&shared.keeper);
        }
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

/// What admits no row, for each of them.
fn of_all(error: &Error) -> Error {
    match error {
        Error::Full(why) => Error::Full(why),
        Error::Closed => Error::Closed,
        _ => Error::Busy,
    }
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
