//! Chapters 3.3.2.3.2 to 3.3.2.3.9, the properties of PUBLISH; topic aliases are in `topic_alias.rs`.

use super::*;

/// Publishes with these properties at every QoS; the properties the subscriber gets are to be the same bytes.
fn expect_unaltered(properties: &Props) {
    let topic = unique("properties/");
    let (mut subscriber, mut publisher) = pair(&topic);
    for qos in 0..3_u8 {
        let mut publish = Publish::new(&topic, "payload")
            .qos(qos, 10)
            .properties(properties.clone());
        publisher.send_publish(&publish);
        match qos {
            0 => {}
            1 => drop(publisher.recv(kind::PUBACK)),
            _ => {
                publisher.recv(kind::PUBREC);
                publisher.send(&ack(kind::PUBREL, 10));
                publisher.recv(kind::PUBCOMP);
            }
        }
        let message = subscriber.recv_message(&topic, "payload");
        publish.packet_id = message.packet_id.unwrap_or(0);
        assert_eq!(message.bytes, publish.bytes(5));
        subscriber.acknowledge(&message);
    }
}

#[test]
fn mqtt5_3_3_2_4_the_payload_format_indicator_is_sent_unaltered() {
    for value in [0, 1] {
        expect_unaltered(&Props::new().byte(property::PAYLOAD_FORMAT, value));
    }
}

#[test]
fn mqtt5_3_3_2_5_an_expired_message_is_not_delivered() {
    let id = unique("c");
    let topic = unique("expiry/");
    let mut subscriber = Raw::connect(node(), &session(&id, 60));
    subscriber.subscribe(&topic, 2);
    subscriber.disconnect();
    let mut publisher = client();
    let expiry = |seconds| Props::new().u32(property::MESSAGE_EXPIRY, seconds);
    for (payload, packet_id, seconds) in [("old", 1, 1), ("fresh", 2, 100)] {
        let publish = Publish::new(&topic, payload)
            .qos(1, packet_id)
            .properties(expiry(seconds));
        publisher.send_publish(&publish);
        publisher.recv(kind::PUBACK);
    }
    publisher.publish_qos1(&topic, "for ever", 3);
    // Time is the subject here.
    std::thread::sleep(Duration::from_millis(1100));
    let mut subscriber = Raw::connect(node(), &session(&id, 0));
    let fresh = subscriber.recv_message(&topic, "fresh");
    // [MQTT-3.3.2-6]: what it has waited is subtracted.
    let left = fresh.number(property::MESSAGE_EXPIRY).unwrap();
    assert!((80..=99).contains(&left), "{fresh:?}");
    subscriber.recv_message(&topic, "for ever");
    expect_silence(&mut subscriber);
}

#[test]
fn mqtt5_3_3_2_6_the_expiry_of_a_message_that_does_not_wait_is_as_received() {
    let topic = unique("expiry/");
    let (mut subscriber, mut publisher) = pair(&topic);
    for seconds in [10, 1000, u32::MAX] {
        let properties = Props::new().u32(property::MESSAGE_EXPIRY, seconds);
        publisher.send_publish(&Publish::new(&topic, "x").properties(properties));
        let message = subscriber.recv_message(&topic, "x");
        let left = message.number(property::MESSAGE_EXPIRY).unwrap();
        assert!((seconds - 1..=seconds).contains(&left), "{message:?}");
    }
}

