//! A full disk: what the node rejects, what goes on, and that all is well again by itself when there is room.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::report_skipped;

use crate::api::{local_token, send};
use crate::listeners::get;
use crate::support::{
    Connect, Node, Packet, Props, Publish, Raw, SmallDisk, Subscribe, ack, eventually, external,
    kind, temporary_directory, unique,
};

const QUOTA_EXCEEDED: u8 = 0x97;
const MIB: usize = 1 << 20;
const MIN_FREE_MIB: usize = 8;

fn config(min_free_bytes: usize) -> String {
    format!("[store]\nsegment_bytes = \"1MiB\"\nmin_free_bytes = {min_free_bytes}\n")
}

fn start(data_dir: &Path, min_free_bytes: usize) -> Node {
    let config = config(min_free_bytes);
    let mut node = Node::spawn(data_dir.to_owned(), &["--shards", "2"], &config);
    node.wait_until_it_listens()
        .unwrap_or_else(|why| panic!("{why}"));
    node
}

fn is(node: &Node, state: &str) -> bool {
    let sample = format!("tidegate_store_health{{state=\"{state}\"}} 1\n");
    get(node, "/metrics").body.contains(&sample)
}

fn durable(version: u8, client_id: &str) -> Connect {
    let connect = Connect::new(version, client_id).persistent();
    match version {
        5 => connect.properties(Props::new().u32(0x11, 3600)),
        _ => connect,
    }
}

fn resume(node: &Node, client_id: &str) -> Raw {
    let (raw, connack) = Raw::connect_for_connack(node, &durable(5, client_id));
    assert!(connack.session_present, "the session is gone");
    raw
}

/// The reason in the answer to a PUBLISH.
fn answer(raw: &mut Raw, publish: &Publish) -> u8 {
    raw.send_publish(publish);
    let packet = raw.recv_packet();
    let expected = if publish.qos == 1 {
        kind::PUBACK
    } else {
        kind::PUBREC
    };
    assert_eq!(
        (packet.kind, packet.id()),
        (expected, publish.packet_id),
        "{packet:?}"
    );
    packet.reason
}

/// What was acknowledged to the publisher while there was room: for two sessions that are away, and retained.
struct StoredMessages {
    topic: String,
    away: [String; 2],
}

impl StoredMessages {
    const MESSAGES: u16 = 40;

    fn new(node: &Node) -> StoredMessages {
        let stored = StoredMessages {
            topic: unique("stored/"),
            away: [unique("a"), unique("b")],
        };
        for client_id in &stored.away {
            let mut raw = Raw::connect(node, &durable(5, client_id));
            raw.subscribe(&stored.topic, 2);
            raw.disconnect();
        }
        let mut publisher = Raw::client(node, 5);
        for number in 0..Self::MESSAGES {
            match number % 2 {
                0 => publisher.publish_qos1(&stored.topic, number.to_string(), number + 1),
                _ => publisher.publish_qos2(&stored.topic, number.to_string(), number + 1),
            }
        }
        let retained = Publish::new(format!("{}/retained", stored.topic), "before");
        publisher.send_publish(&retained.retain().qos(1, 100));
        publisher.recv(kind::PUBACK);
        stored
    }

    /// One of the sessions comes back and takes these of its messages.
    fn take(&self, node: &Node, nth: usize, numbers: std::ops::Range<u16>) {
        let mut raw = resume(node, &self.away[nth]);
        let mut waiting = VecDeque::new();
        for number in numbers {
            let message: Packet = waiting
                .pop_front()
                .unwrap_or_else(|| raw.recv(kind::PUBLISH));
            assert_eq!(message.text(), number.to_string());
            if message.qos() == 1 {
                raw.send(&ack(kind::PUBACK, message.id()));
                continue;
            }
            raw.send(&ack(kind::PUBREC, message.id()));
            loop {
                let packet = raw.recv_packet();
                if packet.kind == kind::PUBREL {
                    break;
                }
                waiting.push_back(packet);
            }
            raw.send(&ack(kind::PUBCOMP, message.id()));
        }
        // Answered when everything before it is in the log, also with a rejection.
        raw.subscribe_for_codes(&Subscribe::new(999).filter("in/the/log", 1));
        raw.send(&[0xe0, 0]);
        raw.packets_until_closed();
    }

    fn has_nothing_more(&self, node: &Node, nth: usize) {
        resume(node, &self.away[nth]).ping();
    }

    fn is_retained(&self, node: &Node) {
        assert_eq!(retained(node, &format!("{}/+", self.topic)), ["before"]);
    }
}

fn retained(node: &Node, filter: &str) -> Vec<String> {
    let mut raw = Raw::client(node, 5);
    raw.subscribe(filter, 0);
    let packets = raw.ping_for_packets();
    packets
        .iter()
        .map(|packet| packet.text().to_owned())
        .collect()
}

