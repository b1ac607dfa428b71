//! UNSUBSCRIBE and UNSUBACK (3.10, 3.11).

use super::{V311, client, expect_violation, subscriber, topic};
use crate::support::{Publish, Subscribe, Unsubscribe, ack, frame, kind, unique};

#[test]
fn mqtt_3_10_1_1_other_flags_in_the_fixed_header_close_the_connection() {
    let body = &Unsubscribe::new(1).filter("a").bytes(V311)[2..];
    for flags in (0..16).filter(|flags| *flags != 2) {
        expect_violation("UNSUBSCRIBE", &frame(0xa0 | flags, body));
    }
}

#[test]
fn mqtt_3_10_3_1_filters_must_be_utf8_and_contiguous() {
    expect_violation("0xFF", &Unsubscribe::new(1).filter(b"a\xff").bytes(V311));
    expect_violation("a byte behind the last", &[0xa2, 6, 0, 1, 0, 1, b'a', 0]);
}

#[test]
fn mqtt_3_10_3_2_unsubscribe_without_a_filter_closes_the_connection() {
    expect_violation("no payload", &[0xa2, 2, 0, 1]);
    expect_violation("nothing at all", &[0xa2, 0]);
}

#[test]
fn mqtt_3_10_4_1_filters_are_compared_character_by_character() {
    let base = topic();
    let filters = [
        format!("{base}/+"),
        format!("{base}/a"),
        format!("{base}/#"),
    ];
    for (index, filter) in filters.iter().enumerate() {
        let mut raw = subscriber(filter, 0);
        for other in filters
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, other)| other)
        {
            raw.unsubscribe(other);
        }
        raw.unsubscribe(&base);
        raw.unsubscribe(&format!("/{filter}"));
        raw.unsubscribe(&filter.to_uppercase());
        raw.publish(&format!("{base}/a"), "still");
        raw.recv_message(&format!("{base}/a"), "still");
        raw.unsubscribe(filter);
        raw.publish(&format!("{base}/a"), "gone");
        raw.ping();
    }
}

#[test]
fn mqtt_3_10_4_1_one_of_overlapping_subscriptions_stays() {
    let base = topic();
    let name = format!("{base}/a");
    let mut raw = client();
    raw.subscribe(&name, 2);
    raw.subscribe(&format!("{base}/+"), 1);
    raw.unsubscribe(&name);
    client().publish_qos2(&name, "x", 1);
    assert_eq!(raw.recv_message(&name, "x").qos(), 1);
    raw.ping();
}

#[test]
fn mqtt_3_10_4_2_no_new_message_is_added_after_the_unsuback() {
    let topic = topic();
    let mut stays = subscriber(&topic, 1);
    let mut raw = subscriber(&topic, 1);
    raw.unsubscribe(&topic);
    let mut publisher = client();
    publisher.publish(&topic, "zero");
    publisher.publish_qos1(&topic, "one", 1);
    stays.recv_message(&topic, "zero");
    stays.recv_message(&topic, "one");
    raw.ping();
    // Subscribing again starts anew.
    raw.subscribe(&topic, 0);
    publisher.publish(&topic, "again");
    raw.recv_message(&topic, "again");
}

#[test]
fn mqtt_3_10_4_3_deliveries_that_have_begun_are_completed() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    publisher.publish_qos1(&topic, "one", 1);
    publisher.publish_qos2(&topic, "two", 2);
    publisher.publish_qos2(&topic, "three", 3);
    let one = raw.recv_message(&topic, "one");
    let two = raw.recv_message(&topic, "two");
    let three = raw.recv_message(&topic, "three");
    raw.send(&ack(kind::PUBREC, three.id()));
    assert_eq!(raw.recv(kind::PUBREL).id(), three.id());
    raw.unsubscribe(&topic);
    // The exchanges go on after the UNSUBACK ...
    raw.acknowledge(&two);
    // The answer shows that the PUBCOMP was taken before the next connection takes over.
    raw.ping();
    raw.cut();
    // ... and on the next connection.
    let mut raw = super::resume(&id, true);
    let again = raw.recv(kind::PUBLISH);
    assert_eq!(
        again.bytes,
        Publish::new(&topic, "one")
            .qos(1, one.id())
            .dup()
            .bytes(V311)
    );
    assert_eq!(raw.recv(kind::PUBREL).id(), three.id());
    raw.send(&ack(kind::PUBACK, one.id()));
    raw.send(&ack(kind::PUBCOMP, three.id()));
    raw.ping();
}

#[test]
fn mqtt_3_10_4_4_unsuback_carries_the_identifier_of_the_unsubscribe() {
    let topic = topic();
    let mut raw = subscriber(&topic, 0);
    raw.send(&Unsubscribe::new(0xfffe).filter(&topic).bytes(V311));
    raw.recv_exactly(&[0xb0, 2, 0xff, 0xfe]);
}

#[test]
fn mqtt_3_10_4_5_unsubscribe_is_answered_even_if_there_was_no_subscription() {
    let mut raw = client();
    raw.send(
        &Unsubscribe::new(3)
            .filter("never/subscribed")
            .filter("nor/+/this/#")
            .bytes(V311),
    );
    raw.recv_exactly(&[0xb0, 2, 0, 3]);
    raw.ping();
}

#[test]
fn mqtt_3_10_4_6_many_filters_are_handled_as_a_sequence_with_one_unsuback() {
    let base = topic();
    let mut subscribe = Subscribe::new(1);
    let mut unsubscribe = Unsubscribe::new(2);
    for index in 0..50 {
        subscribe = subscribe.filter(format!("{base}/{index}"), 0);
        if index != 25 {
            unsubscribe = unsubscribe.filter(format!("{base}/{index}"));
        }
    }
    let mut raw = client();
    raw.subscribe_for_codes(&subscribe);
    raw.send(&unsubscribe.bytes(V311));
    raw.recv_exactly(&[0xb0, 2, 0, 2]);
    for index in 0..50 {
        raw.publish(&format!("{base}/{index}"), "x");
    }
    raw.recv_message(&format!("{base}/25"), "x");
    raw.ping();
}
