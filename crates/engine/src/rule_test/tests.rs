//! Tests of rules by their users: outputs, failures, limits and windows.

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
    let bad =
        json!({"sql": "SELECT * FROM \"t\"", "actions": [{"kind": "republish", "topic": "a/#"}]});
    assert_eq!(
        engine.test_rule(&bad, &trial).expect_err("a filter").field,
        "actions[0].topic"
    );
}
