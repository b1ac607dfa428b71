//! Chapter 3.3 without retained messages: the DUP flag, QoS bits, topic names, overlapping subscriptions.

use super::{V311, client, expect_violation, persistent, subscriber, topic};
use crate::support::{Node, Publish, Raw, Subscribe, ack, external, frame, kind, string, unique};

#[test]
fn mqtt_3_3_1_1_dup_is_1_when_a_message_is_sent_again() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    publisher.publish_qos1(&topic, "one", 1);
    publisher.publish_qos2(&topic, "two", 2);
    let one = raw.recv_message(&topic, "one");
    let two = raw.recv_message(&topic, "two");
    assert!(!one.dup() && !two.dup());
    raw.cut();
    // Not only the first time.
    for _ in 0..2 {
        let mut raw = super::resume(&id, true);
        for first in [&one, &two] {
            let again = raw.recv(kind::PUBLISH);
            let mut expected = first.bytes.clone();
            expected[0] |= 0x08;
            assert_eq!(again.bytes, expected, "the same packet with DUP");
        }
        raw.ping();
        raw.cut();
    }
}

#[test]
fn mqtt_3_3_1_1_a_message_sent_for_the_first_time_after_a_reconnect_has_no_dup() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    raw.disconnect();
    let mut publisher = client();
    publisher.publish_qos1(&topic, "one", 1);
    publisher.publish_qos2(&topic, "two", 2);
    let mut raw = super::resume(&id, true);
    assert!(!raw.recv_message(&topic, "one").dup());
    assert!(!raw.recv_message(&topic, "two").dup());
}

#[test]
fn mqtt_3_3_1_2_dup_must_be_0_for_qos_0() {
    let mut publish = Publish::new("a", "x").bytes(V311);
    publish[0] |= 0x08;
    expect_violation("QoS 0 with DUP", &publish);
}

#[test]
fn mqtt_3_3_1_2_the_server_sends_qos_0_without_dup() {
    let topic = topic();
    let mut subscriber = subscriber(&topic, 0);
    client().send_publish(&Publish::new(&topic, "x").qos(1, 1).dup());
    subscriber.recv_exactly(&Publish::new(&topic, "x").bytes(V311));
}

#[test]
fn mqtt_3_3_1_3_dup_of_an_incoming_message_is_not_propagated() {
    let topic = topic();
    let mut subscriber = subscriber(&topic, 2);
    let mut publisher = client();
    for qos in [1, 2] {
        publisher.send_publish(&Publish::new(&topic, "x").qos(qos, qos.into()).dup());
        publisher.recv_packet();
        if qos == 2 {
            publisher.send(&ack(kind::PUBREL, 2));
            publisher.recv(kind::PUBCOMP);
        }
        let message = subscriber.recv_message(&topic, "x");
        assert_eq!((message.qos(), message.dup()), (qos, false));
    }
}

#[test]
fn mqtt_3_3_1_4_qos_3_closes_the_connection() {
    for flags in [0x06, 0x07, 0x0e, 0x0f] {
        let mut publish = Publish::new("a", "x").qos(1, 1).bytes(V311);
        publish[0] = 0x30 | flags;
        expect_violation("QoS 3", &publish);
    }
}

#[test]
fn mqtt_3_3_1_4_nothing_of_a_qos_3_publish_is_delivered() {
    let topic = topic();
    let mut subscriber = subscriber(&topic, 0);
    let mut publish = Publish::new(&topic, "bad").qos(1, 1).bytes(V311);
    publish[0] |= 0x06;
    expect_violation("QoS 3", &publish);
    client().publish(&topic, "marker");
    subscriber.recv_message(&topic, "marker");
}

#[test]
fn mqtt_3_3_2_1_the_topic_name_comes_first_and_is_utf8() {
    expect_violation("0xFF", &Publish::new(b"a\xff", "x").bytes(V311));
    let topic = "gr\u{fc}\u{df}e/\u{1f980}/".to_owned() + &topic();
    let mut client = subscriber(&topic, 1);
    client.send_publish(&Publish::new(&topic, "x").qos(1, 1));
    let mut packets = [client.recv_packet(), client.recv_packet()];
    packets.sort_by_key(|packet| packet.kind);
    let id = packets[0].id().to_be_bytes().to_vec();
    assert_eq!(
        packets[0].bytes,
        frame(0x32, &[string(&topic), id, b"x".to_vec()].concat())
    );
}

#[test]
fn mqtt_3_3_2_2_a_wildcard_in_a_topic_name_closes_the_connection() {
    for bad in ["#", "+", "a/#", "a/+", "+/a", "a/+/b", "a#", "a+b", "#/a"] {
        for qos in 0..3 {
            expect_violation(bad, &Publish::new(bad, "x").qos(qos, 1).bytes(V311));
        }
    }
}

