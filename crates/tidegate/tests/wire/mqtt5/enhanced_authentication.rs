//! Chapter 4.12, enhanced authentication and re-authentication, with SCRAM-SHA-256.
//!
//! Bind clients alone: 4.12.0-3 (answer with 0x18), 4.12.0-7 (no AUTH without a method; the server's side is in `auth.rs`),
//! 4.12.1-1 (keep the method; the server's side is here).

use super::connect_actions::node_with_users;
use super::scram::{Exchange, METHOD};
use super::*;

const CONTINUE: u8 = 0x18;
const RE_AUTHENTICATE: u8 = 0x19;

fn method_and_data(data: impl AsRef<[u8]>) -> Props {
    Props::new()
        .string(property::AUTH_METHOD, METHOD)
        .string(property::AUTH_DATA, data)
}

fn auth(code: u8, properties: &Props) -> Vec<u8> {
    frame(0xf0, &[&[code][..], &properties.bytes()].concat())
}

fn connect_by_scram(exchange: &Exchange) -> Connect {
    connect(&unique("c")).properties(method_and_data(exchange.client_first()))
}

fn data(packet: &Packet) -> Vec<u8> {
    match packet.property(property::AUTH_DATA) {
        Some(Value::Binary(data)) => data.clone(),
        other => panic!("authentication data {other:?}: {packet:?}"),
    }
}

fn expect_method(packet: &Packet) {
    assert_eq!(
        packet.property(property::AUTH_METHOD),
        Some(&Value::String(METHOD.into())),
        "{packet:?}"
    );
}

/// Sends the CONNECT and reads the server's first message.
fn begin(node: &Node, exchange: &Exchange) -> (Raw, Packet) {
    let mut raw = Raw::open(node, 5);
    raw.send(&connect_by_scram(exchange).bytes());
    let challenge = raw.recv(kind::AUTH);
    assert_eq!(challenge.reason, CONTINUE, "{challenge:?}");
    expect_method(&challenge);
    (raw, challenge)
}

/// A connection authenticated by SCRAM.
fn authenticated(node: &Node, user: &str, password: &str) -> Raw {
    let mut exchange = Exchange::new(user, password, &unique("nonce"));
    let (mut raw, challenge) = begin(node, &exchange);
    let answer = exchange.client_final(&data(&challenge));
    raw.send(&auth(CONTINUE, &method_and_data(answer)));
    let connack = raw.recv(kind::CONNACK);
    assert_eq!(connack.reason, 0, "{connack:?}");
    expect_method(&connack);
    assert_eq!(data(&connack), exchange.server_final().into_bytes());
    raw
}

#[test]
fn mqtt5_section_4_12_a_client_authenticates_by_scram() {
    let Some(node) = node_with_users() else {
        return;
    };
    for (user, password) in [("alice", "wonderland"), ("bob", "pass\u{f6}")] {
        let mut raw = authenticated(node, user, password);
        let topic = unique("scram/");
        raw.subscribe(&topic, 1);
        raw.publish(&topic, "let in");
        raw.recv_message(&topic, "let in");
    }
}

#[test]
fn mqtt5_4_12_0_1_an_unknown_method_is_rejected() {
    let Some(node) = node_with_users() else {
        return;
    };
    for method in ["GS2-KRB5", "SCRAM-SHA-1", "scram-sha-256", ""] {
        let properties = Props::new()
            .string(property::AUTH_METHOD, method)
            .string(property::AUTH_DATA, "n,,n=alice,r=nonce");
        let mut raw = Raw::open(node, 5);
        raw.send(&connect(&unique("c")).properties(properties).bytes());
        expect_rejected(&mut raw, &[reason::BAD_AUTH_METHOD]);
    }
}

#[test]
fn mqtt5_4_12_0_2_the_servers_auth_has_continue_as_its_code() {
    let Some(node) = node_with_users() else {
        return;
    };
    // `begin` requires the code and the method.
    let (_, challenge) = begin(node, &Exchange::new("alice", "", "some-nonce"));
    assert_eq!(challenge.properties.len(), 2, "{challenge:?}");
}

