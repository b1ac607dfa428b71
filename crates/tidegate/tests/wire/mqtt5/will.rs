//! Chapters 3.1.2.5 to 3.1.2.7 and 3.1.3.2, the will message and its properties.

use super::*;

/// A subscriber to a fresh topic, and that topic.
fn watcher() -> (Raw, String) {
    let topic = unique("will/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 2);
    (subscriber, topic)
}

#[test]
fn mqtt5_3_1_2_7_the_will_is_stored_with_the_session() {
    let (mut subscriber, topic) = watcher();
    let raw = Raw::connect(
        node(),
        &connect(&unique("c")).will(Will::new(&topic, "gone")),
    );
    expect_silence(&mut subscriber);
    raw.cut();
    subscriber.recv_message(&topic, "gone");
}

#[test]
fn mqtt5_3_1_2_8_the_will_is_published_when_the_network_fails() {
    for qos in 0..3 {
        let (mut subscriber, topic) = watcher();
        let will = Will::new(&topic, "gone").qos(qos);
        Raw::connect(node(), &connect(&unique("c")).will(will)).cut();
        let message = subscriber.recv_message(&topic, "gone");
        assert_eq!((message.qos(), message.retain()), (qos, false));
        subscriber.acknowledge(&message);
        subscriber.ping();
    }
}

#[test]
fn mqtt5_3_1_2_8_the_will_is_published_when_the_server_closes_for_an_error() {
    let (mut subscriber, topic) = watcher();
    let mut raw = Raw::connect(
        node(),
        &connect(&unique("c")).will(Will::new(&topic, "broken")),
    );
    raw.send(&Publish::new("a", "x").qos(3, 1).bytes(5));
    expect_disconnect_for(&mut raw, &[reason::MALFORMED]);
    subscriber.recv_message(&topic, "broken");
}

#[test]
fn mqtt5_3_1_2_8_the_will_is_published_for_a_disconnect_with_another_reason() {
    for code in [0x04, 0x80, 0x81, 0x93, 0x98] {
        let (mut subscriber, topic) = watcher();
        let mut raw = Raw::connect(
            node(),
            &connect(&unique("c")).will(Will::new(&topic, "with will")),
        );
        raw.send(&[0xe0, 0x01, code]);
        raw.expect_closed();
        subscriber.recv_message(&topic, "with will");
    }
}

#[test]
fn mqtt5_3_1_2_8_the_will_waits_for_its_delay() {
    let (mut subscriber, topic) = watcher();
    let will = Will::new(&topic, "delayed").properties(Props::new().u32(property::WILL_DELAY, 1));
    let raw = Raw::connect(node(), &session(&unique("c"), 60).will(will));
    let start = Instant::now();
    raw.cut();
    let message = subscriber.recv_message(&topic, "delayed");
    expect_waited(start, 1000);
    // The delay is the server's business.
    assert_eq!(message.properties, []);
}

#[test]
fn mqtt5_3_1_2_8_the_will_is_published_when_the_session_ends_before_its_delay() {
    let will_delay = || Props::new().u32(property::WILL_DELAY, 3600);
    // At once for a session without expiry.
    let (mut subscriber, topic) = watcher();
    let will = Will::new(&topic, "no session").properties(will_delay());
    Raw::connect(node(), &connect(&unique("c")).will(will)).cut();
    subscriber.recv_message(&topic, "no session");
    // After the expiry of the session.
    let (mut subscriber, topic) = watcher();
    let will = Will::new(&topic, "expired").properties(will_delay());
    let raw = Raw::connect(node(), &session(&unique("c"), 1).will(will));
    let start = Instant::now();
    raw.cut();
    subscriber.recv_message(&topic, "expired");
    expect_waited(start, 1000);
}

#[test]
fn mqtt5_3_1_2_8_clean_start_ends_the_session_and_publishes_its_delayed_will() {
    let (mut subscriber, topic) = watcher();
    let id = unique("c");
    let will = Will::new(&topic, "ended").properties(Props::new().u32(property::WILL_DELAY, 3600));
    Raw::connect(node(), &session(&id, 3600).will(will)).cut();
    let _clean = Raw::connect(node(), &connect(&id));
    subscriber.recv_message(&topic, "ended");
}

#[test]
fn mqtt5_3_1_2_8_a_takeover_publishes_a_will_without_delay() {
    let (mut subscriber, topic) = watcher();
    let id = unique("c");
    let mut first = Raw::connect(
        node(),
        &session(&id, 60).will(Will::new(&topic, "taken over")),
    );
    let _second = Raw::connect(node(), &session(&id, 60));
    expect_disconnect_for(&mut first, &[reason::TAKEN_OVER]);
    subscriber.recv_message(&topic, "taken over");
}

#[test]
fn mqtt5_section_3_1_4_a_takeover_that_ends_the_session_publishes_a_delayed_will() {
    let will_of = |topic: &str| {
        Will::new(topic, "ended").properties(Props::new().u32(property::WILL_DELAY, 3600))
    };
    // The session had no expiry, so it ends on the takeover.
    let (mut subscriber, topic) = watcher();
    let id = unique("c");
    let mut first = Raw::connect(node(), &session(&id, 0).will(will_of(&topic)));
    let _second = Raw::connect(node(), &session(&id, 60));
    expect_disconnect_for(&mut first, &[reason::TAKEN_OVER]);
    subscriber.recv_message(&topic, "ended");
    // Clean start ends it.
    let (mut subscriber, topic) = watcher();
    let id = unique("c");
    let mut first = Raw::connect(node(), &session(&id, 60).will(will_of(&topic)));
    let _second = Raw::connect(node(), &connect(&id));
    expect_disconnect_for(&mut first, &[reason::TAKEN_OVER]);
    subscriber.recv_message(&topic, "ended");
}

#[test]
fn mqtt5_section_3_1_3_2_3_a_will_that_is_not_of_its_format_is_rejected() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let utf8 = Props::new().byte(property::PAYLOAD_FORMAT, 1);
    let will = Will::new("will", b"\xff\xfe").properties(utf8);
    rejected(
        &connect(&unique("c")).will(will).bytes(),
        &[reason::PAYLOAD_FORMAT_INVALID],
    );
}

