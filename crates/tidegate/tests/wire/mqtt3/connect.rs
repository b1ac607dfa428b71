//! Chapter 3.1 without flags, wills and keep-alive: the first packet, protocol names and levels, client identifiers.

use super::{V311, client, expect_no_connack, expect_violation, subscriber, topic};
use crate::support::{
    Connect, Node, Packet, Publish, Raw, Subscribe, external, frame, kind, string, unique,
};

#[test]
fn mqtt_3_1_0_1_any_other_first_packet_closes_the_connection() {
    expect_no_connack("PUBLISH", &Publish::new("a", "x").bytes(V311));
    expect_no_connack(
        "PUBLISH of QoS 1",
        &Publish::new("a", "x").qos(1, 1).bytes(V311),
    );
    expect_no_connack("SUBSCRIBE", &Subscribe::new(1).filter("a", 0).bytes(V311));
    expect_no_connack("UNSUBSCRIBE", &[0xa2, 5, 0, 1, 0, 1, b'a']);
    for kind in [kind::PUBACK, kind::PUBREC, kind::PUBCOMP] {
        expect_no_connack("an acknowledgement", &[kind << 4, 2, 0, 1]);
    }
    expect_no_connack("PUBREL", &[0x62, 2, 0, 1]);
    expect_no_connack("PINGREQ", &[0xc0, 0]);
    expect_no_connack("DISCONNECT", &[0xe0, 0]);
    expect_no_connack("CONNACK", &[0x20, 2, 0, 0]);
}

#[test]
fn mqtt_3_1_0_1_what_comes_before_connect_has_no_effect() {
    let topic = topic();
    let mut subscriber = subscriber(&topic, 0);
    let mut intruder = Raw::open(Node::shared(), V311);
    let mut bytes = Publish::new(&topic, "too early").bytes(V311);
    bytes.extend(Connect::new(V311, unique("c")).bytes());
    intruder.send(&bytes);
    intruder.expect_closed();
    client().publish(&topic, "right");
    subscriber.recv_message(&topic, "right");
}

#[test]
fn mqtt_3_1_0_2_a_second_connect_closes_the_connection() {
    let connect = Connect::new(V311, unique("c"));
    let mut raw = Raw::connect(Node::shared(), &connect);
    raw.send(&connect.bytes());
    raw.expect_closed();
    expect_violation(
        "with another client identifier",
        &Connect::new(V311, unique("c")).bytes(),
    );
    expect_violation("of another version", &Connect::new(5, unique("c")).bytes());
}

#[test]
fn mqtt_3_1_0_2_a_second_connect_in_the_same_segment_closes_the_connection() {
    let mut raw = Raw::open(Node::shared(), V311);
    let connect = Connect::new(V311, unique("c")).bytes();
    raw.send(&[connect.clone(), connect].concat());
    let packets = raw.packets_until_closed();
    assert!(
        packets.len() <= 1 && packets.iter().all(|packet| packet.kind == kind::CONNACK),
        "{packets:?}"
    );
}

#[test]
fn mqtt_3_1_2_1_another_protocol_name_is_not_served_as_mqtt() {
    for name in ["MQTT5", "mqtt", "MQT", "", "HTTP", "MQTTT"] {
        let mut raw = Raw::open(Node::shared(), V311);
        raw.send(&Connect::new(V311, unique("c")).protocol_name(name).bytes());
        rejected_or_closed(&mut raw, name);
    }
}

#[test]
fn mqtt_3_1_2_1_the_name_of_3_1_with_the_level_of_3_1_1_is_not_served() {
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(
        &Connect::new(V311, unique("c"))
            .protocol_name("MQIsdp")
            .bytes(),
    );
    rejected_or_closed(&mut raw, "MQIsdp with level 4");
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&Connect::new(3, unique("c")).protocol_name("MQTT").bytes());
    rejected_or_closed(&mut raw, "MQTT with level 3");
}

/// The connection must end, at most with a CONNACK of return code 1 before.
fn rejected_or_closed(raw: &mut Raw, what: &str) {
    for packet in raw.packets_until_closed() {
        assert_eq!(packet.bytes, [0x20, 2, 0, 1], "{what}: {packet:?}");
    }
}

