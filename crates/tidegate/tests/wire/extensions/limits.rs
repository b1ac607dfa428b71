//! The node's limits. Those a CONNACK announces are in `mqtt5/connack.rs`, those of queues in `queue_policies.rs`.

use super::*;
use crate::support::Random;

#[test]
fn a_session_holds_so_many_subscriptions() {
    let Some(node) = node_with(&["limits.max_subscriptions_per_session=3"]) else {
        return;
    };
    let base = unique("many/");
    let mut raw = client(node);
    let mut subscribe = Subscribe::new(1);
    for number in 0..5 {
        subscribe = subscribe.filter(format!("{base}/{number}"), 1);
    }
    let full = reason::QUOTA_EXCEEDED;
    assert_eq!(raw.subscribe_for_codes(&subscribe), [1, 1, 1, full, full]);
    // One it has may be replaced; shared ones count as well.
    raw.subscribe(&format!("{base}/0"), 2);
    let shared = Subscribe::new(1).filter(format!("$share/g/{base}/0"), 0);
    assert_eq!(raw.subscribe_for_codes(&shared), [full]);
    raw.unsubscribe(&format!("{base}/1"));
    assert_eq!(raw.subscribe_for_codes(&shared), [0]);
    assert_eq!(raw.subscribe_for_codes(&shared), [0]);
}

fn retained(node: &Node, filter: &str) -> Vec<Packet> {
    let mut raw = client(node);
    raw.subscribe(filter, 0);
    raw.ping_for_packets()
}

#[test]
fn so_many_messages_are_retained() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    // A node of its own: $SYS messages may be retained too, so they are off.
    let node = Node::start(&[
        "--set",
        "limits.max_retained_messages=2",
        "--set",
        "node.sys_interval_s=0",
    ]);
    let mut raw = client(&node);
    let retain = |topic: &str, payload: &str| Publish::new(topic, payload).qos(1, 1).retain();
    assert!(publish_for_code(&mut raw, &retain("r/1", "x")) < 0x80);
    assert!(publish_for_code(&mut raw, &retain("r/2", "x")) < 0x80);
    let full = publish_for_code(&mut raw, &retain("r/3", "x"));
    assert_eq!(full, reason::QUOTA_EXCEEDED);
    assert_eq!(
        publish_for_code(&mut raw, &retain("r/3", "x").qos(2, 1)),
        full
    );
    // Replacing and removing go on, and make room.
    assert!(publish_for_code(&mut raw, &retain("r/1", "y")) < 0x80);
    assert_eq!(retained(&node, "r/#").len(), 2);
    assert!(publish_for_code(&mut raw, &retain("r/2", "")) < 0x80);
    assert!(publish_for_code(&mut raw, &retain("r/3", "x")) < 0x80);
    let topics: Vec<String> = retained(&node, "r/#")
        .into_iter()
        .map(|p| p.topic)
        .collect();
    assert_eq!(topics, ["r/1", "r/3"]);
}

#[test]
fn a_retained_payload_has_a_largest_size() {
    let Some(node) = node_with(&["limits.max_retained_payload_bytes=10"]) else {
        return;
    };
    let topic = unique("retain/");
    let mut raw = client(node);
    for qos in [1, 2] {
        let publish = Publish::new(&topic, [b'x'; 11]).qos(qos, 1).retain();
        let code = publish_for_code(&mut raw, &publish);
        // One of the codes that PUBACK and PUBREC have [MQTT-3.4.2-1].
        let expected = [0x80, 0x83, reason::QUOTA_EXCEEDED];
        assert!(expected.contains(&code), "{code:#04x}");
    }
    assert_eq!(retained(node, &topic), []);
    let publish = Publish::new(&topic, [b'x'; 10]).qos(1, 1).retain();
    assert!(publish_for_code(&mut raw, &publish) < 0x80);
    assert_eq!(retained(node, &topic).len(), 1);
    // Larger ones that are not retained pass.
    raw.publish_qos1(&topic, [b'x'; 1000], 1);
}

