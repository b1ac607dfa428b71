//! Backups of a running node with telemetry, and what becomes of them: restored, damaged, interrupted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use wall_clock::now_ms;

use super::{api, ask, connect, get, with_token};
use crate::support::{Node, eventually, external, temporary_directory};

const DEVICES: usize = 4;

/// Runs `tidegate store`; whether it succeeded, and its output.
fn store(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("store")
        .args(arguments)
        .output()
        .unwrap();
    let output_text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output_text.contains("panicked"), "{output_text}");
    (output.status.success(), output_text)
}

fn fleet(node: &Node) {
    let product = json!({"id": "meter", "mode": "sync"});
    let (status, answer) = api(node, "POST", "products", &product);
    assert_eq!(status, 201, "{answer}");
    for nth in 0..DEVICES {
        with_token(node, &format!("meter-{nth}"), "meter", json!({}));
    }
}

/// All rows of a device, as the API returns them.
fn rows(node: &Node, device: &str) -> Vec<Value> {
    let path = format!("devices/{device}/telemetry?from_ms=0&rows=10000");
    let answer = get(node, &path);
    assert_eq!(answer["is_truncated"], false, "too many rows for this test");
    answer["rows"].as_array().expect("rows").clone()
}

fn start_job(node: &Node, path: &str) -> Value {
    let (status, answer) = api(node, "POST", path, &json!(null));
    assert_eq!(status, 202, "{answer}");
    answer
}

fn ended(node: &Node, job: &Value) -> Value {
    let path = format!("jobs/{}", job["id"].as_str().unwrap());
    eventually("the end of the job", || {
        get(node, &path)["state"] != "running"
    });
    get(node, &path)
}

/// The file of a complete backup.
fn backup(node: &Node) -> PathBuf {
    let job = ended(node, &start_job(node, "backups"));
    assert_eq!(job["state"], "done", "{job}");
    assert_eq!(job["done"], job["total"], "{job}");
    let id = job["subject"].as_str().unwrap();
    node.data_dir().join(format!("backups/{id}.tgbackup"))
}

fn restored(file: &Path) -> Node {
    let data_dir = temporary_directory();
    let (is_done, output_text) = store(&[
        "restore",
        file.to_str().unwrap(),
        "--data-dir",
        data_dir.to_str().unwrap(),
    ]);
    assert!(is_done, "{output_text}");
    let (is_sound, output_text) = store(&["check", "--data-dir", data_dir.to_str().unwrap()]);
    assert!(is_sound, "{output_text}");
    let mut node = Node::spawn(data_dir, &[], "");
    node.wait_until_it_listens().unwrap();
    assert!(!node.log().contains("ERROR"), "{}", node.log());
    node
}

