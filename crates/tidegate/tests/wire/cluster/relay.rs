//! Relay endpoints whose connections are at different nodes.

use serde_json::{Value, json};

use super::support::{Cluster, get};
use crate::relay::{BINARY, RelayClient, ask, new_endpoint};
use crate::support::{Node, eventually, unique};

/// Creates an endpoint at the first node, and waits until all nodes have it.
fn endpoint(cluster: &Cluster, definition: Value) -> String {
    let id = new_endpoint(&cluster.nodes[0], definition);
    wait_for(cluster, &format!("endpoints/{id}"));
    id
}

fn wait_for(cluster: &Cluster, object: &str) {
    for node in &cluster.nodes {
        let path = format!("/api/v1/{object}");
        eventually(&format!("all nodes have {object}"), || {
            get(node, &path).status == 200
        });
    }
}

fn create(node: &Node, object: &str, definition: Value) {
    let (status, answer) = ask(node, "PUT", object, definition);
    assert_eq!(status, 201, "{answer}");
}

#[test]
fn messages_reach_the_connections_at_all_nodes_in_order_and_not_their_sender() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let id = endpoint(cluster, json!({"mode": "direct"}));
    let mut clients: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| RelayClient::join(node, &id))
        .collect();
    let large: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    for sender in 0..clients.len() {
        for number in 0..100 {
            clients[sender].send_text(&format!("{sender} {number}"));
        }
        clients[sender].0.send_frame(BINARY, &large);
        for (at, client) in clients.iter_mut().enumerate() {
            if at == sender {
                // Nothing was sent back.
                client.synchronise();
                continue;
            }
            for number in 0..100 {
                assert_eq!(client.expect_text(), format!("{sender} {number}"));
            }
            assert_eq!(client.receive(), Some((BINARY, large.clone())));
        }
    }
}

#[test]
fn each_node_wraps_messages_of_other_nodes() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let id = endpoint(cluster, json!({"mode": "json"}));
    let mut receiver = RelayClient::join(&cluster.nodes[1], &id);
    let mut sender = RelayClient::join(&cluster.nodes[2], &id);
    sender.send_text(r#"{"type":"x","data":[1],"timestamp":5}"#);
    let whole = json!({"type": "message", "data": [1], "timestamp": 5});
    assert_eq!(receiver.expect_json(), whole);
    sender.send_text("plain");
    let wrapped = receiver.expect_json();
    assert_eq!(wrapped["data"], "plain", "{wrapped}");
    assert!(wrapped["timestamp"].is_u64(), "{wrapped}");
}

#[test]
fn alerts_of_a_device_reach_the_connections_at_all_nodes() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let first = &cluster.nodes[0];
    let (product, notification) = (unique("oven-"), unique("alerts-"));
    let when = json!({"key": "t", "is": ">", "value": 80});
    let rule = json!({"id": "hot", "raise": [{"severity": "CRITICAL", "when": when}]});
    create(
        first,
        &format!("products/{product}"),
        json!({"alarms": [rule]}),
    );
    let id = endpoint(cluster, json!({"mode": "direct", "product": product}));
    let notification = format!("notifications/{notification}");
    create(first, &notification, json!({"to": {"endpoint": id}}));
    for object in [format!("products/{product}"), notification] {
        wait_for(cluster, &object);
    }

    let mut device = RelayClient::join(&cluster.nodes[1], &id);
    device.send_text(r#"{"type":"identify","deviceId":"oven-1"}"#);
    assert_eq!(device.expect_json()["type"], "identified");
    let mut page = RelayClient::join(&cluster.nodes[2], &id);
    device.send_text(r#"{"t":81}"#);
    // Nodes send each other messages and alerts separately, so either may arrive first.
    let mut texts = [page.expect_text(), page.expect_text()];
    texts.sort_unstable_by_key(|text| text.contains("alert"));
    let [message, alert_there] = texts;
    assert_eq!(message, r#"{"t":81}"#);
    let alert_there: Value = serde_json::from_str(&alert_there).unwrap();
    for alert in [device.expect_json(), alert_there] {
        assert_eq!(alert["type"], "alert", "{alert}");
        assert_eq!(alert["deviceId"], "oven-1", "{alert}");
    }
}
