//! Acknowledged data is in the log, on the publisher's shard and on all others, whatever the order of events.

use mqtt::{PacketType, QoS};
use tempfile::TempDir;

use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;

fn durable(shards: usize, seed: u64) -> Sim {
    let mut sim = Sim::new(shards, BrokerLimits::default(), seed);
    sim.keep_journals();
    sim
}

fn log_all(sim: &mut Sim) {
    loop {
        sim.settle();
        let logged = (0..sim.shards.len()).filter(|&shard| sim.log_one(shard));
        if logged.count() == 0 && !sim.step() {
            return;
        }
    }
}

/// Creates a durable session without a connection, subscribed to `a/#`.
fn away(sim: &mut Sim, shard: usize) {
    let mut conn = sim.connect(shard, "away", false);
    sim.subscribe(&mut conn, "a/#", QoS::ExactlyOnce);
    log_all(sim);
    sim.take_bytes(conn);
    sim.drop_connection(conn);
    log_all(sim);
}

#[test]
fn an_acknowledgement_waits_for_the_log() {
    let mut sim = durable(1, 1);
    away(&mut sim, 0);
    let mut publisher = sim.connect(0, "publisher", true);
    sim.take_bytes(publisher);
    for (qos, kind) in [
        (QoS::AtLeastOnce, PacketType::PubAck),
        (QoS::ExactlyOnce, PacketType::PubRec),
    ] {
        sim.publish(&mut publisher, "a/b", b"x", qos, 1);
        assert!(!sim.has(publisher, kind), "{kind:?} came before the log");
        assert!(sim.log_one(0));
        assert!(sim.has(publisher, kind), "no {kind:?}");
    }
}

#[test]
fn answers_without_durable_sessions_do_not_wait() {
    let mut sim = durable(1, 1);
    let mut subscriber = sim.connect(0, "subscriber", true);
    sim.subscribe(&mut subscriber, "a/#", QoS::AtLeastOnce);
    let mut publisher = sim.connect(0, "publisher", true);
    sim.take_bytes(publisher);
    sim.publish(&mut publisher, "a/b", b"x", QoS::AtLeastOnce, 1);
    assert!(sim.has(publisher, PacketType::PubAck));
    assert_eq!(sim.take(&mut subscriber, true).len(), 1);
    assert!(sim.unlogged[0].is_empty());
}

#[test]
fn a_suback_of_a_durable_session_waits_for_the_log() {
    for shards in [1, 2] {
        let mut sim = durable(shards, 1);
        let mut conn = sim.connect(0, "away", false);
        log_all(&mut sim);
        sim.take_bytes(conn);
        sim.subscribe(&mut conn, "a/#", QoS::AtLeastOnce);
        sim.settle();
        assert!(!sim.has(conn, PacketType::SubAck), "{shards} shards");
        log_all(&mut sim);
        assert!(sim.has(conn, PacketType::SubAck), "{shards} shards");
    }
}

#[test]
fn an_acknowledgement_waits_for_the_logs_of_other_shards() {
    let mut sim = durable(2, 1);
    away(&mut sim, 1);
    let mut publisher = sim.connect(0, "publisher", true);
    log_all(&mut sim);
    sim.take_bytes(publisher);
    sim.publish(&mut publisher, "a/b", b"x", QoS::AtLeastOnce, 1);
    sim.settle();
    while sim.log_one(0) {}
    sim.settle();
    assert!(!sim.has(publisher, PacketType::PubAck));
    assert!(sim.log_one(1), "the other shard has written nothing");
    sim.settle();
    assert!(sim.has(publisher, PacketType::PubAck));
}

#[test]
fn a_qos_2_message_is_sent_after_its_packet_id_is_logged() {
    let mut sim = durable(1, 1);
    let mut subscriber = sim.connect(0, "subscriber", false);
    sim.subscribe(&mut subscriber, "a/#", QoS::ExactlyOnce);
    log_all(&mut sim);
    sim.take_bytes(subscriber);
    let mut publisher = sim.connect(0, "publisher", true);
    sim.publish(&mut publisher, "a/b", b"x", QoS::ExactlyOnce, 1);
    assert!(!sim.has(subscriber, PacketType::Publish));
    sim.publish(&mut publisher, "a/b", b"y", QoS::AtMostOnce, 0);
    assert!(
        !sim.has(subscriber, PacketType::Publish),
        "a later message overtook an earlier one"
    );
    sim.log_one(0);
    let got = sim.take(&mut subscriber, false);
    let payloads: Vec<_> = got.iter().map(|got| got.payload.as_slice()).collect();
    assert_eq!(payloads, [b"x", b"y"]);
}

