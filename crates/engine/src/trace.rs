//! Traces of a running rule: its events and their results as JSON for each watcher. A slow watcher never
//! delays the rule, and without watchers no record is built.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rules::{EventView, RuleEvent, RuleOutput, RuleState};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::evaluation::with_state;
use crate::running_rule::RunningRule;

/// Records buffered for a slow watcher.
const TRACE_BUFFER: usize = 256;
/// Maximum records of one rule per second. The number of omitted records is sent in the next second.
const RECORDS_PER_S: u64 = 200;
/// Maximum length of a payload or an output in a record, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// The watchers of one rule.
#[derive(Default)]
pub(crate) struct TraceWatchers {
    sender: OnceLock<broadcast::Sender<Arc<Value>>>,
    /// High bits: the second of the last record; low bits: the number of records in it.
    sent_this_second: AtomicU64,
    omitted: AtomicU64,
}

impl TraceWatchers {
    pub(crate) fn watch(&self) -> broadcast::Receiver<Arc<Value>> {
        self.sender
            .get_or_init(|| broadcast::Sender::new(TRACE_BUFFER))
            .subscribe()
    }

    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.sender
            .get()
            .is_some_and(|sender| sender.receiver_count() > 0)
    }

    /// Sends the record built by `record`, unless the limit of this second is reached.
    pub(crate) fn send(&self, now_ms: u64, record: impl FnOnce() -> Value) {
        let Some(sender) = self.sender.get() else {
            return;
        };
        let second = now_ms / 1000;
        let packed = self.sent_this_second.load(Relaxed);
        let count = if packed >> 16 == second {
            packed & 0xffff
        } else {
            0
        };
        if count >= RECORDS_PER_S {
            self.omitted.fetch_add(1, Relaxed);
            return;
        }
        self.sent_this_second
            .store(second << 16 | (count + 1), Relaxed);
        let mut record = record();
        let omitted = self.omitted.swap(0, Relaxed);
        if let (Value::Object(fields), true) = (&mut record, omitted > 0) {
            fields.insert("left_out".into(), omitted.into());
        }
        // The last watcher may have left just now.
        let _ = sender.send(Arc::new(record));
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_rate_limited_and_omissions_counted() {
        let watchers = TraceWatchers::default();
        assert!(!watchers.is_watched());
        watchers.send(0, || unreachable!("there are no watchers"));
        let mut receiver = watchers.watch();
        assert!(watchers.is_watched());
        for _ in 0..RECORDS_PER_S + 7 {
            watchers.send(5_000, || json!({}));
            let _ = receiver.try_recv();
        }
        watchers.send(6_000, || json!({"last": true}));
        let last = receiver.try_recv().expect("a record was sent");
        assert_eq!(*last, json!({"last": true, "left_out": 7}));
        drop(receiver);
        assert!(!watchers.is_watched());
    }
}
