//! What the API asks of the telemetry of devices. Devices and keys are names here.

use std::future::Future;
use std::io;
use std::pin::Pin;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A question that has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TelemetryBackendError {
    /// There is no such device.
    NoDevice(String),
    /// A parameter is not as it has to be.
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
}

/// Which rows of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowQuery {
    pub device: String,
    /// `None`: all.
    pub keys: Option<Vec<String>>,
    pub from_ms: i64,
    /// Behind the last one.
    pub to_ms: i64,
    pub limit: usize,
    pub newest_first: bool,
}

/// Which intervals of some devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntervalQuery {
    pub devices: Vec<String>,
    pub keys: Vec<String>,
    pub from_ms: i64,
    pub to_ms: i64,
    pub length: IntervalLength,
    /// Where an interval of a fixed length begins. `None`: at a local midnight if there is a time zone, otherwise at a multiple of
    /// the length.
    pub origin_ms: Option<i64>,
    /// An IANA name; UTC without it.
    pub time_zone: Option<String>,
    pub functions: Vec<IntervalFunction>,
    /// All devices together, as if they were one.
    pub merged: bool,
}

/// How long intervals are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntervalLength {
    /// One from the first time to the last.
    All,
    /// At least 1.
    Ms(i64),
    Calendar(CalendarUnit),
}

/// A unit of the calendar, in local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CalendarUnit {
    Day,
    /// From Monday on.
    Week,
    /// From Sunday on, as ThingsBoard's `WEEK`; only its paths have it.
    #[serde(skip)]
    WeekFromSunday,
    Month,
    Quarter,
    Year,
}

/// What to tell of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IntervalFunction {
    Avg,
    Min,
    Max,
    Sum,
    Count,
    First,
    Last,
}

/// An interval of one key of one device.
#[derive(Debug, Clone, PartialEq)]
pub struct IntervalRow {
    /// `None`: all that were asked for.
    pub device: Option<String>,
    pub key: String,
    pub ts_ms: i64,
    /// By function, in the order of the question; null where there is no value for it.
    pub values: Vec<Value>,
}

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq)]
pub enum LiveTelemetryItem {
    Row {
        device: String,
        ts_ms: i64,
        values: Vec<(String, Value)>,
    },
    /// It was too slow for so many rows.
    Lost(u64),
}

/// Rows as they come.
pub trait LiveTelemetryStream: Send {
    /// `None`: that was all.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<LiveTelemetryItem>> + Send + '_>>;
}

/// Something a device has said that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RejectionInfo {
    /// A key, a topic, or what else it was about.
    pub subject: String,
    pub reason: String,
    /// The same, so often.
    pub count: u64,
    pub last_at_ms: i64,
}

/// What of a device was not taken since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeviceRejectionList {
    pub device: String,
    pub count: u64,
    /// The last few kinds of them, the latest last.
    pub refusals: Vec<RejectionInfo>,
}

/// The telemetry of devices. Called on threads that may block.
pub trait TelemetryBackend: Send + Sync + 'static {
    /// The latest value of each key that has one, or of these.
    fn latest(
        &self,
        device: &str,
        keys: Option<&[String]>,
    ) -> Result<Vec<TelemetrySample>, TelemetryBackendError>;

    /// Gives rows to `each` until it says `false`.
    fn rows(
        &self,
        query: &RowQuery,
        each: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryBackendError>;

    /// Writes rows as JSON objects `{"ts_ms", "values"}`, each with `separator` behind it, and says how many. `full` is called now
    /// and then with what was written; it may take it, and ends it with `false`.
    fn write_rows(
        &self,
        query: &RowQuery,
        separator: u8,
        out: &mut Vec<u8>,
        full: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<usize, TelemetryBackendError>;

    /// Writes rows as a Parquet file, group by group: a line for each value. What `out` refuses ends it.
    fn write_parquet(
        &self,
        query: &RowQuery,
        out: &mut (dyn io::Write + Send),
    ) -> Result<(), TelemetryBackendError>;

    /// Of each device and key its intervals, ascending.
    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryBackendError>;

    /// Takes the values of these keys, or of all, in [`from_ms`, `to_ms`) out.
    fn delete(
        &self,
        device: &str,
        keys: Option<&[String]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), TelemetryBackendError>;

    /// What of a device was not taken lately.
    fn rejections(&self, device: &str) -> Result<DeviceRejectionList, TelemetryBackendError>;

    /// What is stored of these devices from now on.
    fn subscribe(
        &self,
        devices: &[String],
        keys: Option<&[String]>,
    ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError>;
}

/// A node without devices.
pub struct NoTelemetryBackend;

fn device_not_found(device: &str) -> TelemetryBackendError {
    TelemetryBackendError::NoDevice(device.to_owned())
}

impl TelemetryBackend for NoTelemetryBackend {
    fn latest(
        &self,
        device: &str,
        _: Option<&[String]>,
    ) -> Result<Vec<TelemetrySample>, TelemetryBackendError> {
        Err(device_not_found(device))
    }

    fn rows(
        &self,
        query: &RowQuery,
        _: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryBackendError> {
        Err(device_not_found(&query.device))
    }

    fn write_rows(
        &self,
        query: &RowQuery,
        _: u8,
        _: &mut Vec<u8>,
        _: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) -> Result<usize, TelemetryBackendError> {
        Err(device_not_found(&query.device))
    }

    fn write_parquet(
        &self,
        query: &RowQuery,
        _: &mut (dyn io::Write + Send),
    ) -> Result<(), TelemetryBackendError> {
        Err(device_not_found(&query.device))
    }

    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
        Err(device_not_found(
            query.devices.first().map_or("", String::as_str),
        ))
    }

    fn delete(
        &self,
        device: &str,
        _: Option<&[String]>,
        _: i64,
        _: i64,
    ) -> Result<(), TelemetryBackendError> {
        Err(device_not_found(device))
    }

    fn rejections(&self, device: &str) -> Result<DeviceRejectionList, TelemetryBackendError> {
        Err(device_not_found(device))
    }

    fn subscribe(
        &self,
        devices: &[String],
        _: Option<&[String]>,
    ) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError> {
        Err(device_not_found(devices.first().map_or("", String::as_str)))
    }
}