/// The code in the SUBACK, whatever messages come before it. Once it is granted, all that the session sent before is in the
/// log.
fn subscribe_also(node: &Node, client_id: &str) -> u8 {
    let mut raw = resume(node, client_id);
    raw.send(&Subscribe::new(9).filter("more", 1).bytes(5));
    let packets = raw.ping_for_packets();
    let suback = packets.iter().find(|packet| packet.kind == kind::SUBACK);
    suback.unwrap().payload[0]
}

/// What a client sees of a full disk.
fn new_things_are_rejected(node: &Node, stored: &StoredMessages) {
    let topic = unique("new/");
    let mut live = Raw::client(node, 5);
    live.subscribe(&format!("{topic}/#"), 0);
    let mut publisher = Raw::client(node, 5);
    for qos in [1, 2] {
        for publish in [
            Publish::new(&topic, "x"),
            Publish::new(&topic, "x").retain(),
        ] {
            let reason = answer(&mut publisher, &publish.qos(qos, 7));
            assert_eq!(reason, QUOTA_EXCEEDED, "at QoS {qos}");
        }
        let mut old = Raw::client(node, 4);
        old.send_publish(&Publish::new(&topic, "x").qos(qos, 7));
        old.expect_closed();
    }
    // QoS 0 goes on, also to those whose QoS 1 was just rejected.
    publisher.publish(&topic, "zero");
    live.recv_message(&topic, "zero");
    let retained_topic = format!("{topic}/retained");
    publisher.send_publish(&Publish::new(&retained_topic, "lost").retain());
    live.recv_message(&retained_topic, "lost");
    assert!(retained(node, &retained_topic).is_empty());
    stored.is_retained(node);

    let connack = Raw::open(node, 5).hand_shake(&durable(5, &unique("new")));
    assert_eq!(connack.reason, QUOTA_EXCEEDED);
    let connack = Raw::open(node, 4).hand_shake(&durable(4, &unique("new")));
    assert_eq!(connack.reason, 3, "3.1.1: server unavailable");
    assert_eq!(subscribe_also(node, &stored.away[1]), QUOTA_EXCEEDED);
}

fn all_is_well(node: &Node) {
    eventually("the store is well", || is(node, "ok"));
    let (topic, client_id) = (unique("again/"), unique("c"));
    // Each shard sees it at its next tick.
    eventually("a new durable session is taken", || {
        let connack = Raw::open(node, 5).hand_shake(&durable(5, &client_id));
        connack.reason == 0
    });
    let mut raw = resume(node, &client_id);
    raw.subscribe(&topic, 2);
    raw.disconnect();
    for version in [4, 5] {
        let mut publisher = Raw::client(node, version);
        publisher.publish_qos1(&topic, "one", 1);
        publisher.publish_qos2(&topic, "two", 2);
        publisher.send_publish(&Publish::new(&topic, "retained").retain().qos(1, 3));
        publisher.recv(kind::PUBACK);
    }
    assert_eq!(retained(node, &topic), ["retained"]);
    let mut raw = resume(node, &client_id);
    for text in ["one", "two", "retained", "one", "two", "retained"] {
        raw.recv_message(&topic, text);
    }
}

#[test]
fn a_full_disk_rejects_what_it_cannot_keep_and_heals() {
    if external().is_some() {
        return report_skipped("needs a node of its own");
    }
    let Some(disk) = SmallDisk::mount() else {
        return report_skipped("a tmpfs cannot be mounted here (that needs root)");
    };
    let mut node = start(disk.path(), MIN_FREE_MIB * MIB);
    let stored = StoredMessages::new(&node);
    assert!(is(&node, "ok"));

    let filler = disk.fill_but(MIN_FREE_MIB * MIB / 2);
    eventually("the store is full", || is(&node, "full"));
    new_things_are_rejected(&node, &stored);
    // Acknowledgements are written all the same, also when there is really nothing left.
    stored.take(&node, 0, 0..10);
    let rest = disk.fill_but(0);
    new_things_are_rejected(&node, &stored);
    stored.take(&node, 0, 10..20);

    fs::remove_file(filler).unwrap();
    fs::remove_file(rest).unwrap();
    all_is_well(&node);
    stored.take(&node, 0, 20..30);
    assert_eq!(subscribe_also(&node, &stored.away[0]), 1);
    node.crash();
    stored.take(&node, 0, 30..StoredMessages::MESSAGES);
    stored.has_nothing_more(&node, 0);
    stored.take(&node, 1, 0..StoredMessages::MESSAGES);
    stored.has_nothing_more(&node, 1);
    stored.is_retained(&node);
    all_is_well(&node);
    // Its files are gone before the disk is.
    drop(node);
    drop(disk);
}

