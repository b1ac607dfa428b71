//! Chapter 3.3.4, what follows from a PUBLISH. The limits on messages in flight (3.3.4-7 to -10) are in
//! `flow_control.rs`. 3.3.4-5 rules several copies of one message; this server sends one with all identifiers.

use super::*;

fn subscription_ids(message: &Packet) -> Vec<u32> {
    let mut ids: Vec<u32> = message
        .property_values(property::SUBSCRIPTION_ID)
        .into_iter()
        .map(|value| match value {
            Value::Varint(id) => *id,
            other => panic!("a subscription identifier that is {other:?}"),
        })
        .collect();
    ids.sort_unstable();
    ids
}

fn subscribe_with_id(raw: &mut Raw, filter: &str, options: u8, id: u32) {
    let subscribe = Subscribe::new(1)
        .filter(filter, options)
        .properties(Props::new().varint(property::SUBSCRIPTION_ID, id));
    assert_eq!(raw.subscribe_for_codes(&subscribe), [options & 3]);
}

#[test]
fn mqtt5_3_3_4_1_the_answer_to_a_publish_follows_its_qos() {
    let mut raw = client();
    let topic = unique("answer/");
    raw.publish(&topic, "no answer");
    raw.ping();
    raw.send_publish(&Publish::new(&topic, "x").qos(1, 1));
    let puback = raw.recv(kind::PUBACK);
    raw.send_publish(&Publish::new(&topic, "x").qos(2, 2));
    let pubrec = raw.recv(kind::PUBREC);
    raw.send(&ack(kind::PUBREL, 2));
    let pubcomp = raw.recv(kind::PUBCOMP);
    // Nobody subscribes: success, or "no matching subscribers" where the server cares to tell.
    assert!([0x00, 0x10].contains(&puback.reason), "{puback:?}");
    assert!([0x00, 0x10].contains(&pubrec.reason), "{pubrec:?}");
    assert_eq!(pubcomp.reason, 0);
    raw.ping();
}

#[test]
fn mqtt5_3_3_4_2_overlapping_subscriptions_deliver_at_their_highest_qos() {
    let base = unique("overlap/");
    let topic = format!("{base}/a");
    let mut subscriber = client();
    subscriber.subscribe(&format!("{base}/#"), 0);
    subscriber.subscribe(&topic, 2);
    subscriber.subscribe(&format!("{base}/+"), 1);
    let mut publisher = client();
    publisher.publish_qos2(&topic, "x", 1);
    publisher.publish_qos2(&topic, "end", 2);
    // Several copies are allowed as well; one of them has the highest QoS.
    let mut highest = 0;
    loop {
        let message = subscriber.recv(kind::PUBLISH);
        if message.text() == "end" {
            break;
        }
        highest = highest.max(message.qos());
    }
    assert_eq!(highest, 2);
}

#[test]
fn mqtt5_3_3_4_2_overlapping_subscriptions_deliver_once() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let base = unique("overlap/");
    let topic = format!("{base}/a");
    let mut subscriber = client();
    for (filter, qos) in [("#", 1), ("+", 2), ("a", 0)] {
        subscriber.subscribe(&format!("{base}/{filter}"), qos);
    }
    let mut publisher = client();
    for (payload, qos) in [("zero", 0), ("one", 1), ("two", 2)] {
        match qos {
            0 => publisher.publish(&topic, payload),
            1 => publisher.publish_qos1(&topic, payload, 1),
            _ => publisher.publish_qos2(&topic, payload, 2),
        }
        let message = subscriber.recv_message(&topic, payload);
        assert_eq!(message.qos(), qos);
        subscriber.acknowledge(&message);
    }
    expect_fence(&mut subscriber, &mut publisher, &topic);
}

#[test]
fn mqtt5_3_3_4_3_the_subscription_identifier_is_sent() {
    let topic = unique("id/");
    let mut subscriber = client();
    let mut publisher = client();
    for id in [1, 127, 128, 268_435_455] {
        subscribe_with_id(&mut subscriber, &topic, 1, id);
        publisher.publish_qos1(&topic, "x", 1);
        let message = subscriber.recv_message(&topic, "x");
        assert_eq!(
            message.properties,
            [(property::SUBSCRIPTION_ID, Value::Varint(id))]
        );
        subscriber.acknowledge(&message);
    }
    // Subscribing without an identifier takes it away.
    subscriber.subscribe(&topic, 1);
    publisher.publish(&topic, "x");
    assert_eq!(subscriber.recv_message(&topic, "x").properties, []);
}

#[test]
fn mqtt5_3_3_4_3_an_identifier_belongs_to_its_session_alone() {
    let topic = unique("id/");
    let (mut plain, mut publisher) = pair(&topic);
    let mut identified = client();
    subscribe_with_id(&mut identified, &topic, 0, 7);
    publisher.publish(&topic, "x");
    assert_eq!(plain.recv_message(&topic, "x").properties, []);
    assert_eq!(subscription_ids(&identified.recv_message(&topic, "x")), [7]);
}

#[test]
fn mqtt5_3_3_4_4_one_copy_carries_all_identifiers_that_match() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let base = unique("ids/");
    let topic = format!("{base}/a/b");
    let mut subscriber = client();
    subscribe_with_id(&mut subscriber, &format!("{base}/#"), 0, 10);
    subscribe_with_id(&mut subscriber, &format!("{base}/a/+"), 1, 11);
    subscribe_with_id(&mut subscriber, &topic, 2, 10);
    subscriber.subscribe(&format!("{base}/+/b"), 0);
    subscribe_with_id(&mut subscriber, &format!("{base}/other"), 0, 12);
    let mut publisher = client();
    publisher.publish_qos2(&topic, "x", 1);
    let message = subscriber.recv_message(&topic, "x");
    assert_eq!(message.qos(), 2);
    // "In this case the PUBLISH packet will carry multiple identical Subscription Identifiers."
    assert_eq!(subscription_ids(&message), [10, 10, 11]);
    subscriber.acknowledge(&message);
    subscriber.ping();
}

#[test]
fn mqtt5_3_3_4_4_queued_and_retained_messages_carry_the_identifiers_too() {
    let id = unique("c");
    let topic = unique("ids/");
    let mut publisher = client();
    retain(&mut publisher, &topic, "retained");
    let mut subscriber = Raw::connect(node(), &session(&id, 60));
    subscribe_with_id(&mut subscriber, &topic, 1, 300);
    let message = subscriber.recv_message(&topic, "retained");
    assert_eq!(subscription_ids(&message), [300]);
    subscriber.acknowledge(&message);
    subscriber.ping();
    subscriber.disconnect();
    publisher.publish_qos1(&topic, "queued", 2);
    let mut subscriber = Raw::connect(node(), &session(&id, 0));
    let message = subscriber.recv_message(&topic, "queued");
    assert_eq!(subscription_ids(&message), [300]);
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_4_6_a_subscription_identifier_from_a_client_is_rejected() {
    let properties = Props::new().varint(property::SUBSCRIPTION_ID, 1);
    breaks(
        &Publish::new("a", "x").properties(properties).bytes(5),
        reason::MALFORMED_OR_PROTOCOL_ERROR,
    );
}
