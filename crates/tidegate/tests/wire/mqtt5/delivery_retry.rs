//! Chapters 4.4 and 4.5, delivery retry and message receipt.
//!
//! Binds clients alone: 4.5.0-2 (acknowledge what is received).

use super::*;

#[test]
fn mqtt5_4_4_0_1_unacknowledged_packets_are_sent_again_with_their_identifiers() {
    let id = unique("c");
    let topic = unique("retry/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    let mut sent = Vec::new();
    for number in 1..=4 {
        match number % 2 {
            0 => publisher.publish_qos2(&topic, number.to_string(), number),
            _ => publisher.publish_qos1(&topic, number.to_string(), number),
        }
        sent.push(raw.recv_message(&topic, number.to_string()));
    }
    // 1: nothing; 2: PUBREC; 3: acknowledged; 4: nothing.
    raw.send(&ack(kind::PUBREC, sent[1].id()));
    raw.recv(kind::PUBREL);
    raw.send(&ack(kind::PUBACK, sent[2].id()));
    raw.ping();
    raw.cut();
    let (mut raw, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(connack.session_present);
    let packets = raw.ping_for_packets();
    let found: Vec<_> = packets
        .iter()
        .map(|packet| (packet.kind, packet.id(), packet.flags))
        .collect();
    for expected in [
        (kind::PUBLISH, sent[0].id(), 0x0a),
        (kind::PUBREL, sent[1].id(), 0x02),
        (kind::PUBLISH, sent[3].id(), 0x0c),
    ] {
        assert!(found.contains(&expected), "{expected:?} in {packets:?}");
    }
    assert_eq!(found.len(), 3, "{packets:?}");
}

#[test]
fn mqtt5_4_4_0_1_with_clean_start_nothing_is_sent_again() {
    let id = unique("c");
    let topic = unique("retry/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 1);
    client().publish_qos1(&topic, "lost with the session", 1);
    raw.recv_message(&topic, "lost with the session");
    raw.cut();
    expect_silence(&mut Raw::connect(node(), &connect(&id)));
}

#[test]
fn mqtt5_4_4_0_2_an_acknowledgement_with_an_error_ends_the_delivery() {
    let id = unique("c");
    let topic = unique("retry/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    publisher.publish_qos1(&topic, "one", 1);
    let one = raw.recv_message(&topic, "one");
    raw.send(&ack_reason(kind::PUBACK, one.id(), 0x83, &Props::new()));
    publisher.publish_qos2(&topic, "two", 2);
    let two = raw.recv_message(&topic, "two");
    raw.send(&ack_reason(kind::PUBREC, two.id(), 0x97, &Props::new()));
    raw.ping();
    raw.cut();
    let (mut raw, connack) = Raw::connect_for_connack(node(), &session(&id, 0));
    assert!(connack.session_present);
    expect_silence(&mut raw);
}

#[test]
fn mqtt5_4_5_0_1_a_message_is_added_to_the_session_of_every_subscriber() {
    let topic = unique("every/");
    let ids: Vec<String> = (0..6).map(|_| unique("c")).collect();
    let mut connected = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        let mut raw = Raw::connect(node(), &session(id, 60));
        raw.subscribe(&topic, 1);
        match number % 2 {
            0 => raw.disconnect(),
            _ => connected.push(raw),
        }
    }
    client().publish_qos1(&topic, "to all", 1);
    for mut raw in connected {
        raw.recv_message(&topic, "to all");
    }
    for id in ids.iter().step_by(2) {
        let mut raw = Raw::connect(node(), &session(id, 0));
        raw.recv_message(&topic, "to all");
    }
}
