//! Chapters 3.8 and 3.9, SUBSCRIBE and SUBACK. Retain handling is in `publish.rs`, subscription identifiers in messages in
//! `publish_actions.rs`, shared subscriptions in `shared_subscriptions.rs`.

use super::*;

#[test]
fn mqtt5_3_8_1_1_a_subscribe_with_other_flags_is_malformed() {
    for flags in [0, 1, 3, 4, 6, 8, 10, 15] {
        let mut bytes = Subscribe::new(1).filter("a", 0).bytes(5);
        bytes[0] = 0x80 | flags;
        breaks(&bytes, &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_3_8_3_1_a_filter_that_is_not_utf8_is_malformed() {
    let subscribe = Subscribe::new(1).filter("right", 0).filter(b"\xff/#", 0);
    breaks(&subscribe.bytes(5), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_8_3_2_a_subscribe_without_filters_is_a_protocol_error() {
    breaks(&Subscribe::new(1).bytes(5), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_section_3_8_3_a_filter_cut_short_or_without_options_is_malformed() {
    let body = |tail: &[u8]| frame(0x82, &[&[0, 1, 0][..], tail].concat());
    for tail in [
        &[0][..],
        &[0, 5, b'a', 0],
        &[0, 1, b'a'],
        &[0, 1, b'a', 0, 0],
    ] {
        breaks(&body(tail), &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_3_8_3_3_no_local_keeps_the_clients_own_messages_away() {
    let topic = unique("local/");
    let mut raw = client();
    raw.subscribe(&topic, 2 | option::NO_LOCAL);
    raw.publish(&topic, "own");
    raw.publish_qos1(&topic, "own", 1);
    raw.publish_qos2(&topic, "own", 2);
    raw.ping();
    client().publish(&topic, "another's");
    raw.recv_message(&topic, "another's");
    // Without the option they come.
    raw.subscribe(&topic, 0);
    raw.publish(&topic, "own");
    raw.recv_message(&topic, "own");
}

#[test]
fn mqtt5_3_8_3_3_no_local_goes_by_client_id_not_by_connection() {
    let topic = unique("local/");
    let id = unique("c");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 1 | option::NO_LOCAL);
    raw.disconnect();
    let mut raw = Raw::connect(node(), &session(&id, 0));
    raw.publish_qos1(&topic, "own", 1);
    raw.ping();
}

#[test]
fn mqtt5_3_8_3_4_no_local_on_a_shared_subscription_is_a_protocol_error() {
    let subscribe = Subscribe::new(1).filter("$share/group/a", option::NO_LOCAL);
    breaks(&subscribe.bytes(5), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_3_8_3_5_reserved_options_are_malformed() {
    for options in [0x40, 0x80, 0xc1] {
        breaks(
            &Subscribe::new(1).filter("a", options).bytes(5),
            &[reason::MALFORMED],
        );
    }
}

#[test]
fn mqtt5_section_3_8_3_1_qos_3_is_a_protocol_error() {
    breaks(
        &Subscribe::new(1).filter("a", 3).bytes(5),
        &[reason::PROTOCOL_ERROR],
    );
}

#[test]
fn mqtt5_section_3_8_3_1_retain_handling_3_is_a_protocol_error() {
    breaks(
        &Subscribe::new(1).filter("a", 0x30).bytes(5),
        &[reason::PROTOCOL_ERROR],
    );
}

#[test]
fn mqtt5_section_3_8_2_1_2_a_subscription_identifier_of_0_is_a_protocol_error() {
    let properties = Props::new().varint(property::SUBSCRIPTION_ID, 0);
    let subscribe = Subscribe::new(1).filter("a", 0).properties(properties);
    breaks(&subscribe.bytes(5), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_section_3_8_2_1_2_two_subscription_identifiers_are_a_protocol_error() {
    let properties = Props::new()
        .varint(property::SUBSCRIPTION_ID, 1)
        .varint(property::SUBSCRIPTION_ID, 2);
    let subscribe = Subscribe::new(1).filter("a", 0).properties(properties);
    breaks(&subscribe.bytes(5), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_3_8_4_1_a_subscribe_is_answered() {
    let mut raw = client();
    let properties = Props::new().pair(property::USER, "k", "v");
    let subscribe = Subscribe::new(1)
        .filter(unique("t/"), 0)
        .properties(properties);
    assert_eq!(raw.subscribe_for_codes(&subscribe), [0]);
}

#[test]
fn mqtt5_3_8_4_2_the_suback_has_the_identifier_of_the_subscribe() {
    let mut raw = client();
    let both = [
        Subscribe::new(0x0102).filter(unique("t/"), 0).bytes(5),
        Subscribe::new(0x0201).filter(unique("t/"), 0).bytes(5),
    ];
    raw.send(&both.concat());
    assert_eq!(raw.recv(kind::SUBACK).id(), 0x0102);
    assert_eq!(raw.recv(kind::SUBACK).id(), 0x0201);
}

#[test]
fn mqtt5_3_8_4_3_the_same_filter_again_replaces_the_subscription() {
    let topic = unique("replace/");
    let mut subscriber = client();
    let mut publisher = client();
    for options in [0, 2, 1, option::NO_LOCAL, 2] {
        subscriber.subscribe(&topic, options);
        publisher.publish_qos2(&topic, "x", 1);
        let message = subscriber.recv_message(&topic, "x");
        assert_eq!(message.qos(), options & 3);
        subscriber.acknowledge(&message);
    }
    // One subscription is left, so one UNSUBSCRIBE ends it.
    subscriber.unsubscribe(&topic);
    publisher.publish_qos1(&topic, "x", 1);
    expect_silence(&mut subscriber);
}

#[test]
fn mqtt5_3_8_4_4_replacing_sends_retained_messages_again_and_loses_nothing() {
    let topic = unique("replace/");
    let mut publisher = client();
    retain(&mut publisher, &topic, "retained");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 1);
    let message = subscriber.recv_message(&topic, "retained");
    subscriber.acknowledge(&message);
    // Messages and replacements cross each other.
    for number in 0..50 {
        publisher.send_publish(&Publish::new(&topic, number.to_string()).qos(1, 1 + number));
        if number % 10 == 0 {
            subscriber.send(&Subscribe::new(5).filter(&topic, 1).bytes(5));
        }
    }
    let (mut live, mut retained_copies, mut subacks) = (Vec::new(), 0, 0);
    while live.len() < 50 || retained_copies < 5 || subacks < 5 {
        let packet = subscriber.recv_packet();
        match packet.kind {
            kind::SUBACK => subacks += 1,
            _ if packet.retain() => {
                assert_eq!(packet.text(), "retained");
                retained_copies += 1;
                subscriber.acknowledge(&packet);
            }
            _ => {
                live.push(packet.text().parse::<u16>().unwrap());
                subscriber.acknowledge(&packet);
            }
        }
    }
    assert_eq!(live, (0..50).collect::<Vec<_>>());
    for _ in 0..50 {
        publisher.recv(kind::PUBACK);
    }
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_8_4_5_several_filters_are_as_several_subscribes() {
    let base = unique("several/");
    let mut subscriber = client();
    let subscribe = Subscribe::new(1)
        .filter(format!("{base}/a"), 0)
        .filter(format!("{base}/b"), 1)
        .filter(format!("{base}/a"), 2)
        .properties(Props::new().varint(property::SUBSCRIPTION_ID, 5));
    assert_eq!(subscriber.subscribe_for_codes(&subscribe), [0, 1, 2]);
    let mut publisher = client();
    for (leaf, qos) in [("a", 2), ("b", 1)] {
        let topic = format!("{base}/{leaf}");
        publisher.publish_qos2(&topic, "x", 1);
        let message = subscriber.recv_message(&topic, "x");
        assert_eq!(message.qos(), qos);
        assert_eq!(message.number(property::SUBSCRIPTION_ID), Some(5));
        subscriber.acknowledge(&message);
    }
    expect_fence(&mut subscriber, &mut publisher, &format!("{base}/a"));
}

#[test]
fn mqtt5_3_8_4_6_the_suback_has_a_code_for_each_filter() {
    let mut raw = client();
    let mut subscribe = Subscribe::new(1);
    for number in 0..200_u8 {
        subscribe = subscribe.filter(unique("many/"), number % 3);
    }
    let codes = raw.subscribe_for_codes(&subscribe);
    assert_eq!(codes, (0..200).map(|n| n % 3).collect::<Vec<u8>>());
}

#[test]
fn mqtt5_3_8_4_7_a_code_is_the_granted_qos_or_a_failure() {
    let mut raw = client();
    let subscribe = Subscribe::new(1)
        .filter(unique("t/"), 2)
        .filter("wrong/#/filter", 2)
        .filter(unique("t/"), 1);
    assert_eq!(
        raw.subscribe_for_codes(&subscribe),
        [2, reason::FILTER_INVALID, 1]
    );
}

#[test]
fn mqtt5_3_8_4_8_the_qos_delivered_is_the_lower_of_published_and_granted() {
    for granted in 0..3_u8 {
        let topic = unique("qos/");
        let mut subscriber = client();
        subscriber.subscribe(&topic, granted);
        let mut publisher = client();
        for published in 0..3_u8 {
            match published {
                0 => publisher.publish(&topic, "x"),
                1 => publisher.publish_qos1(&topic, "x", 1),
                _ => publisher.publish_qos2(&topic, "x", 2),
            }
            let message = subscriber.recv_message(&topic, "x");
            assert_eq!(message.qos(), published.min(granted));
            subscriber.acknowledge(&message);
        }
        // As with retained messages.
        publisher.send_publish(&Publish::new(&topic, "kept").qos(1, 3).retain());
        publisher.recv(kind::PUBACK);
        let mut late = client();
        late.subscribe(&topic, granted);
        assert_eq!(late.recv_message(&topic, "kept").qos(), granted.min(1));
        retain(&mut publisher, &topic, "");
    }
}

#[test]
fn mqtt5_3_9_2_1_a_suback_keeps_to_the_clients_maximum_packet_size() {
    // A failure would carry a reason string. 3.9.2-2 says the same of user properties.
    let mut raw = client_with(Props::new().u32(property::MAXIMUM_PACKET_SIZE, 20));
    raw.send(&Subscribe::new(1).filter("a/#/b", 0).bytes(5));
    let suback = raw.recv(kind::SUBACK);
    assert_eq!(suback.payload, [reason::FILTER_INVALID]);
    assert!(suback.bytes.len() <= 20, "{suback:?}");
}

#[test]
fn mqtt5_3_9_3_1_the_codes_are_in_the_order_of_the_filters() {
    let mut raw = client();
    let subscribe = Subscribe::new(1)
        .filter("#/wrong", 0)
        .filter(unique("t/"), 2)
        .filter("", 0)
        .filter(unique("t/"), 0)
        .filter("also+wrong", 0)
        .filter(unique("t/"), 1);
    let wrong = reason::FILTER_INVALID;
    assert_eq!(
        raw.subscribe_for_codes(&subscribe),
        [wrong, 2, wrong, 0, wrong, 1]
    );
}

#[test]
fn mqtt5_3_9_3_2_a_suback_has_the_reason_codes_of_subscribe() {
    let mut raw = client();
    for (filter, codes) in [
        ("right/+/filter/#", &[0x00_u8][..]),
        ("a/b#", &[reason::FILTER_INVALID]),
        ("$share//a", &[reason::FILTER_INVALID]),
        ("$share/group", &[reason::FILTER_INVALID]),
    ] {
        let found = raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
        assert_eq!(found, codes, "{filter}");
    }
}

#[test]
fn mqtt5_section_3_8_4_messages_follow_a_subscription_at_once() {
    // A message published after the SUBACK arrives, wherever publisher and subscriber are connected.
    for _ in 0..20 {
        let topic = unique("after/");
        let (mut subscriber, mut publisher) = pair(&topic);
        publisher.publish(&topic, "x");
        subscriber.recv_message(&topic, "x");
    }
}