#[test]
fn a_node_that_starts_on_a_full_disk_gives_what_it_has_and_takes_nothing_new() {
    if external().is_some() {
        return report_skipped("needs a node of its own");
    }
    let mut node = start(&temporary_directory(), 0);
    let stored = StoredMessages::new(&node);
    let file = node.data_dir().join("tidegate.toml");
    fs::write(&file, config(1 << 43)).unwrap();
    node.crash();
    assert!(is(&node, "full"));
    new_things_are_rejected(&node, &stored);
    stored.take(&node, 0, 0..StoredMessages::MESSAGES);
    fs::write(&file, config(0)).unwrap();
    node.restart();
    all_is_well(&node);
    stored.has_nothing_more(&node, 0);
    stored.take(&node, 1, 0..StoredMessages::MESSAGES);
}

#[test]
fn on_a_full_disk_every_change_that_is_made_is_in_the_audit_log() {
    if external().is_some() {
        return report_skipped("needs a node of its own");
    }
    let Some(disk) = SmallDisk::mount() else {
        return report_skipped("a tmpfs cannot be mounted here (that needs root)");
    };
    let node = start(disk.path(), 0);
    // Objects of different lengths, so that the disk is full at any place of a write.
    let filler = disk.fill_but(2 * MIB);
    let token = local_token(&node);
    let post = |ban: &Value| send(&node, &token, "POST", "/api/v1/bans", ban);
    let mut rejected = 0;
    for number in 0..4000 {
        let ban = json!({"id": format!("b{number}"), "client_id": "x", "reason": "y".repeat(number * 37 % 900)});
        if post(&ban).status >= 500 {
            rejected += 1;
        }
        if rejected > 20 {
            break;
        }
    }
    assert!(rejected > 0, "the disk was never full");
    fs::remove_file(filler).unwrap();
    eventually("changes are made again", || {
        let ban = json!({"id": unique("later"), "client_id": "x"});
        post(&ban).status == 201
    });
    let ids = |first: &str, field: &str| {
        let (mut ids, mut next) = (BTreeSet::new(), Some(first.to_owned()));
        while let Some(path) = next {
            let page = send(&node, &token, "GET", &path, &Value::Null).body;
            let rows = page["data"].as_array().unwrap().iter();
            ids.extend(rows.map(|row| row[field].as_str().unwrap_or_default().to_owned()));
            let cursor = page["next"].as_str();
            next = cursor.map(|cursor| format!("{first}&after={cursor}"));
        }
        ids
    };
    let made = ids("/api/v1/bans?limit=1000", "id");
    let recorded = ids("/api/v1/audit-log?limit=1000&action=ban.create", "subject");
    let missing: Vec<_> = made.difference(&recorded).collect();
    assert!(missing.is_empty(), "not recorded: {missing:?}");
    drop(node);
    drop(disk);
}

/// Limits the size of files that the node may write, as a disk that fails does.
fn limit_file_size(node: &Node, bytes: &str) {
    let pid = node.pid().to_string();
    let limit = format!("--fsize={bytes}:unlimited");
    let status = Command::new("prlimit")
        .args(["--pid", &pid, &limit])
        .status();
    assert!(status.unwrap().success());
}

/// The node waits 5 s for a store that does not write before it closes the connections with unanswered messages.
const FAILURE_DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn nothing_waits_without_an_answer_for_a_store_that_fails() {
    if external().is_some() {
        return report_skipped("needs a node of its own");
    }
    let node = start(&temporary_directory(), 0);
    let topic = unique("failing/");
    let away = unique("away");
    let mut raw = Raw::connect(&node, &durable(5, &away));
    raw.subscribe(&topic, 2);
    raw.disconnect();
    let mut publishers = [4, 5].map(|version| Raw::client(&node, version));
    limit_file_size(&node, "1");
    for publisher in &mut publishers {
        publisher.send_publish(&Publish::new(&topic, "in flight").qos(1, 1));
    }
    let [mut old, mut new] = publishers;
    // Neither success, which would confirm what is not durable, nor an error, which would deny what may still arrive.
    assert_eq!(old.packets_until_closed_within(FAILURE_DEADLINE), []);
    let packets = new.packets_until_closed_within(FAILURE_DEADLINE);
    let reasons: Vec<_> = packets
        .iter()
        .map(|packet| (packet.kind, packet.reason))
        .collect();
    assert_eq!(reasons, [(kind::DISCONNECT, 0x83)]);
    eventually("the failure is known", || is(&node, "failed"));
    let mut publisher = Raw::client(&node, 5);
    for qos in [1, 2] {
        let reason = answer(&mut publisher, &Publish::new(&topic, "x").qos(qos, 7));
        assert_eq!(reason, QUOTA_EXCEEDED, "at QoS {qos}");
    }
    let mut old = Raw::client(&node, 4);
    old.send_publish(&Publish::new(&topic, "x").qos(1, 7));
    old.expect_closed();

    limit_file_size(&node, "unlimited");
    all_is_well(&node);
    let mut raw = resume(&node, &away);
    for _ in 0..2 {
        let message = raw.recv(kind::PUBLISH);
        assert_eq!(message.text(), "in flight");
        raw.send(&ack(kind::PUBACK, message.id()));
    }
}