#[test]
fn a_backup_under_load_contains_each_row_stored_before_it() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::start(&[]);
    fleet(&node);
    // Rows of different times are not merged.
    let base_ms = now_ms() - 3_600_000;
    let mut first = connect(&node, "meter-0");
    for nth in 0..2_000_u32 {
        let row = format!(
            "{{\"ts\": {}, \"values\": {{\"n\": {nth}, \"text\": \"row {nth}\"}}}}",
            base_ms + u64::from(nth)
        );
        first.publish_qos1("v1/devices/me/telemetry", row, 1);
    }
    let before = rows(&node, "meter-0");
    assert_eq!(before.len(), 2_000);
    let is_stopping = AtomicBool::new(false);
    let (file, others) = std::thread::scope(|scope| {
        let senders: Vec<_> = (1..DEVICES)
            .map(|nth| {
                let (node, is_stopping) = (&node, &is_stopping);
                scope.spawn(move || {
                    let mut device = connect(node, &format!("meter-{nth}"));
                    let mut sent = 0_u32;
                    while !is_stopping.load(Relaxed) && sent < 9_000 {
                        let ts_ms = base_ms + u64::from(sent);
                        let row = format!("{{\"ts\": {ts_ms}, \"values\": {{\"n\": {sent}}}}}");
                        device.publish_qos1("v1/devices/me/telemetry", row, 1);
                        sent += 1;
                    }
                    sent
                })
            })
            .collect();
        eventually("load", || {
            (1..DEVICES).all(|nth| rows(&node, &format!("meter-{nth}")).len() > 20)
        });
        let file = backup(&node);
        is_stopping.store(true, Relaxed);
        let sent: Vec<u32> = senders
            .into_iter()
            .map(|sender| sender.join().unwrap())
            .collect();
        (file, sent)
    });
    let id = file.file_stem().unwrap().to_str().unwrap().to_owned();
    let job = ended(&node, &start_job(&node, &format!("backups/{id}/verify")));
    assert_eq!(job["state"], "done", "{job}");
    let listed = get(&node, "backups")["data"][0].clone();
    assert_eq!(
        (&listed["id"], listed["bytes"].as_u64()),
        (&json!(id), fs::metadata(&file).ok().map(|file| file.len()))
    );
    let copy = restored(&file);
    assert_eq!(rows(&copy, "meter-0"), before);
    for (nth, sent) in (1..DEVICES).zip(others) {
        // The backup has the rows of a device up to some moment, without gaps.
        let id = format!("meter-{nth}");
        let (whole, part) = (rows(&node, &id), rows(&copy, &id));
        assert!(
            part.len() >= 10 && part.len() <= sent as usize,
            "{id}: {} of {sent}",
            part.len()
        );
        assert_eq!(whole.len(), sent as usize, "{id}");
        assert_eq!(part, whole[..part.len()], "{id}");
    }
    // The restored node goes on.
    let mut device = connect(&copy, "meter-0");
    device.publish_qos1("v1/devices/me/telemetry", "{\"n\": 1}", 1);
    assert_eq!(rows(&copy, "meter-0").len(), 2_001);
    let (status, _) = api(&node, "DELETE", &format!("backups/{id}"), &json!(null));
    assert_eq!(status, 204);
    assert!(!file.exists());
}

#[test]
fn a_file_that_is_no_complete_backup_changes_nothing() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::start(&[]);
    fleet(&node);
    let file = backup(&node);
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x10;
    let mut newer = whole.clone();
    newer[8] = 9;
    let cases = [
        (&whole[..whole.len() / 2], "ends in the middle"),
        (&flipped[..], "damaged"),
        (&newer[..], "format 9"),
        (
            &b"{\"format\": \"tidegate-objects\"}"[..],
            "is not a backup",
        ),
    ];
    let folder = temporary_directory();
    fs::create_dir_all(&folder).unwrap();
    let bad = folder.join("bad.tgbackup");
    let data_dir = folder.join("data");
    let to = ["--data-dir", data_dir.to_str().unwrap()];
    for (bytes, expected) in cases {
        fs::write(&bad, bytes).unwrap();
        let (is_done, output_text) = store(&["verify-backup", bad.to_str().unwrap()]);
        assert!(
            !is_done && output_text.contains(expected),
            "{expected}: {output_text}"
        );
        let (is_done, output_text) =
            store(&[&["restore", bad.to_str().unwrap()], &to[..]].concat());
        assert!(
            !is_done && output_text.contains(expected),
            "{expected}: {output_text}"
        );
        assert!(!data_dir.exists(), "{expected}");
    }
    let file = file.to_str().unwrap();
    let (is_done, output_text) = store(&["verify-backup", file]);
    assert!(
        is_done && output_text.contains("is complete"),
        "{output_text}"
    );
    let (is_done, output_text) = store(&[&["restore", file], &to[..]].concat());
    assert!(is_done, "{output_text}");
    // Existing data is not replaced.
    let (is_done, output_text) = store(&[&["restore", file], &to[..]].concat());
    assert!(
        !is_done && output_text.contains("contains data"),
        "{output_text}"
    );
    fs::remove_dir_all(folder).unwrap();
    // The node says the same of a damaged file.
    fs::write(file, &flipped).unwrap();
    let id = Path::new(file).file_stem().unwrap().to_str().unwrap();
    let job = ended(&node, &start_job(&node, &format!("backups/{id}/verify")));
    assert_eq!(job["state"], "failed", "{job}");
    assert!(job["error"].as_str().unwrap().contains("damaged"), "{job}");
}

