//! Fallback actions of rows that a sink failed to write: when a row becomes a dead letter, its rule runs the
//! fallback actions.

use rules::{EventKind, RuleEvent, RuleOutput, Value};
use serde_json::Map;
use wall_clock::now_ms;

use crate::action_input::ActionInput;
use crate::bridge_events::to_rule_value;
use crate::engine::Engine;
use crate::evaluation::catch_panic;
use crate::evaluation_context::EvaluationContext;
use crate::ports::OutputRowOrigin;
use crate::rule_lineage::RuleLineage;

/// A row that failed permanently.
#[derive(Debug, Clone, Copy)]
pub struct FailedRow<'r> {
    /// The rule that produced the row, and the position of the action.
    pub rule: &'r str,
    pub origin: OutputRowOrigin,
    pub columns: &'r Map<String, serde_json::Value>,
    pub sink: &'r str,
    pub error: &'r str,
    pub attempts: u32,
}

impl Engine {
    /// Runs the fallback actions of the rule with the row as output. Only the fields `error`, `sink` and
    /// `attempts` of the event are set. Nothing happens if the rule or the action no longer exists, or if it
    /// has no fallback actions any more. Resolves like [`Engine::handle_bridge_message`].
    pub async fn run_fallback(&self, failed: FailedRow<'_>) {
        let outcome = self.with_evaluation_context(|context| {
            self.run_fallback_with(context, &failed);
            context.take_outcome()
        });
        self.finish_event(failed.rule, outcome).await;
    }

    fn run_fallback_with(&self, context: &mut EvaluationContext, failed: &FailedRow<'_>) {
        let Some(bound) = self.find_running(failed.rule) else {
            return;
        };
        let Some(action) = bound.actions.get(usize::from(failed.origin.action)) else {
            return;
        };
        context.scratch.reset();
        let (scratch, stage, at_ms) = (&context.scratch, &mut context.stage, now_ms());
        let arena = scratch.arena();
        let columns: Vec<_> = (failed.columns.iter())
            .map(|(name, value)| (&*arena.alloc_str(name), to_rule_value(value, arena)))
            .collect();
        let extra = [
            ("error", Value::Str(failed.error)),
            ("sink", Value::Str(failed.sink)),
            ("attempts", Value::Int(failed.attempts.into())),
        ];
        let event = RuleEvent {
            node: &self.shared.settings.node_name,
            extra: Value::Map(&extra),
            ..RuleEvent::new(EventKind::Publish, at_ms)
        };
        let view = scratch.view(&event, at_ms);
        let made = ActionInput {
            rule: bound.as_acting(),
            output: RuleOutput {
                columns: arena.alloc_slice_copy(&columns),
            },
            view: &view,
            lineage: RuleLineage::with_depth(failed.origin.depth),
            now_ms: at_ms,
        };
        let counters = bound.monitor.counters.producer(stage.producer);
        catch_panic(&bound, counters, || {
            action.run_fallback(&made, stage, counters);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RuleCounter, RuleEngineSettings};
    use serde_json::json;

    #[test]
    fn fallback_actions_run_for_a_row_that_failed_later() {
        let engine = Engine::new(RuleEngineSettings::default(), 1);
        let republish = json!({
            "kind": "republish", "topic": "failed/${sink}", "payload": "${n}: ${error} (${attempts}, ${clientid})",
        });
        let actions = json!([
            {"kind": "console"},
            {"kind": "sink", "sink": "db", "fallback": [republish]},
        ]);
        engine.put_rule(
            "r",
            Some(&json!({"sql": "SELECT 1 AS n FROM \"t\"", "actions": actions})),
        );
        let columns = json!({"n": 1});
        let mut failed = FailedRow {
            rule: "r",
            origin: OutputRowOrigin {
                action: 1,
                depth: 0,
            },
            columns: columns.as_object().unwrap(),
            sink: "db",
            error: "no such table",
            attempts: 3,
        };
        let published = |failed: &FailedRow<'_>| {
            let outcome = engine.with_evaluation_context(|context| {
                engine.run_fallback_with(context, failed);
                context.take_outcome()
            });
            let outgoing = outcome.outgoing?;
            let message = outgoing.iter().next()?;
            let payload = String::from_utf8_lossy(message.payload).into_owned();
            Some((
                message.topic.to_owned(),
                payload,
                RuleLineage(message.tag).depth(),
            ))
        };
        let expected = (
            "failed/db".to_owned(),
            "1: no such table (3, )".to_owned(),
            1,
        );
        assert_eq!(published(&failed), Some(expected));
        // Nothing runs if the depth is too large or there is no fallback action.
        failed.origin.depth = 8;
        assert_eq!(published(&failed), None);
        for (action, rule) in [(0, "r"), (7, "r"), (1, "other")] {
            failed.origin = OutputRowOrigin { action, depth: 0 };
            failed.rule = rule;
            assert_eq!(published(&failed), None);
        }
        let totals = engine.status("r").unwrap().totals;
        assert_eq!(totals.get(RuleCounter::ActionsSucceeded), 1);
        assert_eq!(totals.get(RuleCounter::ActionsFailed), 1);
    }
}
