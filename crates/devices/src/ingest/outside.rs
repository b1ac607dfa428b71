//! What the pipeline needs of others: the store, the registry, and everybody who wants to know.

use std::sync::Arc;

use broker::hooks::Settled;
use series::{DeviceNo, KeyId, Point};

use super::pipeline::Message;
use super::profile::{Profile, Speaker, Voice};
use crate::dialect::{Dialect, Said};

/// Why something was not stored.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct StorageError {
    pub reason: Box<str>,
    pub kind: StorageErrorKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageErrorKind {
    /// The row cannot be stored, now or later.
    Invalid,
    /// The store is behind with writing, and takes rows again in a moment.
    Busy,
    /// The store has no room, or its disk fails: it may take rows again when somebody has seen to that.
    NoRoom,
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

    /// Stores many rows, in their order per device, and tells which were not stored, ascending.
    fn append_all(
        &self,
        rows: &[StoredRow],
        points: &[Point<'_>],
        refused: &mut dyn FnMut(usize, StorageError),
    ) {
        for (at, row) in rows.iter().enumerate() {
            let (first, count) = (row.first as usize, row.count as usize);
            let points = &points[first..first + count];
            if let Err(error) = self.append(row.device, row.ts_ms, points) {
                refused(at, error);
            }
        }
    }

    /// Whether publishers are to wait, because whoever appends has to.
    fn is_behind(&self) -> bool {
        false
    }

    /// Whether rows are refused until somebody makes room.
    fn is_full(&self) -> bool {
        false
    }

    /// Whether what is taken has to be waited for, see [`Storage::settle`].
    fn has_to_settle(&self) -> bool {
        false
    }

    /// Calls `done`, from any thread, when all that was taken until now is as safe as it is to be.
    fn settle(&self, done: Settled) {
        done();
    }
}

/// Who is behind which gateway.
pub trait Family: Send + Sync {
    /// The device that a gateway calls by this name, if it is registered and may be behind it. Called on shards: never waits.
    fn child(&self, gateway: Voice<'_>, name: &str) -> Option<Arc<Speaker>>;

    /// Brings the devices that a message speaks of to hand, so that [`Family::child`] finds them. May wait: called at start.
    fn bring(&self, message: &Message<'_>) {
        let _ = message;
    }

    /// The device of a number. May wait: called at start.
    fn speaker(&self, device: DeviceNo) -> Option<Arc<Speaker>>;
}

/// Everybody else. Called on shards and workers: never waits.
pub trait Outside: Send + Sync {
    /// Whether [`Outside::stored`] is to be called at all.
    fn wants_rows(&self) -> bool {
        false
    }

    /// A row has come through the chain to where it is saved, and is in the store if its product stores telemetry.
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

    /// A device hears from now on what it may not have heard before: it has connected, or subscribed to a filter.
    fn listens(&self, device: Voice<'_>, filter: Option<&str>) {
        let _ = (device, filter);
    }

    /// A gateway speaks of devices that are not at hand: they may be on the disk, or nowhere. Whoever finds it has the message worked off
    /// again by a lane of [`Pipeline::last_lane`](super::Pipeline::last_lane); what of it is stored already is stored again, to the
    /// same effect. `false`: nobody will.
    fn later(&self, message: &Message<'_>) -> bool {
        let _ = message;
        false
    }

    /// A message of a product that keeps a log of them.
    fn logged(&self, by: Voice<'_>, profile: &Profile, topic: &str, payload: &[u8], now_ms: i64) {
        let _ = (by, profile, topic, payload, now_ms);
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

    /// Whether it has something of what it was told that does not survive the end of the process yet. Asked after each batch of messages
    /// that it was told of.
    fn is_unsettled(&self) -> bool {
        false
    }

    /// Calls `done`, from any thread, when all it was told until now survives the end of the process, and so does what it has made of
    /// it.
    fn settle(&self, done: Settled) {
        done();
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
