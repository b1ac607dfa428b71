//! Redelivery (4.4) and ordering (4.6).

use super::{V311, client, subscriber, topic};
use crate::support::{Packet, Publish, Raw, ack, kind, unique};

/// The next `count` PUBLISH packets.
fn messages(raw: &mut Raw, count: usize) -> Vec<Packet> {
    (0..count).map(|_| raw.recv(kind::PUBLISH)).collect()
}

fn texts(messages: &[Packet]) -> Vec<String> {
    messages
        .iter()
        .map(|message| message.text().to_owned())
        .collect()
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn mqtt_4_4_0_1_unacknowledged_messages_are_sent_again_with_their_identifiers() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    for number in 0..5 {
        publisher.publish_qos1(&topic, format!("one {number}"), 1);
        publisher.publish_qos2(&topic, format!("two {number}"), 1);
    }
    let first = messages(&mut raw, 10);
    raw.cut();
    let mut raw = super::resume(&id, true);
    let again = messages(&mut raw, 10);
    for (first, again) in first.iter().zip(&again) {
        let mut expected = first.bytes.clone();
        expected[0] |= 0x08;
        assert_eq!(again.bytes, expected);
    }
    raw.ping();
}

#[test]
fn mqtt_4_4_0_1_pubrel_is_sent_again_with_its_identifier() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    for number in 0..4 {
        publisher.publish_qos2(&topic, format!("{number}"), 1);
    }
    let sent = messages(&mut raw, 4);
    for message in &sent {
        raw.send(&ack(kind::PUBREC, message.id()));
        assert_eq!(raw.recv(kind::PUBREL).id(), message.id());
    }
    raw.send(&ack(kind::PUBCOMP, sent[1].id()));
    raw.ping();
    raw.cut();
    let mut raw = super::resume(&id, true);
    for message in [&sent[0], &sent[2], &sent[3]] {
        let [high, low] = message.id().to_be_bytes();
        raw.recv_exactly(&[0x62, 2, high, low]);
    }
    raw.ping();
}

#[test]
fn mqtt_4_4_0_1_redelivery_also_follows_a_takeover() {
    let (id, topic) = (unique("c"), topic());
    let mut first = super::resume(&id, false);
    first.subscribe(&topic, 1);
    client().publish_qos1(&topic, "x", 1);
    let message = first.recv_message(&topic, "x");
    let mut second = super::resume(&id, true);
    first.expect_closed();
    let again = second.recv(kind::PUBLISH);
    assert_eq!(
        again.bytes,
        Publish::new(&topic, "x")
            .qos(1, message.id())
            .dup()
            .bytes(V311)
    );
}

#[test]
fn mqtt_4_6_0_1_messages_are_sent_again_in_the_order_they_were_first_sent() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    let mut publisher = client();
    for number in 0..20 {
        publisher.publish_qos1(&topic, format!("{number}"), 1);
    }
    let sent = messages(&mut raw, 20);
    assert_eq!(texts(&sent), numbers(0..20));
    // Acknowledged out of order and with gaps.
    for index in [3, 0, 11, 7] {
        raw.send(&ack(kind::PUBACK, sent[index].id()));
    }
    raw.ping();
    raw.cut();
    // What was published meanwhile comes after.
    publisher.publish_qos1(&topic, "20", 1);
    let mut raw = super::resume(&id, true);
    let again = messages(&mut raw, 17);
    let mut expected = numbers(0..21);
    expected.retain(|text| !["3", "0", "11", "7"].contains(&text.as_str()));
    assert_eq!(texts(&again), expected);
    for message in &again[..16] {
        let number: usize = message.text().parse().unwrap();
        assert!(message.dup());
        assert_eq!(message.id(), sent[number].id());
    }
    for message in &again {
        raw.send(&ack(kind::PUBACK, message.id()));
    }
    raw.ping();
}

#[test]
fn mqtt_4_6_0_1_qos_2_messages_are_sent_again_in_order() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    for number in 0..10 {
        publisher.publish_qos2(&topic, format!("{number}"), 1);
    }
    let sent = messages(&mut raw, 10);
    raw.acknowledge(&sent[4]);
    raw.ping();
    raw.cut();
    for _ in 0..2 {
        let mut raw = super::resume(&id, true);
        let again = messages(&mut raw, 9);
        let mut expected = numbers(0..10);
        expected.remove(4);
        assert_eq!(texts(&again), expected);
        raw.ping();
        raw.cut();
    }
}

