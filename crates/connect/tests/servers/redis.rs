//! Redis sink.

use connect::CircuitState;
use serde_json::{Value, json};
use testkit::{ServerKind, TestServer};

use crate::node::{ConnectorNode, Load, assert_all_in_order};

fn connector(server: &TestServer) -> Value {
    json!({
        "type": "redis", "server": server.address().to_string(), "username": testkit::USER, "password": testkit::PASSWORD
    })
}

fn list(server: &TestServer, key: &str) -> Vec<String> {
    let values = server.redis(&["LRANGE", key, "0", "-1"]);
    values.into_iter().flatten().collect()
}

#[test]
fn commands_are_run_for_each_row() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "order": "all",
            "command": "HSET device:${device} v ${payload.v} s \"${payload.s} ${topic}\" && RPUSH list ${n} && XADD stream * n ${n} \
                && XADD short MAXLEN 10 * n ${n}"
        }),
    );
    assert!(node.test().unwrap().starts_with("Redis "));
    node.push(sink, 0..100);
    node.stop();
    assert_eq!(list(&server, "list").len(), 100);
    assert_eq!(
        server.redis(&["HMGET", "device:7", "v", "s"]),
        [Some("97.5".into()), Some("it's t/7".into())]
    );
    assert_eq!(server.redis(&["XLEN", "stream"]), [Some("100".into())]);
    assert_eq!(server.redis(&["XLEN", "short"]), [Some("10".into())]);
    let status = node.status();
    assert_eq!((status.metrics.sent, status.metrics.queued), (100, 0));
}

#[test]
fn a_killed_server_costs_no_row_and_no_order() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "command": "RPUSH all ${n}", "order": {"by": "${device}"},
            "retry": {"initial_delay_ms": 10, "max_delay_ms": 200}, "batch": {"max_rows": 40}
        }),
    );
    let load = Load::start(&node, sink);
    for _ in 0..3 {
        load.go_on(500);
        server.kill();
        node.until("it notices", |status| {
            status.health.circuit != CircuitState::Closed
        });
        load.go_on(500);
        server.start();
        node.until("it recovers", |status| {
            status.health.circuit == CircuitState::Closed
        });
    }
    let pushed = load.end();
    node.stop();
    let rows: Vec<i64> = list(&server, "all")
        .iter()
        .map(|n| n.parse().unwrap())
        .collect();
    assert_all_in_order(&rows, pushed);
    assert_eq!(node.status().metrics.failed, 0);
}

#[test]
fn a_row_the_server_rejects_is_a_dead_letter_to_be_sent_again() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    server.redis(&["SET", "l:3", "not a list"]);
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({"connector": "c", "command": "RPUSH l:${device} ${n}"}),
    );
    node.push(sink, 0..20);
    node.until("all are done with", |status| {
        status.metrics.sent + status.metrics.failed == 20
    });
    let letters = node.service.dead_letters("s", 0, 10).unwrap();
    assert_eq!(letters.len(), 2);
    assert!(
        letters[0].error.starts_with("WRONGTYPE"),
        "{}",
        letters[0].error
    );
    server.redis(&["DEL", "l:3"]);
    let discarded = node.service.discard("s", Some(vec![letters[0].id]));
    assert_eq!(node.runtime.block_on(discarded), Some(1));
    assert_eq!(
        node.runtime.block_on(node.service.replay("s", None)),
        Some(1)
    );
    node.until("it is written", |status| status.metrics.sent == 19);
    assert_eq!(list(&server, "l:3"), ["13"]);
    assert_eq!(node.status().metrics.dead_letters, 0);
}

#[test]
fn a_frozen_server_is_waited_for() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    let (node, sink) = ConnectorNode::with(
        &connector(&server),
        &json!({
            "connector": "c", "command": "RPUSH all ${n}", "order": "all", "write_timeout_ms": 300,
            "retry": {"initial_delay_ms": 10, "max_delay_ms": 100}
        }),
    );
    node.push(sink, 0..10);
    node.until("they are written", |status| status.metrics.sent == 10);
    server.freeze();
    node.push(sink, 10..30);
    node.until("it notices", |status| status.health.failures >= 2);
    server.resume();
    node.until("they are written", |status| status.metrics.sent == 30);
    let mut rows = list(&server, "all");
    rows.dedup();
    assert!(rows.len() >= 30);
}

#[test]
fn a_wrong_password_is_reported_and_loses_nothing() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    let mut wrong = connector(&server);
    wrong["password"] = "wrong-password".into();
    let (node, sink) = ConnectorNode::with(
        &wrong,
        &json!({"connector": "c", "command": "RPUSH all ${n}"}),
    );
    let error = node.test().unwrap_err();
    assert!(
        error.contains("authentication failed") && !error.contains("wrong-password"),
        "{error}"
    );
    node.push(sink, 0..5);
    node.until("it fails", |status| status.health.failures > 0);
    node.service
        .set_connector("c", &connector(&server))
        .unwrap();
    node.until("they are written", |status| status.metrics.sent == 5);
    assert_eq!(list(&server, "all").len(), 5);
}
