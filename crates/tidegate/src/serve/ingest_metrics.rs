//! What the pipeline of devices' messages and the time series count, as metrics.

use MetricKind::{Counter, Gauge};
use broker::info::{MetricFamily, MetricKind, MetricSample, MetricValue};
use devices::ingest::{HistogramSnapshot, PipelineSnapshot};
use series::SeriesStats;

use super::node_ingest::NodeIngest;

/// Name, kind, help and value of a number.
type MetricSpec<T> = (&'static str, MetricKind, &'static str, fn(&T) -> u64);

#[rustfmt::skip]
const PIPELINE_METRICS: [MetricSpec<PipelineSnapshot>; 13] = [
    ("ingest_messages_total", Counter, "Messages of devices.", |s| s.messages),
    ("ingest_rows_total", Counter, "Rows of telemetry stored.", |s| s.rows),
    ("ingest_points_total", Counter, "Values of telemetry stored.", |s| s.points),
    ("ingest_malformed_total", Counter, "Messages of devices that could not be read.", |s| s.malformed),
    ("ingest_refused_values_total", Counter, "Values that did not fit the thing model.", |s| s.refused),
    ("ingest_unstored_rows_total", Counter, "Rows that the time series did not take.", |s| s.unstored),
    ("ingest_filtered_rows_total", Counter, "Rows that a rule chain ended.", |s| s.filtered),
    ("ingest_unknown_total", Counter, "Messages about devices that nobody knows.", |s| s.unknown),
    ("ingest_ignored_total", Counter, "Messages of devices, or parts of them, that the node does not evaluate: logs, models of their own, firmware, direct messages, source times of properties.", |s| s.ignored),
    ("ingest_batches_total", Counter, "Batches that workers have done.", |s| s.batches),
    ("ingest_mailboxes", Gauge, "Mailboxes, each with its worker.", |s| s.mailboxes),
    ("ingest_mailbox_messages", Gauge, "Messages that wait in mailboxes.", |s| s.queued),
    ("ingest_mailbox_bytes", Gauge, "Bytes of messages that wait in mailboxes.", |s| s.queued_bytes),
];

#[rustfmt::skip]
const SERIES_METRICS: [MetricSpec<SeriesStats>; 13] = [
    ("telemetry_keys", Gauge, "Names of keys.", |s| s.keys),
    ("telemetry_wal_bytes", Gauge, "Size of the write-ahead log of telemetry.", |s| s.wal_bytes),
    ("telemetry_memory_bytes", Gauge, "Rows that are in no file of columns yet.", |s| s.memory_bytes),
    ("telemetry_segments", Gauge, "Files of columns.", |s| s.segments),
    ("telemetry_segment_bytes", Gauge, "Their size.", |s| s.segment_bytes),
    ("telemetry_segment_points", Gauge, "Values in them.", |s| s.segment_points),
    ("telemetry_flushed_bytes_total", Counter, "Bytes written when rows went to files of columns.", |s| s.flushed_bytes),
    ("telemetry_merged_bytes_total", Counter, "Bytes written when files of columns were merged.", |s| s.merged_bytes),
    ("telemetry_syncs_total", Counter, "How often the write-ahead log was forced to disk.", |s| s.syncs),
    ("telemetry_stalls_total", Counter, "How often rows had to wait because the disk is behind.", |s| s.stalls),
    ("telemetry_errors_total", Counter, "Errors of reading and writing telemetry.", |s| s.errors),
    ("telemetry_damaged_files", Gauge, "Files of telemetry that were found damaged since the start.", |s| s.damaged_files),
    ("telemetry_free_bytes", Gauge, "Room of the file system the telemetry is on.", |s| s.free_bytes),
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

pub(super) fn metrics(ingest: &NodeIngest) -> Vec<MetricFamily> {
    let (snapshot, stats) = (ingest.pipeline.snapshot(), ingest.series.stats());
    let mut families: Vec<_> = PIPELINE_METRICS
        .iter()
        .map(|line| number_family(line, &snapshot))
        .collect();
    families.extend(
        SERIES_METRICS
            .iter()
            .map(|line| number_family(line, &stats)),
    );
    families.push(histogram_family(
        "ingest_latency_seconds",
        "From hand-over of a message to its end; one of sixteen messages is timed.",
        &snapshot.latency,
    ));
    families.push(histogram_family(
        "ingest_waiting_seconds",
        "What messages wait in mailboxes.",
        &snapshot.waiting,
    ));
    families
}

fn number_family<T>((name, kind, help, get): &MetricSpec<T>, from: &T) -> MetricFamily {
    MetricFamily {
        name,
        help,
        kind: *kind,
        samples: vec![MetricSample {
            labels: Vec::new(),
            value: MetricValue::Number(get(from) as f64),
        }],
    }
}

fn histogram_family(
    name: &'static str,
    help: &'static str,
    times: &HistogramSnapshot,
) -> MetricFamily {
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
