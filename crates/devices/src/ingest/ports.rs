//! Interfaces of the pipeline to the store, the registry and the consumers of its output.

use std::sync::Arc;

use hooks::DurableCallback;
use series::{DeviceNo, KeyId, Point};

use super::message::DeviceMessage;
use super::profile::{DeviceHandle, DeviceRef, ProductProfile};
use crate::protocol::{ControlMessage, DeviceProtocol};

/// Why a row was not stored.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct StorageError {
    pub reason: Box<str>,
    pub kind: StorageErrorKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageErrorKind {
    /// The row can never be stored.
    Invalid,
    /// The store is behind with writing and accepts rows again shortly.
    Busy,
    /// The store has no room, or its disk fails. It may accept rows again after an operator has acted.
    NoRoom,
}

/// Points of one device and time: a range of the points of a batch.
#[derive(Debug, Clone, Copy)]
pub struct StoredRow {
    pub device: DeviceNo,
    pub ts_ms: i64,
    /// Index of the first point, and the number of points.
    pub first: u32,
    pub count: u32,
    /// Whether another node of the cluster gets a copy.
    pub is_copied: bool,
}

/// Storage of rows. Accepted rows survive the end of the process.
pub trait TelemetryStorage: Send + Sync {
    /// Returns the number of a key. A key that does not exist is reserved if `admit`, which gets the number of keys that
    /// can still be created, agrees; `None`: it does not. Rows may contain a reserved key after
    /// [`TelemetryStorage::commit_keys`].
    ///
    /// # Errors
    /// If there are too many keys, or the name is invalid.
    fn reserve_key(
        &self,
        name: &str,
        admit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<KeyId>, StorageError>;

    /// Creates all reserved keys.
    ///
    /// # Errors
    /// If they cannot be written. They stay reserved.
    fn commit_keys(&self) -> Result<(), StorageError>;

    /// Whether the key exists and is not only reserved.
    fn has_key(&self, key: KeyId) -> bool;

    /// Stores one row.
    ///
    /// # Errors
    /// If the row is not stored: too old, too far in the future, a full disk.
    fn append(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), StorageError>;

    /// Like [`TelemetryStorage::append`], with what else is known of the row.
    ///
    /// # Errors
    /// As those of [`TelemetryStorage::append`].
    fn append_row(&self, row: &StoredRow, points: &[Point<'_>]) -> Result<(), StorageError> {
        self.append(row.device, row.ts_ms, points)
    }

    /// Stores many rows, in their order per device, and reports which were not stored, ascending.
    fn append_all(
        &self,
        rows: &[StoredRow],
        points: &[Point<'_>],
        rejected: &mut dyn FnMut(usize, StorageError),
    ) {
        for (at, row) in rows.iter().enumerate() {
            let (first, count) = (row.first as usize, row.count as usize);
            let points = &points[first..first + count];
            if let Err(error) = self.append_row(row, points) {
                rejected(at, error);
            }
        }
    }

    /// Whether publishers have to wait because appending blocks.
    fn is_behind(&self) -> bool {
        false
    }

    /// Whether rows are rejected until there is room again.
    fn is_full(&self) -> bool {
        false
    }

    /// Whether accepted rows become durable only later, see [`TelemetryStorage::settle`].
    fn needs_settle(&self) -> bool {
        false
    }

    /// Calls `done`, from any thread, when all rows accepted so far are as durable as the fsync policy
    /// demands.
    fn settle(&self, done: DurableCallback) {
        done();
    }
}

/// Resolves devices, in particular children of gateways.
pub trait DeviceResolver: Send + Sync {
    /// The device that a gateway calls by this name, if it is registered and may be behind the gateway.
    /// Called on shards: never waits.
    fn resolve_child(&self, gateway: DeviceRef<'_>, name: &str) -> Option<Arc<DeviceHandle>>;

    /// Loads the devices that a message names, so that [`DeviceResolver::resolve_child`] finds them. May
    /// wait: called at start.
    fn load_children(&self, message: &DeviceMessage<'_>) {
        let _ = message;
    }

    /// The device with this number. May wait: called at start.
    fn resolve_device(&self, device: DeviceNo) -> Option<Arc<DeviceHandle>>;
}

/// What has to be waited for until the results of messages are safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettleScope {
    /// Everything except messages of rule chains.
    Stored,
    /// Also the messages that rule chains have published.
    Published,
}

/// Consumers of the pipeline's output. Called on shards and workers: never waits.
pub trait PipelineOutputs: Send + Sync {
    /// Whether [`PipelineOutputs::publish_row`] is to be called at all.
    fn wants_rows(&self) -> bool {
        false
    }

    /// A row has passed the chain up to its save node, and is in the store if its product stores telemetry.
    fn publish_row(
        &self,
        device: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let _ = (device, profile, ts_ms, points);
    }

    /// A device has sent something other than telemetry. `by`: the device on whose connection it arrived.
    fn handle_control_message(
        &self,
        by: DeviceRef<'_>,
        about: DeviceRef<'_>,
        protocol: DeviceProtocol,
        message: &ControlMessage<'_>,
        now_ms: i64,
    ) {
        let _ = (by, about, protocol, message, now_ms);
    }

    /// A device may receive messages that it could not receive before: it has connected, or subscribed to a
    /// filter.
    fn notify_reachable(&self, device: DeviceRef<'_>, filter: Option<&str>) {
        let _ = (device, filter);
    }

    /// A gateway's message names devices that are not in memory: they may be on disk or unknown. The
    /// implementation loads them and processes the message again with a processor of
    /// [`Pipeline::retry_processor`](super::Pipeline::retry_processor). Rows that are stored already are stored again,
    /// with the same effect. Returns `false` if the message will not be processed again.
    fn defer_message(&self, message: &DeviceMessage<'_>) -> bool {
        let _ = message;
        false
    }

    /// A message of a product with a message log.
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

    /// A node of a chain requests the evaluation of an alarm.
    fn evaluate_alarms(
        &self,
        device: DeviceRef<'_>,
        profile: &ProductProfile,
        ts_ms: i64,
        points: &[Point<'_>],
    ) {
        let _ = (device, profile, ts_ms, points);
    }

    /// Publishes a message of a rule chain. Before the broker runs, the message waits.
    fn republish(&self, topic: &str, payload: &[u8], qos: u8, retain: bool) {
        let _ = (topic, payload, qos, retain);
    }

    /// A row for a sink.
    fn write_to_sink(&self, name: &str, row: rules::Value<'_>) {
        let _ = (name, row);
    }

    /// Whether the implementation holds something, other than messages of rule chains, that does not yet survive
    /// the end of the process. Asked after each batch of messages passed to it.
    fn is_unsettled(&self) -> bool {
        false
    }

    /// Calls `done`, from any thread, when everything of this scope passed so far, and everything derived from
    /// it, survives the end of the process. Drops `done` if that never happens, because the node stops.
    fn settle(&self, scope: SettleScope, done: DurableCallback) {
        let _ = scope;
        done();
    }

    /// Whether publishers have to wait for one of the consumers.
    fn is_full(&self) -> bool {
        false
    }
}

/// Discards everything.
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
