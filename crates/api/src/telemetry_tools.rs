//! What the API asks of the telemetry of devices. Devices and keys are names here.

use std::future::Future;
use std::io;
use std::pin::Pin;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// A question that has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TelemetryProblem {
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
pub struct Sample {
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
    pub interval_ms: i64,
    /// Where one interval begins.
    pub origin_ms: i64,
}

/// An interval of one key of one device.
#[derive(Debug, Clone, PartialEq)]
pub struct IntervalRow {
    pub device: String,
    pub key: String,
    pub ts_ms: i64,
    pub count: u64,
    /// Of the numbers among the values; `None`: there is none.
    pub numbers: Option<Numbers>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Numbers {
    pub count: u64,
    pub min: f64,
    pub max: f64,
    pub sum: f64,
    /// The earliest and its time.
    pub first: (i64, f64),
    pub last: (i64, f64),
}

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq)]
pub enum LiveItem {
    Row {
        device: String,
        ts_ms: i64,
        values: Vec<(String, Value)>,
    },
    /// It was too slow for so many rows.
    Lost(u64),
}

/// Rows as they come.
pub trait LiveRows: Send {
    /// `None`: that was all.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<LiveItem>> + Send + '_>>;
}

/// Something a device has said that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Refusal {
    /// A key, a topic, or what else it was about.
    pub subject: String,
    pub reason: String,
    /// The same, so often.
    pub count: u64,
    pub last_at_ms: i64,
}

/// What of a device was not taken since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Refusals {
    pub device: String,
    pub count: u64,
    /// The last few kinds of them, the latest last.
    pub refusals: Vec<Refusal>,
}

/// The telemetry of devices. Called on threads that may block.
pub trait TelemetryTools: Send + Sync + 'static {
    /// The latest value of each key that has one, or of these.
    fn latest(
        &self,
        device: &str,
        keys: Option<&[String]>,
    ) -> Result<Vec<Sample>, TelemetryProblem>;

    /// Gives rows to `each` until it says `false`.
    fn rows(
        &self,
        query: &RowQuery,
        each: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryProblem>;

    /// Writes rows as a Parquet file, group by group: a line for each value. What `out` refuses ends it.
    fn write_parquet(
        &self,
        query: &RowQuery,
        out: &mut (dyn io::Write + Send),
    ) -> Result<(), TelemetryProblem>;

    /// Of each device and key its intervals, ascending.
    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryProblem>;

    /// Takes the values of these keys, or of all, in [`from_ms`, `to_ms`) out.
    fn delete(
        &self,
        device: &str,
        keys: Option<&[String]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), TelemetryProblem>;

    /// What of a device was not taken lately.
    fn refusals(&self, device: &str) -> Result<Refusals, TelemetryProblem>;

    /// What is stored of these devices from now on.
    fn watch(
        &self,
        devices: &[String],
        keys: Option<&[String]>,
    ) -> Result<Box<dyn LiveRows>, TelemetryProblem>;
}

/// A node without devices.
pub struct NoTelemetryTools;

fn no_device(device: &str) -> TelemetryProblem {
    TelemetryProblem::NoDevice(device.to_owned())
}

impl TelemetryTools for NoTelemetryTools {
    fn latest(&self, device: &str, _: Option<&[String]>) -> Result<Vec<Sample>, TelemetryProblem> {
        Err(no_device(device))
    }

    fn rows(
        &self,
        query: &RowQuery,
        _: &mut dyn FnMut(i64, Vec<(String, Value)>) -> bool,
    ) -> Result<(), TelemetryProblem> {
        Err(no_device(&query.device))
    }

    fn write_parquet(
        &self,
        query: &RowQuery,
        _: &mut (dyn io::Write + Send),
    ) -> Result<(), TelemetryProblem> {
        Err(no_device(&query.device))
    }

    fn intervals(&self, query: &IntervalQuery) -> Result<Vec<IntervalRow>, TelemetryProblem> {
        Err(no_device(query.devices.first().map_or("", String::as_str)))
    }

    fn delete(
        &self,
        device: &str,
        _: Option<&[String]>,
        _: i64,
        _: i64,
    ) -> Result<(), TelemetryProblem> {
        Err(no_device(device))
    }

    fn refusals(&self, device: &str) -> Result<Refusals, TelemetryProblem> {
        Err(no_device(device))
    }

    fn watch(
        &self,
        devices: &[String],
        _: Option<&[String]>,
    ) -> Result<Box<dyn LiveRows>, TelemetryProblem> {
        Err(no_device(devices.first().map_or("", String::as_str)))
    }
}