#[test]
fn retained_bytes_are_bounded() {
    let Some(node) = node_with(&["limits.max_retained_bytes=5000", "node.sys_interval_s=0"]) else {
        return;
    };
    let topic = unique("retain/");
    let mut raw = client(node);
    let codes: Vec<u8> = (0..10)
        .map(|number| {
            let publish = Publish::new(format!("{topic}/{number}"), [b'x'; 1000]);
            publish_for_code(&mut raw, &publish.qos(1, 1).retain())
        })
        .collect();
    let kept = codes.iter().filter(|code| **code < 0x80).count();
    assert!((2..=5).contains(&kept), "{codes:02x?}");
    assert!(
        codes[kept..]
            .iter()
            .all(|code| *code == reason::QUOTA_EXCEEDED)
    );
    assert_eq!(retained(node, &format!("{topic}/#")).len(), kept);
}

/// The topic is rejected: by PUBACK, or as the topic of a DISCONNECT where that is all there is.
fn expect_topic_rejected(node: &Node, topic: &str) {
    for qos in 0..3 {
        let mut raw = client(node);
        raw.send_publish(&Publish::new(topic, "x").qos(qos, 1));
        let answer = raw.recv_packet();
        assert_eq!(answer.reason, reason::TOPIC_INVALID, "{answer:?}");
    }
    let mut raw = client(node);
    let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(topic, 0));
    assert_eq!(codes, [reason::FILTER_INVALID], "{topic}");
}

fn expect_topic_accepted(node: &Node, topic: &str) {
    let mut raw = client(node);
    raw.subscribe(topic, 0);
    raw.publish(topic, "x");
    raw.recv_message(topic, "x");
}

#[test]
fn topics_have_so_many_levels() {
    let Some(node) = node_with(&["limits.max_topic_levels=4"]) else {
        return;
    };
    for topic in ["a/b/c/d", "///", "a"] {
        expect_topic_accepted(node, topic);
    }
    for topic in ["a/b/c/d/e", "////", "a/b/c/d/"] {
        expect_topic_rejected(node, topic);
    }
    // The name of a group is no level.
    client(node).subscribe("$share/group/a/b/c/d", 0);
}

#[test]
fn topics_have_so_many_bytes() {
    let Some(node) = node_with(&["limits.max_topic_bytes=20"]) else {
        return;
    };
    expect_topic_accepted(node, "01234567890123456789");
    expect_topic_accepted(node, "éééééééééé");
    expect_topic_rejected(node, "01234567890123456789a");
    expect_topic_rejected(node, "éééééééééé1");
}

#[test]
fn a_will_keeps_to_the_limits_of_topics() {
    let Some(node) = node_with(&["limits.max_topic_levels=4"]) else {
        return;
    };
    let mut raw = Raw::open(node, 5);
    let connack = raw.hand_shake(&connect(&unique("c")).will(Will::new("a/b/c/d/e", "x")));
    assert_eq!(connack.reason, reason::TOPIC_INVALID);
    raw.expect_closed();
}

#[test]
fn the_server_sends_so_many_at_once() {
    let Some(node) = node_with(&["limits.max_inflight=5"]) else {
        return;
    };
    let topic = unique("inflight/");
    let mut raw = client(node);
    raw.subscribe(&topic, 1);
    let mut publisher = client(node);
    publish_all(&mut publisher, &topic, 0..8);
    let first = raw.recv_message(&topic, "0");
    for number in 1..5 {
        raw.recv_message(&topic, number.to_string());
    }
    raw.ping();
    raw.acknowledge(&first);
    raw.recv_message(&topic, "5");
    raw.ping();
}

