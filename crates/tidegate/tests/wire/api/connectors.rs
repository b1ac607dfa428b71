//! What a rule says arrives in an outside system, by connectors and sinks made over the API or in the configuration.

use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use super::{closed, local_token, own_node, send};
use crate::auth::web_server;
use crate::support::{Connect, Node, Raw, eventually, unique};

fn publish(node: &Node, topic: &str, payload: &str) {
    let mut raw = Raw::open(node, 5);
    raw.hand_shake(&Connect::new(5, unique("sink")));
    raw.publish_qos1(topic, payload, 1);
}

fn lines(node: &Node, file: &str) -> Vec<Value> {
    let path = node.data_dir().join("sinks/files").join(file);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_message_goes_through_a_rule_into_a_sink() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let put = |path: &str, body: Value| send(&node, &token, "PUT", path, &body);
    let sink = json!({"connector": "disk", "file": "out.jsonl"});
    let rejected = put("/api/v1/sinks/archive", sink.clone());
    assert_eq!(
        (rejected.status, &rejected.body["parameter"]),
        (422, &json!("connector"))
    );
    let made = put("/api/v1/connectors/disk", json!({"type": "file"}));
    assert_eq!(made.status, 201, "{}", made.body);
    let rejected = put(
        "/api/v1/sinks/archive",
        json!({"connector": "disk", "fil": "x"}),
    );
    assert_eq!(rejected.status, 422, "{}", rejected.body);
    let made = put("/api/v1/sinks/archive", sink);
    assert_eq!(made.status, 201, "{}", made.body);
    let tested = send(
        &node,
        &token,
        "POST",
        "/api/v1/connectors/disk/test",
        &Value::Null,
    );
    assert_eq!(
        (tested.status, &tested.body["is_reachable"]),
        (200, &json!(true))
    );
    let topic = unique("sink/");
    let rule = json!({
        "sql": format!("SELECT clientid, payload.t AS t, topic FROM \"{topic}\""),
        "actions": [{"kind": "sink", "sink": "archive"}]
    });
    let made = put("/api/v1/rules/keep", rule);
    assert_eq!(made.status, 201, "{}", made.body);
    publish(&node, &topic, r#"{"t": 21.5}"#);
    eventually("the row is in the file", || {
        !lines(&node, "out.jsonl").is_empty()
    });
    let row = &lines(&node, "out.jsonl")[0];
    assert_eq!((&row["t"], &row["topic"]), (&json!(21.5), &json!(topic)));
    let path = "/api/v1/sinks/archive/status";
    eventually("the row is counted", || {
        let status = send(&node, &token, "GET", path, &Value::Null);
        status.body["metrics"]["sent"] == 1 && status.body["state"] == "running"
    });
    let delete = |path: &str| send(&node, &token, "DELETE", path, &Value::Null);
    let rejected = delete("/api/v1/sinks/archive");
    assert_eq!(rejected.status, 409, "{}", rejected.body);
    assert_eq!(delete("/api/v1/rules/keep").status, 204);
    assert_eq!(delete("/api/v1/sinks/archive").status, 204);
    assert_eq!(send(&node, &token, "GET", path, &Value::Null).status, 404);
}

#[test]
fn secrets_of_connectors_are_kept_and_never_shown() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let path = "/api/v1/connectors/hook";
    // Nobody listens there.
    let written = json!({
        "type": "http", "url": "http://127.0.0.1:9", "username": "u", "password": "pencil-password",
        "headers": {"x-key": "header-secret"}
    });
    let made = send(&node, &token, "PUT", path, &written);
    assert_eq!(made.status, 201, "{}", made.body);
    let shown = send(&node, &token, "GET", path, &Value::Null);
    let text = shown.body.to_string();
    assert!(
        !text.contains("pencil-password") && !text.contains("header-secret"),
        "{text}"
    );
    assert_eq!(shown.body["username"], "u");
    // What was shown may be put back.
    let again = send(&node, &token, "PUT", path, &shown.body);
    assert_eq!(again.status, 200, "{}", again.body);
    let tested = send(&node, &token, "POST", &format!("{path}/test"), &Value::Null);
    assert_eq!(
        (tested.status, &tested.body["is_reachable"]),
        (200, &json!(false))
    );
    assert!(!tested.body.to_string().contains("pencil-password"));
    let unstored = json!({"type": "http", "url": "nonsense"});
    let tested = send(&node, &token, "POST", "/api/v1/connectors/test", &unstored);
    assert_eq!(
        (tested.status, &tested.body["parameter"]),
        (422, &json!("url"))
    );
    let types = send(
        &node,
        &token,
        "GET",
        "/api/v1/connector-types",
        &Value::Null,
    );
    let types = types.body["data"].as_array().unwrap().clone();
    assert!(
        types
            .iter()
            .any(|of| of["type"] == "http" && of["sink_schema"]["type"] == "object")
    );
}

#[test]
fn sinks_of_the_configuration_work_and_stay() {
    if !own_node() {
        return;
    }
    let config = r#"
        [[connector]]
        name = "disk"
        type = "file"

        [[sink]]
        name = "archive"
        connector = "disk"
        file = "declared.jsonl"
        batch = { max_wait_ms = 1 }

        [[rule]]
        name = "keep"
        sql = 'SELECT topic FROM "declared/#"'
        actions = [{ kind = "sink", sink = "archive" }]
    "#;
    let node = Node::start_with_config(&["--set", "http.anonymous_role=none"], config);
    let token = local_token(&node);
    publish(&node, "declared/x", "y");
    eventually("the row is in the file", || {
        !lines(&node, "declared.jsonl").is_empty()
    });
    let rejected = send(
        &node,
        &token,
        "PUT",
        "/api/v1/sinks/archive",
        &json!({"connector": "disk", "file": "other"}),
    );
    assert_eq!(rejected.status, 409, "{}", rejected.body);
    let status = send(&node, &token, "GET", "/api/v1/sink-status", &Value::Null);
    assert_eq!(status.body["data"][0]["is_declared"], true);
}

