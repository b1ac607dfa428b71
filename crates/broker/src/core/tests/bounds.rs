//! Clients must not cost the node more than its limits, and messages must reach only their receivers.

use mqtt::{PacketType, Properties, Publish, QoS, Version};

use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;
use crate::core::shard::ConnectionAction;

fn retain(sim: &mut Sim, publisher: &mut SimConnection, topic: &str) {
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: true,
        topic,
        packet_id: 0,
        properties: Properties::EMPTY,
        payload: b"kept",
    };
    let mut bytes = Vec::new();
    publish.encode(Version::V5, &mut bytes);
    sim.send(publisher, &bytes);
}

#[test]
fn repeated_subscriptions_do_not_accumulate_retained_messages() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let mut publisher = sim.connect(0, "publisher", true);
    let topics = 5_000;
    for n in 0..topics {
        retain(
            &mut sim,
            &mut publisher,
            &format!("sensor/{n}/state/with/a/name/that/is/rather/long"),
        );
    }
    let mut client = sim.connect(0, "client", true);
    for _ in 0..50 {
        sim.subscribe(&mut client, "#", QoS::AtLeastOnce);
    }
    let connection = &sim.shards[0].delivery.connections[client.at];
    let waiting = connection
        .extra
        .as_ref()
        .map_or(0, |extra| extra.retained.len());
    assert_eq!(waiting, 1, "one subscription has one place in the queue");
    assert!(
        connection.outbox.len() < 1 << 20,
        "{} bytes wait",
        connection.outbox.len()
    );
    // All of them arrive in the end, each at least once.
    let got = sim.take(&mut client, true);
    let mut seen: Vec<&str> = got.iter().map(|got| got.topic.as_str()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), topics);
    assert!(got.iter().all(|got| got.retain));
}

#[test]
fn full_queues_of_absent_clients_do_not_stop_publishers() {
    let limits = BrokerLimits {
        max_queued_bytes_per_shard: 100_000,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 1);
    for n in 0..4 {
        let mut client = sim.connect(0, &format!("absent{n}"), false);
        sim.subscribe(&mut client, "t", QoS::AtLeastOnce);
        sim.drop_connection(client);
    }
    let mut publisher = sim.connect(0, "publisher", true);
    for n in 0..200_u16 {
        let publish = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            packet_id: n + 1,
            properties: Properties::EMPTY,
            payload: &[0; 1000],
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V5, &mut bytes);
        assert_eq!(sim.send(&mut publisher, &bytes), ConnectionAction::Continue);
    }
    let sessions = &sim.shards[0].delivery.sessions;
    let queued: usize = sessions
        .iter()
        .filter_map(|(_, session)| session.outbound.as_ref())
        .map(|outbound| outbound.size().bytes_in_memory)
        .sum();
    assert!(
        (90_000..=100_000).contains(&queued),
        "{queued} bytes are queued"
    );
}

#[test]
fn messages_of_a_group_never_reach_another_group() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let mut first = sim.connect(0, "first", false);
    sim.subscribe(&mut first, "$share/g/secret", QoS::AtLeastOnce);
    let mut publisher = sim.connect(0, "publisher", true);
    sim.publish(&mut publisher, "secret", b"for first", QoS::AtLeastOnce, 1);
    let mut unsubscribe = mqtt::UnsubscribeBuf::new(2);
    unsubscribe.push("$share/g/secret");
    let mut bytes = Vec::new();
    unsubscribe.encode(Properties::EMPTY, Version::V5, &mut bytes);
    sim.send(&mut first, &bytes);
    // The next group may reuse the id of the removed one.
    let mut second = sim.connect(0, "second", true);
    sim.subscribe(&mut second, "$share/h/other", QoS::AtLeastOnce);
    sim.drop_connection(first);
    assert_eq!(sim.take(&mut second, true), []);
    let mut first = sim.connect(0, "first", false);
    assert_eq!(sim.take(&mut first, true)[0].payload, b"for first");
}

#[test]
fn shared_messages_of_an_expired_offline_session_are_redistributed() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let mut away = sim.connect(0, "away", false);
    sim.subscribe(&mut away, "$share/g/t", QoS::AtLeastOnce);
    sim.drop_connection(away);
    let mut publisher = sim.connect(0, "publisher", true);
    sim.publish(&mut publisher, "t", b"1", QoS::AtLeastOnce, 1);
    let mut staying = sim.connect(0, "staying", true);
    sim.subscribe(&mut staying, "$share/g/t", QoS::AtLeastOnce);
    assert_eq!(sim.take(&mut staying, true), []);
    sim.pass(3_601_000);
    let got = sim.take(&mut staying, true);
    assert_eq!(got.len(), 1, "{got:?}");
}

#[test]
fn bytes_in_flight_are_bounded() {
    let limits = BrokerLimits {
        max_queued_bytes: 10_000,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 1);
    let mut client = sim.connect(0, "client", true);
    sim.subscribe(&mut client, "t", QoS::AtLeastOnce);
    let mut publisher = sim.connect(0, "publisher", true);
    for n in 0..50 {
        let payload = [n as u8; 1000];
        sim.publish(&mut publisher, "t", &payload, QoS::AtLeastOnce, n + 1);
    }
    let got = sim.take(&mut client, false).len();
    assert!(
        (8..=12).contains(&got),
        "{got} messages of 1,000 bytes are in flight"
    );
}

#[test]
fn a_mosquitto_bridge_receives_none_of_its_own_messages() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let connect = mqtt::Connect {
        version: Version::V311,
        clean_start: true,
        keep_alive_s: 0,
        client_id: "bridge",
        username: None,
        password: None,
        will: None,
        properties: Properties::EMPTY,
        is_bridge: true,
    };
    let mut bytes = Vec::new();
    connect.encode(&mut bytes);
    let at = sim.shards[0].open_connection(0, hooks::PeerAddress::Unix);
    let mut bridge = SimConnection { shard: 0, at };
    sim.send(&mut bridge, &bytes);
    bytes.clear();
    let mut subscribe = mqtt::SubscribeBuf::new(1);
    subscribe.push("#", mqtt::SubscriptionOptions::new(QoS::AtMostOnce));
    subscribe.encode(Properties::EMPTY, Version::V311, &mut bytes);
    sim.send(&mut bridge, &bytes);
    sim.take_bytes(bridge);
    let publish = |payload| {
        let mut bytes = Vec::new();
        let (topic, properties, qos) = ("t", Properties::EMPTY, QoS::AtMostOnce);
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: 0,
            properties,
            payload,
        };
        publish.encode(Version::V311, &mut bytes);
        bytes
    };
    sim.send(&mut bridge, &publish(b"its own"));
    assert!(!sim.has(bridge, PacketType::Publish));
    let mut other = sim.connect(0, "other", true);
    sim.publish(&mut other, "t", b"of another", QoS::AtMostOnce, 0);
    assert!(sim.has(bridge, PacketType::Publish));
}
