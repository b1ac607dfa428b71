//! Chapters 4.9 and 3.3.4, flow control by Receive Maximum in both directions.
//!
//! Bind clients alone: 3.3.4-7 and -8 (the client's own sending; what the server does when it is broken is here).

use super::*;

/// A session with this Receive Maximum and a subscription at QoS 2 on a fresh topic.
fn subscriber(receive_maximum: u16) -> (Raw, String) {
    let topic = unique("flow/");
    let mut raw = client_with(Props::new().u16(property::RECEIVE_MAXIMUM, receive_maximum));
    raw.subscribe(&topic, 2);
    (raw, topic)
}

fn publish_all(topic: &str, qos: u8, count: u16) {
    let mut publisher = client();
    for number in 1..=count {
        match qos {
            0 => publisher.publish(topic, number.to_string()),
            1 => publisher.publish_qos1(topic, number.to_string(), number),
            _ => publisher.publish_qos2(topic, number.to_string(), number),
        }
    }
    publisher.disconnect();
}

#[test]
fn mqtt5_3_3_4_7_a_client_above_the_servers_receive_maximum_is_disconnected() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&["--set", "limits.receive_maximum=10"]);
    let (mut raw, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
    assert_eq!(connack.number(property::RECEIVE_MAXIMUM), Some(10));
    // QoS 2 messages are in flight until their PUBCOMP.
    for id in 1..=10 {
        raw.send_publish(&Publish::new("a", "x").qos(2, id));
        assert_eq!(raw.recv(kind::PUBREC).id(), id);
    }
    // QoS 0 is not limited, nor is a message that is sent again.
    raw.publish("a", "x");
    raw.send_publish(&Publish::new("a", "x").qos(2, 10).dup());
    assert_eq!(raw.recv(kind::PUBREC).id(), 10);
    // One done makes room for one.
    raw.send(&ack(kind::PUBREL, 3));
    assert_eq!(raw.recv(kind::PUBCOMP).id(), 3);
    raw.send_publish(&Publish::new("a", "x").qos(2, 11));
    assert_eq!(raw.recv(kind::PUBREC).id(), 11);
    raw.send_publish(&Publish::new("a", "x").qos(2, 12));
    expect_disconnect_for(&mut raw, &[reason::RECEIVE_MAXIMUM_EXCEEDED]);
}

#[test]
fn mqtt5_3_3_4_7_rejected_messages_are_not_in_flight() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = Node::shared_with(&["--set", "limits.receive_maximum=10"]);
    let mut raw = Raw::client(node, 5);
    for id in 1..=30 {
        raw.send_publish(&Publish::new("$SYS/forbidden", "x").qos(2, id));
        assert!(raw.recv(kind::PUBREC).reason >= 0x80);
    }
    raw.publish_qos2("a", "x", 1);
}

#[test]
fn mqtt5_3_3_4_9_the_server_keeps_to_the_clients_receive_maximum() {
    for (receive_maximum, qos) in [(1, 1), (5, 1), (1, 2), (5, 2)] {
        let (mut raw, topic) = subscriber(receive_maximum);
        publish_all(&topic, qos, 20);
        let mut in_flight = Vec::new();
        let mut next = 1;
        while next <= 20 {
            while in_flight.len() < usize::from(receive_maximum) && next <= 20 {
                let message = raw.recv_message(&topic, next.to_string());
                assert_eq!(message.qos(), qos);
                in_flight.push(message);
                next += 1;
            }
            // Full: nothing more comes until one is acknowledged, in whatever order.
            raw.ping();
            let done = in_flight.remove(in_flight.len() / 2);
            raw.acknowledge(&done);
        }
    }
}

#[test]
fn mqtt5_4_9_0_1_the_default_receive_maximum_is_65535() {
    let topic = unique("flow/");
    let mut raw = client();
    raw.subscribe(&topic, 1);
    // Without the property the server may have as many in flight as it likes; 20 at least.
    publish_all(&topic, 1, 20);
    for number in 1..=20 {
        raw.recv_message(&topic, number.to_string());
    }
}

#[test]
fn mqtt5_4_9_0_2_at_quota_0_no_publish_with_qos_is_sent() {
    let (mut raw, topic) = subscriber(2);
    publish_all(&topic, 2, 3);
    let first = raw.recv_message(&topic, "1");
    raw.recv_message(&topic, "2");
    raw.ping();
    // PUBREC alone gives no room ...
    raw.send(&ack(kind::PUBREC, first.id()));
    assert_eq!(raw.recv(kind::PUBREL).id(), first.id());
    raw.ping();
    // ... PUBCOMP does.
    raw.send(&ack(kind::PUBCOMP, first.id()));
    raw.recv_message(&topic, "3");
}