/// Traffic in both directions between two shards, logged and processed in any order: every client gets an answer in the
/// end.
#[test]
fn shards_never_wait_for_each_other() {
    for seed in 1..=200 {
        let mut sim = durable(2, seed * 7919);
        let mut clients: Vec<SimConnection> = Vec::new();
        for n in 0..4 {
            let mut client = sim.connect(n % 2, &format!("client{n}"), false);
            sim.subscribe(&mut client, "a/#", QoS::AtLeastOnce);
            clients.push(client);
        }
        log_all(&mut sim);
        for client in &clients {
            sim.take_bytes(*client);
        }
        let mut expected = [0; 4];
        for _ in 0..60 {
            match sim.random(4) {
                0 => {
                    let shard = sim.random(2);
                    sim.log_one(shard);
                }
                1 => {
                    sim.step();
                }
                _ => {
                    let n = sim.random(4);
                    expected[n] += 1;
                    sim.publish(&mut clients[n], "a/b", b"x", QoS::AtLeastOnce, expected[n]);
                }
            }
        }
        log_all(&mut sim);
        for (n, client) in clients.iter().enumerate() {
            let bytes = sim.take_bytes(*client);
            let mut rest = &bytes[..];
            let mut acks = 0;
            while let Some(frame) = mqtt::split_frame(rest, u32::MAX).unwrap() {
                acks += u16::from(frame.first_byte >> 4 == PacketType::PubAck as u8);
                rest = &rest[frame.len..];
            }
            assert_eq!(acks, expected[n], "seed {seed}, client {n}");
        }
    }
}

/// A QoS 2 message of a durable publisher for a session on another shard. Its packet id and its link entry are in one
/// batch. The other shard does not receive it before that batch is in the log.
#[test]
fn a_qos_2_message_crosses_shards_after_its_packet_id_is_logged() {
    let mut sim = durable(2, 1);
    away(&mut sim, 1);
    let mut publisher = sim.connect(0, "publisher", false);
    log_all(&mut sim);
    sim.take_bytes(publisher);
    sim.publish(&mut publisher, "a/b", b"x", QoS::ExactlyOnce, 1);
    sim.settle();
    assert!(
        sim.unlogged[1].is_empty(),
        "the other shard received the message"
    );
    assert!(!sim.has(publisher, PacketType::PubRec));
    // Later messages do not overtake it.
    sim.publish(&mut publisher, "a/c", b"y", QoS::AtMostOnce, 0);
    assert!(sim.log_one(0));
    assert!(sim.has(publisher, PacketType::PubRec));
    sim.settle();
    assert!(
        !sim.unlogged[1].is_empty(),
        "the other shard received no message"
    );
}

/// The copy of a standby has the frames in the order of the log, so that the other shard need not wait for it, and nor do the
/// messages that follow.
#[test]
fn a_message_crosses_shards_before_the_standby_has_it() {
    let mut sim = durable(2, 1);
    away(&mut sim, 1);
    let mut live = sim.connect(1, "live", true);
    sim.subscribe(&mut live, "a/#", QoS::AtMostOnce);
    let mut publisher = sim.connect(0, "publisher", false);
    log_all(&mut sim);
    sim.take_bytes(live);
    sim.take_bytes(publisher);
    sim.publish(&mut publisher, "a/b", b"x", QoS::ExactlyOnce, 1);
    sim.publish(&mut publisher, "a/c", b"y", QoS::AtMostOnce, 0);
    sim.settle();
    assert!(!sim.has(live, PacketType::Publish));
    sim.write_all(0);
    sim.settle();
    assert_eq!(sim.take(&mut live, false).len(), 2);
    assert!(!sim.has(publisher, PacketType::PubRec));
    log_all(&mut sim);
    assert!(sim.has(publisher, PacketType::PubRec));
}

/// A SUBACK waits for a connection that is gone, and whose place the client has got.
#[test]
fn packets_of_a_resumed_client_are_processed_when_its_messages_are_loaded() {
    let dir = TempDir::new().unwrap();
    let mut sim = Sim::open("node", 2, (3, 0), dir);
    away(&mut sim, 0);
    let mut publisher = sim.connect(0, "publisher", true);
    log_all(&mut sim);
    sim.publish(&mut publisher, "a/b", b"x", QoS::ExactlyOnce, 1);
    log_all(&mut sim);
    let mut other = sim.connect(0, "other", true);
    log_all(&mut sim);
    sim.subscribe(&mut other, "b/#", QoS::AtMostOnce);
    sim.drop_connection(other);
    let mut client = sim.connect(0, "away", false);
    assert_eq!(client, other);
    // Not the announcements that the SUBACK waits for.
    while sim.log_one(0) {}
    assert_eq!(sim.take(&mut client, true).len(), 1);
    log_all(&mut sim);
    sim.take(&mut client, true);
    log_all(&mut sim);
    let session = sim.shards[0].by_client_id["away"];
    let outbound = sim.shards[0].delivery.sessions[session].outbound.as_ref();
    assert!(outbound.is_none_or(|outbound| outbound.is_idle()));
}
