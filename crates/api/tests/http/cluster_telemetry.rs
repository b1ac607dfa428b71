//! Telemetry and alarms of a device with parts at several nodes, read at one of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::TelemetryCopyPlace;
use devices::alarm::{Severity, SqlRuleAlarm};
use serde_json::{Value, json};
use store::ExpectedVersion;

use crate::access::{bearer, send};
use crate::client::{HttpResponse, get, request};
use crate::events::{open, read_until};
use crate::fake::{FakeCluster, FakeState, Server};
use crate::memory_telemetry::MemoryTelemetry;

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const DEVICE: &str = "pump";

/// Three nodes with the same device.
struct FakeNodes {
    states: Vec<Arc<FakeState>>,
    telemetry: Vec<Arc<MemoryTelemetry>>,
    servers: Vec<Server>,
}

impl FakeNodes {
    async fn start() -> Self {
        let states: Vec<_> = NODES.iter().map(|_| FakeState::with_clients(0)).collect();
        let telemetry = NODES.map(|_| Arc::new(MemoryTelemetry::of_device(DEVICE)));
        let mut servers = Vec::new();
        for (at, state) in states.iter().enumerate() {
            let others = (0..NODES.len()).filter(|other| *other != at);
            let others = others.map(|other| (NODES[other], Some(states[other].clone())));
            let cluster = FakeCluster::new(NODES[at], others.collect());
            assert!(state.cluster.set(cluster).is_ok());
            assert!(state.telemetry.set(telemetry[at].clone()).is_ok());
            servers.push(Server::start(state).await);
        }
        for server in &servers {
            let objects = &server.objects;
            let put = objects.put("product", "meter", json!({}), ExpectedVersion::Any);
            put.unwrap();
            let device = json!({"id": DEVICE, "product": "meter"});
            let created = send(server, "", "POST", "/api/v1/devices", &device).await;
            assert_eq!(created.status, 201, "{}", created.body);
        }
        Self {
            states,
            telemetry: telemetry.into(),
            servers,
        }
    }

    async fn get(&self, node: usize, path: &str) -> HttpResponse {
        get(self.servers[node].address, path).await
    }

    fn set_reachable(&self, node: usize, is_reachable: bool) {
        let is_unreachable = &self.states[node].is_unreachable;
        is_unreachable.store(!is_reachable, Ordering::SeqCst);
    }

    /// A node keeps a copy of the telemetry of another one, and all know it.
    fn keep_copy(&self, holder: usize, node: &str, is_complete: bool) -> Arc<MemoryTelemetry> {
        let (copy, key) = (MemoryTelemetry::of_device(DEVICE), format!("{node}-1"));
        let copy = Arc::new(copy);
        self.telemetry[holder].keep_copy(&key, copy.clone(), is_complete);
        for state in &self.states {
            let cluster = state.cluster.get().unwrap();
            let mut copies = cluster.copies.lock().unwrap();
            copies.retain(|copy| copy.key != key);
            copies.push(TelemetryCopyPlace {
                key: key.clone(),
                node: node.to_owned(),
                holder: NODES[holder].to_owned(),
                is_orphan: false,
                sent_ms: 1,
            });
        }
        copy
    }

    fn raise(&self, node: usize, kind: &str, at_ms: u64) {
        let server = &self.servers[node];
        let device = server.registry.device(DEVICE).unwrap().unwrap();
        let alarm = SqlRuleAlarm {
            kind: kind.to_owned(),
            severity: Severity::Major,
            is_cleared: false,
            at_ms,
            details: String::new(),
            rule: "rule".to_owned(),
            tag: 0,
        };
        server.alarms.submit_sql_rule_alarm(&device, alarm);
    }
}

