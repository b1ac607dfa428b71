//! Requests about a device that is connected to another node than that which is asked.

use std::sync::LazyLock;
use std::thread::{JoinHandle, spawn};

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::devices::{connected, device, login, name, product, put};
use super::support::{Cluster, get};
use crate::api::{ApiResponse, send, send_text};
use crate::devices::api_at;
use crate::support::{Node, Raw, eventually, kind};

/// Sends a request in a thread of its own, because the answer waits for the device.
fn sending(node: &Node, path: String, body: Value) -> JoinHandle<(u16, Value)> {
    let address = node.address("http").to_owned();
    spawn(move || api_at(&address, "POST", &path, &body))
}

pub(super) fn post(node: &Node, path: &str) -> ApiResponse {
    send(node, "", "POST", &format!("/api/v1/{path}"), &Value::Null)
}

pub(super) fn read(node: &Node, path: &str) -> Value {
    let answer = get(node, &format!("/api/v1/{path}"));
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

/// A time of the last minute, since rows older than the retention are rejected. The same in all calls.
fn time_ms(offset_ms: u64) -> u64 {
    static BEGIN_MS: LazyLock<u64> = LazyLock::new(|| now_ms() - 60_000);
    *BEGIN_MS + offset_ms
}

fn report(raw: &mut Raw, offset_ms: u64, values: &Value) {
    let row = json!({"ts": time_ms(offset_ms), "values": values});
    raw.publish_qos1("v1/devices/me/telemetry", row.to_string(), 1);
}

#[test]
fn any_node_knows_where_a_device_is_and_sends_it_commands() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("cmd");
    assert_eq!(device(a, &id, &product).status, 201);
    let mut raw = connected(b, &id);
    raw.subscribe("v1/devices/me/rpc/request/+", 1);
    for node in &cluster.nodes {
        let known = read(node, &format!("devices/{id}"));
        assert_eq!(
            (&known["state"], &known["node"]),
            (&json!("online"), &json!("node-2"))
        );
        let listed = read(node, &format!("devices?text={id}&state=online"));
        assert_eq!(listed["data"][0]["id"], json!(id));
        assert_eq!(listed["missing_nodes"], json!([]));
        let offline = read(node, &format!("devices?text={id}&state=offline&sort=id"));
        assert_eq!(offline["data"], json!([]));
    }
    // A command of node 1, answered by the device at node 2, read at node 3.
    let call = json!({"method": "reboot", "params": {"delay_s": 3}, "timeout_ms": 20_000});
    let caller = sending(a, format!("devices/{id}/commands"), call);
    let packet = raw.recv(kind::PUBLISH);
    raw.acknowledge(&packet);
    let number = packet.topic.rsplit('/').next().expect("a number");
    assert!(number.parse::<u32>().is_ok(), "{number}");
    raw.publish(
        &format!("v1/devices/me/rpc/response/{number}"),
        r#"{"ok":true}"#,
    );
    let (status, ended) = caller.join().unwrap();
    assert_eq!(
        (status, &ended["state"]),
        (200, &json!("success")),
        "{ended}"
    );
    assert_eq!(ended["result"], json!({"ok": true}));
    let listed = read(c, &format!("devices/{id}/commands"));
    assert_eq!(listed["data"][0]["id"], ended["id"]);
    assert_eq!(listed["data"][0]["node"], "node-2");
    let again = read(c, &format!("commands/{}", ended["id"]));
    assert_eq!(again["state"], "success");
    let cancelled = post(c, &format!("commands/{}/cancel", ended["id"]));
    assert_eq!(cancelled.status, 409, "{}", cancelled.body);
}

#[test]
fn attributes_are_those_of_the_node_of_the_device() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("attr");
    assert_eq!(device(a, &id, &product).status, 201);
    let mut raw = connected(b, &id);
    raw.publish_qos1("v1/devices/me/attributes", r#"{"firmware":"1.2"}"#, 1);
    let path = format!("devices/{id}/attributes");
    let set = put(a, &format!("{path}/server"), &json!({"limit": 80}));
    assert_eq!(set.status, 204, "{}", set.body);
    for node in [a, b, c] {
        eventually("the node answers with the attributes of the device", || {
            let client = read(node, &format!("{path}/client"));
            client["data"][0]["value"] == "1.2"
        });
        let server = read(node, &format!("{path}/server"));
        assert_eq!(server["data"][0]["value"], 80);
    }
    // Also after it has disconnected.
    drop(raw);
    eventually("the device is offline", || {
        read(a, &format!("devices/{id}"))["state"] == "offline"
    });
    assert_eq!(read(c, &format!("{path}/server"))["data"][0]["value"], 80);
}