#[test]
fn mqtt5_3_1_2_10_a_published_will_is_removed() {
    let (mut subscriber, topic) = watcher();
    let id = unique("c");
    Raw::connect(node(), &session(&id, 60).will(Will::new(&topic, "once"))).cut();
    subscriber.recv_message(&topic, "once");
    Raw::connect(node(), &session(&id, 60)).cut();
    Raw::connect(node(), &connect(&id)).cut();
    expect_silence(&mut subscriber);
}

#[test]
fn mqtt5_3_1_2_10_and_3_14_4_3_a_normal_disconnect_removes_the_will() {
    let (mut subscriber, topic) = watcher();
    let id = unique("c");
    for disconnect in [
        &[0xe0, 0x00][..],
        &[0xe0, 0x01, 0x00],
        &[0xe0, 0x02, 0x00, 0x00],
    ] {
        let mut raw = Raw::connect(node(), &session(&id, 60).will(Will::new(&topic, "never")));
        raw.send(disconnect);
        raw.expect_closed();
    }
    Raw::connect(node(), &session(&id, 0)).cut();
    expect_silence(&mut subscriber);
}

#[test]
fn mqtt5_3_1_2_14_a_will_without_retain_is_not_retained() {
    let (mut subscriber, topic) = watcher();
    Raw::connect(
        node(),
        &connect(&unique("c")).will(Will::new(&topic, "passing")),
    )
    .cut();
    subscriber.recv_message(&topic, "passing");
    assert_eq!(retained(&topic), []);
}

#[test]
fn mqtt5_3_1_2_15_a_will_with_retain_is_retained() {
    let topic = unique("will/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 2 | option::RETAIN_AS_PUBLISHED);
    let will = Will::new(&topic, "stays").qos(1).retain();
    Raw::connect(node(), &connect(&unique("c")).will(will)).cut();
    assert!(subscriber.recv_message(&topic, "stays").retain());
    let mut late = client();
    late.subscribe(&topic, 1);
    let message = late.recv_message(&topic, "stays");
    assert_eq!((message.qos(), message.retain()), (1, true));
    retain(&mut client(), &topic, "");
}

#[test]
fn mqtt5_3_1_3_10_will_properties_are_published_unaltered_and_in_order() {
    let (mut subscriber, topic) = watcher();
    let properties = Props::new()
        .pair(property::USER, "b", "first")
        .byte(property::PAYLOAD_FORMAT, 1)
        .u32(property::WILL_DELAY, 0)
        .pair(property::USER, "a", "second")
        .string(property::CONTENT_TYPE, "text/plain")
        .string(property::RESPONSE_TOPIC, "reply/here")
        .pair(property::USER, "b", "third")
        .string(property::CORRELATION_DATA, b"\x00\xff")
        .u32(property::MESSAGE_EXPIRY, 100);
    let will = Will::new(&topic, "properties")
        .qos(1)
        .properties(properties);
    Raw::connect(node(), &connect(&unique("c")).will(will)).cut();
    let message = subscriber.recv_message(&topic, "properties");
    let pair = |key: &str, value: &str| Value::Pair(key.into(), value.into());
    assert_eq!(
        message.property_values(property::USER),
        [
            &pair("b", "first"),
            &pair("a", "second"),
            &pair("b", "third")
        ]
    );
    assert_eq!(message.number(property::PAYLOAD_FORMAT), Some(1));
    assert_eq!(
        message.property(property::CONTENT_TYPE),
        Some(&Value::String("text/plain".into()))
    );
    assert_eq!(
        message.property(property::RESPONSE_TOPIC),
        Some(&Value::String("reply/here".into()))
    );
    assert_eq!(
        message.property(property::CORRELATION_DATA),
        Some(&Value::Binary(vec![0x00, 0xff]))
    );
    let expiry = message.number(property::MESSAGE_EXPIRY);
    assert!(matches!(expiry, Some(98..=100)), "{message:?}");
    assert_eq!(message.properties.len(), 8, "{message:?}");
}

#[test]
fn mqtt5_section_3_1_2_5_a_will_may_be_empty() {
    let topic = unique("will/");
    retain(&mut client(), &topic, "to be removed");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 1);
    subscriber.recv_message(&topic, "to be removed");
    let will = Will::new(&topic, "").retain();
    Raw::connect(node(), &connect(&unique("c")).will(will)).cut();
    subscriber.recv_message(&topic, "");
    assert_eq!(retained(&topic), []);
}
