//! Chapter 2, the format of control packets.
//!
//! Bind clients alone: 2.2.1-3 (that the client's packet identifiers are unused; 0 is tested).

use std::collections::HashSet;

use super::*;

#[test]
fn mqtt5_2_1_3_1_reserved_flags_of_every_packet_are_checked() {
    let subscribe = Subscribe::new(1).filter("a", 0).bytes(5);
    let unsubscribe = Unsubscribe::new(1).filter("a").bytes(5);
    let packets: [(&[u8], u8); 9] = [
        (&ack(kind::PUBACK, 1), 0),
        (&ack(kind::PUBREC, 1), 0),
        (&ack(kind::PUBREL, 1), 2),
        (&ack(kind::PUBCOMP, 1), 0),
        (&subscribe, 2),
        (&unsubscribe, 2),
        (&[0xc0, 0], 0),
        (&[0xe0, 0], 0),
        (&[0xf0, 0], 0),
    ];
    for (packet, right) in packets {
        for flags in [0, 1, 2, 4, 8, 15] {
            if flags != right {
                let mut wrong = packet.to_vec();
                wrong[0] = wrong[0] & 0xf0 | flags;
                breaks(&wrong, &[reason::MALFORMED]);
            }
        }
    }
}

#[test]
fn mqtt5_2_1_3_1_reserved_flags_of_connect_are_checked() {
    let mut bytes = connect(&unique("c")).bytes();
    bytes[0] = 0x11;
    rejected(&bytes, &[reason::MALFORMED]);
}

#[test]
fn mqtt5_section_2_1_2_packet_type_0_is_rejected() {
    breaks(&[0x00, 0x00], reason::MALFORMED_OR_PROTOCOL_ERROR);
}

#[test]
fn mqtt5_section_2_1_2_packets_that_only_servers_send_are_rejected() {
    let connack = frame(0x20, &[0, 0, 0]);
    let suback = frame(0x90, &[0, 1, 0, 0]);
    let unsuback = frame(0xb0, &[0, 1, 0, 0]);
    for packet in [&connack, &suback, &unsuback, &vec![0xd0, 0x00]] {
        breaks(packet, reason::MALFORMED_OR_PROTOCOL_ERROR);
    }
}

#[test]
fn mqtt5_section_2_1_4_a_packet_may_come_byte_by_byte() {
    let topic = unique("bytewise/");
    let mut raw = Raw::open(node(), 5);
    for byte in connect(&unique("c")).bytes() {
        raw.send(&[byte]);
    }
    assert_eq!(raw.recv(kind::CONNACK).reason, 0);
    let subscribe = Subscribe::new(7).filter(&topic, 0).bytes(5);
    for byte in subscribe {
        raw.send(&[byte]);
    }
    assert_eq!(raw.recv(kind::SUBACK).payload, [0]);
    for byte in Publish::new(&topic, "whole").bytes(5) {
        raw.send(&[byte]);
    }
    raw.recv_message(&topic, "whole");
}

