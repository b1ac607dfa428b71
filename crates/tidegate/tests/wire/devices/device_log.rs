//! The log of a product's messages: what devices say and what they are told, as documents for a sink.

use serde_json::{Value, json};

use super::{api, connect, get, login, product, with_token};
use crate::support::{Connect, Node, eventually, unique};

const NOTHING: Value = Value::Null;

/// A node whose product `p` logs into a file.
fn node(storage: Value) -> Node {
    let node = Node::start(&[]);
    let put = |path: &str, body: Value| {
        let (status, answer) = api(&node, "PUT", path, &body);
        assert!(matches!(status, 200 | 201), "{path}: {answer}");
    };
    put("connectors/disk", json!({"type": "file"}));
    put(
        "sinks/log",
        json!({"connector": "disk", "file": "log.jsonl"}),
    );
    let mut whole = json!({"device_log": true, "log_sinks": ["log"]});
    for (key, value) in storage.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    product(
        &node,
        "p",
        json!({"mode": "sync", "gateway": true, "storage": whole,
            "provisioning": {"mode": "allow_new", "key": "new-meters", "secret": "0123456789abcdef"}}),
    );
    node
}

fn log(node: &Node) -> Vec<Value> {
    let file = node.data_dir().join("sinks/files/log.jsonl");
    // It is made with the first row.
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Direction, device, topic and payload of so many messages.
fn logged(node: &Node, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    eventually("the messages are logged", || {
        found = log(node);
        found.len() >= count
    });
    let mut lines: Vec<String> = found
        .iter()
        .map(|row| {
            assert_eq!(
                (&row["kind"], &row["productId"]),
                (&json!("log"), &json!("p"))
            );
            assert!(
                row["timestamp"]
                    .as_u64()
                    .is_some_and(|ms| ms > 1_700_000_000_000)
            );
            let text = |key: &str| row[key].as_str().unwrap().to_owned();
            format!(
                "{} {} {} {}",
                text("direction"),
                text("deviceId"),
                text("topic"),
                text("payload")
            )
        })
        .collect();
    // Both ways are logged by threads of their own.
    lines.sort_unstable();
    lines
}

#[test]
fn messages_from_and_to_devices_are_logged() {
    let node = node(json!({}));
    with_token(&node, "d", "p", NOTHING);
    let mut raw = connect(&node, "d");
    for filter in ["attributes", "attributes/response/+", "rpc/request/+"] {
        raw.subscribe(&format!("v1/devices/me/{filter}"), 1);
    }
    raw.publish_qos1("v1/devices/me/telemetry", r#"{"t":1}"#, 1);
    let request_body =
        json!({"method": "reset", "params": [1], "timeout_ms": 20_000, "wait": false});
    assert_eq!(
        api(&node, "POST", "devices/d/commands", &request_body).0,
        202
    );
    let packet = raw.recv_packet();
    assert_eq!(packet.topic, "v1/devices/me/rpc/request/1");
    raw.acknowledge(&packet);
    raw.publish_qos1("v1/devices/me/rpc/response/1", "{}", 2);
    let rate = json!({"rate": 5});
    assert_eq!(
        api(&node, "PUT", "devices/d/attributes/shared", &rate).0,
        204
    );
    let packet = raw.recv_packet();
    raw.acknowledge(&packet);
    raw.publish_qos1(
        "v1/devices/me/attributes/request/7",
        r#"{"sharedKeys":"rate"}"#,
        3,
    );
    let packet = raw.recv_packet();
    raw.acknowledge(&packet);
    // What a device is claimed with is its owner's.
    raw.publish_qos1("v1/devices/me/claim", r#"{"secretKey":"hidden"}"#, 4);
    assert_eq!(
        logged(&node, 7),
        [
            r#"down d v1/devices/me/attributes {"rate":5}"#,
            r#"down d v1/devices/me/attributes/response/7 {"shared":{"rate":5}}"#,
            r#"down d v1/devices/me/rpc/request/1 {"method":"reset","params":[1]}"#,
            r#"up d v1/devices/me/attributes/request/7 {"sharedKeys":"rate"}"#,
            "up d v1/devices/me/claim ***",
            "up d v1/devices/me/rpc/response/1 {}",
            r#"up d v1/devices/me/telemetry {"t":1}"#,
        ]
    );
    // Nobody listens where this would be told.
    let (mut deaf, _) = login(&node, &Connect::new(5, unique("c")).username("token-d"));
    drop(raw);
    eventually("one connection is left", || {
        let clients = get(&node, "clients");
        clients["data"].as_array().unwrap().len() == 1
    });
    assert_eq!(
        api(
            &node,
            "PUT",
            "devices/d/attributes/shared",
            &json!({"rate": 6})
        )
        .0,
        204
    );
    deaf.publish_qos1("v1/devices/me/telemetry", r#"{"t":2}"#, 1);
    let last = logged(&node, 8);
    assert_eq!(
        (last.len(), &*last[7]),
        (8, r#"up d v1/devices/me/telemetry {"t":2}"#)
    );
}

#[test]
fn gateways_and_devices_of_http_are_logged_without_secrets_and_cut() {
    let node = node(json!({"log_payload_bytes": 24}));
    with_token(&node, "g", "p", NOTHING);
    with_token(&node, "c", "p", json!({"parent": "g"}));
    let mut raw = connect(&node, "g");
    raw.subscribe("v1/gateway/attributes", 1);
    raw.publish_qos1("v1/gateway/connect", r#"{"device":"c"}"#, 1);
    eventually("it is here", || super::state(&node, "c") == "online");
    assert_eq!(
        api(
            &node,
            "PUT",
            "devices/c/attributes/shared",
            &json!({"a": "é€"})
        )
        .0,
        204
    );
    let packet = raw.recv_packet();
    raw.acknowledge(&packet);
    let whole = String::from_utf8(packet.payload.clone()).unwrap();
    assert_eq!(
        logged(&node, 2),
        [
            format!("down g v1/gateway/attributes {}", &whole[..24]),
            r#"up g v1/gateway/connect {"device":"c"}"#.to_owned(),
        ]
    );
    let rows = log(&node);
    let cut = rows.iter().find(|row| row["direction"] == "down").unwrap();
    assert_eq!(cut["payloadBytes"], whole.len());
    drop(raw);
    // By HTTP: a command that is fetched, and a device that is registered and told its token.
    let request_body = json!({"provisionDeviceKey": "new-meters",
        "provisionDeviceSecret": "0123456789abcdef", "deviceName": "n"});
    let (status, made) = api(&node, "POST", "provision", &request_body);
    assert_eq!(status, 200, "{made}");
    let token = made["credentialsValue"].as_str().unwrap();
    let (mut new, _) = login(&node, &Connect::new(5, unique("c")).username("provision"));
    new.subscribe("/provision/response", 1);
    let mut other = request_body.clone();
    other["deviceName"] = "m".into();
    new.publish("/provision/request", other.to_string());
    let reply = new.recv_packet();
    let reply: Value = serde_json::from_slice(&reply.payload).unwrap();
    let call = json!({"method": "on", "wait": false, "timeout_ms": 20_000});
    assert_eq!(api(&node, "POST", "devices/n/commands", &call).0, 202);
    assert_eq!(api(&node, "GET", &format!("{token}/rpc"), &NOTHING).0, 200);
    let lines = logged(&node, 3).join("\n");
    assert!(
        lines.contains("down n v1/devices/me/rpc/request/1 "),
        "{lines}"
    );
    for secret in [
        token,
        reply["credentialsValue"].as_str().unwrap(),
        "0123456789abcdef",
    ] {
        assert!(!lines.contains(secret), "{lines}");
    }
}
