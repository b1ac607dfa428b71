//! Devices that are registered at one node and known at all.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{Cluster, get, reachable, status};
use crate::api::{ApiResponse, send, send_text};
use crate::support::{Connect, Node, Raw, eventually, kind, unique};

const SUCCESS: u8 = 0;

pub(super) fn name(prefix: &str) -> String {
    unique(prefix).replace('/', "-")
}

pub(super) fn put(node: &Node, path: &str, body: &Value) -> ApiResponse {
    send(node, "", "PUT", &format!("/api/v1/{path}"), body)
}

fn delete(node: &Node, path: &str) -> ApiResponse {
    send(node, "", "DELETE", &format!("/api/v1/{path}"), &Value::Null)
}

/// Creates a product at a node, and waits until all have it.
pub(super) fn product(nodes: &[Node], product: &Value) -> String {
    let id = name("p");
    let created = put(&nodes[0], &format!("products/{id}"), product);
    assert_eq!(created.status, 201, "{}", created.body);
    for node in nodes {
        eventually("the node has the product", || {
            get(node, &format!("/api/v1/products/{id}")).status == 200
        });
    }
    id
}

/// Writes a device with the token `token-` and its id.
pub(super) fn device(node: &Node, id: &str, product: &str) -> ApiResponse {
    let token = json!([{"type": "token", "token": format!("token-{id}")}]);
    let device = json!({"product": product, "credentials": token});
    put(node, &format!("devices/{id}"), &device)
}

pub(super) fn login(node: &Node, id: &str) -> (Raw, u8) {
    let connect = Connect::new(5, id).username(format!("token-{id}"));
    let mut raw = Raw::open(node, connect.version);
    let connack = raw.hand_shake(&connect);
    (raw, connack.reason)
}

/// The device, connected to a node.
pub(super) fn connected(node: &Node, id: &str) -> Raw {
    let (raw, reason) = login(node, id);
    assert_eq!(reason, SUCCESS);
    raw
}

/// Whether a client with the device's token is accepted as the device.
fn is_accepted(node: &Node, id: &str) -> bool {
    let (raw, reason) = login(node, id);
    let client = get(node, &format!("/api/v1/clients/{id}"));
    drop(raw);
    reason == SUCCESS && client.body["device"] == id
}

/// What the node says about a device.
fn known(node: &Node, id: &str) -> ApiResponse {
    get(node, &format!("/api/v1/devices/{id}"))
}

#[test]
fn a_device_of_one_node_connects_at_all_at_once() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("d");
    for node in &cluster.nodes {
        assert!(!is_accepted(node, &id));
    }
    assert_eq!(device(&cluster.nodes[0], &id, &product).status, 201);
    // The answer waits for the nodes that can be reached.
    for node in &cluster.nodes {
        assert!(is_accepted(node, &id));
        let here = known(node, &id);
        assert_eq!(
            here.body["version"],
            known(&cluster.nodes[0], &id).body["version"]
        );
    }
    // A change at another node disconnects the device wherever it is.
    let (mut raw, _) = login(&cluster.nodes[0], &id);
    let disabled = json!({"product": product, "enabled": false});
    let changed = put(&cluster.nodes[1], &format!("devices/{id}"), &disabled);
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert!(
        raw.recv_unless_closed()
            .is_none_or(|packet| packet.kind == kind::DISCONNECT)
    );
    for node in &cluster.nodes {
        assert!(!is_accepted(node, &id));
    }
    assert_eq!(
        delete(&cluster.nodes[2], &format!("devices/{id}")).status,
        204
    );
    for node in &cluster.nodes {
        assert_eq!(known(node, &id).status, 404);
    }
}

#[test]
fn an_import_at_one_node_arrives_at_the_others_while_they_serve() {
    const DEVICES: usize = 20_000;
    let Some(cluster) = Cluster::start_or_skip(2) else {
        return;
    };
    let product = product(&cluster.nodes, &json!({}));
    let lines = (0..DEVICES).map(|number| {
        format!("{{\"id\":\"i{number}\",\"product\":\"{product}\",\"credentials\":[{{\"type\":\"token\",\"token\":\"token-i{number}\"}}]}}\n")
    });
    let lines: String = lines.collect();
    let path = "/api/v1/imports?kind=devices";
    let job = send_text(&cluster.nodes[0], path, "application/x-ndjson", &lines);
    assert_eq!(job.status, 202, "{}", job.body);
    let other = &cluster.nodes[1];
    let mut slowest = Duration::ZERO;
    let mut last = Raw::client(other, 5);
    let topic = unique("serve/");
    last.subscribe(&topic, 0);
    eventually("all devices have arrived", || {
        let begun = Instant::now();
        let mut publisher = Raw::client(other, 5);
        publisher.publish_qos1(&topic, "x", 1);
        last.recv_message(&topic, "x");
        slowest = slowest.max(begun.elapsed());
        get(other, "/api/v1/device-counts").body["devices"] == DEVICES
    });
    assert!(is_accepted(other, "i0"));
    assert!(is_accepted(other, &format!("i{}", DEVICES - 1)));
    println!("slowest message during the import: {slowest:?}");
}

#[test]
fn devices_survive_the_node_that_has_registered_them() {
    let Some(mut cluster) = Cluster::start_or_skip(3) else {
        return;
    };
    let product = product(&cluster.nodes, &json!({}));
    let [kept, changed, removed, added] = ["kept", "changed", "removed", "added"];
    for id in [kept, changed, removed] {
        assert_eq!(device(&cluster.nodes[0], id, &product).status, 201);
    }
    // No node has seen the device, so each answers with what it has itself.
    let attributes = format!("devices/{kept}/attributes/server");
    let set = put(&cluster.nodes[0], &attributes, &json!({"limit": 80}));
    assert_eq!(set.status, 204, "{}", set.body);
    let limit = |node: &Node| {
        let found = get(node, &format!("/api/v1/{attributes}"));
        found.body["data"][0]["value"].clone()
    };
    for node in &cluster.nodes {
        eventually("the node has the attribute", || limit(node) == 80);
    }
    cluster.nodes[0].signal(libc::SIGKILL);
    assert!(cluster.nodes[0].wait(Duration::from_secs(10)).is_some());
    for node in &cluster.nodes[1..] {
        for id in [kept, changed, removed] {
            assert!(is_accepted(node, id));
        }
    }
    eventually("the end of the node is noticed", || {
        reachable(&status(&cluster.nodes[1])).len() == 2
    });
    let renamed = json!({"product": product, "name": "renamed"});
    assert_eq!(
        put(&cluster.nodes[1], "devices/changed", &renamed).status,
        200
    );
    let set = put(&cluster.nodes[2], &attributes, &json!({"limit": 70}));
    assert_eq!(set.status, 204, "{}", set.body);
    assert_eq!(delete(&cluster.nodes[2], "devices/removed").status, 204);
    assert_eq!(device(&cluster.nodes[2], added, &product).status, 201);
    assert!(is_accepted(&cluster.nodes[1], added));

    cluster.nodes[0].start_again();
    cluster.wait_until_connected();
    let returned = &cluster.nodes[0];
    eventually("the returned node has what was changed", || {
        known(returned, changed).body["name"] == "renamed"
            && known(returned, removed).status == 404
            && is_accepted(returned, added)
    });
    assert!(is_accepted(returned, kept));
    eventually("the returned node has the later value", || {
        limit(returned) == 70
    });
}