#[test]
fn topic_aliases_can_be_turned_off_towards_the_server() {
    let Some(node) = node_with(&["limits.topic_alias_maximum=0"]) else {
        return;
    };
    let (mut raw, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
    assert!(matches!(
        connack.number(property::TOPIC_ALIAS_MAXIMUM),
        None | Some(0)
    ));
    let properties = Props::new().u16(property::TOPIC_ALIAS, 1);
    raw.send_publish(&Publish::new("a", "x").properties(properties));
    raw.expect_disconnect(reason::TOPIC_ALIAS_INVALID);
}

#[test]
fn topic_aliases_can_be_bounded_towards_the_client() {
    for maximum in [0_u32, 2] {
        let set = format!("limits.max_outgoing_topic_aliases={maximum}");
        let Some(node) = node_with(&[&set]) else {
            return;
        };
        let properties = Props::new().u16(property::TOPIC_ALIAS_MAXIMUM, 100);
        let mut raw = Raw::connect(node, &connect(&unique("c")).properties(properties));
        let base = unique("alias/");
        raw.subscribe(&format!("{base}/+"), 0);
        let mut publisher = client(node);
        for number in 0..30 {
            publisher.publish(&format!("{base}/{}", number % 6), "x");
            let message = raw.recv(kind::PUBLISH);
            let alias = message.number(property::TOPIC_ALIAS);
            assert!(alias.is_none_or(|alias| alias <= maximum), "{message:?}");
        }
    }
}

#[test]
fn the_payload_format_is_not_checked_if_configured() {
    let Some(node) = node_with(&["limits.validate_payload_format=false"]) else {
        return;
    };
    let topic = unique("format/");
    let mut subscriber = client(node);
    subscriber.subscribe(&topic, 0);
    let utf8 = Props::new().byte(property::PAYLOAD_FORMAT, 1);
    let publish = Publish::new(&topic, b"\xff").qos(1, 1).properties(utf8);
    assert_eq!(publish_for_code(&mut client(node), &publish), 0);
    let message = subscriber.recv_message(&topic, b"\xff");
    assert_eq!(message.number(property::PAYLOAD_FORMAT), Some(1));
}

#[test]
fn packets_over_the_servers_maximum_are_rejected_before_connect_too() {
    let Some(node) = node_with(&["limits.max_packet_size=1024"]) else {
        return;
    };
    let mut raw = Raw::open(node, 5);
    raw.send(&connect(&"i".repeat(1020)).bytes());
    for packet in raw.packets_until_closed() {
        assert_eq!(
            (packet.kind, packet.reason),
            (kind::CONNACK, reason::PACKET_TOO_LARGE),
            "{packet:?}"
        );
    }
}

#[test]
fn the_bytes_of_subscriptions_are_bounded() {
    let settings = "limits.max_subscription_bytes_per_session=10KiB";
    let Some(node) = node_with(&[settings]) else {
        return;
    };
    let base = unique("bytes/");
    let long = |number: u32| format!("{base}/{number}/{}", "x".repeat(4000));
    let mut raw = client(node);
    let subscribe = |number| Subscribe::new(1).filter(long(number), 0);
    assert_eq!(raw.subscribe_for_codes(&subscribe(1)), [0]);
    assert_eq!(raw.subscribe_for_codes(&subscribe(2)), [0]);
    let full = reason::QUOTA_EXCEEDED;
    assert_eq!(raw.subscribe_for_codes(&subscribe(3)), [full]);
    // One it has may be replaced, and one that goes makes room.
    assert_eq!(raw.subscribe_for_codes(&subscribe(2)), [0]);
    raw.unsubscribe(&long(1));
    assert_eq!(raw.subscribe_for_codes(&subscribe(3)), [0]);
}

#[test]
fn a_connect_that_is_too_large_is_rejected_with_its_first_bytes() {
    let Some(node) = node_with(&["limits.max_connect_bytes=1KiB"]) else {
        return;
    };
    let will = |bytes: usize| {
        let will = Will::new("gone", vec![b'x'; bytes]);
        connect(&unique("c")).will(will)
    };
    let (mut raw, _) = Raw::connect_for_connack(node, &will(500));
    // Behind CONNECT the packet size counts.
    raw.publish_qos1("large", vec![b'x'; 5000], 1);
    let mut raw = Raw::open(node, 5);
    raw.send(&will(2000).bytes()[..100]);
    let rejected = raw.packets_until_closed();
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert_eq!(rejected[0].reason, reason::PACKET_TOO_LARGE, "{rejected:?}");
}

#[test]
fn a_packet_that_has_begun_becomes_whole_in_time_or_ends_the_connection() {
    let Some(node) = node_with(&["limits.packet_timeout_s=1"]) else {
        return;
    };
    let mut raw = Raw::connect(node, &connect(&unique("c")).keep_alive(0));
    raw.ping();
    // A PUBLISH of 100 bytes, of which two come.
    raw.send(b"\x30\x64");
    let last_packets = raw.packets_until_closed();
    assert_eq!(last_packets.len(), 1, "{last_packets:?}");
    assert_eq!(last_packets[0].kind, kind::DISCONNECT, "{last_packets:?}");
    // Who sends nothing is left alone.
    let mut idle = Raw::connect(node, &connect(&unique("c")).keep_alive(0));
    let mut other = Raw::connect(node, &connect(&unique("c")).keep_alive(0));
    other.send(b"\x30\x64");
    other.packets_until_closed();
    idle.ping();
}

#[test]
fn unfinished_packets_of_all_clients_have_a_bound() {
    let Some(node) = node_with(&["limits.max_partial_packet_bytes_per_shard=256KiB"]) else {
        return;
    };
    // Half a MiB announced, and most of it sent, by each of a few.
    let body = vec![b'x'; 100_000];
    let mut greedy: Vec<Raw> = (0..16)
        .map(|_| {
            let mut raw = client(node);
            raw.send(b"\x30\x80\x80\x20");
            raw.try_send(&body);
            raw
        })
        .collect();
    // A listener may take half of it on a shard, so that most of them have to go.
    eventually("those beyond the bound are closed", || {
        let closed = greedy
            .iter_mut()
            .filter_map(|raw| (!raw.try_send(b"x")).then_some(()));
        closed.count() >= 10
    });
    let mut other = client(node);
    other.ping();
}

#[test]
fn clients_of_other_protocols_are_closed_at_once_and_the_log_names_the_protocol() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::start(&["--shards", "1"]);
    let mut tls = Raw::open(&node, 5);
    tls.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    tls.expect_closed();
    eventually("the log says so", || {
        let log = node.log();
        log.contains("speaks TLS") && log.contains("mqtts")
    });
    let mut http = Raw::open(&node, 5);
    http.send(b"POST / HTTP/1.1\r\n");
    http.expect_closed();
}

