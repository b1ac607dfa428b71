//! Metrics of the telemetry pipeline and the time series.

use MetricKind::{Counter, Gauge};
use devices::ingest::{HistogramSnapshot, PipelineSnapshot};
use hooks::{MetricFamily, MetricKind, MetricSample, MetricValue};
use series::SeriesStats;

use super::node_ingest::NodeIngest;

/// Name, kind, help text and value of a metric.
type MetricSpec<T> = (&'static str, MetricKind, &'static str, fn(&T) -> u64);

#[rustfmt::skip]
const PIPELINE_METRICS: [MetricSpec<PipelineSnapshot>; 14] = [
    ("ingest_messages_total", Counter, "Messages of devices.", |s| s.messages),
    ("ingest_rows_total", Counter, "Telemetry rows stored.", |s| s.rows),
    ("ingest_points_total", Counter, "Telemetry values stored.", |s| s.points),
    ("ingest_malformed_messages_total", Counter, "Messages of devices that could not be parsed.", |s| s.malformed),
    ("ingest_rejected_values_total", Counter, "Values rejected by the thing model.", |s| s.rejected),
    ("ingest_rejected_keys_total", Counter, "Keys not created because of telemetry.max_keys or telemetry.max_keys_per_product.", |s| s.rejected_keys),
    ("ingest_rejected_rows_total", Counter, "Rows rejected by the time series.", |s| s.unstored),
    ("ingest_filtered_rows_total", Counter, "Rows discarded by a rule chain.", |s| s.filtered),
    ("ingest_unknown_device_messages_total", Counter, "Messages about unknown devices.", |s| s.unknown),
    ("ingest_ignored_messages_total", Counter, "Messages of devices, or parts of them, that the node does not evaluate: logs, models of their own, firmware, direct messages, source times of properties.", |s| s.ignored),
    ("ingest_batches_total", Counter, "Batches processed by workers.", |s| s.batches),
    ("ingest_mailboxes", Gauge, "Mailboxes, each with its worker.", |s| s.mailboxes),
    ("ingest_mailbox_messages", Gauge, "Messages waiting in mailboxes.", |s| s.queued),
    ("ingest_mailbox_bytes", Gauge, "Bytes of messages waiting in mailboxes.", |s| s.queued_bytes),
];

#[rustfmt::skip]
const SERIES_METRICS: [MetricSpec<SeriesStats>; 13] = [
    ("telemetry_keys", Gauge, "Telemetry keys.", |s| s.keys),
    ("telemetry_wal_bytes", Gauge, "Size of the write-ahead log of telemetry.", |s| s.wal_bytes),
    ("telemetry_memtable_bytes", Gauge, "Bytes of rows not yet in a segment.", |s| s.memtable_bytes),
    ("telemetry_segments", Gauge, "Segments on disk.", |s| s.segments),
    ("telemetry_segment_bytes", Gauge, "Their size.", |s| s.segment_bytes),
    ("telemetry_segment_points", Gauge, "Values in segments.", |s| s.segment_points),
    ("telemetry_flushed_bytes_total", Counter, "Bytes written by flushing rows to segments.", |s| s.flushed_bytes),
    ("telemetry_merged_bytes_total", Counter, "Bytes written by merging segments.", |s| s.merged_bytes),
    ("telemetry_fsyncs_total", Counter, "Syncs of the write-ahead log.", |s| s.syncs),
    ("telemetry_write_stalls_total", Counter, "Stalls of writes because the disk is too slow.", |s| s.stalls),
    ("telemetry_errors_total", Counter, "Errors of reading and writing telemetry.", |s| s.errors),
    ("telemetry_damaged_files", Gauge, "Telemetry files found damaged since the start.", |s| s.damaged_files),
    ("telemetry_free_bytes", Gauge, "Free bytes of the telemetry's file system.", |s| s.free_bytes),
];

/// Upper bounds of histogram buckets, in nanoseconds.
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
        "Time from hand-over of a message to the end of its processing; one of sixteen messages is timed.",
        &snapshot.latency,
    ));
    families.push(histogram_family(
        "ingest_mailbox_wait_seconds",
        "Time that messages wait in mailboxes.",
        &snapshot.waiting,
    ));
    families
}

fn number_family<T>((name, kind, help, get): &MetricSpec<T>, from: &T) -> MetricFamily {
    MetricFamily::single(name, help, *kind, get(from) as f64)
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
