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
mod tests {
    use super::*;
    use crate::settings::RuleEngineSettings;
    use crate::test_event::TestEventInput;

    fn test_event(event: Value) -> TestEvent {
        let input: TestEventInput = serde_json::from_value(event).expect("the event is valid");
        TestEvent::try_from(input).expect("the event is valid")
    }

    fn test(engine: &Engine, definition: &Value, event: &TestEvent) -> Value {
        let outcome = engine.test_rule(definition, event);
        serde_json::to_value(outcome.expect("the rule is valid")).expect("JSON")
    }

    fn tried(definition: Value, event: Value) -> Value {
        let engine = Engine::new(RuleEngineSettings::default(), 1);
        test(&engine, &definition, &test_event(event))
    }

    #[test]
    fn columns_and_payloads_keep_their_order() {
        let engine = Engine::new(RuleEngineSettings::default(), 1);
        // Whitespace of the payload is not part of the output: a line break would end a line of a trace.
        let event = "{\"topic\": \"t\", \"payload\": {\"z\": 1, \"m\": {\n\"z\": 1,\r\n \"a\": \"\\\" \\\\\"}}}";
        let event: TestEventInput = serde_json::from_str(event).expect("the event is valid");
        let event = TestEvent::try_from(event).expect("the event is valid");
        let rule = json!({"sql": "SELECT payload.z AS z, qos AS a, payload.m AS m FROM \"t\""});
        let outcome = engine.test_rule(&rule, &event).expect("the rule is valid");
        assert_eq!(
            outcome.outputs[0].get(),
            r#"{"z":1,"a":0,"m":{"z":1,"a":"\" \\"}}"#
        );
    }

    #[test]
    fn a_panic_is_the_failure_of_its_test_alone() {
        let error = catch_test_panic(|| panic!("a bug")).expect_err("it panicked");
        let error = error.to_string();
        assert!(error.contains("the evaluation panicked"), "{error}");
        let engine = Engine::new(RuleEngineSettings::default(), 1);
        let rule = json!({"sql": "SELECT 1 AS n FROM \"t\""});
        let event = test_event(json!({"topic": "t"}));
        let tested = catch_test_panic(|| engine.test_rule(&rule, &event));
        assert!(tested.expect("it is valid").matched);
    }

    #[test]
    fn a_rule_that_fails_differs_from_one_that_selects_nothing() {
        let event = json!({"topic": "t", "payload": {"a": "x"}});
        let is_failed = |rule: Value| tried(rule, event.clone())["failed"] == true;
        assert!(is_failed(
            json!({"sql": "SELECT int(payload.a) AS a FROM \"t\""})
        ));
        assert!(!is_failed(
            json!({"sql": "SELECT 1 AS a FROM \"t\" WHERE qos = 1"})
        ));
        let republish = |topic: &str| {
            let actions = json!([{"kind": "republish", "topic": topic, "payload": "x"}]);
            json!({"sql": "SELECT topic FROM \"t\"", "actions": actions})
        };
        assert!(is_failed(republish("${none}")));
        assert!(!is_failed(republish("out")));
    }

