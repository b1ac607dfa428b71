//! Exports and streams of what arrives at all nodes, and relay endpoints whose connections are at several.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::devices::{connected, device, name, product};
use super::support::{Cluster, get};
use crate::api::send;
use crate::devices::telemetry::EventStream;
use crate::relay::{RelayClient, new_endpoint, statistics};
use crate::support::{Node, Raw, eventually, temporary_directory};

fn report(raw: &mut Raw, ts_ms: u64, values: &Value) {
    let row = json!({"ts": ts_ms, "values": values});
    raw.publish_qos1("v1/devices/me/telemetry", row.to_string(), 1);
}

fn read(node: &Node, path: &str) -> Value {
    let answer = get(node, &format!("/api/v1/{path}"));
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

/// Reads a stream until an event has this value of a field, and returns it.
pub(super) fn event_with(stream: &mut EventStream, field: &str, value: &Value) -> Value {
    for _ in 0..100 {
        let event = stream.next();
        if event[field] == *value {
            return event;
        }
    }
    panic!("no event with {field} {value}");
}

#[test]
fn an_export_at_any_node_has_the_rows_of_all() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    let product = product(&cluster.nodes, &json!({}));
    let id = name("export");
    assert_eq!(device(a, &id, &product).status, 201);
    let begin_ms = now_ms() - 60_000;
    let mut expected = String::new();
    for (at, node) in [a, b, a, c].into_iter().enumerate() {
        let ts_ms = begin_ms + at as u64 * 1000;
        let values = json!({"n": at, "half": at as f64 / 2.0 + 0.1});
        report(&mut connected(node, &id), ts_ms, &values);
        let row = json!({"ts_ms": ts_ms, "values": values});
        expected += &format!("{row}\n");
    }
    let folder = temporary_directory();
    let export = |node: &Node, file: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["ctl", "--data-dir"])
            .arg(node.data_dir())
            .args(["telemetry", "export", &id])
            .arg(folder.join(file))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        folder.join(file)
    };
    for (at, node) in cluster.nodes.iter().enumerate() {
        eventually("the rows of all nodes are there", || {
            let rows = read(node, &format!("devices/{id}/telemetry"));
            rows["rows"].as_array().map(Vec::len) == Some(4)
        });
        let file = export(node, &format!("{at}.jsonl"));
        assert_eq!(std::fs::read_to_string(file).unwrap(), expected);
    }
    if cfg!(feature = "parquet") {
        let file = export(b, "all.parquet");
        let query = "SELECT round(sum(number), 3), count(integer), count(*) FROM read_parquet(?)";
        if let Some(text) = testkit::query_parquet(query, &file) {
            // 0 + 1 + 2 + 3, and 0.1 + 0.6 + 1.1 + 1.6.
            assert!(
                text.contains("9.4") && text.contains('4') && text.contains('8'),
                "{text}"
            );
        }
    }
    // As a job, and for callers of ThingsBoard's paths.
    let path = format!(
        "/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=n&startTs=0&endTs={}",
        now_ms()
    );
    let values = get(c, &path);
    let values = values.body["n"].as_array().unwrap().iter();
    let values: Vec<_> = values.map(|value| value["value"].clone()).collect();
    assert_eq!(values, ["3", "2", "1", "0"]);
    let input = json!({"kind": "telemetry", "devices": [id]});
    let job = send(b, "", "POST", "/api/v1/exports", &input);
    assert_eq!(job.status, 202, "{}", job.body);
    let job = format!("jobs/{}", job.body["id"].as_str().unwrap());
    eventually("the job has ended", || read(b, &job)["state"] == "done");
    assert_eq!(read(b, &job)["failed"], json!(0), "{}", read(b, &job));
}

