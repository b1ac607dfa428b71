//! Chapter 3.2, CONNACK. The limits a server may announce (Maximum QoS, Retain Available ...) and what it does when they
//! are broken need nodes configured for it; they are here too.
//!
//! Bind clients alone: 3.2.2-4 and -5 (the client's own session state), -11, -14, -15, -17, -18 (keep to the limits of
//! the CONNACK; what the server does otherwise is tested), -21 (use the server's keep-alive).

use super::*;

/// A node with these settings; none against another broker.
fn node_with(settings: &[&str]) -> Option<&'static Node> {
    if external().is_some() {
        testkit::report_skipped("needs a node of its own");
        return None;
    }
    let arguments: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
    Some(Node::shared_with(&arguments))
}

#[test]
fn mqtt5_3_2_0_1_the_connack_is_the_first_packet() {
    let id = unique("c");
    let topic = unique("first/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 1);
    raw.disconnect();
    client().publish_qos1(&topic, "waiting", 1);
    let mut raw = Raw::open(node(), 5);
    raw.send(&session(&id, 0).bytes());
    assert_eq!(raw.recv_packet().kind, kind::CONNACK);
    raw.recv_message(&topic, "waiting");
}

#[test]
fn mqtt5_3_2_0_2_there_is_one_connack_in_a_connection() {
    let id = unique("c");
    let mut raw = Raw::open(node(), 5);
    raw.send(&[connect(&id).bytes(), connect(&id).bytes()].concat());
    assert_eq!(raw.recv(kind::CONNACK).reason, 0);
    expect_disconnect_for(&mut raw, &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_3_2_2_1_reserved_acknowledge_flags_are_0() {
    let id = unique("c");
    for connect in [connect(&id), session(&id, 60), session(&id, 0)] {
        let (raw, connack) = Raw::connect_for_connack(node(), &connect);
        assert_eq!(connack.bytes[0], 0x20);
        assert_eq!(connack.bytes[2] & 0xfe, 0, "{connack:?}");
        raw.disconnect();
    }
    let rejection = rejected(&connect(&id).flags(0x03).bytes(), &[reason::MALFORMED]);
    if external().is_none() {
        assert_eq!(rejection.bytes[2], 0, "{rejection:?}");
    }
}

#[test]
fn mqtt5_3_2_2_2_clean_start_answers_no_session_present() {
    let id = unique("c");
    Raw::connect(node(), &session(&id, 60)).disconnect();
    let (_, connack) = Raw::connect_for_connack(node(), &connect(&id));
    assert_eq!((connack.session_present, connack.reason), (false, 0));
}

#[test]
fn mqtt5_3_2_2_3_session_present_tells_whether_there_was_a_session() {
    let id = unique("c");
    for present in [false, true, true] {
        let (raw, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
        assert_eq!((connack.session_present, connack.reason), (present, 0));
        raw.disconnect();
    }
}

#[test]
fn mqtt5_3_2_2_6_a_rejection_has_no_session_present() {
    let id = unique("c");
    Raw::connect(node(), &session(&id, 60)).disconnect();
    let mut wrong = session(&id, 60);
    wrong.properties = wrong.properties.u16(property::RECEIVE_MAXIMUM, 0);
    // `rejected` requires that the flag is 0.
    rejected(&wrong.bytes(), &[reason::PROTOCOL_ERROR]);
    // And the session is as it was.
    let (_, connack) = Raw::connect_for_connack(node(), &session(&id, 0));
    assert!(connack.session_present);
}

#[test]
fn mqtt5_3_2_2_7_a_connack_of_128_or_greater_ends_the_connection() {
    let connect = connect(&unique("c")).properties(Props::new().string(property::AUTH_DATA, "x"));
    rejected(&connect.bytes(), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_3_2_2_8_the_properties_of_a_connack_are_those_it_may_have() {
    let (_, connack) = Raw::connect_for_connack(node(), &session(&unique("c"), 60));
    for (id, value) in &connack.properties {
        let right = match (*id, value) {
            (property::RECEIVE_MAXIMUM, Value::U16(value)) => *value > 0,
            (property::MAXIMUM_QOS, Value::Byte(value)) => *value <= 1,
            (property::MAXIMUM_PACKET_SIZE, Value::U32(value)) => *value > 0,
            (
                property::RETAIN_AVAILABLE
                | property::WILDCARD_AVAILABLE
                | property::SUBSCRIPTION_ID_AVAILABLE
                | property::SHARED_AVAILABLE,
                Value::Byte(value),
            ) => *value <= 1,
            (
                property::SESSION_EXPIRY
                | property::TOPIC_ALIAS_MAXIMUM
                | property::REASON_STRING
                | property::USER
                | property::SERVER_KEEP_ALIVE
                | property::SERVER_REFERENCE,
                _,
            ) => true,
            _ => false,
        };
        assert!(right, "property {id:#04x} with {value:?}: {connack:?}");
        if *id != property::USER {
            assert!(connack.property(*id).is_some());
        }
    }
}

#[test]
fn mqtt5_section_3_2_2_3_the_limits_of_the_node_are_announced() {
    let Some(node) = node_with(&[]) else { return };
    let (_, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
    assert_eq!(connack.number(property::RECEIVE_MAXIMUM), Some(1024));
    assert_eq!(connack.number(property::MAXIMUM_PACKET_SIZE), Some(1 << 20));
    assert_eq!(connack.number(property::TOPIC_ALIAS_MAXIMUM), Some(64));
    // QoS 2 is supported: a Maximum QoS must not be sent. What is available is 1 or left out.
    assert_eq!(connack.property(property::MAXIMUM_QOS), None);
    for available in [
        property::RETAIN_AVAILABLE,
        property::WILDCARD_AVAILABLE,
        property::SUBSCRIPTION_ID_AVAILABLE,
        property::SHARED_AVAILABLE,
    ] {
        assert_ne!(connack.number(available), Some(0), "{connack:?}");
    }
}

#[test]
fn mqtt5_section_3_2_2_3_2_a_session_expiry_cut_by_the_server_is_told() {
    let Some(node) = node_with(&["limits.max_session_expiry_s=100"]) else {
        return;
    };
    for wish in [101, 1000, u32::MAX] {
        let (_, connack) = Raw::connect_for_connack(node, &session(&unique("c"), wish));
        assert_eq!(connack.number(property::SESSION_EXPIRY), Some(100));
    }
    for wish in [0, 1, 100] {
        let (_, connack) = Raw::connect_for_connack(node, &session(&unique("c"), wish));
        let expiry = connack.number(property::SESSION_EXPIRY);
        assert!(expiry.is_none() || expiry == Some(wish), "{connack:?}");
    }
}

#[test]
fn mqtt5_3_2_2_9_a_maximum_qos_is_announced() {
    for maximum in [0, 1] {
        let set = format!("limits.max_qos={maximum}");
        let Some(node) = node_with(&[&set]) else {
            return;
        };
        let (mut raw, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
        assert_eq!(connack.number(property::MAXIMUM_QOS), Some(maximum));
        // A PUBLISH above it is answered with DISCONNECT 0x9B.
        let publish = Publish::new("a", "x").qos(1 + maximum as u8, 1).bytes(5);
        raw.send(&publish);
        expect_disconnect_for(&mut raw, &[reason::QOS_NOT_SUPPORTED]);
    }
}

#[test]
fn mqtt5_3_2_2_10_a_maximum_qos_does_not_reject_subscriptions() {
    for maximum in [0, 1] {
        let set = format!("limits.max_qos={maximum}");
        let Some(node) = node_with(&[&set]) else {
            return;
        };
        let mut raw = Raw::client(node, 5);
        let subscribe = Subscribe::new(1)
            .filter(unique("q/"), 0)
            .filter(unique("q/"), 1)
            .filter(unique("q/"), 2);
        let granted = raw.subscribe_for_codes(&subscribe);
        assert_eq!(granted, [0, 1.min(maximum), 2.min(maximum)]);
    }
}

#[test]
fn mqtt5_3_2_2_12_a_will_above_the_maximum_qos_is_rejected() {
    let Some(node) = node_with(&["limits.max_qos=1"]) else {
        return;
    };
    let mut raw = Raw::open(node, 5);
    raw.send(
        &connect(&unique("c"))
            .will(Will::new("w", "x").qos(2))
            .bytes(),
    );
    expect_rejected(&mut raw, &[reason::QOS_NOT_SUPPORTED]);
    Raw::connect(
        node,
        &connect(&unique("c")).will(Will::new("w", "x").qos(1)),
    );
}

#[test]
fn mqtt5_3_2_2_13_a_retained_will_is_rejected_where_retain_is_not_available() {
    let Some(node) = node_with(&["limits.retain_available=false"]) else {
        return;
    };
    let mut raw = Raw::open(node, 5);
    raw.send(
        &connect(&unique("c"))
            .will(Will::new("w", "x").retain())
            .bytes(),
    );
    expect_rejected(&mut raw, &[reason::RETAIN_NOT_SUPPORTED]);
}

#[test]
fn mqtt5_section_3_2_2_3_5_without_retain_a_retained_publish_is_rejected() {
    let Some(node) = node_with(&["limits.retain_available=false"]) else {
        return;
    };
    for qos in 0..3 {
        let (mut raw, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
        assert_eq!(connack.number(property::RETAIN_AVAILABLE), Some(0));
        raw.send_publish(&Publish::new("a", "x").qos(qos, 1).retain());
        expect_disconnect_for(&mut raw, &[reason::RETAIN_NOT_SUPPORTED]);
    }
}

#[test]
fn mqtt5_section_3_2_2_3_6_a_packet_larger_than_the_servers_maximum_is_rejected() {
    let Some(node) = node_with(&["limits.max_packet_size=1024"]) else {
        return;
    };
    let (mut raw, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
    assert_eq!(connack.number(property::MAXIMUM_PACKET_SIZE), Some(1024));
    let topic = unique("big/");
    raw.subscribe(&topic, 0);
    // 3 bytes of fixed header, 2 of topic length, 1 of property length.
    let payload = vec![b'x'; 1024 - 3 - 2 - topic.len() - 1];
    assert_eq!(Publish::new(&topic, &payload).bytes(5).len(), 1024);
    raw.publish(&topic, &payload);
    raw.recv_message(&topic, &payload);
    // The header alone shows that the next one is too large.
    raw.send(&[0x30, 0xfe, 0x07]);
    expect_disconnect_for(&mut raw, &[reason::PACKET_TOO_LARGE]);
}

#[test]
fn mqtt5_3_2_2_16_an_assigned_client_id_is_not_in_use() {
    let (mut first, connack) = Raw::connect_for_connack(node(), &connect(""));
    let first_id = connack.property(property::ASSIGNED_CLIENT_ID).cloned();
    assert!(first_id.is_some());
    let (mut second, connack) = Raw::connect_for_connack(node(), &connect(""));
    assert_ne!(
        connack.property(property::ASSIGNED_CLIENT_ID).cloned(),
        first_id
    );
    first.ping();
    second.ping();
}

#[test]
fn mqtt5_3_2_2_19_a_rejection_keeps_to_the_clients_maximum_packet_size() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    for size in [8, 16, 24, 32, 40] {
        let properties = Props::new().u32(property::MAXIMUM_PACKET_SIZE, size);
        let connack = rejected(
            &connect(&"i".repeat(1025)).properties(properties).bytes(),
            &[reason::CLIENT_ID_INVALID],
        );
        // 3.2.2-20 says the same of user properties.
        assert!(connack.bytes.len() <= size as usize, "{connack:?}");
    }
}

#[test]
fn mqtt5_3_2_2_21_a_server_keep_alive_is_announced_and_used() {
    let Some(node) = node_with(&["limits.max_keep_alive_s=1"]) else {
        return;
    };
    for wish in [0, 2, 60, 65535] {
        let start = Instant::now();
        let connect = connect(&unique("c")).keep_alive(wish);
        let (mut raw, connack) = Raw::connect_for_connack(node, &connect);
        assert_eq!(connack.number(property::SERVER_KEEP_ALIVE), Some(1));
        if wish == 60 {
            expect_end(&mut raw, reason::KEEP_ALIVE_TIMEOUT);
            expect_waited(start, 1500);
        }
    }
}

#[test]
fn mqtt5_3_2_2_22_without_a_server_keep_alive_the_clients_holds() {
    let (mut raw, connack) = Raw::connect_for_connack(node(), &connect(&unique("c")).keep_alive(1));
    assert_eq!(connack.property(property::SERVER_KEEP_ALIVE), None);
    expect_end(&mut raw, reason::KEEP_ALIVE_TIMEOUT);
}

#[test]
fn mqtt5_section_3_2_2_3_11_without_wildcards_a_wildcard_subscription_is_rejected() {
    let Some(node) = node_with(&["limits.wildcard_subscription_available=false"]) else {
        return;
    };
    for filter in ["a/#", "+", "a/+/b", "#"] {
        let (mut raw, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
        assert_eq!(connack.number(property::WILDCARD_AVAILABLE), Some(0));
        raw.subscribe("no/wildcard", 1);
        raw.send(&Subscribe::new(2).filter(filter, 0).bytes(5));
        expect_disconnect_for(&mut raw, &[reason::WILDCARD_NOT_SUPPORTED]);
    }
}

#[test]
fn mqtt5_section_3_2_2_3_13_without_shared_subscriptions_they_are_rejected() {
    let Some(node) = node_with(&["limits.shared_subscription_available=false"]) else {
        return;
    };
    let (mut raw, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
    assert_eq!(connack.number(property::SHARED_AVAILABLE), Some(0));
    raw.send(&Subscribe::new(2).filter("$share/g/a", 0).bytes(5));
    expect_disconnect_for(&mut raw, &[reason::SHARED_NOT_SUPPORTED]);
}