#[test]
fn mqtt5_4_12_0_4_a_wrong_proof_is_rejected_and_closed() {
    let Some(node) = node_with_users() else {
        return;
    };
    let mut exchange = Exchange::new("alice", "wrong password", &unique("nonce"));
    let (mut raw, challenge) = begin(node, &exchange);
    let answer = exchange.client_final(&data(&challenge));
    raw.send(&auth(CONTINUE, &method_and_data(answer)));
    let rejections = [reason::BAD_CREDENTIALS, reason::NOT_AUTHORISED];
    expect_rejected(&mut raw, &rejections);
}

#[test]
fn mqtt5_4_12_0_4_an_unknown_user_is_rejected_and_closed() {
    let Some(node) = node_with_users() else {
        return;
    };
    let exchange = Exchange::new("nobody", "wonderland", &unique("nonce"));
    let mut raw = Raw::open(node, 5);
    raw.send(&connect_by_scram(&exchange).bytes());
    // Answering as if the user existed is allowed and keeps the names of users secret.
    let next = raw.recv_packet();
    if next.kind == kind::AUTH {
        let mut exchange = exchange;
        let answer = exchange.client_final(&data(&next));
        raw.send(&auth(CONTINUE, &method_and_data(answer)));
        let rejections = [reason::BAD_CREDENTIALS, reason::NOT_AUTHORISED];
        expect_rejected(&mut raw, &rejections);
    } else {
        assert_eq!(next.kind, kind::CONNACK);
        assert!(next.reason >= 0x80, "{next:?}");
        raw.expect_closed();
    }
}

#[test]
fn mqtt5_4_12_0_4_messages_that_are_no_scram_are_rejected() {
    let Some(node) = node_with_users() else {
        return;
    };
    let not_allowed = [
        reason::BAD_CREDENTIALS,
        reason::NOT_AUTHORISED,
        reason::MALFORMED,
        reason::PROTOCOL_ERROR,
        0x80,
    ];
    // Channel binding that is not there, no nonce, no name, nothing at all, no text.
    for first in [
        &b"p=tls-unique,,n=alice,r=nonce"[..],
        b"n,,n=alice",
        b"n,,r=nonce",
        b"",
        b"\xff\xff",
        b"n,,n=alice,r=",
    ] {
        let mut raw = Raw::open(node, 5);
        let connect = connect(&unique("c")).properties(method_and_data(first));
        raw.send(&connect.bytes());
        expect_rejected(&mut raw, &not_allowed);
    }
    // A wrong nonce, a wrong channel, no proof, a proof that is too short, no base64.
    let mut exchange = Exchange::new("alice", "wonderland", "own-nonce");
    let (_, challenge) = begin(node, &exchange);
    let right = exchange.client_final(&data(&challenge));
    let proof_at = right.find(",p=").unwrap();
    for wrong in [
        right.clone(),
        right.replace("c=biws", "c=eSws"),
        right[..proof_at].to_owned(),
        format!("{},p=AAAA", &right[..proof_at]),
        format!("{},p=*", &right[..proof_at]),
    ] {
        let (mut raw, challenge) = begin(node, &Exchange::new("alice", "", "own-nonce"));
        let own_nonce = right.split("r=").nth(1).unwrap().split(',').next().unwrap();
        let challenge = String::from_utf8(data(&challenge)).unwrap();
        assert!(!challenge.contains(own_nonce), "a nonce used twice");
        raw.send(&auth(CONTINUE, &method_and_data(wrong)));
        expect_rejected(&mut raw, &not_allowed);
    }
}

#[test]
fn mqtt5_4_12_0_5_the_method_of_the_connect_holds_for_every_auth() {
    let Some(node) = node_with_users() else {
        return;
    };
    let mut exchange = Exchange::new("alice", "wonderland", &unique("nonce"));
    let (mut raw, challenge) = begin(node, &exchange);
    let answer = exchange.client_final(&data(&challenge));
    let other_method = Props::new()
        .string(property::AUTH_METHOD, "SCRAM-SHA-1")
        .string(property::AUTH_DATA, answer);
    raw.send(&auth(CONTINUE, &other_method));
    expect_rejected(&mut raw, &[reason::PROTOCOL_ERROR, reason::BAD_AUTH_METHOD]);
}

