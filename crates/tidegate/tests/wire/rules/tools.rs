//! Trying rules, watching them, and their metrics.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::TcpStream;
use std::process::Command;

use serde_json::{Value, json};

use super::{api, api_text, republish};
use crate::support::{Connect, DEADLINE, Node, Raw, eventually};

#[test]
fn a_rule_is_tried_without_being_made() {
    let node = Node::start(&[]);
    let rule = json!({
        "sql": "SELECT payload.t AS t FROM \"$EVENT.PUBLISH\" WHERE topic =~ 's/#'",
        "actions": [{"kind": "republish", "topic": "out/${t}", "payload": "x"}],
    });
    let body = json!({"rule": rule, "event": {"topic": "s/1", "payload": {"t": 5}}});
    let (status, tested) = api(&node, "POST", "rules/test", &body);
    assert_eq!(status, 200, "{tested}");
    assert_eq!(
        (&tested["dialect"], &tested["outputs"]),
        (&json!("fluxmq"), &json!([{"t": 5}]))
    );
    assert_eq!(tested["actions"][0]["topic"], "out/5");
    let body = json!({"rule": {"sql": "SELECT FROM"}, "event": {}});
    let (status, problem) = api(&node, "POST", "rules/test", &body);
    assert_eq!(status, 422, "{problem}");
    assert!(problem.to_string().contains("rule.sql"), "{problem}");
    // The place is marked, over HTTP too.
    let statement = "SELECT datatime(timestamp) FROM \"t\"";
    for (method, path, body) in [
        (
            "POST",
            "rules/test",
            json!({"rule": {"sql": statement}, "event": {}}),
        ),
        (
            "POST",
            "rules",
            json!({"name": "r", "sql": statement, "actions": []}),
        ),
    ] {
        let (status, problem) = api(&node, method, path, &body);
        let detail = problem["detail"].as_str().unwrap_or_default();
        let excerpt = format!(
            "line 1, column 8: unknown function `datatime`; did you mean `datetime`?\n  |\n1 | {statement}\n  |        ^^^^^^^^"
        );
        assert!(status == 422 && detail.contains(&excerpt), "{problem}");
    }
    // What is accepted but hardly meant so is said.
    let doubtful =
        json!({"name": "doubtful", "sql": "SELECT 1 AS v FROM \"t\" WHERE topic LIKE 't/+'"});
    let (status, made) = api(&node, "POST", "rules", &doubtful);
    let warning = made["warnings"][0].as_str().unwrap_or_default();
    assert!(status == 201 && warning.contains("=~ 't/+'"), "{made}");
    let (status, _) = api(&node, "DELETE", "rules/doubtful", &Value::Null);
    assert_eq!(status, 204);
    // A program of jq that its library would not survive.
    let statement = "SELECT jq(payload.program, payload) AS v FROM \"#\"";
    let program = json!({"program": "import \"a\" as $a; $a"});
    let body = json!({"rule": {"sql": statement}, "event": {"topic": "t", "payload": program}});
    let (status, tested) = api(&node, "POST", "rules/test", &body);
    let reason = tested["reason"].as_str().unwrap_or_default();
    assert!(
        status == 200 && reason.contains("there are no modules"),
        "{tested}"
    );
    let (_, rules) = api(&node, "GET", "rules", &Value::Null);
    assert_eq!(rules["data"], json!([]));
}

/// A test over HTTP, its event's payload included, a test of the command line and a trace.
#[test]
fn columns_keep_the_order_of_select() {
    let node = Node::start(&[]);
    let sql = "SELECT payload.z AS z, 2 AS a, payload.m AS m FROM \"t\"";
    let payload = r#"{"z":1,"m":{"z":1,"b":3}}"#;
    let wanted = r#"{"z":1,"a":2,"m":{"z":1,"b":3}}"#;
    let rule = json!({"sql": sql});
    let body = format!(r#"{{"rule": {rule}, "event": {{"topic": "t", "payload": {payload}}}}}"#);
    let (status, answer) = api_text(&node, "POST", "rules/test", &body);
    assert_eq!(status, 200, "{answer}");
    assert!(
        answer.contains(&format!("\"outputs\":[{wanted}]")),
        "{answer}"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["rule", "test", "--topic", "t", "--sql", sql])
        .args(["--payload", payload])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("output: {wanted}\n")), "{text}");

    republish(&node, "r", sql, "out");
    let mut lines = open_trace(&node);
    Raw::client(&node, 4).publish("t", payload);
    let record = next_with(&mut lines, "data: ");
    assert!(
        record.contains(&format!("\"outputs\":[{wanted}]")),
        "{record}"
    );
}

