//! SUBSCRIBE and SUBACK (3.8, 3.9).

use super::{V311, client, expect_violation, subscriber, topic};
use crate::support::{Publish, Raw, Subscribe, frame, kind, string};

/// Asks for one filter that is not valid: the server must reject it with 0x80 or close the connection.
fn expect_rejected(filter: &str) {
    let mut raw = client();
    raw.send(&Subscribe::new(5).filter(filter, 0).bytes(V311));
    raw.send(&[0xe0, 0]);
    let packets = raw.packets_until_closed();
    for packet in &packets {
        assert_eq!(packet.bytes, [0x90, 3, 0, 5, 0x80], "{filter:?}");
    }
    assert!(packets.len() <= 1, "{filter:?}: {packets:?}");
}

#[test]
fn mqtt_3_8_1_1_other_flags_in_the_fixed_header_close_the_connection() {
    let body = &Subscribe::new(1).filter("a", 0).bytes(V311)[2..];
    for flags in (0..16).filter(|flags| *flags != 2) {
        expect_violation("SUBSCRIBE", &frame(0x80 | flags, body));
    }
}

#[test]
fn mqtt_3_8_3_1_topic_filters_must_be_utf8() {
    expect_violation("0xFF", &Subscribe::new(1).filter(b"a\xff", 0).bytes(V311));
    let filter = format!("{}/\u{1f980}/+", topic());
    let mut raw = subscriber(&filter, 0);
    let name = filter.replace('+', "\u{fc}");
    raw.publish(&name, "x");
    raw.recv_message(&name, "x");
}

#[test]
fn mqtt_3_8_3_3_subscribe_without_a_filter_closes_the_connection() {
    expect_violation("no payload", &[0x82, 2, 0, 1]);
    expect_violation("nothing at all", &[0x82, 0]);
}

#[test]
fn mqtt_3_8_3_4_reserved_bits_and_qos_3_close_the_connection() {
    for options in [3, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x81, 0xfe, 0xff] {
        expect_violation(
            "options",
            &Subscribe::new(1).filter("a", options).bytes(V311),
        );
        expect_violation(
            "options of the second",
            &Subscribe::new(1)
                .filter("a", 0)
                .filter("b", options)
                .bytes(V311),
        );
    }
}

#[test]
fn mqtt_3_8_4_1_subscribe_is_answered_by_suback() {
    let mut raw = client();
    for qos in 0..3 {
        raw.send(&Subscribe::new(1).filter(topic(), qos).bytes(V311));
        raw.recv_exactly(&[0x90, 3, 0, 1, qos]);
    }
}

#[test]
fn mqtt_3_8_4_1_what_is_published_after_the_suback_arrives() {
    // From many clients, so that all pairs of shards take part.
    for _ in 0..40 {
        let topic = topic();
        let mut raw = subscriber(&topic, 0);
        client().publish(&topic, "x");
        raw.recv_message(&topic, "x");
    }
}

#[test]
fn mqtt_3_8_4_2_suback_carries_the_identifier_of_the_subscribe() {
    let mut raw = client();
    for id in [1, 2, 0x1234, 0xffff_u16] {
        raw.send(&Subscribe::new(id).filter(topic(), 0).bytes(V311));
        let [high, low] = id.to_be_bytes();
        raw.recv_exactly(&[0x90, 3, high, low, 0]);
    }
}

#[test]
fn mqtt_3_8_4_3_the_same_filter_replaces_the_subscription() {
    let topic = topic();
    let mut raw = subscriber(&topic, 2);
    let mut publisher = client();
    for qos in [0, 1, 2, 1, 0] {
        raw.subscribe(&topic, qos);
        publisher.publish_qos2(&topic, "x", 1);
        let message = raw.recv_message(&topic, "x");
        assert_eq!(message.qos(), qos);
        raw.acknowledge(&message);
        raw.ping();
    }
    raw.unsubscribe(&topic);
    publisher.publish_qos2(&topic, "x", 1);
    raw.ping();
}

