//! What the watchers of a rule receive.

use serde::Serialize;

use crate::rule_json::RuleJson;
use crate::rule_test_outcome::ComparedOperand;

/// A record of one event of a rule and its result, shown as JSON.
#[derive(Debug, Default, Serialize)]
pub struct TraceRecord {
    pub(crate) rule: Box<str>,
    pub(crate) at_ms: u64,
    /// `None` for a row that reached its window too late or too early: the event is gone.
    #[serde(flatten)]
    pub(crate) event: Option<TracedEvent>,
    pub(crate) result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<Vec<RuleJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) compared: Option<Vec<ComparedOperand>>,
    /// Index of the action that failed, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// JSON error of a payload that the rule reads as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_problem: Option<String>,
    /// Number of records that were omitted before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) omitted: Option<u64>,
}

/// The event of a trace record.
#[derive(Debug, Serialize)]
pub(crate) struct TracedEvent {
    pub(crate) event: &'static str,
    pub(crate) client_id: String,
    pub(crate) topic: Option<String>,
    pub(crate) payload: Option<String>,
}
