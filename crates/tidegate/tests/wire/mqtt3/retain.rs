//! Retained messages (3.3.1.3).

use super::{V311, client, subscriber, topic};
use crate::support::{Connect, Node, Publish, Raw, Subscribe, ack, kind, unique};

/// Retains a message at QoS 1.
fn retain(topic: &str, payload: &str) {
    let mut publisher = client();
    publisher.send_publish(&Publish::new(topic, payload).qos(1, 1).retain());
    publisher.recv_exactly(&[0x40, 2, 0, 1]);
}

#[test]
fn mqtt_3_3_1_5_a_retained_message_is_kept_with_its_qos_for_future_subscribers() {
    let mut publisher = client();
    for qos in 0..3_u8 {
        let topic = topic();
        publisher.send_publish(&Publish::new(&topic, "kept").qos(qos, 1).retain());
        match qos {
            0 => publisher.ping(),
            1 => publisher.recv_exactly(&[0x40, 2, 0, 1]),
            _ => {
                publisher.recv_exactly(&[0x50, 2, 0, 1]);
                publisher.send(&ack(kind::PUBREL, 1));
                publisher.recv_exactly(&[0x70, 2, 0, 1]);
            }
        }
        for granted in 0..3 {
            let message = subscriber(&topic, granted).recv_message(&topic, "kept");
            assert_eq!(message.qos(), qos.min(granted));
            assert!(message.retain() && !message.dup());
        }
    }
}

#[test]
fn mqtt_3_3_1_5_a_retained_message_outlives_its_publisher() {
    let topic = topic();
    let publisher = {
        let mut raw = client();
        raw.send_publish(&Publish::new(&topic, "kept").qos(1, 1).retain());
        raw.recv(kind::PUBACK);
        raw
    };
    publisher.disconnect();
    subscriber(&topic, 0).recv_message(&topic, "kept");
}

#[test]
fn mqtt_3_3_1_6_the_last_retained_message_of_each_matching_topic_is_sent() {
    let base = topic();
    for (tail, payload) in [
        ("a", "old"),
        ("a", "new"),
        ("b", "b"),
        ("c/d", "deep"),
        ("", "empty level"),
    ] {
        retain(&format!("{base}/{tail}"), payload);
    }
    retain(&base, "parent");
    let expected: [(String, &[(&str, &str)]); 4] = [
        (
            format!("{base}/#"),
            &[
                ("", "parent"),
                ("/", "empty level"),
                ("/a", "new"),
                ("/b", "b"),
                ("/c/d", "deep"),
            ],
        ),
        (
            format!("{base}/+"),
            &[("/", "empty level"), ("/a", "new"), ("/b", "b")],
        ),
        (format!("{base}/+/d"), &[("/c/d", "deep")]),
        (format!("+/{}", "nothing"), &[]),
    ];
    for (filter, messages) in expected {
        let mut raw = subscriber(&filter, 0);
        let packets = raw.ping_for_packets();
        let mut found: Vec<(&str, &str)> = packets
            .iter()
            .inspect(|packet| assert!(packet.retain(), "{packet:?}"))
            .map(|packet| (packet.topic.strip_prefix(&base).unwrap(), packet.text()))
            .collect();
        found.sort_unstable();
        assert_eq!(found, messages, "{filter}");
    }
}

#[test]
fn mqtt_3_3_1_6_a_stored_subscription_is_no_new_subscription() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    let mut raw = {
        let mut publisher = client();
        publisher.send_publish(&Publish::new(&topic, "while away").qos(0, 0).retain());
        publisher.ping();
        super::resume(&id, true)
    };
    // Neither as a queued message (QoS 0) nor as a retained one.
    raw.ping();
}

#[test]
fn mqtt_3_3_1_7_a_qos_0_retained_message_replaces_the_former_one() {
    let topic = topic();
    retain(&topic, "old");
    let mut publisher = client();
    publisher.send_publish(&Publish::new(&topic, "new").retain());
    publisher.ping();
    let mut raw = subscriber(&topic, 1);
    let message = raw.recv_message(&topic, "new");
    assert_eq!(message.qos(), 0);
    raw.ping();
}

