//! Chapters 3.1.0 to 3.1.2.10, the fixed and variable header of CONNECT. Its properties, its payload and what follows
//! from it are in `connect_properties.rs`, `connect_payload.rs`, `connect_actions.rs`; the will is in `will.rs`.
//!
//! Bind clients alone: 3.1.2-20 (send PINGREQ in time), 3.1.2-21 (use the server's keep-alive).

use super::*;

#[test]
fn mqtt5_3_1_0_1_a_first_packet_other_than_connect_closes() {
    let first_packets = [
        Publish::new("a", "x").bytes(5),
        Publish::new("a", "x").qos(1, 1).bytes(5),
        ack(kind::PUBACK, 1),
        ack(kind::PUBREL, 1),
        Subscribe::new(1).filter("a", 0).bytes(5),
        Unsubscribe::new(1).filter("a").bytes(5),
        vec![0xc0, 0x00],
        vec![0xe0, 0x00],
        vec![0xf0, 0x00],
        vec![0x20, 0x03, 0x00, 0x00, 0x00],
    ];
    for packet in first_packets {
        let mut raw = Raw::open(node(), 5);
        raw.send(&packet);
        // Neither CONNACK, which answers a CONNECT, nor DISCONNECT [MQTT-3.14.0-1].
        raw.expect_closed();
    }
}

#[test]
fn mqtt5_3_1_0_2_a_second_connect_is_a_protocol_error() {
    let id = unique("c");
    let mut raw = Raw::connect(node(), &connect(&id));
    raw.send(&connect(&id).bytes());
    expect_disconnect_for(&mut raw, &[reason::PROTOCOL_ERROR]);
}

/// The server may tell that it does not speak this; it must close in any case. Which form of CONNACK the other side
/// understands is a guess.
fn expect_unsupported(bytes: &[u8]) {
    let mut raw = Raw::open(node(), 5);
    raw.send(bytes);
    let answer = raw.recv_bytes();
    let of_v3 = answer == [0x20, 0x02, 0x00, 0x01];
    let of_v5 = answer.starts_with(&[0x20])
        && answer[2] == 0
        && [reason::UNSUPPORTED_VERSION, reason::MALFORMED].contains(&answer[3]);
    assert!(answer.is_empty() || of_v3 || of_v5, "{answer:02x?}");
    raw.expect_closed();
}

#[test]
fn mqtt5_3_1_2_1_another_protocol_name_closes() {
    for name in ["mqtt", "MQTX", "MQTTT", "MQT", "", "MQIsdp", "HTTP"] {
        expect_unsupported(&connect(&unique("c")).protocol_name(name).bytes());
    }
}

#[test]
fn mqtt5_3_1_2_2_another_protocol_version_closes() {
    for version in [0_u8, 1, 2, 6, 7, 0x7f, 0xff] {
        let mut bytes = connect(&unique("c")).bytes();
        bytes[8] = version;
        expect_unsupported(&bytes);
    }
}

#[test]
fn mqtt5_section_3_1_2_2_a_later_protocol_version_is_answered() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let mut bytes = connect(&unique("c")).bytes();
    bytes[8] = 6;
    rejected(&bytes, &[reason::UNSUPPORTED_VERSION]);
}