#[test]
fn mqtt5_4_12_0_6_without_a_method_there_is_no_auth_and_no_method() {
    let Some(node) = node_with_users() else {
        return;
    };
    let connect = connect(&unique("c"))
        .username("alice")
        .password("wonderland");
    let mut raw = Raw::open(node, 5);
    let connack = raw.hand_shake(&connect);
    assert_eq!(connack.reason, 0);
    assert_eq!(connack.property(property::AUTH_METHOD), None);
    assert_eq!(connack.property(property::AUTH_DATA), None);
    raw.ping();
}

#[test]
fn mqtt5_3_1_2_30_other_packets_during_the_exchange_are_rejected() {
    let Some(node) = node_with_users() else {
        return;
    };
    let packets = [
        Publish::new("a", "x").bytes(5),
        Subscribe::new(1).filter("a", 0).bytes(5),
        vec![0xc0, 0x00],
        auth(RE_AUTHENTICATE, &method_and_data("n,,n=alice,r=x")),
        auth(0x00, &method_and_data("")),
    ];
    for packet in packets {
        let (mut raw, _) = begin(node, &Exchange::new("alice", "wonderland", "nonce-1"));
        raw.send(&packet);
        expect_rejected(&mut raw, &[reason::PROTOCOL_ERROR]);
    }
    // DISCONNECT is allowed.
    let (mut raw, _) = begin(node, &Exchange::new("alice", "wonderland", "nonce-2"));
    raw.send(&[0xe0, 0x00]);
    raw.expect_closed();
}

#[test]
fn mqtt5_section_4_12_1_a_client_authenticates_again() {
    let Some(node) = node_with_users() else {
        return;
    };
    let mut raw = authenticated(node, "alice", "wonderland");
    let topic = unique("again/");
    raw.subscribe(&topic, 0);
    for _ in 0..2 {
        let mut exchange = Exchange::new("alice", "wonderland", &unique("nonce"));
        let first = method_and_data(exchange.client_first());
        raw.send(&auth(RE_AUTHENTICATE, &first));
        let challenge = raw.recv(kind::AUTH);
        assert_eq!(challenge.reason, CONTINUE);
        expect_method(&challenge);
        // Other packets flow meanwhile, under the authentication before.
        raw.publish(&topic, "meanwhile");
        raw.recv_message(&topic, "meanwhile");
        let answer = exchange.client_final(&data(&challenge));
        raw.send(&auth(CONTINUE, &method_and_data(answer)));
        let success = raw.recv(kind::AUTH);
        assert_eq!(success.reason, 0, "{success:?}");
        expect_method(&success);
        assert_eq!(data(&success), exchange.server_final().into_bytes());
        raw.ping();
    }
}

#[test]
fn mqtt5_4_12_1_1_another_method_for_re_authentication_is_a_protocol_error() {
    let Some(node) = node_with_users() else {
        return;
    };
    let mut raw = authenticated(node, "alice", "wonderland");
    let properties = Props::new()
        .string(property::AUTH_METHOD, "SCRAM-SHA-1")
        .string(property::AUTH_DATA, "n,,n=alice,r=nonce");
    raw.send(&auth(RE_AUTHENTICATE, &properties));
    expect_disconnect_for(&mut raw, &[reason::PROTOCOL_ERROR, reason::BAD_AUTH_METHOD]);
}

#[test]
fn mqtt5_4_12_1_2_a_failed_re_authentication_disconnects() {
    let Some(node) = node_with_users() else {
        return;
    };
    let mut raw = authenticated(node, "alice", "wonderland");
    let mut exchange = Exchange::new("alice", "wrong password", &unique("nonce"));
    let first = method_and_data(exchange.client_first());
    raw.send(&auth(RE_AUTHENTICATE, &first));
    let challenge = raw.recv(kind::AUTH);
    let answer = exchange.client_final(&data(&challenge));
    raw.send(&auth(CONTINUE, &method_and_data(answer)));
    expect_disconnect_for(&mut raw, &[reason::BAD_CREDENTIALS, reason::NOT_AUTHORISED]);
}

#[test]
fn mqtt5_section_4_12_1_an_answer_without_a_question_is_a_protocol_error() {
    let Some(node) = node_with_users() else {
        return;
    };
    for code in [0x00, CONTINUE] {
        let mut raw = authenticated(node, "alice", "wonderland");
        raw.send(&auth(code, &method_and_data("c=biws,r=x,p=AAAA")));
        expect_disconnect_for(&mut raw, &[reason::PROTOCOL_ERROR]);
    }
}
