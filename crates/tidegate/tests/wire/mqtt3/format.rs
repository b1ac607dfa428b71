//! Chapters 1.5.3 and 2: strings, fixed headers, packet identifiers.

use std::collections::HashSet;

use super::{BAD_STRINGS, V311, client, expect_no_connack, expect_violation, subscriber, topic};
use crate::support::{
    Connect, Node, Publish, Raw, Subscribe, Unsubscribe, Will, ack, frame, kind, string, unique,
};

/// The bad strings that are not about the null character.
fn ill_formed() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    BAD_STRINGS
        .into_iter()
        .filter(|(what, _)| !what.contains("the null"))
}

fn null_character() -> &'static [u8] {
    BAD_STRINGS[0].1
}

#[test]
fn mqtt_1_5_3_1_ill_formed_utf8_in_a_topic_name_closes_the_connection() {
    for (what, bad) in ill_formed() {
        expect_violation(what, &Publish::new(bad, "x").bytes(V311));
        expect_violation(what, &Publish::new(bad, "x").qos(1, 1).bytes(V311));
        expect_violation(what, &Publish::new(bad, "x").qos(2, 1).bytes(V311));
    }
}

#[test]
fn mqtt_1_5_3_1_ill_formed_utf8_in_a_topic_filter_closes_the_connection() {
    for (what, bad) in ill_formed() {
        expect_violation(
            what,
            &Subscribe::new(1).filter("ok", 0).filter(bad, 0).bytes(V311),
        );
        expect_violation(
            what,
            &Unsubscribe::new(1).filter("ok").filter(bad).bytes(V311),
        );
    }
}

#[test]
fn mqtt_1_5_3_1_ill_formed_utf8_in_connect_closes_the_connection() {
    for (what, bad) in ill_formed() {
        expect_no_connack(what, &Connect::new(V311, bad).bytes());
        expect_no_connack(
            what,
            &Connect::new(V311, unique("c"))
                .will(Will::new(bad, "x"))
                .bytes(),
        );
        expect_no_connack(what, &Connect::new(V311, unique("c")).username(bad).bytes());
        // A name that is not MQTT's may also be rejected with code 1 (3.1.2-1, 3.1.2-2).
        let mut raw = Raw::open(Node::shared(), V311);
        raw.send(&Connect::new(V311, unique("c")).protocol_name(bad).bytes());
        for packet in raw.packets_until_closed() {
            assert_eq!(packet.bytes, [0x20, 2, 0, 1], "{what}");
        }
    }
}

#[test]
fn mqtt_1_5_3_2_the_null_character_closes_the_connection() {
    let null = null_character();
    expect_violation("PUBLISH", &Publish::new(null, "x").bytes(V311));
    expect_violation("SUBSCRIBE", &Subscribe::new(1).filter(null, 0).bytes(V311));
    expect_violation("UNSUBSCRIBE", &Unsubscribe::new(1).filter(null).bytes(V311));
    expect_no_connack("client identifier", &Connect::new(V311, null).bytes());
    expect_no_connack(
        "will topic",
        &Connect::new(V311, unique("c"))
            .will(Will::new(null, "x"))
            .bytes(),
    );
    expect_no_connack(
        "user name",
        &Connect::new(V311, unique("c")).username(null).bytes(),
    );
}

#[test]
fn mqtt_1_5_3_3_a_byte_order_mark_is_kept() {
    let plain = topic();
    let marked = format!("\u{feff}{plain}\u{feff}");
    let mut subscriber = subscriber(&marked, 0);
    let mut publisher = client();
    publisher.publish(&plain, "without");
    publisher.publish(&marked, "with");
    subscriber.recv_message(&marked, "with");
}

#[test]
fn mqtt_1_5_3_other_strings_are_kept_byte_by_byte() {
    for text in [
        "\u{fffd}",
        "\u{a0}",
        "\u{1f980}",
        "\u{d7ff}\u{e000}",
        "\u{10fffd}",
        "e\u{301}",
        "\u{202e}\u{200b}",
    ] {
        let topic = format!("{}{text}", topic());
        let mut client = subscriber(&topic, 0);
        client.publish(&topic, text);
        client.recv_exactly(&frame(
            0x30,
            &[string(&topic), text.as_bytes().to_vec()].concat(),
        ));
    }
}

