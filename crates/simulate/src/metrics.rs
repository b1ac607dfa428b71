//! The numbers of a phase by name: tables, JSON and assertions use these names.

use load_client::metrics::{MetricDefinition, MetricTable, metric};
use load_client::units::Unit;

pub(crate) type MetricValues = load_client::metrics::MetricValues<SimulationMetrics>;
pub(crate) type Assertion = load_client::assertion::Assertion<SimulationMetrics>;

/// The metrics of a phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimulationMetrics;

impl MetricTable for SimulationMetrics {
    const METRICS: &'static [MetricDefinition] = METRICS;
    const EXAMPLE: &'static str = "connect_p99<50ms";
    const NOT_MEASURED: &'static str = " in this phase";
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
    metric("connect_max", Unit::Nanoseconds, "connect time, maximum"),
    metric(
        "resident_bytes",
        Unit::Bytes,
        "resident memory of devices and node at the end",
    ),
    metric(
        "device_bytes",
        Unit::Bytes,
        "memory per connected device, both ends",
    ),
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
    metric(
        "offline",
        Unit::Count,
        "messages of random devices without a connection",
    ),
    metric("sent_bytes", Unit::Bytes, "payload sent"),
    metric("acknowledged", Unit::Count, "messages acknowledged"),
    metric("rejected", Unit::Count, "messages rejected by reason code"),
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
        "time to acknowledgement, maximum",
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
    metric(
        "downloaded_files",
        Unit::Count,
        "files downloaded and verified",
    ),
    metric("failed_downloads", Unit::Count, "files not downloaded"),
    metric("commands", Unit::Count, "commands sent to devices"),
    metric(
        "failed_commands",
        Unit::Count,
        "commands that did not succeed",
    ),
    metric(
        "skipped_commands",
        Unit::Count,
        "commands not sent, since too many had not ended",
    ),
    metric("command_mean", Unit::Nanoseconds, "command to answer, mean"),
    metric("command_p50", Unit::Nanoseconds, "command to answer, 50 %"),
    metric("command_p99", Unit::Nanoseconds, "command to answer, 99 %"),
    metric(
        "command_max",
        Unit::Nanoseconds,
        "command to answer, maximum",
    ),
    metric("updates", Unit::Count, "installations of images begun"),
    metric("completed_updates", Unit::Count, "images installed"),
    metric("failed_updates", Unit::Count, "installations that failed"),
    metric(
        "damaged_images",
        Unit::Count,
        "images and files with a wrong size or checksum",
    ),
    metric(
        "downloaded_bytes",
        Unit::Bytes,
        "images and files downloaded",
    ),
    metric("update_p50", Unit::Nanoseconds, "time to install, 50 %"),
    metric("update_p99", Unit::Nanoseconds, "time to install, 99 %"),
    metric("update_max", Unit::Nanoseconds, "time to install, maximum"),
    metric(
        "campaign_succeeded",
        Unit::Count,
        "devices of the campaign that succeeded",
    ),
    metric(
        "campaign_failed",
        Unit::Count,
        "devices of the campaign that failed",
    ),
    metric("script_errors", Unit::Count, "calls of scripts that failed"),
    metric(
        "delivered",
        Unit::Count,
        "messages delivered to subscribers",
    ),
    metric("lost", Unit::Count, "messages not delivered to subscribers"),
    metric("repeated", Unit::Count, "messages delivered more than once"),
    metric(
        "reordered",
        Unit::Count,
        "messages delivered after a later one",
    ),
    metric(
        "delivery_mean",
        Unit::Nanoseconds,
        "time to a subscriber, mean",
    ),
    metric(
        "delivery_p50",
        Unit::Nanoseconds,
        "time to a subscriber, 50 %",
    ),
    metric(
        "delivery_p99",
        Unit::Nanoseconds,
        "time to a subscriber, 99 %",
    ),
    metric(
        "delivery_p99.9",
        Unit::Nanoseconds,
        "time to a subscriber, 99.9 %",
    ),
    metric(
        "delivery_max",
        Unit::Nanoseconds,
        "time to a subscriber, maximum",
    ),
    metric("stored", Unit::Count, "samples of time to storage"),
    metric("unstored", Unit::Count, "samples not stored within 10 s"),
    metric("storage_p50", Unit::Nanoseconds, "time to storage, 50 %"),
    metric("storage_p99", Unit::Nanoseconds, "time to storage, 99 %"),
    metric("storage_max", Unit::Nanoseconds, "time to storage, maximum"),
];

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
