//! Chapter 3.1.3, the payload of CONNECT. 3.1.3-9 and -10 are in `will.rs`.
//!
//! Binds clients alone: 3.1.3-2 (use the client identifier to identify state; the server's side is what every test of a
//! resumed session shows).

use std::collections::HashSet;

use super::*;

fn assigned_id(connack: &Packet) -> String {
    match connack.property(property::ASSIGNED_CLIENT_ID) {
        Some(Value::String(id)) => id.clone(),
        other => panic!("no assigned client identifier but {other:?}: {connack:?}"),
    }
}

#[test]
fn mqtt5_3_1_3_1_the_fields_come_in_their_order() {
    let topic = unique("order/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 2);
    let will = Will::new(&topic, "will payload")
        .qos(1)
        .properties(Props::new().string(property::CONTENT_TYPE, "text/plain"));
    let connect = connect(&unique("c"))
        .will(will)
        .username("user")
        .password("password");
    let mut raw = Raw::open(node(), 5);
    let connack = raw.hand_shake(&connect);
    // Unknown users may be rejected, but the packet is well-formed.
    if connack.reason != 0 {
        assert!(
            [reason::BAD_CREDENTIALS, reason::NOT_AUTHORISED].contains(&connack.reason),
            "{connack:?}"
        );
        return;
    }
    raw.cut();
    let message = subscriber.recv_message(&topic, "will payload");
    assert_eq!(message.qos(), 1);
    assert_eq!(
        message.properties,
        [(property::CONTENT_TYPE, Value::String("text/plain".into()))]
    );
}

#[test]
fn mqtt5_3_1_3_3_a_connect_without_client_id_is_malformed() {
    let body = [&string("MQTT")[..], &[5, 2, 0, 0, 0]].concat();
    rejected(&frame(0x10, &body), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_1_3_4_a_client_id_that_is_not_utf8_is_malformed() {
    rejected(
        &Connect::new(5, b"client\xfe").bytes(),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_3_1_3_5_client_ids_of_1_to_23_letters_and_digits_are_allowed() {
    let suffix = unique("");
    let longest = format!("{suffix}{}", "x".repeat(23 - suffix.len()));
    for id in [
        "0",
        "z",
        "0123456789abcdefghijklm",
        "nopqrstuvwxyzABCDEFGHIJ",
        "KLMNOPQRSTUVWXYZ",
        &longest,
    ] {
        let mut raw = Raw::open(node(), 5);
        let connack = raw.hand_shake(&connect(id));
        assert_eq!(connack.reason, 0, "{id}: {connack:?}");
        assert_eq!(connack.property(property::ASSIGNED_CLIENT_ID), None);
        raw.disconnect();
    }
}

#[test]
fn mqtt5_3_1_3_6_an_empty_client_id_gets_a_unique_one() {
    let mut connections = Vec::new();
    let mut ids = HashSet::new();
    for clean in [true, false, true, false] {
        let mut connect = connect("");
        connect.clean = clean;
        let (raw, connack) = Raw::connect_for_connack(node(), &connect);
        let id = assigned_id(&connack);
        assert!(!id.is_empty());
        assert!(!connack.session_present);
        assert!(ids.insert(id.clone()), "assigned twice: {id}");
        connections.push(raw);
    }
    for mut raw in connections {
        raw.ping();
    }
}

#[test]
fn mqtt5_3_1_3_7_the_assigned_client_id_is_the_clients() {
    let topic = unique("assigned/");
    let (mut raw, connack) = Raw::connect_for_connack(node(), &session("", 60));
    let id = assigned_id(&connack);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    client().publish_qos1(&topic, "for the assigned id", 1);
    let (mut raw, connack) = Raw::connect_for_connack(node(), &session(&id, 0));
    assert!(connack.session_present);
    assert_eq!(connack.property(property::ASSIGNED_CLIENT_ID), None);
    raw.recv_message(&topic, "for the assigned id");
}

#[test]
fn mqtt5_3_1_3_8_a_rejected_client_id_is_answered_and_closed() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    // `limits.max_client_id_bytes` is 1024.
    client_with_id(&"i".repeat(1024));
    rejected(
        &connect(&"i".repeat(1025)).bytes(),
        &[reason::CLIENT_ID_INVALID],
    );
}

fn client_with_id(id: &str) {
    Raw::connect(node(), &connect(id)).disconnect();
}

#[test]
fn mqtt5_3_1_3_11_a_will_topic_that_is_not_utf8_is_malformed() {
    let will = Will::new(b"will/\xc3\x28", "x");
    rejected(
        &connect(&unique("c")).will(will).bytes(),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_section_3_1_3_3_a_will_topic_must_be_a_topic_name() {
    for topic in ["will/#", "+/will", ""] {
        rejected(
            &connect(&unique("c")).will(Will::new(topic, "x")).bytes(),
            &[
                reason::MALFORMED,
                reason::PROTOCOL_ERROR,
                reason::TOPIC_INVALID,
            ],
        );
    }
}

#[test]
fn mqtt5_3_1_3_12_a_user_name_that_is_not_utf8_is_malformed() {
    rejected(
        &connect(&unique("c")).username(b"us\xe9r").bytes(),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_section_3_1_3_2_a_will_property_twice_is_a_protocol_error() {
    let twice = |one: Props| one.clone().raw(&one.bytes()[1..]);
    for one in [
        Props::new().u32(property::WILL_DELAY, 1),
        Props::new().byte(property::PAYLOAD_FORMAT, 0),
        Props::new().u32(property::MESSAGE_EXPIRY, 1),
        Props::new().string(property::CONTENT_TYPE, "a"),
        Props::new().string(property::RESPONSE_TOPIC, "a"),
        Props::new().string(property::CORRELATION_DATA, "a"),
    ] {
        let will = Will::new("will", "x").properties(twice(one));
        rejected(
            &connect(&unique("c")).will(will).bytes(),
            &[reason::PROTOCOL_ERROR],
        );
    }
}

#[test]
fn mqtt5_section_3_1_3_2_a_property_that_wills_do_not_have_is_malformed() {
    for properties in [
        Props::new().u16(property::TOPIC_ALIAS, 1),
        Props::new().varint(property::SUBSCRIPTION_ID, 1),
        Props::new().u32(property::SESSION_EXPIRY, 1),
        Props::new().u16(property::RECEIVE_MAXIMUM, 1),
    ] {
        let will = Will::new("will", "x").properties(properties);
        rejected(
            &connect(&unique("c")).will(will).bytes(),
            &[reason::MALFORMED],
        );
    }
}
