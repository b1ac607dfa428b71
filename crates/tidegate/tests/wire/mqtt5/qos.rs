//! Chapter 4.3, the delivery protocols, with the server as receiver and as sender.

use super::*;

/// A session with a subscription at QoS 2 on a fresh topic.
fn subscriber() -> (Raw, String, String) {
    let id = unique("c");
    let topic = unique("qos/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 2);
    (raw, topic, id)
}

fn resume(id: &str) -> Raw {
    let (raw, connack) = Raw::connect_for_connack(node(), &session(id, 60));
    assert!(connack.session_present);
    raw
}

#[test]
fn mqtt5_4_3_1_1_a_qos_0_message_is_sent_once_with_dup_0() {
    let (mut raw, topic, id) = subscriber();
    let mut publisher = client();
    publisher.publish(&topic, "x");
    raw.recv_exactly(&Publish::new(&topic, "x").bytes(5));
    raw.cut();
    expect_silence(&mut resume(&id));
}

#[test]
fn mqtt5_4_3_2_1_qos_1_identifiers_are_not_reused_while_in_flight() {
    let (mut raw, topic, _) = subscriber();
    let mut publisher = client();
    let mut unacknowledged = Vec::new();
    for number in 0..20 {
        publisher.publish_qos1(&topic, number.to_string(), 1);
        let message = raw.recv_message(&topic, number.to_string());
        assert!(!unacknowledged.contains(&message.id()), "{message:?}");
        match number % 2 {
            0 => unacknowledged.push(message.id()),
            _ => raw.acknowledge(&message),
        }
    }
}

#[test]
fn mqtt5_4_3_2_2_a_new_qos_1_message_has_dup_0_and_qos_1() {
    let (mut raw, topic, _) = subscriber();
    client().publish_qos1(&topic, "x", 5);
    let message = raw.recv_message(&topic, "x");
    assert_eq!(message.bytes[0], 0x32);
    raw.acknowledge(&message);
    raw.ping();
}

#[test]
fn mqtt5_4_3_2_3_a_qos_1_message_is_unacknowledged_until_its_puback() {
    let (mut raw, topic, id) = subscriber();
    let mut publisher = client();
    publisher.publish_qos1(&topic, "one", 1);
    publisher.publish_qos1(&topic, "two", 2);
    let one = raw.recv_message(&topic, "one");
    let two = raw.recv_message(&topic, "two");
    raw.acknowledge(&one);
    raw.ping();
    raw.cut();
    let mut raw = resume(&id);
    let again = raw.recv_message(&topic, "two");
    assert_eq!((again.id(), again.dup()), (two.id(), true));
    raw.acknowledge(&again);
    raw.ping();
    raw.cut();
    expect_silence(&mut resume(&id));
}

#[test]
fn mqtt5_4_3_2_4_a_qos_1_publish_is_answered_by_puback_with_its_identifier() {
    let mut raw = client();
    for id in [1, 0xffff, 0x0100] {
        raw.send_publish(&Publish::new(unique("t/"), "x").qos(1, id));
        let puback = raw.recv(kind::PUBACK);
        assert_eq!(puback.id(), id);
        assert!(puback.reason < 0x80);
    }
}

#[test]
fn mqtt5_4_3_2_5_the_identifier_after_its_puback_is_a_new_message() {
    let (mut raw, topic, _) = subscriber();
    let mut publisher = client();
    for (number, dup) in [(0, false), (1, false), (2, true)] {
        let mut publish = Publish::new(&topic, number.to_string()).qos(1, 5);
        publish.dup = dup;
        publisher.send_publish(&publish);
        publisher.recv(kind::PUBACK);
        let message = raw.recv_message(&topic, number.to_string());
        assert!(!message.dup());
    }
}

#[test]
fn mqtt5_4_3_3_1_qos_2_identifiers_are_not_reused_before_pubcomp() {
    let (mut raw, topic, _) = subscriber();
    let mut publisher = client();
    let mut in_use = Vec::new();
    for number in 0..20 {
        publisher.publish_qos2(&topic, number.to_string(), 1);
        let message = raw.recv_message(&topic, number.to_string());
        assert!(!in_use.contains(&message.id()), "{message:?}");
        match number % 3 {
            0 => in_use.push(message.id()),
            1 => {
                // Released but not completed.
                raw.send(&ack(kind::PUBREC, message.id()));
                assert_eq!(raw.recv(kind::PUBREL).id(), message.id());
                in_use.push(message.id());
            }
            _ => raw.acknowledge(&message),
        }
    }
}

#[test]
fn mqtt5_4_3_3_2_a_new_qos_2_message_has_dup_0_and_qos_2() {
    let (mut raw, topic, _) = subscriber();
    client().publish_qos2(&topic, "x", 5);
    assert_eq!(raw.recv_message(&topic, "x").bytes[0], 0x34);
}

#[test]
fn mqtt5_4_3_3_3_a_qos_2_message_is_unacknowledged_until_its_pubrec() {
    let (mut raw, topic, id) = subscriber();
    client().publish_qos2(&topic, "x", 1);
    let sent = raw.recv_message(&topic, "x");
    raw.cut();
    let mut raw = resume(&id);
    let again = raw.recv_message(&topic, "x");
    assert_eq!((again.id(), again.dup(), again.qos()), (sent.id(), true, 2));
    raw.acknowledge(&again);
    raw.ping();
}

#[test]
fn mqtt5_4_3_3_4_a_pubrec_is_answered_by_pubrel() {
    let (mut raw, topic, _) = subscriber();
    let mut publisher = client();
    for code in [0x00, 0x10] {
        publisher.publish_qos2(&topic, "x", 1);
        let message = raw.recv_message(&topic, "x");
        raw.send(&ack_reason(kind::PUBREC, message.id(), code, &Props::new()));
        let pubrel = raw.recv(kind::PUBREL);
        assert_eq!((pubrel.id(), pubrel.reason), (message.id(), 0));
        assert_eq!(pubrel.bytes[0], 0x62);
        raw.send(&ack(kind::PUBCOMP, message.id()));
    }
    raw.ping();
}

#[test]
fn mqtt5_4_3_3_4_a_pubrec_with_an_error_ends_the_exchange() {
    let (mut raw, topic, id) = subscriber();
    let mut publisher = client();
    for code in [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99] {
        publisher.publish_qos2(&topic, "x", 1);
        let message = raw.recv_message(&topic, "x");
        raw.send(&ack_reason(kind::PUBREC, message.id(), code, &Props::new()));
        // No PUBREL.
        raw.ping();
    }
    raw.cut();
    expect_silence(&mut resume(&id));
}

#[test]
fn mqtt5_4_3_3_5_a_pubrel_is_unacknowledged_until_its_pubcomp() {
    let (mut raw, topic, id) = subscriber();
    client().publish_qos2(&topic, "x", 1);
    let message = raw.recv_message(&topic, "x");
    raw.send(&ack(kind::PUBREC, message.id()));
    raw.recv(kind::PUBREL);
    raw.cut();
    for _ in 0..2 {
        let mut raw = resume(&id);
        assert_eq!(raw.recv(kind::PUBREL).id(), message.id());
        raw.ping();
        raw.cut();
    }
    let mut raw = resume(&id);
    raw.recv(kind::PUBREL);
    raw.send(&ack(kind::PUBCOMP, message.id()));
    raw.ping();
    raw.cut();
    expect_silence(&mut resume(&id));
}

#[test]
fn mqtt5_4_3_3_6_the_publish_is_not_sent_again_after_its_pubrel() {
    let (mut raw, topic, id) = subscriber();
    let mut publisher = client();
    publisher.publish_qos2(&topic, "released", 1);
    publisher.publish_qos2(&topic, "sent", 2);
    let released = raw.recv_message(&topic, "released");
    let sent = raw.recv_message(&topic, "sent");
    raw.send(&ack(kind::PUBREC, released.id()));
    raw.recv(kind::PUBREL);
    raw.cut();
    let mut raw = resume(&id);
    let packets = raw.ping_for_packets();
    let found: Vec<_> = packets
        .iter()
        .map(|packet| (packet.kind, packet.id()))
        .collect();
    assert_eq!(found.len(), 2, "{packets:?}");
    assert!(found.contains(&(kind::PUBREL, released.id())));
    assert!(found.contains(&(kind::PUBLISH, sent.id())));
    // A second PUBREC is answered with PUBREL again.
    raw.send(&ack(kind::PUBREC, released.id()));
    assert_eq!(raw.recv(kind::PUBREL).id(), released.id());
}

#[test]
fn mqtt5_4_3_3_8_a_qos_2_publish_is_answered_by_pubrec() {
    let mut raw = client();
    raw.send_publish(&Publish::new(unique("t/"), "x").qos(2, 0x0a0b));
    let pubrec = raw.recv(kind::PUBREC);
    assert_eq!(pubrec.id(), 0x0a0b);
    assert!(pubrec.reason < 0x80, "{pubrec:?}");
}

#[test]
fn mqtt5_4_3_3_9_after_a_pubrec_with_an_error_the_identifier_is_free() {
    let (mut subscriber, topic, _) = subscriber();
    let mut publisher = client();
    publisher.send_publish(&Publish::new("$SYS/forbidden", "x").qos(2, 5));
    assert!(publisher.recv(kind::PUBREC).reason >= 0x80);
    publisher.publish_qos2(&topic, "a new message", 5);
    subscriber.recv_message(&topic, "a new message");
}

#[test]
fn mqtt5_4_3_3_10_a_publish_again_before_pubrel_is_no_new_message() {
    let (mut subscriber, topic, _) = subscriber();
    let mut publisher = client();
    publisher.send_publish(&Publish::new(&topic, "once").qos(2, 5));
    assert_eq!(publisher.recv(kind::PUBREC).id(), 5);
    for dup in [true, true, false] {
        let mut again = Publish::new(&topic, "once").qos(2, 5);
        again.dup = dup;
        publisher.send_publish(&again);
        assert_eq!(publisher.recv(kind::PUBREC).id(), 5);
    }
    publisher.send(&ack(kind::PUBREL, 5));
    assert_eq!(publisher.recv(kind::PUBCOMP).id(), 5);
    let message = subscriber.recv_message(&topic, "once");
    subscriber.acknowledge(&message);
    expect_fence(&mut subscriber, &mut publisher, &topic);
}

#[test]
fn mqtt5_4_3_3_10_a_publish_again_on_another_connection_is_no_new_message() {
    let (mut subscriber, topic, _) = subscriber();
    let id = unique("c");
    let mut publisher = Raw::connect(node(), &session(&id, 60));
    publisher.send_publish(&Publish::new(&topic, "once").qos(2, 5));
    publisher.recv(kind::PUBREC);
    publisher.cut();
    let mut publisher = resume(&id);
    publisher.send_publish(&Publish::new(&topic, "once").qos(2, 5).dup());
    publisher.recv(kind::PUBREC);
    publisher.send(&ack(kind::PUBREL, 5));
    publisher.recv(kind::PUBCOMP);
    let message = subscriber.recv_message(&topic, "once");
    subscriber.acknowledge(&message);
    expect_fence(&mut subscriber, &mut publisher, &topic);
}

#[test]
fn mqtt5_4_3_3_11_a_pubrel_is_answered_by_pubcomp() {
    let mut raw = client();
    raw.send_publish(&Publish::new(unique("t/"), "x").qos(2, 0x0c0d));
    raw.recv(kind::PUBREC);
    raw.send(&ack(kind::PUBREL, 0x0c0d));
    let pubcomp = raw.recv(kind::PUBCOMP);
    assert_eq!((pubcomp.id(), pubcomp.reason), (0x0c0d, 0));
}

#[test]
fn mqtt5_4_3_3_12_after_pubcomp_the_identifier_is_a_new_message() {
    let (mut subscriber, topic, _) = subscriber();
    let mut publisher = client();
    for number in 0..3 {
        publisher.publish_qos2(&topic, number.to_string(), 5);
        let message = subscriber.recv_message(&topic, number.to_string());
        subscriber.acknowledge(&message);
    }
}

#[test]
fn mqtt5_section_4_3_identifiers_of_both_directions_are_independent() {
    let topic = unique("own/");
    let mut raw = client();
    raw.subscribe(&topic, 2);
    raw.send_publish(&Publish::new(&topic, "x").qos(2, 1));
    // The message may come before, between and after the answers.
    let mut message = None;
    let mut completed = false;
    while !completed || message.is_none() {
        let packet = raw.recv_packet();
        match packet.kind {
            kind::PUBREC => raw.send(&ack(kind::PUBREL, packet.id())),
            kind::PUBCOMP => completed = true,
            _ => message = Some(packet),
        }
    }
    // The same identifier may be in use for a message of the client.
    let message = message.unwrap();
    raw.send_publish(&Publish::new(unique("t/"), "y").qos(2, message.id()));
    assert_eq!(raw.recv(kind::PUBREC).id(), message.id());
    raw.acknowledge(&message);
    raw.send(&ack(kind::PUBREL, message.id()));
    assert_eq!(raw.recv(kind::PUBCOMP).reason, 0);
}
