//! Quotas of namespaces on connections, messages and stored telemetry.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{RelayClient, ask, new_endpoint};
use crate::api::{own_node, send};
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
fn a_namespace_may_own_as_many_objects_as_its_quotas_say() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let create = |path: &str, number: usize, fields: &Value| {
        let mut body = fields.clone();
        body["namespace"] = "acme".into();
        ask(&node, "PUT", &format!("{path}/{path}-{number}"), body)
    };
    assert_eq!(ask(&node, "PUT", "namespaces/acme", json!({})).0, 201);
    for (quota, limit) in [
        ("products", 20),
        ("groups", 20),
        ("alarm_rules", 50),
        ("notifications", 20),
        ("api_keys", 20),
        ("endpoints", 5),
        ("dashboards", 50),
    ] {
        assert_eq!(usage(&node, quota), (0, Some(limit)), "{quota}");
    }
    for quota in [
        "devices",
        "connections",
        "messages_per_s",
        "telemetry_megabytes",
    ] {
        assert_eq!(usage(&node, quota), (0, None), "{quota}");
    }
    let quotas = json!({"notifications": 2, "api_keys": 2, "dashboards": 2, "groups": 2});
    let (status, answer) = ask(&node, "PUT", "namespaces/acme", json!({"quotas": quotas}));
    assert_eq!(status, 200, "{answer}");
    let topic = json!({"to": {"mqtt": {"topic": "alarms"}}});
    for (path, quota, limit, fields) in [
        // The default.
        ("endpoints", "endpoints", 5, json!({})),
        ("notifications", "notifications", 2, topic),
        ("api-keys", "api_keys", 2, json!({"role": "viewer"})),
        ("dashboards", "dashboards", 2, json!({})),
        ("device-groups", "groups", 2, json!({"tags": {"site": "a"}})),
    ] {
        for number in 0..limit {
            let (status, answer) = create(path, number, &fields);
            assert_eq!(status, 201, "{path}: {answer}");
        }
        let (status, answer) = create(path, limit, &fields);
        assert_eq!(status, 409, "{path}: {answer}");
        let detail = answer["detail"].as_str().unwrap();
        let expected = format!(
            "The quota {quota} of the namespace \"acme\" is {limit}, and {limit} are in use"
        );
        assert!(detail.contains(&expected), "{detail}");
        let limit = limit as u64;
        assert_eq!(usage(&node, quota), (limit, Some(limit)), "{path}");
        // A change is not a creation, and a deletion makes room.
        assert_eq!(create(path, 0, &fields).0, 200, "{path}");
        let (status, answer) = ask(&node, "DELETE", &format!("{path}/{path}-0"), Value::Null);
        assert_eq!(status, 204, "{path}: {answer}");
        assert_eq!(create(path, 99, &fields).0, 201, "{path}");
    }
}

#[test]
fn a_sender_over_the_quota_of_messages_is_slowed_and_loses_nothing() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "2"]);
    let room = set_up(&node, json!({"messages_per_s": 20}));
    let mut receiver = RelayClient::join(&node, &room);
    let mut sender = RelayClient::join(&node, &room);
    let started = Instant::now();
    for n in 0..80 {
        sender.send_text(&n.to_string());
    }
    let warning = sender.expect_json();
    assert_eq!(warning["code"], "RATE_LIMIT_WARNING", "{warning}");
    assert_eq!(warning["level"], "warning", "{warning}");
    for n in 0..80 {
        assert_eq!(receiver.expect_text(), n.to_string());
    }
    // The messages of one second may pass at once; the other 60 take three seconds, on a loaded machine more.
    assert!(
        started.elapsed() > Duration::from_secs(2),
        "the sender was not slowed"
    );
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

fn set_telemetry_quota(node: &Node, megabytes: Option<u32>) {
    let body = json!({"quotas": {"telemetry_megabytes": megabytes}});
    let (status, answer) = ask(node, "PUT", "namespaces/acme", body);
    assert_eq!(status, 200, "{answer}");
}

