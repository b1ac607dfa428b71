//! Tests a rule on one event without a broker: reports the plan, the outputs, or the reason why there is
//! none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use rules::windows::OpenWindows;
use rules::{
    EventKind, EventView, RuleEvent, RuleOutput, RuleSource, RuleState, RunOutcome,
    WindowDefinition,
};
use serde_json::{Value, json};
use wall_clock::now_ms;

use crate::action_input::ActionInput;
use crate::definition::RuleDefinition;
use crate::definition_error::RuleDefinitionError;
use crate::engine::Engine;
use crate::evaluation::{RuleOutputs, SampleOutcome, timed_sample};
use crate::evaluation_context::EvaluationContext;
use crate::producer_context::ProducerContext;
use crate::rule_json::RuleJson;
use crate::rule_lineage::RuleLineage;
use crate::rule_test_outcome::{
    ComparedOperand, CountedValues, RuleTestOutcome, TestedWindow, WindowTimeSource,
};
use crate::running_rule::{RuleMonitor, RunningRule, with_state};
use crate::test_event::TestEvent;
use crate::trace::explain_no_result;

impl Engine {
    /// Tests a rule on an event. `definition` is a rule in the form of the API; it need not exist on the
    /// node.
    pub fn test_rule(
        &self,
        definition: &Value,
        trial: &TestEvent,
    ) -> Result<RuleTestOutcome, RuleDefinitionError> {
        catch_test_panic(|| self.test_rule_uncontained(definition, trial))
    }

    fn test_rule_uncontained(
        &self,
        definition: &Value,
        trial: &TestEvent,
    ) -> Result<RuleTestOutcome, RuleDefinitionError> {
        let definition = RuleDefinition::from_json(definition)?;
        let began = Instant::now();
        let producers = self.shared.producers;
        let monitor = std::sync::Arc::new(RuleMonitor::new(producers));
        let bound = self.shared.compile_rule("test", &definition, monitor)?;
        let compile_duration_us = began.elapsed().as_micros() as u64;
        let EvaluationContext { scratch, mut stage } =
            self.shared.evaluation_context(producers - 1);
        let extra = Value::Object(trial.fields.clone()).to_string();
        let extra = match trial.fields.is_empty() {
            true => rules::Value::Null,
            false => rules::json::parse(&extra, scratch.arena())
                .map_err(|error| RuleDefinitionError::new("fields", format!("{error:?}")))?,
        };
        let at_ms = now_ms();
        let event = RuleEvent {
            node: &self.shared.settings.node_name,
            client_id: &trial.client_id,
            username: trial.username.as_deref(),
            topic: trial.topic.as_deref(),
            qos: Some(trial.qos),
            retain: trial.retain,
            payload: Some(&trial.payload),
            received_at_ms: Some(at_ms),
            id: Some(self.shared.message_id(at_ms, 0)),
            extra,
            ..RuleEvent::new(event_kind(bound.rule.sources()), at_ms)
        };
        let view = scratch.view(&event, at_ms);
        let mut report = ActionReport::default();
        let began = Instant::now();
        let outputs = match has_source(&bound, &event) {
            true => evaluate_rule(&bound, &view, &mut stage.stateless_state, &mut report),
            false => {
                report.reason = Some(match &event.topic {
                    Some(topic) => format!("FROM does not match the topic {topic:?}"),
                    None => "FROM does not match an event without a topic; give a topic".to_owned(),
                });
                RuleOutputs::None
            }
        };
        let duration_ns = began.elapsed().as_nanos() as u64;
        let (actions, has_failed_action) =
            describe_actions(&bound, &view, outputs.as_slice(), &mut stage);
        Ok(RuleTestOutcome {
            dialect: bound.rule.dialect().name().to_owned(),
            plan: bound.rule.explain(),
            matched: !outputs.as_slice().is_empty(),
            failed: report.has_failed || has_failed_action,
            reason: report.reason,
            compared: report.compared,
            payload_problem: bound.rule.payload_error(&view),
            warnings: bound.warnings.to_vec(),
            window: report.window,
            counted: report.counted,
            outputs: outputs
                .as_slice()
                .iter()
                .map(RuleJson::from_output)
                .collect(),
            actions,
            compile_duration_us,
            duration_ns,
        })
    }
}

