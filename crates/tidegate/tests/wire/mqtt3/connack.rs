//! Chapter 3.2: CONNACK.

use super::{V311, persistent, topic};
use crate::support::{Connect, Node, Publish, Raw, kind, unique};

#[test]
fn mqtt_3_2_0_1_connack_is_the_first_packet_from_the_server() {
    // Even if messages wait for the session.
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    super::client().publish_qos1(&topic, "waiting", 1);
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&persistent(&id).bytes());
    raw.recv_exactly(&[0x20, 2, 1, 0]);
    raw.recv_message(&topic, "waiting");
}

#[test]
fn mqtt_3_2_0_1_the_server_says_nothing_before_connect() {
    let mut raw = Raw::open(Node::shared(), V311);
    assert!(
        raw.try_recv(std::time::Duration::from_millis(200))
            .is_none()
    );
}

#[test]
fn mqtt_3_2_2_1_session_present_is_0_with_clean_session() {
    let id = unique("c");
    super::resume(&id, false).disconnect();
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&Connect::new(V311, &id).bytes());
    raw.recv_exactly(&[0x20, 2, 0, 0]);
}

#[test]
fn mqtt_3_2_2_2_session_present_is_1_if_the_server_has_the_session() {
    let id = unique("c");
    super::resume(&id, false).disconnect();
    for _ in 0..3 {
        let mut raw = Raw::open(Node::shared(), V311);
        raw.send(&persistent(&id).bytes());
        raw.recv_exactly(&[0x20, 2, 1, 0]);
        raw.disconnect();
    }
}

#[test]
fn mqtt_3_2_2_3_session_present_is_0_if_the_server_has_no_session() {
    let id = unique("c");
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&persistent(&id).bytes());
    raw.recv_exactly(&[0x20, 2, 0, 0]);
    raw.disconnect();
    // A clean session in between leaves none.
    Raw::connect(Node::shared(), &Connect::new(V311, &id)).disconnect();
    super::resume(&id, false).disconnect();
}

#[test]
fn mqtt_3_2_2_4_session_present_is_0_in_a_rejection() {
    // For the level that is not known, even though the client has a session.
    let id = unique("c");
    super::resume(&id, false).disconnect();
    let mut raw = Raw::open(Node::shared(), V311);
    let mut connect = persistent(&id);
    connect.version = 2;
    raw.send(&connect.bytes());
    raw.recv_exactly(&[0x20, 2, 0, 1]);
    raw.expect_closed();
    super::resume(&id, true).ping();
}

#[test]
fn mqtt_3_2_2_5_a_rejection_closes_the_connection() {
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(&Connect::new(V311, "").persistent().bytes());
    let packet = raw.recv(kind::CONNACK);
    assert_eq!(packet.reason, 2);
    raw.send(&Publish::new("a", "x").qos(1, 1).bytes(V311));
    raw.expect_closed();
}
