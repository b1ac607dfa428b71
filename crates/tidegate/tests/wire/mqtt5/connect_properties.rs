//! Chapter 3.1.2.11, the properties of CONNECT. What the server may send under them is tested where it is sent: 3.1.2-26
//! and -27 in `topic_alias.rs`, Receive Maximum in `flow_control.rs`, 3.1.2-28 in `request_response.rs`.
//!
//! Bind clients alone: 3.1.2-30 (send only AUTH and DISCONNECT before the CONNACK; what the server does about it is in
//! `enhanced_authentication.rs`).

use super::*;

#[test]
fn mqtt5_section_3_1_2_11_a_property_twice_is_a_protocol_error() {
    let twice = |one: Props| one.clone().raw(&one.bytes()[1..]);
    for one in [
        Props::new().u32(property::SESSION_EXPIRY, 1),
        Props::new().u16(property::RECEIVE_MAXIMUM, 10),
        Props::new().u32(property::MAXIMUM_PACKET_SIZE, 1000),
        Props::new().u16(property::TOPIC_ALIAS_MAXIMUM, 10),
        Props::new().byte(property::REQUEST_RESPONSE_INFO, 1),
        Props::new().byte(property::REQUEST_PROBLEM_INFO, 1),
        Props::new().string(property::AUTH_METHOD, "SCRAM-SHA-256"),
    ] {
        let connect = connect(&unique("c")).properties(twice(one));
        rejected(&connect.bytes(), &[reason::PROTOCOL_ERROR]);
    }
    let data_twice = Props::new()
        .string(property::AUTH_METHOD, "SCRAM-SHA-256")
        .string(property::AUTH_DATA, "a")
        .string(property::AUTH_DATA, "a");
    rejected(
        &connect(&unique("c")).properties(data_twice).bytes(),
        &[reason::PROTOCOL_ERROR],
    );
}

#[test]
fn mqtt5_section_3_1_2_11_values_out_of_range_are_protocol_errors() {
    for properties in [
        // 3.1.2.11.3 and 3.1.2.11.4: not 0.
        Props::new().u16(property::RECEIVE_MAXIMUM, 0),
        Props::new().u32(property::MAXIMUM_PACKET_SIZE, 0),
        // 3.1.2.11.6 and 3.1.2.11.7: 0 or 1.
        Props::new().byte(property::REQUEST_RESPONSE_INFO, 2),
        Props::new().byte(property::REQUEST_PROBLEM_INFO, 0xff),
        // 3.1.2.11.10: not without a method.
        Props::new().string(property::AUTH_DATA, "data"),
    ] {
        rejected(
            &connect(&unique("c")).properties(properties).bytes(),
            &[reason::PROTOCOL_ERROR],
        );
    }
}

#[test]
fn mqtt5_section_3_1_2_11_extreme_values_are_accepted() {
    let user = |n: u32| Props::new().pair(property::USER, "same key", &n.to_string());
    let properties = Props::new()
        .u32(property::SESSION_EXPIRY, 0)
        .u16(property::RECEIVE_MAXIMUM, 65535)
        .u32(property::MAXIMUM_PACKET_SIZE, u32::MAX)
        .u16(property::TOPIC_ALIAS_MAXIMUM, 65535)
        .byte(property::REQUEST_RESPONSE_INFO, 1)
        .byte(property::REQUEST_PROBLEM_INFO, 0)
        .raw(&user(1).bytes()[1..])
        .raw(&user(2).bytes()[1..])
        .pair(property::USER, "", "");
    client_with(properties).ping();
}

