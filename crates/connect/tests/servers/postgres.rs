//! PostgreSQL connector.

use connect::CircuitState;
use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use crate::node::{ConnectorNode, Load, assert_all_in_order};

fn connector(server: &TestServer) -> Value {
    json!({
        "type": "postgres", "server": server.address().to_string(), "database": testkit::DATABASE,
        "username": testkit::USER, "password": testkit::PASSWORD
    })
}

/// The table is the user's own.
fn make(server: &TestServer, table: &str) {
    server.sql(&format!(
        "CREATE TABLE {table}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}; \
         GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {user}",
        user = testkit::USER
    ));
}

fn numbers(server: &TestServer, statement: &str) -> Vec<i64> {
    let rows = server.sql(statement);
    rows.iter()
        .map(|row| row[0].as_ref().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn values_of_all_types_arrive() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    make(
        &server,
        "t (n int PRIMARY KEY, v double precision, s varchar(100), j jsonb, at timestamptz, missing int, b boolean, d \
         numeric(10, 2), made timestamptz)",
    );
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "batch": {"max_rows": 100},
            "sql": "INSERT INTO t (n, v, s, j, at, missing, b, d, made) VALUES (${n}, ${payload.v}, \
                '\"{\\, ${payload.s}', ${payload}, to_timestamp(${n}), ${nothing}, ${n}::int % 2 = 0, ${payload.v}, now())"
        }),
    );
    assert!(node.test().unwrap().starts_with("PostgreSQL "));
    node.push(sink, 0..1234);
    node.stop();
    assert_eq!(
        numbers(
            &server,
            "SELECT COUNT(*) FROM t WHERE missing IS NULL AND made IS NOT NULL"
        ),
        [1234]
    );
    let row =
        &server.sql("SELECT s, j->>'s', extract(epoch from at)::int, b, d FROM t WHERE n = 7")[0];
    let expected = ["\"{\\, it's", "it's", "7", "f", "7.50"].map(|text| Some(text.to_owned()));
    assert_eq!(row[..], expected);
}

#[test]
fn a_killed_server_costs_no_row_and_no_order() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    make(&server, "t (id bigserial PRIMARY KEY, n bigint)");
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
fn an_upsert_of_a_row_twice_in_a_batch_keeps_the_last_value() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    make(&server, "last (device bigint PRIMARY KEY, n bigint)");
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "order": {"by": "${device}"},
            "sql": "INSERT INTO last (device, n) VALUES (${device}, ${n}) ON CONFLICT (device) DO UPDATE SET n = EXCLUDED.n"
        }),
    );
    node.push(sink, 0..1000);
    node.stop();
    let last = numbers(&server, "SELECT n FROM last ORDER BY device");
    assert_eq!(last, (990..1000).collect::<Vec<_>>());
    assert_eq!(node.status().metrics.failed, 0);
}

#[test]
fn rows_that_cannot_be_are_dead_letters_and_the_others_are_written() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    make(&server, "t (n bigint PRIMARY KEY CHECK (n <> 42), a int[])");
    server.sql("INSERT INTO t VALUES (3), (50)");
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c",
            "sql": "INSERT INTO t (n, a) VALUES (${n}, '{${n}, ${device}}')"
        }),
    );
    node.push(sink, 0..100);
    node.until("all are done with", |status| {
        status.metrics.sent + status.metrics.failed == 100
    });
    assert_eq!(numbers(&server, "SELECT COUNT(*) FROM t"), [99]);
    assert_eq!(numbers(&server, "SELECT a[2] FROM t WHERE n = 57"), [7]);
    assert_eq!(node.service.dead_letters("s", 0, 10).unwrap().len(), 3);
}

#[test]
fn a_wrong_statement_is_found_when_the_sink_is_made_and_never_tried_for_ever() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    make(&server, "t (n bigint)");
    let sink = |sql: &str| json!({"connector": "c", "sql": sql, "retry": {"initial_delay_ms": 1, "max_delay_ms": 5}});
    let (node, id) = ConnectorNode::with(
        &connector(&server),
        &sink("INSERT INTO t (n) VALUES (${n})"),
    );
    let probe = |sql: &str| node.runtime.block_on(node.service.probe_sink(&sink(sql)));
    assert_eq!(probe("INSERT INTO t (n) VALUES (${n})"), Ok(()));
    for sql in [
        "INSRT INTO t (n) VALUES (${n})",
        "INSERT INTO ${table} (n) VALUES (${n})",
        "INSERT INTO nothing (n) VALUES (${n})",
        "INSERT INTO t (m) VALUES (${n})",
    ] {
        let error = probe(sql).expect_err(sql);
        assert_eq!(error.field, "sql", "{error}");
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
    assert!(status.health.failing_since_ms.is_some(), "{status:?}");
    let why = status.health.last_error.unwrap();
    assert!(why.contains("42P01"), "{why}");
    assert!(tested(&node).is_err());
    make(&server, "t (n bigint)");
    node.push(id, 20..30);
    node.until("it writes again", |status| status.metrics.sent == 10);
    assert_eq!(node.status().state, connect::SinkState::Running);
}
