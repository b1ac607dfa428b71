//! Chapters 4.1 and 4.2, session state and network connections. That TCP, TLS and WebSocket carry MQTT (4.2.0-1) is shown
//! by every test of this binary.

use super::*;

#[test]
fn mqtt5_section_4_1_the_session_keeps_subscriptions_with_all_their_options() {
    let id = unique("c");
    let base = unique("options/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    let subscribe = Subscribe::new(1)
        .filter(format!("{base}/raw"), 2 | option::RETAIN_AS_PUBLISHED)
        .filter(format!("{base}/own"), 1 | option::NO_LOCAL)
        .properties(Props::new().varint(property::SUBSCRIPTION_ID, 99));
    raw.subscribe_for_codes(&subscribe);
    raw.disconnect();
    let mut raw = Raw::connect(node(), &session(&id, 0));
    let mut publisher = client();
    let topic = format!("{base}/raw");
    publisher.send_publish(&Publish::new(&topic, "x").qos(1, 1).retain());
    publisher.recv(kind::PUBACK);
    let message = raw.recv_message(&topic, "x");
    assert_eq!((message.qos(), message.retain()), (1, true));
    assert_eq!(message.number(property::SUBSCRIPTION_ID), Some(99));
    raw.acknowledge(&message);
    raw.publish(&format!("{base}/own"), "own");
    raw.ping();
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_section_4_1_messages_wait_for_a_session_that_is_away() {
    let id = unique("c");
    let topic = unique("away/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 2);
    raw.disconnect();
    let mut publisher = client();
    for number in 0..100_u16 {
        match number % 2 {
            0 => publisher.publish_qos1(&topic, number.to_string(), 1 + number),
            _ => publisher.publish_qos2(&topic, number.to_string(), 1 + number),
        }
    }
    let mut raw = Raw::connect(node(), &session(&id, 0));
    // A mixture of QoS keeps its order too, as this server has one queue.
    let mut received: Vec<u16> = Vec::new();
    while received.len() < 100 {
        let packet = raw.recv_packet();
        match packet.kind {
            kind::PUBREL => raw.send(&ack(kind::PUBCOMP, packet.id())),
            _ => {
                assert!(!packet.dup());
                let answer = [kind::PUBACK, kind::PUBREC][usize::from(packet.qos() - 1)];
                raw.send(&ack(answer, packet.id()));
                received.push(packet.text().parse().unwrap());
            }
        }
    }
    received.sort_unstable();
    assert_eq!(received, (0..100).collect::<Vec<_>>());
}

#[test]
fn mqtt5_section_4_1_retained_messages_are_no_part_of_the_session() {
    let topic = unique("kept/");
    let id = unique("c");
    let mut raw = Raw::connect(node(), &connect(&id));
    retain(&mut raw, &topic, "outlives its publisher");
    raw.disconnect();
    Raw::connect(node(), &connect(&id)).disconnect();
    assert_eq!(retained(&topic).len(), 1);
    retain(&mut client(), &topic, "");
}
