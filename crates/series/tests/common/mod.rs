//! Shared by the tests of the store.

#![allow(dead_code, reason = "not every test uses all of it")]

use series::{DeviceNo, Point, PointValue, RetentionPolicy, Series, SeriesConfig};

/// Small limits, so that flushes and merges are frequent; nothing depends on the clock.
pub(crate) fn config() -> SeriesConfig {
    SeriesConfig {
        memtable_bytes: 1 << 20,
        wal_segment_bytes: 512 << 10,
        max_wal_bytes: 4 << 20,
        min_free_bytes: 0,
        window_ms: 3_600_000,
        assignment: series::PolicyAssignment {
            policies: vec![(
                0,
                RetentionPolicy {
                    retention_ms: None,
                    tiers: Vec::new(),
                },
            )],
            ..series::PolicyAssignment::default()
        },
        ..SeriesConfig::default()
    }
}

/// Appends rows together, all of which must be accepted.
pub(crate) fn append_rows(series: &Series, rows: &[(DeviceNo, i64, Vec<Point<'_>>)]) {
    let row = |at: usize| (rows[at].0, rows[at].1, &rows[at].2[..]);
    let rejected = &mut |at, error| panic!("row {at}: {error}");
    let ticket = series.submit_row_refs(rows.len(), row, rejected);
    series.wait_until_durable(ticket).unwrap();
}

pub(crate) fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap())
}

/// Pseudo-random numbers, the same for the same seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// An owned value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum StoredValue {
    Bool(bool),
    Int(i64),
    Float(u64),
    Text(String),
    Json(String),
}

impl StoredValue {
    pub(crate) fn number(&self) -> Option<f64> {
        match *self {
            StoredValue::Bool(value) => Some(f64::from(u8::from(value))),
            StoredValue::Int(value) => Some(value as f64),
            StoredValue::Float(bits) => Some(f64::from_bits(bits)),
            StoredValue::Text(_) | StoredValue::Json(_) => None,
        }
    }
}

pub(crate) fn stored_value(value: PointValue<'_>) -> StoredValue {
    match value {
        PointValue::Bool(value) => StoredValue::Bool(value),
        PointValue::Int(value) => StoredValue::Int(value),
        PointValue::Float(value) => StoredValue::Float(value.to_bits()),
        PointValue::Text(text) => StoredValue::Text(text.to_owned()),
        PointValue::Json(text) => StoredValue::Json(text.to_owned()),
    }
}