#[test]
fn mqtt5_3_1_2_3_the_reserved_flag_is_checked() {
    let connect = connect(&unique("c"));
    let flags = connect.natural_flags() | 1;
    rejected(&connect.flags(flags).bytes(), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_1_2_4_clean_start_discards_the_session() {
    let id = unique("c");
    let topic = unique("clean/");
    let mut first = Raw::connect(node(), &session(&id, 60));
    first.subscribe(&topic, 1);
    first.disconnect();
    client().publish_qos1(&topic, "queued", 1);

    let mut clean = session(&id, 60);
    clean.clean = true;
    let (mut second, connack) = Raw::connect_for_connack(node(), &clean);
    assert!(!connack.session_present);
    client().publish_qos1(&topic, "not subscribed", 1);
    expect_silence(&mut second);
    second.disconnect();
    let (mut third, connack) = Raw::connect_for_connack(node(), &session(&id, 0));
    assert!(connack.session_present, "clean start made a new session");
    expect_silence(&mut third);
}

#[test]
fn mqtt5_3_1_2_5_without_clean_start_the_session_is_resumed() {
    let id = unique("c");
    let topic = unique("resume/");
    let mut first = Raw::connect(node(), &session(&id, 60));
    first.subscribe(&topic, 1);
    first.disconnect();
    let mut publisher = client();
    publisher.publish_qos1(&topic, "while away", 1);

    let (mut second, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(connack.session_present);
    let message = second.recv_message(&topic, "while away");
    assert!(!message.dup());
    second.acknowledge(&message);
    publisher.publish_qos1(&topic, "still subscribed", 2);
    second.recv_message(&topic, "still subscribed");
}

#[test]
fn mqtt5_3_1_2_6_without_a_session_a_new_one_is_made() {
    let id = unique("c");
    let (first, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(!connack.session_present);
    first.disconnect();
    let (_, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(connack.session_present);
}

/// A payload with these bytes after the client id, under these flags.
fn with_flags(flags: u8, after_client_id: &[u8]) -> Vec<u8> {
    let mut body = [&string("MQTT")[..], &[5, flags, 0, 0, 0]].concat();
    body.extend(string(unique("c")));
    body.extend_from_slice(after_client_id);
    frame(0x10, &body)
}

#[test]
fn mqtt5_3_1_2_9_a_will_flag_without_the_will_is_malformed() {
    let topic = [&[0][..], &string("will")].concat();
    for fields in [&[][..], &[0], &topic] {
        rejected(&with_flags(0x06, fields), &[reason::MALFORMED]);
    }
}

#[test]
fn mqtt5_3_1_2_9_a_will_without_its_flag_is_malformed() {
    let will = [&[0][..], &string("will"), &string("payload")].concat();
    rejected(&with_flags(0x02, &will), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_1_2_11_a_will_qos_without_the_will_flag_is_rejected() {
    for qos in [1, 2, 3] {
        rejected(
            &with_flags(0x02 | qos << 3, &[]),
            reason::MALFORMED_OR_PROTOCOL_ERROR,
        );
    }
}

#[test]
fn mqtt5_3_1_2_12_will_qos_3_is_malformed() {
    let will = Will::new(unique("will/"), "x").qos(3);
    rejected(
        &connect(&unique("c")).will(will).bytes(),
        &[reason::MALFORMED],
    );
}

#[test]
fn mqtt5_3_1_2_13_will_retain_without_the_will_flag_is_rejected() {
    rejected(
        &with_flags(0x02 | 0x20, &[]),
        reason::MALFORMED_OR_PROTOCOL_ERROR,
    );
}

#[test]
fn mqtt5_3_1_2_16_a_user_name_without_its_flag_is_malformed() {
    rejected(&with_flags(0x02, &string("user")), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_1_2_17_a_user_name_flag_without_the_name_is_malformed() {
    rejected(&with_flags(0x82, &[]), &[reason::MALFORMED]);
    rejected(&with_flags(0x82, &[0, 9, b'u']), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_1_2_18_a_password_without_its_flag_is_malformed() {
    let fields = [string("user"), string("password")].concat();
    rejected(&with_flags(0x82, &fields), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_1_2_19_a_password_flag_without_the_password_is_malformed() {
    rejected(&with_flags(0xc2, &string("user")), &[reason::MALFORMED]);
    rejected(&with_flags(0x42, &[]), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_section_3_1_2_9_a_password_without_a_user_name_is_well_formed() {
    let mut raw = Raw::open(node(), 5);
    let connack = raw.hand_shake(&connect(&unique("c")).password("secret"));
    assert!(
        [0, reason::BAD_CREDENTIALS, reason::NOT_AUTHORISED].contains(&connack.reason),
        "{connack:?}"
    );
}
