//! Implements [`TelemetryStorage`] with the node's own time series, of which another node may get copies.

use hooks::DurableCallback;
use series::{DeviceNo, KeyId, Point, Series, SeriesError};
use telemetry_copy::CopiedSeries;

use super::ports::{StorageError, StorageErrorKind, StoredRow, TelemetryStorage};

#[cold]
fn storage_error(error: &SeriesError) -> StorageError {
    StorageError {
        reason: error.to_string().into(),
        kind: match error {
            SeriesError::Busy => StorageErrorKind::Busy,
            SeriesError::Full(_) | SeriesError::Io { .. } | SeriesError::Closed => {
                StorageErrorKind::NoRoom
            }
            _ => StorageErrorKind::Invalid,
        },
    }
}

impl TelemetryStorage for Series {
    fn reserve_key(
        &self,
        name: &str,
        admit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<KeyId>, StorageError> {
        Series::reserve_key(self, name, admit).map_err(|error| storage_error(&error))
    }

    fn commit_keys(&self) -> Result<(), StorageError> {
        Series::commit_keys(self).map_err(|error| storage_error(&error))
    }

    fn has_key(&self, key: KeyId) -> bool {
        Series::has_key(self, key)
    }

    /// Does not wait for a sync, whatever the fsync policy: use [`TelemetryStorage::settle`].
    #[inline]
    fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), StorageError> {
        let submitted = self.submit(device, ts_ms, points);
        submitted.map(|_| ()).map_err(|error| storage_error(&error))
    }

    fn append_all(
        &self,
        rows: &[StoredRow],
        points: &[Point<'_>],
        rejected: &mut dyn FnMut(usize, StorageError),
    ) {
        let row = |at: usize| row_parts(rows[at], points);
        report_in_order(rejected, |rejected| {
            self.submit_row_refs(rows.len(), row, rejected);
        });
    }

    #[inline]
    fn is_behind(&self) -> bool {
        Series::is_flush_behind(self)
    }

    #[inline]
    fn is_full(&self) -> bool {
        Series::is_full(self)
    }

    fn needs_settle(&self) -> bool {
        self.needs_sync_wait()
    }

    fn settle(&self, done: DurableCallback) {
        self.notify_when_durable(done);
    }
}

/// A row of `points`, as the series take it.
fn row_parts<'r, 'p>(row: StoredRow, points: &'r [Point<'p>]) -> (DeviceNo, i64, &'r [Point<'p>]) {
    let (first, count) = (row.first as usize, row.count as usize);
    (row.device, row.ts_ms, &points[first..first + count])
}

/// Reports the rows that `submit` rejects in their order; the store takes them partition by partition.
fn report_in_order(
    rejected: &mut dyn FnMut(usize, StorageError),
    submit: impl FnOnce(&mut dyn FnMut(usize, SeriesError)),
) {
    let mut all = Vec::new();
    submit(&mut |at, error| all.push((at, storage_error(&error))));
    all.sort_unstable_by_key(|(at, _)| *at);
    for (at, error) in all {
        rejected(at, error);
    }
}

impl TelemetryStorage for CopiedSeries {
    fn reserve_key(
        &self,
        name: &str,
        admit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<KeyId>, StorageError> {
        TelemetryStorage::reserve_key(self.series(), name, admit)
    }

    fn commit_keys(&self) -> Result<(), StorageError> {
        TelemetryStorage::commit_keys(self.series())
    }

    fn has_key(&self, key: KeyId) -> bool {
        self.series().has_key(key)
    }

    /// The row is not copied: use [`TelemetryStorage::append_row`].
    fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), StorageError> {
        TelemetryStorage::append(self.series(), device, ts_ms, points)
    }

    #[inline]
    fn append_row(&self, row: &StoredRow, points: &[Point<'_>]) -> Result<(), StorageError> {
        let submitted = self.submit(row.device, row.ts_ms, points, row.is_copied);
        submitted.map(|_| ()).map_err(|error| storage_error(&error))
    }

    fn append_all(
        &self,
        rows: &[StoredRow],
        points: &[Point<'_>],
        rejected: &mut dyn FnMut(usize, StorageError),
    ) {
        let row = |at: usize| row_parts(rows[at], points);
        let is_copied = |at: usize| rows[at].is_copied;
        report_in_order(rejected, |rejected| {
            self.submit_row_refs(rows.len(), row, is_copied, rejected);
        });
    }

    #[inline]
    fn is_behind(&self) -> bool {
        self.series().is_flush_behind()
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.series().is_full()
    }

    fn needs_settle(&self) -> bool {
        self.series().needs_sync_wait()
    }

    fn settle(&self, done: DurableCallback) {
        self.series().notify_when_durable(done);
    }
}
