//! A node whose clients are disconnected before it is stopped.

use super::support::{Cluster, change_drain, get, status};
use crate::support::{Connect, Node, Props, Raw, eventually, kind, unique};

const SERVER_UNAVAILABLE: u8 = 0x88;
const SERVER_SHUTTING_DOWN: u8 = 0x8b;
const SESSION_EXPIRY_INTERVAL: u8 = 0x11;

fn is_draining(node: &Node, name: &str) -> bool {
    let status = status(node);
    let mut members = status["members"].as_array().unwrap().iter();
    members.any(|member| member["node"] == name && member["is_draining"] == true)
}

#[test]
fn a_drained_node_disconnects_its_clients_and_keeps_their_sessions_reachable() {
    let Some(cluster) = Cluster::start_or_skip(2) else {
        return;
    };
    let [first, second] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    let durable = Connect::new(5, unique("stays-"))
        .persistent()
        .properties(Props::new().u32(SESSION_EXPIRY_INTERVAL, 600));
    let mut client = Raw::connect(second, &durable);
    client.subscribe("drain/t", 1);
    let unknown = change_drain(first, "POST", "node-9");
    assert_eq!(unknown.status, 404, "{}", unknown.body);

    let begun = change_drain(first, "POST", "node-2");
    assert_eq!(begun.status, 204, "{}", begun.body);
    client.expect_disconnect(SERVER_SHUTTING_DOWN);
    assert_eq!(get(second, "/readyz").status, 503);
    eventually("both nodes show the drain", || {
        is_draining(first, "node-2") && is_draining(second, "node-2")
    });
    eventually("the client is counted", || {
        status(second)["drain"]["disconnected"] == 1
    });
    let mut rejected = Raw::open(second, 5);
    let connack = rejected.hand_shake(&durable);
    assert_eq!(connack.kind, kind::CONNACK);
    assert_eq!(connack.reason, SERVER_UNAVAILABLE);

    // The session is still at the node, and is reached over the other one.
    let (mut client, connack) = Raw::connect_for_connack(first, &durable);
    assert!(connack.session_present);
    let mut publisher = Raw::client(first, 5);
    publisher.publish_qos1("drain/t", "x", 1);
    let message = client.recv_message("drain/t", "x");
    client.acknowledge(&message);

    assert_eq!(change_drain(first, "DELETE", "node-2").status, 204);
    assert_eq!(get(second, "/readyz").status, 200);
    assert!(status(second)["drain"].is_null());
    Raw::client(second, 5).ping();
    client.ping();
}
