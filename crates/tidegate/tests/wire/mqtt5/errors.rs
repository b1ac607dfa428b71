//! Chapter 4.13, handling errors. What is malformed or a protocol error is tested packet by packet in the other files; here
//! is what holds for all of them.

use super::*;

#[test]
fn mqtt5_4_13_1_1_an_error_is_told_and_the_connection_closed() {
    for (bytes, code) in [
        (Publish::new("a", "x").qos(3, 1).bytes(5), reason::MALFORMED),
        (connect("again").bytes(), reason::PROTOCOL_ERROR),
        (
            Publish::new("a", "x")
                .properties(Props::new().u16(property::TOPIC_ALIAS, 0))
                .bytes(5),
            reason::TOPIC_ALIAS_INVALID,
        ),
    ] {
        breaks(&bytes, &[code]);
    }
}

#[test]
fn mqtt5_4_13_1_1_packets_before_the_error_are_processed_and_none_after_it() {
    let topic = unique("error/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 0);
    let mut raw = client();
    let packets = [
        Publish::new(&topic, "before").bytes(5),
        Publish::new(&topic, "wrong").qos(3, 1).bytes(5),
        Publish::new(&topic, "after").bytes(5),
    ];
    raw.send(&packets.concat());
    expect_disconnect_for(&mut raw, &[reason::MALFORMED]);
    subscriber.recv_message(&topic, "before");
    expect_silence(&mut subscriber);
}

#[test]
fn mqtt5_4_13_2_1_a_connack_with_an_error_closes() {
    let connect = connect(&unique("c")).properties(Props::new().u16(property::RECEIVE_MAXIMUM, 0));
    rejected(&connect.bytes(), &[reason::PROTOCOL_ERROR]);
}

#[test]
fn mqtt5_4_13_2_1_a_disconnect_with_an_error_closes() {
    breaks(&[0xc1, 0x00], &[reason::MALFORMED]);
}

#[test]
fn mqtt5_section_4_13_2_an_error_of_one_client_harms_no_other() {
    let topic = unique("error/");
    let (mut subscriber, mut publisher) = pair(&topic);
    for number in 0..20_u8 {
        let mut raw = client();
        raw.send(&[number << 4 | 0x0f, 0xff, 0xff, 0xff, 0xff]);
        raw.packets_until_closed();
        publisher.publish(&topic, [number]);
        subscriber.recv_message(&topic, [number]);
    }
}

#[test]
fn mqtt5_section_4_13_the_session_survives_an_error_of_its_client() {
    let id = unique("c");
    let topic = unique("error/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 1);
    raw.send(&Publish::new(&topic, "wrong").qos(3, 1).bytes(5));
    expect_disconnect_for(&mut raw, &[reason::MALFORMED]);
    client().publish_qos1(&topic, "kept", 1);
    let (mut raw, connack) = Raw::connect_for_connack(node(), &session(&id, 0));
    assert!(connack.session_present);
    raw.recv_message(&topic, "kept");
}