#[test]
fn mqtt5_3_1_2_23_the_session_is_stored_while_it_has_not_expired() {
    let id = unique("c");
    let topic = unique("stored/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 2);
    raw.cut();
    // The server must see the end before the message comes, or it will retransmit with DUP, which is right as well.
    let mut publisher = client();
    publisher.publish_qos1(&topic, "kept", 1);
    let (mut raw, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(connack.session_present);
    raw.recv_message(&topic, "kept");
}

#[test]
fn mqtt5_section_3_1_2_11_2_a_session_expiry_of_0_or_none_ends_with_the_connection() {
    for connect in [session(&unique("c"), 0), connect(&unique("c")).persistent()] {
        let topic = unique("ends/");
        let mut raw = Raw::connect(node(), &connect);
        raw.subscribe(&topic, 1);
        raw.disconnect();
        client().publish_qos1(&topic, "nobody", 1);
        let (mut raw, connack) = Raw::connect_for_connack(node(), &connect);
        assert!(!connack.session_present);
        expect_silence(&mut raw);
    }
}

#[test]
fn mqtt5_section_3_1_2_11_2_the_session_ends_when_the_interval_has_passed() {
    let id = unique("c");
    let raw = Raw::connect(node(), &session(&id, 1));
    raw.disconnect();
    let deadline = Instant::now() + DEADLINE;
    std::thread::sleep(Duration::from_millis(1100));
    // Asking resumes the session, so ask with a fresh one-second interval until it was gone.
    loop {
        let (raw, connack) = Raw::connect_for_connack(node(), &session(&id, 1));
        raw.disconnect();
        if !connack.session_present {
            break;
        }
        assert!(Instant::now() < deadline, "the session did not expire");
        std::thread::sleep(Duration::from_millis(1500));
    }
}

#[test]
fn mqtt5_section_3_1_2_11_2_the_interval_of_the_last_connection_holds() {
    let id = unique("c");
    Raw::connect(node(), &session(&id, 60)).disconnect();
    // Resumed with interval 0: gone at the end of this connection.
    let (raw, connack) = Raw::connect_for_connack(node(), &session(&id, 0));
    assert!(connack.session_present);
    raw.disconnect();
    let (_, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(!connack.session_present);
}

#[test]
fn mqtt5_3_1_2_24_a_packet_larger_than_the_clients_maximum_is_not_sent() {
    let topic = unique("size/");
    // 2 bytes of fixed header, topic, property length, payload.
    let largest = 2 + 2 + topic.len() + 1 + 20;
    let mut subscriber =
        client_with(Props::new().u32(property::MAXIMUM_PACKET_SIZE, largest as u32));
    subscriber.subscribe(&topic, 0);
    let mut publisher = client();
    publisher.publish(&topic, [b'x'; 21]);
    publisher.publish(&topic, [b'y'; 20]);
    let message = subscriber.recv_message(&topic, [b'y'; 20]);
    assert_eq!(message.bytes.len(), largest);
}

#[test]
fn mqtt5_3_1_2_25_a_message_too_large_to_send_counts_as_delivered() {
    let topic = unique("size/");
    let properties = Props::new()
        .u32(property::MAXIMUM_PACKET_SIZE, 100)
        .u16(property::RECEIVE_MAXIMUM, 1)
        .u32(property::SESSION_EXPIRY, 60);
    let id = unique("c");
    let connect = connect(&id).persistent().properties(properties);
    let mut subscriber = Raw::connect(node(), &connect);
    subscriber.subscribe(&topic, 2);
    let mut publisher = client();
    for qos in [1, 2] {
        publisher.send_publish(&Publish::new(&topic, [b'x'; 100]).qos(qos, 7));
    }
    publisher.send_publish(&Publish::new(&topic, "small").qos(1, 8));
    // With Receive Maximum 1, a place held by the discarded ones would keep this one back.
    let message = subscriber.recv_message(&topic, "small");
    subscriber.acknowledge(&message);
    subscriber.disconnect();
    // Nor are they kept for a later connection that allows more.
    let (mut subscriber, connack) = Raw::connect_for_connack(node(), &session(&id, 0));
    assert!(connack.session_present);
    expect_silence(&mut subscriber);
}

#[test]
fn mqtt5_3_1_2_25_a_queued_message_too_large_for_the_new_connection_is_discarded() {
    let topic = unique("size/");
    let id = unique("c");
    let mut subscriber = Raw::connect(node(), &session(&id, 60));
    subscriber.subscribe(&topic, 1);
    subscriber.disconnect();
    let mut publisher = client();
    publisher.publish_qos1(&topic, [b'x'; 100], 1);
    publisher.publish_qos1(&topic, "small", 2);
    let properties = Props::new()
        .u32(property::MAXIMUM_PACKET_SIZE, 100)
        .u16(property::RECEIVE_MAXIMUM, 1);
    let connect = connect(&id).persistent().properties(properties);
    let mut subscriber = Raw::connect(node(), &connect);
    subscriber.recv_message(&topic, "small");
}

#[test]
fn mqtt5_3_1_2_29_without_problem_information_there_are_no_reason_strings() {
    let mut raw = client_with(Props::new().byte(property::REQUEST_PROBLEM_INFO, 0));
    // All of these are rejected and would carry a reason string.
    raw.send(&Subscribe::new(1).filter("a/#/b", 0).bytes(5));
    let suback = raw.recv(kind::SUBACK);
    assert!(suback.payload[0] >= 0x80, "{suback:?}");
    raw.send(&Unsubscribe::new(2).filter(unique("none/")).bytes(5));
    let unsuback = raw.recv(kind::UNSUBACK);
    raw.send_publish(&Publish::new("$SYS/forbidden", "x").qos(1, 3));
    let puback = raw.recv(kind::PUBACK);
    raw.send_publish(&Publish::new("$SYS/forbidden", "x").qos(2, 4));
    let pubrec = raw.recv(kind::PUBREC);
    raw.send(&ack(kind::PUBREL, 777));
    let pubcomp = raw.recv(kind::PUBCOMP);
    assert_eq!(pubcomp.reason, reason::PACKET_ID_NOT_FOUND, "{pubcomp:?}");
    for packet in [suback, unsuback, puback, pubrec, pubcomp] {
        assert_eq!(packet.properties, [], "{packet:?}");
    }
}
