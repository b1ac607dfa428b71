//! MySQL connector against MariaDB.

use connect::CircuitState;
use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use crate::node::{ConnectorNode, Load, assert_all_in_order};

fn connector(server: &TestServer) -> Value {
    json!({
        "type": "mysql", "server": server.address().to_string(), "database": testkit::DATABASE,
        "username": testkit::USER, "password": testkit::PASSWORD
    })
}

fn numbers(server: &TestServer, statement: &str) -> Vec<i64> {
    let rows = server.sql(statement);
    rows.iter()
        .map(|row| row[0].as_ref().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn values_are_bound_and_rows_put_together() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    server.sql(
        "CREATE TABLE t (n BIGINT PRIMARY KEY, v DOUBLE, s VARCHAR(100), j TEXT, missing INT)",
    );
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "batch": {"max_rows": 100},
            "sql": "INSERT INTO t (n, v, s, j, missing) VALUES (${n}, ${payload.v}, 'x; DROP TABLE t; ${payload.s}', ${payload}, ${nothing})"
        }),
    );
    assert!(node.test().unwrap().starts_with("MariaDB "));
    node.push(sink, 0..1234);
    node.stop();
    let rows = server.sql("SELECT COUNT(*), SUM(n), SUM(v), COUNT(missing) FROM t");
    let expected = ["1234", "760761", "60283", "0"].map(|text| Some(text.to_owned()));
    assert_eq!(rows[0][0..2], expected[0..2]);
    assert_eq!(rows[0][3], expected[3]);
    let row = &server.sql("SELECT s, j FROM t WHERE n = 7")[0];
    assert_eq!(row[0].as_deref(), Some("x; DROP TABLE t; it's"));
    assert_eq!(row[1].as_deref(), Some(r#"{"v": 7.5, "s": "it's"}"#));
}

#[test]
fn a_killed_server_costs_no_row_and_no_order() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    server.sql("CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, n BIGINT)");
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "sql": "INSERT INTO t (n) VALUES (${n})", "order": {"by": "${device}"},
            "retry": {"initial_delay_ms": 10, "max_delay_ms": 200}, "batch": {"max_rows": 30}
        }),
    );
    let load = Load::start(&node, sink);
    for _ in 0..2 {
        load.go_on(500);
        server.kill();
        node.until("it notices", |status| {
            status.health.circuit != CircuitState::Closed
        });
        load.go_on(300);
        server.start();
        node.until("it recovers", |status| {
            status.health.circuit == CircuitState::Closed
        });
    }
    let pushed = load.end();
    node.stop();
    assert_all_in_order(&numbers(&server, "SELECT n FROM t ORDER BY id"), pushed);
}

#[test]
fn an_upsert_keeps_the_last_value() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    server.sql("CREATE TABLE last (device BIGINT PRIMARY KEY, n BIGINT)");
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "order": {"by": "${device}"},
            "sql": "INSERT INTO last (device, n) VALUES (${device}, ${n}) ON DUPLICATE KEY UPDATE n = VALUES(n)"
        }),
    );
    node.push(sink, 0..1000);
    node.stop();
    let last = numbers(&server, "SELECT n FROM last ORDER BY device");
    assert_eq!(last, (990..1000).collect::<Vec<_>>());
}

#[test]
fn rows_that_cannot_be_are_dead_letters_and_the_others_are_written() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    server.sql("CREATE TABLE t (n BIGINT PRIMARY KEY); INSERT INTO t VALUES (3), (50)");
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({"connector": "c", "sql": "INSERT INTO t (n) VALUES (${n})"}),
    );
    node.push(sink, 0..100);
    node.until("all are done with", |status| {
        status.metrics.sent + status.metrics.failed == 100
    });
    assert_eq!(numbers(&server, "SELECT COUNT(*) FROM t"), [100]);
    let letters = node.service.dead_letters("s", 0, 10).unwrap();
    assert_eq!(letters.len(), 2);
    assert!(
        letters[0].error.contains("Duplicate entry"),
        "{}",
        letters[0].error
    );
}

#[test]
fn a_table_that_is_not_there_yet_is_waited_for() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "sql": "INSERT INTO later (n) VALUES (${n})", "retry": {"initial_delay_ms": 10, "max_delay_ms": 50}
        }),
    );
    node.push(sink, 0..10);
    node.until("it fails", |status| status.health.failures > 1);
    let error = node.status().health.last_error.unwrap();
    assert!(error.contains("later"), "{error}");
    server.sql("CREATE TABLE later (n BIGINT)");
    node.until("they are written", |status| status.metrics.sent == 10);
    assert_eq!(node.status().metrics.failed, 0);
}

#[test]
fn other_statements_are_run_row_by_row() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    server.sql("CREATE TABLE t (device BIGINT PRIMARY KEY, count BIGINT DEFAULT 0)");
    server.sql("INSERT INTO t (device) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)");
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "sql": "UPDATE t SET count = count + 1 WHERE device = ${device}", "batches_in_flight": 1
        }),
    );
    node.push(sink, 0..200);
    node.stop();
    assert_eq!(numbers(&server, "SELECT DISTINCT count FROM t"), [20]);
}

#[test]
fn a_wrong_statement_is_found_when_the_sink_is_made_and_never_tried_for_ever() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    server.sql("CREATE TABLE t (n BIGINT)");
    let sink = |sql: &str| json!({"connector": "c", "sql": sql, "retry": {"initial_delay_ms": 1, "max_delay_ms": 5}});
    let (node, id) = ConnectorNode::with(
        &connector(&server),
        &sink("INSERT INTO t (n) VALUES (${n})"),
    );
    let probe = |sql: &str| node.runtime.block_on(node.service.probe_sink(&sink(sql)));
    assert_eq!(probe("INSERT INTO t (n) VALUES (${n})"), Ok(()));
    for (sql, message) in [
        (
            "INSRT INTO t (n) VALUES (${n})",
            "You have an error in your SQL syntax",
        ),
        (
            "INSERT INTO ${table} (n) VALUES (${n})",
            "You have an error in your SQL syntax",
        ),
        (
            "INSERT INTO nothing (n) VALUES (${n})",
            "nothing' doesn't exist",
        ),
        ("INSERT INTO t (m) VALUES (${n})", "Unknown column 'm'"),
        (
            "INSERT INTO t (n) VALUES (${n}, ${m})",
            "Column count doesn't match value count",
        ),
    ] {
        let error = probe(sql).expect_err(sql);
        assert_eq!(error.field, "sql", "{error}");
        assert!(error.detail.contains(message), "{sql}: {error}");
    }
    let tested = |node: &ConnectorNode| node.runtime.block_on(node.service.test_sink("s")).unwrap();
    assert!(tested(&node).unwrap().contains("the statement is valid"));
    server.sql("DROP TABLE t");
    node.push(id, 0..20);
    node.until("rows are dead letters", |status| {
        status.metrics.failed == 20
    });
    let status = node.status();
    assert_eq!(status.state, connect::SinkState::Failing);
    assert_eq!(status.metrics.queued, 0);
    let why = status.health.last_error.unwrap();
    assert!(why.contains("1146"), "{why}");
    assert!(tested(&node).is_err());
    server.sql("CREATE TABLE t (n BIGINT)");
    node.push(id, 20..30);
    node.until("it writes again", |status| status.metrics.sent == 10);
    assert_eq!(node.status().state, connect::SinkState::Running);
}
