//! Chapter 3.1.4, what follows from a CONNECT. The server may do without its checks, but here they are made.

use super::scram::credential;
use super::*;

/// A node where nobody gets in without a password.
pub(crate) fn node_with_users() -> Option<&'static Node> {
    if external().is_some() {
        testkit::report_skipped("needs a node of its own");
        return None;
    }
    let config = format!(
        "[[listener]]\nname = \"mqtt\"\nprotocol = \"mqtt\"\nbind = \"127.0.0.1:0\"\nallow_anonymous = false\n\
         [[user]]\nusername = \"alice\"\ncredential = \"{}\"\n\
         [[user]]\nusername = \"bob\"\ncredential = \"{}\"\n",
        credential(b"wonderland", b"salt of alice", 4096),
        credential("pass\u{f6}".as_bytes(), b"another salt", 5000),
    );
    Some(Node::shared_with_config(&[], &config))
}

#[test]
fn mqtt5_3_1_4_1_a_connect_that_does_not_match_its_format_is_rejected() {
    let right = connect(&unique("c")).bytes();
    let body = &right[2..];
    // Cut short at every place past the protocol version.
    for length in 9..body.len() {
        rejected(&frame(0x10, &body[..length]), &[reason::MALFORMED]);
    }
    // Something after the end.
    rejected(&frame(0x10, &[body, b"x"].concat()), &[reason::MALFORMED]);
}

#[test]
fn mqtt5_3_1_4_1_a_connect_cut_short_in_the_protocol_name_closes() {
    let right = connect(&unique("c")).bytes();
    for length in 0..9 {
        let mut raw = Raw::open(node(), 5);
        raw.send(&frame(0x10, &right[2..2 + length]));
        for packet in raw.packets_until_closed() {
            assert_eq!(
                (packet.kind, packet.reason),
                (kind::CONNACK, reason::MALFORMED),
                "{packet:?}"
            );
        }
    }
}

#[test]
fn mqtt5_3_1_4_2_wrong_credentials_are_rejected_and_closed() {
    let Some(node) = node_with_users() else {
        return;
    };
    let id = unique("c");
    for connect in [
        connect(&id).username("alice").password("wrong"),
        connect(&id).username("alice").password(""),
        connect(&id).username("alice"),
        connect(&id).username("nobody").password("wonderland"),
    ] {
        let mut raw = Raw::open(node, 5);
        raw.send(&connect.bytes());
        expect_rejected(&mut raw, &[reason::BAD_CREDENTIALS, reason::NOT_AUTHORISED]);
    }
    let mut raw = Raw::open(node, 5);
    raw.send(&connect(&id).bytes());
    expect_rejected(&mut raw, &[reason::NOT_AUTHORISED]);
    // Each user has a client id of its own, because the session of alice may outlast her connection for a moment.
    for (name, password) in [("alice", "wonderland"), ("bob", "pass\u{f6}")] {
        let connect = connect(&unique("c")).username(name).password(password);
        Raw::connect(node, &connect).ping();
    }
}

#[test]
fn mqtt5_3_1_4_3_a_second_connection_takes_the_session_over() {
    let id = unique("c");
    let mut first = Raw::connect(node(), &session(&id, 60));
    let (mut second, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(connack.session_present);
    expect_disconnect_for(&mut first, &[reason::TAKEN_OVER]);
    second.ping();
}

#[test]
fn mqtt5_3_1_4_3_a_session_is_taken_over_many_times() {
    let id = unique("c");
    let topic = unique("taken/");
    let mut current = Raw::connect(node(), &session(&id, 60));
    current.subscribe(&topic, 1);
    let mut publisher = client();
    for round in 0..10 {
        let (next, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
        assert!(connack.session_present, "round {round}");
        expect_disconnect_for(&mut current, &[reason::TAKEN_OVER]);
        current = next;
        let payload = round.to_string();
        publisher.publish_qos1(&topic, &payload, 1);
        let message = current.recv_message(&topic, &payload);
        assert!(!message.dup());
        current.acknowledge(&message);
        // The PUBACK is processed before the next connection takes over.
        current.ping();
    }
}

#[test]
fn mqtt5_3_1_4_4_clean_start_holds_when_a_session_is_taken_over() {
    let id = unique("c");
    let topic = unique("clean/");
    let mut first = Raw::connect(node(), &session(&id, 60));
    first.subscribe(&topic, 1);
    let (mut second, connack) = Raw::connect_for_connack(node(), &connect(&id));
    assert!(!connack.session_present);
    expect_disconnect_for(&mut first, &[reason::TAKEN_OVER]);
    client().publish_qos1(&topic, "x", 1);
    expect_silence(&mut second);
}

#[test]
fn mqtt5_section_3_1_4_a_session_without_expiry_ends_when_it_is_taken_over() {
    // "If the existing Client's Session Expiry Interval is 0 ... the original Session is ended on the takeover".
    let id = unique("c");
    let mut first = Raw::connect(node(), &session(&id, 0));
    let (_second, connack) = Raw::connect_for_connack(node(), &session(&id, 60));
    assert!(!connack.session_present);
    expect_disconnect_for(&mut first, &[reason::TAKEN_OVER]);
}

#[test]
fn mqtt5_3_1_4_5_a_connect_is_acknowledged_with_success() {
    let (_, connack) = Raw::connect_for_connack(node(), &connect(&unique("c")));
    assert_eq!((connack.reason, connack.session_present), (0, false));
}

#[test]
fn mqtt5_3_1_4_6_after_a_rejected_connect_nothing_is_processed() {
    let topic = unique("rejected/");
    let mut subscriber = client();
    subscriber.subscribe(&topic, 0);
    // Rejected for its Receive Maximum.
    let invalid = connect(&unique("c")).properties(Props::new().u16(property::RECEIVE_MAXIMUM, 0));
    let publish = Publish::new(&topic, "must not arrive").retain().bytes(5);
    rejected(
        &[invalid.bytes(), publish].concat(),
        &[reason::PROTOCOL_ERROR],
    );
    expect_silence(&mut subscriber);
    assert_eq!(retained(&topic), []);
}

#[test]
fn mqtt5_section_3_1_4_packets_may_follow_a_connect_at_once() {
    let topic = unique("pipelined/");
    let mut raw = Raw::open(node(), 5);
    let packets = [
        connect(&unique("c")).bytes(),
        Subscribe::new(1).filter(&topic, 1).bytes(5),
        Publish::new(&topic, "first").bytes(5),
        Publish::new(&topic, "second").qos(1, 2).bytes(5),
        vec![0xc0, 0x00],
    ];
    raw.send(&packets.concat());
    assert_eq!(raw.recv(kind::CONNACK).reason, 0);
    let mut kinds = Vec::new();
    let mut payloads = Vec::new();
    for _ in 0..5 {
        let packet = raw.recv_packet();
        kinds.push(packet.kind);
        if packet.kind == kind::PUBLISH {
            payloads.push(packet.text().to_owned());
        }
    }
    kinds.sort_unstable();
    assert_eq!(
        kinds,
        [
            kind::PUBLISH,
            kind::PUBLISH,
            kind::PUBACK,
            kind::SUBACK,
            kind::PINGRESP
        ]
    );
    assert_eq!(payloads, ["first", "second"]);
}
