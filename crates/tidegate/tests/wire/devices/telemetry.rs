//! What devices report, from MQTT into the time series and out of the API.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::{api, connect, get, latest, product, with_token};
use crate::support::{Node, Publish, WsStream, eventually, kind, upgrade};

const DEADLINE: Duration = Duration::from_secs(10);

fn metrics(node: &Node) -> String {
    let mut stream = TcpStream::connect(node.address("http")).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn each_protocol_is_stored_in_each_mode() {
    let node = Node::start(&[]);
    for mode in ["sync", "actor"] {
        let id = format!("d-{mode}");
        product(&node, mode, json!({"mode": mode}));
        with_token(&node, &id, mode, Value::Null);
        let mut raw = connect(&node, &id);
        raw.publish_qos1(
            "v1/devices/me/telemetry",
            json!({"tb": 21.5, "on": true}).to_string(),
            1,
        );
        raw.publish_qos1(
            &format!("/{mode}/{id}/properties/report"),
            json!({"messageId": "1", "properties": {"jet": 5, "name": "x"}}).to_string(),
            2,
        );
        raw.publish_qos1(
            &format!("tg/{id}/up/telemetry"),
            json!([{"ts": now_ms() - 60_000, "values": {"own": {"x": 1}}}]).to_string(),
            3,
        );
        eventually("all are stored", || {
            latest(&node, &id)
                == json!({"tb": 21.5, "on": true, "jet": 5, "name": "x", "own": {"x": 1}})
        });
    }
}

#[test]
fn intervals_keep_the_types_of_values_and_follow_the_calendar() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, "d1", "meter", Value::Null);
    let mut raw = connect(&node, "d1");
    // Berlin's last day of 23 hours before a year ago or so would be too old: any two days do.
    let noon_ms = now_ms() / 86_400_000 * 86_400_000 - 2 * 86_400_000 + 43_200_000;
    for hour in 0..24_u64 {
        let ts_ms = noon_ms + hour * 3_600_000;
        let text = if hour == 23 { "off" } else { "on" };
        let values = json!({"id": 9_007_199_254_740_993_u64, "state": text, "is_up": hour == 0, "load": [hour]});
        let row = json!({"ts": ts_ms, "values": values});
        raw.publish_qos1("v1/devices/me/telemetry", row.to_string(), 1);
    }
    let path = "devices/d1/telemetry/intervals";
    let query = format!("keys=id,state,is_up,load&from_ms={noon_ms}&functions=first,last,max,sum");
    let answer = get(&node, &format!("{path}?{query}"));
    let values = |key: &str| {
        let rows = answer["data"].as_array().unwrap().iter();
        let mut of_key = rows.filter(|row| row["key"] == key);
        let row = of_key.next().expect(key);
        assert_eq!(of_key.next(), None, "one interval: {answer}");
        row["values"].clone()
    };
    let id = 9_007_199_254_740_993_u64;
    assert_eq!(
        values("id"),
        json!({"first": id, "last": id, "max": id, "sum": 24 * id})
    );
    let state = json!({"first": "on", "last": "off", "max": null, "sum": null});
    assert_eq!(values("state"), state);
    let is_up = json!({"first": true, "last": false, "max": 1, "sum": 1});
    assert_eq!(values("is_up"), is_up);
    let load = json!({"first": [0], "last": [23], "max": null, "sum": null});
    assert_eq!(values("load"), load);
    // Without from_ms, the range begins with the first value.
    let all = get(&node, &format!("{path}?keys=id&functions=count"));
    let interval = &all["data"][0];
    assert_eq!(
        (&interval["ts_ms"], &interval["values"]["count"]),
        (&json!(noon_ms), &json!(24))
    );
    // Kiritimati is 14 hours ahead all year: its midnight is at 10 o'clock.
    let query = "keys=id&interval=day&time_zone=Pacific/Kiritimati&functions=count";
    let answer = get(&node, &format!("{path}?from_ms={noon_ms}&{query}"));
    let rows = answer["data"].as_array().unwrap().iter();
    let days: Vec<_> = rows
        .map(|row| {
            (
                row["ts_ms"].as_u64().unwrap(),
                row["values"]["count"].as_u64().unwrap(),
            )
        })
        .collect();
    let midnight_ms = noon_ms - 2 * 3_600_000;
    assert_eq!(days, [(midnight_ms, 22), (midnight_ms + 86_400_000, 2)]);
    for (query, named) in [
        ("interval=day&time_zone=Mars/Olympus", "Europe/Berlin"),
        ("interval=fortnight", "quarter"),
        ("interval=day&interval_ms=5", "either"),
        ("interval_ms=1", "from_ms"),
    ] {
        let (status, problem) = api(
            &node,
            "GET",
            &format!("{path}?keys=id&{query}"),
            &Value::Null,
        );
        assert_eq!(status, 400, "{query}: {problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains(named),
            "{query}: {problem}"
        );
    }
}

