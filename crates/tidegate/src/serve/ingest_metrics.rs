//! What the pipeline of devices' messages counts, as metrics.

use broker::info::{MetricFamily, MetricKind, MetricSample, MetricValue};
use devices::ingest::{Snapshot, Times};

use super::ingest::Ingest;

type Get = fn(&Snapshot) -> u64;

const FAMILIES: [(&str, MetricKind, &str, Get); 12] = [
    (
        "ingest_messages_total",
        MetricKind::Counter,
        "Messages of devices.",
        |s| s.messages,
    ),
    (
        "ingest_rows_total",
        MetricKind::Counter,
        "Rows of telemetry stored.",
        |s| s.rows,
    ),
    (
        "ingest_points_total",
        MetricKind::Counter,
        "Values of telemetry stored.",
        |s| s.points,
    ),
    (
        "ingest_malformed_total",
        MetricKind::Counter,
        "Messages of devices that could not be read.",
        |s| s.malformed,
    ),
    (
        "ingest_refused_values_total",
        MetricKind::Counter,
        "Values that did not fit the thing model.",
        |s| s.refused,
    ),
    (
        "ingest_unstored_rows_total",
        MetricKind::Counter,
        "Rows that the time series did not take.",
        |s| s.unstored,
    ),
    (
        "ingest_filtered_rows_total",
        MetricKind::Counter,
        "Rows that a rule chain ended.",
        |s| s.filtered,
    ),
    (
        "ingest_unknown_total",
        MetricKind::Counter,
        "Messages about devices that nobody knows.",
        |s| s.unknown,
    ),
    (
        "ingest_batches_total",
        MetricKind::Counter,
        "Batches that workers have done.",
        |s| s.batches,
    ),
    (
        "ingest_mailboxes",
        MetricKind::Gauge,
        "Mailboxes, each with its worker.",
        |s| s.mailboxes,
    ),
    (
        "ingest_mailbox_messages",
        MetricKind::Gauge,
        "Messages that wait in mailboxes.",
        |s| s.queued,
    ),
    (
        "ingest_mailbox_bytes",
        MetricKind::Gauge,
        "Bytes of messages that wait in mailboxes.",
        |s| s.queued_bytes,
    ),
];

/// Upper bounds of buckets, in nanoseconds.
const BOUNDS_NS: [u64; 12] = [
    1_000,
    2_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    20_000_000,
    100_000_000,
    1_000_000_000,
];

pub(super) fn metrics(ingest: &Ingest) -> Vec<MetricFamily> {
    let snapshot = ingest.pipeline.snapshot();
    let number = |(name, kind, help, get): (_, _, _, Get)| MetricFamily {
        name,
        help,
        kind,
        samples: vec![MetricSample {
            labels: Vec::new(),
            value: MetricValue::Number(get(&snapshot) as f64),
        }],
    };
    let mut families: Vec<_> = FAMILIES.into_iter().map(number).collect();
    families.push(times(
        "ingest_latency_seconds",
        "From hand-over of a message to its end; in sync mode one of sixteen is timed.",
        &snapshot.latency,
    ));
    families.push(times(
        "ingest_waiting_seconds",
        "What messages wait in mailboxes.",
        &snapshot.waiting,
    ));
    families
}

fn times(name: &'static str, help: &'static str, times: &Times) -> MetricFamily {
    let buckets = BOUNDS_NS
        .iter()
        .map(|ns| (*ns as f64 / 1e9, times.within_ns(*ns)));
    MetricFamily {
        name,
        help,
        kind: MetricKind::Histogram,
        samples: vec![MetricSample {
            labels: Vec::new(),
            value: MetricValue::Histogram {
                buckets: buckets.collect(),
                sum: times.sum_ns as f64 / 1e9,
                count: times.count,
            },
        }],
    }
}
