//! Chapter 4.8, subscriptions, and 4.8.2, shared subscriptions. What happens when a member goes away and the strategies are
//! this server's own rules: `extensions/shared.rs`.

use super::*;

/// As many members of the group `name` on `filter` as there are QoS, with these.
fn members(name: &str, filter: &str, granted: &[u8]) -> Vec<Raw> {
    granted
        .iter()
        .map(|qos| {
            let mut raw = client();
            raw.subscribe(&format!("$share/{name}/{filter}"), *qos);
            raw
        })
        .collect()
}

#[test]
fn mqtt5_section_4_8_1_a_message_goes_to_every_non_shared_subscription() {
    let topic = unique("each/");
    let mut subscribers: Vec<Raw> = (0..5)
        .map(|_| {
            let mut raw = client();
            raw.subscribe(&topic, 1);
            raw
        })
        .collect();
    client().publish_qos1(&topic, "x", 1);
    for subscriber in &mut subscribers {
        subscriber.recv_message(&topic, "x");
    }
}

#[test]
fn mqtt5_4_8_2_1_a_share_name_has_at_least_one_character() {
    let mut raw = client();
    for filter in ["$share//a", "$share/", "$share//", "$share//#"] {
        let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
        assert_eq!(codes, [reason::FILTER_INVALID], "{filter}");
    }
}

#[test]
fn mqtt5_4_8_2_2_a_share_name_has_no_wildcards_and_is_followed_by_a_filter() {
    let mut raw = client();
    for filter in [
        "$share/a+/b",
        "$share/+/b",
        "$share/a#/b",
        "$share/#/b",
        "$share/group",
        "$share/group/",
        "$share/group/a/#/b",
    ] {
        let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
        assert_eq!(codes, [reason::FILTER_INVALID], "{filter}");
    }
    for filter in ["$share/g/a", "$share/g/+/b", "$share/\u{e9} x/a/#"] {
        let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 1));
        assert_eq!(codes, [1], "{filter}");
    }
}

#[test]
fn mqtt5_section_4_8_2_a_message_goes_to_one_member_of_each_group() {
    let topic = unique("shared/");
    let mut groups = [
        members("one", &topic, &[0, 0, 0]),
        members("two", &topic, &[0, 0]),
    ];
    let mut plain = client();
    plain.subscribe(&topic, 0);
    // And through another filter of the same name, which is another shared subscription.
    let mut wild = members("one", &format!("{topic}/#"), &[0]);
    let mut publisher = client();
    for number in 0..30 {
        publisher.publish(&topic, number.to_string());
    }
    for number in 0..30 {
        plain.recv_message(&topic, number.to_string());
        wild[0].recv_message(&topic, number.to_string());
    }
    for group in &mut groups {
        let mut found: Vec<u32> = Vec::new();
        eventually("every message at one member of the group", || {
            for member in group.iter_mut() {
                for packet in member.ping_for_packets() {
                    found.push(packet.text().parse().unwrap());
                }
            }
            found.len() >= 30
        });
        found.sort_unstable();
        assert_eq!(found, (0..30).collect::<Vec<_>>());
    }
}

#[test]
fn mqtt5_4_8_2_3_a_member_gets_messages_at_the_qos_granted_to_it() {
    let topic = unique("shared/");
    let granted = [0, 1, 2];
    let mut group = members("g", &topic, &granted);
    let mut publisher = client();
    let mut seen = [false; 3];
    for number in 0..60 {
        publisher.publish_qos2(&topic, number.to_string(), 1);
    }
    let mut count = 0;
    eventually("every message at a member", || {
        for (member, granted) in group.iter_mut().zip(granted) {
            for packet in member.ping_for_packets() {
                if packet.kind == kind::PUBLISH {
                    assert_eq!(packet.qos(), granted, "{packet:?}");
                    seen[usize::from(granted)] = true;
                    count += 1;
                }
            }
        }
        count >= 60
    });
    // Round robin gives each of them some.
    if external().is_none() {
        assert_eq!(seen, [true; 3]);
    }
}