#[test]
fn mqtt5_4_9_0_2_a_pubrec_with_an_error_gives_room() {
    let (mut raw, topic) = subscriber(1);
    publish_all(&topic, 2, 2);
    let first = raw.recv_message(&topic, "1");
    raw.send(&ack_reason(kind::PUBREC, first.id(), 0x80, &Props::new()));
    raw.recv_message(&topic, "2");
}

#[test]
fn mqtt5_4_9_0_2_a_surplus_acknowledgement_gives_no_room() {
    let (mut raw, topic) = subscriber(1);
    publish_all(&topic, 1, 4);
    let first = raw.recv_message(&topic, "1");
    raw.send(&ack(kind::PUBACK, first.id()));
    raw.recv_message(&topic, "2");
    for _ in 0..2 {
        raw.send(&ack(kind::PUBACK, first.id().wrapping_add(100)));
    }
    // The server may take it for a protocol error; it may not send more than one.
    raw.send(&[0xc0, 0x00]);
    let next = raw.recv_packet();
    assert!(
        [kind::PINGRESP, kind::DISCONNECT].contains(&next.kind),
        "{next:?}"
    );
}

#[test]
fn mqtt5_4_9_0_2_the_quota_starts_anew_with_each_connection() {
    let id = unique("c");
    let topic = unique("flow/");
    let with_maximum = |maximum| {
        let mut connect = session(&id, 60);
        connect.properties = connect.properties.u16(property::RECEIVE_MAXIMUM, maximum);
        connect
    };
    let mut raw = Raw::connect(node(), &with_maximum(4));
    raw.subscribe(&topic, 1);
    publish_all(&topic, 1, 6);
    for number in 1..=4 {
        raw.recv_message(&topic, number.to_string());
    }
    raw.ping();
    raw.cut();
    // Fewer than are in flight: they are sent again as room comes, in order.
    let mut raw = Raw::connect(node(), &with_maximum(2));
    for number in (1..=6).step_by(2) {
        let one = raw.recv_message(&topic, number.to_string());
        let two = raw.recv_message(&topic, (number + 1).to_string());
        assert_eq!((one.dup(), two.dup()), (number <= 4, number <= 4));
        raw.ping();
        raw.send(&[ack(kind::PUBACK, one.id()), ack(kind::PUBACK, two.id())].concat());
    }
    raw.ping();
}

#[test]
fn mqtt5_3_3_4_10_other_packets_are_not_delayed_by_a_full_quota() {
    let (mut raw, topic) = subscriber(1);
    publish_all(&topic, 1, 2);
    let first = raw.recv_message(&topic, "1");
    let other = unique("other/");
    raw.subscribe(&other, 0);
    // QoS 0 is not limited.
    raw.publish(&other, "at QoS 0");
    raw.recv_message(&other, "at QoS 0");
    raw.unsubscribe(&other);
    raw.publish_qos1(&other, "x", 1);
    raw.publish_qos2(&other, "x", 2);
    raw.ping();
    raw.acknowledge(&first);
    raw.recv_message(&topic, "2");
}

#[test]
fn mqtt5_4_9_0_3_packets_of_the_client_are_answered_at_quota_0() {
    let (mut raw, topic) = subscriber(1);
    publish_all(&topic, 2, 2);
    let first = raw.recv_message(&topic, "1");
    for id in 1..=5 {
        raw.publish_qos2(&unique("t/"), "x", id);
        raw.subscribe(&unique("t/"), 1);
        raw.ping();
    }
    raw.acknowledge(&first);
    raw.recv_message(&topic, "2");
}

#[test]
fn mqtt5_3_3_4_10_pubrel_is_sent_again_whatever_the_receive_maximum() {
    let id = unique("c");
    let topic = unique("flow/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 2);
    publish_all(&topic, 2, 4);
    let ids: Vec<u16> = (1..=4)
        .map(|number| raw.recv_message(&topic, number.to_string()).id())
        .collect();
    let released = &ids[..3];
    for id in released {
        raw.send(&ack(kind::PUBREC, *id));
        assert_eq!(raw.recv(kind::PUBREL).id(), *id);
    }
    raw.cut();
    // Only PUBLISH packets take from the quota.
    let mut connect = session(&id, 0);
    connect.properties = connect.properties.u16(property::RECEIVE_MAXIMUM, 1);
    let mut raw = Raw::connect(node(), &connect);
    let packets = raw.ping_for_packets();
    let found: Vec<u16> = packets
        .iter()
        .filter(|packet| packet.kind == kind::PUBREL)
        .map(Packet::id)
        .collect();
    assert_eq!(found, released, "{packets:?}");
}
