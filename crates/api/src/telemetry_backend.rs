//! The interface between the API and the telemetry of devices. Devices and keys are names here.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use namespaces::NamespaceSelection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use series::Aggregate;

/// Rows of an answer without the parameter `rows`.
pub(crate) const DEFAULT_ROWS: usize = 1000;

/// Why a telemetry query failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TelemetryBackendError {
    /// The device does not exist.
    NoDevice(String),
    /// A parameter is invalid.
    Parameter {
        name: &'static str,
        detail: String,
    },
    Unavailable(String),
}

/// A value and its time.
#[derive(Debug, Clone, PartialEq)]
pub struct TelemetrySample {
    pub key: String,
    pub ts_ms: i64,
    pub value: Value,
    /// The unit of the key, if it is known.
    pub unit: Option<String>,
}

/// A row of an imported file.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedRow {
    pub device: String,
    pub ts_ms: i64,
    pub values: Map<String, Value>,
}

/// Selects rows of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowQuery {
    pub device: String,
    /// `None`: all keys.
    pub keys: Option<Vec<String>>,
    pub from_ms: i64,
    /// End of the time range, exclusive.
    pub to_ms: i64,
    pub limit: usize,
    pub newest_first: bool,
}

/// The text of an error for another node.
pub(crate) fn to_reason(error: TelemetryBackendError) -> String {
    match error {
        TelemetryBackendError::NoDevice(device) => format!("it has no device {device:?}"),
        TelemetryBackendError::Parameter { name, detail } => format!("{name}: {detail}"),
        TelemetryBackendError::Unavailable(detail) => detail,
    }
}

/// Selects intervals of some devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntervalQuery {
    pub devices: Vec<String>,
    pub keys: Vec<String>,
    /// `None`: the time of the first value of these devices and keys.
    pub from_ms: Option<i64>,
    pub to_ms: i64,
    pub length: IntervalLength,
    /// Start of an interval of fixed length. `None`: a local midnight if there is a time zone,
    /// otherwise a multiple of the length.
    pub origin_ms: Option<i64>,
    /// IANA name of the time zone; `None` means UTC.
    pub time_zone: Option<String>,
    pub functions: Vec<Aggregate>,
    /// Whether all devices are merged as if they were one.
    pub merged: bool,
}

/// Length of the intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntervalLength {
    /// One interval from the first time to the last.
    All,
    /// A fixed length in milliseconds, at least 1.
    Ms(i64),
    Calendar(CalendarUnit),
}

/// A calendar unit in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CalendarUnit {
    Day,
    /// Starts on Monday.
    Week,
    /// Starts on Sunday, as ThingsBoard's `WEEK`; available on ThingsBoard's paths only.
    #[serde(skip)]
    WeekFromSunday,
    Month,
    Quarter,
    Year,
}

/// One interval of one key of one device.
#[derive(Debug, Clone, PartialEq)]
pub struct IntervalRow {
    /// `None`: all devices of the query, merged.
    pub device: Option<String>,
    pub key: String,
    pub ts_ms: i64,
    /// By function, in the order of the query; null where there is no value.
    pub values: Vec<Value>,
}

/// An item of a live telemetry stream.
#[derive(Debug, Clone, PartialEq)]
pub enum LiveTelemetryItem {
    Row {
        device: String,
        ts_ms: i64,
        values: Vec<(String, Value)>,
    },
    /// The number of rows skipped because the receiver was too slow.
    Lost(u64),
    /// Other nodes of the cluster whose rows are missing now. Rows of a node that is no longer among them may have been
    /// skipped meanwhile.
    MissingNodes(Vec<String>),
}

/// A live stream of telemetry rows.
pub trait LiveTelemetryStream: Send {
    /// The next item; `None` at the end of the stream.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<LiveTelemetryItem>> + Send + '_>>;
}

/// A file of telemetry that is being written.
pub trait TelemetryTable {
    /// Adds rows of one device. After an error other than [`TelemetryBackendError::NoDevice`], which adds nothing, the file cannot
    /// be continued.
    fn add(&mut self, query: &RowQuery) -> Result<(), TelemetryBackendError>;

    /// Adds one row, whose values other nodes may have. Errors as of [`add`](Self::add).
    fn add_row(
        &mut self,
        device: &str,
        ts_ms: i64,
        values: &[(String, Value)],
    ) -> Result<(), TelemetryBackendError>;