#[test]
fn mqtt_1_5_3_control_characters_and_non_characters_are_kept_or_close_the_connection() {
    for text in [
        "\u{1}",
        "\u{1f}",
        "\u{7f}",
        "\u{9f}",
        "\u{fdd0}",
        "\u{ffff}",
        "\u{10ffff}",
    ] {
        let base = topic();
        let mut watcher = subscriber(&format!("{base}/+"), 0);
        let name = format!("{base}/{text}");
        let mut raw = client();
        raw.publish(&name, text);
        raw.send(&[0xe0, 0]);
        raw.packets_until_closed();
        client().publish(&format!("{base}/marker"), "marker");
        let first = watcher.recv(kind::PUBLISH);
        if first.text() != "marker" {
            assert_eq!(
                first.bytes,
                frame(0x30, &[string(&name), text.as_bytes().to_vec()].concat())
            );
        }
    }
}

#[test]
fn mqtt_2_2_1_reserved_packet_types_close_the_connection() {
    for first_byte in [0x00, 0x0f, 0xf0, 0xff] {
        expect_violation("a reserved type", &[first_byte, 0]);
        expect_no_connack("a reserved type", &[first_byte, 0]);
    }
}

#[test]
fn mqtt_2_2_1_packets_only_a_server_may_send_close_the_connection() {
    expect_violation("CONNACK", &[0x20, 2, 0, 0]);
    expect_violation("SUBACK", &[0x90, 3, 0, 1, 0]);
    expect_violation("UNSUBACK", &[0xb0, 2, 0, 1]);
    expect_violation("PINGRESP", &[0xd0, 0]);
}

#[test]
fn mqtt_2_2_2_1_the_servers_reserved_flags_are_as_table_2_2_says() {
    // Packet::parse checks the flags of what comes; here every kind a server sends comes, byte by byte.
    let topic = topic();
    let (mut client, connack) =
        Raw::connect_for_connack(Node::shared(), &Connect::new(V311, unique("c")));
    assert_eq!(connack.bytes, [0x20, 2, 0, 0]);
    client.send(&Subscribe::new(0x0102).filter(&topic, 2).bytes(V311));
    client.recv_exactly(&[0x90, 3, 1, 2, 2]);
    client.send_publish(&Publish::new(&topic, "x").qos(2, 0x0304));
    // The server may send the message on at the PUBLISH or at the PUBREL.
    let mut packets = vec![client.recv_packet()];
    if packets[0].kind == kind::PUBLISH {
        packets.push(client.recv_packet());
    }
    client.send(&ack(kind::PUBREL, 0x0304));
    while packets.len() < 3 {
        packets.push(client.recv_packet());
    }
    packets.sort_by_key(|packet| packet.kind);
    let [publish, pubrec, pubcomp] = packets.try_into().unwrap();
    assert_eq!(pubrec.bytes, [0x50, 2, 3, 4]);
    assert_eq!(pubcomp.bytes, [0x70, 2, 3, 4]);
    assert_eq!(publish.bytes[0], 0x34);
    let [high, low] = publish.id().to_be_bytes();
    client.send(&ack(kind::PUBREC, publish.id()));
    client.recv_exactly(&[0x62, 2, high, low]);
    client.send(&ack(kind::PUBCOMP, publish.id()));
    client.send_publish(&Publish::new("elsewhere", "x").qos(1, 5));
    client.recv_exactly(&[0x40, 2, 0, 5]);
    client.send(&Unsubscribe::new(6).filter(&topic).bytes(V311));
    client.recv_exactly(&[0xb0, 2, 0, 6]);
    client.ping();
}

#[test]
fn mqtt_2_2_2_2_wrong_flags_in_the_fixed_header_close_the_connection() {
    let subscribe = &Subscribe::new(1).filter("a", 0).bytes(V311)[2..];
    let unsubscribe = &Unsubscribe::new(1).filter("a").bytes(V311)[2..];
    let bodies: [(u8, u8, &[u8]); 8] = [
        (kind::PUBACK, 0, &[0, 1]),
        (kind::PUBREC, 0, &[0, 1]),
        (kind::PUBREL, 2, &[0, 1]),
        (kind::PUBCOMP, 0, &[0, 1]),
        (kind::SUBSCRIBE, 2, subscribe),
        (kind::UNSUBSCRIBE, 2, unsubscribe),
        (kind::PINGREQ, 0, &[]),
        (kind::DISCONNECT, 0, &[]),
    ];
    for (kind, right_flags, body) in bodies {
        for flags in (0..16).filter(|flags| *flags != right_flags) {
            expect_violation(
                &format!("type {kind} with flags {flags:04b}"),
                &frame(kind << 4 | flags, body),
            );
        }
    }
    for flags in 1..16 {
        let mut connect = Connect::new(V311, unique("c")).bytes();
        connect[0] |= flags;
        expect_no_connack(&format!("CONNECT with flags {flags:04b}"), &connect);
    }
}