#[test]
fn mqtt_3_8_4_3_retained_messages_are_sent_again() {
    let topic = topic();
    let mut publisher = client();
    publisher.send_publish(&Publish::new(&topic, "kept").qos(1, 1).retain());
    publisher.recv(kind::PUBACK);
    let mut raw = client();
    for qos in [0, 1, 1, 0] {
        raw.subscribe(&topic, qos);
        let message = raw.recv_message(&topic, "kept");
        assert!(message.retain());
        assert_eq!(message.qos(), qos);
        raw.acknowledge(&message);
    }
}

#[test]
fn mqtt_3_8_4_3_the_flow_of_messages_is_not_interrupted() {
    const COUNT: u32 = 1000;
    let topic = topic();
    let mut raw = subscriber(&topic, 0);
    let name = topic.clone();
    let publisher = std::thread::spawn(move || {
        let mut publisher = client();
        for number in 0..COUNT {
            publisher.publish(&name, number.to_string());
        }
        publisher.ping();
    });
    let mut next = 0;
    let mut round = 0;
    while next < COUNT {
        if next >= round * 20 {
            raw.send(&Subscribe::new(1).filter(&topic, 0).bytes(V311));
            round += 1;
        }
        let packet = raw.recv_packet();
        if packet.kind == kind::PUBLISH {
            assert_eq!(packet.text(), next.to_string());
            next += 1;
        } else {
            assert_eq!(packet.kind, kind::SUBACK);
        }
    }
    publisher.join().unwrap();
}

#[test]
fn mqtt_3_8_4_4_many_filters_are_handled_as_a_sequence_with_one_suback() {
    let base = topic();
    let mut subscribe = Subscribe::new(0x0a0b);
    let mut expected = vec![0x0a, 0x0b];
    for index in 0..60_u8 {
        subscribe = subscribe.filter(format!("{base}/{index}"), index % 3);
        expected.push(index % 3);
    }
    let mut raw = client();
    raw.send(&subscribe.bytes(V311));
    raw.recv_exactly(&frame(0x90, &expected));
    let mut publisher = client();
    for index in 0..60_u8 {
        let name = format!("{base}/{index}");
        publisher.publish_qos2(&name, "x", 1);
        let message = raw.recv_message(&name, "x");
        assert_eq!(message.qos(), index % 3);
        raw.acknowledge(&message);
    }
}

#[test]
fn mqtt_3_8_4_4_the_last_of_the_same_filter_in_one_subscribe_wins() {
    let topic = topic();
    let mut raw = client();
    let subscribe = Subscribe::new(1)
        .filter(&topic, 2)
        .filter(&topic, 0)
        .filter(&topic, 1);
    assert_eq!(raw.subscribe_for_codes(&subscribe), [2, 0, 1]);
    client().publish_qos2(&topic, "x", 1);
    assert_eq!(raw.recv_message(&topic, "x").qos(), 1);
    raw.ping();
}

#[test]
fn mqtt_3_8_4_5_suback_has_a_code_for_each_filter() {
    let base = topic();
    for count in [1, 2, 10, 100] {
        let mut subscribe = Subscribe::new(1);
        for index in 0..count {
            subscribe = subscribe.filter(format!("{base}/{index}"), 1);
        }
        assert_eq!(client().subscribe_for_codes(&subscribe), vec![1; count]);
    }
}

#[test]
fn mqtt_3_8_4_6_messages_come_at_the_lower_of_published_and_granted_qos() {
    let topic = topic();
    for granted in 0..3_u8 {
        let mut raw = subscriber(&topic, granted);
        let mut publisher = client();
        for published in 0..3_u8 {
            match published {
                0 => publisher.publish(&topic, "x"),
                1 => publisher.publish_qos1(&topic, "x", 1),
                _ => publisher.publish_qos2(&topic, "x", 1),
            }
            let message = raw.recv_message(&topic, "x");
            assert_eq!(
                message.qos(),
                published.min(granted),
                "published {published}, granted {granted}"
            );
            raw.acknowledge(&message);
        }
    }
}

