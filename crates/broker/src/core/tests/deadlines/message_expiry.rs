//! Expiry of messages: queued, in flight and retained.

use super::*;

#[test]
fn a_message_expires_behind_a_full_window() {
    let mut sim = sim();
    let window = properties(&[Property::ReceiveMaximum(1)]);
    let (mut connection, _, _) = open(&mut sim, &connect("c", &window));
    sim.subscribe(&mut connection, "t", QoS::AtLeastOnce);
    let mut publisher = client(&mut sim, "publisher");
    for (payload, expiry_s) in [("first", 100), ("expires", 10), ("stays", 100)] {
        publish(&mut sim, &mut publisher, "t", payload, expiry_s);
    }
    let first = take(&mut sim, connection);
    assert_eq!(payloads(&first), ["first"]);
    pass(&mut sim, 20_000);
    let ack = Packet::PubAck(ack(first[0].packet_id));
    send(&mut sim, &mut connection, &ack, Version::V5);
    let rest = take(&mut sim, connection);
    assert_eq!(payloads(&rest), ["stays"]);
    assert_eq!(rest[0].expiry_s, Some(80));
}

#[test]
fn mqtt5_3_3_2_6_the_expiry_is_counted_down_while_the_message_waits() {
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(60)));
    sim.subscribe(&mut connection, "t", QoS::ExactlyOnce);
    sim.drop_connection(connection);
    let mut publisher = client(&mut sim, "publisher");
    publish(&mut sim, &mut publisher, "t", "aged", 100);
    publish(&mut sim, &mut publisher, "t", "expired", 20);
    pass(&mut sim, 20_000);
    let (_, present, messages) = open(&mut sim, &connect("c", &session_expiry(0)));
    assert!(present);
    assert_eq!(payloads(&messages), ["aged"]);
    assert_eq!(messages[0].expiry_s, Some(80));
}

#[test]
fn what_is_in_flight_keeps_its_place_but_counts_down() {
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(60)));
    sim.subscribe(&mut connection, "t", QoS::AtLeastOnce);
    let mut publisher = client(&mut sim, "publisher");
    publish(&mut sim, &mut publisher, "t", "sent", 100);
    let sent = take(&mut sim, connection);
    sim.drop_connection(connection);
    pass(&mut sim, 20_000);
    let (_, _, again) = open(&mut sim, &connect("c", &session_expiry(0)));
    let expected = ReceivedMessage {
        dup: true,
        expiry_s: Some(80),
        ..sent[0].clone()
    };
    assert_eq!(again, [expected]);
}

/// A message of QoS 2 that expires after 10 s, and the answer of the node.
fn publish_qos2(sim: &mut Sim, publisher: &mut SimConnection, topic: &str) {
    let expiry = properties(&[Property::MessageExpiryInterval(10)]);
    let packet = Packet::Publish(Publish {
        dup: false,
        qos: QoS::ExactlyOnce,
        retain: false,
        topic,
        packet_id: 5,
        properties: expiry.as_properties(),
        payload: b"brief",
    });
    send(sim, publisher, &packet, Version::V5);
    assert!(sim.has(*publisher, PacketType::PubRec));
}

#[test]
fn mqtt5_4_3_3_7_a_qos_2_message_once_sent_does_not_expire() {
    let mut sim = sim();
    let (mut connection, _, _) = open(&mut sim, &connect("c", &session_expiry(60)));
    sim.subscribe(&mut connection, "t", QoS::ExactlyOnce);
    let mut publisher = client(&mut sim, "publisher");
    publish_qos2(&mut sim, &mut publisher, "t");
    release(&mut sim, &mut publisher, 5);
    let sent = take(&mut sim, connection);
    assert_eq!(payloads(&sent), ["brief"]);
    sim.drop_connection(connection);
    pass(&mut sim, 20_000);
    let (_, _, again) = open(&mut sim, &connect("c", &session_expiry(60)));
    assert_eq!(payloads(&again), ["brief"]);
    assert_eq!(
        (again[0].packet_id, again[0].dup),
        (sent[0].packet_id, true)
    );
}

#[test]
fn mqtt5_4_3_3_13_the_exchange_goes_on_after_the_message_has_expired() {
    let mut sim = sim();
    let mut publisher = client(&mut sim, "publisher");
    publish_qos2(&mut sim, &mut publisher, "t");
    pass(&mut sim, 20_000);
    assert_eq!(release(&mut sim, &mut publisher, 5), ReasonCode::SUCCESS);
}

#[test]
fn mqtt5_3_3_2_6_the_expiry_of_a_retained_message_is_counted_down() {
    let mut sim = sim();
    let mut publisher = client(&mut sim, "publisher");
    // What an expired message replaced does not come back.
    for (topic, expiry_s) in [("kept/short", 100), ("kept/short", 10), ("kept/long", 100)] {
        let expiry = properties(&[Property::MessageExpiryInterval(expiry_s)]);
        publish_packet(&mut sim, &mut publisher, topic, topic, true, &expiry);
    }
    pass(&mut sim, 20_000);
    let mut subscriber = client(&mut sim, "subscriber");
    sim.subscribe(&mut subscriber, "kept/#", QoS::AtMostOnce);
    let messages = take(&mut sim, subscriber);
    assert_eq!(payloads(&messages), ["kept/long"]);
    assert_eq!(messages[0].expiry_s, Some(80));
}

#[test]
fn retained_messages_expire_by_the_nodes_rule_too() {
    let limits = BrokerLimits {
        retained_expiry_s: 10,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 1);
    let mut publisher = client(&mut sim, "publisher");
    let none = PropertiesBuf::new();
    let own = properties(&[Property::MessageExpiryInterval(100)]);
    publish_packet(&mut sim, &mut publisher, "kept/plain", "plain", true, &none);
    publish_packet(&mut sim, &mut publisher, "kept/own", "own", true, &own);
    pass(&mut sim, 9_000);
    for expected in [&["own", "plain"][..], &["own"]] {
        let mut subscriber = client(&mut sim, "subscriber");
        sim.subscribe(&mut subscriber, "kept/#", QoS::AtMostOnce);
        let messages = take(&mut sim, subscriber);
        let mut found = payloads(&messages);
        found.sort_unstable();
        assert_eq!(found, expected);
        sim.drop_connection(subscriber);
        pass(&mut sim, 1_000);
    }
}
