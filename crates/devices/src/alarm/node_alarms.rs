//! Alarms of the node about itself: its metrics are treated as telemetry and evaluated by alarm rules.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use series::{KeyId, Point, PointValue};
use store::{Objects, StoreError};

use super::definition_error::AlarmDefinitionError;
use super::device_alarms::DeviceAlarms;
use super::product_rules::ProductAlarmRules;
use super::service::Alarms;
use super::watched_devices::{AlarmSubject, DeviceTransitions};

/// Metrics that rules may use, with descriptions.
const METRICS: [(&str, &str); 11] = [
    (
        "throughput_drop_percent",
        "messages per second below the usual rate, in percent",
    ),
    (
        "latency_mean_ms",
        "mean time from a device message to the store",
    ),
    (
        "latency_p95_ms",
        "95th percentile of the time from a device message to the store",
    ),
    (
        "success_percent",
        "percentage of device messages that were stored",
    ),
    ("memory_mb", "resident memory"),
    ("mailbox_backlog", "device messages waiting in mailboxes"),
    (
        "rule_success_percent",
        "percentage of rule evaluations without an error",
    ),
    ("rule_latency_ms", "mean time of a rule evaluation"),
    ("rule_queue", "rule rows waiting for sinks"),
    (
        "damaged_files",
        "damaged files that the node was started without, in quarantine",
    ),
    (
        "damaged_telemetry_files",
        "telemetry files found damaged since the start",
    ),
];
/// Number of consecutive bad samples that raise an alarm.
const BAD_SAMPLES: u32 = 3;
/// Seconds of good samples that clear an alarm.
const RECOVERY_S: u32 = 60;
/// Weight of a new sample in the usual throughput.
const BASELINE_WEIGHT: f64 = 0.02;
/// Minimum throughput for which the usual throughput is evaluated.
const MIN_BASELINE_PER_S: f64 = 100.0;

/// Metrics since the previous sample; `None`: not available, such as a latency without messages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NodeSample {
    pub messages_per_s: f64,
    pub latency_mean_ms: Option<f64>,
    pub latency_p95_ms: Option<f64>,
    pub success_percent: Option<f64>,
    pub memory_mb: Option<f64>,
    pub mailbox_backlog: Option<f64>,
    pub rule_success_percent: Option<f64>,
    pub rule_latency_ms: Option<f64>,
    pub rule_queue: Option<f64>,
    pub damaged_files: Option<f64>,
    pub damaged_telemetry_files: Option<f64>,
}

/// Evaluates the metrics of the node.
pub struct NodeAlarms {
    alarms: Alarms,
    compiled: Arc<ProductAlarmRules>,
    alarm_state: DeviceAlarms,
    baseline_per_s: f64,
    /// Number of samples. Rules need three in a row, and the first ones after a start do not define the usual
    /// throughput.
    samples: u32,
}

/// Kind and id of the stored object with changed rules.
pub const NODE_ALARM_RULES_KIND: &str = "node_alarm_rules";
pub const NODE_ALARM_RULES_ID: &str = "rules";

/// The rules in effect, and whether they differ from the defaults.
pub fn stored_node_alarm_rules(objects: &Objects) -> Result<(Json, bool), StoreError> {
    let stored = objects.get(NODE_ALARM_RULES_KIND, NODE_ALARM_RULES_ID)?;
    Ok(match stored {
        Some(mut object) => (object.value["rules"].take(), true),
        None => (node_alarm_rules(), false),
    })
}

/// The default rules.
pub(super) fn node_alarm_rules() -> Json {
    let rule = |id: &str, figure: &str, is: &str, back: &str, limits: [u32; 2]| {
        let about = METRICS.iter().find(|(name, _)| *name == figure);
        let test = |is: &str, value: u32| json!({"key": figure, "is": is, "value": value});
        json!({
            "id": id,
            "description": about.map(|(_, about)| *about),
            "raise": [
                {"severity": "WARNING", "when": test(is, limits[0]), "times": BAD_SAMPLES},
                {"severity": "CRITICAL", "when": test(is, limits[1]), "times": BAD_SAMPLES},
            ],
            "clear": {"when": test(back, limits[0]), "for_s": RECOVERY_S},
            "details": format!("{figure} is ${{round({figure}, 1)}}"),
        })
    };
    let above = |id, figure, limits| rule(id, figure, ">", "<=", limits);
    let below = |id, figure, limits| rule(id, figure, "<", ">=", limits);
    let drop = "throughput_drop_percent";
    json!([
        rule("throughput_down", drop, ">=", "<", [20, 50]),
        above("latency_mean", "latency_mean_ms", [500, 1000]),
        above("latency_p95", "latency_p95_ms", [800, 1500]),
        below("success", "success_percent", [99, 95]),
        above("memory", "memory_mb", [500, 1024]),
        above("mailbox_backlog", "mailbox_backlog", [1000, 5000]),
        below("rule_success", "rule_success_percent", [95, 90]),
        above("rule_latency", "rule_latency_ms", [200, 500]),
        above("rule_queue", "rule_queue", [5000, 10_000]),
        {
            "id": "damaged_files",
            "description": "damaged files are in quarantine: data is missing",
            // Unlike a load, damage does not pass.
            "raise": [{
                "severity": "CRITICAL",
                "when": {"key": "damaged_files", "is": ">", "value": 0},
            }],
            "clear": {"when": {"key": "damaged_files", "is": "<=", "value": 0}},
            "details": "${damaged_files} damaged files are in quarantine; tidegate ctl quarantine list shows what is lost",
        },
        {
            "id": "damaged_telemetry",
            "description": "telemetry files are damaged: queries of their rows fail",
            "raise": [{
                "severity": "CRITICAL",
                "when": {"key": "damaged_telemetry_files", "is": ">", "value": 0},
            }],
            // The number begins with zero after a start, until the files are read again.
            "clear": {"when": {"key": "damaged_telemetry_files", "is": "<=", "value": 0}, "for_s": RECOVERY_S},
            "details": "${damaged_telemetry_files} telemetry files are damaged; the log names them, and tidegate store repair discards them",
        },
    ])
}

