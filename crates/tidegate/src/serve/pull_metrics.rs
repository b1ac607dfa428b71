//! Metrics of pull sources.

use devices::pull::{PullScheduler, PullSourceStatus};
use hooks::{MetricFamily, MetricKind, MetricSample, MetricValue};

type StatusFn = fn(&PullSourceStatus) -> f64;

/// One line for each counter and gauge.
const FAMILIES: [(&str, MetricKind, &str, StatusFn); 8] = [
    (
        "pull_runs_total",
        MetricKind::Counter,
        "Queries of a pull source.",
        |s| s.health.runs as f64,
    ),
    (
        "pull_failed_runs_total",
        MetricKind::Counter,
        "Failed queries of a pull source.",
        |s| s.health.failed_runs as f64,
    ),
    (
        "pull_rows_total",
        MetricKind::Counter,
        "Rows returned by a pull source.",
        |s| s.health.rows as f64,
    ),
    (
        "pull_values_total",
        MetricKind::Counter,
        "Values returned by a pull source.",
        |s| s.health.values as f64,
    ),
    (
        "pull_skipped_values_total",
        MetricKind::Counter,
        "Values skipped, such as NaN.",
        |s| s.health.skipped_values as f64,
    ),
    (
        "pull_unknown_rows_total",
        MetricKind::Counter,
        "Rows of devices that are not registered.",
        |s| s.health.unknown_rows as f64,
    ),
    (
        "pull_last_run_duration_seconds",
        MetricKind::Gauge,
        "Duration of the last query of a pull source.",
        |s| s.health.last_duration_ms.unwrap_or(0) as f64 / 1000.0,
    ),
    (
        "pull_is_failing",
        MetricKind::Gauge,
        "1 while a pull source is failing.",
        |s| f64::from(u8::from(!s.is_ok)),
    ),
];

pub(super) fn metrics(pulls: &PullScheduler) -> Vec<MetricFamily> {
    let sources = pulls.statuses();
    if sources.is_empty() {
        return Vec::new();
    }
    let families = FAMILIES.into_iter();
    families
        .map(|(name, kind, help, get)| MetricFamily {
            name,
            help,
            kind,
            samples: sources
                .iter()
                .map(|status| MetricSample {
                    labels: vec![
                        ("source", status.name.clone()),
                        ("type", status.r#type.to_owned()),
                    ],
                    value: MetricValue::Number(get(status)),
                })
                .collect(),
        })
        .collect()
}
