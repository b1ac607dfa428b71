//! Trace records of a running rule: its events and their results as JSON.

use rules::{EventView, RuleEvent, RuleOutput, RuleState};
use serde_json::{Value, json};

use crate::running_rule::{RunningRule, with_state};

/// Maximum length of a payload or an output in a record, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// A record of an event that the rule evaluated.
pub(crate) fn event_record(rule: &str, event: &RuleEvent<'_>, result: &str) -> Value {
    json!({
        "rule": rule,
        "at_ms": event.timestamp_ms,
        "event": event.kind.event_name(),
        "client_id": event.client_id,
        "topic": event.topic,
        "payload": event.payload.map(|payload| truncate_text(&String::from_utf8_lossy(payload))),
        "result": result,
    })
}

pub(crate) fn output_json(output: &RuleOutput<'_>) -> Value {
    let mut bytes = Vec::new();
    output.write_json(&mut bytes);
    match bytes.len() {
        0..=MAX_TEXT_BYTES => serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        _ => truncate_text(&String::from_utf8_lossy(&bytes)).into(),
    }
}

/// A record of an event with outputs.
pub(crate) fn passed_record(
    bound: &RunningRule,
    view: &EventView<'_>,
    outputs: &[RuleOutput<'_>],
) -> Value {
    let mut record = event_record(&bound.name, view.event(), "passed");
    record["outputs"] = outputs.iter().map(output_json).collect();
    add_payload_error(bound, view, &mut record);
    record
}

/// A record of an event without output, with the reason.
pub(crate) fn no_result_record<'a>(bound: &'a RunningRule, view: &EventView<'a>) -> Value {
    let mut record = event_record(&bound.name, view.event(), "no_result");
    let mut spare = RuleState::default();
    let (reason, compared) = with_state(bound, &mut spare, |state| {
        explain_no_result(bound, view, state)
    });
    record["reason"] = reason.into();
    record["compared"] = compared;
    add_payload_error(bound, view, &mut record);
    record
}

/// The reason why an event has no output, and the values that WHERE compared.
pub(crate) fn explain_no_result<'a>(
    bound: &'a RunningRule,
    view: &EventView<'a>,
    state: &mut RuleState,
) -> (String, Value) {
    let compared = bound.rule.compared_operands(view, state);
    let compared = compared.into_iter();
    let compared: Value = compared
        .map(|operand| json!({"expression": operand.expression, "value": operand.value}))
        .collect();
    let reason = match bound.rule.evaluate_where(view, state) {
        Some(true) => {
            "WHERE holds, but INCASE or HAVING does not, or FOREACH has no items".to_owned()
        }
        Some(false) => match bound.rule.payload_error(view) {
            Some(problem) => format!("WHERE does not hold: {problem}"),
            None => "WHERE does not hold".to_owned(),
        },
        None => "WHERE cannot be evaluated".to_owned(),
    };
    (reason, compared)
}

/// Adds the JSON error of a payload that the rule reads as JSON.
pub(crate) fn add_payload_error(bound: &RunningRule, view: &EventView<'_>, record: &mut Value) {
    if let Some(problem) = bound.rule.payload_error(view) {
        record["payload_problem"] = problem.into();
    }
}

fn truncate_text(text: &str) -> String {
    match text.len() {
        0..=MAX_TEXT_BYTES => text.to_owned(),
        _ => format!("{}...", &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]),
    }
}
