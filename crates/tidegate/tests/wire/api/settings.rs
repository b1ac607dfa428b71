//! Settings that change while the node runs: they hold at once, also for those who are connected, and nobody is sent away.

use serde_json::{Value, json};

use super::{closed, closed_with, local_token, own_node, send};
use crate::support::{Connect, Node, Publish, Raw, eventually, kind, unique};

fn connected(node: &Node) -> Raw {
    let mut raw = Raw::open(node, 5);
    assert_eq!(raw.hand_shake(&Connect::new(5, unique("s"))).reason, 0);
    raw
}

/// Changes a setting; what it is then.
fn set(node: &Node, token: &str, key: &str, value: Value) -> Value {
    let path = format!("/api/v1/settings/{key}");
    let answer = send(node, token, "PUT", &path, &json!({"value": value}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(
        (&answer.body["origin"], &answer.body["changeable"]),
        (&json!("api"), &json!(true))
    );
    answer.body["value"].clone()
}

/// The reason code a publisher of QoS 1 gets.
fn publish(raw: &mut Raw, topic: &str, retain: bool) -> u8 {
    let publish = Publish::new(topic, "x").qos(1, 1);
    raw.send_publish(&if retain { publish.retain() } else { publish });
    raw.recv(kind::PUBACK).reason
}

#[test]
fn limits_hold_for_those_who_are_connected() {
    if !own_node() {
        return;
    }
    let node = closed_with(&["--shards", "2"]);
    let token = local_token(&node);
    let mut clients = [connected(&node), connected(&node)];
    for raw in &mut clients {
        assert_eq!(publish(raw, &unique("a/"), true), 0x10, "kept");
    }
    assert_eq!(
        set(&node, &token, "limits.max_retained_payload_bytes", json!(0)),
        0
    );
    for raw in &mut clients {
        eventually("it is too large", || {
            publish(raw, &unique("a/"), true) == 0x97
        });
    }
    let size = set(
        &node,
        &token,
        "limits.max_retained_payload_bytes",
        json!("64KiB"),
    );
    assert_eq!(size, 65_536);
    for raw in &mut clients {
        eventually("it is kept", || publish(raw, &unique("a/"), true) == 0x10);
    }
    // Whoever is there stays, and nobody else comes in.
    set(&node, &token, "limits.max_connections", json!(2));
    let mut third = Raw::open(&node, 5);
    third.try_send(&Connect::new(5, unique("s")).bytes());
    let connack = third.recv_unless_closed();
    assert!(connack.is_none_or(|connack| connack.reason != 0));
    assert_eq!(publish(&mut clients[0], "a", false), 0x10);
    set(&node, &token, "limits.max_connections", json!(3));
    connected(&node);
}

#[test]
fn policies_and_rates_of_logins_change() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let mut raw = connected(&node);
    assert_eq!(publish(&mut raw, "a", false), 0x10);
    set(&node, &token, "auth.default_permission", json!("deny"));
    assert_eq!(publish(&mut raw, "a", false), 0x87);
    set(&node, &token, "auth.default_permission", json!("auto"));
    assert_eq!(publish(&mut raw, "a", false), 0x10);

    set(&node, &token, "auth.max_logins_per_s", json!(1));
    eventually("too many at once", || {
        Raw::open(&node, 5).hand_shake(&Connect::new(5, "")).reason == 0x9f
    });
    set(&node, &token, "auth.max_logins_per_s", json!(0));
    connected(&node);
}

#[test]
fn bounds_of_the_api_change_and_the_log_level() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let message = json!({"topic": "a", "payload": "x".repeat(2000)});
    let publish = || send(&node, &token, "POST", "/api/v1/publish", &message).status;
    assert_eq!(publish(), 200);
    set(&node, &token, "http.max_body_bytes", json!(1024));
    assert_eq!(publish(), 413);
    set(&node, &token, "http.max_body_bytes", json!("1MiB"));
    assert_eq!(publish(), 200);
    assert_eq!(set(&node, &token, "log.level", json!("warn")), "warn");
    let level = send(&node, &token, "GET", "/api/v1/log-level", &Value::Null);
    assert_eq!(level.body["level"], "warn");
}

#[test]
fn what_is_fixed_or_wrong_changes_nothing() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    for (key, value, status) in [
        ("limits.max_qos", json!(1), 409),
        ("store.fsync", json!("always"), 409),
        ("http.anonymous_role", json!("admin"), 409),
        ("limits.max_sessions", json!(0), 422),
        ("limits.max_sessions", json!("many"), 422),
        ("limits.max_sessions", json!([1]), 422),
        ("auth.default_permission", json!("perhaps"), 422),
        ("log.level", json!("loud"), 422),
        ("limits.nonsense", json!(1), 404),
    ] {
        let path = format!("/api/v1/settings/{key}");
        let before = send(&node, &token, "GET", &path, &Value::Null);
        let answer = send(&node, &token, "PUT", &path, &json!({"value": value}));
        assert_eq!(answer.status, status, "{key}: {}", answer.body);
        let after = send(&node, &token, "GET", &path, &Value::Null);
        assert_eq!(before.body, after.body, "{key}");
    }
}

#[test]
fn a_changed_setting_stays_until_it_is_reverted() {
    if !own_node() {
        return;
    }
    let mut node = Node::start(&["--set", "limits.max_queued_messages=50"]);
    let path = "/api/v1/settings/limits.max_queued_messages";
    let read = |node: &Node| send(node, "", "GET", path, &Value::Null).body;
    let changed = send(&node, "", "PUT", path, &json!({"value": 70}));
    assert_eq!(changed.status, 200, "{}", changed.body);
    let level = send(
        &node,
        "",
        "PUT",
        "/api/v1/log-level",
        &json!({"level": "debug"}),
    );
    assert_eq!(level.status, 200, "{}", level.body);
    node.restart();
    let setting = read(&node);
    assert_eq!(
        (&setting["value"], &setting["origin"]),
        (&json!(70), &json!("api"))
    );
    assert_eq!(setting["configured"]["value"], 50, "{setting}");
    let level = send(&node, "", "GET", "/api/v1/log-level", &Value::Null).body;
    assert_eq!(level["level"], "debug");

    let reverted = send(&node, "", "DELETE", path, &Value::Null);
    assert_eq!(
        (reverted.status, &reverted.body["value"]),
        (200, &json!(50))
    );
    assert_eq!(reverted.body["configured"], Value::Null);
    let fixed = send(
        &node,
        "",
        "DELETE",
        "/api/v1/settings/limits.max_qos",
        &Value::Null,
    );
    assert_eq!(fixed.status, 409, "{}", fixed.body);
    node.restart();
    let setting = read(&node);
    assert_eq!(setting["value"], 50);
    assert_ne!(setting["origin"], "api");
}