#[test]
fn mqtt5_2_2_1_2_a_publish_at_qos_0_has_no_packet_identifier() {
    let topic = unique("noid/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 0);
    let mut publisher = client();
    publisher.publish(&topic, "sent at 0");
    publisher.publish_qos1(&topic, "sent at 1", 5);
    publisher.publish_qos2(&topic, "sent at 2", 6);
    for payload in ["sent at 0", "sent at 1", "sent at 2"] {
        subscriber.recv_exactly(&Publish::new(&topic, payload).bytes(5));
    }
}

#[test]
fn mqtt5_2_2_1_3_packet_identifier_0_is_rejected() {
    for qos in [1, 2] {
        breaks(
            &Publish::new("a", "x").qos(qos, 0).bytes(5),
            reason::MALFORMED_OR_PROTOCOL_ERROR,
        );
    }
    breaks(
        &Subscribe::new(0).filter("a", 0).bytes(5),
        reason::MALFORMED_OR_PROTOCOL_ERROR,
    );
    breaks(
        &Unsubscribe::new(0).filter("a").bytes(5),
        reason::MALFORMED_OR_PROTOCOL_ERROR,
    );
    for acknowledgement in [kind::PUBACK, kind::PUBREC, kind::PUBREL, kind::PUBCOMP] {
        breaks(
            &ack(acknowledgement, 0),
            reason::MALFORMED_OR_PROTOCOL_ERROR,
        );
    }
}

#[test]
fn mqtt5_2_2_1_4_packet_identifiers_of_the_server_are_unused_and_not_0() {
    let topic = unique("ids/");
    let (mut subscriber, mut publisher) = pair(&topic);
    let mut in_use = HashSet::new();
    for number in 0..40_u16 {
        match number % 2 {
            0 => publisher.publish_qos1(&topic, "x", 100 + number),
            _ => publisher.publish_qos2(&topic, "x", 100 + number),
        }
        let message = subscriber.recv(kind::PUBLISH);
        // The parser rejects identifier 0.
        assert!(in_use.insert(message.id()), "used twice: {message:?}");
        if number % 3 == 0 {
            subscriber.acknowledge(&message);
            in_use.remove(&message.id());
        }
    }
}

#[test]
fn mqtt5_2_2_1_5_acknowledgements_carry_the_identifier_of_the_publish() {
    let mut raw = client();
    let topic = unique("t/");
    for id in [1, 2, 0x1234, 0xffff] {
        raw.send_publish(&Publish::new(&topic, "x").qos(1, id));
        assert_eq!(raw.recv(kind::PUBACK).id(), id);
        raw.send_publish(&Publish::new(&topic, "x").qos(2, id));
        assert_eq!(raw.recv(kind::PUBREC).id(), id);
        raw.send(&ack(kind::PUBREL, id));
        assert_eq!(raw.recv(kind::PUBCOMP).id(), id);
    }
}

#[test]
fn mqtt5_2_2_1_6_suback_and_unsuback_carry_the_identifier_of_the_request() {
    let mut raw = client();
    for id in [1, 0x00ff, 0xff00, 0xffff] {
        raw.send(&Subscribe::new(id).filter(unique("t/"), 0).bytes(5));
        assert_eq!(raw.recv(kind::SUBACK).id(), id);
        raw.send(&Unsubscribe::new(id).filter("t/none").bytes(5));
        assert_eq!(raw.recv(kind::UNSUBACK).id(), id);
    }
}

#[test]
fn mqtt5_2_2_2_1_no_properties_are_a_length_of_0() {
    let topic = unique("empty/");
    let mut raw = client();
    raw.send(&Subscribe::new(3).filter(&topic, 0).bytes(5));
    raw.recv_exactly(&[0x90, 4, 0, 3, 0, 0]);
    raw.publish(&topic, "x");
    raw.recv_exactly(&Publish::new(&topic, "x").bytes(5));
    raw.send(&Unsubscribe::new(4).filter(&topic).bytes(5));
    raw.recv_exactly(&[0xb0, 4, 0, 4, 0, 0]);
}

#[test]
fn mqtt5_section_2_2_2_2_a_property_of_another_packet_is_malformed() {
    let id = unique("c");
    for properties in [
        Props::new().byte(property::PAYLOAD_FORMAT, 0),
        Props::new().u32(property::WILL_DELAY, 1),
        Props::new().u16(property::TOPIC_ALIAS, 1),
        Props::new().string(property::ASSIGNED_CLIENT_ID, "x"),
        Props::new().u16(property::SERVER_KEEP_ALIVE, 1),
        Props::new().string(property::REASON_STRING, "x"),
        Props::new().byte(property::MAXIMUM_QOS, 1),
    ] {
        rejected(
            &connect(&id).properties(properties).bytes(),
            &[reason::MALFORMED],
        );
    }
    let publish = |properties| Publish::new("a", "x").properties(properties).bytes(5);
    for properties in [
        Props::new().u32(property::SESSION_EXPIRY, 1),
        Props::new().u32(property::WILL_DELAY, 1),
        Props::new().string(property::REASON_STRING, "x"),
        Props::new().u16(property::RECEIVE_MAXIMUM, 1),
    ] {
        breaks(&publish(properties), &[reason::MALFORMED]);
    }
    let content_type = Props::new().string(property::CONTENT_TYPE, "x");
    let subscribe = Subscribe::new(1).filter("a", 0);
    breaks(
        &subscribe.properties(content_type.clone()).bytes(5),
        &[reason::MALFORMED],
    );
    let subscription_id = Props::new().varint(property::SUBSCRIPTION_ID, 1);
    let unsubscribe = Unsubscribe::new(1).filter("a").properties(subscription_id);
    breaks(&unsubscribe.bytes(5), &[reason::MALFORMED]);
    let disconnect = frame(0xe0, &[&[0][..], &content_type.bytes()].concat());
    breaks(&disconnect, &[reason::MALFORMED]);
}

#[test]
fn mqtt5_section_2_2_2_2_an_unknown_property_is_malformed() {
    for unknown in [0x00, 0x04, 0x10, 0x14, 0x20, 0x2b, 0x7f] {
        let properties = Props::new().byte(unknown, 0);
        breaks(
            &Publish::new("a", "x").properties(properties).bytes(5),
            &[reason::MALFORMED],
        );
    }
    // Identifiers are variable byte integers: 0x81 0x00 is not the identifier 1 in its shortest form, 0xab 0x01 is 171.
    let properties = Props::new().raw(&[0xab, 0x01, 0x00]);
    breaks(
        &Publish::new("a", "x").properties(properties).bytes(5),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_section_2_2_2_a_property_length_that_does_not_fit_is_malformed() {
    // Longer than the packet.
    breaks(
        &frame(0x30, &[&string("a")[..], &[5, 1, 0]].concat()),
        &[reason::MALFORMED],
    );
    // Ends within a property.
    for cut in [
        &[1, property::PAYLOAD_FORMAT][..],
        &[3, property::MESSAGE_EXPIRY, 0, 0],
        &[3, property::CONTENT_TYPE, 0, 2, b'a', b'b'],
        &[4, property::USER, 0, 1, b'k', 0, 1, b'v'],
    ] {
        breaks(
            &frame(0x30, &[&string("a")[..], cut, b"payload"].concat()),
            &[reason::MALFORMED],
        );
    }
    // No property length at all.
    breaks(&frame(0x30, &string("a")), &[reason::MALFORMED]);
}
