//! Sessions: CleanSession and what is kept (3.1.2.4, 3.1.4-2, 4.1, 4.5).

use super::{V311, client, persistent, subscriber, topic};
use crate::support::{Connect, Node, Publish, Raw, Subscribe, ack, kind, unique};

#[test]
fn mqtt_3_1_2_4_a_session_is_resumed_with_its_subscriptions() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    assert_eq!(
        raw.subscribe_for_codes(
            &Subscribe::new(1)
                .filter(&topic, 0)
                .filter(format!("{topic}/1"), 1)
                .filter(format!("{topic}/2"), 2)
        ),
        [0, 1, 2]
    );
    raw.disconnect();
    let mut raw = super::resume(&id, true);
    let mut publisher = client();
    for (tail, qos) in [("", 0), ("/1", 1), ("/2", 2)] {
        let name = format!("{topic}{tail}");
        publisher.publish_qos2(&name, "x", 1);
        let message = raw.recv_message(&name, "x");
        assert_eq!(message.qos(), qos);
        raw.acknowledge(&message);
    }
}

#[test]
fn mqtt_3_1_2_4_a_session_is_kept_after_a_cut_too() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.cut();
    let mut raw = super::resume(&id, true);
    raw.publish(&topic, "x");
    raw.recv_message(&topic, "x");
}

#[test]
fn mqtt_3_1_2_4_an_unsubscription_is_kept_too() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.unsubscribe(&topic);
    raw.disconnect();
    client().publish_qos1(&topic, "away", 1);
    let mut raw = super::resume(&id, true);
    raw.publish(&topic, "back");
    raw.ping();
}

#[test]
fn mqtt_3_1_2_5_qos_1_and_2_messages_wait_for_the_session() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    raw.disconnect();
    let mut publisher = client();
    publisher.publish_qos1(&topic, "one", 1);
    publisher.publish_qos2(&topic, "two", 2);
    let mut raw = super::resume(&id, true);
    let one = raw.recv_message(&topic, "one");
    let two = raw.recv_message(&topic, "two");
    assert_eq!((one.qos(), two.qos()), (1, 2));
    raw.acknowledge(&one);
    raw.acknowledge(&two);
    raw.ping();
    raw.disconnect();
    // Each only once.
    super::resume(&id, true).ping();
}

#[test]
fn mqtt_3_1_2_5_messages_wait_at_the_granted_qos() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    client().publish_qos2(&topic, "two", 2);
    let mut raw = super::resume(&id, true);
    assert_eq!(raw.recv_message(&topic, "two").qos(), 1);
}

#[test]
fn mqtt_3_1_2_5_many_messages_wait() {
    const COUNT: u32 = 2000;
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    let mut publisher = client();
    for batch in 0..COUNT / 500 {
        let bytes: Vec<u8> = (0..500)
            .flat_map(|index| {
                Publish::new(&topic, (batch * 500 + index).to_string())
                    .qos(1, index as u16 + 1)
                    .bytes(V311)
            })
            .collect();
        publisher.send(&bytes);
        for _ in 0..500 {
            publisher.recv(kind::PUBACK);
        }
    }
    let mut raw = super::resume(&id, true);
    for number in 0..COUNT {
        let message = raw.recv_message(&topic, number.to_string());
        raw.send(&ack(kind::PUBACK, message.id()));
    }
    raw.ping();
}

#[test]
fn mqtt_3_1_2_6_a_clean_session_discards_the_former_session() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    let mut publisher = client();
    publisher.publish_qos1(&topic, "in flight", 1);
    raw.recv_message(&topic, "in flight");
    raw.cut();
    publisher.publish_qos1(&topic, "waiting", 1);
    let mut raw = Raw::connect(Node::shared(), &Connect::new(V311, &id));
    raw.ping();
    publisher.publish_qos1(&topic, "live", 1);
    raw.ping();
    raw.disconnect();
    // Nor is it there again afterwards.
    let mut raw = super::resume(&id, false);
    publisher.publish_qos1(&topic, "later", 1);
    raw.ping();
}

#[test]
fn mqtt_3_1_2_6_a_clean_session_lasts_as_long_as_its_connection() {
    let (id, topic) = (unique("c"), topic());
    for end in [Raw::disconnect, Raw::cut] {
        let mut raw = Raw::connect(Node::shared(), &Connect::new(V311, &id));
        raw.subscribe(&topic, 1);
        end(raw);
        client().publish_qos1(&topic, "x", 1);
        let mut raw = super::resume(&id, false);
        raw.ping();
        Raw::connect(Node::shared(), &Connect::new(V311, &id)).disconnect();
    }
}

#[test]
fn mqtt_3_1_2_6_a_qos_2_exchange_of_a_clean_session_is_not_taken_up_again() {
    let (id, topic) = (unique("c"), topic());
    let connect = Connect::new(V311, &id);
    let mut raw = Raw::connect(Node::shared(), &connect);
    raw.subscribe(&topic, 2);
    client().publish_qos2(&topic, "x", 1);
    let message = raw.recv_message(&topic, "x");
    raw.send(&ack(kind::PUBREC, message.id()));
    raw.recv(kind::PUBREL);
    raw.cut();
    Raw::connect(Node::shared(), &connect).ping();
}

