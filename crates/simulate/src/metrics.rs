//! The numbers of a phase by name: tables, JSON and assertions use these names.

use load_client::units::Unit;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetricDefinition {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// For tables.
    pub(crate) label: &'static str,
}

const fn metric(name: &'static str, unit: Unit, label: &'static str) -> MetricDefinition {
    MetricDefinition { name, unit, label }
}

/// In the order of the table.
pub(crate) const METRICS: &[MetricDefinition] = &[
    metric("seconds", Unit::Seconds, "duration"),
    metric("connected", Unit::Count, "devices connected at the end"),
    metric("connects", Unit::Count, "connections accepted"),
    metric("connect_failures", Unit::Count, "connections that failed"),
    metric(
        "connect_rate",
        Unit::PerSecond,
        "connections accepted per second",
    ),
    metric("connect_mean", Unit::Nanoseconds, "connect time, mean"),
    metric("connect_p50", Unit::Nanoseconds, "connect time, 50 %"),
    metric("connect_p99", Unit::Nanoseconds, "connect time, 99 %"),
    metric("connect_max", Unit::Nanoseconds, "connect time, most"),
    metric(
        "disconnects",
        Unit::Count,
        "connections that ended unexpectedly",
    ),
    metric("faults", Unit::Count, "devices affected by faults"),
    metric("reconnects", Unit::Count, "devices that returned"),
    metric(
        "reconnect_p50",
        Unit::Nanoseconds,
        "time without a connection, 50 %",
    ),
    metric(
        "reconnect_p99",
        Unit::Nanoseconds,
        "time without a connection, 99 %",
    ),
    metric("sent", Unit::Count, "messages sent"),
    metric("sent_rate", Unit::PerSecond, "messages sent per second"),
    metric(
        "skipped",
        Unit::Count,
        "messages not sent, since the broker is too slow",
    ),
    metric(
        "missed",
        Unit::Count,
        "messages not sent, since the simulator is too slow",
    ),
    metric("sent_bytes", Unit::Bytes, "payload sent"),
    metric("acknowledged", Unit::Count, "messages acknowledged"),
    metric("refused", Unit::Count, "messages refused by reason code"),
    metric(
        "unacknowledged",
        Unit::Count,
        "messages whose connection ended before",
    ),
    metric(
        "ack_mean",
        Unit::Nanoseconds,
        "time to acknowledgement, mean",
    ),
    metric(
        "ack_p50",
        Unit::Nanoseconds,
        "time to acknowledgement, 50 %",
    ),
    metric(
        "ack_p99",
        Unit::Nanoseconds,
        "time to acknowledgement, 99 %",
    ),
    metric(
        "ack_p99.9",
        Unit::Nanoseconds,
        "time to acknowledgement, 99.9 %",
    ),
    metric(
        "ack_max",
        Unit::Nanoseconds,
        "time to acknowledgement, most",
    ),
    metric("received", Unit::Count, "messages to devices"),
    metric("requests", Unit::Count, "requests to devices"),
    metric("answers", Unit::Count, "requests answered"),
    metric(
        "failed_answers",
        Unit::Count,
        "requests answered with a failure",
    ),
    metric(
        "unanswered",
        Unit::Count,
        "requests without an answer, as configured",
    ),
];

pub(crate) fn find(name: &str) -> Option<&'static MetricDefinition> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The metric whose name is most like this one.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    METRICS
        .iter()
        .map(|metric| (strsim::levenshtein(name, metric.name), metric.name))
        .min()
        .filter(|(steps, _)| *steps <= 3)
        .map(|(_, name)| name)
}

/// The values of a phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetricValues(Vec<(&'static MetricDefinition, f64)>);

impl MetricValues {
    /// Adds a value of one of [`METRICS`].
    pub(crate) fn set(&mut self, name: &str, value: f64) {
        let metric = find(name);
        debug_assert!(metric.is_some(), "unknown metric {name}");
        self.0.extend(metric.map(|metric| (metric, value)));
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        let found = self.0.iter().find(|(metric, _)| metric.name == name);
        found.map(|(_, value)| *value)
    }

    /// In the order of [`METRICS`].
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static MetricDefinition, f64)> {
        METRICS
            .iter()
            .filter_map(|metric| Some((metric, self.get(metric.name)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_documented_once() {
        let text = include_str!("../../../docs/guides/simulator.md");
        for metric in METRICS {
            let same = METRICS.iter().filter(|other| other.name == metric.name);
            assert_eq!(same.count(), 1, "{}", metric.name);
            assert!(
                text.contains(&format!("`{}`", metric.name)),
                "{}",
                metric.name
            );
        }
    }
}