    /// Writes the rest, without which readers reject the file.
    fn finish(self: Box<Self>) -> Result<(), TelemetryBackendError>;
}

/// Data of a device that was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RejectionInfo {
    /// A key, a topic, or another subject of the rejection.
    pub subject: String,
    pub reason: String,
    /// Number of equal rejections.
    pub count: u64,
    pub last_at_ms: i64,
}

/// Data of a device that was rejected since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeviceRejectionList {
    pub device: String,
    pub count: u64,
    /// The most recent kinds of rejection, latest last.
    pub rejections: Vec<RejectionInfo>,
}

/// Reads the telemetry of devices. Methods are called on threads that may block.
pub trait TelemetryReader: Send + Sync {
    /// The latest value of the given keys, or of each key that has one.
    fn latest(
        &self,
        device: &str,
        keys: Option<&[String]>,
    ) -> Result<Vec<TelemetrySample>, TelemetryBackendError>;

    /// The same of several devices, in their order. `None`: the device does not exist.
    fn latest_of_devices(
        &self,
        devices: &[String],
        keys: Option<&[String]>,
    ) -> Result<Vec<Option<Vec<TelemetrySample>>>, TelemetryBackendError> {
        let read = devices
            .iter()
            .map(|device| match self.latest(device, keys) {
                Err(TelemetryBackendError::NoDevice(_)) => Ok(None),
                samples => samples.map(Some),
            });
        read.collect()
    }

    /// Passes rows to `each` until it returns `false`.
    fn rows(
        &self,
        query: &RowQuery,
        each: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryBackendError>;

    /// Writes rows as JSON objects `{"ts_ms", "values"}`, each followed by `separator`, and returns
    /// their number. Calls `full` now and then with the text written so far; `full` may take the
    /// text, and stops the query by returning `false`.
    fn write_rows(
        &self,
        query: &RowQuery,
        separator: u8,
        out: &mut Vec<u8>,
        full: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<usize, TelemetryBackendError>;

    /// Begins a Parquet file with one line per value, written to `out` one group of lines after another.
    fn parquet_table<'a>(
        &'a self,
        out: &'a mut (dyn io::Write + Send),
    ) -> Result<Box<dyn TelemetryTable + 'a>, TelemetryBackendError>;

    /// The intervals of each device and key, ascending.
    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryBackendError>;

    /// Subscribes to rows of these devices that are stored from now on.
    fn subscribe(
        &self,
        devices: &[String],
        keys: Option<&[String]>,
    ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError>;
}

/// Whether a copy has everything that its node has stored of these devices, except what was on its way when the node failed. An
/// error if that cannot be found out.
pub type CopyCoverage = Box<dyn Fn(&[String]) -> Result<bool, String> + Send + Sync>;

/// The telemetry of another node, of which this one has a copy.
pub struct TelemetryCopy {
    pub reader: Arc<dyn TelemetryReader>,
    pub covers: CopyCoverage,
}

/// Access to the telemetry of devices at this node. A trait, so that tests of the API need neither time series nor
/// a pipeline. Methods are called on threads that may block.
pub trait TelemetryBackend: TelemetryReader + 'static {
    /// Stores rows as they are, without rules and alarms; repeated ones change nothing. Returns the result for each row. Rows
    /// that are stored are as durable as the settings demand.
    ///
    /// # Errors
    /// If nothing more can be stored now.
    fn import_rows(
        &self,
        rows: &[ImportedRow],
        namespaces: &NamespaceSelection,
    ) -> Result<Vec<Result<(), String>>, TelemetryBackendError>;

    /// Deletes the values of these keys, or of all keys, in [`from_ms`, `to_ms`).
    fn delete(
        &self,
        device: &str,
        keys: Option<&[String]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), TelemetryBackendError>;

    /// The copy of the telemetry of another node with this key; `None`: this node has none.
    fn copy(&self, _key: &str) -> Option<TelemetryCopy> {
        None
    }

    /// Counts the stored bytes of all namespaces and passes them to their usage. May wait.
    fn count_stored_bytes(&self) {}

    /// The recent rejections of a device.
    fn rejections(&self, device: &str) -> Result<DeviceRejectionList, TelemetryBackendError>;
}
