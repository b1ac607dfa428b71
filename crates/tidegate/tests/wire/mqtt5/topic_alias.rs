//! Chapters 3.3.2.3.4 and 3.1.2.11.5, topic aliases in both directions.
//!
//! Binds clients alone: 3.3.2-10 (accept every alias up to the client's own maximum).

use super::*;

fn alias(alias: u16) -> Props {
    Props::new().u16(property::TOPIC_ALIAS, alias)
}

/// The alias maximum of the shared node: 64 unless it is another broker.
fn server_maximum() -> u16 {
    let (_, connack) = Raw::connect_for_connack(node(), &connect(&unique("c")));
    connack.number(property::TOPIC_ALIAS_MAXIMUM).unwrap_or(0) as u16
}

#[test]
fn mqtt5_section_3_3_2_3_4_an_alias_stands_for_its_topic() {
    let topic = unique("alias/");
    let (mut subscriber, mut publisher) = pair(&format!("{topic}/#"));
    let (a, b) = (format!("{topic}/a"), format!("{topic}/b"));
    publisher.send_publish(&Publish::new(&a, "sets 1").properties(alias(1)));
    publisher.send_publish(&Publish::new("", "uses 1").properties(alias(1)));
    publisher.send_publish(&Publish::new(&b, "sets 2").properties(alias(2)));
    publisher.send_publish(&Publish::new("", "uses 1 again").properties(alias(1)));
    publisher.send_publish(&Publish::new("", "uses 2").qos(1, 1).properties(alias(2)));
    publisher.send_publish(&Publish::new(&b, "resets 1").properties(alias(1)));
    publisher.send_publish(&Publish::new("", "new 1").properties(alias(1)));
    for (topic, payload) in [
        (&a, "sets 1"),
        (&a, "uses 1"),
        (&b, "sets 2"),
        (&a, "uses 1 again"),
        (&b, "uses 2"),
        (&b, "resets 1"),
        (&b, "new 1"),
    ] {
        let message = subscriber.recv_message(topic, payload);
        // The alias belongs to the publisher's connection and is not passed on.
        assert_eq!(message.properties, []);
    }
}

#[test]
fn mqtt5_section_3_3_2_3_4_a_retained_message_by_alias_is_kept_under_its_topic() {
    let topic = unique("alias/");
    let mut publisher = client();
    publisher.send_publish(&Publish::new(&topic, "sets").properties(alias(3)));
    let publish = Publish::new("", "kept").qos(1, 1).retain();
    publisher.send_publish(&publish.properties(alias(3)));
    publisher.recv(kind::PUBACK);
    let messages = retained(&topic);
    assert_eq!(messages[0].text(), "kept");
    assert_eq!(messages[0].properties, []);
    retain(&mut publisher, &topic, "");
}

