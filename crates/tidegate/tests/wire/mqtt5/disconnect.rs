//! Chapter 3.14, DISCONNECT.

use super::*;

/// A DISCONNECT with a reason code and properties.
fn disconnect(code: u8, properties: &Props) -> Vec<u8> {
    frame(0xe0, &[&[code][..], &properties.bytes()].concat())
}

#[test]
fn mqtt5_3_14_0_1_no_disconnect_comes_before_the_connack() {
    for bytes in [
        vec![0xff, 0xff, 0xff, 0xff, 0xff],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        connect(&unique("c")).flags(0x01).bytes(),
        connect("").protocol_name("XXXX").bytes(),
    ] {
        let mut raw = Raw::open(node(), 5);
        raw.send(&bytes);
        // A CONNACK of whatever version, or nothing.
        let answer = raw.recv_bytes();
        assert!(answer.is_empty() || answer[0] == 0x20, "{answer:02x?}");
        raw.expect_closed();
    }
}

#[test]
fn mqtt5_3_14_1_1_reserved_flags_are_malformed() {
    for flags in [1, 2, 4, 8, 15] {
        breaks(&[0xe0 | flags, 0x00], &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_3_14_2_1_a_code_that_disconnect_does_not_have_is_rejected() {
    for code in [0x01, 0x03, 0x05, 0x18, 0x7f, 0x84, 0x85, 0xff] {
        breaks(&[0xe0, 0x01, code], reason::MALFORMED_OR_PROTOCOL_ERROR);
    }
}

#[test]
fn mqtt5_3_14_2_1_every_code_of_a_client_is_understood() {
    for code in [
        0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
    ] {
        let mut raw = client();
        raw.send(&[0xe0, 0x01, code]);
        raw.expect_closed();
    }
}

#[test]
fn mqtt5_3_14_2_2_the_server_sends_no_session_expiry() {
    let id = unique("c");
    let mut first = Raw::connect(node(), &session(&id, 60));
    let _second = Raw::connect(node(), &session(&id, 60));
    let packet = expect_disconnect_for(&mut first, &[reason::TAKEN_OVER]);
    for (id, _) in &packet.properties {
        assert!(
            [
                property::REASON_STRING,
                property::USER,
                property::SERVER_REFERENCE
            ]
            .contains(id),
            "{packet:?}"
        );
    }
}

#[test]
fn mqtt5_3_14_2_3_a_disconnect_keeps_to_the_clients_maximum_packet_size() {
    // 3.14.2-4 says the same of user properties.
    let mut raw = client_with(Props::new().u32(property::MAXIMUM_PACKET_SIZE, 16));
    raw.send(&Publish::new("a", "x").qos(3, 1).bytes(5));
    let packet = expect_disconnect_for(&mut raw, &[reason::MALFORMED]);
    assert!(packet.bytes.len() <= 16, "{packet:?}");
}

#[test]
fn mqtt5_section_3_14_2_2_2_a_session_expiry_of_0_ends_the_session() {
    let id = unique("c");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.send(&disconnect(
        0,
        &Props::new().u32(property::SESSION_EXPIRY, 0),
    ));
    raw.expect_closed();
    let (_, connack) = Raw::connect_for_connack(node(), &session(&id, 0));
    assert!(!connack.session_present);
}

#[test]
fn mqtt5_section_3_14_2_2_2_a_session_expiry_after_0_in_connect_is_a_protocol_error() {
    for connect in [connect(&unique("c")), session(&unique("c"), 0)] {
        let mut raw = Raw::connect(node(), &connect);
        raw.send(&disconnect(
            0,
            &Props::new().u32(property::SESSION_EXPIRY, 1),
        ));
        expect_disconnect_for(&mut raw, &[reason::PROTOCOL_ERROR]);
    }
    // 0 after 0 changes nothing and is allowed.
    let mut raw = client();
    raw.send(&disconnect(
        0,
        &Props::new().u32(property::SESSION_EXPIRY, 0),
    ));
    raw.expect_closed();
}

#[test]
fn mqtt5_section_3_14_2_2_wrong_properties_are_rejected() {
    let twice = Props::new()
        .string(property::REASON_STRING, "a")
        .string(property::REASON_STRING, "b");
    breaks(&disconnect(0, &twice), &[reason::PROTOCOL_ERROR]);
    let expiry = Props::new().u32(property::SESSION_EXPIRY, 0);
    let twice = expiry.clone().raw(&expiry.bytes()[1..]);
    breaks(&disconnect(0, &twice), &[reason::PROTOCOL_ERROR]);
    let foreign = Props::new().u16(property::RECEIVE_MAXIMUM, 1);
    breaks(&disconnect(0, &foreign), &[reason::MALFORMED]);
    // Something after the properties.
    breaks(&[0xe0, 0x03, 0x00, 0x00, 0x00], &[reason::MALFORMED]);
}

#[test]
fn mqtt5_section_3_14_2_2_reason_string_and_user_properties_are_understood() {
    let properties = Props::new()
        .string(property::REASON_STRING, "done")
        .pair(property::USER, "a", "1")
        .pair(property::USER, "a", "2");
    let mut raw = client();
    raw.send(&disconnect(0, &properties));
    raw.expect_closed();
}

#[test]
fn mqtt5_3_14_4_1_nothing_follows_the_servers_disconnect() {
    let topic = unique("after/");
    let id = unique("c");
    let mut first = Raw::connect(node(), &session(&id, 60));
    first.subscribe(&topic, 1);
    let mut publisher = client();
    let mut second = Raw::connect(node(), &session(&id, 60));
    publisher.publish_qos1(&topic, "for the second connection", 1);
    second.recv_message(&topic, "for the second connection");
    // Requires that the DISCONNECT is the last and, before the message, the only packet.
    expect_disconnect_for(&mut first, &[reason::TAKEN_OVER]);
}

#[test]
fn mqtt5_3_14_4_2_the_server_closes_after_a_disconnect() {
    // Of its own...
    breaks(
        &Publish::new("a", "x").qos(3, 1).bytes(5),
        &[reason::MALFORMED],
    );
    // ... and of the client.
    for form in [
        &[0xe0, 0x00][..],
        &[0xe0, 0x01, 0x00],
        &[0xe0, 0x02, 0x00, 0x00],
    ] {
        let mut raw = client();
        raw.send(form);
        raw.expect_closed();
    }
}

#[test]
fn mqtt5_section_3_14_4_nothing_after_the_clients_disconnect_is_processed() {
    let topic = unique("after/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 0);
    let mut raw = client();
    let publish = Publish::new(&topic, "too late").bytes(5);
    raw.send(&[vec![0xe0, 0x00], publish].concat());
    raw.expect_closed();
    expect_silence(&mut subscriber);
}