#[test]
fn streams_at_one_node_show_what_arrives_at_others_also_after_these_return() {
    let Some(mut cluster) = Cluster::start_or_skip(3) else {
        return;
    };
    let rule = json!({
        "id": "hot", "raise": [{"severity": "MAJOR", "when": {"key": "t", "is": ">", "value": 60}}],
    });
    let product = product(&cluster.nodes, &json!({"alarms": [rule]}));
    let id = name("live");
    let [a, b, c] = &cluster.nodes[..] else {
        panic!("expected three nodes");
    };
    assert_eq!(device(a, &id, &product).status, 201);
    let mut rows = EventStream::open(a, &format!("devices/{id}/telemetry/live?keys=t"));
    let mut alarms = EventStream::open(a, &format!("alarm-events?device={id}"));
    let begin_ms = now_ms() - 60_000;
    for (at, node) in [b, c, a].into_iter().enumerate() {
        let ts_ms = begin_ms + at as u64 * 1000;
        report(
            &mut connected(node, &id),
            ts_ms,
            &json!({"t": at, "other": 1}),
        );
        let row = rows.next();
        let expected = json!({"device": id, "ts_ms": ts_ms, "values": {"t": at}});
        assert_eq!(row, expected);
    }
    report(&mut connected(b, &id), begin_ms + 10_000, &json!({"t": 70}));
    event_with(&mut rows, "ts_ms", &json!(begin_ms + 10_000));
    let raised = event_with(&mut alarms, "event", &json!("raised"));
    assert_eq!(
        (&raised["alarm"]["deviceId"], &raised["alarm"]["node"]),
        (&json!(id), &json!("node-2"))
    );

    cluster.nodes[1].signal(libc::SIGKILL);
    assert!(cluster.nodes[1].wait(Duration::from_secs(10)).is_some());
    for stream in [&mut rows, &mut alarms] {
        event_with(stream, "missing_nodes", &json!(["node-2"]));
    }
    let path = format!("/api/v1/devices/{id}/telemetry/export");
    let export = get(&cluster.nodes[0], &path);
    assert_eq!(export.status, 503, "{}", export.body);
    assert!(
        export.body["detail"].as_str().unwrap().contains("node-2"),
        "{}",
        export.body
    );
    report(
        &mut connected(&cluster.nodes[2], &id),
        begin_ms + 20_000,
        &json!({"t": 5}),
    );
    event_with(&mut rows, "ts_ms", &json!(begin_ms + 20_000));

    cluster.nodes[1].start_again();
    cluster.wait_until_connected();
    for stream in [&mut rows, &mut alarms] {
        event_with(stream, "missing_nodes", &json!([]));
    }
    report(
        &mut connected(&cluster.nodes[1], &id),
        begin_ms + 30_000,
        &json!({"t": 6}),
    );
    event_with(&mut rows, "ts_ms", &json!(begin_ms + 30_000));
}

#[test]
fn statistics_connections_and_messages_of_an_endpoint_are_those_of_all_nodes() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let id = new_endpoint(&cluster.nodes[0], json!({"mode": "direct"}));
    for node in &cluster.nodes {
        eventually("all nodes have the endpoint", || {
            get(node, &format!("/api/v1/endpoints/{id}")).status == 200
        });
    }
    let mut clients: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| RelayClient::join(node, &id))
        .collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send_text(&format!("text {at}"));
    }
    for client in &mut clients {
        // Those of the two others.
        client.expect_text();
        client.expect_text();
    }
    for node in &cluster.nodes {
        eventually("the messages are counted", || {
            let statistics = statistics(node, &id);
            statistics["total_messages"] == 3 && statistics["current_connections"] == 3
        });
        let listed = read(node, "endpoint-status?limit=1000");
        let rows = listed["data"].as_array().unwrap();
        let of_endpoint: Vec<_> = rows.iter().filter(|row| row["id"] == id.as_str()).collect();
        assert_eq!(of_endpoint.len(), 1);
        assert_eq!(of_endpoint[0]["total_connections"], 3);
        let messages = read(node, &format!("endpoints/{id}/messages"));
        let texts = messages.as_array().unwrap().iter();
        let mut texts: Vec<_> = texts
            .map(|row| (row["text"].clone(), row["node"].clone()))
            .collect();
        texts.sort_by_key(|(text, _)| text.to_string());
        let expected = ["text 0", "text 1", "text 2"].map(Value::from);
        let nodes = ["node-1", "node-2", "node-3"].map(Value::from);
        assert!(texts.into_iter().eq(expected.into_iter().zip(nodes)));
    }
    // A connection at node 3 is closed by node 1.
    let path = format!("endpoints/{id}/connections");
    let listed = read(&cluster.nodes[0], &path);
    let rows = listed["data"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    let there = rows.iter().find(|row| row["node"] == "node-3").unwrap();
    let connection = there["connection_id"].as_str().unwrap();
    let path = format!("/api/v1/{path}/{connection}");
    let closed = send(&cluster.nodes[0], "", "DELETE", &path, &Value::Null);
    assert_eq!(closed.status, 204, "{}", closed.body);
    assert_eq!(clients[2].expect_json()["code"], "DISCONNECTED");
    clients[2].expect_close();
    eventually("the connection is gone", || {
        send(&cluster.nodes[1], "", "DELETE", &path, &Value::Null).status == 404
    });
}