/// Runs a test. A panic is the failure of the test.
fn catch_test_panic(
    test: impl FnOnce() -> Result<RuleTestOutcome, RuleDefinitionError>,
) -> Result<RuleTestOutcome, RuleDefinitionError> {
    catch_unwind(AssertUnwindSafe(test)).unwrap_or_else(|_| {
        tracing::error!("rule panicked during a test; this is a bug");
        let detail = "the evaluation panicked; this is a bug of the node";
        Err(RuleDefinitionError::new("sql", detail))
    })
}

#[derive(Default)]
struct ActionReport {
    has_failed: bool,
    /// The reason why there is no output.
    reason: Option<String>,
    /// The values that WHERE compared, if there is no output.
    compared: Option<Vec<ComparedOperand>>,
    /// The clock of the window.
    window: Option<TestedWindow>,
    /// The values that the window counts for the event.
    counted: Option<CountedValues>,
}

fn event_kind(sources: &[RuleSource]) -> EventKind {
    let kind = |source: &RuleSource| match source {
        RuleSource::Event(kind) => Some(*kind),
        RuleSource::Topic(_) => Some(EventKind::Publish),
        RuleSource::Rule(_) | RuleSource::Bridge(_) => None,
    };
    sources.iter().find_map(kind).unwrap_or(EventKind::Publish)
}

fn has_source(bound: &RunningRule, event: &RuleEvent<'_>) -> bool {
    let sources = bound.rule.sources();
    let is_named =
        |source: &RuleSource| matches!(source, RuleSource::Rule(_) | RuleSource::Bridge(_));
    bound.rule.accepts_event(event) || sources.iter().any(is_named)
}

fn evaluate_rule<'a>(
    bound: &'a RunningRule,
    view: &EventView<'a>,
    spare: &mut RuleState,
    report: &mut ActionReport,
) -> RuleOutputs<'a> {
    let mut outputs = RuleOutputs::None;
    let ran = match bound.rule.window() {
        None => with_state(bound, spare, |state| {
            bound
                .rule
                .run(view, state, &mut |output| outputs.push(output))
        }),
        Some(window) => with_state(bound, spare, |state| {
            sample_window(bound, window, view, state, report, &mut outputs)
        }),
    };
    match ran {
        Ok(RunOutcome::Passed(_)) => {}
        Ok(RunOutcome::NoResult) if report.reason.is_some() => {}
        Ok(RunOutcome::NoResult) => {
            let (reason, compared) =
                with_state(bound, spare, |state| explain_no_result(bound, view, state));
            (report.reason, report.compared) = (Some(reason), Some(compared));
        }
        Err(fault) => {
            report.has_failed = true;
            report.reason = Some(format!("the rule failed: {fault}"));
            let compared = with_state(bound, spare, |state| {
                explain_no_result(bound, view, state).1
            });
            report.compared = Some(compared);
            return RuleOutputs::None;
        }
    }
    outputs
}

/// Describes the clock of the rule and the timestamp of the event.
fn describe_window(
    bound: &RunningRule,
    window: &WindowDefinition,
    view: &EventView<'_>,
    sampled: &SampleOutcome<'_>,
) -> TestedWindow {
    let clock = bound.window.and_then(|settings| settings.event_time);
    TestedWindow {
        kind: window.kind.to_string(),
        time_source: match clock {
            Some(_) => WindowTimeSource::EventTime,
            None => WindowTimeSource::Arrival,
        },
        at_ms: match sampled {
            SampleOutcome::Counted(sample) => Some(sample.timestamp_ms),
            SampleOutcome::Filtered | SampleOutcome::NoEventTime => None,
        },
        now_ms: view.now_ms(),
        lateness_ms: bound.window.map(|settings| settings.lateness_ms),
        max_ahead_ms: clock.map(|clock| clock.max_ahead_ms),
        idle_ms: clock.map(|clock| clock.idle_ms),
    }
}