#[test]
fn mqtt5_4_8_2_4_a_qos_2_delivery_is_completed_to_the_same_member() {
    let topic = unique("shared/");
    let filter = format!("$share/g/{topic}");
    let id = unique("c");
    let mut first = Raw::connect(node(), &session(&id, 60));
    first.subscribe(&filter, 2);
    let mut publisher = client();
    publisher.publish_qos2(&topic, "sent", 1);
    publisher.publish_qos2(&topic, "released", 2);
    let sent = first.recv_message(&topic, "sent");
    let released = first.recv_message(&topic, "released");
    first.send(&ack(kind::PUBREC, released.id()));
    first.recv(kind::PUBREL);
    let mut second = client();
    second.subscribe(&filter, 2);
    first.cut();
    expect_silence(&mut second);
    let (mut first, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(connack.session_present);
    let packets = first.ping_for_packets();
    let found: Vec<_> = packets
        .iter()
        .map(|packet| (packet.kind, packet.id()))
        .collect();
    assert_eq!(found.len(), 2, "{packets:?}");
    assert!(found.contains(&(kind::PUBLISH, sent.id())), "{packets:?}");
    assert!(
        found.contains(&(kind::PUBREL, released.id())),
        "{packets:?}"
    );
}

#[test]
fn mqtt5_4_8_2_5_a_qos_2_message_in_delivery_goes_to_no_other_member() {
    let topic = unique("shared/");
    let filter = format!("$share/g/{topic}");
    let id = unique("c");
    let mut first = Raw::connect(node(), &session(&id, 60));
    first.subscribe(&filter, 2);
    let mut second = client();
    let mut publisher = client();
    publisher.publish_qos2(&topic, "in delivery", 1);
    first.recv_message(&topic, "in delivery");
    second.subscribe(&filter, 2);
    first.cut();
    // The session ends: the message ends with it.
    Raw::connect(node(), &connect(&id)).disconnect();
    expect_silence(&mut second);
    expect_fence(&mut second, &mut publisher, &topic);
}

#[test]
fn mqtt5_4_8_2_6_a_message_rejected_by_a_member_goes_to_no_other() {
    let topic = unique("shared/");
    let mut group = members("g", &topic, &[2, 2]);
    let mut publisher = client();
    for (qos, answer) in [(1, kind::PUBACK), (2, kind::PUBREC)] {
        match qos {
            1 => publisher.publish_qos1(&topic, "rejected", 1),
            _ => publisher.publish_qos2(&topic, "rejected", 1),
        }
        let mut chosen = None;
        eventually("a member gets the message", || {
            for (index, member) in group.iter_mut().enumerate() {
                for packet in member.ping_for_packets() {
                    assert!(chosen.is_none(), "delivered twice: {packet:?}");
                    chosen = Some((index, packet));
                }
            }
            chosen.is_some()
        });
        let (index, packet) = chosen.unwrap();
        group[index].send(&ack_reason(answer, packet.id(), 0x80, &Props::new()));
        for member in &mut group {
            expect_silence(member);
        }
    }
}

#[test]
fn mqtt5_section_4_8_2_retained_messages_are_not_sent_to_shared_subscriptions() {
    let topic = unique("shared/");
    let mut publisher = client();
    retain(&mut publisher, &topic, "kept");
    let mut raw = client();
    raw.subscribe(&format!("$share/g/{topic}"), 1);
    raw.ping();
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_section_4_8_2_a_shared_and_a_non_shared_subscription_are_two() {
    let topic = unique("shared/");
    let mut raw = client();
    for (filter, id) in [(topic.clone(), 1), (format!("$share/g/{topic}"), 2)] {
        let subscribe = Subscribe::new(1)
            .filter(filter, 1)
            .properties(Props::new().varint(property::SUBSCRIPTION_ID, id));
        assert_eq!(raw.subscribe_for_codes(&subscribe), [1]);
    }
    client().publish_qos1(&topic, "x", 1);
    let mut ids: Vec<Option<u32>> = (0..2)
        .map(|_| {
            let message = raw.recv_message(&topic, "x");
            raw.acknowledge(&message);
            message.number(property::SUBSCRIPTION_ID)
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [Some(1), Some(2)]);
    // Unsubscribing one leaves the other.
    raw.unsubscribe(&topic);
    client().publish_qos1(&topic, "y", 1);
    assert_eq!(
        raw.recv_message(&topic, "y")
            .number(property::SUBSCRIPTION_ID),
        Some(2)
    );
}

#[test]
fn mqtt5_section_4_8_2_unsubscribing_takes_the_whole_shared_filter() {
    let topic = unique("shared/");
    let filter = format!("$share/g/{topic}");
    let mut raw = client();
    raw.subscribe(&filter, 0);
    for (other, code) in [
        (topic.clone(), 0x11),
        (format!("$share/other/{topic}"), 0x11),
        (filter, 0x00),
    ] {
        raw.send(&Unsubscribe::new(1).filter(other).bytes(5));
        assert_eq!(raw.recv(kind::UNSUBACK).payload, [code]);
    }
    client().publish_qos1(&topic, "x", 1);
    expect_silence(&mut raw);
}

#[test]
fn mqtt5_section_4_8_2_a_session_that_is_away_keeps_its_membership() {
    let topic = unique("shared/");
    let id = unique("c");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&format!("$share/g/{topic}"), 1);
    raw.disconnect();
    client().publish_qos1(&topic, "the only member is away", 1);
    let mut raw = Raw::connect(node(), &session(&id, 0));
    raw.recv_message(&topic, "the only member is away");
}

#[test]
fn mqtt5_section_4_8_2_subscribing_again_does_not_join_twice() {
    let topic = unique("shared/");
    let filter = format!("$share/g/{topic}");
    let mut raw = client();
    raw.subscribe(&filter, 0);
    raw.subscribe(&filter, 1);
    let mut publisher = client();
    publisher.publish_qos1(&topic, "once", 1);
    let message = raw.recv_message(&topic, "once");
    assert_eq!(message.qos(), 1);
    raw.acknowledge(&message);
    expect_fence(&mut raw, &mut publisher, &topic);
    raw.unsubscribe(&filter);
    publisher.publish_qos1(&topic, "left", 2);
    expect_silence(&mut raw);
}

#[test]
fn mqtt5_section_4_8_2_the_last_member_takes_undelivered_messages_along() {
    let topic = unique("shared/");
    let filter = format!("$share/g/{topic}");
    let id = unique("c");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&filter, 1);
    raw.disconnect();
    client().publish_qos1(&topic, "for nobody", 1);
    // The only session ends, and with it the shared subscription and its messages.
    Raw::connect(node(), &connect(&id)).disconnect();
    let mut next = client();
    next.subscribe(&filter, 1);
    expect_silence(&mut next);
}
