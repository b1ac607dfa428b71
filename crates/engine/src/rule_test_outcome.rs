//! The result of a rule test, as the API and the command line show it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rule_json::RuleJson;

/// Result of a test.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct RuleTestOutcome {
    /// `fluxmq` or `emqx`.
    pub dialect: String,
    /// Query plan as text.
    pub plan: String,
    /// Whether there is an output.
    pub matched: bool,
    /// Whether the evaluation, or one of the actions, failed. An event that the rule does not select is no failure.
    pub failed: bool,
    /// Reason why there is no output.
    pub reason: Option<String>,
    /// Operands compared by WHERE with their values, if there is no output.
    pub compared: Option<Vec<ComparedOperand>>,
    /// Error of the payload, if the rule reads its fields and it is not JSON.
    pub payload_problem: Option<String>,
    /// Probable mistakes, such as placeholders that are always null.
    pub warnings: Vec<String>,
    /// For a rule with a window: its time source, and the time of the event.
    pub window: Option<TestedWindow>,
    /// For a rule with a window: what the window counts of the event.
    pub counted: Option<CountedValues>,
    /// Outputs, with their columns in the order of SELECT. For a rule with a window: those if the window closed with this one
    /// event.
    pub outputs: Vec<RuleJson>,
    /// Actions that would run.
    pub actions: Vec<Value>,
    pub compile_duration_us: u64,
    pub duration_ns: u64,
}

/// Operand of WHERE.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ComparedOperand {
    pub expression: String,
    /// Value as JSON, or the reason why it cannot be evaluated.
    pub value: String,
}

impl From<rules::ComparedOperand> for ComparedOperand {
    fn from(operand: rules::ComparedOperand) -> Self {
        let rules::ComparedOperand { expression, value } = operand;
        Self { expression, value }
    }
}

/// Window of a tested rule.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct TestedWindow {
    /// Kind and period, such as `tumbling(10000ms)`.
    pub kind: String,
    pub time_source: WindowTimeSource,
    /// Time of the event in milliseconds since 1970, if it is counted.
    pub at_ms: Option<u64>,
    pub now_ms: u64,
    pub lateness_ms: Option<u64>,
    pub max_ahead_ms: Option<u64>,
    pub idle_ms: Option<u64>,
}

/// Time that assigns events to windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum WindowTimeSource {
    /// The time that `window.event_time` yields.
    EventTime,
    Arrival,
}

/// Values that a window counts.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct CountedValues {
    /// Values of GROUP BY.
    pub key: RuleJson,
    /// Arguments of the aggregates.
    pub arguments: RuleJson,
}