#[test]
fn mqtt_3_9_3_1_the_codes_are_in_the_order_of_the_filters() {
    let base = topic();
    let mut raw = client();
    raw.send(
        &Subscribe::new(1)
            .filter(format!("{base}/z"), 2)
            .filter(format!("{base}/a"), 0)
            .filter(format!("{base}/m"), 1)
            .filter(format!("{base}/b"), 2)
            .bytes(V311),
    );
    raw.recv_exactly(&[0x90, 6, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn mqtt_3_9_3_2_a_filter_that_is_rejected_gets_0x80() {
    // Or the connection ends: 3.1.1 leaves it to the server what a filter that is not valid is.
    let base = topic();
    let mut raw = client();
    let subscribe = Subscribe::new(1)
        .filter(format!("{base}/1"), 1)
        .filter("a/#/b", 1)
        .filter(format!("{base}/2"), 2);
    raw.send(&subscribe.bytes(V311));
    raw.send(&[0xe0, 0]);
    let packets = raw.packets_until_closed();
    assert!(packets.len() <= 1, "{packets:?}");
    for packet in packets {
        assert_eq!(packet.bytes, [0x90, 5, 0, 1, 1, 0x80, 2]);
    }
}

#[test]
fn mqtt_4_7_1_2_the_multi_level_wildcard_stands_alone_at_the_end() {
    for filter in [
        "a#", "#a", "a/#b", "a/b#", "#/a", "a/#/b", "##", "a/##", "#/", "#/#",
    ] {
        expect_rejected(filter);
    }
}

#[test]
fn mqtt_4_7_1_3_the_single_level_wildcard_takes_a_whole_level() {
    for filter in [
        "a+", "+a", "a/+b", "a/b+", "a+/b", "++", "a/++/b", "+#", "a/+#",
    ] {
        expect_rejected(filter);
    }
    let base = topic();
    for filter in [
        "+", "+/+", "+/#", "a/+", "+/a", "a/+/b", "+/+/+", "/+", "+/", "+//+",
    ] {
        let mut raw = client();
        raw.subscribe(&format!("{base}/{filter}"), 0);
    }
    // First and alone.
    for filter in ["+", "+/+"] {
        subscriber_to_everything(filter).ping_for_packets();
    }
}

/// A subscription that also gets other tests' messages.
fn subscriber_to_everything(filter: &str) -> Raw {
    let mut raw = client();
    raw.send(&Subscribe::new(1).filter(filter, 0).bytes(V311));
    while raw.recv_packet().kind != kind::SUBACK {}
    raw
}

#[test]
fn mqtt_4_7_3_1_an_empty_filter_is_rejected() {
    expect_rejected("");
}

#[test]
fn messages_may_not_come_for_a_filter_that_was_rejected() {
    let base = topic();
    let mut raw = client();
    raw.send(
        &Subscribe::new(1)
            .filter(format!("{base}/#/x"), 0)
            .bytes(V311),
    );
    raw.send(&[0xc0, 0]);
    client().publish(&format!("{base}/#/x").replace('#', "a"), "x");
    // SUBACK 0x80 and PINGRESP, or the end of the connection; never a message.
    let packets: Vec<_> = std::iter::from_fn(|| raw.recv_unless_closed())
        .take(2)
        .collect();
    assert!(
        packets.iter().all(|packet| packet.kind != kind::PUBLISH),
        "{packets:?}"
    );
}

#[test]
fn a_subscribe_in_pieces_is_understood() {
    let topic = topic();
    let mut raw = client();
    let body = [vec![0, 1], string(&topic), vec![0]].concat();
    for piece in frame(0x82, &body).chunks(3) {
        raw.send(piece);
    }
    raw.recv_exactly(&[0x90, 3, 0, 1, 0]);
}