/// The lines of the trace of rule `r`.
fn open_trace(node: &Node) -> Lines<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(node.address("http")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(
        stream,
        "GET /api/v1/rules/r/trace HTTP/1.1\r\nhost: localhost\r\n\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines();
    next_with(&mut lines, ": connected");
    lines
}

/// What follows `part` in the next line that contains it.
fn next_with(lines: &mut Lines<BufReader<TcpStream>>, part: &str) -> String {
    loop {
        let line = lines.next().expect("the stream goes on").unwrap();
        if let Some((_, rest)) = line.split_once(part) {
            return rest.to_owned();
        }
    }
}

#[test]
fn the_command_line_tries_a_rule_without_a_node() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["rule", "test"])
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text, error)
    };
    let sql = "SELECT upper(payload.name) AS name FROM \"t/#\" WHERE qos = 0";
    let (code, text, error) = run(&[
        "--sql",
        sql,
        "--topic",
        "t/1",
        "--payload",
        r#"{"name": "ann"}"#,
    ]);
    assert_eq!(code, Some(0), "{error}");
    assert!(
        text.contains("dialect  emqx") && text.contains(r#"output: {"name":"ANN"}"#),
        "{text}"
    );
    let (code, text, _) = run(&["--sql", sql, "--topic", "t/1", "--qos", "1"]);
    assert!(text.contains("no output: WHERE"), "{text}");
    assert_eq!(code, Some(0), "a filtered event is no failure");
    let failing = "SELECT int(payload.name) AS name FROM \"t/#\"";
    for format in [&[][..], &["--json"]] {
        let arguments = ["--sql", failing, "--topic", "t/1", "--payload"];
        let (code, text, error) = run(&[&arguments[..], &[r#"{"name": "ann"}"#], format].concat());
        assert_eq!(code, Some(1), "{text}{error}");
        assert!(text.contains("the rule failed: "), "{text}");
    }
    let (code, _, error) = run(&[
        "--sql",
        "SELECT uppper(topic) AS x FROM \"t\"",
        "--topic",
        "t",
    ]);
    assert!(code == Some(2) && error.contains("upper"), "{error}");
    assert!(error.contains("\n  |        ^^^^^^"), "{error}");
    // Comments and negative numbers begin with a hyphen.
    let commented =
        "-- all of it\nSELECT payload AS p FROM \"t\" WHERE topic LIKE 't/+'  OR qos = 0";
    let (code, text, error) = run(&["--sql", commented, "--topic", "t", "--payload", "-5"]);
    assert!(
        code == Some(0) && text.contains(r#"output: {"p":"-5"}"#),
        "{text}{error}"
    );
    assert!(
        text.contains("warning: sql: line 2, column 47: LIKE"),
        "{text}"
    );
}

#[test]
fn a_rule_is_watched_at_work() {
    let node = Node::start(&[]);
    republish(
        &node,
        "r",
        "SELECT topic FROM \"t/#\" WHERE payload.on = true",
        "out",
    );
    let mut lines = open_trace(&node);
    let mut device = Raw::connect(&node, &Connect::new(4, "device"));
    device.publish("t/1", r#"{"on": false}"#);
    device.publish("t/2", r#"{"on": true}"#);
    // Truncated behind what WHERE looks at: no action runs.
    device.publish("t/3", r#"{"on": true, "#);
    let events: Vec<Value> = (0..3)
        .map(|_| serde_json::from_str(&next_with(&mut lines, "data: ")).unwrap())
        .collect();
    assert_eq!(
        (&events[0]["result"], &events[0]["topic"]),
        (&json!("no_result"), &json!("t/1"))
    );
    assert_eq!(events[0]["reason"], "WHERE does not hold");
    assert_eq!(
        events[0]["compared"],
        json!([{"expression": "payload.on", "value": "false"}])
    );
    assert_eq!(
        (&events[1]["result"], &events[1]["client_id"]),
        (&json!("passed"), &json!("device"))
    );
    assert_eq!(events[1]["outputs"], json!([{"topic": "t/2"}]));
    let error = events[2]["error"].as_str().unwrap_or_default();
    assert_eq!(events[2]["result"], "failed");
    assert!(error.contains("the payload is not JSON"), "{error}");
}

#[test]
fn metrics_have_the_names_alert_rules_ask_for() {
    let node = Node::start(&[]);
    republish(&node, "r", "SELECT topic FROM \"t\"", "out");
    let mut device = Raw::client(&node, 4);
    for _ in 0..100 {
        device.publish("t", "x");
    }
    device.ping();
    eventually("the metrics are there", || {
        let metrics = crate::listeners::get(&node, "/metrics").body;
        [
            "rule_engine_execution_duration_seconds{rule=\"r\",quantile=\"0.99\"}",
            "rule_engine_executions_total{rule=\"r\",result=\"passed\"} 100",
            "rule_engine_executions_total{rule=\"\",result=\"passed\"} 100",
            "rule_engine_rules_running 1",
        ]
        .iter()
        .all(|line| metrics.contains(line))
    });
}