fn compile(rules: &Json) -> Result<ProductAlarmRules, AlarmDefinitionError> {
    let mut key = |name: &str| {
        let at = METRICS.iter().position(|(known, _)| *known == name);
        at.map(|at| KeyId(at as u32)).ok_or_else(|| {
            let names = METRICS.map(|(name, _)| name).join(", ");
            AlarmDefinitionError::new(
                "alarms",
                format!("{name:?} is not a metric of the node; expected one of {names}"),
            )
        })
    };
    ProductAlarmRules::from_json(0, rules, &mut key)
}

/// Validates rules for the node's own alarms.
pub fn check_node_alarm_rules(rules: &Json) -> Result<(), AlarmDefinitionError> {
    compile(rules).map(drop)
}

impl NodeAlarms {
    /// Uses rules in the format of `node_alarm_rules`. Alarms of rules that no longer exist are cleared.
    pub fn new(alarms: Alarms, rules: &Json) -> Result<Self, AlarmDefinitionError> {
        let compiled = compile(rules)?;
        let mut machine = DeviceAlarms::new(&compiled.set);
        for (kind, severity) in alarms.open_node_alarms() {
            match compiled.set.rule(&kind) {
                Some(rule) => machine.restore(rule, severity),
                None => alarms.clear_node_alarm(&kind),
            }
        }
        Ok(Self {
            alarms,
            compiled: Arc::new(compiled),
            alarm_state: machine,
            baseline_per_s: 0.0,
            samples: 0,
        })
    }

    /// Evaluates the metrics of the last interval.
    pub fn observe(&mut self, now_ms: u64, sample: &NodeSample) {
        let figures = [
            self.drop_percent(sample.messages_per_s),
            sample.latency_mean_ms,
            sample.latency_p95_ms,
            sample.success_percent,
            sample.memory_mb,
            sample.mailbox_backlog,
            sample.rule_success_percent,
            sample.rule_latency_ms,
            sample.rule_queue,
            sample.damaged_files,
            sample.damaged_telemetry_files,
        ];
        let points: Vec<_> = (0..)
            .map(KeyId)
            .zip(figures)
            .filter_map(|(key, figure)| {
                let value = PointValue::Float(figure?);
                Some(Point { key, value })
            })
            .collect();
        let (set, mut turns) = (&self.compiled.set, Vec::new());
        let ts_ms = now_ms.cast_signed();
        self.alarm_state
            .observe(set, now_ms, ts_ms, &points, &|_| None, &mut turns);
        if turns.is_empty() {
            return;
        }
        let values = self.alarm_state.values(set);
        self.alarms.submit_transitions(DeviceTransitions {
            subject: AlarmSubject::Node,
            compiled: Arc::clone(&self.compiled),
            transitions: turns,
            values: values
                .map(|(name, value)| (name.into(), value.clone()))
                .collect(),
        });
    }

    /// Returns by how many percent the throughput is below the usual one. The usual throughput follows slowly, and
    /// not at all while the drop is large.
    fn drop_percent(&mut self, per_s: f64) -> Option<f64> {
        self.samples = self.samples.saturating_add(1);
        if self.samples <= BAD_SAMPLES {
            self.baseline_per_s = self.baseline_per_s.max(per_s);
            return None;
        }
        let usual_per_s = self.baseline_per_s;
        let weight = if per_s > usual_per_s {
            BASELINE_WEIGHT * 5.0
        } else {
            BASELINE_WEIGHT
        };
        self.baseline_per_s += (per_s - usual_per_s) * weight;
        (usual_per_s >= MIN_BASELINE_PER_S)
            .then(|| (100.0 * (usual_per_s - per_s) / usual_per_s).max(0.0))
    }
}

#[cfg(test)]
#[path = "node_alarms_tests.rs"]
mod tests;
