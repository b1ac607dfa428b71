//! The named numbers a run yields. Tables, JSON, plots and assertions all know a number by the name listed here.

use hdrhistogram::Histogram;

use crate::units::Unit;
pub(crate) use load_client::latency::{latency_classes, latency_histogram};

/// What one of the numbers means.
#[derive(Debug)]
pub(crate) struct MetricDefinition {
    /// Name in `--assert` and in JSON.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// What it is, for tables.
    pub(crate) label: &'static str,
}

const fn metric(name: &'static str, unit: Unit, label: &'static str) -> MetricDefinition {
    MetricDefinition { name, unit, label }
}

/// Every metric, in the order of the table.
pub(crate) const METRICS: &[MetricDefinition] = &[
    metric(
        "throughput",
        Unit::PerSecond,
        "messages received per second",
    ),
    metric("payload_rate", Unit::Bytes, "payload received per second"),
    metric("received", Unit::Count, "messages received in the interval"),
    metric("sent", Unit::Count, "messages sent in the interval"),
    metric("stored", Unit::Count, "messages stored for clients away"),
    metric("stored_rate", Unit::PerSecond, "messages stored per second"),
    metric("store_seconds", Unit::Seconds, "time until all were stored"),
    metric("connects", Unit::Count, "connections accepted"),
    metric(
        "connect_rate",
        Unit::PerSecond,
        "connections accepted per second",
    ),
    metric("seconds", Unit::Seconds, "measured time"),
    metric("min", Unit::Nanoseconds, "latency, least"),
    metric("mean", Unit::Nanoseconds, "latency, mean"),
    metric("p50", Unit::Nanoseconds, "latency, 50 %"),
    metric("p90", Unit::Nanoseconds, "latency, 90 %"),
    metric("p95", Unit::Nanoseconds, "latency, 95 %"),
    metric("p99", Unit::Nanoseconds, "latency, 99 %"),
    metric("p99.9", Unit::Nanoseconds, "latency, 99.9 %"),
    metric("max", Unit::Nanoseconds, "latency, most"),
    metric(
        "unfairness",
        Unit::Ratio,
        "slowest client's time to fastest's",
    ),
    metric(
        "incomplete",
        Unit::Count,
        "clients that did not get everything",
    ),
    metric("success", Unit::Fraction, "received of what was sent"),
    metric("lost", Unit::Count, "messages lost"),
    metric("repeated", Unit::Count, "messages repeated"),
    metric("reordered", Unit::Count, "messages out of order"),
    metric("refused", Unit::Count, "messages refused by reason code"),
    metric("unacknowledged", Unit::Count, "messages never acknowledged"),
    metric("unsent", Unit::Count, "messages due but never sent"),
    metric("stalls", Unit::Count, "times a window had to be given up"),
    metric("strange", Unit::Count, "messages of others"),
    metric("evaluated", Unit::Count, "evaluations of rules"),
    metric(
        "rule_failures",
        Unit::Count,
        "failures of rules and their actions",
    ),
    metric("errors", Unit::Count, "connections failed or broken"),
    metric("cpu_seconds", Unit::Seconds, "broker processor time"),
    metric("cpu", Unit::Fraction, "broker processor use, of one core"),
    metric("per_cpu_second", Unit::PerSecond, "per broker CPU second"),
    metric(
        "stored_per_cpu_second",
        Unit::PerSecond,
        "stored per broker CPU second",
    ),
    metric("rss_start", Unit::Bytes, "broker memory before connecting"),
    metric("rss_connected", Unit::Bytes, "broker memory, all connected"),
    metric("rss_stored", Unit::Bytes, "broker memory, all stored"),
    metric("rss_end", Unit::Bytes, "broker memory at the end"),
    metric("rss_peak", Unit::Bytes, "broker memory, peak"),
    metric("rss_slope", Unit::Bytes, "broker memory, growth per hour"),
    metric(
        "rss_per_connection",
        Unit::Bytes,
        "broker memory per connection",
    ),
    metric("disk_start", Unit::Bytes, "broker's disk use before"),
    metric("disk_stored", Unit::Bytes, "broker's disk use, all stored"),
    metric("disk_end", Unit::Bytes, "broker's disk use at the end"),
    metric(
        "disk_per_payload",
        Unit::Ratio,
        "disk use added, of stored payload",
    ),
    metric(
        "generator_cpu",
        Unit::Fraction,
        "generator use, of its cores",
    ),
    metric(
        "generator_per_cpu_second",
        Unit::PerSecond,
        "per generator CPU second",
    ),
    metric(
        "other_cores",
        Unit::Fraction,
        "use by other programs, of one core",
    ),
    metric(
        "ratio",
        Unit::Ratio,
        "ratio (per CPU second, else throughput)",
    ),
    metric("ratio_throughput", Unit::Ratio, "ratio of throughput"),
    metric("ratio_stored", Unit::Ratio, "ratio of storing"),
    metric(
        "ratio_stored_per_cpu_second",
        Unit::Ratio,
        "ratio of storing per CPU second",
    ),
    metric("ratio_per_cpu_second", Unit::Ratio, "ratio per CPU second"),
    metric("ratio_p50", Unit::Ratio, "ratio of latency, 50 %"),
    metric("ratio_p99", Unit::Ratio, "ratio of latency, 99 %"),
    metric(
        "half_rate",
        Unit::PerSecond,
        "half load: messages per second",
    ),
    metric("half_p50", Unit::Nanoseconds, "half load: latency, 50 %"),
    metric("half_p95", Unit::Nanoseconds, "half load: latency, 95 %"),
    metric("half_p99", Unit::Nanoseconds, "half load: latency, 99 %"),
    metric(
        "faults",
        Unit::Count,
        "messages lost, repeated or exchanged",
    ),
    metric("tcp_rate", Unit::Bytes, "plain TCP per second"),
    metric(
        "bytes_per_cpu_second",
        Unit::Bytes,
        "payload per CPU second of both peers",
    ),
    metric("sender_cpu", Unit::Fraction, "sender use, of one core"),
    metric("receiver_cpu", Unit::Fraction, "receiver use, of one core"),
    metric("sender_memory", Unit::Bytes, "sender memory, peak growth"),
    metric(
        "receiver_memory",
        Unit::Bytes,
        "receiver memory, peak growth",
    ),
    metric(
        "window_use",
        Unit::Fraction,
        "rate, of what window and delay permit",
    ),
    metric(
        "recovery",
        Unit::Nanoseconds,
        "time to new content after an interruption",
    ),
    metric("resent", Unit::Bytes, "payload sent again"),
    metric(
        "cost_ratio",
        Unit::Ratio,
        "cost of a message, many filters to one",
    ),
];