#[test]
fn mqtt_3_1_2_2_an_unknown_protocol_level_is_rejected_with_code_1() {
    for level in [0, 1, 2] {
        let mut raw = Raw::open(Node::shared(), V311);
        raw.send(&with_level(level));
        raw.recv_exactly(&[0x20, 2, 0, 1]);
        raw.expect_closed();
    }
}

#[test]
fn mqtt_3_1_2_2_a_level_of_the_future_is_rejected_in_the_way_of_3_1_1_or_of_5() {
    // A server of both versions cannot know which of them such a client understands.
    for level in [6, 7, 127] {
        let mut raw = Raw::open(Node::shared(), V311);
        raw.send(&with_level(level));
        let bytes = raw.recv_bytes();
        if bytes != [0x20, 2, 0, 1] {
            let packet = Packet::parse(&bytes, 5);
            assert_eq!(
                (packet.kind, packet.session_present, packet.reason),
                (kind::CONNACK, false, 0x84)
            );
        }
        raw.expect_closed();
    }
}

fn with_level(level: u8) -> Vec<u8> {
    let mut connect = Connect::new(V311, unique("c"));
    connect.version = level;
    connect.bytes()
}

#[test]
fn mqtt_3_1_3_2_sessions_are_told_apart_by_the_client_identifier() {
    let (first, second) = (unique("a"), unique("b"));
    let topic = topic();
    let mut raw = super::resume(&first, false);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    super::resume(&second, false).ping();
    super::resume(&first.to_uppercase(), false).ping();
    let mut raw = super::resume(&first, true);
    raw.publish(&topic, "x");
    raw.recv_message(&topic, "x");
}

#[test]
fn mqtt_3_1_3_3_connect_without_a_client_identifier_closes_the_connection() {
    let mut body = string("MQTT");
    body.extend([4, 2, 0, 0]);
    expect_no_connack("no payload", &frame(0x10, &body));
    body.push(0);
    expect_no_connack("half a length", &frame(0x10, &body));
    body.extend([3, b'a', b'b']);
    expect_no_connack("an identifier past the end", &frame(0x10, &body));
}

#[test]
fn mqtt_3_1_3_5_client_identifiers_of_1_to_23_letters_and_digits_are_accepted() {
    let alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for part in alphabet.as_bytes().chunks(23) {
        Raw::connect(Node::shared(), &Connect::new(V311, part)).ping();
    }
    for length in 1..=23 {
        Raw::connect(
            Node::shared(),
            &Connect::new(V311, &alphabet[62 - length..]),
        )
        .ping();
    }
    Raw::connect(Node::shared(), &Connect::new(V311, "z").persistent()).ping();
    // Leave nothing behind.
    Raw::connect(Node::shared(), &Connect::new(V311, "z")).ping();
}

#[test]
fn mqtt_3_1_3_5_longer_and_other_client_identifiers_are_accepted_too() {
    for id in [
        unique("with spaces / + # $ and \u{e9}\u{1f980} "),
        unique(&"x".repeat(200)),
    ] {
        Raw::connect(Node::shared(), &Connect::new(V311, id)).ping();
    }
}

#[test]
fn mqtt_3_1_3_6_an_empty_client_identifier_gets_a_unique_one() {
    let topic = topic();
    let connect = Connect::new(V311, "");
    let mut clients: Vec<Raw> = (0..5)
        .map(|_| {
            let (mut raw, connack) = Raw::connect_for_connack(Node::shared(), &connect);
            assert_eq!(connack.bytes, [0x20, 2, 0, 0]);
            raw.subscribe(&topic, 0);
            raw
        })
        .collect();
    // None has taken over another's connection.
    client().publish(&topic, "all");
    for client in &mut clients {
        client.recv_message(&topic, "all");
        client.ping();
    }
}

#[test]
fn mqtt_3_1_3_8_an_empty_client_identifier_without_clean_session_is_rejected_with_code_2() {
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&Connect::new(V311, "").persistent().bytes());
    raw.recv_exactly(&[0x20, 2, 0, 2]);
    raw.expect_closed();
}

#[test]
fn mqtt_3_1_3_9_a_client_identifier_over_the_limit_is_rejected_with_code_2() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    // limits.max_client_id_bytes is 1024 unless set.
    Raw::connect(
        Node::shared(),
        &Connect::new(V311, unique(&"x".repeat(1000))),
    )
    .ping();
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&Connect::new(V311, "x".repeat(1025)).bytes());
    raw.recv_exactly(&[0x20, 2, 0, 2]);
    raw.expect_closed();
}