#[test]
fn attributes_follow_a_device_that_moves() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("moving");
    assert_eq!(device(a, &id, &product).status, 201);
    let path = format!("devices/{id}/attributes");
    let mut raw = connected(a, &id);
    raw.publish_qos1("v1/devices/me/attributes", r#"{"firmware":"1.2"}"#, 1);
    let set = put(c, &format!("{path}/shared"), &json!({"interval_s": 10}));
    assert_eq!(set.status, 204, "{}", set.body);
    drop(raw);
    let mut number = 0;
    for node in [b, c, a] {
        let mut raw = connected(node, &id);
        raw.subscribe("v1/devices/me/attributes/response/+", 0);
        eventually("the device gets its attributes", || {
            number += 1;
            let topic = format!("v1/devices/me/attributes/request/{number}");
            raw.publish(
                &topic,
                r#"{"clientKeys":"firmware","sharedKeys":"interval_s"}"#,
            );
            let packet = raw.recv(kind::PUBLISH);
            let answer: Value = serde_json::from_slice(&packet.payload).unwrap();
            answer == json!({"client": {"firmware": "1.2"}, "shared": {"interval_s": 10}})
        });
    }
    // A change at the node where the device is, which was made through another one, reaches it once.
    let mut raw = connected(b, &id);
    raw.subscribe("v1/devices/me/attributes", 1);
    for interval_s in [20, 30] {
        let shared = json!({"interval_s": interval_s});
        let set = put(c, &format!("{path}/shared"), &shared);
        assert_eq!(set.status, 204, "{}", set.body);
        let packet = raw.recv(kind::PUBLISH);
        raw.acknowledge(&packet);
        let pushed: Value = serde_json::from_slice(&packet.payload).unwrap();
        assert_eq!(pushed, shared);
    }
}

#[test]
fn waiting_commands_follow_a_device_that_moves() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("waits");
    assert_eq!(device(a, &id, &product).status, 201);
    drop(connected(a, &id));
    eventually("the device is offline", || {
        read(c, &format!("devices/{id}"))["state"] == "offline"
    });
    let mut sent = Vec::new();
    for method in ["first", "second"] {
        let call = json!({"method": method, "wait": false, "expires_in_s": 600});
        let path = format!("devices/{id}/commands");
        let (status, accepted) = api_at(b.address("http"), "POST", &path, &call);
        assert_eq!(
            (status, &accepted["state"]),
            (202, &json!("pending")),
            "{accepted}"
        );
        assert_eq!(
            read(c, &format!("commands/{}", accepted["id"]))["state"],
            "pending"
        );
        sent.push(accepted["id"].clone());
    }
    let mut raw = connected(c, &id);
    raw.subscribe("v1/devices/me/rpc/request/+", 1);
    for (method, number) in ["first", "second"].into_iter().zip(&sent) {
        let packet = raw.recv(kind::PUBLISH);
        raw.acknowledge(&packet);
        let call: Value = serde_json::from_slice(&packet.payload).unwrap();
        assert_eq!(call["method"], method);
        let topic = packet.topic.replace("request", "response");
        raw.publish(&topic, r#"{"ok":true}"#);
        eventually("the command has ended", || {
            read(a, &format!("commands/{number}"))["state"] == "success"
        });
    }
    eventually("all commands are at the node of the device", || {
        let listed = read(b, &format!("devices/{id}/commands"));
        let rows = listed["data"].as_array().unwrap();
        rows.len() == 2 && rows.iter().all(|row| row["node"] == "node-3")
    });
}

#[test]
fn telemetry_of_a_device_that_has_moved_is_complete() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("moved");
    assert_eq!(device(a, &id, &product).status, 201);
    report(&mut connected(a, &id), 1000, &json!({"x": 1, "y": 1}));
    report(&mut connected(b, &id), 2000, &json!({"x": 2}));
    report(&mut connected(a, &id), 3000, &json!({"x": 3}));
    let path = format!("devices/{id}/telemetry");
    for node in [a, b, c] {
        eventually("the rows of all nodes are there", || {
            let rows = read(node, &path);
            let rows = rows["rows"].as_array().unwrap();
            rows.iter()
                .map(|row| row["values"]["x"].clone())
                .eq([1, 2, 3])
        });
        let newest = read(node, &format!("{path}?order=desc&rows=2"));
        assert_eq!(newest["rows"][1]["ts_ms"], time_ms(2000));
        assert_eq!(newest["is_truncated"], true);
        let latest = read(node, &format!("{path}/latest"));
        assert_eq!(latest["values"]["x"]["value"], 3);
        assert_eq!(latest["values"]["y"]["ts_ms"], time_ms(1000));
        assert_eq!(latest["missing_nodes"], json!([]));
        let query = json!({
            "devices": [id], "keys": ["x"], "from_ms": time_ms(0), "functions": ["avg", "max"],
        });
        let (status, intervals) = api_at(node.address("http"), "POST", "telemetry/query", &query);
        assert_eq!(status, 200, "{intervals}");
        assert_eq!(
            intervals["data"][0]["values"],
            json!({"avg": 2.0, "max": 3}),
            "{intervals}"
        );
        assert_eq!(read(node, "device-counts")["missing_nodes"], json!([]));
    }
    let deleted = send(c, "", "DELETE", &format!("/api/v1/{path}"), &Value::Null);
    assert_eq!(deleted.status, 204, "{}", deleted.body);
    assert_eq!(read(b, &path)["rows"], json!([]));
}

