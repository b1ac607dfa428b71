//! The metrics of the node over the last days, in a store of time series of their own.
//!
//! A sample is the sum of a family over its labels. Counters are stored as rates.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hooks::{MetricFamily, MetricKind};
use series::{
    DeviceNo, Fsync, Intervals, KeyId, MAX_POINTS, Point, PointValue, PolicyAssignment,
    RetentionPolicy, Series, SeriesConfig, SeriesError, SeriesOpenError,
};

const DAY_MS: i64 = 86_400_000;
/// The store has one device, the node.
const NODE: DeviceNo = DeviceNo(0);
/// Maximum number of intervals of a query.
pub const MAX_HISTORY_INTERVALS: i64 = 5000;

/// A recorded metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryMetric {
    /// Name of a gauge, or of a counter with `_per_s` instead of `_total`.
    pub name: String,
    pub help: &'static str,
    /// Whether it is the rate of a counter.
    pub is_rate: bool,
}

/// The values of one metric, one per interval of the query.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryColumn {
    pub name: String,
    /// `None`: there is no sample in the interval.
    pub avg: Vec<Option<f64>>,
    pub min: Vec<Option<f64>>,
    pub max: Vec<Option<f64>>,
}

/// Metrics as columns with common times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HistoryTable {
    /// Starts of the intervals in milliseconds since 1970.
    pub ts_ms: Vec<i64>,
    pub columns: Vec<HistoryColumn>,
}

/// The time range of a query and the length of its intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryRange {
    pub from_ms: i64,
    /// Exclusive.
    pub to_ms: i64,
    pub interval_ms: i64,
}

/// Why a query failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    #[error("the node keeps no history of its metrics")]
    Off,
    #[error("there is no metric {0:?}")]
    UnknownMetric(String),
    #[error("the history of the node cannot be read: {0}")]
    Unreadable(String),
}

/// The history of a node. Clones share it.
#[derive(Clone, Default)]
pub struct NodeHistory {
    store: Option<Arc<HistoryStore>>,
}

struct HistoryStore {
    series: Series,
    last_sample: Mutex<LastSample>,
}

#[derive(Default)]
struct LastSample {
    /// Totals of the last sample, by family.
    totals: HashMap<&'static str, f64>,
    at_ms: i64,
    metrics: Vec<HistoryMetric>,
}

/// The sum of a family over its labels; `None`: it has no plain numbers.
fn total(family: &MetricFamily) -> Option<f64> {
    family
        .numbers()
        .filter(|number| number.is_finite())
        .reduce(|sum, number| sum + number)
}

impl LastSample {
    /// The values of a sample. Counters have none in the first sample, and after they began anew.
    fn sample(&mut self, families: &[MetricFamily], at_ms: i64) -> Vec<(usize, f64)> {
        let passed_s = (at_ms - self.at_ms) as f64 / 1000.0;
        let mut values = Vec::new();
        self.metrics.clear();
        for family in families {
            let Some(total) = total(family) else {
                continue;
            };
            let is_rate = family.kind == MetricKind::Counter;
            let before = self.totals.insert(family.name, total);
            let stem = family.name.strip_suffix("_total").unwrap_or(family.name);
            let (name, value) = match is_rate {
                false => (family.name.to_owned(), Some(total)),
                true => {
                    let grown = before.map(|before| total - before);
                    let grown = grown.filter(|grown| *grown >= 0.0 && passed_s > 0.0);
                    (format!("{stem}_per_s"), grown.map(|grown| grown / passed_s))
                }
            };
            values.extend(value.map(|value| (self.metrics.len(), value)));
            self.metrics.push(HistoryMetric {
                name,
                help: family.help,
                is_rate,
            });
        }
        self.at_ms = at_ms;
        values.truncate(MAX_POINTS);
        values
    }
}

