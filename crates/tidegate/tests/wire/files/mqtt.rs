//! Files over MQTT, by a client written from the description of EMQX's file transfer.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{content, node, sha256, stored_files};
use crate::support::{
    Connect, Node, Packet, Props, Publish, Random, Raw, SmallDisk, Value as PropertyValue,
    eventually, kind, unique,
};

const CORRELATION_DATA: u8 = 0x09;
const RESPONSE_TOPIC: u8 = 0x08;
const FAILED: u8 = 0x80;
const QUOTA_EXCEEDED: u8 = 0x97;

/// A client that sends files.
struct Sender {
    raw: Raw,
    packet_id: u16,
}

impl Sender {
    fn connect(node: &Node, version: u8, client_id: &str) -> Sender {
        Sender {
            raw: Raw::connect(node, &Connect::new(version, client_id)),
            packet_id: 0,
        }
    }

    fn send(&mut self, topic: &str, payload: impl AsRef<[u8]>) -> u16 {
        self.packet_id += 1;
        let publish = Publish::new(topic, payload).qos(1, self.packet_id);
        self.raw.send_publish(&publish);
        self.packet_id
    }

    /// Sends a step and returns the reason code of its PUBACK.
    fn step(&mut self, topic: &str, payload: impl AsRef<[u8]>) -> u8 {
        let sent = self.send(topic, payload);
        let puback = self.raw.recv(kind::PUBACK);
        assert_eq!(puback.id(), sent);
        puback.reason
    }

    fn init(&mut self, file_id: &str, meta: &Value) -> u8 {
        self.step(&format!("$file/{file_id}/init"), meta.to_string())
    }

    /// Sends a file in order, and requires that each step succeeds.
    fn send_file(&mut self, file_id: &str, name: &str, content: &[u8], segment: usize) {
        let checksum = sha256(content);
        let meta = json!({"name": name, "size": content.len(), "checksum": checksum});
        assert_eq!(self.init(file_id, &meta), 0);
        for (at, piece) in content.chunks(segment).enumerate() {
            let offset = at * segment;
            assert_eq!(self.step(&format!("$file/{file_id}/{offset}"), piece), 0);
        }
        let fin = format!("$file/{file_id}/fin/{}", content.len());
        assert_eq!(self.step(&fin, ""), 0);
    }
}

fn json_of(packet: &Packet) -> Value {
    serde_json::from_slice(&packet.payload).expect("a response is JSON")
}

#[test]
fn a_file_arrives_as_over_emqx() {
    let Some(node) = node(&[]) else { return };
    let file = content(150_001);
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe("#", 0);
    for topic in ["$file/#", "$file-async/#"] {
        watcher.subscribe(topic, 0);
    }
    let mut sender = Sender::connect(&node, 5, &unique("device"));
    sender.send_file("f-1", "../log.bin", &file, 60_000);
    assert_eq!(
        stored_files(node.data_dir()),
        [("log.bin".to_owned(), file.clone())]
    );
    // The end again succeeds, also with the digest in the topic.
    let fin = format!("$file/f-1/fin/{}/{}", file.len(), sha256(&file));
    assert_eq!(sender.step(&fin, ""), 0);
    assert_eq!(
        watcher.ping_for_packets().len(),
        0,
        "nothing of it is delivered"
    );
}