#[test]
fn mutated_packets_do_not_disturb_others() {
    let Some(node) = node_with(&[]) else {
        return;
    };
    let mut random = Random::new(Random::seed());
    let topic = unique("mutated/");
    let (mut receiver, mut sender) = (client(node), client(node));
    receiver.subscribe(&topic, 0);
    let session = connect(&unique("m")).bytes();
    let packets = [
        session.clone(),
        Publish::new("mutated", vec![b'x'; 50]).qos(1, 1).bytes(5),
        Subscribe::new(1).filter("a/+/#", 1).bytes(5),
        Unsubscribe::new(2).filter("a/+/#").bytes(5),
        ack(kind::PUBREL, 1),
        vec![0xe0, 0x00],
    ];
    for round in 0..2000 {
        let mut raw = Raw::open(node, 5);
        let begins = random.below(4) > 0;
        if begins {
            raw.try_send(&session);
        }
        let mut packet = packets[random.below(packets.len())].clone();
        for _ in 0..=random.below(3) {
            let at = random.below(packet.len());
            match random.below(3) {
                0 => packet[at] = random.next() as u8,
                1 => packet.truncate(at.max(1)),
                _ => packet.insert(at, random.next() as u8),
            }
        }
        raw.try_send(&packet);
        if round % 100 == 0 {
            sender.publish(&topic, round.to_string());
            receiver.recv_message(&topic, round.to_string());
        }
    }
    let metrics = crate::listeners::get(node, "/metrics");
    let panics = metrics
        .body
        .lines()
        .find_map(|line| line.strip_prefix("tidegate_connection_panics_total "));
    assert_eq!(panics, Some("0"));
}
