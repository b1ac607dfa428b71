//! Chapters 3.3.1 and 3.3.2.1, the fixed header and the topic name of PUBLISH: duplicates, QoS and retained messages.

use super::*;

#[test]
fn mqtt5_3_3_1_1_a_redelivered_publish_has_dup_set() {
    let id = unique("c");
    let topic = unique("dup/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    publisher.publish_qos1(&topic, "one", 1);
    publisher.publish_qos2(&topic, "two", 2);
    let first = raw.recv_message(&topic, "one");
    let second = raw.recv_message(&topic, "two");
    assert!(!first.dup() && !second.dup());
    raw.cut();
    let mut raw = Raw::connect(node(), &session(&id, 60));
    for sent in [first, second] {
        let again = raw.recv_message(&topic, &sent.payload);
        let mut with_dup = sent.bytes.clone();
        with_dup[0] |= 0x08;
        assert_eq!(again.bytes, with_dup);
    }
}

#[test]
fn mqtt5_3_3_1_2_a_message_at_qos_0_never_has_dup_set() {
    let topic = unique("dup/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 0);
    let mut publisher = client();
    publisher.send_publish(&Publish::new(&topic, "x").qos(1, 1).dup());
    assert!(!subscriber.recv_message(&topic, "x").dup());
}

#[test]
fn mqtt5_3_3_1_2_dup_at_qos_0_is_rejected() {
    breaks(
        &Publish::new("a", "x").dup().bytes(5),
        reason::MALFORMED_OR_PROTOCOL_ERROR,
    );
}

#[test]
fn mqtt5_3_3_1_3_dup_is_not_passed_on() {
    let topic = unique("dup/");
    let (mut subscriber, mut publisher) = pair(&topic);
    publisher.send_publish(&Publish::new(&topic, "one").qos(1, 1).dup());
    publisher.recv(kind::PUBACK);
    assert!(!subscriber.recv_message(&topic, "one").dup());
    publisher.send_publish(&Publish::new(&topic, "two").qos(2, 2).dup());
    publisher.recv(kind::PUBREC);
    publisher.send(&ack(kind::PUBREL, 2));
    publisher.recv(kind::PUBCOMP);
    assert!(!subscriber.recv_message(&topic, "two").dup());
}

#[test]
fn mqtt5_3_3_1_4_qos_3_is_malformed() {
    for flags in [0x36, 0x37, 0x3e, 0x3f] {
        let mut bytes = Publish::new("a", "x").qos(1, 1).bytes(5);
        bytes[0] = flags;
        breaks(&bytes, &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_3_3_1_5_a_retained_message_replaces_the_one_before() {
    let topic = unique("retain/");
    let mut publisher = client();
    retain(&mut publisher, &topic, "first");
    retain(&mut publisher, &topic, "second");
    let properties =
        Props::new()
            .string(property::CONTENT_TYPE, "t")
            .pair(property::USER, "k", "v");
    let third = Publish::new(&topic, "third")
        .qos(2, 3)
        .retain()
        .properties(properties);
    publisher.send_publish(&third);
    publisher.recv(kind::PUBREC);
    publisher.send(&ack(kind::PUBREL, 3));
    publisher.recv(kind::PUBCOMP);
    let mut subscriber = client();
    subscriber.subscribe(&topic, 2);
    let message = subscriber.recv_message(&topic, "third");
    assert_eq!(
        (message.qos(), message.retain(), message.dup()),
        (2, true, false)
    );
    // Topic, identifier, properties and payload are those of the third one.
    let mut expected = third;
    expected.packet_id = message.id();
    assert_eq!(message.bytes, expected.bytes(5));
    subscriber.acknowledge(&message);
    subscriber.ping();
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_1_5_a_retained_message_at_qos_0_is_stored() {
    let topic = unique("retain/");
    let mut publisher = client();
    publisher.send_publish(&Publish::new(&topic, "zero").retain());
    // A later packet of the same client is processed later.
    publisher.publish_qos1("retain/barrier", "x", 1);
    let messages = retained(&topic);
    assert_eq!(messages.len(), 1);
    let expected = Publish::new(&topic, "zero").retain();
    assert_eq!(messages[0].bytes, expected.bytes(5));
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_1_6_an_empty_retained_message_removes_the_one_before() {
    let topic = unique("retain/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, option::RETAIN_AS_PUBLISHED);
    let mut publisher = client();
    retain(&mut publisher, &topic, "here");
    subscriber.recv_message(&topic, "here");
    retain(&mut publisher, &topic, "");
    // It is delivered as any other message.
    let message = subscriber.recv_message(&topic, "");
    assert!(message.retain());
    assert_eq!(retained(&topic), []);
}

#[test]
fn mqtt5_3_3_1_7_an_empty_retained_message_is_not_stored() {
    let topic = unique("retain/");
    retain(&mut client(), &topic, "");
    assert_eq!(retained(&topic), []);
}

#[test]
fn mqtt5_3_3_1_8_a_message_without_retain_changes_nothing_retained() {
    let topic = unique("retain/");
    let mut publisher = client();
    publisher.publish_qos1(&topic, "not stored", 1);
    assert_eq!(retained(&topic), []);
    retain(&mut publisher, &topic, "stored");
    publisher.publish_qos1(&topic, "not stored", 2);
    publisher.publish_qos1(&topic, "", 3);
    let messages = retained(&topic);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].text(), "stored");
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_1_9_retain_handling_0_sends_retained_messages() {
    let base = unique("retain/");
    let mut publisher = client();
    for leaf in ["a", "b", "c/d"] {
        retain(&mut publisher, &format!("{base}/{leaf}"), leaf);
    }
    let mut subscriber = client();
    // For the first and for every later subscription.
    for _ in 0..2 {
        subscriber.subscribe(&format!("{base}/#"), 0);
        let mut found: Vec<String> = (0..3)
            .map(|_| {
                let message = subscriber.recv(kind::PUBLISH);
                assert!(message.retain());
                message.text().to_owned()
            })
            .collect();
        found.sort();
        assert_eq!(found, ["a", "b", "c/d"]);
    }
    subscriber.ping();
    assert_eq!(retained(&format!("{base}/+")).len(), 2);
    for leaf in ["a", "b", "c/d"] {
        retain(&mut publisher, &format!("{base}/{leaf}"), "");
    }
}

#[test]
fn mqtt5_3_3_1_10_retain_handling_1_sends_them_for_a_new_subscription() {
    let topic = unique("retain/");
    let mut publisher = client();
    retain(&mut publisher, &topic, "kept");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 1 | option::RETAIN_IF_NEW);
    let message = subscriber.recv_message(&topic, "kept");
    subscriber.acknowledge(&message);
    subscriber.subscribe(&topic, option::RETAIN_IF_NEW);
    subscriber.ping();
    // After an UNSUBSCRIBE it is new again.
    subscriber.unsubscribe(&topic);
    subscriber.subscribe(&topic, option::RETAIN_IF_NEW);
    subscriber.recv_message(&topic, "kept");
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_1_10_a_subscription_of_a_resumed_session_is_not_new() {
    let topic = unique("retain/");
    let id = unique("c");
    let mut publisher = client();
    retain(&mut publisher, &topic, "kept");
    let mut subscriber = Raw::connect(node(), &session(&id, 60));
    subscriber.subscribe(&topic, option::RETAIN_IF_NEW);
    subscriber.recv_message(&topic, "kept");
    subscriber.disconnect();
    let mut subscriber = Raw::connect(node(), &session(&id, 0));
    subscriber.subscribe(&topic, option::RETAIN_IF_NEW);
    subscriber.ping();
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_1_11_retain_handling_2_sends_no_retained_message() {
    let topic = unique("retain/");
    let mut publisher = client();
    retain(&mut publisher, &topic, "kept");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 1 | option::RETAIN_NEVER);
    subscriber.ping();
    publisher.publish(&topic, "live");
    subscriber.recv_message(&topic, "live");
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_1_12_without_retain_as_published_retain_is_0() {
    let topic = unique("retain/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 0);
    let mut publisher = client();
    retain(&mut publisher, &topic, "live");
    assert!(!subscriber.recv_message(&topic, "live").retain());
    publisher.publish(&topic, "plain");
    assert!(!subscriber.recv_message(&topic, "plain").retain());
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_1_13_with_retain_as_published_retain_is_as_received() {
    let topic = unique("retain/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, option::RETAIN_AS_PUBLISHED);
    let mut publisher = client();
    retain(&mut publisher, &topic, "retained");
    assert!(subscriber.recv_message(&topic, "retained").retain());
    publisher.publish(&topic, "plain");
    assert!(!subscriber.recv_message(&topic, "plain").retain());
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_section_3_8_3_1_retained_messages_of_a_new_subscription_have_retain_set() {
    let topic = unique("retain/");
    let mut publisher = client();
    retain(&mut publisher, &topic, "kept");
    for options in [0, option::RETAIN_AS_PUBLISHED] {
        let mut subscriber = client();
        subscriber.subscribe(&topic, options);
        assert!(subscriber.recv_message(&topic, "kept").retain());
    }
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_2_1_a_publish_without_topic_is_malformed() {
    breaks(&[0x30, 0x00], &[reason::MALFORMED]);
    breaks(&[0x30, 0x01, 0x00], &[reason::MALFORMED]);
    breaks(&[0x30, 0x04, 0x00, 0x09, b'a', b'b'], &[reason::MALFORMED]);
}

#[test]
fn mqtt5_section_3_3_2_1_an_empty_topic_without_alias_is_a_protocol_error() {
    breaks(&Publish::new("", "x").bytes(5), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_3_3_2_2_a_topic_name_with_wildcards_is_rejected() {
    for topic in ["#", "+", "a/#", "a/+/b", "a#", "+a"] {
        for qos in 0..3 {
            breaks(
                &Publish::new(topic, "x").qos(qos, 1).bytes(5),
                &[
                    reason::MALFORMED,
                    reason::PROTOCOL_ERROR,
                    reason::TOPIC_INVALID,
                ],
            );
        }
    }
}

#[test]
fn mqtt5_3_3_2_3_the_topic_name_sent_matches_the_filter() {
    let base = unique("match/");
    let (mut subscriber, mut publisher) = pair(&format!("{base}/+/b/#"));
    for topic in ["x/b", "y/b/c/d", "/b", "/b/"] {
        let topic = format!("{base}/{topic}");
        publisher.publish(&topic, "x");
        subscriber.recv_message(&topic, "x");
    }
    for topic in ["x", "x/c", "x/y/b"] {
        publisher.publish(&format!("{base}/{topic}"), "must not arrive");
    }
    expect_fence(&mut subscriber, &mut publisher, &format!("{base}/z/b"));
}
