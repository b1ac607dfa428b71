//! In-flight windows, queues, redelivery.

use mqtt::{PacketType, QoS};

use super::sim::Sim;
use crate::config::{BrokerLimits, QueuePolicy};

fn offline_client(policy: QueuePolicy) -> (Sim, Vec<u8>) {
    let limits = BrokerLimits {
        max_queued_messages: 3,
        queue_policy: policy,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 1);
    let mut client = sim.connect(0, "client", false);
    sim.subscribe(&mut client, "t", QoS::AtLeastOnce);
    sim.drop_connection(client);
    let mut publisher = sim.connect(0, "publisher", true);
    for n in 1..=5_u8 {
        sim.publish(&mut publisher, "t", &[n], QoS::AtLeastOnce, n.into());
    }
    let mut client = sim.connect(0, "client", false);
    let got = sim
        .take(&mut client, true)
        .into_iter()
        .map(|got| got.payload[0])
        .collect();
    (sim, got)
}

#[test]
fn a_full_queue_drops_the_oldest_or_the_newest() {
    assert_eq!(offline_client(QueuePolicy::DropOldest).1, [3, 4, 5]);
    assert_eq!(offline_client(QueuePolicy::DropNewest).1, [1, 2, 3]);
}

#[test]
fn the_disconnect_policy_closes_a_client_with_a_full_queue() {
    let limits = BrokerLimits {
        max_queued_messages: 3,
        max_inflight: 2,
        queue_policy: QueuePolicy::Disconnect,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 1);
    let mut client = sim.connect(0, "client", false);
    sim.subscribe(&mut client, "t", QoS::AtLeastOnce);
    let mut publisher = sim.connect(0, "publisher", true);
    for n in 1..=5_u8 {
        sim.publish(&mut publisher, "t", &[n], QoS::AtLeastOnce, n.into());
    }
    assert!(
        !sim.has(client, PacketType::Disconnect),
        "two in flight and three in the queue fit"
    );
    sim.publish(&mut publisher, "t", &[6], QoS::AtLeastOnce, 6);
    assert!(sim.has(client, PacketType::Disconnect));
}

#[test]
fn order_holds_over_a_small_window_and_reconnects() {
    let limits = BrokerLimits {
        max_inflight: 4,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 99);
    let mut client = sim.connect(0, "client", false);
    sim.subscribe(&mut client, "t", QoS::ExactlyOnce);
    let mut publisher = sim.connect(0, "publisher", true);
    for n in 1..=50_u8 {
        sim.publish(&mut publisher, "t", &[n], QoS::AtLeastOnce, n.into());
    }
    let first = sim.take(&mut client, false);
    assert_eq!(first.len(), 4, "the window is four");
    sim.drop_connection(client);
    let mut client = sim.connect(0, "client", false);
    let got = sim.take(&mut client, true);
    let payloads: Vec<u8> = got.iter().map(|got| got.payload[0]).collect();
    assert_eq!(payloads, (1..=50).collect::<Vec<_>>());
    assert!(got[..4].iter().all(|got| got.dup) && got[4..].iter().all(|got| !got.dup));
}

#[test]
fn packet_ids_wrap_and_one_that_is_never_acknowledged_blocks_only_its_place() {
    let limits = BrokerLimits {
        max_inflight: 8,
        ..BrokerLimits::default()
    };
    let mut sim = Sim::new(1, limits, 3);
    let mut client = sim.connect(0, "client", true);
    sim.subscribe(&mut client, "t", QoS::AtLeastOnce);
    let mut publisher = sim.connect(0, "publisher", true);
    let mut expected = 0_u32;
    for round in 0..70_000_u32 {
        sim.publish(
            &mut publisher,
            "t",
            &round.to_be_bytes(),
            QoS::AtLeastOnce,
            1,
        );
        for got in sim.take(&mut client, true) {
            assert_eq!(got.payload, expected.to_be_bytes());
            assert_ne!(got.packet_id, 0);
            expected += 1;
        }
        sim.take_bytes(publisher);
    }
    assert_eq!(expected, 70_000);
}

#[test]
fn expired_messages_are_not_delivered_and_sessions_end_in_time() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let mut client = sim.connect(0, "client", false);
    sim.subscribe(&mut client, "t", QoS::AtLeastOnce);
    sim.drop_connection(client);
    sim.pass(3_599_000);
    assert_eq!(sim.shards[0].delivery.sessions.len(), 1);
    sim.pass(2_000);
    assert_eq!(sim.shards[0].delivery.sessions.len(), 0);
    assert_eq!(
        sim.shards[0].tree.filters.len(),
        0,
        "its subscriptions are gone"
    );
}
