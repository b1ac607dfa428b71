//! The limit on incomplete packets of all shards together.

use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;
use crate::core::shard::ConnectionAction;

const KIB: usize = 1024;

/// Two shards, each of which may keep as much as the node.
fn sim() -> Sim {
    let limits = BrokerLimits {
        max_partial_packet_bytes_per_shard: 1024 * KIB as u64,
        max_partial_packet_bytes: 400 * KIB as u64,
        ..BrokerLimits::default()
    };
    Sim::new(2, limits, 7)
}

/// Sends the beginning of a PUBLISH of `announced` bytes.
fn begin(sim: &mut Sim, client: SimConnection, announced: usize, sent: usize) -> ConnectionAction {
    let mut packet = vec![0x30];
    let mut length = announced;
    while length >= 128 {
        packet.push((length % 128) as u8 | 0x80);
        length /= 128;
    }
    packet.push(length as u8);
    packet.extend(vec![b'x'; sent]);
    sim.send(&mut client.clone(), &packet)
}

#[test]
fn shards_keep_no_more_of_incomplete_packets_than_the_node_may() {
    let mut sim = sim();
    let first = sim.connect(0, "first", true);
    let (second, third) = (
        sim.connect(1, "second", true),
        sim.connect(1, "third", true),
    );
    for (client, sent) in [(first, 180 * KIB), (second, 120 * KIB), (third, 10 * KIB)] {
        let action = begin(&mut sim, client, 300 * KIB, sent);
        assert_eq!(action, ConnectionAction::Continue, "{sent}");
    }
    let more = vec![b'x'; 100 * KIB];
    assert_eq!(
        sim.send(&mut third.clone(), &more),
        ConnectionAction::Close,
        "410 KiB"
    );
    // Its bytes are free again.
    let action = sim.send(&mut first.clone(), &more[..80 * KIB]);
    assert_eq!(action, ConnectionAction::Continue, "380 KiB");
    let action = sim.send(&mut second.clone(), &more);
    assert_eq!(action, ConnectionAction::Close, "480 KiB");
}

#[test]
fn the_bytes_of_a_lost_connection_are_free_for_other_shards_at_once() {
    let mut sim = sim();
    for round in 0..6 {
        let client = sim.connect(round % 2, "client", true);
        let action = begin(&mut sim, client, 350 * KIB, 300 * KIB);
        assert_eq!(action, ConnectionAction::Continue, "{round}");
        sim.drop_connection(client);
    }
}
