//! Pull sources: systems that are asked on a schedule for what devices would report if they could.
//!
//! ```text
//! object ─ Definition ─ Source ─┐
//!                    schedule ──▶ ask (Prometheus, HTTP, ipmitool) ─▶ readings ─▶ Intake ─▶ pipeline, on behalf of the device
//! ```
//!
//! A source is never asked twice at once, and no more than so many of them are asked at the same time. One that fails is asked
//! less and less often until it answers.

mod definition;
mod health;
mod http_poll;
mod intake;
mod ipmi;
mod json_path;
mod label_template;
mod prometheus;
mod schedule;
mod secrets;
mod source;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use serde_json::{Map, Value};

pub use definition::{MAX_SOURCES, PullSourceDefinition, PullSourceError};
pub use health::{PullSourceHealth, PullSourceState, PullSourceStatus};
pub use intake::{IntakeOutcome, ReadingIntake};
pub use schedule::{PullOptions, PullScheduler};
pub use secrets::{redact, restore_secrets};

/// The kind of configuration objects that are pull sources.
pub const KIND: &str = "pull_source";

/// What a system said of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    pub device: String,
    /// `None`: now.
    pub ts_ms: Option<i64>,
    pub values: Map<String, Value>,
}

/// Readings of one run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    pub rows: Vec<Reading>,
    /// Values that are none: `null`, `NaN`, a sensor that is not read.
    pub skipped: u64,
    /// What went wrong with a part of it, while the rest is here.
    pub partial_error: Option<String>,
    /// Which row is that of a device and time.
    row_indexes: HashMap<(String, Option<i64>), usize>,
}

/// Values of one run.
const MAX_VALUES: usize = 100_000;

impl Readings {
    /// Adds a value to the row of its device and time.
    fn add(&mut self, device: &str, ts_ms: Option<i64>, key: String, value: Value) {
        let next = self.rows.len();
        let place = self.row_indexes.entry((device.to_owned(), ts_ms));
        let at = *place.or_insert(next);
        if at == next {
            self.rows.push(Reading {
                device: device.to_owned(),
                ts_ms,
                values: Map::new(),
            });
        }
        self.rows[at].values.insert(key, value);
    }

    fn values(&self) -> usize {
        self.rows.iter().map(|row| row.values.len()).sum()
    }
}

/// Why a system was not read; never with a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PullError(pub String);

impl PullError {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}