/// A stream of Server-Sent Events.
pub(crate) struct EventStream {
    stream: TcpStream,
    text: String,
}

impl EventStream {
    pub(crate) fn open(node: &Node, path: &str) -> Self {
        let mut stream = TcpStream::connect(node.address("http")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let request = format!("GET /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut live = Self {
            stream,
            text: String::new(),
        };
        // The head, and the first line, which says that it has begun.
        live.until("\r\n\r\n");
        live.until("\n");
        live
    }

    fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.text.find(end) {
                let rest = self.text.split_off(at + end.len());
                return std::mem::replace(&mut self.text, rest);
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes).unwrap();
            assert!(count > 0, "the stream has ended: {}", self.text);
            self.text += str::from_utf8(&bytes[..count]).unwrap();
        }
    }

    pub(crate) fn next(&mut self) -> Value {
        loop {
            let line = self.until("\n");
            if let Some(json) = line.strip_prefix("data: ") {
                return serde_json::from_str(json.trim_end()).unwrap();
            }
        }
    }
}

#[test]
fn rows_are_read_by_time_deleted_and_gone_with_their_device() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, "d1", "meter", Value::Null);
    let mut raw = connect(&node, "d1");
    let start_ms = now_ms() / 60_000 * 60_000 - 600_000;
    for n in 0..10_u64 {
        let row = json!({"ts": start_ms + n * 10_000, "values": {"n": n, "half": n as f64 / 2.0}});
        raw.publish_qos1("v1/devices/me/telemetry", row.to_string(), 1);
    }
    let path = "devices/d1/telemetry";
    let numbers = |query: &str| -> Vec<u64> {
        let answer = get(&node, &format!("{path}?{query}"));
        let rows = answer["rows"].as_array().unwrap().iter();
        rows.map(|row| row["values"]["n"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(numbers("keys=n"), (0..10).collect::<Vec<_>>());
    assert_eq!(numbers("order=desc&rows=3"), [9, 8, 7]);
    let (from_ms, to_ms) = (start_ms + 20_000, start_ms + 40_000);
    assert_eq!(numbers(&format!("from_ms={from_ms}&to_ms={to_ms}")), [2, 3]);
    let answer = get(
        &node,
        &format!(
            "{path}/intervals?keys=n&from_ms={start_ms}&to_ms={}&interval_ms=60000&functions=avg,min,max,sum,count,first,last",
            start_ms + 120_000
        ),
    );
    assert_eq!(
        answer["data"][0]["values"],
        json!({"avg": 2.5, "min": 0, "max": 5, "sum": 15, "count": 6, "first": 0, "last": 5})
    );
    assert_eq!(answer["data"][1]["values"]["count"], 4);
    let query = json!({"devices": ["d1"], "keys": ["half"], "from_ms": start_ms, "to_ms": start_ms + 120_000,
        "interval_ms": 120_000, "origin_ms": start_ms, "functions": ["max"], "merged": true});
    let (status, merged) = api(&node, "POST", "telemetry/query", &query);
    assert_eq!(
        (status, &merged["data"][0]["values"]["max"]),
        (200, &json!(4.5)),
        "{merged}"
    );
    let (status, _, csv) = super::ask(
        &node,
        (
            "GET",
            &format!("{path}/export?format=csv&keys=n,half&to_ms={from_ms}"),
        ),
        "",
        "",
    );
    assert_eq!(status, 200);
    assert!(
        csv.as_str().unwrap().contains(&format!(
            "ts_ms,n,half\r\n{start_ms},0,0.0\r\n{},1,0.5\r\n",
            start_ms + 10_000
        )),
        "{csv}"
    );
    assert_eq!(
        api(
            &node,
            "GET",
            &format!("{path}/export?format=csv"),
            &Value::Null
        )
        .0,
        400
    );
    // Gone are those of a time, then all of a key, then all.
    assert_eq!(
        api(
            &node,
            "DELETE",
            &format!("{path}?to_ms={from_ms}"),
            &Value::Null
        )
        .0,
        204
    );
    assert_eq!(numbers("keys=n"), (2..10).collect::<Vec<_>>());
    assert_eq!(
        api(&node, "DELETE", &format!("{path}?keys=half"), &Value::Null).0,
        204
    );
    assert_eq!(latest(&node, "d1"), json!({"n": 9}));
    assert_eq!(api(&node, "DELETE", "devices/d1", &Value::Null).0, 204);
    raw.packets_until_closed();
    assert_eq!(
        api(&node, "GET", &format!("{path}/latest"), &Value::Null).0,
        404
    );
    with_token(&node, "d1", "meter", Value::Null);
    assert_eq!(latest(&node, "d1"), json!({}));
}

#[test]
fn what_is_not_taken_is_shown_with_its_reason() {
    let node = Node::start(&[]);
    let model = json!({"properties": [
        {"id": "t", "name": "t", "valueType": {"type": "double", "min": -40, "max": 100}}]});
    product(
        &node,
        "meter",
        json!({"mode": "sync", "unknown_keys": "reject", "model": model, "protocols": ["thingsboard"]}),
    );
    with_token(&node, "d1", "meter", Value::Null);
    let mut raw = connect(&node, "d1");
    let telemetry = "v1/devices/me/telemetry";
    raw.publish_qos1(telemetry, r#"{"t": 20, "x": 1}"#, 1);
    raw.publish_qos1(telemetry, r#"{"t": 200}"#, 2);
    raw.publish_qos1(telemetry, r#"{"t": "#, 3);
    raw.publish_qos1(telemetry, r#"{"ts": 5000, "values": {"t": 30}}"#, 4);
    assert_eq!(latest(&node, "d1"), json!({"t": 20.0}));
    let answer = get(&node, "devices/d1/telemetry/rejections");
    assert_eq!(answer["count"], 4, "{answer}");
    let rejections = answer["rejections"].as_array().unwrap().iter();
    let subjects: Vec<_> = rejections
        .map(|rejection| rejection["subject"].as_str().unwrap())
        .collect();
    assert_eq!(subjects, ["x", "t", telemetry, "telemetry"]);
    for (at, reason) in [
        "no such property",
        "100",
        "invalid payload at byte",
        "older than",
    ]
    .iter()
    .enumerate()
    {
        let found = answer["rejections"][at]["reason"].as_str().unwrap();
        assert!(found.contains(reason), "{found}");
        assert!(answer["rejections"][at]["last_at_ms"].as_u64().unwrap() > 1_000_000_000_000);
    }
    let metrics = metrics(&node);
    for line in [
        "tidegate_ingest_rejected_values_total 2",
        "tidegate_ingest_malformed_messages_total 1",
        "tidegate_ingest_rejected_rows_total 1",
        "tidegate_ingest_rows_total 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[test]
fn a_gateway_reports_for_the_devices_behind_it() {
    let node = Node::start(&[]);
    product(&node, "hub", json!({"gateway": true, "mode": "sync"}));
    product(&node, "thermometer", json!({"mode": "sync"}));
    with_token(&node, "g", "hub", Value::Null);
    with_token(&node, "other", "hub", Value::Null);
    let mut gateway = connect(&node, "g");
    let connected = json!({"device": "t1", "type": "thermometer"}).to_string();
    gateway.publish_qos1("v1/gateway/connect", connected, 1);
    // Acknowledged, it is registered.
    let (status, child) = api(&node, "GET", "devices/t1", &Value::Null);
    assert_eq!(
        (status, &child["product"], &child["parent"], &child["state"]),
        (200, &json!("thermometer"), &json!("g"), &json!("online"))
    );
    let telemetry =
        json!({"t1": [{"ts": now_ms(), "values": {"a": 1}}], "t2": [{"b": 2}]}).to_string();
    gateway.publish_qos1("v1/gateway/telemetry", &telemetry, 2);
    gateway.publish_qos1(
        "/hub/g/child/t1/properties/report",
        r#"{"properties": {"c": 3}}"#,
        3,
    );
    eventually("children have rows", || {
        latest(&node, "t1") == json!({"a": 1, "c": 3}) && latest(&node, "t2") == json!({"b": 2})
    });
    let mut other = connect(&node, "other");
    other.publish_qos1("v1/gateway/telemetry", r#"{"t1": [{"stolen": 1}]}"#, 1);
    eventually("it is told that it has no such device", || {
        get(&node, "devices/other/telemetry/rejections")
            .to_string()
            .contains("not behind this gateway")
    });
    assert_eq!(latest(&node, "t1"), json!({"a": 1, "c": 3}));
    gateway.publish_qos1("v1/gateway/disconnect", r#"{"device": "t1"}"#, 4);
    assert_eq!(super::state(&node, "t1"), "offline");
}

#[test]
fn rows_are_watched_as_they_come() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, "d1", "meter", Value::Null);
    with_token(&node, "d2", "meter", Value::Null);
    let (mut one, mut two) = (connect(&node, "d1"), connect(&node, "d2"));
    let mut all = EventStream::open(&node, "telemetry/live?devices=d1,d2");
    let mut some = EventStream::open(&node, "devices/d1/telemetry/live?keys=t,new");
    let (socket, head) = upgrade(
        node.address("http"),
        "/api/v1/devices/d2/telemetry/live",
        None,
    );
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut socket = WsStream::over(socket);
    let telemetry = "v1/devices/me/telemetry";
    one.publish_qos1(telemetry, r#"{"t": 1, "x": 2}"#, 1);
    one.publish_qos1(telemetry, r#"{"x": 3}"#, 2);
    one.publish_qos1(telemetry, r#"{"new": "n"}"#, 3);
    two.publish_qos1(telemetry, r#"{"y": {"z": 1}}"#, 1);
    let values = |live: &mut EventStream| {
        let row = live.next();
        (
            row["device"].as_str().unwrap().to_owned(),
            row["values"].clone(),
        )
    };
    let d1 = || "d1".to_owned();
    assert_eq!(values(&mut some), (d1(), json!({"t": 1})));
    assert_eq!(values(&mut some), (d1(), json!({"new": "n"})));
    assert_eq!(values(&mut all), (d1(), json!({"t": 1, "x": 2})));
    assert_eq!(values(&mut all), (d1(), json!({"x": 3})));
    assert_eq!(values(&mut all), (d1(), json!({"new": "n"})));
    assert_eq!(values(&mut all), ("d2".to_owned(), json!({"y": {"z": 1}})));
    let (_, frame) = socket.recv_frame().unwrap().unwrap();
    let row: Value = serde_json::from_slice(&frame).unwrap();
    assert!(row.to_string().contains(r#"{"y":{"z":1}}"#), "{row}");
    assert_eq!(
        api(&node, "GET", "devices/none/telemetry/live", &Value::Null).0,
        404
    );
}

/// Devices publish without a pause until the node is killed, and note what was acknowledged.
fn publish_until_killed(mode: &str, arguments: &[&str]) {
    const ROWS: u64 = 30_000;
    const IN_FLIGHT: u64 = 200;
    let mut node = Node::start(arguments);
    product(&node, "hub", json!({"mode": mode, "gateway": true}));
    with_token(&node, "d", "hub", Value::Null);
    with_token(&node, "child", "hub", json!({"parent": "d"}));
    let mut raw = connect(&node, "d");
    let start_ms = now_ms() - 3_600_000;
    let (mut sent, mut acknowledged) = (0, 0);
    let pid = node.pid();
    while acknowledged < ROWS {
        while sent < ROWS && sent - acknowledged < IN_FLIGHT {
            let ts = start_ms + sent;
            let (topic, payload) = match sent % 100 {
                99 => (
                    "v1/devices/me/attributes",
                    json!({format!("a{}", sent % 1000): sent}),
                ),
                5 | 55 => (
                    "v1/gateway/telemetry",
                    json!({"child": [{"ts": ts, "values": {"n": sent}}]}),
                ),
                _ => (
                    "v1/devices/me/telemetry",
                    json!({"ts": ts, "values": {"n": sent}}),
                ),
            };
            let publish =
                Publish::new(topic, payload.to_string()).qos(1, (sent % 60_000 + 1) as u16);
            if !raw.try_send(&publish.bytes(5)) {
                break;
            }
            sent += 1;
        }
        // In the middle of what it does.
        if acknowledged > ROWS / 4 {
            // SAFETY: the process is a child of this test that nobody has waited for.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        match raw.try_recv_unless_closed(DEADLINE) {
            Some(packet) if packet.kind == kind::PUBACK => acknowledged += 1,
            Some(_) => {}
            None => break,
        }
    }
    assert!(acknowledged > ROWS / 4, "{acknowledged} of {sent}");
    node.crash();
    let stored = |device: &str| -> Vec<u64> {
        let answer = get(&node, &format!("devices/{device}/telemetry?rows=100000"));
        let rows = answer["rows"].as_array().unwrap().iter();
        rows.map(|row| row["values"]["n"].as_u64().unwrap())
            .collect()
    };
    let mut all = stored("d");
    all.extend(stored("child"));
    all.sort_unstable();
    all.dedup();
    let attributes = get(&node, "devices/d/attributes/client");
    let attributes: std::collections::HashMap<&str, u64> = attributes["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["key"].as_str().unwrap(), row["value"].as_u64().unwrap()))
        .collect();
    for n in 0..acknowledged {
        if n % 100 == 99 {
            let kept = attributes.get(format!("a{}", n % 1000).as_str());
            assert!(
                kept.is_some_and(|kept| *kept >= n),
                "attribute {n} of {acknowledged}: {kept:?}"
            );
        } else {
            assert!(
                all.binary_search(&n).is_ok(),
                "row {n} of {acknowledged} is lost"
            );
        }
    }
}

#[test]
fn a_killed_node_has_all_that_was_acknowledged_of_actors() {
    // Small mailboxes, so that they are full now and then.
    publish_until_killed("actor", &["--set", "telemetry.mailbox_bytes=64KiB"]);
}

#[test]
fn a_killed_node_has_all_that_was_acknowledged_of_sync_devices() {
    publish_until_killed("sync", &[]);
}

#[test]
fn acknowledgements_wait_for_the_disk_where_that_is_wanted() {
    let node = Node::start(&["--set", "telemetry.fsync=always"]);
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, "d1", "meter", Value::Null);
    let mut raw = connect(&node, "d1");
    for n in 1..=20_u16 {
        raw.publish_qos1("v1/devices/me/telemetry", json!({"n": n}).to_string(), n);
        assert_eq!(latest(&node, "d1"), json!({"n": n}));
    }
}

#[test]
fn the_command_line_shows_exports_and_deletes() {
    let node = Node::start(&[]);
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, "d1", "meter", Value::Null);
    let mut raw = connect(&node, "d1");
    let telemetry = "v1/devices/me/telemetry";
    raw.publish_qos1(telemetry, r#"{"t": 21.5, "on": true}"#, 1);
    raw.publish_qos1(telemetry, "{", 2);
    let ctl = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("ctl")
            .arg("--data-dir")
            .arg(node.data_dir())
            .arg("telemetry")
            .args(arguments)
            .output()
            .unwrap();
        let output_text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), output_text, errors)
    };
    let succeeded = |arguments: &[&str]| {
        let (is_done, output_text, errors) = ctl(arguments);
        assert!(is_done, "{arguments:?}: {output_text}{errors}");
        output_text
    };
    assert!(succeeded(&["latest", "d1", "--keys", "t"]).contains("21.5"));
    assert!(succeeded(&["list", "d1", "--last", "1h"]).contains(r#"{"on":true,"t":21.5}"#));
    let intervals = ["intervals", "d1", "--keys", "t", "--last", "1h"];
    assert!(succeeded(&intervals).contains(r#""count":1"#));
    for every in [
        &["--every", "1m"][..],
        &["--every", "day", "--time-zone", "Asia/Tokyo"],
    ] {
        let intervals = [&intervals[..], every].concat();
        assert!(succeeded(&intervals).contains(r#""count":1"#), "{every:?}");
    }
    assert!(succeeded(&["rejections", "d1"]).contains("invalid payload at byte"));
    let file = node.data_dir().join("export.csv");
    succeeded(&["export", "d1", file.to_str().unwrap(), "--keys", "on,t"]);
    let csv = std::fs::read_to_string(&file).unwrap();
    assert!(
        csv.starts_with("ts_ms,on,t\r\n") && csv.ends_with(",true,21.5\r\n"),
        "{csv}"
    );
    let (is_done, _, errors) = ctl(&["delete", "d1"]);
    assert!(!is_done && errors.contains("--all"), "{errors}");
    succeeded(&["delete", "d1", "--all"]);
    assert_eq!(latest(&node, "d1"), json!({}));
}

/// Messages without subscribers by the metric of dropped messages.
fn dropped_without_subscribers(node: &Node) -> u64 {
    let text = metrics(node);
    let name = "tidegate_messages_dropped_total{reason=\"no_subscribers\"} ";
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.expect("the metric exists").parse().unwrap()
}

#[test]
fn reports_that_nobody_subscribes_to_are_not_dropped() {
    let node = Node::start(&[]);
    for mode in ["sync", "actor"] {
        product(&node, mode, json!({"mode": mode}));
        with_token(&node, mode, mode, Value::Null);
        let mut raw = connect(&node, mode);
        let before = dropped_without_subscribers(&node);
        for n in 0..10 {
            raw.publish_qos1("v1/devices/me/telemetry", format!("{{\"n\": {n}}}"), 1);
        }
        assert_eq!(dropped_without_subscribers(&node), before, "{mode}");
    }
    let rule = json!({"sql": "SELECT * FROM \"to/rule\" WHERE payload = 'yes'", "actions": []});
    let (status, answer) = api(&node, "PUT", "rules/r", &rule);
    assert!(status < 300, "{answer}");
    let before = dropped_without_subscribers(&node);
    let mut raw = crate::support::Raw::client(&node, 4);
    raw.publish_qos1("to/rule", "yes", 1);
    assert_eq!(dropped_without_subscribers(&node), before);
    raw.publish_qos1("to/rule", "no", 2);
    assert_eq!(dropped_without_subscribers(&node), before + 1);
}

#[test]
fn damaged_telemetry_is_rejected_checked_and_repaired() {
    let mut node = Node::start(&[]);
    product(&node, "meter", json!({"mode": "sync"}));
    with_token(&node, "d1", "meter", Value::Null);
    let mut raw = connect(&node, "d1");
    for n in 0..100 {
        let row = json!({"pressure": n, "state": "on"});
        raw.publish_qos1("v1/devices/me/telemetry", row.to_string(), 1);
    }
    node.signal(libc::SIGKILL);
    assert!(node.wait(DEADLINE).is_some());
    let data_dir = node.data_dir().to_owned();
    let store = |command: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["store", command, "--data-dir"])
            .arg(&data_dir)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), text)
    };
    let (is_sound, text) = store("check");
    assert!(is_sound && text.contains("telemetry: 2 keys"), "{text}");
    // The names of keys are lost, which would go to the next ones that come.
    let keys = data_dir.join("telemetry/keys");
    let bytes = std::fs::read(&keys).unwrap();
    std::fs::write(&keys, &bytes[..bytes.len() - 5]).unwrap();
    let (is_sound, text) = store("check");
    assert!(!is_sound && text.contains("telemetry/keys"), "{text}");
    let copy = data_dir.with_extension("copy");
    let copied = Command::new("cp")
        .arg("-a")
        .args([&data_dir, &copy])
        .status();
    assert!(copied.unwrap().success());
    let started = Node::spawn(copy, &[], "").wait_until_it_listens();
    let log = started.expect_err("the node starts with damaged telemetry");
    assert!(
        log.contains("telemetry/keys") && log.contains("store repair"),
        "{log}"
    );
    let (is_done, text) = store("repair");
    assert!(is_done && text.contains("telemetry/keys"), "{text}");
    assert!(store("check").0);
    node.start_again();
    let values = latest(&node, "d1");
    let values = values.as_object().unwrap();
    assert_eq!(values.len(), 2, "{values:?}");
    assert!(
        values.keys().any(|key| key.starts_with("lost-key-")),
        "{values:?}"
    );
}