fn export_path(more: &str) -> String {
    format!("/api/v1/devices/{DEVICE}/telemetry/export?{more}")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_has_the_rows_of_all_nodes_in_order() {
    let nodes = FakeNodes::start().await;
    // More than a page of each node, and values of one time at two nodes.
    const ROWS: i64 = 13_000;
    for ts_ms in 0..ROWS {
        let node = (ts_ms % 7 % 3) as usize;
        nodes.telemetry[node].store(ts_ms, &json!({"x": ts_ms, "f": ts_ms as f64 / 7.0}));
        if ts_ms % 100 == 0 {
            nodes.telemetry[(node + 1) % 3].store(ts_ms, &json!({"y": "a"}));
        }
    }
    for at in 0..NODES.len() {
        let file = nodes.get(at, &export_path("")).await;
        assert_eq!(file.status, 200, "{}", file.body);
        let mut lines = chunked(&file);
        let last = lines.pop();
        assert_eq!(last.as_deref(), Some(""));
        assert_eq!(lines.len() as i64, ROWS);
        for (ts_ms, line) in lines.iter().enumerate() {
            let mut values = json!({"x": ts_ms, "f": ts_ms as f64 / 7.0});
            if ts_ms % 100 == 0 {
                values["y"] = "a".into();
            }
            let row = json!({"ts_ms": ts_ms, "values": values});
            assert_eq!(*line, row.to_string());
        }
        let file = nodes
            .get(at, &export_path("format=csv&keys=y,x&to_ms=3"))
            .await;
        let lines = chunked(&file);
        assert_eq!(lines, ["ts_ms,y,x\r", "0,a,0\r", "1,,1\r", "2,,2\r", ""]);
    }
    let path = format!("/api/v1/devices/{DEVICE}/telemetry?rows=3&order=desc");
    let rows = nodes.get(1, &path).await;
    assert_eq!(rows.json()["rows"][0]["ts_ms"], ROWS - 1);
}

/// The lines of a body in chunks.
fn chunked(answer: &HttpResponse) -> Vec<String> {
    assert!(answer.has("transfer-encoding: chunked"), "{}", answer.head);
    let mut body = String::new();
    let mut rest = &answer.body[..];
    loop {
        let (length, after) = rest.split_once("\r\n").unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            break;
        }
        body.push_str(&after[..length]);
        rest = &after[length + 2..];
    }
    body.split('\n').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_without_the_rows_of_a_node_fails_and_names_it() {
    let nodes = FakeNodes::start().await;
    nodes.telemetry[0].store(1, &json!({"x": 1}));
    nodes.set_reachable(2, false);
    let failed = nodes.get(0, &export_path("")).await;
    assert_eq!(failed.status, 503, "{}", failed.body);
    assert!(failed.problem().contains("\"node-3\""), "{}", failed.body);
    nodes.set_reachable(2, true);
    let file = nodes.get(0, &export_path("")).await;
    assert_eq!(file.status, 200, "{}", file.body);
    let absent = nodes.get(0, "/api/v1/devices/none/telemetry/export").await;
    assert_eq!(absent.status, 404, "{}", absent.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_thingsboard_read_the_telemetry_of_all_nodes() {
    let nodes = FakeNodes::start().await;
    nodes.telemetry[0].store(1000, &json!({"x": 1, "y": 1}));
    nodes.telemetry[1].store(2000, &json!({"x": 2}));
    nodes.telemetry[2].store(3000, &json!({"x": 6, "z": "last"}));
    let base = format!("/api/plugins/telemetry/DEVICE/{DEVICE}");
    for at in 0..NODES.len() {
        let keys = nodes.get(at, &format!("{base}/keys/timeseries")).await;
        assert_eq!(keys.json(), json!(["x", "y", "z"]));
        let latest = nodes
            .get(at, &format!("{base}/values/timeseries?keys=x,y"))
            .await;
        let expected =
            json!({"x": [{"ts": 3000, "value": "6"}], "y": [{"ts": 1000, "value": "1"}]});
        assert_eq!(latest.json(), expected);
        let range = format!("{base}/values/timeseries?keys=x&startTs=0&endTs=9000");
        let rows = nodes.get(at, &format!("{range}&limit=2")).await;
        let times = rows.json()["x"].clone();
        assert_eq!(
            (&times[0]["ts"], &times[1]["ts"]),
            (&json!(3000), &json!(2000))
        );
        assert_eq!(times.as_array().unwrap().len(), 2);
        let average = nodes.get(at, &format!("{range}&agg=AVG")).await;
        assert_eq!(average.json()["x"], json!([{"ts": 4500, "value": "3.0"}]));
        assert!(!average.head.contains("tidegate-missing-nodes"));
    }
    nodes.set_reachable(2, false);
    let latest = nodes
        .get(1, &format!("{base}/values/timeseries?keys=x"))
        .await;
    assert_eq!(latest.json()["x"][0]["ts"], 2000);
    assert!(
        latest.has("tidegate-missing-nodes: node-3"),
        "{}",
        latest.head
    );
    nodes.set_reachable(2, true);
    // Deleted at all nodes.
    let path = format!("{base}/timeseries/delete?keys=x&deleteAllDataForKeys=true");
    let deleted = request(nodes.servers[1].address, "DELETE", &path, "", "").await;
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    let keys = nodes.get(0, &format!("{base}/keys/timeseries")).await;
    assert_eq!(keys.json(), json!(["y", "z"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_link_shows_what_all_nodes_have() {
    let nodes = FakeNodes::start().await;
    nodes.telemetry[1].store(1000, &json!({"x": 1}));
    nodes.telemetry[2].store(2000, &json!({"x": 3}));
    nodes.raise(0, "hot", 5000);
    let sources = json!([
        {"type": "telemetry", "device": DEVICE, "keys": ["x"]},
        {"type": "devices", "device": DEVICE},
        {"type": "alarms", "device": DEVICE},
    ]);
    let card =
        json!({"id": "c", "kind": "status", "x": 0, "y": 0, "w": 6, "h": 4, "sources": sources});
    let server = &nodes.servers[0];
    let dashboard = json!({"id": "plant", "name": "Plant", "cards": [card]});
    let created = send(server, "", "POST", "/api/v1/dashboards", &dashboard).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let path = "/api/v1/dashboards/plant/shares";
    let link = send(server, "", "POST", path, &json!({"description": "wall"})).await;
    assert_eq!(link.status, 201, "{}", link.body);
    let token = link.json()["token"].as_str().unwrap().to_owned();
    let read = async || {
        let path = "/api/v1/kiosk/cards/c/data?from_ms=0&to_ms=9000";
        let read = request(server.address, "GET", path, &bearer(&token), "").await;
        assert_eq!(read.status, 200, "{}", read.body);
        read.json()
    };
    let mut data = read().await;
    for _ in 0..200 {
        if data["sources"][2]["alarms"][0]["type"] == "hot" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        data = read().await;
    }
    assert_eq!(data["sources"][2]["alarms"][0]["type"], "hot", "{data}");
    let telemetry = &data["sources"][0];
    assert_eq!(telemetry["latest"][0]["values"]["x"]["value"], 3);
    assert_eq!(telemetry["intervals"][0]["values"]["avg"], 2.0);
    assert_eq!(data["missing_nodes"], Value::Null);
    nodes.set_reachable(2, false);
    let data = read().await;
    assert_eq!(data["sources"][0]["latest"][0]["values"]["x"]["value"], 1);
    // Whoever has the link does not learn names of nodes.
    assert_eq!(data["missing_nodes"], json!(["another node"]));
    let path = "/api/v1/dashboards/plant/cards/c/data?from_ms=0&to_ms=9000";
    let data = send(server, "", "GET", path, &Value::Null).await.json();
    assert_eq!(data["missing_nodes"], json!(["node-3"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_stream_has_the_rows_of_all_nodes() {
    let nodes = FakeNodes::start().await;
    let path = format!("/api/v1/devices/{DEVICE}/telemetry/live");
    let mut stream = open(&nodes.servers[0], &path, "").await;
    read_until(&mut stream, ": connected").await;
    assert_eq!(nodes.telemetry[1].watchers(), 1);
    for (at, telemetry) in nodes.telemetry.iter().enumerate() {
        telemetry.store(1000 + at as i64, &json!({"x": at}));
        let row = format!("\"ts_ms\":{},\"values\":{{\"x\":{at}}}", 1000 + at);
        let read = read_until(&mut stream, &row).await;
        assert!(read.contains("\"device\":\"pump\""), "{read}");
    }
    // A second stream, of another node, gets each row once.
    let mut other = open(&nodes.servers[1], &path, "").await;
    read_until(&mut other, ": connected").await;
    nodes.telemetry[2].store(5000, &json!({"x": 5}));
    nodes.telemetry[1].store(6000, &json!({"x": 6}));
    for stream in [&mut stream, &mut other] {
        let mut read = read_until(stream, "\"ts_ms\":6000").await;
        if !read.contains("\"ts_ms\":5000") {
            read += &read_until(stream, "\"ts_ms\":5000").await;
        }
        assert_eq!(read.matches("\"ts_ms\"").count(), 2, "{read}");
    }
    // A node that goes is named, and so is its return.
    nodes.set_reachable(1, false);
    read_until(&mut stream, "\"missing_nodes\":[\"node-2\"]").await;
    nodes.telemetry[2].store(7000, &json!({"x": 7}));
    read_until(&mut stream, "\"ts_ms\":7000").await;
    nodes.set_reachable(1, true);
    read_until(&mut stream, "\"missing_nodes\":[]").await;
    nodes.telemetry[1].store(8000, &json!({"x": 8}));
    read_until(&mut stream, "\"ts_ms\":8000").await;
    // Nothing is watched for a stream that has ended.
    drop((stream, other));
    for _ in 0..1000 {
        if nodes
            .telemetry
            .iter()
            .all(|telemetry| telemetry.watchers() == 0)
        {
            return;
        }
        for telemetry in &nodes.telemetry {
            telemetry.store(9000, &json!({"x": 9}));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nodes still watch for ended streams");
}

#[tokio::test(flavor = "multi_thread")]
async fn alarms_of_all_nodes_are_streamed_and_listed_for_thingsboard() {
    let nodes = FakeNodes::start().await;
    let path = format!("/api/v1/alarm-events?device={DEVICE}&type=hot");
    let mut stream = open(&nodes.servers[0], &path, "").await;
    read_until(&mut stream, ": connected").await;
    nodes.raise(1, "cold", 1000);
    nodes.raise(1, "hot", 2000);
    let read = read_until(&mut stream, "\"node\":\"node-2\"").await;
    assert!(
        read.contains("event: raised") && !read.contains("cold"),
        "{read}"
    );
    nodes.raise(0, "hot", 3000);
    read_until(&mut stream, "\"node\":\"node-1\"").await;
    // Lists contain the alarms that the node has, which are those of all devices; these nodes do not exchange them.
    nodes.raise(0, "cold", 1000);
    nodes.raise(0, "dry", 2000);
    nodes.raise(0, "wet", 4000);
    let list = "/api/alarms?pageSize=3&page=0";
    let mut page = nodes.get(0, list).await.json();
    for _ in 0..200 {
        if page["data"][0]["type"] == "wet" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        page = nodes.get(0, list).await.json();
    }
    let types = |page: &Value| -> Vec<String> {
        let rows = page["data"].as_array().unwrap().iter();
        rows.map(|row| row["type"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(types(&page), ["wet", "hot", "dry"]);
    assert_eq!(page["hasNext"], true);
    let second = nodes.get(0, "/api/alarms?pageSize=3&page=1").await.json();
    assert_eq!(
        (types(&second), &second["hasNext"]),
        (vec!["cold".to_owned()], &json!(false))
    );
    let highest = format!("/api/alarm/highestSeverity/DEVICE/{DEVICE}");
    assert_eq!(nodes.get(0, &highest).await.json(), "MAJOR");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_answers_for_a_node_that_does_not() {
    let nodes = FakeNodes::start().await;
    let copy = nodes.keep_copy(1, NODES[2], true);
    // A page of rows is read from the node, and the rest from the copy.
    const ROWS: i64 = 7000;
    for ts_ms in 0..ROWS {
        let values = json!({"x": ts_ms});
        nodes.telemetry[2].store(ts_ms, &values);
        copy.store(ts_ms, &values);
    }
    nodes.telemetry[0].store(ROWS, &json!({"x": ROWS}));
    let base = format!("/api/v1/devices/{DEVICE}/telemetry");
    let query = json!({
        "devices": [DEVICE], "keys": ["x"], "from_ms": 0, "to_ms": 2 * ROWS,
        "functions": ["count", "sum"],
    });
    let check = async |missing: &Value, export_status: u16| {
        // The second one has the copy itself.
        for at in 0..2 {
            let rows = nodes.get(at, &format!("{base}?rows=10000")).await;
            assert_eq!(rows.status, 200, "{}", rows.body);
            let rows = rows.json();
            let times = rows["rows"].as_array().unwrap().iter();
            let times: Vec<_> = times.map(|row| row["ts_ms"].as_i64().unwrap()).collect();
            assert_eq!(times, Vec::from_iter(0..=ROWS));
            assert_eq!(rows["missing_nodes"], *missing);
            let latest = nodes.get(at, &format!("{base}/latest")).await.json();
            assert_eq!(latest["values"]["x"]["value"], ROWS);
            assert_eq!(latest["missing_nodes"], *missing);
            let server = &nodes.servers[at];
            let intervals = send(server, "", "POST", "/api/v1/telemetry/query", &query).await;
            let intervals = intervals.json();
            let sum = (ROWS * (ROWS + 1) / 2) as f64;
            let expected = json!({"count": ROWS + 1, "sum": sum});
            assert_eq!(intervals["data"][0]["values"], expected);
            assert_eq!(intervals["missing_nodes"], *missing);
            let export = nodes.get(at, &export_path("")).await;
            assert_eq!(export.status, export_status, "{}", export.body);
        }
    };
    check(&json!([]), 200).await;
    nodes.set_reachable(2, false);
    check(&json!([]), 200).await;
    // What the copy has is used, although something may be missing.
    nodes.telemetry[1].keep_copy("node-3-1", copy.clone(), false);
    check(&json!(["node-3"]), 503).await;
    // The node answers again: its copy is not read.
    nodes.set_reachable(2, true);
    copy.store(3 * ROWS, &json!({"x": 1}));
    check(&json!([]), 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_copy_of_a_node_that_is_gone_is_read() {
    let nodes = FakeNodes::start().await;
    nodes.telemetry[0].store(1, &json!({"x": 1}));
    // What it lacks is nowhere else, so that nobody is missing.
    let copy = nodes.keep_copy(2, "node-9", false);
    copy.store(2, &json!({"x": 2}));
    let base = format!("/api/v1/devices/{DEVICE}/telemetry");
    for at in 0..3 {
        let rows = nodes.get(at, &base).await.json();
        assert_eq!(rows["rows"].as_array().unwrap().len(), 2, "{rows}");
        assert_eq!(rows["missing_nodes"], json!([]));
        let latest = nodes.get(at, &format!("{base}/latest")).await.json();
        assert_eq!(latest["values"]["x"]["value"], 2);
        let export = nodes.get(at, &export_path("")).await;
        assert_eq!(chunked(&export).len(), 3);
    }
    // With the node that has it, it is missing.
    nodes.set_reachable(2, false);
    let rows = nodes.get(0, &base).await.json();
    assert_eq!(rows["rows"].as_array().unwrap().len(), 1);
    assert_eq!(rows["missing_nodes"], json!(["node-3", "node-9"]));
}
