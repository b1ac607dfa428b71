//! Messages that a gateway numbers: each is published once.

use mqtt::{PacketType, PropertiesBuf, Property, Publish, QoS, Version};

use super::cluster_sim::{ClusterSim, payloads};
use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;
use crate::core::session::{
    AcceptedNumbers, NUMBER_PROPERTY, PUBLISHER_PROPERTY, PublicationNumber,
};

const MQTT_LISTENER: u16 = 0;
const LINK_LISTENER: u16 = 1;

fn connect(sim: &mut Sim, listener: u16, publisher: &str) -> SimConnection {
    let mut properties = PropertiesBuf::new();
    properties.push(Property::UserProperty(PUBLISHER_PROPERTY, publisher));
    sim.connect_with((listener, 0), "gateway", false, properties)
}

fn publish(sim: &mut Sim, conn: &mut SimConnection, number: &str, payload: &[u8]) {
    let mut properties = PropertiesBuf::new();
    properties.push(Property::UserProperty(NUMBER_PROPERTY, number));
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: "a/b",
        packet_id: 7,
        properties: properties.as_properties(),
        payload,
    };
    let mut bytes = Vec::new();
    publish.encode(Version::V5, &mut bytes);
    sim.send(conn, &bytes);
}

/// The record of the session of a connection.
fn record(sim: &mut Sim, conn: SimConnection) -> AcceptedNumbers {
    let shard = &mut sim.shards[conn.shard];
    let session = shard.session_of_connection(conn.at);
    let numbers = shard.delivery.sessions[session].accepted_numbers.as_mut();
    AcceptedNumbers::read(&numbers.expect("numbers").write()).expect("a record")
}

fn number(text: &str) -> PublicationNumber {
    PublicationNumber::parse(text).unwrap()
}

#[test]
fn a_number_is_published_once() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let mut subscriber = sim.connect(0, "subscriber", true);
    sim.subscribe(&mut subscriber, "a/#", QoS::AtLeastOnce);
    sim.take_bytes(subscriber);
    let mut conn = connect(&mut sim, LINK_LISTENER, "link 1");
    for (number, payload) in [
        ("2.1", b"one"),
        ("2.2", b"two"),
        ("2.1", b"one"),
        ("3.1", b"six"),
    ] {
        sim.take_bytes(conn);
        publish(&mut sim, &mut conn, number, payload);
        assert!(sim.has(conn, PacketType::PubAck), "{number}");
    }
    // Over another connection of the same publisher, too.
    let mut conn = connect(&mut sim, LINK_LISTENER, "link 1");
    sim.take_bytes(conn);
    publish(&mut sim, &mut conn, "2.2", b"two");
    assert!(sim.has(conn, PacketType::PubAck));
    let received: Vec<_> = sim.take(&mut subscriber, true);
    let received: Vec<_> = received.iter().map(|got| &*got.payload).collect();
    assert_eq!(received, [b"one", b"two", b"six"]);
    // Numbers of another publisher are others.
    let mut conn = connect(&mut sim, LINK_LISTENER, "link 2");
    publish(&mut sim, &mut conn, "2.1", b"new");
    assert_eq!(payloads(&mut sim, &mut subscriber), [b"new"]);
    publish(&mut sim, &mut conn, "2", b"bad");
    assert!(sim.is_closing(conn));
}

#[test]
fn clients_of_other_listeners_number_nothing() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let mut subscriber = sim.connect(0, "subscriber", true);
    sim.subscribe(&mut subscriber, "a/#", QoS::AtLeastOnce);
    sim.take_bytes(subscriber);
    // A session that a gateway has used is no exception.
    connect(&mut sim, LINK_LISTENER, "link 1");
    let mut conn = connect(&mut sim, MQTT_LISTENER, "link 1");
    for _ in 0..2 {
        publish(&mut sim, &mut conn, "2.1", b"x");
    }
    assert_eq!(payloads(&mut sim, &mut subscriber), [b"x", b"x"]);
}

/// The message is in the link to the other nodes, in the batch of the number: if the node fails, it is sent from there.
#[test]
fn a_message_is_acknowledged_when_other_nodes_have_logged_it() {
    let mut cluster = ClusterSim::new(2, 1, 1, true);
    let mut subscriber = cluster.nodes[1].connect(0, "subscriber", false);
    cluster.settle();
    cluster.nodes[1].subscribe(&mut subscriber, "a/#", QoS::AtLeastOnce);
    cluster.settle();
    let mut conn = connect(&mut cluster.nodes[0], LINK_LISTENER, "link 1");
    cluster.settle();
    publish(&mut cluster.nodes[0], &mut conn, "0.5", b"x");
    cluster.settle_without_logs_of(&[1]);
    assert!(record(&mut cluster.nodes[0], conn).contains(number("0.5")));
    assert!(!cluster.nodes[0].has(conn, PacketType::PubAck));
    // It is not published twice.
    publish(&mut cluster.nodes[0], &mut conn, "0.5", b"x");
    cluster.settle_without_logs_of(&[1]);
    assert!(!cluster.nodes[0].has(conn, PacketType::PubAck));
    cluster.settle();
    assert!(cluster.nodes[0].has(conn, PacketType::PubAck));
    assert_eq!(payloads(&mut cluster.nodes[1], &mut subscriber), [b"x"]);
}

/// Its numbers begin again, so that its record must not contain those of the former publisher.
#[test]
fn numbers_of_a_former_publisher_are_not_recorded_for_the_next_one() {
    let mut cluster = ClusterSim::new(2, 1, 1, true);
    let mut subscriber = cluster.nodes[1].connect(0, "subscriber", false);
    cluster.settle();
    cluster.nodes[1].subscribe(&mut subscriber, "a/#", QoS::AtLeastOnce);
    cluster.settle();
    let mut former = connect(&mut cluster.nodes[0], LINK_LISTENER, "link 1");
    cluster.settle();
    publish(&mut cluster.nodes[0], &mut former, "2.5", b"x");
    cluster.settle_without_logs_of(&[1]);
    let next = connect(&mut cluster.nodes[0], LINK_LISTENER, "link 2");
    cluster.settle();
    let record = record(&mut cluster.nodes[0], next);
    assert!(record.belongs_to("link 2") && !record.contains(number("2.5")));
}

/// A link cannot be passed on to a session at another node, so that it would be locked out until that expires.
#[test]
fn a_gateway_that_connects_to_another_node_gets_a_new_session_there() {
    let mut cluster = ClusterSim::new(2, 1, 1, true);
    let conn = connect(&mut cluster.nodes[0], LINK_LISTENER, "link 1");
    cluster.settle();
    cluster.nodes[0].drop_connection(conn);
    cluster.settle();
    assert!(cluster.nodes[0].has_session("gateway"));
    let conn = connect(&mut cluster.nodes[1], LINK_LISTENER, "link 1");
    cluster.settle();
    assert!(cluster.nodes[1].has(conn, PacketType::ConnAck));
    assert!(cluster.nodes[1].has_session("gateway") && !cluster.nodes[0].has_session("gateway"));
}
