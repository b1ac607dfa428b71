//! Overload: queues have bounds and stated policies, and a saturated node slows its publishers instead of growing.

use std::time::Duration;

use crate::support::{Connect, Node, Publish, Raw, Subscribe, ack, external, kind, unique};

const MIB: u64 = 1 << 20;

/// A session with CleanSession 0.
fn session(node: &Node, id: &str) -> Raw {
    Raw::connect(node, &Connect::new(4, id).persistent())
}

/// Publishes "0" to `count` - 1 at QoS 1, each acknowledged.
fn publish_numbers(node: &Node, topic: &str, count: u32) {
    let mut publisher = Raw::client(node, 4);
    for number in 0..count {
        publisher.publish_qos1(topic, number.to_string(), 1);
    }
}

/// All messages that are there for the session now, acknowledged.
fn drain(raw: &mut Raw) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(message) = raw.try_recv(Duration::from_millis(300)) {
        texts.push(message.text().to_owned());
        raw.acknowledge(&message);
    }
    texts
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn the_oldest_message_makes_room_in_a_full_queue() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&["--set", "limits.max_queued_messages=10"]);
    let (id, topic) = (unique("c"), unique("t"));
    let mut raw = session(node, &id);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    publish_numbers(node, &topic, 100);
    assert_eq!(drain(&mut session(node, &id)), numbers(90..100));
}

#[test]
fn the_policy_can_drop_the_newest_message() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&[
        "--set",
        "limits.max_queued_messages=10",
        "--set",
        "limits.queue_policy=drop_newest",
    ]);
    let (id, topic) = (unique("c"), unique("t"));
    let mut raw = session(node, &id);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    publish_numbers(node, &topic, 100);
    assert_eq!(drain(&mut session(node, &id)), numbers(0..10));
}

#[test]
fn the_policy_can_disconnect_a_slow_client() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&[
        "--set",
        "limits.max_queued_messages=10",
        "--set",
        "limits.max_inflight=5",
        "--set",
        "limits.queue_policy=disconnect",
    ]);
    let topic = unique("t");
    let mut slow = Raw::client(node, 5);
    slow.subscribe(&topic, 1);
    publish_numbers(node, &topic, 16);
    let packets = slow.packets_until_closed();
    let (last, messages) = packets.split_last().expect("messages and a DISCONNECT");
    assert_eq!(
        (last.kind, last.reason),
        (kind::DISCONNECT, 0x97),
        "{last:?}"
    );
    assert!(
        messages.len() <= 5,
        "more than limits.max_inflight: {messages:?}"
    );
}

#[test]
fn the_queue_is_bounded_in_bytes_too() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&["--set", "limits.max_queued_bytes=100000"]);
    let (id, topic) = (unique("c"), unique("t"));
    let mut raw = session(node, &id);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    let mut publisher = Raw::client(node, 4);
    let filling = "x".repeat(10_000);
    for number in 10..50 {
        publisher.publish_qos1(&topic, format!("{number}{filling}"), 1);
    }
    let kept: Vec<String> = drain(&mut session(node, &id))
        .iter()
        .map(|text| text[..2].to_owned())
        .collect();
    assert!(
        (5..=9).contains(&kept.len()),
        "{} messages of 10 kB in a queue of 100 kB",
        kept.len()
    );
    assert_eq!(kept, numbers(50 - kept.len() as u32..50));
}

#[test]
fn qos_0_messages_wait_for_a_session_if_configured() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&["--set", "limits.queue_qos0_messages=true"]);
    let (id, topic) = (unique("c"), unique("t"));
    let mut raw = session(node, &id);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    let mut publisher = Raw::client(node, 4);
    publisher.publish(&topic, "zero");
    publisher.publish_qos1(&topic, "one", 1);
    let mut raw = session(node, &id);
    assert_eq!(raw.recv_message(&topic, "zero").qos(), 0);
    assert_eq!(raw.recv_message(&topic, "one").qos(), 1);
}