#[test]
fn mqtt_4_1_0_1_state_is_kept_for_the_whole_session() {
    // A QoS 2 exchange that is interrupted after every single step, in both directions.
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    let step = |raw: Raw| {
        raw.cut();
        super::resume(&id, true)
    };
    raw.send_publish(&Publish::new(&topic, "round trip").qos(2, 77));
    // The server sends the message itself after the PUBLISH or after the PUBREL.
    let mut seen = Vec::new();
    await_packet(&mut raw, kind::PUBREC, &mut seen);
    raw = step(raw);
    raw.send_publish(&Publish::new(&topic, "round trip").qos(2, 77).dup());
    await_packet(&mut raw, kind::PUBREC, &mut seen);
    raw = step(raw);
    raw.send(&ack(kind::PUBREL, 77));
    await_packet(&mut raw, kind::PUBCOMP, &mut seen);
    raw = step(raw);
    let message = raw.recv_message(&topic, "round trip");
    seen.push(message.id());
    assert!(
        seen.iter().all(|id| *id == seen[0]),
        "one message under several identifiers: {seen:?}"
    );
    raw.send(&ack(kind::PUBREC, message.id()));
    assert_eq!(raw.recv(kind::PUBREL).id(), message.id());
    raw = step(raw);
    assert_eq!(raw.recv(kind::PUBREL).id(), message.id());
    raw.send(&ack(kind::PUBCOMP, message.id()));
    raw.ping();
    raw = step(raw);
    raw.ping();
}

/// Waits for a packet of this kind; the identifiers of messages that come before are noted.
fn await_packet(raw: &mut Raw, wanted: u8, seen: &mut Vec<u16>) {
    loop {
        let packet = raw.recv_packet();
        if packet.kind == wanted {
            return;
        }
        assert_eq!(packet.kind, kind::PUBLISH, "{packet:?}");
        seen.push(packet.id());
    }
}

#[test]
fn mqtt_4_1_0_2_a_session_lasts_at_least_as_long_as_its_connection() {
    let topic = topic();
    let mut raw = subscriber(&topic, 1);
    for number in 0..20 {
        let text = number.to_string();
        client().publish_qos1(&topic, &text, 1);
        let message = raw.recv_message(&topic, &text);
        raw.acknowledge(&message);
    }
}

#[test]
fn mqtt_4_5_0_1_a_message_is_added_to_all_sessions_that_match_online_or_not() {
    let base = topic();
    let ids: Vec<String> = (0..4).map(|_| unique("c")).collect();
    for (index, id) in ids.iter().enumerate() {
        let mut raw = super::resume(id, false);
        raw.subscribe(
            &if index % 2 == 0 {
                format!("{base}/x")
            } else {
                format!("{base}/#")
            },
            1,
        );
        raw.disconnect();
    }
    let mut online: Vec<Raw> = (0..4)
        .map(|_| subscriber(&format!("{base}/+"), 1))
        .collect();
    let mut other = subscriber(&format!("{base}/y"), 1);
    let name = format!("{base}/x");
    client().publish_qos1(&name, "all", 1);
    for raw in &mut online {
        raw.recv_message(&name, "all");
    }
    for id in &ids {
        super::resume(id, true).recv_message(&name, "all");
    }
    client().publish_qos1(&format!("{base}/y"), "marker", 1);
    other.recv_message(&format!("{base}/y"), "marker");
}

#[test]
fn mqtt_4_5_0_1_a_message_acknowledged_to_the_publisher_reaches_a_client_that_takes_its_session_over()
 {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    let mut publisher = client();
    for number in 0..30 {
        let text = number.to_string();
        publisher.publish_qos1(&topic, &text, 1);
        // The former connection is not read: its messages are in flight.
        let mut newer = Raw::connect(Node::shared(), &persistent(&id));
        let found = (0..=number)
            .map(|_| newer.recv(kind::PUBLISH).text().to_owned())
            .collect::<Vec<_>>();
        let expected: Vec<String> = (0..=number).map(|number| number.to_string()).collect();
        assert_eq!(found, expected);
        raw = newer;
    }
    raw.ping();
}

#[test]
fn qos_0_messages_do_not_disturb_a_session_that_is_away() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    let mut publisher = client();
    publisher.publish(&topic, "zero");
    publisher.publish_qos1(&topic, "one", 1);
    let mut raw = super::resume(&id, true);
    let texts: Vec<String> = {
        let packets = raw.ping_for_packets();
        packets
            .iter()
            .map(|packet| packet.text().to_owned())
            .collect()
    };
    assert!(texts == ["one"] || texts == ["zero", "one"], "{texts:?}");
}