#[test]
fn mqtt_3_3_2_2_a_message_on_a_wildcard_topic_is_not_delivered() {
    let base = topic();
    let mut subscriber = subscriber(&format!("{base}/#"), 0);
    expect_violation(
        "wildcard",
        &Publish::new(format!("{base}/+"), "bad").bytes(V311),
    );
    expect_violation(
        "wildcard",
        &Publish::new(format!("{base}/#"), "bad")
            .retain()
            .bytes(V311),
    );
    client().publish(&base, "marker");
    subscriber.recv_message(&base, "marker");
}

#[test]
fn mqtt_3_3_2_3_messages_carry_the_topic_name_they_were_published_to() {
    let base = topic();
    let mut subscriber = subscriber(&format!("{base}/+/#"), 0);
    let mut publisher = client();
    for tail in ["a", "a/b", "", "/", "A", " ", "a/b/c/d/e/f"] {
        let name = format!("{base}/{tail}");
        publisher.publish(&name, tail);
        subscriber.recv_message(&name, tail);
    }
}

#[test]
fn mqtt_3_3_3_payloads_of_any_size_and_bytes_pass_unchanged() {
    let topic = topic();
    let mut client = subscriber(&topic, 0);
    let all_bytes: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..1_000_000_u32)
        .map(|index| (index % 251) as u8)
        .collect();
    for payload in [&b""[..], b"\0", &all_bytes, &large] {
        client.publish(&topic, payload);
        let message = client.recv(kind::PUBLISH);
        assert_eq!(message.topic, topic);
        assert!(
            message.payload == payload,
            "a payload of {} bytes came back changed",
            payload.len()
        );
    }
}

#[test]
fn mqtt_3_3_4_1_the_answer_to_a_publish_follows_from_its_qos() {
    let mut client = client();
    client.publish("nowhere", "x");
    client.ping();
    client.send_publish(&Publish::new("nowhere", "x").qos(1, 0x1234));
    client.recv_exactly(&[0x40, 2, 0x12, 0x34]);
    client.ping();
    client.send_publish(&Publish::new("nowhere", "x").qos(2, 0x1235));
    client.recv_exactly(&[0x50, 2, 0x12, 0x35]);
    client.ping();
    client.send(&ack(kind::PUBREL, 0x1235));
    client.recv_exactly(&[0x70, 2, 0x12, 0x35]);
    client.ping();
}

#[test]
fn mqtt_3_3_5_1_overlapping_subscriptions_get_the_highest_qos() {
    let base = topic();
    let filters = [
        format!("{base}/#"),
        format!("{base}/+"),
        format!("{base}/a"),
    ];
    // Each filter once with the highest QoS, in every position.
    for best in 0..3 {
        let mut raw = client();
        for (index, filter) in filters.iter().enumerate() {
            raw.subscribe(filter, if index == best { 2 } else { 0 });
        }
        let mut publisher = client();
        let name = format!("{base}/a");
        publisher.publish_qos2(&name, "x", 1);
        publisher.publish_qos2(&name, "marker", 2);
        let mut messages = Vec::new();
        loop {
            let message = raw.recv(kind::PUBLISH);
            if message.text() == "marker" {
                break;
            }
            messages.push(message);
        }
        let qos = messages.iter().map(|message| message.qos()).max();
        assert_eq!(qos, Some(2), "{messages:?}");
        if external().is_none() {
            assert_eq!(messages.len(), 1, "once only: {messages:?}");
        }
    }
}

#[test]
fn mqtt_3_3_5_1_overlapping_subscriptions_of_a_stored_session_get_the_highest_qos() {
    let (id, base) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&format!("{base}/+"), 0);
    raw.subscribe(&format!("{base}/a"), 1);
    raw.disconnect();
    client().publish_qos1(&format!("{base}/a"), "x", 1);
    let mut raw = super::resume(&id, true);
    let message = raw.recv_message(&format!("{base}/a"), "x");
    assert_eq!(message.qos(), 1);
    raw.ping();
}

#[test]
fn mqtt_3_3_5_2_a_publish_that_is_not_allowed_is_acknowledged_or_closes_the_connection() {
    // Clients may not write into the broker's own topics.
    for qos in [1, 2] {
        let mut raw = client();
        raw.send_publish(&Publish::new("$SYS/forged", "x").qos(qos, 7));
        raw.send(&[0xe0, 0]);
        let packets = raw.packets_until_closed();
        let answer = [if qos == 1 { 0x40 } else { 0x50 }, 2, 0, 7];
        assert!(
            packets.is_empty() || packets.len() == 1 && packets[0].bytes == answer,
            "{packets:?}"
        );
    }
}

#[test]
fn mqtt_3_3_5_2_the_publisher_gets_its_own_message_if_it_subscribes() {
    let topic = topic();
    let mut raw = Raw::connect(Node::shared(), &persistent(&unique("c")));
    assert_eq!(
        raw.subscribe_for_codes(&Subscribe::new(3).filter(&topic, 1)),
        [1]
    );
    raw.publish(&topic, "own");
    raw.recv_message(&topic, "own");
    // Leave no session behind.
    raw.unsubscribe(&topic);
}
