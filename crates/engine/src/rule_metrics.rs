//! Metrics of rules in Prometheus form. The names match those in the alert rules shipped with the program.

use hooks::{MetricFamily, MetricKind, MetricSample, MetricValue};

use crate::counters::{RuleCounter, RuleTotals};
use crate::engine::Engine;

const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

struct MetricFamilySpec {
    name: &'static str,
    help: &'static str,
    /// The counters of the family, each with its label.
    samples: &'static [(RuleCounter, &'static str, &'static str)],
}

const FAMILIES: [MetricFamilySpec; 6] = [
    MetricFamilySpec {
        name: "rule_engine_matched_total",
        help: "Events that matched a rule.",
        samples: &[(RuleCounter::Matched, "", "")],
    },
    MetricFamilySpec {
        name: "rule_engine_executions_total",
        help: "Evaluations by result.",
        samples: &[
            (RuleCounter::Passed, "result", "passed"),
            (RuleCounter::NoResult, "result", "no_result"),
            (RuleCounter::Failed, "result", "failed"),
        ],
    },
    MetricFamilySpec {
        name: "rule_engine_failures_total",
        help: "Failed evaluations by kind of error.",
        samples: &[
            (RuleCounter::FailedType, "kind", "value"),
            (RuleCounter::FailedLimit, "kind", "limit"),
            (RuleCounter::FailedOther, "kind", "other"),
        ],
    },
    MetricFamilySpec {
        name: "rule_engine_actions_total",
        help: "Actions by result; rows for sinks count as queued.",
        samples: &[
            (RuleCounter::ActionsSucceeded, "result", "succeeded"),
            (RuleCounter::ActionsFailed, "result", "failed"),
            (RuleCounter::ActionsQueued, "result", "queued"),
            (RuleCounter::ActionsDropped, "result", "dropped"),
        ],
    },
    MetricFamilySpec {
        name: "rule_engine_window_rows_lost_total",
        help: "Events not counted by any window, by reason.",
        samples: &[
            (RuleCounter::WindowLate, "reason", "late"),
            (RuleCounter::WindowFull, "reason", "full"),
            (RuleCounter::WindowUntimed, "reason", "untimed"),
            (RuleCounter::WindowAhead, "reason", "ahead"),
        ],
    },
    MetricFamilySpec {
        name: "rule_engine_timed_executions_total",
        help: "Evaluations that were timed (a sample of all).",
        samples: &[],
    },
];

impl Engine {
    /// Totals of all rules.
    pub fn totals(&self) -> RuleTotals {
        let mut sum = RuleTotals::default();
        self.for_each_active(|_, totals| sum.add(totals));
        sum
    }

    /// Metric families of rules. Names begin with `rule_engine_`, without the program's prefix. A rule
    /// without events has no samples. Rules beyond `rules.max_rules_with_metrics` appear only in the sums, which
    /// have the label `rule=""`.
    pub fn metrics(&self) -> Vec<MetricFamily> {
        let mut families: Vec<MetricFamily> = FAMILIES
            .iter()
            .map(|family| MetricFamily {
                name: family.name,
                help: family.help,
                kind: MetricKind::Counter,
                samples: Vec::new(),
            })
            .collect();
        let mut durations = MetricFamily {
            name: "rule_engine_execution_duration_seconds",
            help: "Duration of an evaluation, from a sample of all evaluations.",
            kind: MetricKind::Summary,
            samples: Vec::new(),
        };
        let mut sum = RuleTotals::default();
        let mut left = self.shared.settings.max_rules_with_metrics;
        let (listed, running) = self.for_each_active(|name, totals| {
            sum.add(totals);
            if left > 0 {
                left -= 1;
                add_rule_samples(&mut families, &mut durations, name, totals);
            }
        });
        add_rule_samples(&mut families, &mut durations, "", &sum);
        families.push(durations);
        families.push(MetricFamily::gauge(
            "rule_engine_rules",
            "Number of rules.",
            listed as f64,
        ));
        families.push(MetricFamily::gauge(
            "rule_engine_rules_running",
            "Number of running rules.",
            running as f64,
        ));
        let waiting = self.shared.rows.level().waiting_bytes() as f64;
        families.push(MetricFamily::gauge(
            "rule_engine_window_queue_bytes",
            "Bytes of rows queued for windows.",
            waiting,
        ));
        families
    }
}

fn add_rule_samples(
    families: &mut [MetricFamily],
    durations: &mut MetricFamily,
    rule: &str,
    totals: &RuleTotals,
) {
    for (described, family) in FAMILIES.iter().zip(families) {
        if described.samples.is_empty() {
            family
                .samples
                .push(sample(rule, "", "", totals.timed_count()));
        }
        for (count, label, value) in described.samples {
            family
                .samples
                .push(sample(rule, label, value, totals.get(*count)));
        }
    }
    let quantile = |part: f64| {
        let seconds = totals.quantile_ns(part).unwrap_or(0) as f64 / 1e9;
        (part, seconds)
    };
    durations.samples.push(MetricSample {
        labels: vec![("rule", rule.to_owned())],
        value: MetricValue::Summary {
            quantiles: QUANTILES.map(quantile).to_vec(),
            sum: totals.sum_ns() as f64 / 1e9,
            count: totals.timed_count(),
        },
    });
}

fn sample(rule: &str, label: &'static str, value: &str, count: u64) -> MetricSample {
    let mut labels = vec![("rule", rule.to_owned())];
    if !label.is_empty() {
        labels.push((label, value.to_owned()));
    }
    MetricSample {
        labels,
        value: MetricValue::Number(count as f64),
    }
}