#[test]
fn responses_go_to_the_topic_of_the_request() {
    let Some(node) = node(&[]) else { return };
    let client_id = unique("device");
    let default_topic = format!("$file-response/{client_id}");
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe(&default_topic, 1);
    watcher.subscribe("answers/1", 1);
    let mut sender = Sender::connect(&node, 5, &client_id);
    let topic = "$file/f/init";
    assert_eq!(sender.step(topic, "{}"), FAILED);
    let response = watcher.recv(kind::PUBLISH);
    assert_eq!(
        (response.topic.as_str(), response.qos()),
        (default_topic.as_str(), 1)
    );
    let body = json_of(&response);
    assert_eq!(
        (
            &body["vsn"],
            &body["topic"],
            &body["packet_id"],
            &body["reason_code"]
        ),
        (&json!("0.1"), &json!(topic), &json!(1), &json!(128)),
    );
    let text = body["reason_description"].as_str().unwrap();
    assert!(text.contains("name"), "{text}");
    watcher.acknowledge(&response);
    let properties = Props::new()
        .string(RESPONSE_TOPIC, "answers/1")
        .string(CORRELATION_DATA, "c-7");
    let publish = Publish::new(topic, r#"{"name": "a"}"#).qos(1, 9);
    sender.raw.send_publish(&publish.properties(properties));
    assert_eq!(sender.raw.recv(kind::PUBACK).reason, 0);
    let response = watcher.recv(kind::PUBLISH);
    assert_eq!(response.topic, "answers/1");
    assert_eq!(
        response.property(CORRELATION_DATA),
        Some(&PropertyValue::Binary(b"c-7".to_vec()))
    );
    assert_eq!(
        json_of(&response),
        json!({"vsn": "0.1", "topic": topic, "packet_id": 9, "reason_code": 0, "reason_description": "success"})
    );
}

#[test]
fn an_asynchronous_end_is_acknowledged_before_its_result() {
    let Some(node) = node(&[]) else { return };
    let client_id = unique("device");
    let mut sender = Sender::connect(&node, 5, &client_id);
    sender
        .raw
        .subscribe(&format!("$file-response/{client_id}"), 0);
    let meta = json!({"name": "a", "checksum": sha256(b"right")});
    let meta = meta.to_string();
    let mut codes = Vec::new();
    for (topic, payload) in [
        ("$file-async/f/init", meta.as_str()),
        ("$file-async/f/0", "wrong"),
        ("$file-async/f/fin/5", ""),
        ("$file-async/f/0", "right"),
        ("$file-async/f/fin/5", ""),
    ] {
        sender.send(topic, payload);
        let (mut acknowledged, mut response) = (None, None);
        while acknowledged.is_none() || response.is_none() {
            let packet = sender.raw.recv_packet();
            match packet.kind {
                kind::PUBACK => acknowledged = Some(packet.reason),
                kind::PUBLISH if json_of(&packet)["topic"] == topic => {
                    response = Some(json_of(&packet)["reason_code"].clone());
                }
                _ => {}
            }
        }
        codes.push((acknowledged.unwrap(), response.unwrap()));
    }
    assert_eq!(codes, [0, 0, 128, 0, 0].map(|code| (0, json!(code))));
    assert_eq!(
        stored_files(node.data_dir()),
        [("a".to_owned(), b"right".to_vec())]
    );
}

#[test]
fn a_client_of_version_3_learns_results_from_responses() {
    let Some(node) = node(&[]) else { return };
    let client_id = unique("device");
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe(&format!("$file-response/{client_id}"), 0);
    let mut sender = Sender::connect(&node, 4, &client_id);
    sender.step("$file/f/init", r#"{"name": "a"}"#);
    sender.step("$file/f/1", "bc");
    sender.step("$file/f/fin/3", "");
    sender.step("$file/f/0", "a");
    sender.step("$file/f/fin/3", "");
    let codes: Vec<Value> = (0..5)
        .map(|_| json_of(&watcher.recv(kind::PUBLISH))["reason_code"].clone())
        .collect();
    assert_eq!(codes, [json!(0), json!(0), json!(128), json!(0), json!(0)]);
    assert_eq!(
        stored_files(node.data_dir()),
        [("a".to_owned(), b"abc".to_vec())]
    );
}

#[test]
fn a_status_reports_what_is_missing() {
    let Some(node) = node(&[]) else { return };
    let client_id = unique("device");
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe(&format!("$file-response/{client_id}"), 0);
    let mut sender = Sender::connect(&node, 5, &client_id);
    let mut status = |sender: &mut Sender| {
        assert_eq!(sender.step("$file/f/status", ""), 0);
        loop {
            let response = json_of(&watcher.recv(kind::PUBLISH));
            if response["state"].is_string() {
                return response;
            }
        }
    };
    assert_eq!(
        sender.step("$file/f/status", ""),
        FAILED,
        "there is no transfer"
    );
    assert_eq!(sender.init("f", &json!({"name": "a", "size": 10})), 0);
    sender.step("$file/f/2", "cde");
    sender.step("$file/f/8", "ij");
    let shown = status(&mut sender);
    assert_eq!(shown["state"], "receiving");
    assert_eq!(shown["size"], 10);
    assert_eq!(shown["received"], json!([[2, 5], [8, 10]]));
    assert_eq!(shown["missing"], json!([[0, 2], [5, 8]]));
    sender.step("$file/f/0", "ab");
    sender.step("$file/f/5", "fgh");
    assert_eq!(sender.step("$file/f/fin/10", ""), 0);
    let shown = status(&mut sender);
    assert_eq!(
        (&shown["state"], &shown["missing"]),
        (&json!("complete"), &json!([]))
    );
}

#[test]
fn a_paused_transfer_waits_for_an_operator() {
    let Some(node) = node(&[]) else { return };
    let client_id = unique("device");
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe(&format!("$file-response/{client_id}"), 0);
    let mut sender = Sender::connect(&node, 5, &client_id);
    assert_eq!(sender.init("f", &json!({"name": "a", "size": 6})), 0);
    assert_eq!(sender.step("$file/f/0", "abc"), 0);
    let ctl = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["ctl", "--json", "--data-dir"]);
        command.arg(node.data_dir()).arg("transfers");
        let output = command.args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        printed
    };
    let id = ctl(&["list"])[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(ctl(&["pause", &id])["is_paused"], true);
    assert_eq!(sender.step("$file/f/3", "def"), QUOTA_EXCEEDED);
    let rejected = loop {
        let response = json_of(&watcher.recv(kind::PUBLISH));
        if response["reason_code"] != 0 {
            break response;
        }
    };
    let reason = rejected["reason_description"].as_str().unwrap();
    assert!(reason.starts_with("paused: "), "{reason}");
    assert_eq!(ctl(&["status", &id])["is_paused"], true);
    assert_eq!(ctl(&["resume", &id])["is_paused"], false);
    assert_eq!(sender.step("$file/f/3", "def"), 0);
    assert_eq!(sender.step("$file/f/fin/6", ""), 0);
    assert_eq!(
        stored_files(node.data_dir()),
        [("a".to_owned(), b"abcdef".to_vec())]
    );
}

#[test]
fn segments_may_overlap_repeat_and_carry_digests() {
    let Some(node) = node(&[]) else { return };
    let file = content(5000);
    let mut sender = Sender::connect(&node, 5, &unique("device"));
    assert_eq!(sender.init("f", &json!({"name": "a", "size": 5000})), 0);
    for (start, end) in [
        (3000, 5000),
        (0, 1000),
        (500, 1500),
        (0, 1000),
        (1400, 3100),
        (2, 3),
    ] {
        let piece = &file[start..end];
        let topic = format!("$file/f/{start}/{}", sha256(piece));
        assert_eq!(sender.step(&topic, piece), 0);
    }
    let wrong = format!("$file/f/0/{}", sha256(b"x"));
    assert_eq!(sender.step(&wrong, "y"), FAILED);
    let wrong = format!("$file/f/fin/5000/{}", sha256(b"x"));
    assert_eq!(sender.step(&wrong, ""), FAILED);
    let fin = format!("$file/f/fin/5000/{}", sha256(&file));
    assert_eq!(sender.step(&fin, ""), 0);
    assert_eq!(stored_files(node.data_dir()), [("a".to_owned(), file)]);
    for topic in [
        "$file/f",
        "$file/f/x",
        "$file/f/fin",
        "$file//init",
        "$file/g/0",
    ] {
        assert_eq!(sender.step(topic, "x"), FAILED, "{topic}");
    }
    assert_eq!(sender.step("$file/f/abort", ""), 0);
    assert_eq!(sender.step("$file/unknown/abort", ""), 0);
}

#[test]
fn steps_need_the_permission_to_publish() {
    if !crate::api::own_node() {
        return;
    }
    let config =
        "[[auth.rule]]\npermission = \"allow\"\naction = \"publish\"\ntopics = [\"$file/ok/#\"]\n";
    let node = Node::start_with_config(&["--shards", "1"], config);
    let mut sender = Sender::connect(&node, 5, &unique("device"));
    assert_eq!(sender.init("ok", &json!({"name": "a"})), 0);
    assert_eq!(sender.init("other", &json!({"name": "a"})), 0x87);
}

#[test]
fn disabled_transfers_leave_the_topics_to_others() {
    let Some(node) = node(&["files.enabled=false"]) else {
        return;
    };
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe("$file/#", 0);
    let mut sender = Sender::connect(&node, 5, &unique("device"));
    assert_eq!(sender.step("$file/f/init", "ordinary"), 0);
    watcher.recv_message("$file/f/init", "ordinary");
}

#[test]
fn quotas_and_rates_of_clients() {
    let Some(node) = node(&[
        "files.max_transfers_per_owner=1",
        "files.max_file_bytes=1000",
        "files.max_bytes_per_s_per_owner=20000",
    ]) else {
        return;
    };
    let mut sender = Sender::connect(&node, 5, &unique("device"));
    assert_eq!(
        sender.init("f", &json!({"name": "a", "size": 1001})),
        FAILED
    );
    assert_eq!(sender.init("f", &json!({"name": "a"})), 0);
    assert_eq!(sender.init("g", &json!({"name": "a"})), QUOTA_EXCEEDED);
    let started = std::time::Instant::now();
    for _ in 0..30 {
        assert_eq!(sender.step("$file/f/0", content(1000)), 0);
    }
    // 30,000 bytes at 20,000 per second; the last one is not waited for.
    assert!(
        started.elapsed() >= Duration::from_millis(1300),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(sender.step("$file/f/1", content(1000)), FAILED, "too large");
    let mut other = Sender::connect(&node, 5, &unique("device"));
    assert_eq!(other.init("g", &json!({"name": "a"})), 0);
}

#[test]
fn rules_learn_of_received_files() {
    let Some(node) = node(&[]) else { return };
    let sql = "SELECT name, size, sha256, clientid, user_data.line AS line FROM \"$events/file/received\"";
    let rule = json!({
        "name": "files", "sql": sql,
        "actions": [{"kind": "republish", "topic": "received/${name}", "qos": 1}],
    });
    let token = crate::api::local_token(&node);
    let made = crate::api::send(&node, &token, "POST", "/api/v1/rules", &rule);
    assert!(made.status < 300, "{}", made.body);
    let mut watcher = Raw::client(&node, 5);
    watcher.subscribe("received/#", 0);
    let client_id = unique("device");
    let mut sender = Sender::connect(&node, 5, &client_id);
    assert_eq!(
        sender.init("f", &json!({"name": "a", "user_data": {"line": 7}})),
        0
    );
    assert_eq!(sender.step("$file/f/0", "abc"), 0);
    assert_eq!(sender.step("$file/f/fin/3", ""), 0);
    let event = watcher.recv(kind::PUBLISH);
    assert_eq!(event.topic, "received/a");
    assert_eq!(
        json_of(&event),
        json!({"name": "a", "size": 3, "sha256": sha256(b"abc"), "clientid": client_id, "line": 7})
    );
}

/// What was acknowledged is there after each kill, and the file is exactly the one that was sent.
#[test]
fn acknowledged_segments_survive_kills_of_the_node() {
    const SEGMENT: usize = 4000;
    let Some(mut node) = node(&["files.threads=3"]) else {
        return;
    };
    let seed = Random::seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let file = content(400_003);
    let client_id = unique("device");
    let meta = json!({"name": "a", "size": file.len(), "checksum": sha256(&file)});
    let pieces: Vec<(usize, &[u8])> = file
        .chunks(SEGMENT)
        .enumerate()
        .map(|(at, piece)| (at * SEGMENT, piece))
        .collect();
    let mut acknowledged = vec![false; pieces.len()];
    let mut kills = 0;
    loop {
        let mut watcher = Raw::client(&node, 5);
        watcher.subscribe(&format!("$file-response/{client_id}"), 0);
        let mut sender = Sender::connect(&node, 5, &client_id);
        assert_eq!(sender.init("f", &meta), 0);
        assert_eq!(sender.step("$file/f/status", ""), 0);
        let status = loop {
            let response = json_of(&watcher.recv(kind::PUBLISH));
            if response["topic"] == "$file/f/status" {
                break response;
            }
        };
        let missing: Vec<(usize, usize)> =
            serde_json::from_value(status["missing"].clone()).unwrap();
        let is_missing = |offset: usize| {
            missing
                .iter()
                .any(|(from, to)| offset < *to && offset + 1 > *from)
        };
        for (at, (offset, _)) in pieces.iter().enumerate() {
            assert!(
                !acknowledged[at] || !is_missing(*offset),
                "acknowledged, but missing: {offset}"
            );
        }
        let mut todo: Vec<usize> = (0..pieces.len())
            .filter(|at| is_missing(pieces[*at].0))
            .collect();
        if todo.is_empty() {
            let fin = format!("$file/f/fin/{}", file.len());
            assert_eq!(sender.step(&fin, ""), 0);
            break;
        }
        // Several at once, in any order, and a kill in the middle.
        let mut by_id = std::collections::HashMap::new();
        let count = (1 + random.below(20)).min(todo.len());
        for _ in 0..count {
            let at = todo.swap_remove(random.below(todo.len()));
            let (offset, piece) = pieces[at];
            by_id.insert(sender.send(&format!("$file/f/{offset}"), piece), at);
        }
        for _ in 0..random.below(count + 1) {
            let puback = sender.raw.recv(kind::PUBACK);
            assert_eq!(puback.reason, 0);
            acknowledged[by_id[&puback.id()]] = true;
        }
        node.crash();
        kills += 1;
    }
    println!("{kills} kills");
    assert_eq!(
        stored_files(node.data_dir()),
        [("a".to_owned(), file.clone())]
    );
    node.crash();
    assert_eq!(stored_files(node.data_dir()), [("a".to_owned(), file)]);
}

#[test]
fn a_full_disk_rejects_segments_and_recovers() {
    if !crate::api::own_node() {
        return;
    }
    let Some(disk) = SmallDisk::mount() else {
        testkit::report_skipped("a file system cannot be mounted here");
        return;
    };
    let config = "[store]\nsegment_bytes = \"1MiB\"\nmin_free_bytes = 1048576\n[telemetry]\nmin_free_bytes = 0\n\
                  [files]\nmin_free_bytes = 8388608\n";
    let data_dir = disk.path().join("data");
    std::fs::create_dir(&data_dir).unwrap();
    let mut node = Node::spawn(data_dir, &["--shards", "1"], config);
    node.wait_until_it_listens()
        .unwrap_or_else(|why| panic!("{why}"));
    let mut sender = Sender::connect(&node, 5, &unique("device"));
    let size = 100 << 20;
    assert_eq!(
        sender.init("big", &json!({"name": "a", "size": size})),
        QUOTA_EXCEEDED,
        "early"
    );
    assert_eq!(sender.init("f", &json!({"name": "a"})), 0);
    let piece = content(1 << 19);
    let mut offset = 0;
    // A slow disk rejects segments with the same code, but only for a moment.
    let mut rejections = Vec::new();
    while rejections.len() < 5 {
        match sender.step(&format!("$file/f/{offset}"), &piece) {
            0 => {
                rejections.clear();
                offset += piece.len();
            }
            reason => {
                rejections.push(reason);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        assert!(offset < 64 << 20, "the disk is never full");
    }
    assert_eq!(rejections, [QUOTA_EXCEEDED; 5]);
    // What was acknowledged is there; the connection is open.
    assert_eq!(sender.step(&format!("$file/f/fin/{offset}"), ""), 0);
    let stored = stored_files(node.data_dir());
    assert!(stored[0].1.chunks(piece.len()).all(|chunk| chunk == piece));
    // A rejected segment may leave up to its own size above the limit, so a file without a size may still begin. The node may
    // also free some space of its own files.
    let other = json!({"name": "b", "size": 24 << 20});
    assert_eq!(sender.init("g", &other), QUOTA_EXCEEDED);
    let files = node.data_dir().join("files");
    for entry in std::fs::read_dir(files).unwrap() {
        let data = entry.unwrap().path().join("data");
        if data.exists() {
            std::fs::write(data, "").unwrap();
        }
    }
    eventually("there is room again", || {
        sender.init("h", &json!({"name": "b"})) == 0
    });
}
