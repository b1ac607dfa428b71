//! What the pipeline needs of others: the store, the registry, and everybody who wants to know.

use std::sync::Arc;

use broker::hooks::DurableCallback;
use series::{DeviceNo, KeyId, Point};

use super::pipeline::DeviceMessage;
use super::profile::{DeviceHandle, DeviceRef, ProductProfile};
use crate::protocol::{ControlMessage, DeviceProtocol};

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
pub trait TelemetryStorage: Send + Sync {
    /// The number of a key; makes it.
    ///
    /// # Errors
    /// If there are too many keys, or the name cannot be one.
    fn register_key(&self, name: &str) -> Result<KeyId, StorageError>;

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

    /// Whether what is taken has to be waited for, see [`TelemetryStorage::settle`].
    fn needs_settle(&self) -> bool {
        false
    }

    /// Calls `done`, from any thread, when all that was taken until now is as safe as it is to be.
    fn settle(&self, done: DurableCallback) {
        done();
    }
}

/// Who is behind which gateway.
pub trait DeviceResolver: Send + Sync {
    /// The device that a gateway calls by this name, if it is registered and may be behind it. Called on shards: never waits.
    fn resolve_child(&self, gateway: DeviceRef<'_>, name: &str) -> Option<Arc<DeviceHandle>>;

    /// Brings the devices that a message speaks of to hand, so that [`DeviceResolver::resolve_child`] finds them. May wait: called at start.
    fn load_children(&self, message: &DeviceMessage<'_>) {
        let _ = message;
    }

    /// The device of a number. May wait: called at start.
    fn resolve_device(&self, device: DeviceNo) -> Option<Arc<DeviceHandle>>;
}

/// Everybody else. Called on shards and workers: never waits.
pub trait PipelineOutputs: Send + Sync {
    /// Whether [`PipelineOutputs::publish_row`] is to be called at all.
    fn wants_rows(&self) -> bool {
        false
    }

    /// A row has come through the chain to where it is saved, and is in the store if its product stores telemetry.
    fn publish_row(
        &self,
        speaker: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let _ = (speaker, profile, ts_ms, points);
    }

    /// A device has said something besides telemetry. `by`: the one whose connection it came on.
    fn handle_control_message(
        &self,
        by: DeviceRef<'_>,
        about: DeviceRef<'_>,
        dialect: DeviceProtocol,
        said: &ControlMessage<'_>,
        now_ms: i64,
    ) {
        let _ = (by, about, dialect, said, now_ms);
    }

    /// A device hears from now on what it may not have heard before: it has connected, or subscribed to a filter.
    fn notify_reachable(&self, device: DeviceRef<'_>, filter: Option<&str>) {
        let _ = (device, filter);
    }

    /// A gateway speaks of devices that are not at hand: they may be on the disk, or nowhere. Whoever finds it has the message worked off
    /// again by a lane of [`Pipeline::retry_lane`](super::Pipeline::retry_lane); what of it is stored already is stored again, to the
    /// same effect. `false`: nobody will.
    fn defer_message(&self, message: &DeviceMessage<'_>) -> bool {
        let _ = message;
        false
    }

    /// A message of a product that keeps a log of them.
    fn log_message(
        &self,
        by: DeviceRef<'_>,
        profile: &ProductProfile,
        topic: &str,
        payload: &[u8],
        now_ms: i64,
    ) {
        let _ = (by, profile, topic, payload, now_ms);
    }

    /// A node of a chain wants an alarm to be looked at.
    fn evaluate_alarms(
        &self,
        speaker: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let _ = (speaker, profile, ts_ms, points);
    }

    fn republish(&self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        let _ = (topic, payload, qos, retain);
    }

    /// A row for a sink.
    fn write_to_sink(&self, name: &str, row: rules::Value<'_>) {
        let _ = (name, row);
    }

    /// Whether it has something of what it was told that does not survive the end of the process yet. Asked after each batch of messages
    /// that it was told of.
    fn is_unsettled(&self) -> bool {
        false
    }

    /// Calls `done`, from any thread, when all it was told until now survives the end of the process, and so does what it has made of
    /// it.
    fn settle(&self, done: DurableCallback) {
        done();
    }

    /// Whether publishers are to wait for one of them.
    fn is_full(&self) -> bool {
        false
    }
}

/// Nobody.
pub struct NoOutputs;

impl PipelineOutputs for NoOutputs {}

impl DeviceResolver for NoOutputs {
    fn resolve_child(&self, _: DeviceRef<'_>, _: &str) -> Option<Arc<DeviceHandle>> {
        None
    }

    fn resolve_device(&self, _: DeviceNo) -> Option<Arc<DeviceHandle>> {
        None
    }
}