#[test]
fn mqtt5_3_3_2_7_aliases_end_with_the_connection() {
    let id = unique("c");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.send_publish(&Publish::new("a", "x").properties(alias(1)));
    raw.ping();
    raw.disconnect();
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.send_publish(&Publish::new("", "x").properties(alias(1)));
    expect_disconnect_for(&mut raw, &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_section_3_3_4_an_unknown_alias_is_a_protocol_error() {
    breaks(
        &Publish::new("", "x").properties(alias(1)).bytes(5),
        &[reason::PROTOCOL_ERROR],
    );
}

#[test]
fn mqtt5_3_3_2_8_alias_0_is_invalid() {
    for topic in ["a", ""] {
        breaks(
            &Publish::new(topic, "x").properties(alias(0)).bytes(5),
            &[reason::TOPIC_ALIAS_INVALID],
        );
    }
}

#[test]
fn mqtt5_3_3_2_9_an_alias_above_the_servers_maximum_is_invalid() {
    let maximum = server_maximum();
    for wrong in [maximum + 1, u16::MAX] {
        breaks(
            &Publish::new("a", "x").properties(alias(wrong)).bytes(5),
            &[reason::TOPIC_ALIAS_INVALID],
        );
    }
}

#[test]
fn mqtt5_3_3_2_12_every_alias_up_to_the_maximum_is_accepted() {
    let topic = unique("alias/");
    let (mut subscriber, mut publisher) = pair(&format!("{topic}/+"));
    let name = |number: u16| format!("{topic}/{number}");
    for number in 1..=server_maximum() {
        publisher.send_publish(&Publish::new(name(number), "set").properties(alias(number)));
        subscriber.recv_message(&name(number), "set");
    }
    for number in (1..=server_maximum()).rev() {
        publisher.send_publish(&Publish::new("", "used").properties(alias(number)));
        subscriber.recv_message(&name(number), "used");
    }
}

/// Publishes on many topics in turn and resolves the aliases of what comes, checking them against `maximum`.
/// How many messages came with an alias.
fn receive_with_aliases(subscriber: &mut Raw, maximum: u16, topics: u16) -> usize {
    let base = unique("alias/");
    subscriber.subscribe(&format!("{base}/+"), 1);
    let mut publisher = client();
    let mut known: Vec<Option<String>> = vec![None; usize::from(maximum) + 1];
    let mut with_alias = 0;
    for round in 0..3_u16 {
        for number in 0..topics {
            let topic = format!("{base}/{number}");
            let payload = format!("{round} {number}");
            let qos = u8::from(number % 2 == 1);
            let publish = Publish::new(&topic, &payload).qos(qos, 1 + number);
            publisher.send_publish(&publish);
            if qos == 1 {
                publisher.recv(kind::PUBACK);
            }
            let message = subscriber.recv(kind::PUBLISH);
            assert_eq!(message.text(), payload);
            let sent_topic = match message.number(property::TOPIC_ALIAS) {
                None => message.topic.clone(),
                Some(alias) => {
                    assert!(
                        (1..=u32::from(maximum)).contains(&alias),
                        "not within the client's maximum of {maximum}: {message:?}"
                    );
                    with_alias += 1;
                    let slot = &mut known[alias as usize];
                    if !message.topic.is_empty() {
                        *slot = Some(message.topic.clone());
                    }
                    slot.clone()
                        .unwrap_or_else(|| panic!("an alias never set: {message:?}"))
                }
            };
            assert_eq!(sent_topic, topic);
            subscriber.acknowledge(&message);
        }
    }
    with_alias
}

#[test]
fn mqtt5_3_3_2_11_the_server_keeps_to_the_clients_alias_maximum() {
    for maximum in [1, 3, 100, 65535] {
        let mut subscriber = client_with(Props::new().u16(property::TOPIC_ALIAS_MAXIMUM, maximum));
        receive_with_aliases(&mut subscriber, maximum, 20);
    }
}

#[test]
fn mqtt5_section_3_1_2_11_5_the_server_uses_the_aliases_it_is_allowed() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let mut subscriber = client_with(Props::new().u16(property::TOPIC_ALIAS_MAXIMUM, 10));
    let with_alias = receive_with_aliases(&mut subscriber, 10, 5);
    assert!(with_alias > 0, "no message came with an alias");
}

#[test]
fn mqtt5_3_1_2_26_aliases_do_not_outlive_the_connection_at_the_server_either() {
    let id = unique("c");
    let mut raw = Raw::connect(node(), &{
        let mut connect = session(&id, 60);
        connect.properties = connect.properties.u16(property::TOPIC_ALIAS_MAXIMUM, 10);
        connect
    });
    receive_with_aliases(&mut raw, 10, 5);
    raw.disconnect();
    // Another connection of the session with a smaller maximum: every alias is set anew and within it.
    let mut connect = session(&id, 0);
    connect.properties = connect.properties.u16(property::TOPIC_ALIAS_MAXIMUM, 2);
    let mut raw = Raw::connect(node(), &connect);
    receive_with_aliases(&mut raw, 2, 5);
}

#[test]
fn mqtt5_3_1_2_27_without_an_alias_maximum_the_server_sends_none() {
    for properties in [
        Props::new(),
        Props::new().u16(property::TOPIC_ALIAS_MAXIMUM, 0),
    ] {
        let mut subscriber = client_with(properties);
        assert_eq!(receive_with_aliases(&mut subscriber, 0, 5), 0);
    }
}

#[test]
fn mqtt5_section_3_3_2_3_4_redelivery_does_not_lean_on_aliases_of_the_old_connection() {
    let id = unique("c");
    let topic = unique("alias/");
    let connect = {
        let mut connect = session(&id, 60);
        connect.properties = connect.properties.u16(property::TOPIC_ALIAS_MAXIMUM, 5);
        connect
    };
    let mut raw = Raw::connect(node(), &connect);
    raw.subscribe(&topic, 1);
    let mut publisher = client();
    for number in 1..=3 {
        publisher.publish_qos1(&topic, number.to_string(), number);
        raw.recv(kind::PUBLISH);
    }
    raw.cut();
    let mut raw = Raw::connect(node(), &session(&id, 0));
    for number in 1..=3 {
        let message = raw.recv_message(&topic, number.to_string());
        assert!(message.dup());
        assert_eq!(message.property(property::TOPIC_ALIAS), None);
    }
}