impl NodeHistory {
    /// Opens the history in a directory of its own, which keeps samples for some days.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn open(dir: &Path, days: u32) -> Result<Self, SeriesOpenError> {
        let policy = RetentionPolicy {
            retention_ms: Some(i64::from(days.max(1)) * DAY_MS),
            tiers: Vec::new(),
        };
        let config = SeriesConfig {
            // A power failure may take the last minutes.
            fsync: Fsync::Never,
            memtable_bytes: 1 << 20,
            flush_after: Duration::from_secs(3600),
            wal_segment_bytes: 256 << 10,
            max_wal_bytes: 4 << 20,
            max_keys: MAX_POINTS as u32 * 2,
            latest_cache_bytes: 0,
            verify_bytes_per_s: 0,
            assignment: PolicyAssignment {
                policies: vec![(0, policy)],
                ..PolicyAssignment::default()
            },
            ..SeriesConfig::default()
        };
        let (series, _) = Series::open(dir, config)?;
        let store = HistoryStore {
            series,
            last_sample: Mutex::default(),
        };
        Ok(Self {
            store: Some(Arc::new(store)),
        })
    }

    #[must_use]
    pub fn is_on(&self) -> bool {
        self.store.is_some()
    }

    /// Stores a sample. Blocks on the disk.
    ///
    /// # Errors
    /// The sample cannot be stored.
    pub fn record(&self, families: &[MetricFamily], at_ms: i64) -> Result<(), SeriesError> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let mut last_sample = store
            .last_sample
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let values = last_sample.sample(families, at_ms);
        let mut points = Vec::with_capacity(values.len());
        for (at, value) in values {
            let key = store
                .series
                .get_or_create_key(&last_sample.metrics[at].name)?;
            points.push(Point {
                key,
                value: PointValue::Float(value),
            });
        }
        store.series.append(NODE, at_ms, &points)
    }

    /// The metrics of the last sample.
    #[must_use]
    pub fn metrics(&self) -> Vec<HistoryMetric> {
        let Some(store) = &self.store else {
            return Vec::new();
        };
        let last_sample = store
            .last_sample
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        last_sample.metrics.clone()
    }

    /// The given metrics in a time range of at most [`MAX_HISTORY_INTERVALS`] intervals. Blocks on the disk.
    ///
    /// # Errors
    /// A metric is unknown, or the files cannot be read.
    pub fn table(
        &self,
        names: &[String],
        range: HistoryRange,
    ) -> Result<HistoryTable, HistoryError> {
        let store = self.store.as_ref().ok_or(HistoryError::Off)?;
        let known = self.metrics();
        let mut keys: Vec<Option<KeyId>> = Vec::with_capacity(names.len());
        for name in names {
            let key = store.series.find_key(name);
            if key.is_none() && known.iter().all(|metric| metric.name != *name) {
                return Err(HistoryError::UnknownMetric(name.clone()));
            }
            keys.push(key);
        }
        let first = range.from_ms.div_euclid(range.interval_ms) * range.interval_ms;
        let starts = (0..MAX_HISTORY_INTERVALS).map(|at| first + at * range.interval_ms);
        let ts_ms: Vec<i64> = starts.take_while(|start| *start < range.to_ms).collect();
        let empty = vec![None; ts_ms.len()];
        let mut columns: Vec<HistoryColumn> = names
            .iter()
            .map(|name| HistoryColumn {
                name: name.clone(),
                avg: empty.clone(),
                min: empty.clone(),
                max: empty.clone(),
            })
            .collect();
        let intervals = Intervals {
            from_ms: range.from_ms,
            to_ms: range.to_ms,
            interval_ms: range.interval_ms,
            origin_ms: 0,
            starts: Vec::new(),
        };
        let present: Vec<KeyId> = keys.iter().copied().flatten().collect();
        let read = (store.series).aggregate(
            &[NODE],
            &present,
            &intervals,
            &mut |_, key, ts_ms, summary| {
                let at = (ts_ms - first).div_euclid(range.interval_ms) as usize;
                let of_key = keys.iter().position(|known| *known == Some(key));
                let Some(column) = of_key.map(|column| &mut columns[column]) else {
                    return;
                };
                if at < column.avg.len() && summary.numbers > 0 {
                    column.avg[at] = Some(summary.sum.float() / summary.numbers as f64);
                    column.min[at] = summary.min.map(|min| min.float());
                    column.max[at] = summary.max.map(|max| max.float());
                }
            },
        );
        read.map_err(|error| HistoryError::Unreadable(error.to_string()))?;
        Ok(HistoryTable { ts_ms, columns })
    }

    /// Writes the samples in memory to disk and closes the files.
    pub fn close(&self) {
        if let Some(store) = &self.store {
            store.series.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use hooks::{MetricSample, MetricValue};

    use super::*;

    fn family(name: &'static str, kind: MetricKind, values: &[f64]) -> MetricFamily {
        let samples = values.iter().map(|value| MetricSample {
            labels: Vec::new(),
            value: MetricValue::Number(*value),
        });
        MetricFamily {
            name,
            help: "Help.",
            kind,
            samples: samples.collect(),
        }
    }

    fn now_ms() -> i64 {
        wall_clock::now_ms() as i64 / 60_000 * 60_000
    }

    #[test]
    fn counters_are_rates_and_gauges_are_values() {
        let dir = tempfile::tempdir().expect("a directory");
        let history = NodeHistory::open(dir.path(), 7).expect("opens");
        let start = now_ms() - 600_000;
        for (at, received, connections) in [(0, 100.0, 3.0), (10, 400.0, 5.0), (20, 50.0, 4.0)] {
            let families = [
                family(
                    "messages_received_total",
                    MetricKind::Counter,
                    &[received, received],
                ),
                family("connections", MetricKind::Gauge, &[connections]),
            ];
            history
                .record(&families, start + at * 1000)
                .expect("stored");
        }
        let names = ["messages_received_per_s", "connections"].map(str::to_owned);
        let range = HistoryRange {
            from_ms: start,
            to_ms: start + 30_000,
            interval_ms: 10_000,
        };
        let table = history.table(&names, range).expect("read");
        assert_eq!(table.ts_ms, [start, start + 10_000, start + 20_000]);
        // The first sample has no rate, and neither has one after a restart.
        assert_eq!(table.columns[0].avg, [None, Some(60.0), None]);
        assert_eq!(table.columns[1].max, [Some(3.0), Some(5.0), Some(4.0)]);
        let whole = HistoryRange {
            interval_ms: 60_000,
            ..range
        };
        let whole = history.table(&names[1..], whole).expect("read");
        assert_eq!(
            (whole.columns[0].avg[0], whole.columns[0].min[0]),
            (Some(4.0), Some(3.0))
        );
        let unknown = history.table(&["none".to_owned()], range);
        assert_eq!(unknown, Err(HistoryError::UnknownMetric("none".to_owned())));
        assert_eq!(history.metrics()[0].name, "messages_received_per_s");
    }

    #[test]
    fn the_history_survives_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let at_ms = now_ms();
        let connections = [family("connections", MetricKind::Gauge, &[2.0])];
        let history = NodeHistory::open(dir.path(), 7).expect("opens");
        history.record(&connections, at_ms).expect("stored");
        history.close();
        drop(history);
        let history = NodeHistory::open(dir.path(), 7).expect("opens again");
        let range = HistoryRange {
            from_ms: at_ms,
            to_ms: at_ms + 1000,
            interval_ms: 1000,
        };
        let table = history
            .table(&["connections".to_owned()], range)
            .expect("read");
        assert_eq!(table.columns[0].avg, [Some(2.0)]);
        assert_eq!(
            NodeHistory::default().table(&[], range),
            Err(HistoryError::Off)
        );
    }
}
