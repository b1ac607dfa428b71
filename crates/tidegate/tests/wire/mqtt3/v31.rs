//! MQTT 3.1 (protocol name MQIsdp, level 3): the basics, and where it differs from 3.1.1.

use super::{V311, topic};
use crate::support::{
    Connect, Node, Publish, Raw, Subscribe, Unsubscribe, Will, ack, kind, unique,
};

const V31: u8 = 3;

fn client() -> Raw {
    Raw::client(Node::shared(), V31)
}

#[test]
fn mqtt_3_1_connect_with_mqisdp_is_accepted() {
    let mut raw = Raw::open(Node::shared(), V31);
    let connect = Connect::new(V31, unique("c"))
        .username("user")
        .password("password")
        .keep_alive(60);
    raw.send(&connect.will(Will::new("w", "x")).bytes());
    raw.recv_exactly(&[0x20, 2, 0, 0]);
    raw.ping();
    raw.disconnect();
}

#[test]
fn mqtt_3_1_connack_has_no_session_present_flag() {
    let id = unique("c");
    let connect = Connect::new(V31, &id).persistent();
    for _ in 0..2 {
        let mut raw = Raw::open(Node::shared(), V31);
        raw.send(&connect.bytes());
        // The first byte of the variable header is reserved in 3.1.
        raw.recv_exactly(&[0x20, 2, 0, 0]);
        raw.disconnect();
    }
    Raw::connect(Node::shared(), &Connect::new(V31, &id)).disconnect();
}

#[test]
fn mqtt_3_1_an_empty_client_identifier_is_rejected_with_code_2() {
    let mut raw = Raw::open(Node::shared(), V31);
    raw.send(&Connect::new(V31, "").bytes());
    raw.recv_exactly(&[0x20, 2, 0, 2]);
    raw.expect_closed();
}

#[test]
fn mqtt_3_1_subscribe_publish_and_unsubscribe_at_every_qos() {
    let topic = topic();
    let mut raw = client();
    raw.send(&Subscribe::new(0x0102).filter(&topic, 2).bytes(V31));
    raw.recv_exactly(&[0x90, 3, 1, 2, 2]);
    let mut publisher = client();
    publisher.publish(&topic, "0");
    publisher.publish_qos1(&topic, "1", 5);
    publisher.publish_qos2(&topic, "2", 6);
    for (qos, text) in [(0, "0"), (1, "1"), (2, "2")] {
        let message = raw.recv_message(&topic, text);
        assert_eq!(
            (message.qos(), message.retain(), message.dup()),
            (qos, false, false)
        );
        raw.acknowledge(&message);
    }
    raw.send(&Unsubscribe::new(0x0304).filter(&topic).bytes(V31));
    raw.recv_exactly(&[0xb0, 2, 3, 4]);
    publisher.publish(&topic, "gone");
    raw.ping();
}

#[test]
fn mqtt_3_1_a_session_is_kept_and_its_messages_sent_again() {
    let (id, topic) = (unique("c"), topic());
    let connect = Connect::new(V31, &id).persistent();
    let mut raw = Raw::connect(Node::shared(), &connect);
    raw.subscribe(&topic, 2);
    let mut publisher = client();
    publisher.publish_qos1(&topic, "in flight", 1);
    let first = raw.recv_message(&topic, "in flight");
    raw.cut();
    publisher.publish_qos2(&topic, "away", 2);
    let mut raw = Raw::connect(Node::shared(), &connect);
    raw.recv_exactly(
        &Publish::new(&topic, "in flight")
            .qos(1, first.id())
            .dup()
            .bytes(V31),
    );
    raw.send(&ack(kind::PUBACK, first.id()));
    let away = raw.recv_message(&topic, "away");
    raw.acknowledge(&away);
    raw.ping();
}

#[test]
fn mqtt_3_1_wills_and_retained_messages() {
    let topic = topic();
    let mut watcher = client();
    watcher.subscribe(&topic, 1);
    let will = Will::new(&topic, "gone").qos(1).retain();
    Raw::connect(Node::shared(), &Connect::new(V31, unique("c")).will(will)).cut();
    let live = watcher.recv_message(&topic, "gone");
    assert!(!live.retain());
    let mut late = client();
    late.subscribe(&topic, 0);
    assert!(late.recv_message(&topic, "gone").retain());
}

#[test]
fn mqtt_3_1_and_other_versions_exchange_messages() {
    let topic = topic();
    let mut subscribers: Vec<Raw> = [V31, V311, 5]
        .into_iter()
        .map(|version| Raw::client(Node::shared(), version))
        .collect();
    for raw in &mut subscribers {
        raw.subscribe(&topic, 1);
    }
    for version in [V31, V311, 5] {
        let mut publisher = Raw::client(Node::shared(), version);
        publisher.publish_qos1(&topic, format!("from {version}"), 1);
        for raw in &mut subscribers {
            let message = raw.recv_message(&topic, format!("from {version}"));
            raw.acknowledge(&message);
        }
    }
}

#[test]
fn mqtt_3_1_a_second_connection_of_a_client_ends_the_first() {
    let connect = Connect::new(V31, unique("c"));
    let mut first = Raw::connect(Node::shared(), &connect);
    let mut second = Raw::connect(Node::shared(), &connect);
    first.expect_closed();
    second.ping();
}
