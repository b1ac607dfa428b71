//! Metrics of alarms, notifications and device events.

use devices::alarm::NotificationCounts;
use hooks::{MetricFamily, MetricKind, MetricSample, MetricValue};

use super::alarms::AlarmInputs;
use super::device_port::RuleDevicePort;

type CounterFn = fn(&NotificationCounts) -> u64;

fn family(
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    samples: Vec<MetricSample>,
) -> MetricFamily {
    MetricFamily {
        name,
        help,
        kind,
        samples,
    }
}

fn sample(labels: Vec<(&'static str, String)>, value: f64) -> MetricSample {
    MetricSample {
        labels,
        value: MetricValue::Number(value),
    }
}

pub(super) fn metrics(alarming: &AlarmInputs, of_rules: &RuleDevicePort) -> Vec<MetricFamily> {
    let stats = alarming.alarms.stats();
    let one = |name, kind, help, value: u64| {
        family(name, kind, help, vec![sample(Vec::new(), value as f64)])
    };
    let (counter, gauge) = (MetricKind::Counter, MetricKind::Gauge);
    let alarms = alarming.alarms.counts().into_iter();
    let alarms = alarms.map(|(state, severity, count)| {
        let labels = vec![
            ("state", state.as_str().to_owned()),
            ("severity", severity.as_str().to_owned()),
        ];
        sample(labels, count as f64)
    });
    let mut families = vec![
        family(
            "alarms",
            gauge,
            "Alarms by state and severity.",
            alarms.collect(),
        ),
        one(
            "alarms_raised_total",
            counter,
            "Alarms raised.",
            stats.raised,
        ),
        one(
            "alarms_cleared_total",
            counter,
            "Alarms cleared.",
            stats.cleared,
        ),
        one(
            "alarm_changes_queued",
            gauge,
            "Alarm changes waiting to be written; at the limit devices are paused.",
            stats.queued,
        ),
        one(
            "alarms_watched_devices",
            gauge,
            "Devices whose conditions are in memory.",
            stats.watched_devices,
        ),
        one(
            "alarms_unwatched_messages_total",
            counter,
            "Messages not evaluated by alarm conditions because of alarms.max_watched_devices.",
            stats.unwatched,
        ),
        one(
            "alarms_write_errors_total",
            counter,
            "Failed writes of alarms, which were retried.",
            stats.write_errors,
        ),
        one(
            "alarms_panics_total",
            counter,
            "Panics of the alarms thread, each of which skipped an alarm change or a step. A bug.",
            stats.panics,
        ),
        one(
            "device_events_queued",
            gauge,
            "Device events waiting for rules.",
            alarming.events.waiting() as u64,
        ),
        one(
            "device_events_dropped_total",
            counter,
            "Device events discarded before reaching rules because the queue was full.",
            alarming.events.lost_events(),
        ),
        one(
            "rule_unknown_device_actions_total",
            counter,
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
            outcomes.map(|(outcome, get)| {
                let labels = vec![
                    ("notification", name.clone()),
                    ("outcome", outcome.to_owned()),
                ];
                sample(labels, get(counts) as f64)
            })
        });
        families.push(family(
            "notifications_total",
            counter,
            "Notifications of alarms, by result.",
            samples.collect(),
        ));
    }
    families
}