#[test]
fn mqtt5_3_3_2_13_a_response_topic_that_is_not_utf8_is_malformed() {
    let properties = Props::new().string(property::RESPONSE_TOPIC, b"reply/\xff");
    breaks(
        &Publish::new("a", "x").properties(properties).bytes(5),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_3_3_2_14_a_response_topic_with_wildcards_is_rejected() {
    for topic in ["reply/#", "+/reply", "#"] {
        let properties = Props::new().string(property::RESPONSE_TOPIC, topic);
        breaks(
            &Publish::new("a", "x").properties(properties).bytes(5),
            &[
                reason::MALFORMED,
                reason::PROTOCOL_ERROR,
                reason::TOPIC_INVALID,
            ],
        );
    }
}

#[test]
fn mqtt5_3_3_2_15_the_response_topic_is_sent_unaltered() {
    expect_unaltered(&Props::new().string(property::RESPONSE_TOPIC, "reply//é/"));
}

#[test]
fn mqtt5_3_3_2_16_the_correlation_data_are_sent_unaltered() {
    let every_byte: Vec<u8> = (0..=255).collect();
    expect_unaltered(&Props::new().string(property::CORRELATION_DATA, every_byte));
    expect_unaltered(&Props::new().string(property::CORRELATION_DATA, b""));
}

#[test]
fn mqtt5_3_3_2_17_user_properties_are_sent_unaltered() {
    let mut properties = Props::new()
        .pair(property::USER, "", "")
        .pair(property::USER, "key", "value")
        .pair(property::USER, "unicode é", "漢🌊");
    for number in 0..100 {
        properties = properties.pair(property::USER, "many", &number.to_string());
    }
    expect_unaltered(&properties);
}

#[test]
fn mqtt5_3_3_2_18_the_order_of_user_properties_is_kept() {
    let properties = Props::new()
        .pair(property::USER, "z", "1")
        .pair(property::USER, "a", "2")
        .pair(property::USER, "z", "1")
        .pair(property::USER, "a", "1")
        .pair(property::USER, "z", "0");
    expect_unaltered(&properties);
}

#[test]
fn mqtt5_3_3_2_18_user_properties_of_queued_and_retained_messages_keep_their_order() {
    let id = unique("c");
    let topic = unique("user/");
    let mut subscriber = Raw::connect(node(), &session(&id, 60));
    subscriber.subscribe(&topic, 1);
    subscriber.disconnect();
    let mut publisher = client();
    let properties = Props::new()
        .pair(property::USER, "b", "1")
        .pair(property::USER, "a", "2")
        .pair(property::USER, "b", "0");
    let publish = Publish::new(&topic, "x")
        .qos(1, 1)
        .retain()
        .properties(properties);
    publisher.send_publish(&publish);
    publisher.recv(kind::PUBACK);
    let mut subscriber = Raw::connect(node(), &session(&id, 0));
    let queued = subscriber.recv_message(&topic, "x");
    let kept = retained(&topic);
    let pair = |key: &str, value: &str| (property::USER, Value::Pair(key.into(), value.into()));
    for message in [&queued, &kept[0]] {
        assert_eq!(
            message.properties,
            [pair("b", "1"), pair("a", "2"), pair("b", "0")]
        );
    }
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_2_19_a_content_type_that_is_not_utf8_is_malformed() {
    let properties = Props::new().string(property::CONTENT_TYPE, b"text/\xc3");
    breaks(
        &Publish::new("a", "x").properties(properties).bytes(5),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_3_3_2_20_the_content_type_is_sent_unaltered() {
    expect_unaltered(&Props::new().string(property::CONTENT_TYPE, "application/x; charset=é"));
    expect_unaltered(&Props::new().string(property::CONTENT_TYPE, ""));
}

#[test]
fn mqtt5_section_3_3_2_3_a_property_twice_is_a_protocol_error() {
    for one in [
        Props::new().byte(property::PAYLOAD_FORMAT, 0),
        Props::new().u32(property::MESSAGE_EXPIRY, 1),
        Props::new().u16(property::TOPIC_ALIAS, 1),
        Props::new().string(property::RESPONSE_TOPIC, "a"),
        Props::new().string(property::CORRELATION_DATA, "a"),
        Props::new().string(property::CONTENT_TYPE, "a"),
    ] {
        let twice = one.clone().raw(&one.bytes()[1..]);
        breaks(
            &Publish::new("a", "x").properties(twice).bytes(5),
            &[reason::PROTOCOL_ERROR],
        );
    }
}

#[test]
fn mqtt5_section_3_3_2_3_2_a_payload_format_other_than_0_and_1_is_rejected() {
    let properties = Props::new().byte(property::PAYLOAD_FORMAT, 2);
    breaks(
        &Publish::new("a", "x").properties(properties).bytes(5),
        reason::MALFORMED_OR_PROTOCOL_ERROR,
    );
}

#[test]
fn mqtt5_section_3_3_2_3_2_a_payload_that_is_not_of_its_format_is_rejected() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let topic = unique("format/");
    let (mut subscriber, mut publisher) = pair(&topic);
    let utf8 = |payload: &[u8]| {
        Publish::new(&topic, payload).properties(Props::new().byte(property::PAYLOAD_FORMAT, 1))
    };
    for payload in [&b"\xff"[..], b"\xc0\x80", b"\xed\xa0\x80"] {
        publisher.send_publish(&utf8(payload).qos(1, 1));
        let puback = publisher.recv(kind::PUBACK);
        assert_eq!(puback.reason, reason::PAYLOAD_FORMAT_INVALID);
        publisher.send_publish(&utf8(payload).qos(2, 2));
        let pubrec = publisher.recv(kind::PUBREC);
        assert_eq!(pubrec.reason, reason::PAYLOAD_FORMAT_INVALID);
    }
    expect_fence(&mut subscriber, &mut publisher, &topic);
    // At QoS 0 there is only DISCONNECT to tell it.
    publisher.send_publish(&utf8(b"\xff"));
    expect_disconnect_for(&mut publisher, &[reason::PAYLOAD_FORMAT_INVALID]);
}