    #[test]
    fn long_statements_are_rejected_with_one_limit() {
        let engine = Engine::new(RuleEngineSettings::default(), 1);
        let event = test_event(json!({"topic": "t"}));
        for spaces in [40_000, 70_000] {
            let sql = format!("SELECT {}1 AS a FROM \"t\"", " ".repeat(spaces));
            let error = engine.test_rule(&json!({"sql": sql}), &event);
            let error = error.expect_err("it is too long").to_string();
            assert!(
                error.contains("at most 32768") && !error.contains("65536"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_test_shows_outputs_and_messages_to_publish() {
        let definition = json!({
            "sql": "SELECT payload.t AS t, clientid FROM \"s/+/data\" WHERE payload.t > 30",
            "actions": [
                {"kind": "republish", "topic": "alarms/${clientid}", "payload": "${t}", "qos": 1},
                {"kind": "sink", "sink": "db"},
            ],
        });
        let event = json!({"topic": "s/1/data", "payload": {"t": 31}, "client_id": "c"});
        let answer = tried(definition.clone(), event);
        assert_eq!(
            answer["outputs"],
            json!([{"t": 31, "clientid": "c"}]),
            "{answer}"
        );
        assert_eq!(answer["dialect"], "emqx");
        let republished = json!({"kind": "republish", "topic": "alarms/c", "payload": "31", "qos": 1, "retain": false});
        assert_eq!(
            answer["actions"],
            json!([republished, {"kind": "sink", "sink": "db"}])
        );
        let cold = tried(
            definition.clone(),
            json!({"topic": "s/1/data", "payload": {"t": 3}}),
        );
        assert_eq!(cold["matched"], false);
        assert!(
            cold["reason"]
                .as_str()
                .expect("a text")
                .starts_with("WHERE")
        );
        assert_eq!(
            cold["compared"],
            json!([{"expression": "payload.t", "value": "3"}])
        );
        assert_eq!(cold["reason"], "WHERE does not hold");
        let broken = tried(
            definition.clone(),
            json!({"topic": "s/1/data", "payload": "{\"t\": 33"}),
        );
        assert_eq!(
            broken["payload_problem"],
            "the payload is truncated JSON: it ends at byte 8"
        );
        let text = tried(
            definition.clone(),
            json!({"topic": "s/1/data", "payload": "hot"}),
        );
        let problem = text["payload_problem"].as_str().expect("a text");
        assert!(
            problem.starts_with("the payload is not JSON: invalid JSON at byte 0"),
            "{problem}"
        );
        let elsewhere = tried(definition, json!({"topic": "x", "payload": {"t": 31}}));
        assert_eq!(elsewhere["reason"], "FROM does not match the topic \"x\"");
    }

    #[test]
    fn a_slow_program_of_jq_fails_within_the_budget_of_the_node() {
        let engine = |max_jq_steps| {
            let settings = RuleEngineSettings {
                max_jq_steps,
                ..RuleEngineSettings::default()
            };
            Engine::new(settings, 1)
        };
        // Two calls share one budget, which the timeout argument cannot raise.
        let sql = "SELECT jq('last(range(400))', payload, 1000) AS a, jq('last(range(400))', payload) AS b FROM \"t\"";
        let event = json!({"topic": "t", "payload": {"a": 1}});
        let trial = test_event(event);
        let test = |engine: Engine| test(&engine, &json!({"sql": sql}), &trial);
        let answer = test(engine(50_000));
        assert_eq!(
            answer["outputs"],
            json!([{"a": [399], "b": [399]}]),
            "{answer}"
        );
        let answer = test(engine(5_000));
        let reason = answer["reason"].as_str().expect("a text");
        assert!(
            reason.contains("rules.max_jq_steps") && reason.contains("5000"),
            "{reason}"
        );
    }

    #[test]
    fn only_listed_variables_can_be_read() {
        let settings = RuleEngineSettings {
            environment_variables: "CARGO_PKG_NAME, NOT_SET".to_owned(),
            ..RuleEngineSettings::default()
        };
        let engine = Engine::new(settings, 1);
        let test = |name: &str| {
            let sql = format!("SELECT getenv('{name}') AS v FROM \"t\"");
            let trial = test_event(json!({"topic": "t"}));
            test(&engine, &json!({"sql": sql}), &trial)
        };
        assert_eq!(
            test("CARGO_PKG_NAME")["outputs"],
            json!([{"v": "tidegate-engine"}])
        );
        assert_eq!(test("NOT_SET")["outputs"], json!([{"v": ""}]));
        let rejected = test("PATH");
        let reason = rejected["reason"].as_str().expect("a text");
        assert!(reason.contains("rules.environment_variables"), "{reason}");
    }

    #[test]
    fn a_window_shows_what_it_counts() {
        let definition = json!({
            "sql": "SELECT clientid, avg(payload.t) AS t FROM \"s/#\" GROUP BY clientid, tumbling(10s)",
        });
        let answer = tried(
            definition,
            json!({"topic": "s/1", "payload": {"t": 4}, "client_id": "c"}),
        );
        assert_eq!(
            answer["counted"],
            json!({"key": ["c"], "arguments": [4]}),
            "{answer}"
        );
        assert_eq!(answer["outputs"], json!([{"clientid": "c", "t": 4.0}]));
    }

    #[test]
    fn the_time_of_an_event_is_explained() {
        let definition = json!({
            "sql": "SELECT window_start() AS since FROM \"s/#\" GROUP BY tumbling(10s)",
            "window": {"event_time": "payload.ts", "lateness_ms": 60_000},
        });
        let tried = |ts: Value| {
            tried(
                definition.clone(),
                json!({"topic": "s/1", "payload": {"ts": ts}}),
            )
        };
        let answer = tried(json!(1_690_599_987));
        assert_eq!(
            answer["outputs"],
            json!([{"since": 1_690_599_980_000_u64}]),
            "{answer}"
        );
        let window = &answer["window"];
        assert_eq!(window["kind"], "tumbling(10000ms)");
        assert_eq!(window["time_source"], "event_time");
        assert_eq!(window["at_ms"], 1_690_599_987_000_u64);
        assert_eq!(window["lateness_ms"], 60_000);
        let reason = |ts: Value| tried(ts)["reason"].as_str().expect("a text").to_owned();
        assert!(reason(json!("soon")).contains("window_untimed"));
        assert!(reason(json!("2999-01-01T00:00:00Z")).contains("window_ahead"));
        let engine = Engine::new(RuleEngineSettings::default(), 1);
        for (sql, event_time) in [
            ("SELECT * FROM \"t\"", "payload.ts"),
            (
                "SELECT count(*) AS n FROM \"t\" GROUP BY tumbling(1s)",
                "payload.",
            ),
            (
                "SELECT count(*) AS n FROM \"t\" GROUP BY tumbling(1s)",
                "paylod.ts",
            ),
        ] {
            let rule = json!({"sql": sql, "window": {"event_time": event_time}});
            let rejected = engine.prepare_rule("r", &rule).expect_err(event_time);
            assert_eq!(rejected.field, "window.event_time", "{}", rejected.detail);
        }
    }

    #[test]
    fn templates_stay_json_and_a_null_topic_is_an_error() {
        let definition = json!({
            "sql": "SELECT payload.name AS name, payload.none AS none FROM \"t\"",
            "actions": [
                {"kind": "republish", "topic": "a", "payload": "{\"n\": \"${name}\", \"v\": ${none}, \"w\": \"${nam}\"}"},
                {"kind": "republish", "topic": "a/${none}"},
                {"function": "republish", "args": {"topic": "b"}},
            ],
        });
        let payload = json!({"name": "x\", \"admin\": true, \"y\": \"", "none": null});
        let answer = tried(
            definition,
            json!({"topic": "t", "payload": payload, "qos": 2}),
        );
        let actions = &answer["actions"];
        let republished = actions[0]["payload"].as_str().expect("a text");
        let republished: Value = serde_json::from_str(republished).expect("JSON");
        assert_eq!(
            republished,
            json!({"n": payload["name"], "v": null, "w": "undefined"})
        );
        assert_eq!(actions[1]["error"], "topic: ${none} is null");
        assert_eq!(actions[2]["payload"], payload.to_string());
        assert_eq!(actions[2]["qos"], 2);
        let warnings = answer["warnings"].as_array().expect("a list");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].to_string().contains("${nam}"), "{warnings:?}");
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let engine = Engine::new(RuleEngineSettings::default(), 1);
        let trial = TestEvent::default();
        let error = engine
            .test_rule(&json!({"sql": "SELECT nothing FROM"}), &trial)
            .expect_err("no source");
        assert_eq!(error.field, "sql");
        let misspelt = json!({"sql": "SELECT datatime(timestamp) FROM \"t\""});
        let error = engine
            .test_rule(&misspelt, &trial)
            .expect_err("no function");
        assert!(
            error.detail.ends_with("\n  |        ^^^^^^^^"),
            "{}",
            error.detail
        );
        let bad = json!({"sql": "SELECT * FROM \"t\"", "actions": [{"kind": "republish", "topic": "a/#"}]});
        assert_eq!(
            engine.test_rule(&bad, &trial).expect_err("a filter").field,
            "actions[0].topic"
        );
    }
}
