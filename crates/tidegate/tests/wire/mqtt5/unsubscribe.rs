//! Chapters 3.10 and 3.11, UNSUBSCRIBE and UNSUBACK.

use super::*;

const NO_SUBSCRIPTION_EXISTED: u8 = 0x11;

fn unsubscribe_for_codes(raw: &mut Raw, unsubscribe: &Unsubscribe) -> Vec<u8> {
    raw.send(&unsubscribe.bytes(5));
    let unsuback = raw.recv(kind::UNSUBACK);
    assert_eq!(unsuback.id(), unsubscribe.packet_id);
    unsuback.payload
}

#[test]
fn mqtt5_3_10_1_1_an_unsubscribe_with_other_flags_is_malformed() {
    for flags in [0, 1, 3, 4, 6, 8, 10, 15] {
        let mut bytes = Unsubscribe::new(1).filter("a").bytes(5);
        bytes[0] = 0xa0 | flags;
        breaks(&bytes, &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_3_10_3_1_a_filter_that_is_not_utf8_is_malformed() {
    let unsubscribe = Unsubscribe::new(1).filter("right").filter(b"\xed\xa0\x80");
    breaks(&unsubscribe.bytes(5), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_10_3_2_an_unsubscribe_without_filters_is_a_protocol_error() {
    breaks(&Unsubscribe::new(1).bytes(5), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_section_3_10_3_a_filter_cut_short_is_malformed() {
    for tail in [&[0][..], &[0, 2, b'a'], &[0, 1, b'a', 0]] {
        breaks(
            &frame(0xa2, &[&[0, 1, 0][..], tail].concat()),
            &[reason::MALFORMED],
        );
    }
}

#[test]
fn mqtt5_3_10_4_1_filters_are_compared_character_by_character() {
    let base = unique("exact/");
    let (mut subscriber, mut publisher) = pair(&format!("{base}/+"));
    for other in ["a", "#", "", "+/", "+/#"] {
        let codes = unsubscribe_for_codes(
            &mut subscriber,
            &Unsubscribe::new(3).filter(format!("{base}/{other}")),
        );
        assert_eq!(codes, [NO_SUBSCRIPTION_EXISTED], "{other}");
    }
    let upper = base.to_uppercase();
    let codes = unsubscribe_for_codes(
        &mut subscriber,
        &Unsubscribe::new(4).filter(format!("{upper}/+")),
    );
    assert_eq!(codes, [NO_SUBSCRIPTION_EXISTED]);
    let topic = format!("{base}/a");
    publisher.publish(&topic, "still there");
    subscriber.recv_message(&topic, "still there");
    let codes = unsubscribe_for_codes(
        &mut subscriber,
        &Unsubscribe::new(5).filter(format!("{base}/+")),
    );
    assert_eq!(codes, [0]);
    publisher.publish_qos1(&topic, "gone", 1);
    expect_silence(&mut subscriber);
}

#[test]
fn mqtt5_3_10_4_2_after_the_unsuback_no_new_message_is_added() {
    let topic = unique("stop/");
    let other = unique("other/");
    let (mut subscriber, mut publisher) = pair(&topic);
    subscriber.subscribe(&other, 0);
    subscriber.unsubscribe(&topic);
    publisher.publish_qos1(&topic, "too late", 1);
    expect_fence(&mut subscriber, &mut publisher, &other);
}

#[test]
fn mqtt5_3_10_4_2_a_message_for_another_subscription_still_comes() {
    let base = unique("stop/");
    let topic = format!("{base}/a");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 1);
    subscriber.subscribe(&format!("{base}/#"), 0);
    subscriber.unsubscribe(&topic);
    client().publish_qos1(&topic, "once", 1);
    assert_eq!(subscriber.recv_message(&topic, "once").qos(), 0);
    subscriber.ping();
}

#[test]
fn mqtt5_3_10_4_3_a_delivery_that_has_begun_is_completed() {
    let topic = unique("complete/");
    let id = unique("c");
    let mut subscriber = Raw::connect(node(), &session(&id, 60));
    subscriber.subscribe(&topic, 2);
    let mut publisher = client();
    publisher.publish_qos2(&topic, "begun", 1);
    publisher.publish_qos1(&topic, "begun too", 2);
    let first = subscriber.recv_message(&topic, "begun");
    let second = subscriber.recv_message(&topic, "begun too");
    subscriber.unsubscribe(&topic);
    subscriber.send(&ack(kind::PUBREC, first.id()));
    let pubrel = subscriber.recv(kind::PUBREL);
    assert_eq!((pubrel.id(), pubrel.reason), (first.id(), 0));
    subscriber.cut();
    // And it survives the connection.
    let mut subscriber = Raw::connect(node(), &session(&id, 0));
    let mut kinds = [subscriber.recv_packet(), subscriber.recv_packet()];
    kinds.sort_by_key(|packet| packet.kind);
    assert_eq!(kinds[0].kind, kind::PUBLISH);
    assert_eq!((kinds[0].id(), kinds[0].dup()), (second.id(), true));
    assert_eq!((kinds[1].kind, kinds[1].id()), (kind::PUBREL, first.id()));
    subscriber.send(&ack(kind::PUBCOMP, first.id()));
    subscriber.send(&ack(kind::PUBACK, second.id()));
    subscriber.ping();
}

#[test]
fn mqtt5_3_10_4_4_an_unsubscribe_is_answered() {
    let topic = unique("t/");
    let mut raw = client();
    raw.subscribe(&topic, 0);
    let properties = Props::new().pair(property::USER, "k", "v");
    let unsubscribe = Unsubscribe::new(9).filter(&topic).properties(properties);
    assert_eq!(unsubscribe_for_codes(&mut raw, &unsubscribe), [0]);
}

#[test]
fn mqtt5_3_10_4_5_it_is_answered_even_if_nothing_was_subscribed() {
    let mut raw = client();
    for id in [1, 0xffff] {
        let unsubscribe = Unsubscribe::new(id).filter(unique("none/"));
        assert_eq!(
            unsubscribe_for_codes(&mut raw, &unsubscribe),
            [NO_SUBSCRIPTION_EXISTED]
        );
    }
}

#[test]
fn mqtt5_3_10_4_6_several_filters_are_as_several_unsubscribes() {
    let base = unique("several/");
    let mut raw = client();
    raw.subscribe(&format!("{base}/a"), 0);
    raw.subscribe(&format!("{base}/b"), 0);
    let unsubscribe = Unsubscribe::new(1)
        .filter(format!("{base}/a"))
        .filter(format!("{base}/b"))
        .filter(format!("{base}/a"));
    assert_eq!(
        unsubscribe_for_codes(&mut raw, &unsubscribe),
        [0, 0, NO_SUBSCRIPTION_EXISTED]
    );
}

#[test]
fn mqtt5_3_11_2_1_an_unsuback_keeps_to_the_clients_maximum_packet_size() {
    // 3.11.2-2 says the same of user properties.
    let mut raw = client_with(Props::new().u32(property::MAXIMUM_PACKET_SIZE, 20));
    raw.send(&Unsubscribe::new(1).filter(unique("none/")).bytes(5));
    let unsuback = raw.recv(kind::UNSUBACK);
    assert!(unsuback.bytes.len() <= 20, "{unsuback:?}");
}

#[test]
fn mqtt5_3_11_3_1_the_codes_are_in_the_order_of_the_filters() {
    let base = unique("order/");
    let mut raw = client();
    raw.subscribe(&format!("{base}/1"), 0);
    raw.subscribe(&format!("{base}/3"), 0);
    let mut unsubscribe = Unsubscribe::new(1);
    for number in 0..4 {
        unsubscribe = unsubscribe.filter(format!("{base}/{number}"));
    }
    let none = NO_SUBSCRIPTION_EXISTED;
    assert_eq!(
        unsubscribe_for_codes(&mut raw, &unsubscribe),
        [none, 0, none, 0]
    );
}

#[test]
fn mqtt5_3_11_3_2_an_unsuback_has_the_reason_codes_of_unsubscribe() {
    let mut raw = client();
    for filter in ["never/subscribed", "wrong/#/filter", "", "$share/g/none"] {
        let codes = unsubscribe_for_codes(&mut raw, &Unsubscribe::new(1).filter(filter));
        assert!(
            [NO_SUBSCRIPTION_EXISTED, reason::FILTER_INVALID].contains(&codes[0]),
            "{filter}: {codes:02x?}"
        );
    }
}
