//! The thresholds that MiniTB's performance report recommends for alerts.

use crate::pipeline_bench::PipelineResult;

/// How serious an alert is; the number is that of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AlertLevel {
    None = 0,
    Warning = 1,
    Critical = 2,
}

impl AlertLevel {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// A value of a run that is watched.
#[derive(Debug)]
pub(super) struct AlertRule {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    warning: f64,
    critical: f64,
    /// Where an alert begins.
    limit: AlertLimit,
    /// The value of a run; `before` is the throughput without a fault.
    value: fn(&PipelineResult, before: f64) -> f64,
}

#[derive(Clone, Copy, Debug)]
enum AlertLimit {
    AtLeast,
    Above,
    Below,
}

/// In the order of the report.
pub(super) const RULES: [AlertRule; 6] = [
    AlertRule {
        name: "throughput_drop",
        unit: "%",
        warning: 20.0,
        critical: 50.0,
        limit: AlertLimit::AtLeast,
        value: |run, before| (1.0 - run.per_s / before) * 100.0,
    },
    AlertRule {
        name: "mean_latency",
        unit: "ms",
        warning: 500.0,
        critical: 1000.0,
        limit: AlertLimit::Above,
        value: |run, _| run.mean_us / 1e3,
    },
    AlertRule {
        name: "p95_latency",
        unit: "ms",
        warning: 800.0,
        critical: 1500.0,
        limit: AlertLimit::Above,
        value: |run, _| run.p95_us / 1e3,
    },
    AlertRule {
        name: "success_rate",
        unit: "%",
        warning: 99.0,
        critical: 95.0,
        limit: AlertLimit::Below,
        value: |run, _| run.stored as f64 / run.sent as f64 * 100.0,
    },
    AlertRule {
        name: "memory",
        unit: "MB",
        warning: 500.0,
        critical: 1000.0,
        limit: AlertLimit::Above,
        value: |run, _| run.peak_bytes as f64 / 1e6,
    },
    AlertRule {
        name: "queue",
        unit: "messages",
        warning: 1000.0,
        critical: 5000.0,
        limit: AlertLimit::Above,
        value: |run, _| run.max_queued as f64,
    },
];

impl AlertRule {
    pub(super) fn value_of(&self, run: &PipelineResult, before: f64) -> f64 {
        (self.value)(run, before)
    }

    pub(super) fn alert_level_of(&self, value: f64) -> AlertLevel {
        let exceeds = |threshold: f64| match self.limit {
            AlertLimit::AtLeast => value >= threshold,
            AlertLimit::Above => value > threshold,
            AlertLimit::Below => value < threshold,
        };
        match (exceeds(self.warning), exceeds(self.critical)) {
            (_, true) => AlertLevel::Critical,
            (true, false) => AlertLevel::Warning,
            (false, false) => AlertLevel::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_begin_at_the_thresholds_of_the_report() {
        use AlertLevel::{Critical, None, Warning};
        let levels = |name: &str, values: [f64; 4]| {
            let rule = RULES.iter().find(|rule| rule.name == name);
            values.map(|value| rule.expect("a rule").alert_level_of(value))
        };
        let expected = [None, Warning, Warning, Critical];
        assert_eq!(
            levels("throughput_drop", [19.9, 20.0, 49.9, 50.0]),
            expected
        );
        assert_eq!(
            levels("mean_latency", [500.0, 500.1, 1000.0, 1000.1]),
            expected
        );
        assert_eq!(
            levels("p95_latency", [800.0, 801.0, 1500.0, 1501.0]),
            expected
        );
        assert_eq!(levels("success_rate", [99.0, 98.9, 95.0, 94.9]), expected);
        assert_eq!(levels("memory", [500.0, 500.1, 1000.0, 1000.1]), expected);
        assert_eq!(levels("queue", [1000.0, 1001.0, 5000.0, 5001.0]), expected);
    }
}
