//! What the pipeline needs of others: the store, the registry, and everybody who wants to know.

use std::sync::Arc;

use series::{DeviceNo, KeyId, Point};

use super::pipeline::Message;
use super::profile::{Profile, Speaker, Voice};
use crate::dialect::{Dialect, Said};

/// Why something was not stored.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct StorageError {
    pub reason: Box<str>,
}

/// Points of one device and time, among the points of a batch.
#[derive(Debug, Clone, Copy)]
pub struct StoredRow {
    pub device: DeviceNo,
    pub ts_ms: i64,
    /// From which of the points on, and how many.
    pub first: u32,
    pub count: u32,
}

/// Where rows are kept. What it has taken survives the end of the process.
pub trait Storage: Send + Sync {
    /// The number of a key; makes it.
    ///
    /// # Errors
    /// If there are too many keys, or the name cannot be one.
    fn key(&self, name: &str) -> Result<KeyId, StorageError>;

    /// # Errors
    /// If the row is not stored: too old, too far in the future, a full disk.
    fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), StorageError>;

    /// Stores many rows, in their order per device. How many were not, and why the last of them was not.
    fn append_all(
        &self,
        rows: &[StoredRow],
        points: &[Point<'_>],
    ) -> Result<(), (u64, StorageError)> {
        let mut failed = None;
        for row in rows {
            let (first, count) = (row.first as usize, row.count as usize);
            let points = &points[first..first + count];
            if let Err(error) = self.append(row.device, row.ts_ms, points) {
                let (count, _) = failed.unwrap_or((0, error.clone()));
                failed = Some((count + 1, error));
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Who is behind which gateway.
pub trait Family: Send + Sync {
    /// The device that a gateway calls by this name, if it is registered and may be behind it. Called on shards: never waits.
    fn child(&self, gateway: Voice<'_>, name: &str) -> Option<Arc<Speaker>>;

    /// The device of a number. May wait: called at start.
    fn speaker(&self, device: DeviceNo) -> Option<Arc<Speaker>>;
}

/// Everybody else. Called on shards and workers: never waits.
pub trait Outside: Send + Sync {
    /// Whether [`Outside::stored`] is to be called at all.
    fn wants_rows(&self) -> bool {
        false
    }

    /// A row is in the store.
    fn stored(&self, speaker: Voice<'_>, profile: &Profile, ts_ms: i64, points: &[Point<'_>]) {
        let _ = (speaker, profile, ts_ms, points);
    }

    /// A device has said something besides telemetry. `by`: the one whose connection it came on.
    fn said(
        &self,
        by: Voice<'_>,
        about: Voice<'_>,
        dialect: Dialect,
        said: &Said<'_>,
        now_ms: i64,
    ) {
        let _ = (by, about, dialect, said, now_ms);
    }

    /// A gateway speaks of devices that are not at hand: they may be on the disk, or nowhere. Whoever finds it has the message worked off
    /// again by a lane of [`Pipeline::last_lane`](super::Pipeline::last_lane); what of it is stored already is stored again, to the
    /// same effect. `false`: nobody will.
    fn later(&self, message: &Message<'_>) -> bool {
        let _ = message;
        false
    }

    /// A message of a product that keeps a log of them.
    fn logged(&self, by: Voice<'_>, topic: &str, payload: &[u8], now_ms: i64) {
        let _ = (by, topic, payload, now_ms);
    }

    /// A node of a chain wants an alarm to be looked at.
    fn alarm(&self, speaker: Voice<'_>, profile: &Profile, ts_ms: i64, points: &[Point<'_>]) {
        let _ = (speaker, profile, ts_ms, points);
    }

    fn republish(&self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        let _ = (topic, payload, qos, retain);
    }

    /// A row for a sink.
    fn sink(&self, name: &str, row: rules::Value<'_>) {
        let _ = (name, row);
    }

    /// Whether publishers are to wait for one of them.
    fn is_full(&self) -> bool {
        false
    }
}

/// Nobody.
pub struct NoOutside;

impl Outside for NoOutside {}

impl Family for NoOutside {
    fn child(&self, _: Voice<'_>, _: &str) -> Option<Arc<Speaker>> {
        None
    }

    fn speaker(&self, _: DeviceNo) -> Option<Arc<Speaker>> {
        None
    }
}
