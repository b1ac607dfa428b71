//! Imports and exports of devices and telemetry as jobs.

use std::fs;

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::{api, ask, get};
use crate::support::{Node, eventually, external};

fn product(node: &Node) {
    let (status, answer) = api(node, "POST", "products", &json!({"id": "meter"}));
    assert_eq!(status, 201, "{answer}");
}

fn ended(node: &Node, job: &Value) -> Value {
    let path = format!("jobs/{}", job["id"].as_str().expect("a job"));
    eventually("the end of the job", || {
        get(node, &path)["state"] != "running"
    });
    get(node, &path)
}

pub(super) fn import(node: &Node, kind: &str, media_type: &str, text: &str) -> Value {
    let fields = format!("content-type: {media_type}\r\n");
    let path = format!("imports?kind={kind}");
    let (status, _, answer) = ask(node, ("POST", &path), &fields, text);
    assert_eq!(status, 202, "{answer}");
    ended(node, &answer)
}

fn export(node: &Node, input: &Value) -> String {
    let (status, answer) = api(node, "POST", "exports", input);
    assert_eq!(status, 202, "{answer}");
    let job = ended(node, &answer);
    assert_eq!(
        (&job["state"], &job["has_result"]),
        (&json!("done"), &json!(true)),
        "{job}"
    );
    let path = format!("exports/{}/content", job["id"].as_str().unwrap());
    let (status, _, content) = ask(node, ("GET", &path), "", "");
    assert_eq!(status, 200, "{content}");
    match content {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[test]
fn devices_and_telemetry_move_to_another_node() {
    let node = Node::start(&[]);
    product(&node);
    let mut devices: String = (0..2500)
        .map(|nth| format!("{{\"id\": \"m-{nth}\", \"product\": \"meter\"}}\n"))
        .collect();
    devices.push_str("{\"id\": \"bad id\", \"product\": \"meter\"}\n");
    let job = import(&node, "devices", "application/x-ndjson", &devices);
    assert_eq!(
        (&job["state"], &job["done"], &job["total"], &job["failed"]),
        (&json!("done"), &json!(2501), &json!(2501), &json!(1)),
        "{job}"
    );
    assert_eq!(job["failures"][0]["subject"], "line 2501", "{job}");
    let base_ms = now_ms() as i64 - 3_600_000;
    let mut rows: String = (0..3000_i64)
        .map(|nth| {
            let (device, ts_ms) = (nth % 3, base_ms + nth);
            format!("{{\"device\": \"m-{device}\", \"ts_ms\": {ts_ms}, \"values\": {{\"n\": {nth}, \"text\": \"a\\nb\", \"on\": true, \"list\": [1, 2.5]}}}}\n")
        })
        .collect();
    rows.push_str(
        "{\"device\": \"unknown\", \"ts_ms\": 1, \"values\": {\"n\": 1}}\n{\"device\": \"m-1\"}\n",
    );
    let job = import(&node, "telemetry", "application/x-ndjson", &rows);
    assert_eq!(
        (&job["state"], &job["done"], &job["failed"]),
        (&json!("done"), &json!(3002), &json!(2)),
        "{job}"
    );
    let latest = get(&node, "devices/m-2/telemetry/latest");
    assert!(latest.to_string().contains("2999"), "{latest}");
    // Both on another node, and again on the same, which changes nothing.
    let exported = export(&node, &json!({"kind": "telemetry", "product": "meter"}));
    assert_eq!(exported.lines().count(), 3000);
    let csv = export(&node, &json!({"kind": "devices", "format": "csv"}));
    assert_eq!(csv.lines().count(), 2501);
    let other = Node::start(&[]);
    product(&other);
    let job = import(&other, "devices", "text/csv", &csv);
    assert_eq!(
        (&job["state"], &job["done"], &job["failed"]),
        (&json!("done"), &json!(2501), &json!(0)),
        "{job}"
    );
    for target in [&other, &node] {
        let job = import(target, "telemetry", "application/x-ndjson", &exported);
        assert_eq!(
            (&job["state"], &job["failed"]),
            (&json!("done"), &json!(0)),
            "{job}"
        );
        assert_eq!(export(target, &json!({"kind": "telemetry"})), exported);
    }
    let one = json!({"kind": "telemetry", "devices": ["m-1"], "keys": ["n"], "from_ms": base_ms, "to_ms": base_ms + 5});
    let lines = export(&other, &one);
    let line = |nth: i64| {
        let ts_ms = base_ms + nth;
        format!("{{\"device\":\"m-1\",\"ts_ms\":{ts_ms},\"values\":{{\"n\":{nth}}}}}\n")
    };
    assert_eq!(lines, line(1) + &line(4));
}

#[test]
fn wrong_imports_and_exports_are_rejected() {
    let node = Node::start(&[]);
    let csv = "content-type: text/csv\r\n";
    let cases = [
        ("imports?kind=telemetry", csv, 415),
        ("imports?kind=people", csv, 400),
        ("imports", csv, 400),
        ("imports?kind=devices", "content-type: text/html\r\n", 415),
        ("exports", "content-type: application/json\r\n", 400),
    ];
    for (path, fields, expected) in cases {
        let (status, _, answer) = ask(&node, ("POST", path), fields, "x");
        assert_eq!(status, expected, "{path}: {answer}");
    }
    let parquet = json!({"kind": "telemetry", "format": "csv"});
    let (status, answer) = api(&node, "POST", "exports", &parquet);
    assert!((400..500).contains(&status), "{answer}");
    let (status, _, _) = ask(&node, ("GET", "exports/job-none/content"), "", "");
    assert_eq!(status, 404);
}

#[test]
fn files_of_jobs_end_with_the_node() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let mut node = Node::start(&[]);
    product(&node);
    export(&node, &json!({"kind": "devices"}));
    import(&node, "devices", "application/x-ndjson", "");
    let files = |node: &Node| fs::read_dir(node.data_dir().join("jobs")).map_or(0, Iterator::count);
    // That of the import is gone.
    assert_eq!(files(&node), 1);
    node.signal(libc::SIGKILL);
    assert!(node.wait(std::time::Duration::from_secs(30)).is_some());
    node.start_again();
    assert_eq!(files(&node), 0);
}

fn cancel(node: &Node, job: &Value) -> Value {
    let path = format!("jobs/{}/cancel", job["id"].as_str().expect("a job"));
    let (status, answer) = api(node, "POST", &path, &Value::Null);
    assert_eq!(status, 200, "{answer}");
    ended(node, job)
}

#[test]
fn a_cancelled_import_keeps_what_it_has_stored_and_can_be_repeated() {
    const DEVICES: u64 = 40_000;
    let node = Node::start(&[]);
    product(&node);
    let lines = |count: u64| -> String {
        let line = |nth| format!("{{\"id\": \"m-{nth}\", \"product\": \"meter\"}}\n");
        (0..count).map(line).collect()
    };
    let fields = "content-type: application/x-ndjson\r\n";
    let (status, _, job) = ask(
        &node,
        ("POST", "imports?kind=devices"),
        fields,
        &lines(DEVICES),
    );
    assert_eq!(status, 202, "{job}");
    let path = format!("jobs/{}", job["id"].as_str().unwrap());
    eventually("the first devices", || {
        get(&node, &path)["done"].as_u64() > Some(0)
    });
    let job = cancel(&node, &job);
    assert_eq!(job["state"], "cancelled", "{job}");
    let done = job["done"].as_u64().unwrap();
    assert!(0 < done && done < DEVICES, "{job}");
    assert_eq!(get(&node, "device-counts")["devices"].as_u64(), Some(done));
    // What is stored already does not fail.
    let job = import(&node, "devices", "application/x-ndjson", &lines(done + 10));
    assert_eq!(
        (&job["state"], &job["failed"]),
        (&json!("done"), &json!(0)),
        "{job}"
    );
    assert_eq!(
        get(&node, "device-counts")["devices"].as_u64(),
        Some(done + 10)
    );
}

#[test]
fn a_cancelled_export_has_no_content() {
    let node = Node::start(&[]);
    product(&node);
    let devices: String = (0..5000)
        .map(|nth| format!("{{\"id\": \"m-{nth}\", \"product\": \"meter\"}}\n"))
        .collect();
    import(&node, "devices", "application/x-ndjson", &devices);
    let files = || fs::read_dir(node.data_dir().join("jobs")).map_or(0, Iterator::count);
    // An export may end before it is cancelled; then the next one is tried.
    eventually("a cancelled export", || {
        let before = files();
        let (status, job) = api(&node, "POST", "exports", &json!({"kind": "devices"}));
        assert_eq!(status, 202, "{job}");
        let job = cancel(&node, &job);
        if job["state"] != "cancelled" {
            return false;
        }
        assert_eq!(job["has_result"], false, "{job}");
        let path = format!("exports/{}/content", job["id"].as_str().unwrap());
        let (status, _, content) = ask(&node, ("GET", &path), "", "");
        assert!((400..500).contains(&status), "{content}");
        eventually("the removal of its file", || files() == before);
        true
    });
}
