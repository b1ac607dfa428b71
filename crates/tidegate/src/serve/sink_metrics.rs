//! Metrics of sinks.

use connect::{CircuitState, ConnectorService, LATENCY_BOUNDS_MS, SinkStatus};
use hooks::{MetricFamily, MetricKind, MetricSample, MetricValue};

type StatusFn = fn(&SinkStatus) -> f64;

/// One line for each counter and gauge.
const FAMILIES: [(&str, MetricKind, &str, StatusFn); 12] = [
    (
        "sink_queue_rows",
        MetricKind::Gauge,
        "Queued rows, in memory and in files.",
        |s| s.metrics.queued as f64,
    ),
    (
        "sink_queue_bytes",
        MetricKind::Gauge,
        "Bytes of queued rows, in memory and in files.",
        |s| s.metrics.queued_bytes as f64,
    ),
    (
        "sink_rows_in_flight",
        MetricKind::Gauge,
        "Rows of batches in flight.",
        |s| s.metrics.rows_in_flight as f64,
    ),
    (
        "sink_batches_in_flight",
        MetricKind::Gauge,
        "Batches in flight.",
        |s| s.metrics.batches_in_flight as f64,
    ),
    (
        "sink_rows_dequeued_total",
        MetricKind::Counter,
        "Rows taken from the queue for a batch.",
        |s| s.metrics.taken as f64,
    ),
    (
        "sink_rows_sent_total",
        MetricKind::Counter,
        "Rows written.",
        |s| s.metrics.sent as f64,
    ),
    (
        "sink_rows_retried_total",
        MetricKind::Counter,
        "Rows retried, counted at each retry.",
        |s| s.metrics.retried as f64,
    ),
    (
        "sink_rows_failed_total",
        MetricKind::Counter,
        "Rows that became dead letters.",
        |s| s.metrics.failed as f64,
    ),
    (
        "sink_dead_letters",
        MetricKind::Gauge,
        "Stored dead letters.",
        |s| s.metrics.dead_letters as f64,
    ),
    (
        "sink_dead_letters_dropped_total",
        MetricKind::Counter,
        "Dead letters deleted to make space for newer ones.",
        |s| s.metrics.dead_letters_dropped as f64,
    ),
    (
        "sink_batches_total",
        MetricKind::Counter,
        "Attempts to write a batch.",
        |s| s.metrics.batches as f64,
    ),
    (
        "sink_is_failing",
        MetricKind::Gauge,
        "1 while writes of a sink fail.",
        |s| f64::from(u8::from(s.health.circuit != CircuitState::Closed)),
    ),
];

fn labels(status: &SinkStatus) -> Vec<(&'static str, String)> {
    vec![
        ("sink", status.name.clone()),
        ("type", status.kind.unwrap_or("none").to_owned()),
    ]
}

pub(super) fn metrics(service: &ConnectorService) -> Vec<MetricFamily> {
    let sinks = service.sinks();
    if sinks.is_empty() {
        return Vec::new();
    }
    let mut families: Vec<_> = FAMILIES
        .into_iter()
        .map(|(name, kind, help, get)| MetricFamily {
            name,
            help,
            kind,
            samples: sinks
                .iter()
                .map(|status| MetricSample {
                    labels: labels(status),
                    value: MetricValue::Number(get(status)),
                })
                .collect(),
        })
        .collect();
    families.push(MetricFamily {
        name: "sink_rows_dropped_total",
        help: "Rows lost, by reason.",
        kind: MetricKind::Counter,
        samples: sinks.iter().flat_map(dropped).collect(),
    });
    families.push(MetricFamily {
        name: "sink_write_duration_seconds",
        help: "Duration of attempts to write a batch.",
        kind: MetricKind::Histogram,
        samples: sinks.iter().map(latency).collect(),
    });
    families
}

fn dropped(status: &SinkStatus) -> [MetricSample; 3] {
    let metrics = &status.metrics;
    [
        ("queue_full", metrics.dropped_queue_full),
        ("too_large", metrics.dropped_too_large),
        ("stopped", metrics.dropped_at_stop),
    ]
    .map(|(reason, count)| {
        let mut labels = labels(status);
        labels.push(("reason", reason.to_owned()));
        MetricSample {
            labels,
            value: MetricValue::Number(count as f64),
        }
    })
}

fn latency(status: &SinkStatus) -> MetricSample {
    let mut count = 0;
    let mut buckets = Vec::new();
    for (at, of_bucket) in status.metrics.latency_buckets.iter().enumerate() {
        count += of_bucket;
        if let Some(&bound_ms) = LATENCY_BOUNDS_MS.get(at) {
            buckets.push((bound_ms as f64 / 1000.0, count));
        }
    }
    MetricSample {
        labels: labels(status),
        value: MetricValue::Histogram {
            buckets,
            sum: status.metrics.latency_seconds,
            count,
        },
    }
}