/// Looks a metric up by name.
pub(crate) fn find(name: &str) -> Option<&'static MetricDefinition> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The values of some metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricValues(Vec<(&'static MetricDefinition, f64)>);

const QUANTILES: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
];

impl MetricValues {
    /// Adds a value. `name` is one of [`METRICS`].
    pub(crate) fn set(&mut self, name: &str, value: f64) {
        let metric = find(name);
        debug_assert!(metric.is_some(), "unknown metric {name}");
        if let Some(metric) = metric {
            self.0.push((metric, value));
        }
    }

    /// The value of a metric, if it was measured.
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        let found = self.0.iter().find(|(metric, _)| metric.name == name);
        found.map(|(_, value)| *value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static MetricDefinition, f64)> {
        self.0.iter().copied()
    }

    /// Adds the latencies of a histogram of nanoseconds, unless it is empty.
    pub(crate) fn set_latencies(&mut self, histogram: &Histogram<u64>) {
        if histogram.is_empty() {
            return;
        }
        self.set("min", histogram.min() as f64);
        self.set("mean", histogram.mean());
        for (name, quantile) in QUANTILES {
            self.set(name, histogram.value_at_quantile(quantile) as f64);
        }
        self.set("max", histogram.max() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for metric in METRICS {
            let same = METRICS.iter().filter(|other| other.name == metric.name);
            assert_eq!(same.count(), 1, "{}", metric.name);
        }
    }

    #[test]
    fn every_metric_is_documented() {
        let text = include_str!("../../../docs/operations/bench.md");
        for metric in METRICS {
            assert!(
                text.contains(&format!("`{}`", metric.name)),
                "{}",
                metric.name
            );
        }
    }

    #[test]
    fn latencies_of_nothing_are_not_zero() {
        let mut measures = MetricValues::default();
        measures.set_latencies(&latency_histogram());
        assert_eq!(measures.get("p99"), None);
        let mut histogram = latency_histogram();
        histogram.saturating_record_n(1000, 99);
        histogram.saturating_record(1_000_000);
        measures.set_latencies(&histogram);
        assert_eq!(measures.get("p50"), Some(1000.0));
        assert!(measures.get("max").is_some_and(|max| max >= 1_000_000.0));
    }
}
