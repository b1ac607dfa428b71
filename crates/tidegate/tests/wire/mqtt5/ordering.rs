//! Chapter 4.6, message ordering.
//!
//! Bind clients alone: 4.6.0-1 to 4.6.0-4 (the order of the client's retransmissions and acknowledgements); the server keeps
//! to them as well, as it is a sender and a receiver too.

use super::*;

#[test]
fn mqtt5_4_6_0_1_the_server_sends_again_in_the_original_order() {
    let id = unique("c");
    let topic = unique("order/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 1);
    let mut publisher = client();
    for number in 1..=50 {
        publisher.publish_qos1(&topic, number.to_string(), number);
    }
    let mut sent = Vec::new();
    for number in 1..=50 {
        sent.push(raw.recv_message(&topic, number.to_string()));
    }
    // Acknowledged out of order, here and there.
    for index in [30, 4, 49, 0] {
        raw.send(&ack(kind::PUBACK, sent[index].id()));
    }
    raw.ping();
    raw.cut();
    let mut raw = Raw::connect(node(), &session(&id, 0));
    for (index, message) in sent.iter().enumerate() {
        if ![30, 4, 49, 0].contains(&index) {
            let again = raw.recv_message(&topic, &message.payload);
            assert_eq!((again.id(), again.dup()), (message.id(), true));
        }
    }
    raw.ping();
}

#[test]
fn mqtt5_4_6_0_2_the_server_acknowledges_in_the_order_of_the_publishes() {
    let mut raw = client();
    let topic = unique("order/");
    let mut bytes = Vec::new();
    for id in (1..=100).rev() {
        bytes.extend(Publish::new(&topic, "x").qos(1, id).bytes(5));
    }
    raw.send(&bytes);
    for id in (1..=100).rev() {
        assert_eq!(raw.recv(kind::PUBACK).id(), id);
    }
}

#[test]
fn mqtt5_4_6_0_3_the_server_sends_pubrec_and_pubcomp_in_order() {
    let mut raw = client();
    let topic = unique("order/");
    let ids = [7, 3, 9, 1, 8];
    let publishes: Vec<u8> = ids
        .iter()
        .flat_map(|id| Publish::new(&topic, "x").qos(2, *id).bytes(5))
        .collect();
    raw.send(&publishes);
    for id in ids {
        assert_eq!(raw.recv(kind::PUBREC).id(), id);
    }
    let pubrels: Vec<u8> = ids.iter().flat_map(|id| ack(kind::PUBREL, *id)).collect();
    raw.send(&pubrels);
    for id in ids {
        assert_eq!(raw.recv(kind::PUBCOMP).id(), id);
    }
}

#[test]
fn mqtt5_4_6_0_4_the_server_sends_pubrel_in_the_order_of_the_pubrecs() {
    let topic = unique("order/");
    let (mut subscriber, mut publisher) = pair(&topic);
    let mut ids = Vec::new();
    for number in 0..5 {
        publisher.publish_qos2(&topic, number.to_string(), 1);
        ids.push(subscriber.recv_message(&topic, number.to_string()).id());
    }
    ids.swap(0, 3);
    let pubrecs: Vec<u8> = ids.iter().flat_map(|id| ack(kind::PUBREC, *id)).collect();
    subscriber.send(&pubrecs);
    for id in ids {
        assert_eq!(subscriber.recv(kind::PUBREL).id(), id);
    }
}

#[test]
fn mqtt5_4_6_0_5_messages_of_a_topic_and_qos_arrive_in_order() {
    for qos in 0..3_u8 {
        let topic = unique("order/");
        let (mut subscriber, mut publisher) = pair(&topic);
        let mut bytes = Vec::new();
        for number in 1..=300_u16 {
            let publish = Publish::new(&topic, number.to_string()).qos(qos, number);
            bytes.extend(publish.bytes(5));
        }
        publisher.send(&bytes);
        if qos == 2 {
            for number in 1..=300 {
                assert_eq!(publisher.recv(kind::PUBREC).id(), number);
                publisher.send(&ack(kind::PUBREL, number));
            }
        }
        let mut next = 1;
        while next <= 300 {
            let packet = subscriber.recv_packet();
            match packet.kind {
                kind::PUBREL => subscriber.send(&ack(kind::PUBCOMP, packet.id())),
                _ => {
                    assert_eq!(packet.text(), next.to_string());
                    next += 1;
                    match qos {
                        0 => {}
                        1 => subscriber.send(&ack(kind::PUBACK, packet.id())),
                        _ => subscriber.send(&ack(kind::PUBREC, packet.id())),
                    }
                }
            }
        }
    }
}

#[test]
fn mqtt5_4_6_0_6_every_topic_is_ordered_for_every_subscriber() {
    let base = unique("order/");
    let mut subscribers: Vec<Raw> = (0..4)
        .map(|_| {
            let mut raw = client();
            raw.subscribe(&format!("{base}/+"), 1);
            raw
        })
        .collect();
    let mut publishers = [client(), client(), client()];
    for number in 0..30 {
        for (index, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish(&format!("{base}/{index}"), number.to_string());
        }
    }
    for subscriber in &mut subscribers {
        let mut next = [0_u32; 3];
        for _ in 0..90 {
            let message = subscriber.recv(kind::PUBLISH);
            let index: usize = message.topic.rsplit('/').next().unwrap().parse().unwrap();
            assert_eq!(message.text(), next[index].to_string());
            next[index] += 1;
        }
    }
}

#[test]
fn mqtt5_4_6_0_6_queued_messages_come_before_new_ones() {
    let id = unique("c");
    let topic = unique("order/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 1);
    raw.disconnect();
    let mut publisher = client();
    for number in 1..=100 {
        publisher.publish_qos1(&topic, number.to_string(), 1);
    }
    let mut connect = session(&id, 0);
    connect.properties = connect.properties.u16(property::RECEIVE_MAXIMUM, 7);
    let mut raw = Raw::connect(node(), &connect);
    for number in 101..=120 {
        publisher.publish_qos1(&topic, number.to_string(), 1);
    }
    for number in 1..=120 {
        let message = raw.recv_message(&topic, number.to_string());
        raw.acknowledge(&message);
    }
}
