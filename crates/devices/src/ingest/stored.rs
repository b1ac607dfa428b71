//! The node's own time series as the store of the pipeline.

use series::{DeviceNo, Error, KeyId, Point, Series};

use super::outside::{Storage, StorageError, StoredRow};

fn told(error: &Error) -> StorageError {
    StorageError {
        reason: error.to_string().into(),
    }
}

impl Storage for Series {
    fn key(&self, name: &str) -> Result<KeyId, StorageError> {
        Series::key(self, name).map_err(|error| told(&error))
    }

    #[inline]
    fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), StorageError> {
        Series::append(self, device, ts_ms, points).map_err(|error| told(&error))
    }

    /// One wait for all of them, if the policy is to wait.
    fn append_all(
        &self,
        rows: &[StoredRow],
        points: &[Point<'_>],
    ) -> Result<(), (u64, StorageError)> {
        let (mut ticket, mut failed) = (None, None);
        for row in rows {
            let (first, count) = (row.first as usize, row.count as usize);
            match self.submit(row.device, row.ts_ms, &points[first..first + count]) {
                Ok(submitted) => ticket = ticket.max(Some(submitted)),
                Err(error) => {
                    let count = failed.map_or(1, |(count, _)| count + 1);
                    failed = Some((count, told(&error)));
                }
            }
        }
        if let Some(Err(error)) = ticket.map(|ticket| self.wait(ticket)) {
            return Err((rows.len() as u64, told(&error)));
        }
        failed.map_or(Ok(()), Err)
    }
}
