//! Several shards: no message is lost between a SUBACK and a PUBLISH, in whatever order shards process their messages.

use mqtt::{PacketType, QoS};

use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;

#[test]
fn suback_then_publish_always_arrives() {
    for seed in 1..=400 {
        let mut sim = Sim::new(2, BrokerLimits::default(), seed * 7919);
        let mut subscriber = sim.connect(0, "subscriber", true);
        let mut publisher = sim.connect(1, "publisher", true);
        // Other clients use the same filter meanwhile, so that bits are set and cleared.
        let mut other = sim.connect(0, "other", true);
        sim.take_bytes(subscriber);
        sim.subscribe(&mut other, "a/+", QoS::AtLeastOnce);
        for _ in 0..sim.random(4) {
            sim.step();
        }
        if sim.random(2) == 0 {
            sim.drop_connection(other);
        }
        let filter = if sim.random(2) == 0 { "a/+" } else { "a/b" };
        sim.subscribe(&mut subscriber, filter, QoS::AtLeastOnce);
        // Shard messages are processed one by one until the SUBACK is sent; the publish follows at once.
        let mut early = 0;
        while !sim.has(subscriber, PacketType::SubAck) {
            if sim.random(3) == 0 {
                sim.publish(&mut publisher, "a/b", b"early", QoS::AtMostOnce, 0);
                early += 1;
            }
            assert!(
                sim.step() || early > 0,
                "no SUBACK, and no shard message is waiting"
            );
        }
        sim.publish(&mut publisher, "a/b", b"late", QoS::AtLeastOnce, 1);
        sim.settle();
        let got = sim.take(&mut subscriber, true);
        let late = got.iter().filter(|got| got.payload == b"late").count();
        assert_eq!(late, 1, "seed {seed}: {got:?}");
    }
}

#[test]
fn a_shared_subscription_over_shards_gets_each_message_once() {
    for seed in 1..=200 {
        let mut sim = Sim::new(3, BrokerLimits::default(), seed * 104_729);
        let mut members: Vec<SimConnection> = Vec::new();
        for n in 0..4 {
            let mut member = sim.connect(n % 3, &format!("member{n}"), true);
            sim.subscribe(&mut member, "$share/group/t/#", QoS::AtLeastOnce);
            members.push(member);
        }
        sim.settle();
        let mut publisher = sim.connect(0, "publisher", true);
        for n in 0..20_u16 {
            sim.publish(
                &mut publisher,
                "t/x",
                &n.to_be_bytes(),
                QoS::AtLeastOnce,
                n + 1,
            );
            if sim.random(3) == 0 {
                sim.step();
            }
        }
        sim.settle();
        let mut got: Vec<Vec<u8>> = Vec::new();
        for member in &mut members {
            let taken = sim.take(member, true);
            assert!(
                (4..=6).contains(&taken.len()),
                "round robin is uneven: {}",
                taken.len()
            );
            got.extend(taken.into_iter().map(|got| got.payload));
        }
        got.sort();
        let all: Vec<Vec<u8>> = (0..20_u16).map(|n| n.to_be_bytes().to_vec()).collect();
        assert_eq!(got, all, "seed {seed}");
    }
}

#[test]
fn messages_of_a_departed_group_member_are_redistributed() {
    for seed in 1..=100 {
        let mut sim = Sim::new(2, BrokerLimits::default(), seed * 31);
        let mut staying = sim.connect(0, "staying", true);
        let mut leaving = sim.connect(1, "leaving", seed % 2 == 0);
        sim.subscribe(&mut staying, "$share/g/t", QoS::AtLeastOnce);
        sim.subscribe(&mut leaving, "$share/g/t", QoS::AtLeastOnce);
        sim.settle();
        let mut publisher = sim.connect(0, "publisher", true);
        for n in 0..10_u8 {
            sim.publish(
                &mut publisher,
                "t",
                &[n],
                QoS::AtLeastOnce,
                u16::from(n) + 1,
            );
        }
        sim.settle();
        sim.drop_connection(leaving);
        sim.settle();
        let mut got: Vec<u8> = sim
            .take(&mut staying, true)
            .into_iter()
            .map(|got| got.payload[0])
            .collect();
        got.sort_unstable();
        assert_eq!(got, (0..10).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn takeover_across_shards_keeps_the_session_and_loses_nothing() {
    for seed in 1..=300 {
        let mut sim = Sim::new(2, BrokerLimits::default(), seed * 65_537);
        let mut publisher = sim.connect(1, "publisher", true);
        let mut client = sim.connect(0, "client", false);
        sim.subscribe(&mut client, "t", QoS::ExactlyOnce);
        sim.settle();
        sim.take(&mut client, true);
        let mut sent = 0_u16;
        let mut got = Vec::new();
        for _ in 0..12 {
            for _ in 0..sim.random(4) {
                sent += 1;
                sim.publish(
                    &mut publisher,
                    "t",
                    &sent.to_be_bytes(),
                    QoS::AtLeastOnce,
                    sent,
                );
            }
            for _ in 0..sim.random(4) {
                sim.step();
            }
            match sim.random(3) {
                0 => {
                    // Another connection with the same client id, on any shard; the old one is notified and closed.
                    let old = client;
                    let shard = sim.random(2);
                    client = sim.connect(shard, "client", false);
                    assert_eq!(client.shard, 0, "the session stays where it is");
                    assert!(sim.has(old, PacketType::Disconnect), "seed {seed}");
                    sim.shards[old.shard].remove_connection(old.at);
                }
                1 => {
                    sim.drop_connection(client);
                    let shard = sim.random(2);
                    client = sim.connect(shard, "client", false);
                }
                _ => got.extend(sim.take(&mut client, true)),
            }
        }
        sim.settle();
        got.extend(sim.take(&mut client, true));
        let mut seen: Vec<Vec<u8>> = Vec::new();
        for message in got {
            // Repeated only with DUP: messages sent on a connection that was lost.
            if seen.contains(&message.payload) {
                assert!(message.dup, "seed {seed}: a repetition without DUP");
            } else {
                seen.push(message.payload);
            }
        }
        let all: Vec<Vec<u8>> = (1..=sent).map(|n| n.to_be_bytes().to_vec()).collect();
        assert_eq!(seen, all, "seed {seed}: lost or out of order");
    }
}

#[test]
fn two_connections_with_one_new_client_id_end_as_one_session() {
    for first in 0..2 {
        let mut sim = Sim::new(2, BrokerLimits::default(), 5);
        let a = sim.connect(first, "same", false);
        let b = sim.connect(1 - first, "same", false);
        assert_eq!(b.shard, first, "the second goes where the first is");
        assert!(sim.has(a, PacketType::Disconnect));
        assert!(sim.has(b, PacketType::ConnAck));
        assert_eq!(
            sim.shards
                .iter()
                .map(|s| s.delivery.sessions.len())
                .sum::<usize>(),
            1
        );
    }
}
