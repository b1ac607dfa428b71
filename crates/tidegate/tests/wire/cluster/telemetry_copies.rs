//! Telemetry of a node that is down, or was lost, is answered from its copy at another one.

use std::time::Duration;

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::devices::{connected, device, name, product};
use super::support::{Cluster, evict, get, member_count, reachable, status};
use crate::api::send;
use crate::devices::api_at;
use crate::support::{Node, eventually};

const ROWS: u64 = 50;

fn read(node: &Node, path: &str) -> Value {
    let answer = get(node, &format!("/api/v1/{path}"));
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

/// What a node answers about the telemetry of some devices.
struct Answers {
    /// Values of `x`, one for each row.
    rows: Vec<u64>,
    /// `count` and `sum` of `x`.
    interval: Value,
    latest: Value,
    missing_nodes: Value,
    export: u16,
}

fn ask(node: &Node, id: &str) -> Answers {
    let rows = read(node, &format!("devices/{id}/telemetry"));
    let latest = read(node, &format!("devices/{id}/telemetry/latest"));
    let query =
        json!({"devices": [id], "keys": ["x"], "from_ms": 0, "functions": ["count", "sum"]});
    let (status, intervals) = api_at(node.address("http"), "POST", "telemetry/query", &query);
    assert_eq!(status, 200, "{intervals}");
    for other in [&latest, &intervals] {
        assert_eq!(other["missing_nodes"], rows["missing_nodes"]);
    }
    let of_row = |row: &Value| row["values"]["x"].as_u64().unwrap();
    Answers {
        rows: rows["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(of_row)
            .collect(),
        interval: intervals["data"][0]["values"].clone(),
        latest: latest["values"]["x"]["value"].clone(),
        missing_nodes: rows["missing_nodes"].clone(),
        export: get(node, &format!("/api/v1/devices/{id}/telemetry/export")).status,
    }
}

fn assert_complete(node: &Node, id: &str, count: u64) {
    let answers = ask(node, id);
    assert_eq!(answers.rows, Vec::from_iter(0..count), "{}", node.log());
    let sum = count * (count - 1) / 2;
    assert_eq!(answers.interval, json!({"count": count, "sum": sum}));
    assert_eq!(answers.latest, count - 1);
    assert_eq!(answers.missing_nodes, json!([]));
    assert_eq!(answers.export, 200);
}

fn kill(node: &Node) {
    node.signal(libc::SIGKILL);
    assert!(node.wait(Duration::from_secs(10)).is_some());
}

fn wait_until_complete(node: &Node) {
    eventually("another node has the telemetry", || {
        let copy = status(node)["telemetry_copy"].clone();
        copy["state"] == "complete" && copy["queued_bytes"] == 0
    });
}

#[test]
fn copied_telemetry_survives_the_loss_of_its_node() {
    let Some(mut cluster) = Cluster::start_or_skip(3) else {
        return;
    };
    let copied = product(&cluster.nodes, &json!({"storage": {"replicated": true}}));
    let other = product(&cluster.nodes, &json!({}));
    let (id, lone) = (name("copied"), name("lone"));
    let first = &cluster.nodes[0];
    assert_eq!(device(first, &id, &copied).status, 201);
    assert_eq!(device(first, &lone, &other).status, 201);
    let begin_ms = now_ms() - 60_000;
    let report = |node: &Node, id: &str, numbers: std::ops::Range<u64>| {
        let mut raw = connected(node, id);
        for number in numbers {
            let row = json!({"ts": begin_ms + number, "values": {"x": number}});
            raw.publish_qos1("v1/devices/me/telemetry", row.to_string(), 1);
        }
    };
    wait_until_complete(first);
    // One is deleted, and stored again.
    report(first, &id, 0..ROWS);
    let path = format!(
        "/api/v1/devices/{id}/telemetry?from_ms={}&to_ms={}",
        begin_ms + 7,
        begin_ms + 9
    );
    let deleted = send(first, "", "DELETE", &path, &Value::Null);
    assert_eq!(deleted.status, 204, "{}", deleted.body);
    report(first, &id, 7..9);
    report(first, &lone, 0..ROWS);
    eventually("the rows are stored", || {
        ask(first, &id).rows.len() as u64 == ROWS && ask(first, &lone).rows.len() as u64 == ROWS
    });
    wait_until_complete(first);
    let holder = status(first)["telemetry_copy"]["node"].clone();
    let kept = |node: &Node| status(node)["telemetry_copy"]["copies"].clone();
    let holders = cluster.nodes.iter().filter(|node| {
        let copies = kept(node);
        copies
            .as_array()
            .unwrap()
            .iter()
            .any(|copy| copy["node"] == "node-1")
    });
    let holders: Vec<_> = holders.map(|node| status(node)["node"].clone()).collect();
    assert_eq!(holders, [holder]);
    for node in &cluster.nodes {
        assert_complete(node, &id, ROWS);
        assert_complete(node, &lone, ROWS);
    }

    // Its node is down.
    kill(&cluster.nodes[0]);
    for node in &cluster.nodes[1..] {
        eventually("the end of the node is noticed", || {
            !reachable(&status(node)).contains(&"node-1".to_owned())
        });
        assert_complete(node, &id, ROWS);
        let answers = ask(node, &lone);
        assert_eq!(answers.missing_nodes, json!(["node-1"]));
        assert_eq!((answers.rows.len(), answers.export), (0, 503));
    }
    // The device goes on at another node.
    report(&cluster.nodes[1], &id, ROWS..ROWS + 10);
    for node in &cluster.nodes[1..] {
        eventually("the rows of another node are merged", || {
            ask(node, &id).rows.len() as u64 == ROWS + 10
        });
        assert_complete(node, &id, ROWS + 10);
    }

    // It returns: nothing is there twice.
    cluster.nodes[0].start_again();
    cluster.wait_until_connected();
    for node in &cluster.nodes {
        assert_complete(node, &id, ROWS + 10);
        assert_complete(node, &lone, ROWS);
    }
    report(&cluster.nodes[0], &id, ROWS + 10..ROWS + 20);
    for node in &cluster.nodes {
        wait_until_complete(node);
    }

    // It is lost for good.
    kill(&cluster.nodes[0]);
    let (second, third) = (&cluster.nodes[1], &cluster.nodes[2]);
    for node in [second, third] {
        eventually("the end of the node is noticed", || {
            reachable(&status(node)) == ["node-2", "node-3"]
        });
    }
    let answer = evict(second, "node-1");
    assert_eq!(answer.status, 204, "{}", answer.body);
    for node in [second, third] {
        eventually("the member is gone", || member_count(&status(node)) == 2);
        assert_complete(node, &id, ROWS + 20);
        assert_eq!(ask(node, &lone).missing_nodes, json!([]));
    }
    // Deletions apply to what is left of it.
    let path = format!("/api/v1/devices/{id}/telemetry?from_ms={}", begin_ms + 5);
    let deleted = send(third, "", "DELETE", &path, &Value::Null);
    assert_eq!(deleted.status, 204, "{}", deleted.body);
    for node in [second, third] {
        assert_complete(node, &id, 5);
    }
}
