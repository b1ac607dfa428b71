//! Builds trace records of a running rule.

use rules::{EventView, RuleEvent, RuleOutput, RuleState};

use crate::rule_json::{RuleJson, truncate_text};
use crate::rule_test_outcome::ComparedOperand;
use crate::running_rule::{RunningRule, with_state};
use crate::trace_record::{TraceRecord, TracedEvent};

/// A record of an event that the rule evaluated.
pub(crate) fn event_record(
    bound: &RunningRule,
    event: &RuleEvent<'_>,
    result: &'static str,
) -> TraceRecord {
    let payload = event
        .payload
        .map(|payload| truncate_text(&String::from_utf8_lossy(payload)));
    TraceRecord {
        rule: bound.name.clone(),
        at_ms: event.timestamp_ms,
        event: Some(TracedEvent {
            event: event.kind.event_name(),
            client_id: event.client_id.to_owned(),
            topic: event.topic.map(str::to_owned),
            payload,
        }),
        result,
        ..TraceRecord::default()
    }
}

/// A record of an event with outputs.
pub(crate) fn passed_record(
    bound: &RunningRule,
    view: &EventView<'_>,
    outputs: &[RuleOutput<'_>],
) -> TraceRecord {
    TraceRecord {
        outputs: Some(outputs.iter().map(RuleJson::from_output).collect()),
        payload_problem: bound.rule.payload_error(view),
        ..event_record(bound, view.event(), "passed")
    }
}

/// A record of an event without output, with the reason.
pub(crate) fn no_result_record<'a>(bound: &'a RunningRule, view: &EventView<'a>) -> TraceRecord {
    let mut spare = RuleState::default();
    let (reason, compared) = with_state(bound, &mut spare, |state| {
        explain_no_result(bound, view, state)
    });
    TraceRecord {
        reason: Some(reason),
        compared: Some(compared),
        payload_problem: bound.rule.payload_error(view),
        ..event_record(bound, view.event(), "no_result")
    }
}

/// The reason why an event has no output, and the values that WHERE compared.
pub(crate) fn explain_no_result<'a>(
    bound: &'a RunningRule,
    view: &EventView<'a>,
    state: &mut RuleState,
) -> (String, Vec<ComparedOperand>) {
    let compared = bound.rule.compared_operands(view, state);
    let compared = compared.into_iter().map(ComparedOperand::from).collect();
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
