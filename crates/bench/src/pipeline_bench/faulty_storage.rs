//! A telemetry store that is slow, stands still, or rejects rows, for runs that have to raise alerts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use devices::ingest::{StorageError, StorageErrorKind, StoredRow, TelemetryStorage};
use hooks::DurableCallback;
use series::{DeviceNo, KeyId, Point, Series};

/// What is wrong with the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StorageFault {
    None,
    /// It stands still for this time, from the first row.
    Outage(Duration),
    /// It stands still until this time after all messages were handed over. Senders must not wait.
    OutageAfterSending(Duration),
    /// It rejects one row of so many.
    Rejection {
        every: u64,
    },
}

/// A store with a fault.
pub(crate) struct FaultyStorage {
    series: Series,
    fault: StorageFault,
    first_row: OnceLock<Instant>,
    /// Whether the outage that lasts until after the last message is over.
    has_recovered: Mutex<bool>,
    recovery: Condvar,
    rows: AtomicU64,
}

impl FaultyStorage {
    pub(crate) fn new(series: Series, fault: StorageFault) -> Self {
        Self {
            series,
            fault,
            first_row: OnceLock::new(),
            has_recovered: Mutex::new(false),
            recovery: Condvar::new(),
            rows: AtomicU64::new(0),
        }
    }

    /// Lets rows pass when the time of the outage is over. All messages have been handed over.
    pub(crate) fn end_outage_after_sending(&self) {
        if let StorageFault::OutageAfterSending(time) = self.fault {
            std::thread::sleep(time);
            *self
                .has_recovered
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = true;
            self.recovery.notify_all();
        }
    }

    fn wait_for_recovery(&self) {
        match self.fault {
            StorageFault::Outage(time) => {
                let since = *self.first_row.get_or_init(Instant::now);
                std::thread::sleep(time.saturating_sub(since.elapsed()));
            }
            StorageFault::OutageAfterSending(_) => {
                let guard = self
                    .has_recovered
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let recovered = self.recovery.wait_while(guard, |recovered| !*recovered);
                drop(recovered.unwrap_or_else(PoisonError::into_inner));
            }
            StorageFault::None | StorageFault::Rejection { .. } => {}
        }
    }

    fn is_rejected(&self) -> bool {
        match self.fault {
            StorageFault::Rejection { every } => {
                self.rows.fetch_add(1, Relaxed).is_multiple_of(every)
            }
            _ => false,
        }
    }
}

fn rejection() -> StorageError {
    StorageError {
        reason: "rejected by the benchmark".into(),
        kind: StorageErrorKind::Invalid,
    }
}

impl TelemetryStorage for FaultyStorage {
    fn reserve_key(
        &self,
        name: &str,
        admit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<KeyId>, StorageError> {
        TelemetryStorage::reserve_key(&self.series, name, admit)
    }

    fn commit_keys(&self) -> Result<(), StorageError> {
        TelemetryStorage::commit_keys(&self.series)
    }

    fn has_key(&self, key: KeyId) -> bool {
        TelemetryStorage::has_key(&self.series, key)
    }

    fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), StorageError> {
        self.wait_for_recovery();
        match self.is_rejected() {
            true => Err(rejection()),
            false => TelemetryStorage::append(&self.series, device, ts_ms, points),
        }
    }

    fn append_all(
        &self,
        rows: &[StoredRow],
        points: &[Point<'_>],
        rejected: &mut dyn FnMut(usize, StorageError),
    ) {
        self.wait_for_recovery();
        let mut errors = Vec::new();
        // The rows that the store gets, with their places in `rows`.
        let (mut places, mut accepted) = (Vec::new(), Vec::new());
        for (at, row) in rows.iter().enumerate() {
            match self.is_rejected() {
                true => errors.push((at, rejection())),
                false => {
                    places.push(at);
                    accepted.push(*row);
                }
            }
        }
        self.series.append_all(&accepted, points, &mut |at, error| {
            errors.push((places[at], error));
        });
        errors.sort_unstable_by_key(|(at, _)| *at);
        for (at, error) in errors {
            rejected(at, error);
        }
    }

    fn is_behind(&self) -> bool {
        TelemetryStorage::is_behind(&self.series)
    }

    fn is_full(&self) -> bool {
        TelemetryStorage::is_full(&self.series)
    }

    fn needs_settle(&self) -> bool {
        TelemetryStorage::needs_settle(&self.series)
    }

    fn settle(&self, done: DurableCallback) {
        TelemetryStorage::settle(&self.series, done);
    }
}