#[test]
fn mqtt_2_2_3_a_remaining_length_of_five_bytes_closes_the_connection() {
    expect_violation("PUBLISH", &[0x30, 0x80, 0x80, 0x80, 0x80, 0x01]);
    expect_violation(
        "PUBLISH, as soon as it shows",
        &[0x30, 0xff, 0xff, 0xff, 0xff],
    );
    expect_no_connack("CONNECT", &[0x10, 0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn mqtt_2_2_3_remaining_lengths_of_one_to_three_bytes_are_understood() {
    let topic = topic();
    let mut client = subscriber(&topic, 0);
    let overhead = 2 + topic.len();
    for remaining in [127, 128, 16_383, 16_384, 200_000] {
        let payload = vec![b'x'; remaining - overhead];
        client.publish(&topic, &payload);
        let message = client.recv_message(&topic, &payload);
        assert_eq!(message.bytes, Publish::new(&topic, &payload).bytes(V311));
    }
}

#[test]
fn mqtt_2_2_3_a_remaining_length_that_does_not_fit_the_packet_closes_the_connection() {
    expect_violation("PINGREQ with a body", &[0xc0, 1, 0]);
    expect_violation("DISCONNECT with a body", &[0xe0, 1, 0]);
    expect_violation("PUBACK without an identifier", &[0x40, 0]);
    expect_violation("PUBACK with half an identifier", &[0x40, 1, 0]);
    expect_violation("PUBACK with a surplus byte", &[0x40, 3, 0, 1, 0]);
    expect_violation("PUBREC with a surplus byte", &[0x50, 3, 0, 1, 0]);
    expect_violation("PUBREL with a surplus byte", &[0x62, 3, 0, 1, 0]);
    expect_violation("PUBCOMP with a surplus byte", &[0x70, 3, 0, 1, 0]);
    expect_violation("PUBLISH without a topic", &[0x30, 0]);
    expect_violation("PUBLISH with half a topic length", &[0x30, 1, 0]);
    expect_violation("PUBLISH with a topic past its end", &[0x30, 3, 0, 2, b'a']);
    expect_violation(
        "PUBLISH of QoS 1 without an identifier",
        &[0x32, 3, 0, 1, b'a'],
    );
    expect_violation(
        "PUBLISH of QoS 1 with half an identifier",
        &[0x32, 4, 0, 1, b'a', 0],
    );
    expect_violation(
        "SUBSCRIBE with a filter past its end",
        &[0x82, 6, 0, 1, 0, 5, b'a', 0],
    );
    expect_violation("SUBSCRIBE without a QoS", &[0x82, 5, 0, 1, 0, 1, b'a']);
    expect_violation("SUBSCRIBE with half an identifier", &[0x82, 1, 0]);
    expect_violation(
        "UNSUBSCRIBE with a filter past its end",
        &[0xa2, 5, 0, 1, 0, 2, b'a'],
    );
    expect_violation("UNSUBSCRIBE with half a filter length", &[0xa2, 3, 0, 1, 0]);
}

#[test]
fn mqtt_2_packets_may_come_byte_by_byte() {
    let topic = topic();
    let mut bytes = Connect::new(V311, unique("c"))
        .will(Will::new("w", "gone"))
        .username("u")
        .bytes();
    bytes.extend(Subscribe::new(1).filter(&topic, 1).bytes(V311));
    bytes.extend(Publish::new(&topic, "payload").qos(1, 7).bytes(V311));
    bytes.extend([0xc0, 0x00]);
    let mut client = Raw::open(Node::shared(), V311);
    for byte in bytes {
        client.send(&[byte]);
    }
    client.recv_exactly(&[0x20, 2, 0, 0]);
    let mut kinds: Vec<u8> = (0..4).map(|_| client.recv_packet().kind).collect();
    kinds.sort_unstable();
    assert_eq!(
        kinds,
        [kind::PUBLISH, kind::PUBACK, kind::SUBACK, kind::PINGRESP]
    );
}

#[test]
fn mqtt_2_many_packets_may_come_in_one_segment() {
    let topic = topic();
    let mut client = subscriber(&topic, 0);
    let mut bytes = Vec::new();
    for number in 0..5_000 {
        bytes.extend(Publish::new(&topic, format!("{number}")).bytes(V311));
    }
    client.send(&bytes);
    for number in 0..5_000 {
        client.recv_message(&topic, format!("{number}"));
    }
    client.ping();
}

#[test]
fn mqtt_2_3_1_1_packet_identifier_0_closes_the_connection() {
    expect_violation(
        "PUBLISH of QoS 1",
        &Publish::new("a", "x").qos(1, 0).bytes(V311),
    );
    expect_violation(
        "PUBLISH of QoS 2",
        &Publish::new("a", "x").qos(2, 0).bytes(V311),
    );
    expect_violation("SUBSCRIBE", &Subscribe::new(0).filter("a", 0).bytes(V311));
    expect_violation("UNSUBSCRIBE", &Unsubscribe::new(0).filter("a").bytes(V311));
}

#[test]
fn mqtt_2_3_1_1_all_other_packet_identifiers_are_accepted() {
    let mut client = client();
    for id in [1, 2, 255, 256, 32_767, 32_768, 65_534, 65_535] {
        client.publish_qos1("nowhere", "x", id);
        client.publish_qos2("nowhere", "x", id);
    }
}

#[test]
fn mqtt_2_3_1_4_the_servers_identifiers_in_flight_differ_and_are_not_0() {
    let topic = topic();
    let mut subscriber = subscriber(&topic, 2);
    let mut publisher = client();
    for number in 1..=10 {
        publisher.publish_qos1(&topic, "1", number);
        publisher.publish_qos2(&topic, "2", number);
    }
    // The parser rejects identifier 0.
    let ids: HashSet<u16> = (0..20)
        .map(|_| subscriber.recv(kind::PUBLISH).id())
        .collect();
    assert_eq!(ids.len(), 20);
}

#[test]
fn mqtt_2_3_1_4_an_identifier_in_flight_is_not_used_again_when_the_numbers_wrap() {
    const BATCH: u16 = 500;
    let topic = topic();
    let mut subscriber = subscriber(&topic, 1);
    let mut publisher = client();
    // In the order they came; always some hundred are not acknowledged.
    let mut in_flight = std::collections::VecDeque::new();
    for _ in 0..70_000 / u32::from(BATCH) {
        let bytes: Vec<u8> = (1..=BATCH)
            .flat_map(|id| Publish::new(&topic, "x").qos(1, id).bytes(V311))
            .collect();
        publisher.send(&bytes);
        for _ in 1..=BATCH {
            let id = subscriber.recv_message(&topic, "x").id();
            assert!(
                !in_flight.contains(&id),
                "{id} is the identifier of a message that is not acknowledged"
            );
            in_flight.push_back(id);
            if in_flight.len() > 100 {
                subscriber.send(&ack(kind::PUBACK, in_flight.pop_front().unwrap()));
            }
        }
        for id in 1..=BATCH {
            assert_eq!(publisher.recv(kind::PUBACK).id(), id);
        }
    }
}

#[test]
fn mqtt_2_3_1_5_a_qos_0_publish_has_no_packet_identifier() {
    let topic = topic();
    let mut client = subscriber(&topic, 2);
    client.publish(&topic, "payload");
    client.recv_exactly(&frame(
        0x30,
        &[string(&topic), b"payload".to_vec()].concat(),
    ));
}

#[test]
fn mqtt_2_3_1_6_acknowledgements_carry_the_identifier_of_the_publish() {
    let mut client = client();
    for id in [1, 0x0201, 0xffff_u16] {
        let [high, low] = id.to_be_bytes();
        client.send_publish(&Publish::new("nowhere", "x").qos(1, id));
        client.recv_exactly(&[0x40, 2, high, low]);
        client.send_publish(&Publish::new("nowhere", "x").qos(2, id));
        client.recv_exactly(&[0x50, 2, high, low]);
        client.send(&ack(kind::PUBREL, id));
        client.recv_exactly(&[0x70, 2, high, low]);
    }
}

#[test]
fn mqtt_2_3_1_7_suback_and_unsuback_carry_the_identifier_of_the_request() {
    let mut client = client();
    let topic = topic();
    for id in [1, 0x0201, 0xffff_u16] {
        let [high, low] = id.to_be_bytes();
        client.send(&Subscribe::new(id).filter(&topic, 1).bytes(V311));
        client.recv_exactly(&[0x90, 3, high, low, 1]);
        client.send(&Unsubscribe::new(id).filter(&topic).bytes(V311));
        client.recv_exactly(&[0xb0, 2, high, low]);
    }
}

#[test]
fn mqtt_2_3_1_identifiers_of_the_two_directions_are_independent() {
    let topic = topic();
    let mut client = subscriber(&topic, 1);
    client.send_publish(&Publish::new(&topic, "first").qos(1, 1));
    let mut packets = [client.recv_packet(), client.recv_packet()];
    packets.sort_by_key(|packet| packet.kind);
    let id = packets[0].id();
    // The same identifier the other way round while the server's message is in flight.
    client.send_publish(&Publish::new("nowhere", "x").qos(1, id));
    assert_eq!(client.recv(kind::PUBACK).id(), id);
    client.send(&ack(kind::PUBACK, id));
    client.ping();
}