#[test]
fn mqtt_3_1_4_1_a_connect_that_does_not_conform_is_not_answered() {
    let good = Connect::new(V311, unique("c"));
    expect_no_connack("reserved connect flag", &good.clone().flags(0x03).bytes());
    let bytes = good.bytes();
    for length in 0..bytes.len() - 2 {
        expect_no_connack(
            "cut short, with a remaining length to match",
            &frame(0x10, &bytes[2..2 + length]),
        );
    }
    let mut longer = bytes[2..].to_vec();
    longer.push(0);
    expect_no_connack("a surplus byte", &frame(0x10, &longer));
}

#[test]
fn mqtt_3_1_4_2_a_second_connection_of_a_client_ends_the_first() {
    for clean in [true, false] {
        let mut connect = Connect::new(V311, unique("c"));
        connect.clean = clean;
        let mut connections = vec![Raw::connect(Node::shared(), &connect)];
        for _ in 0..4 {
            let mut newer = Raw::connect(Node::shared(), &connect);
            connections.last_mut().unwrap().expect_closed();
            newer.ping();
            connections.push(newer);
        }
    }
}

#[test]
fn mqtt_3_1_4_2_a_client_of_another_protocol_version_is_the_same_client() {
    let id = unique("c");
    let mut first = Raw::connect(Node::shared(), &Connect::new(V311, &id));
    let mut second = Raw::connect(Node::shared(), &Connect::new(5, &id));
    first.expect_closed();
    let mut third = Raw::connect(Node::shared(), &Connect::new(3, &id));
    second.packets_until_closed();
    third.ping();
}

#[test]
fn mqtt_3_1_4_3_clean_session_is_honoured_after_a_takeover() {
    let id = unique("c");
    let topic = topic();
    let mut first = super::resume(&id, false);
    first.subscribe(&topic, 1);
    // Still connected: the takeover must hand the session on.
    let mut second = super::resume(&id, true);
    first.expect_closed();
    second.publish(&topic, "kept");
    second.recv_message(&topic, "kept");
    let (mut third, connack) = Raw::connect_for_connack(Node::shared(), &Connect::new(V311, &id));
    second.expect_closed();
    assert!(!connack.session_present);
    third.publish(&topic, "lost");
    third.ping();
}

#[test]
fn mqtt_3_1_4_4_a_good_connect_is_acknowledged_with_code_0() {
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&Connect::new(V311, unique("c")).bytes());
    raw.recv_exactly(&[0x20, 2, 0, 0]);
    raw.ping();
}

#[test]
fn mqtt_3_1_4_packets_may_follow_connect_without_waiting_for_connack() {
    let topic = topic();
    let mut bytes = Connect::new(V311, unique("c")).bytes();
    bytes.extend(Subscribe::new(9).filter(&topic, 0).bytes(V311));
    bytes.extend(Publish::new(&topic, "early").bytes(V311));
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&bytes);
    raw.recv_exactly(&[0x20, 2, 0, 0]);
    // A message may come before the SUBACK.
    let mut packets = [raw.recv_packet(), raw.recv_packet()];
    packets.sort_by_key(|packet| packet.kind);
    assert_eq!(packets[0].bytes, Publish::new(&topic, "early").bytes(V311));
    assert_eq!(packets[1].bytes, [0x90, 3, 0, 9, 0]);
    raw.ping();
}

#[test]
fn mqtt_3_1_4_5_nothing_after_a_rejected_connect_is_processed() {
    let topic = topic();
    let mut subscriber = subscriber(&topic, 0);
    let mut rejected = Raw::open(Node::shared(), V311);
    let mut bytes = Connect::new(V311, "").persistent().bytes();
    bytes.extend(Publish::new(&topic, "rejected").retain().bytes(V311));
    rejected.send(&bytes);
    rejected.recv_exactly(&[0x20, 2, 0, 2]);
    rejected.expect_closed();
    client().publish(&topic, "right");
    subscriber.recv_message(&topic, "right");
    // Nor was it retained.
    super::subscriber(&topic, 0).ping();
}
