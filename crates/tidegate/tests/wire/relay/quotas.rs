//! Quotas of namespaces on connections and messages.

use serde_json::{Value, json};

use super::{RelayClient, ask, new_endpoint};
use crate::api::own_node;
use crate::support::{Connect, Node, Publish, Raw, eventually, kind};

const TOKEN: &str = "token-of-a-pump";

/// A namespace with these quotas, an endpoint and a device in it; returns the endpoint.
fn set_up(node: &Node, quotas: Value) -> String {
    let credentials = json!([{"type": "token", "token": TOKEN}]);
    for (path, body) in [
        ("namespaces/acme", json!({"quotas": quotas})),
        ("products/pump", json!({"namespace": "acme"})),
        (
            "devices/pump-1",
            json!({"product": "pump", "credentials": credentials}),
        ),
    ] {
        let (status, answer) = ask(node, "PUT", path, body);
        assert!(status < 300, "{path}: {answer}");
    }
    new_endpoint(node, json!({"namespace": "acme", "mode": "direct"}))
}

fn connect_device(node: &Node, version: u8) -> (Raw, u8) {
    let mut raw = Raw::open(node, version);
    let connack = raw.hand_shake(&Connect::new(version, "pump-1").username(TOKEN));
    (raw, connack.reason)
}

/// Usage and limit of a quota.
fn usage(node: &Node, quota: &str) -> (u64, Option<u64>) {
    let (status, usage) = ask(node, "GET", "namespaces/acme/usage", Value::Null);
    assert_eq!(status, 200, "{usage}");
    let rows = usage["data"].as_array().unwrap();
    let row = rows.iter().find(|row| row["quota"] == quota).unwrap();
    (row["used"].as_u64().unwrap(), row["limit"].as_u64())
}

#[test]
fn connections_of_endpoints_and_devices_count_together() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "2"]);
    let room = set_up(&node, json!({"connections": 2}));
    let elsewhere = new_endpoint(&node, json!({}));
    let first = RelayClient::connect(&node, &room);
    let _second = RelayClient::connect(&node, &room);
    eventually("both are counted", || {
        usage(&node, "connections") == (2, Some(2))
    });
    let (code, close, _) = RelayClient::connect(&node, &room).expect_refusal();
    assert_eq!((&*code, close), ("TOO_MANY_CONNECTIONS", 1008));
    assert_eq!(connect_device(&node, 5).1, 0x97);
    assert_eq!(connect_device(&node, 4).1, 3);
    // Another namespace has limits of its own.
    let _other = RelayClient::connect(&node, &elsewhere);

    drop(first);
    eventually("there is room", || usage(&node, "connections").0 == 1);
    let (device, reason) = connect_device(&node, 5);
    assert_eq!(reason, 0);
    let (code, ..) = RelayClient::connect(&node, &room).expect_refusal();
    assert_eq!(code, "TOO_MANY_CONNECTIONS");
    // It replaces its own connection.
    let (device_again, reason) = connect_device(&node, 5);
    assert_eq!(reason, 0);
    drop((device, device_again));
    eventually("there is room", || usage(&node, "connections").0 == 1);
    let (status, answer) = ask(
        &node,
        "PUT",
        "namespaces/acme",
        json!({"quotas": {"connections": null}}),
    );
    assert_eq!(status, 200, "{answer}");
    let _unlimited: Vec<_> = (0..5).map(|_| RelayClient::connect(&node, &room)).collect();
    eventually("all are counted", || {
        usage(&node, "connections") == (6, None)
    });
}

#[test]
fn a_sender_over_the_quota_of_messages_is_slowed_and_loses_nothing() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "2"]);
    let room = set_up(&node, json!({"messages_per_s": 20}));
    let mut receiver = RelayClient::connect(&node, &room);
    let mut sender = RelayClient::connect(&node, &room);
    for n in 0..40 {
        sender.send_text(&n.to_string());
    }
    let warning = sender.expect_json();
    assert_eq!(warning["code"], "RATE_LIMIT_WARNING", "{warning}");
    assert_eq!(warning["level"], "warning", "{warning}");
    for n in 0..40 {
        assert_eq!(receiver.expect_text(), n.to_string());
    }
    assert_eq!(usage(&node, "messages_per_s").1, Some(20));
}

#[test]
fn messages_of_devices_over_the_quota_are_rejected_or_slowed() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "2"]);
    set_up(&node, json!({"messages_per_s": 20}));
    let publish = |n: u16| {
        let payload = json!({"n": n}).to_string();
        Publish::new("v1/devices/me/telemetry", payload).qos(1, n)
    };
    let (mut device, reason) = connect_device(&node, 5);
    assert_eq!(reason, 0);
    for n in 1..=500 {
        device.send_publish(&publish(n));
    }
    let reasons: Vec<u8> = (1..=500)
        .map(|_| device.recv(kind::PUBACK).reason)
        .collect();
    assert!(reasons[0] < 0x80, "{reasons:?}");
    assert!(reasons.contains(&0x97), "{reasons:?}");
    device.disconnect();
    // Before version 5, nothing is rejected.
    let (mut device, reason) = connect_device(&node, 4);
    assert_eq!(reason, 0);
    for n in 1..=30 {
        device.send_publish(&publish(n));
    }
    for n in 1..=30 {
        assert_eq!(device.recv(kind::PUBACK).id(), n);
    }
}