#[test]
fn an_interrupted_backup_leaves_nothing() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let mut node = Node::start(&["--set", "backup.max_bytes_per_s=1024"]);
    fleet(&node);
    let unfinished = |node: &Node| {
        let files = fs::read_dir(node.data_dir().join("backups"));
        files.map_or(0, |files| files.count())
    };
    let job = start_job(&node, "backups");
    eventually("the file", || unfinished(&node) == 1);
    assert_eq!(get(&node, "backups")["data"], json!([]));
    let (status, answer) = api(&node, "POST", "backups", &json!(null));
    assert_eq!(status, 409, "{answer}");
    let path = format!("jobs/{}/cancel", job["id"].as_str().unwrap());
    assert_eq!(ask(&node, ("POST", &path), "", "").0, 200);
    node.signal(libc::SIGKILL);
    assert!(node.wait(Duration::from_secs(30)).is_some());
    node.start_again();
    eventually("the incomplete file is removed", || unfinished(&node) == 0);
    assert_eq!(get(&node, "backups")["data"], json!([]));
}

#[test]
fn a_backup_leaves_the_space_that_the_node_needs() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    // More than any disk has.
    let node = Node::start(&["--set", "store.min_free_bytes=16TiB"]);
    let job = ended(&node, &start_job(&node, "backups"));
    assert_eq!(job["state"], "failed", "{job}");
    assert!(
        job["error"].as_str().unwrap().contains("backup.directory"),
        "{job}"
    );
    let files = fs::read_dir(node.data_dir().join("backups")).unwrap();
    assert_eq!(files.count(), 0);
}

#[test]
fn files_retained_messages_and_the_audit_log_are_restored() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::start(&[]);
    fleet(&node);
    let mut client = crate::support::Raw::client(&node, 5);
    let retained = crate::support::Publish::new("site/name", "north")
        .qos(1, 1)
        .retain();
    client.send_publish(&retained);
    client.recv(crate::support::kind::PUBACK);
    let content = "line\n".repeat(50_000);
    for (step, payload) in [
        ("init", r#"{"name": "log.txt"}"#),
        ("0", content.as_str()),
        (&format!("fin/{}", content.len()), ""),
    ] {
        let topic = format!("$file/log/{step}");
        client.send_publish(&crate::support::Publish::new(&topic, payload).qos(1, 2));
        assert_eq!(
            client.recv(crate::support::kind::PUBACK).reason,
            0,
            "{step}"
        );
    }
    let before = get(&node, "files");
    let audit = |node: &Node| {
        let entries = get(node, "audit-log?limit=1000");
        entries["data"].as_array().unwrap().clone()
    };
    let recorded = audit(&node);
    assert!(recorded.len() > DEVICES);
    // Retained messages are read from where they are applied to a moment later.
    let mut retained = 0;
    eventually("a backup with the retained message", || {
        retained = retained_messages(&backup(&node));
        retained == 1
    });
    let restored = restored(&backup(&node));
    let after = get(&restored, "files");
    assert_eq!(after["data"][0]["id"], before["data"][0]["id"]);
    assert_eq!(after["data"][0]["checksum"], before["data"][0]["checksum"]);
    let mut reader = crate::support::Raw::client(&restored, 5);
    reader.subscribe("site/#", 0);
    let message = reader.recv(crate::support::kind::PUBLISH);
    assert_eq!(
        (message.topic.as_str(), &message.payload[..]),
        ("site/name", &b"north"[..])
    );
    let continued = audit(&restored);
    for entry in recorded {
        assert!(continued.contains(&entry), "{entry}");
    }
}

/// The number of retained messages in a backup.
fn retained_messages(file: &Path) -> usize {
    let bytes = fs::read(file).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    text.matches("{\"table\":\"retained\"").count()
}
