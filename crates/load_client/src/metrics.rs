//! Named numbers of a run: tables, JSON, charts and conditions know a number by its name in a table of metrics.

use std::fmt::Debug;
use std::marker::PhantomData;

use hdrhistogram::Histogram;

use crate::units::Unit;

/// The meaning of one number.
#[derive(Debug, PartialEq, Eq)]
pub struct MetricDefinition {
    /// Name in conditions and in JSON.
    pub name: &'static str,
    pub unit: Unit,
    /// For tables.
    pub label: &'static str,
}

/// A row of a table of metrics.
pub const fn metric(name: &'static str, unit: Unit, label: &'static str) -> MetricDefinition {
    MetricDefinition { name, unit, label }
}

/// The metrics of one program. Implemented by a type without values, which distinguishes the values of programs.
pub trait MetricTable: Clone + Debug + Default + Send + Sync + 'static {
    /// In the order of tables.
    const METRICS: &'static [MetricDefinition];
    /// A condition, for errors.
    const EXAMPLE: &'static str;
    /// What follows `METRIC was not measured` in conditions on a metric without a value.
    const NOT_MEASURED: &'static str;

    fn find(name: &str) -> Option<&'static MetricDefinition> {
        Self::METRICS.iter().find(|metric| metric.name == name)
    }
}

/// The values of some metrics of `T`.
#[derive(Clone, Debug, Default)]
pub struct MetricValues<T>(Vec<(&'static MetricDefinition, f64)>, PhantomData<T>);

const QUANTILES: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
];

impl<T: MetricTable> MetricValues<T> {
    /// Adds a value of a metric of the table.
    pub fn set(&mut self, name: &str, value: f64) {
        let metric = T::find(name);
        debug_assert!(metric.is_some(), "unknown metric {name}");
        self.0.extend(metric.map(|metric| (metric, value)));
    }

    /// The value of a metric, if it was measured.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        let found = self.0.iter().find(|(metric, _)| metric.name == name);
        found.map(|(_, value)| *value)
    }

    /// In the order in which values were set.
    pub fn iter(&self) -> impl Iterator<Item = (&'static MetricDefinition, f64)> {
        self.0.iter().copied()
    }

    /// In the order of the table.
    pub fn iter_table(&self) -> impl Iterator<Item = (&'static MetricDefinition, f64)> {
        T::METRICS
            .iter()
            .filter_map(|metric| Some((metric, self.get(metric.name)?)))
    }

    /// Adds those latencies of a histogram of nanoseconds that the table has, with `prefix` before their names. An empty
    /// histogram has none.
    pub fn set_latencies(&mut self, prefix: &str, histogram: &Histogram<u64>) {
        if histogram.is_empty() {
            return;
        }
        let mut set = |name: &str, value: f64| {
            let metric = T::find(&format!("{prefix}{name}"));
            self.0.extend(metric.map(|metric| (metric, value)));
        };
        set("min", histogram.min() as f64);
        set("mean", histogram.mean());
        for (name, quantile) in QUANTILES {
            set(name, histogram.value_at_quantile(quantile) as f64);
        }
        set("max", histogram.max() as f64);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::latency::latency_histogram;

    #[derive(Clone, Debug, Default)]
    pub(crate) struct TestMetrics;

    impl MetricTable for TestMetrics {
        const METRICS: &'static [MetricDefinition] = &[
            metric("sent", Unit::Count, "messages sent"),
            metric("share", Unit::Fraction, "share"),
            metric("seconds", Unit::Seconds, "duration"),
            metric("rate", Unit::PerSecond, "messages per second"),
            metric("bytes", Unit::Bytes, "payload"),
            metric("ratio", Unit::Ratio, "ratio"),
            metric("ack_p50", Unit::Nanoseconds, "time, 50 %"),
            metric("ack_p99", Unit::Nanoseconds, "time, 99 %"),
            metric("p99.9", Unit::Nanoseconds, "latency, 99.9 %"),
        ];
        const EXAMPLE: &'static str = "ack_p99<5ms";
        const NOT_MEASURED: &'static str = " in this test";
    }

    #[test]
    fn latencies_have_the_names_of_the_table() {
        let mut values = MetricValues::<TestMetrics>::default();
        values.set_latencies("ack_", &latency_histogram());
        assert_eq!(values.iter().count(), 0);
        let mut histogram = latency_histogram();
        histogram.record(1_000_000).expect("within bounds");
        values.set_latencies("ack_", &histogram);
        values.set("sent", 3.0);
        let names = |values: &MetricValues<TestMetrics>| {
            let names = values.iter_table().map(|(metric, _)| metric.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&values), ["sent", "ack_p50", "ack_p99"]);
        assert!((values.get("ack_p99").expect("set") / 1e6 - 1.0).abs() < 0.01);
        assert_eq!(values.get("p99.9"), None);
    }
}