#[test]
fn a_message_of_another_broker_meets_the_rules_of_its_bridge() {
    if !own_node() {
        return;
    }
    let remote = closed();
    let node = closed();
    let token = local_token(&node);
    let put = |path: &str, body: Value| {
        let made = send(&node, &token, "PUT", path, &body);
        assert_eq!(made.status, 201, "{path}: {}", made.body);
    };
    put(
        "/api/v1/connectors/other",
        json!({"type": "mqtt", "server": remote.address("mqtt"), "client_id": unique("bridge")}),
    );
    put("/api/v1/connectors/disk", json!({"type": "file"}));
    put(
        "/api/v1/sinks/archive",
        json!({"connector": "disk", "file": "bridged.jsonl"}),
    );
    put(
        "/api/v1/rules/bridged",
        json!({
            "sql": "SELECT topic, payload.t AS t FROM \"$bridges/mqtt:in\"",
            "actions": [{"kind": "sink", "sink": "archive"}]
        }),
    );
    put(
        "/api/v1/sources/in",
        json!({"connector": "other", "topics": ["remote/#"]}),
    );
    let status = || {
        let path = "/api/v1/source-status";
        send(&node, &token, "GET", path, &Value::Null).body["data"][0].clone()
    };
    eventually("the bridged message is in the file", || {
        // Until the source has subscribed nobody hears it.
        publish(&remote, "remote/x", r#"{"t": 5}"#);
        !lines(&node, "bridged.jsonl").is_empty()
    });
    let row = &lines(&node, "bridged.jsonl")[0];
    assert_eq!((&row["topic"], &row["t"]), (&json!("remote/x"), &json!(5)));
    let status = status();
    assert_eq!(status["state"], "running");
    assert!(status["received"].as_u64() > Some(0), "{status}");
}

/// A sink whose statement the system rejects is rejected with the message of the system; a right one is created.
fn rejects_wrong_statements(connector: &Value, right: &Value, wrong: &[(&str, &str, &str)]) {
    let node = closed();
    let token = local_token(&node);
    let put = |path: &str, body: &Value| send(&node, &token, "PUT", path, body);
    let made = put("/api/v1/connectors/db", connector);
    assert_eq!(made.status, 201, "{}", made.body);
    for (field, value, message) in wrong {
        let mut sink = right.clone();
        sink[*field] = (*value).into();
        let rejected = put("/api/v1/sinks/s", &sink);
        assert_eq!(rejected.status, 422, "{value}: {}", rejected.body);
        assert_eq!(rejected.body["parameter"], *field, "{}", rejected.body);
        let detail = rejected.body["detail"].as_str().unwrap();
        assert!(detail.contains(message), "{value}: {detail}");
        let missing = send(&node, &token, "GET", "/api/v1/sinks/s", &Value::Null);
        assert_eq!(missing.status, 404, "{}", missing.body);
    }
    let made = put("/api/v1/sinks/s", right);
    assert_eq!(made.status, 201, "{}", made.body);
}

fn database(kind: &str, server: &TestServer) -> Value {
    server.sql("CREATE TABLE t (n BIGINT)");
    json!({
        "type": kind, "server": server.address().to_string(), "database": testkit::DATABASE,
        "username": testkit::USER, "password": testkit::PASSWORD
    })
}

#[test]
fn a_statement_that_mysql_rejects_is_rejected() {
    if !own_node() {
        return;
    }
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    rejects_wrong_statements(
        &database("mysql", &server),
        &json!({"connector": "db", "sql": "INSERT INTO t (n) VALUES (${payload.n})"}),
        &[
            (
                "sql",
                "INSERT INTO nothing (n) VALUES (${payload.n})",
                "nothing' doesn't exist",
            ),
            (
                "sql",
                "INSERT INTO t (m) VALUES (${payload.n})",
                "Unknown column 'm'",
            ),
            (
                "sql",
                "INSRT INTO t (n) VALUES (${payload.n})",
                "You have an error in your SQL syntax",
            ),
        ],
    );
}

#[test]
fn a_statement_that_postgresql_rejects_is_rejected() {
    if !own_node() {
        return;
    }
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    rejects_wrong_statements(
        &database("postgres", &server),
        &json!({"connector": "db", "sql": "INSERT INTO t (n) VALUES (${payload.n})"}),
        &[
            (
                "sql",
                "INSERT INTO nothing (n) VALUES (${payload.n})",
                "relation \"nothing\" does not exist",
            ),
            (
                "sql",
                "INSERT INTO t (m) VALUES (${payload.n})",
                "column \"m\" of relation \"t\" does not exist",
            ),
        ],
    );
}

/// There is no ClickHouse among the test servers: a web server answers as documented.
#[test]
fn a_table_that_clickhouse_rejects_is_rejected() {
    if !own_node() {
        return;
    }
    let server = web_server::serve(|request| match request.line.contains("nothing") {
        true => (
            404,
            "Code: 60. DB::Exception: Table d.nothing does not exist. (UNKNOWN_TABLE)".to_owned(),
        ),
        false => (200, String::new()),
    });
    rejects_wrong_statements(
        &json!({"type": "clickhouse", "urls": [format!("http://{server}")], "database": "d"}),
        &json!({"connector": "db", "table": "t"}),
        &[("table", "nothing", "Table d.nothing does not exist")],
    );
}