#[test]
fn mqtt_4_6_0_5_topics_are_ordered_by_default() {
    const COUNT: u16 = 500;
    for qos in 0..3_u8 {
        let topic = topic();
        let mut raw = subscriber(&topic, qos);
        let mut publisher = client();
        let bytes: Vec<u8> = (0..COUNT)
            .flat_map(|number| {
                Publish::new(&topic, number.to_string())
                    .qos(qos, number + 1)
                    .bytes(V311)
            })
            .collect();
        publisher.send(&bytes);
        if qos == 2 {
            for id in 1..=COUNT {
                assert_eq!(publisher.recv(kind::PUBREC).id(), id);
            }
            publisher.send(
                &(1..=COUNT)
                    .flat_map(|id| ack(kind::PUBREL, id))
                    .collect::<Vec<_>>(),
            );
        }
        for number in 0..COUNT {
            let message = loop {
                let packet = raw.recv_packet();
                if packet.kind == kind::PUBLISH {
                    break packet;
                }
                assert_eq!(packet.kind, kind::PUBREL);
                raw.send(&ack(kind::PUBCOMP, packet.id()));
            };
            assert_eq!(message.text(), number.to_string(), "QoS {qos}");
            match qos {
                0 => {}
                1 => raw.send(&ack(kind::PUBACK, message.id())),
                _ => raw.send(&ack(kind::PUBREC, message.id())),
            }
        }
    }
}

#[test]
fn mqtt_4_6_0_6_messages_of_one_publisher_reach_every_subscriber_in_order() {
    const COUNT: u32 = 500;
    let base = topic();
    let filters = [
        format!("{base}/a"),
        format!("{base}/+"),
        format!("{base}/#"),
        "+/a".replace('+', &base),
    ];
    let mut subscribers: Vec<Raw> = filters
        .iter()
        .cycle()
        .take(8)
        .map(|filter| subscriber(filter, 1))
        .collect();
    let publishers: Vec<_> = (0..4)
        .map(|publisher| {
            let name = format!("{base}/a");
            std::thread::spawn(move || {
                let mut raw = client();
                for number in 0..COUNT {
                    raw.publish_qos1(&name, format!("{publisher} {number}"), 1);
                }
            })
        })
        .collect();
    for raw in &mut subscribers {
        let mut next = [0_u32; 4];
        for _ in 0..4 * COUNT {
            let message = raw.recv(kind::PUBLISH);
            raw.send(&ack(kind::PUBACK, message.id()));
            let (publisher, number) = message.text().split_once(' ').unwrap();
            let next = &mut next[publisher.parse::<usize>().unwrap()];
            assert_eq!(number.parse::<u32>().unwrap(), *next);
            *next += 1;
        }
        raw.ping();
    }
    for publisher in publishers {
        publisher.join().unwrap();
    }
}

#[test]
fn mqtt_4_6_0_6_acknowledgements_come_in_the_order_of_the_messages() {
    let mut publisher = client();
    let ids: Vec<u16> = (1..=300).rev().collect();
    publisher.send(
        &ids.iter()
            .flat_map(|id| Publish::new("nowhere", "x").qos(1, *id).bytes(V311))
            .collect::<Vec<_>>(),
    );
    for id in &ids {
        assert_eq!(publisher.recv(kind::PUBACK).id(), *id);
    }
    publisher.send(
        &ids.iter()
            .flat_map(|id| Publish::new("nowhere", "x").qos(2, *id).bytes(V311))
            .collect::<Vec<_>>(),
    );
    for id in &ids {
        assert_eq!(publisher.recv(kind::PUBREC).id(), *id);
    }
    publisher.send(
        &ids.iter()
            .flat_map(|id| ack(kind::PUBREL, *id))
            .collect::<Vec<_>>(),
    );
    for id in &ids {
        assert_eq!(publisher.recv(kind::PUBCOMP).id(), *id);
    }
}

#[test]
fn mqtt_4_6_0_6_pubrels_come_in_the_order_of_the_pubrecs() {
    let topic = topic();
    let mut raw = subscriber(&topic, 2);
    let mut publisher = client();
    for number in 0..20 {
        publisher.publish_qos2(&topic, format!("{number}"), 1);
    }
    let sent = messages(&mut raw, 20);
    let pubrecs: Vec<u8> = sent
        .iter()
        .rev()
        .flat_map(|message| ack(kind::PUBREC, message.id()))
        .collect();
    raw.send(&pubrecs);
    for message in sent.iter().rev() {
        assert_eq!(raw.recv(kind::PUBREL).id(), message.id());
    }
}

#[test]
fn mqtt_4_6_0_6_messages_that_waited_come_in_order() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    raw.disconnect();
    let mut publisher = client();
    for number in 0..100 {
        if number % 2 == 0 {
            publisher.publish_qos1(&topic, format!("{number}"), 1);
        } else {
            publisher.publish_qos2(&topic, format!("{number}"), 1);
        }
    }
    let mut raw = super::resume(&id, true);
    for number in 0..100 {
        let message = raw.recv_message(&topic, format!("{number}"));
        if message.qos() == 1 {
            raw.send(&ack(kind::PUBACK, message.id()));
        }
    }
}
