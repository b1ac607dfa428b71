//! Chapter 3.1.2: the connect flags and the fields they announce.

use super::{V311, expect_no_connack};
use crate::support::{Connect, Node, Raw, Will, frame, string, unique};

/// A CONNECT with these flags and exactly these payload fields.
fn connect(flags: u8, fields: &[&str]) -> Vec<u8> {
    let mut body = string("MQTT");
    body.extend([4, flags, 0, 0]);
    body.extend(fields.iter().flat_map(string));
    frame(0x10, &body)
}

const CLEAN: u8 = 0x02;
const WILL: u8 = 0x04;
const WILL_RETAIN: u8 = 0x20;
const PASSWORD: u8 = 0x40;
const USERNAME: u8 = 0x80;

#[test]
fn mqtt_3_1_2_3_the_reserved_connect_flag_closes_the_connection() {
    let connect = Connect::new(V311, unique("c"))
        .will(Will::new("w", "x").qos(1))
        .username("u")
        .password("p");
    let flags = connect.natural_flags();
    expect_no_connack("alone", &self::connect(CLEAN | 1, &[&unique("c")]));
    expect_no_connack("with all others", &connect.flags(flags | 1).bytes());
}

#[test]
fn mqtt_3_1_2_9_a_will_flag_without_will_fields_closes_the_connection() {
    let id = unique("c");
    expect_no_connack("neither topic nor message", &connect(CLEAN | WILL, &[&id]));
    expect_no_connack("no message", &connect(CLEAN | WILL, &[&id, "topic"]));
    expect_no_connack(
        "with user name and password instead",
        &connect(0xc6, &[&id, "user", "password"]),
    );
}

#[test]
fn mqtt_3_1_2_11_will_fields_without_a_will_flag_close_the_connection() {
    expect_no_connack(
        "topic and message",
        &connect(CLEAN, &[&unique("c"), "topic", "message"]),
    );
}

#[test]
fn mqtt_3_1_2_13_will_qos_without_a_will_flag_closes_the_connection() {
    for qos in 1..=3 {
        expect_no_connack("will QoS", &connect(CLEAN | qos << 3, &[&unique("c")]));
    }
}

#[test]
fn mqtt_3_1_2_14_will_qos_3_closes_the_connection() {
    expect_no_connack(
        "will QoS 3",
        &connect(CLEAN | WILL | 3 << 3, &[&unique("c"), "topic", "message"]),
    );
    for qos in 0..3 {
        let will = Will::new("nowhere", "x").qos(qos);
        Raw::connect(Node::shared(), &Connect::new(V311, unique("c")).will(will)).disconnect();
    }
}

#[test]
fn mqtt_3_1_2_15_will_retain_without_a_will_flag_closes_the_connection() {
    expect_no_connack(
        "will retain",
        &connect(CLEAN | WILL_RETAIN, &[&unique("c")]),
    );
}

#[test]
fn mqtt_3_1_2_18_a_user_name_without_its_flag_closes_the_connection() {
    expect_no_connack("user name", &connect(CLEAN, &[&unique("c"), "user"]));
}

#[test]
fn mqtt_3_1_2_19_a_user_name_flag_without_a_user_name_closes_the_connection() {
    expect_no_connack("no user name", &connect(CLEAN | USERNAME, &[&unique("c")]));
    expect_no_connack(
        "only one of two",
        &connect(CLEAN | USERNAME | PASSWORD, &[&unique("c"), "user"]),
    );
}

#[test]
fn mqtt_3_1_2_20_a_password_without_its_flag_closes_the_connection() {
    expect_no_connack(
        "password",
        &connect(CLEAN | USERNAME, &[&unique("c"), "user", "password"]),
    );
}

#[test]
fn mqtt_3_1_2_21_a_password_flag_without_a_password_closes_the_connection() {
    let mut short = connect(CLEAN | USERNAME | PASSWORD, &[&unique("c"), "user"]);
    short.push(0);
    short[1] += 1;
    expect_no_connack("half a password length", &short);
}

#[test]
fn mqtt_3_1_2_22_a_password_flag_without_a_user_name_flag_closes_the_connection() {
    expect_no_connack(
        "password only",
        &connect(CLEAN | PASSWORD, &[&unique("c"), "password"]),
    );
}

#[test]
fn mqtt_3_1_3_1_the_fields_come_in_the_order_of_the_specification() {
    let topic = super::topic();
    let mut subscriber = super::subscriber(&topic, 0);
    let raw = Raw::connect(
        Node::shared(),
        &Connect::new(V311, unique("c"))
            .will(Will::new(&topic, "message"))
            .username("user")
            .password(b"pass\0word"),
    );
    raw.cut();
    subscriber.recv_message(&topic, "message");
}

#[test]
fn mqtt_3_1_3_4_the_client_identifier_must_be_utf8() {
    expect_no_connack("0xFF", &Connect::new(V311, b"a\xff").bytes());
}

#[test]
fn mqtt_3_1_3_10_the_will_topic_must_be_utf8() {
    expect_no_connack(
        "0xFF",
        &Connect::new(V311, unique("c"))
            .will(Will::new(b"a\xff", "x"))
            .bytes(),
    );
}

#[test]
fn mqtt_3_1_3_10_the_will_topic_must_be_a_topic_name() {
    for bad in ["", "a/#", "+/a", "#"] {
        expect_no_connack(
            bad,
            &Connect::new(V311, unique("c"))
                .will(Will::new(bad, "x"))
                .bytes(),
        );
    }
}

#[test]
fn mqtt_3_1_3_11_the_user_name_must_be_utf8() {
    expect_no_connack(
        "0xFF",
        &Connect::new(V311, unique("c")).username(b"a\xff").bytes(),
    );
}