/// The values that a window counts, and its output if it closed after this one event.
fn sample_window<'a>(
    bound: &'a RunningRule,
    window: &WindowDefinition,
    view: &EventView<'a>,
    state: &mut RuleState,
    report: &mut ActionReport,
    outputs: &mut RuleOutputs<'a>,
) -> Result<RunOutcome, rules::EvaluationError> {
    let sampled = timed_sample(bound, view, state)?;
    report.window = Some(describe_window(bound, window, view, &sampled));
    let sample = match sampled {
        SampleOutcome::Counted(sample) => sample,
        SampleOutcome::Filtered => return Ok(RunOutcome::NoResult),
        SampleOutcome::NoEventTime => {
            let reason = "window.event_time yields no time: expected a number of seconds or milliseconds since 1970, or a text \
                          such as 2026-01-31T12:00:00Z; the event is not counted (window_untimed)";
            report.reason = Some(reason.to_owned());
            return Ok(RunOutcome::NoResult);
        }
    };
    let clock = bound.window.and_then(|settings| settings.event_time);
    if let Some(clock) = clock
        && sample.timestamp_ms > view.now_ms().saturating_add(clock.max_ahead_ms)
    {
        let reason = "the event is further ahead of the node's clock than window.max_ahead_ms; it is not counted (window_ahead)";
        report.reason = Some(reason.to_owned());
        return Ok(RunOutcome::NoResult);
    }
    let list = |values: &[rules::Value<'_>]| {
        RuleJson::from_value(&rules::Value::Array(view.arena().alloc_slice_copy(values)))
    };
    report.counted = Some(CountedValues {
        key: list(sample.key),
        arguments: list(sample.arguments),
    });
    let settings = rules::windows::WindowOptions {
        lateness_ms: 0,
        ..rules::windows::WindowOptions::default()
    };
    // One event does not fill a count window of many.
    let mut window = window.clone();
    if let rules::WindowKind::Count { events, step } = &mut window.kind {
        (*events, *step) = (1, 1);
    }
    let mut windows = OpenWindows::new(&window, settings);
    let mut ran = Ok(RunOutcome::NoResult);
    let mut close = |closed: rules::ClosedWindow<'_>, state: &mut RuleState| {
        let closed = crate::window_worker::copy_into_arena(&closed, view.arena());
        ran = bound
            .rule
            .close_window(&closed, view, state, &mut |output| outputs.push(output));
    };
    let arena = view.arena();
    windows.add(&sample, sample.timestamp_ms, arena, |closed| {
        close(closed, state)
    });
    windows.advance(u64::MAX, arena, |closed| close(closed, state));
    ran
}

/// Describes the effects of the actions, and returns whether one of them failed.
fn describe_actions<'a>(
    bound: &'a RunningRule,
    view: &EventView<'a>,
    outputs: &[RuleOutput<'a>],
    stage: &mut ProducerContext,
) -> (Vec<Value>, bool) {
    let counters = bound.monitor.counters.producer(stage.producer);
    let (mut done, mut has_failed) = (Vec::new(), false);
    for &output in outputs {
        let made = ActionInput {
            rule: bound.as_acting(),
            output,
            view,
            lineage: RuleLineage::default(),
            now_ms: view.now_ms(),
        };
        for action in &bound.actions {
            if let Some(described) = action.describe() {
                done.push(described);
                continue;
            }
            let failure = action.run(&made, stage, counters).err();
            if let Some(outgoing) = stage.take_outgoing() {
                done.extend(outgoing.iter().map(|message| {
                    json!({
                        "kind": "republish",
                        "topic": message.topic,
                        "payload": String::from_utf8_lossy(message.payload),
                        "qos": message.qos as u8,
                        "retain": message.retain,
                    })
                }));
            }
            if let Some(failure) = failure {
                has_failed = true;
                done.push(json!({"kind": "republish", "error": failure.to_string()}));
            }
        }
    }
    (done, has_failed)
}

#[cfg(test)]
mod tests;