#[test]
fn mqtt_3_3_1_8_retain_is_1_for_a_new_subscription() {
    let topic = topic();
    retain(&topic, "x");
    let mut raw = client();
    raw.subscribe(&topic, 0);
    let mut expected = Publish::new(&topic, "x").bytes(V311);
    expected[0] = 0x31;
    raw.recv_exactly(&expected);
}

#[test]
fn mqtt_3_3_1_9_retain_is_0_for_an_established_subscription() {
    let topic = topic();
    let mut raw = subscriber(&topic, 0);
    let mut wildcard = subscriber(&format!("{topic}/#"), 0);
    retain(&topic, "x");
    for raw in [&mut raw, &mut wildcard] {
        raw.recv_exactly(&Publish::new(&topic, "x").bytes(V311));
    }
}

#[test]
fn mqtt_3_3_1_9_retain_is_0_for_a_message_that_waited_for_the_session() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    retain(&topic, "x");
    let mut raw = super::resume(&id, true);
    let message = raw.recv_message(&topic, "x");
    assert!(!message.retain(), "{message:?}");
    raw.ping();
}

#[test]
fn mqtt_3_3_1_10_an_empty_retained_message_is_delivered_and_removes_the_retained_one() {
    let topic = topic();
    retain(&topic, "kept");
    let mut raw = subscriber(&topic, 1);
    raw.recv_message(&topic, "kept");
    retain(&topic, "");
    let message = raw.recv_message(&topic, "");
    assert!(!message.retain());
    subscriber(&topic, 1).ping();
    subscriber(&format!("{topic}/#"), 1).ping();
}

#[test]
fn mqtt_3_3_1_10_an_empty_message_without_retain_removes_nothing() {
    let topic = topic();
    retain(&topic, "kept");
    client().publish_qos1(&topic, "", 1);
    subscriber(&topic, 1).recv_message(&topic, "kept");
}

#[test]
fn mqtt_3_3_1_11_an_empty_retained_message_is_not_stored() {
    let topic = topic();
    retain(&topic, "");
    subscriber(&topic, 1).ping();
}

#[test]
fn mqtt_3_3_1_12_a_message_without_retain_is_not_stored_and_replaces_nothing() {
    let topic = topic();
    client().publish_qos1(&topic, "live", 1);
    subscriber(&topic, 1).ping();
    retain(&topic, "kept");
    client().publish_qos1(&topic, "live", 1);
    client().publish_qos2(&topic, "live", 1);
    let mut raw = subscriber(&topic, 1);
    raw.recv_message(&topic, "kept");
    raw.ping();
}

#[test]
fn mqtt_3_1_2_7_retained_messages_outlive_the_session() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = Raw::connect(Node::shared(), &Connect::new(V311, &id));
    raw.send_publish(&Publish::new(&topic, "kept").qos(1, 1).retain());
    raw.recv(kind::PUBACK);
    raw.disconnect();
    Raw::connect(Node::shared(), &Connect::new(V311, &id)).disconnect();
    subscriber(&topic, 0).recv_message(&topic, "kept");
}

#[test]
fn retained_messages_come_once_for_each_filter_of_a_subscribe() {
    let base = topic();
    retain(&format!("{base}/a"), "a");
    retain(&format!("{base}/b"), "b");
    let mut raw = client();
    let subscribe = Subscribe::new(4)
        .filter(format!("{base}/a"), 0)
        .filter(format!("{base}/b"), 1);
    assert_eq!(raw.subscribe_for_codes(&subscribe), [0, 1]);
    let packets = raw.ping_for_packets();
    let mut found: Vec<(&str, u8)> = packets
        .iter()
        .map(|packet| (packet.text(), packet.qos()))
        .collect();
    found.sort_unstable();
    assert_eq!(found, [("a", 0), ("b", 1)]);
}

#[test]
fn a_client_that_goes_before_it_acknowledges_a_retained_message_gets_it_again() {
    let (id, topic) = (unique("c"), topic());
    retain(&topic, "kept");
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    let first = raw.recv_message(&topic, "kept");
    raw.cut();
    let mut raw = super::resume(&id, true);
    let again = raw.recv_message(&topic, "kept");
    assert_eq!(again.id(), first.id());
    assert!(again.dup());
    raw.send(&ack(kind::PUBACK, again.id()));
    raw.ping();
}
