//! The named numbers a run yields. Tables, JSON, plots and assertions all know a number by the name listed here.

use crate::units::Unit;
pub(crate) use load_client::latency::{latency_classes, latency_histogram};
use load_client::metrics::{MetricDefinition, MetricTable, metric};

pub(crate) type MetricValues = load_client::metrics::MetricValues<BenchMetrics>;
pub(crate) type Assertion = load_client::assertion::Assertion<BenchMetrics>;

/// The metrics of all benchmarks.
#[derive(Clone, Debug, Default)]
pub(crate) struct BenchMetrics;

impl MetricTable for BenchMetrics {
    const METRICS: &'static [MetricDefinition] = METRICS;
    const EXAMPLE: &'static str = "p99<5ms";
    const NOT_MEASURED: &'static str = " in this run (metrics of the broker's process need its id)";
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
    metric("stored", Unit::Count, "messages stored for absent clients"),
    metric("stored_rate", Unit::PerSecond, "messages stored per second"),
    metric("store_seconds", Unit::Seconds, "time until all were stored"),
    metric("connects", Unit::Count, "connections accepted"),
    metric(
        "connect_rate",
        Unit::PerSecond,
        "connections accepted per second",
    ),
    metric("seconds", Unit::Seconds, "measured time"),
    metric("min", Unit::Nanoseconds, "latency, minimum"),
    metric("mean", Unit::Nanoseconds, "latency, mean"),
    metric("p50", Unit::Nanoseconds, "latency, 50 %"),
    metric("p90", Unit::Nanoseconds, "latency, 90 %"),
    metric("p95", Unit::Nanoseconds, "latency, 95 %"),
    metric("p99", Unit::Nanoseconds, "latency, 99 %"),
    metric("p99.9", Unit::Nanoseconds, "latency, 99.9 %"),
    metric("max", Unit::Nanoseconds, "latency, maximum"),
    metric(
        "unfairness",
        Unit::Ratio,
        "time of the slowest client, of the fastest",
    ),
    metric("incomplete", Unit::Count, "clients that missed messages"),
    metric("success", Unit::Fraction, "received of what was sent"),
    metric("lost", Unit::Count, "messages lost"),
    metric("repeated", Unit::Count, "messages repeated"),
    metric("reordered", Unit::Count, "messages out of order"),
    metric("rejected", Unit::Count, "messages rejected by reason code"),
    metric("unacknowledged", Unit::Count, "messages never acknowledged"),
    metric("unsent", Unit::Count, "messages due but never sent"),
    metric(
        "abandoned_windows",
        Unit::Count,
        "windows abandoned after a second",
    ),
    metric("unexpected", Unit::Count, "messages of others"),
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
    metric("stalls", Unit::Fraction, "generator not run by the machine"),
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
    metric(
        "resumption",
        Unit::Nanoseconds,
        "time until the sender continues after an interruption",
    ),
    metric("resent", Unit::Bytes, "payload sent again"),
    metric(
        "cost_ratio",
        Unit::Ratio,
        "cost of a message, many filters to one",
    ),
];

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
}