#[test]
fn no_more_messages_are_in_flight_than_the_node_allows() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&["--set", "limits.max_inflight=5"]);
    let topic = unique("t");
    let mut raw = Raw::client(node, 4);
    raw.subscribe(&topic, 2);
    publish_numbers(node, &topic, 20);
    let mut in_flight: Vec<u16> = (0..5)
        .map(|n| raw.recv_message(&topic, n.to_string()).id())
        .collect();
    raw.ping();
    for number in 5..20 {
        raw.send(&ack(kind::PUBACK, in_flight.remove(2)));
        in_flight.push(raw.recv_message(&topic, number.to_string()).id());
        raw.ping();
    }
}

#[test]
fn messages_at_qos_0_are_not_held_back_by_a_full_window() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&["--set", "limits.max_inflight=5"]);
    let (topic, other) = (unique("t"), unique("o"));
    let mut raw = Raw::client(node, 4);
    raw.subscribe(&topic, 1);
    raw.subscribe(&other, 0);
    publish_numbers(node, &topic, 20);
    for number in 0..5 {
        raw.recv_message(&topic, number.to_string());
    }
    Raw::client(node, 4).publish(&other, "live");
    raw.recv_message(&other, "live");
}

#[test]
fn subscriptions_over_the_bound_are_rejected() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&["--set", "limits.max_subscriptions_per_session=3"]);
    let base = unique("t");
    let mut raw = Raw::client(node, 4);
    let subscribe = (0..5).fold(Subscribe::new(1), |all, n| {
        all.filter(format!("{base}/{n}"), 1)
    });
    assert_eq!(raw.subscribe_for_codes(&subscribe), [1, 1, 1, 0x80, 0x80]);
    // One that exists may be replaced, and a free place is usable again.
    assert_eq!(
        raw.subscribe_for_codes(&Subscribe::new(2).filter(format!("{base}/0"), 2)),
        [2]
    );
    raw.unsubscribe(&format!("{base}/1"));
    assert_eq!(
        raw.subscribe_for_codes(&Subscribe::new(3).filter(format!("{base}/4"), 1)),
        [1]
    );
}

#[test]
fn a_saturated_node_slows_its_publishers_and_recovers() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    // The sleepers' queues could hold 16 MiB each; all together may hold 8 MiB a shard.
    let node = Node::start(&[
        "--shards",
        "2",
        "--set",
        "limits.max_buffered_bytes_per_shard=8388608",
    ]);
    let topic = unique("t");
    let sleepers: Vec<Raw> = (0..20)
        .map(|_| {
            let mut raw = Raw::client(&node, 4);
            raw.subscribe(&topic, 1);
            raw
        })
        .collect();
    let before = node.resident_bytes();
    let mut publisher = Raw::client(&node, 4);
    // 40 MB, 20 times: the node cannot take it. So it stops reading, and the publisher's socket fills up.
    let payload = vec![b'x'; 20_000];
    let mut sent = 0_u16;
    let publishing = std::thread::spawn(move || {
        for id in 1..=2000 {
            publisher.send_patiently(
                &Publish::new(&topic, &payload).qos(1, id).bytes(4),
                Duration::from_secs(60),
            );
            sent = id;
        }
        (publisher, sent)
    });
    // The node must come to rest, not grow.
    let mut growth = 0;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(100));
        growth = node.resident_bytes().saturating_sub(before).max(growth);
    }
    assert!(
        growth < 96 * MIB,
        "the node has grown by {} MiB",
        growth / MIB
    );
    // Others can still connect and ask.
    Raw::client(&node, 4).ping();
    // The sleepers go; the node reads on, and every message is acknowledged.
    for sleeper in sleepers {
        sleeper.cut();
    }
    let (mut publisher, sent) = publishing.join().unwrap();
    for id in 1..=sent {
        assert_eq!(publisher.recv(kind::PUBACK).id(), id);
    }
    publisher.ping();
}
