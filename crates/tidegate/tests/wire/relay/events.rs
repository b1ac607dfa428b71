//! Events of relay endpoints for rules.

use serde_json::{Value, json};

use super::{RelayClient, ask, new_endpoint};
use crate::api::own_node;
use crate::support::{Connect, Node, Raw, kind};

fn put_rule(node: &Node, name: &str, sql: &str) -> (u16, Value) {
    let actions = json!([{"kind": "republish", "topic": "out"}]);
    let rule = json!({"sql": sql, "actions": actions});
    ask(node, "PUT", &format!("rules/{name}"), rule)
}

fn next_event(subscriber: &mut Raw) -> Value {
    let message = subscriber.recv(kind::PUBLISH);
    serde_json::from_slice(&message.payload).unwrap()
}

#[test]
fn rules_get_events_of_connections_and_their_devices() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let mut subscriber = Raw::connect(&node, &Connect::new(4, "subscriber"));
    subscriber.subscribe("out", 0);
    let id = new_endpoint(&node, json!({"mode": "custom_header", "header": "> "}));
    let other = new_endpoint(&node, json!({}));
    let sql = format!("SELECT * FROM \"$events/relay/+\" WHERE topic = '$relay/{id}'");
    let (status, answer) = put_rule(&node, "r", &sql);
    assert_eq!(status, 201, "{answer}");
    let _unwatched = RelayClient::connect(&node, &other);
    let mut peer = RelayClient::connect(&node, &id);
    let connected = next_event(&mut subscriber);
    assert_eq!(connected["event"], "relay.connected", "{connected}");
    assert_eq!(connected["endpoint_id"], id, "{connected}");
    assert_eq!(connected["namespace"], "default", "{connected}");
    let address = connected["peer_address"].as_str().unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{connected}");
    assert_eq!(connected["connected_at"], connected["timestamp"]);
    assert_eq!(connected["device_id"], json!(null), "{connected}");

    let mut device = RelayClient::connect(&node, &id);
    let connection = next_event(&mut subscriber)["connection_id"].clone();
    let identify = json!({"type": "identify", "deviceId": "pump"}).to_string();
    device.send_text(&identify);
    let db_id = device.expect_json()["dbDeviceId"].clone();
    let identified = next_event(&mut subscriber);
    assert_eq!(identified["event"], "relay.identified", "{identified}");
    assert_eq!(identified["connection_id"], connection, "{identified}");
    assert_eq!(identified["device_id"], "pump", "{identified}");
    assert_eq!(identified["db_device_id"], db_id, "{identified}");

    device.send_text("hello");
    assert_eq!(peer.expect_text(), "> hello");
    peer.send_text("answer");
    assert_eq!(device.expect_text(), "> answer");
    device.0.send_frame(super::CLOSE, &1000_u16.to_be_bytes());
    let gone = next_event(&mut subscriber);
    for (field, expected) in [
        ("event", json!("relay.disconnected")),
        ("connection_id", connection),
        ("device_id", json!("pump")),
        ("reason", json!("normal")),
        ("messages_in", json!(2)),
        ("bytes_in", json!(identify.len() + "hello".len())),
        ("messages_out", json!(1)),
        ("bytes_out", json!("> answer".len())),
    ] {
        assert_eq!(gone[field], expected, "{field} of {gone}");
    }
    let times = ["timestamp", "connected_at", "duration_ms"].map(|name| gone[name].as_u64());
    assert_eq!(times[0].unwrap() - times[1].unwrap(), times[2].unwrap());
}

#[test]
fn unknown_fields_of_relay_events_are_errors_with_a_suggestion() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    for (sql, expected) in [
        (
            "SELECT endpoint FROM \"$events/relay/connected\"",
            "endpoint_id",
        ),
        (
            "SELECT * FROM \"$events/relay/conected\"",
            "$events/relay/connected",
        ),
        ("SELECT endpoint_id FROM \"t\"", "unknown field"),
    ] {
        let (status, answer) = put_rule(node, "relay-events", sql);
        assert_eq!(status, 422, "{sql}: {answer}");
        assert!(answer.to_string().contains(expected), "{sql}: {answer}");
    }
}
