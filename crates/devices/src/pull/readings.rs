//! What a poll returns: values of devices, or why it failed.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Values of one device at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    pub device: String,
    /// `None`: now.
    pub ts_ms: Option<i64>,
    pub values: Map<String, Value>,
}

/// Readings of one poll.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Readings {
    pub rows: Vec<Reading>,
    /// Number of values that were skipped: `null`, `NaN`, or a sensor without a reading.
    pub skipped: u64,
    /// Error of a part of the poll, while the other readings are valid.
    pub partial_error: Option<String>,
    /// Index of the row of a device and time.
    row_indexes: HashMap<(String, Option<i64>), usize>,
}

/// Maximum number of values of one poll.
pub(super) const MAX_VALUES: usize = 100_000;

impl Readings {
    /// Adds a value to the row of its device and time.
    pub(super) fn add(&mut self, device: &str, ts_ms: Option<i64>, key: String, value: Value) {
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

    pub(super) fn values(&self) -> usize {
        self.rows.iter().map(|row| row.values.len()).sum()
    }
}

/// Why a poll failed; never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PullError(pub String);

impl PullError {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}
