//! A node that is drained: what it rejects, what it closes, and what stays.

use std::sync::atomic::Ordering::Relaxed;

use hooks::PeerAddress;
use mqtt::{QoS, ReasonCode};

use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;
use crate::core::drain::DrainScan;
use crate::core::inspection::{ScanStep, ShardScan as _};

const CONNACK: u8 = 0x20;
const DISCONNECT: u8 = 0xe0;

fn set_draining(sim: &Sim, is_draining: bool) {
    sim.shards[0].node.is_draining.store(is_draining, Relaxed);
}

fn drain(sim: &mut Sim, most: usize) -> usize {
    let mut scan = DrainScan::new(most);
    loop {
        match scan.step(&mut sim.shards[0]) {
            ScanStep::Continue(further) => scan = further,
            ScanStep::Done(count) => return count,
        }
    }
}

/// The first byte of what the client has received, and the reason code.
fn answer(sim: &mut Sim, connection: SimConnection) -> (u8, u8) {
    let bytes = sim.take_bytes(connection);
    match bytes[0] {
        CONNACK => (bytes[0], bytes[3]),
        _ => (bytes[0], bytes[2]),
    }
}

#[test]
fn clients_are_disconnected_some_at_a_time_and_their_sessions_stay() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let clients: Vec<_> = (0..600)
        .map(|n| sim.connect(0, &format!("c{n}"), n % 2 == 0))
        .collect();
    for &client in &clients {
        sim.take_bytes(client);
    }
    assert_eq!(drain(&mut sim, 600), 0, "nothing is closed without a drain");
    set_draining(&sim, true);
    // More than one turn closes.
    assert_eq!(drain(&mut sim, 400), 400);
    let is_closing = clients.iter().filter(|&&client| sim.is_closing(client));
    assert_eq!(is_closing.count(), 400);
    let shutting_down = ReasonCode::SERVER_SHUTTING_DOWN.0;
    assert_eq!(answer(&mut sim, clients[0]), (DISCONNECT, shutting_down));
    assert_eq!(drain(&mut sim, 400), 200);
    assert_eq!(drain(&mut sim, 400), 0);
    assert_eq!(sim.shards[0].by_client_id.len(), 300, "durable sessions");
}

#[test]
fn new_clients_are_rejected_until_the_drain_is_cancelled() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    set_draining(&sim, true);
    let rejected = sim.connect(0, "a", true);
    let unavailable = ReasonCode::SERVER_UNAVAILABLE.0;
    assert_eq!(answer(&mut sim, rejected), (CONNACK, unavailable));
    assert!(sim.is_closing(rejected));
    set_draining(&sim, false);
    let accepted = sim.connect(0, "a", true);
    assert_eq!(answer(&mut sim, accepted), (CONNACK, 0));
}

#[test]
fn connections_that_other_nodes_pass_on_stay() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    set_draining(&sim, true);
    let connect = [
        0x10, 14, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 1, b'c',
    ];
    let mut tunnelled = sim.accept_tunnel(0, PeerAddress::Unix, &connect);
    assert_eq!(answer(&mut sim, tunnelled), (CONNACK, 0));
    assert_eq!(drain(&mut sim, 10), 0);
    sim.subscribe(&mut tunnelled, "t", QoS::AtMostOnce);
    assert!(!sim.is_closing(tunnelled));
}
