//! The node's own time series as the store of the pipeline.

use broker::hooks::Settled;
use series::{DeviceNo, Error, KeyId, Point, Series};

use super::outside::{Storage, StorageError, StorageErrorKind, StoredRow};

#[cold]
fn told(error: &Error) -> StorageError {
    StorageError {
        reason: error.to_string().into(),
        kind: match error {
            Error::Busy => StorageErrorKind::Busy,
            Error::Full(_) | Error::Io { .. } | Error::Closed => StorageErrorKind::NoRoom,
            _ => StorageErrorKind::Invalid,
        },
    }
}

impl Storage for Series {
    fn key(&self, name: &str) -> Result<KeyId, StorageError> {
        Series::key(self, name).map_err(|error| told(&error))
    }

    /// Does not wait for a sync, whatever the policy: [`Storage::settle`] does.
    #[inline]
    fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), StorageError> {
        let submitted = self.submit(device, ts_ms, points);
        submitted.map(|_| ()).map_err(|error| told(&error))
    }

    fn append_all(
        &self,
        rows: &[StoredRow],
        points: &[Point<'_>],
        refused: &mut dyn FnMut(usize, StorageError),
    ) {
        let row = |at: usize| {
            let row = rows[at];
            let (first, count) = (row.first as usize, row.count as usize);
            (row.device, row.ts_ms, &points[first..first + count])
        };
        let mut all = Vec::new();
        self.submit_all(rows.len(), row, &mut |at, error| {
            all.push((at, told(&error)));
        });
        // Rows are taken part by part of the store.
        all.sort_unstable_by_key(|(at, _)| *at);
        for (at, error) in all {
            refused(at, error);
        }
    }

    #[inline]
    fn is_behind(&self) -> bool {
        Series::is_behind(self)
    }

    #[inline]
    fn is_full(&self) -> bool {
        Series::is_full(self)
    }

    fn has_to_settle(&self) -> bool {
        self.syncs_always()
    }

    fn settle(&self, done: Settled) {
        self.when_settled(done);
    }
}
