//! Metrics of alarms, notifications and device events.

use devices::alarm::NotificationCounts;
use hooks::{MetricFamily, MetricKind, MetricSample, MetricValue};

use super::alarms::AlarmInputs;
use super::device_port::RuleDevicePort;

type CounterFn = fn(&NotificationCounts) -> u64;

/// A family of numbers with two labels each.
fn by_labels(
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    labels: [&'static str; 2],
    values: impl Iterator<Item = ([String; 2], u64)>,
) -> MetricFamily {
    let samples = values.map(|(of, value)| MetricSample {
        labels: labels.into_iter().zip(of).collect(),
        value: MetricValue::Number(value as f64),
    });
    MetricFamily {
        name,
        help,
        kind,
        samples: samples.collect(),
    }
}

pub(super) fn metrics(alarming: &AlarmInputs, of_rules: &RuleDevicePort) -> Vec<MetricFamily> {
    let stats = alarming.alarms.stats();
    let counter = MetricFamily::counter;
    let gauge = |name, help, value: u64| MetricFamily::gauge(name, help, value as f64);
    let alarms = alarming.alarms.counts().into_iter();
    let alarms = alarms.map(|(state, severity, count)| {
        let labels = [state.as_str().to_owned(), severity.as_str().to_owned()];
        (labels, count)
    });
    let mut families = vec![
        by_labels(
            "alarms",
            "Alarms by state and severity.",
            MetricKind::Gauge,
            ["state", "severity"],
            alarms,
        ),
        counter("alarms_raised_total", "Alarms raised.", stats.raised),
        counter("alarms_cleared_total", "Alarms cleared.", stats.cleared),
        gauge(
            "alarm_changes_queued",
            "Alarm changes waiting to be written; at the limit devices are paused.",
            stats.queued,
        ),
        gauge(
            "alarms_watched_devices",
            "Devices whose conditions are in memory.",
            stats.watched_devices,
        ),
        counter(
            "alarms_unwatched_messages_total",
            "Messages not evaluated by alarm conditions because of alarms.max_watched_devices.",
            stats.unwatched,
        ),
        counter(
            "alarms_write_errors_total",
            "Failed writes of alarms, which were retried.",
            stats.write_errors,
        ),
        counter(
            "alarms_panics_total",
            "Panics of the alarms thread, each of which skipped an alarm change or a step. A bug.",
            stats.panics,
        ),
        gauge(
            "device_events_queued",
            "Device events waiting for rules.",
            alarming.events.waiting() as u64,
        ),
        counter(
            "device_events_dropped_total",
            "Device events discarded before reaching rules because the queue was full.",
            alarming.events.lost_events(),
        ),
        counter(
            "rule_unknown_device_actions_total",
            "Telemetry and alarms of rules for unknown devices.",
            of_rules.unknown_devices(),
        ),
    ];
    let counts = alarming.notifications().counts();
    if !counts.is_empty() {
        let outcomes: [(&str, CounterFn); 3] = [
            ("sent", |counts| counts.sent),
            ("suppressed", |counts| counts.suppressed),
            ("failed", |counts| counts.failed),
        ];
        let samples = counts.iter().flat_map(|(name, counts)| {
            outcomes.map(|(outcome, get)| ([name.clone(), outcome.to_owned()], get(counts)))
        });
        families.push(by_labels(
            "notifications_total",
            "Notifications of alarms, by result.",
            MetricKind::Counter,
            ["notification", "outcome"],
            samples,
        ));
    }
    families
}