#[test]
fn alarms_of_all_nodes_are_listed_and_acknowledged_at_any() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let rule = json!({
        "id": "hot", "raise": [{"severity": "MAJOR", "when": {"key": "t", "is": ">", "value": 60}}],
    });
    let product = product(&cluster.nodes, &json!({"alarms": [rule]}));
    let ids = [name("hot"), name("hot")];
    for (node, id) in [a, b].into_iter().zip(&ids) {
        assert_eq!(device(c, id, &product).status, 201);
        report(&mut connected(node, id), 1000, &json!({"t": 70}));
    }
    let list = format!("alarms?product={product}");
    for node in [a, b, c] {
        eventually("the alarms of both devices are listed", || {
            read(node, &list)["data"].as_array().unwrap().len() == 2
        });
        let mut nodes: Vec<_> = read(node, &format!("{list}&sort=severity"))["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|alarm| alarm["node"].as_str().unwrap().to_owned())
            .collect();
        nodes.sort();
        assert_eq!(nodes, ["node-1", "node-2"]);
    }
    // Page by page, at alternating nodes.
    let first = read(a, &format!("{list}&limit=1"));
    let next = first["next"].as_str().expect("a second page");
    let second = read(b, &format!("{list}&limit=1&after={next}"));
    assert_ne!(first["data"][0]["id"], second["data"][0]["id"]);
    assert_eq!(second["data"].as_array().unwrap().len(), 1);
    // Acknowledged and cleared at the node that has neither.
    for alarm in [&first["data"][0], &second["data"][0]] {
        let number = &alarm["id"];
        let acknowledged = post(c, &format!("alarms/{number}/acknowledge"));
        assert_eq!(acknowledged.status, 200, "{}", acknowledged.body);
        let cleared = post(c, &format!("alarms/{number}/clear"));
        assert_eq!(cleared.body["state"], "CLEARED_ACK", "{}", cleared.body);
        let named = format!("alarms/{number}?node={}", alarm["node"].as_str().unwrap());
        assert_eq!(read(c, &named)["state"], "CLEARED_ACK");
    }
    assert_eq!(post(c, "alarms/1/acknowledge").status, 404);
    let (_, reason) = login(a, &ids[0]);
    assert_eq!(reason, 0);
}

#[test]
fn intervals_of_another_node_may_be_more_than_one_message() {
    // With texts of 300 bytes more than the 7 MiB of one message, and few enough for a slow machine.
    const ROWS: u64 = 25_000;
    let text = |at: u64| format!("{at:0>300}");
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, _] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("many");
    assert_eq!(device(a, &id, &product).status, 201);
    let begin_ms = time_ms(0) - ROWS;
    let lines = (0..ROWS).map(|at| {
        let values = json!({"x": text(at), "y": at as f64 / 8.0});
        format!(
            "{}\n",
            json!({"device": id, "ts_ms": begin_ms + at, "values": values})
        )
    });
    let lines: String = lines.collect();
    let path = "/api/v1/imports?kind=telemetry";
    let job = send_text(b, path, "application/x-ndjson", &lines);
    assert_eq!(job.status, 202, "{}", job.body);
    let job = format!("jobs/{}", job.body["id"].as_str().unwrap());
    eventually("the rows are stored", || {
        read(b, &job)["state"] != "running"
    });
    let query = json!({
        "devices": [id], "keys": ["x", "y"], "from_ms": begin_ms, "interval_ms": 1,
        "functions": ["last"],
    });
    let (status, intervals) = api_at(a.address("http"), "POST", "telemetry/query", &query);
    assert_eq!(status, 200, "{}", intervals["detail"]);
    assert_eq!(intervals["missing_nodes"], json!([]));
    let rows = intervals["data"].as_array().unwrap();
    assert_eq!(rows.len() as u64, 2 * ROWS);
    for (at, row) in (0..ROWS).chain(0..ROWS).zip(rows) {
        assert_eq!(row["ts_ms"], begin_ms + at);
        let expected = match row["key"] == "x" {
            true => json!(text(at)),
            false => json!(at as f64 / 8.0),
        };
        assert_eq!(row["values"]["last"], expected, "{row}");
    }
}