/// A report of 100,000 bytes that cannot be compressed well.
fn long_report(n: u16) -> Publish {
    let mut state = u64::from(n) + 1;
    let mut letter = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'a' + ((state >> 33) % 26) as u8)
    };
    let text: String = (0..100_000).map(|_| letter()).collect();
    let payload = json!({"text": text}).to_string();
    Publish::new("v1/devices/me/telemetry", payload).qos(1, n)
}

#[test]
fn telemetry_beyond_the_quota_is_rejected_also_after_a_crash() {
    if !own_node() {
        return;
    }
    let mut node = Node::start(&["--shards", "2"]);
    let room = set_up(&node, json!({"telemetry_megabytes": 1}));
    let others = json!([{"type": "token", "token": "token-of-another"}]);
    for (path, body) in [
        ("products/other", json!({})),
        (
            "devices/other-1",
            json!({"product": "other", "credentials": others}),
        ),
    ] {
        let (status, answer) = ask(&node, "PUT", path, body);
        assert!(status < 300, "{path}: {answer}");
    }
    assert_eq!(usage(&node, "telemetry_megabytes"), (0, Some(1)));
    let (mut device, reason) = connect_device(&node, 5);
    assert_eq!(reason, 0);
    let mut n = 0;
    let mut report = |device: &mut Raw| {
        n += 1;
        device.send_publish(&long_report(n));
        device.recv(kind::PUBACK).reason
    };
    for _ in 0..10 {
        assert!(report(&mut device) < 0x80);
    }
    // The mailbox has acknowledged the last message before it was stored and counted.
    eventually("the stored telemetry is just over the quota", || {
        usage(&node, "telemetry_megabytes") == (2, Some(1))
    });
    assert_eq!(report(&mut device), 0x97);

    node.crash();
    node.restart();
    let (mut device, reason) = connect_device(&node, 5);
    assert_eq!(reason, 0);
    assert_eq!(report(&mut device), 0x97, "from the first message on");
    assert_eq!(usage(&node, "telemetry_megabytes").0, 2);
    // Everything else goes on, and so do other namespaces.
    device.send_publish(&Publish::new("v1/devices/me/attributes", r#"{"a":1}"#).qos(1, 7));
    assert!(device.recv(kind::PUBACK).reason < 0x80);
    let post = |token: &str| {
        let path = format!("/api/v1/{token}/telemetry");
        send(&node, "", "POST", &path, &json!({"t": 1}))
    };
    let refused = post(TOKEN);
    assert_eq!(refused.status, 507, "{}", refused.body);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("telemetry_megabytes"), "{detail}");
    assert_eq!(post("token-of-another").status, 200);
    // Data at an endpoint is relayed, and the device is told that it is not stored.
    let mut receiver = RelayClient::connect(&node, &room);
    let mut pump = RelayClient::connect(&node, &room);
    pump.send_text(r#"{"type":"identify","deviceId":"d"}"#);
    assert_eq!(pump.expect_json()["type"], "identified");
    pump.send_text(r#"{"t":1}"#);
    assert_eq!(receiver.expect_text(), r#"{"t":1}"#);
    let warning = pump.expect_json();
    assert_eq!(warning["code"], "DATA_NOT_STORED", "{warning}");

    set_telemetry_quota(&node, Some(3));
    eventually("there is room", || report(&mut device) < 0x80);
    // Before version 5, a refusal ends the connection.
    set_telemetry_quota(&node, Some(0));
    let (mut old, reason) = connect_device(&node, 4);
    assert_eq!(reason, 0);
    old.send_publish(&long_report(1));
    old.expect_closed();
    set_telemetry_quota(&node, None);
    assert_eq!(post(TOKEN).status, 200);
    assert_eq!(usage(&node, "telemetry_megabytes").1, None);
}
