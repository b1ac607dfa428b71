//! A node with more connections than the others, whose clients are disconnected so that they connect to these.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::support::{Cluster, change_drain, durable, get, nats_or_skip, status};
use crate::api::{ApiResponse, send};
use crate::support::{Connect, Node, Raw, eventually, kind, unique};

const USE_ANOTHER_SERVER: u8 = 0x9c;
const PATH: &str = "/api/v1/cluster/rebalance";

fn change(node: &Node, method: &str) -> ApiResponse {
    send(node, "", method, PATH, &Value::Null)
}

/// What a node says of itself or another one.
fn seen(by: &Node, name: &str) -> Value {
    let answer = get(by, PATH);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let nodes = answer.body["nodes"].as_array().unwrap().iter();
    let mut named = nodes.filter(|node| node["node"] == name);
    named.next().expect("the node").clone()
}

fn clients(node: &Node, count: usize) -> Vec<Raw> {
    (0..count).map(|_| Raw::client(node, 5)).collect()
}

fn ctl(node: &Node, arguments: &[&str]) -> (String, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["ctl", "--data-dir"])
        .arg(node.data_dir())
        .args(["cluster", "rebalance"])
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.success())
}

/// The clients that were told to connect to another server.
fn take_disconnected(clients: &mut Vec<Raw>) -> usize {
    let before = clients.len();
    clients.retain_mut(|client| {
        let packet = client.try_recv_unless_closed(Duration::from_millis(50));
        if let Some(packet) = &packet {
            let told = (packet.kind, packet.reason);
            assert_eq!(told, (kind::DISCONNECT, USE_ANOTHER_SERVER), "{packet:?}");
        }
        packet.is_none()
    });
    before - clients.len()
}

#[test]
fn clients_of_a_full_node_connect_to_the_others_and_durable_sessions_stay() {
    let Some(cluster) = Cluster::start_or_skip(3) else {
        return;
    };
    let [first, second, third] = &cluster.nodes[..] else {
        panic!("three nodes");
    };
    let nothing = change(second, "POST");
    assert_eq!(nothing.status, 409, "{}", nothing.body);
    let (text, has_succeeded) = ctl(second, &[]);
    assert!(
        !has_succeeded && text.contains("Nothing is to be done"),
        "{text}"
    );

    let bound = |_| Raw::connect(first, &durable(&unique("stays-")));
    let mut bound: Vec<_> = (0..3).map(bound).collect();
    let mut movable = clients(first, 15);
    let plan = seen(second, "node-1");
    let number = |field: &str| plan[field].as_u64();
    assert_eq!(number("connections"), Some(18), "{plan}");
    assert_eq!(number("bound"), Some(3), "{plan}");
    assert_eq!(number("target"), Some(6), "{plan}");
    assert_eq!(seen(second, "node-3")["after"], 6);
    let (text, has_succeeded) = ctl(third, &["--dry-run"]);
    assert!(has_succeeded && text.contains("12 too many"), "{text}");

    let begun = change(second, "POST");
    assert_eq!(begun.status, 200, "{}", begun.body);
    assert_eq!(begun.body["is_running"], true);
    let again = change(third, "POST");
    assert_eq!(again.status, 409, "{}", again.body);
    let detail = again.body["detail"].as_str().unwrap();
    assert!(detail.contains("running at node-1"), "{detail}");
    eventually("the members show the target", || {
        let status = status(third);
        let mut members = status["members"].as_array().unwrap().iter();
        members.any(|member| member["node"] == "node-1" && member["rebalance_target"] == 6)
    });
    // These have not read their DISCONNECT, and count no longer.
    eventually("node-1 has disconnected as many as it had too many", || {
        seen(third, "node-1")["connections"] == 6
    });
    assert_eq!(take_disconnected(&mut movable), 12);
    let mut moved = clients(second, 6);
    moved.extend(clients(third, 6));
    eventually("the end", || {
        seen(second, "node-1")["run"]["state"] == "reached"
    });
    assert_eq!(seen(second, "node-1")["run"]["disconnected"], 12);
    for client in bound.iter_mut().chain(&mut movable).chain(&mut moved) {
        client.ping();
    }
    let nothing = change(first, "POST");
    assert_eq!(nothing.status, 409, "{}", nothing.body);
    let detail = nothing.body["detail"].as_str().unwrap();
    assert!(detail.contains("the average of 6."), "{detail}");
}

#[test]
fn a_rebalancing_is_cancelled_at_any_node_and_ended_by_a_drain() {
    let Some(nats) = nats_or_skip() else {
        return;
    };
    let cluster = Cluster::start_with(nats, "tidegate", 3, &["cluster.drain_rate=1"]);
    let [first, second, third] = &cluster.nodes[..] else {
        panic!("three nodes");
    };
    let disconnected = || seen(second, "node-1")["run"]["disconnected"].as_u64();
    let state = || seen(second, "node-1")["run"]["state"].clone();
    let mut clients: Vec<_> = (0..12)
        .map(|_| Raw::connect(first, &Connect::new(5, unique("c"))))
        .collect();
    assert_eq!(change(third, "POST").status, 200);
    eventually("the first client is disconnected", || {
        disconnected() >= Some(1)
    });
    assert_eq!(change(third, "DELETE").status, 204);
    assert_eq!(state(), "cancelled");
    let count = disconnected().unwrap() as usize;
    assert!(count < 8, "{count}");
    assert_eq!(take_disconnected(&mut clients), count);
    assert_eq!(seen(second, "node-1")["connections"], 12 - count as u64);
    assert_eq!(change(third, "DELETE").status, 204, "nothing is running");

    assert_eq!(change(first, "POST").status, 200);
    assert_eq!(change_drain(second, "POST", "node-1").status, 204);
    eventually("the drain takes its place", || state() == "drained");
    assert_eq!(seen(second, "node-1")["exclusion"], "draining");
    let nothing = change(second, "POST");
    assert_eq!(nothing.status, 409, "{}", nothing.body);
}
