//! Clients that are disconnected so that they connect to other nodes: by a drain and by a rebalancing; and what a drained
//! node rejects.

use std::sync::atomic::Ordering::Relaxed;

use hooks::PeerAddress;
use mqtt::{QoS, ReasonCode};

use super::cluster_sim::ClusterSim;
use super::sim::{Sim, SimConnection};
use crate::config::BrokerLimits;
use crate::core::client_disconnects::{DisconnectCause, DisconnectScan, DisconnectableCount};
use crate::core::inspection::{ScanStep, ShardScan};

const CONNACK: u8 = 0x20;
const DISCONNECT: u8 = 0xe0;

fn set_draining(sim: &Sim, is_draining: bool) {
    sim.shards[0].node.is_draining.store(is_draining, Relaxed);
}

fn run<S: ShardScan>(sim: &mut Sim, mut scan: S) -> S::ScanResult {
    loop {
        match scan.step(&mut sim.shards[0]) {
            ScanStep::Continue(further) => scan = further,
            ScanStep::Done(result) => return result,
        }
    }
}

fn drain(sim: &mut Sim, most: usize) -> usize {
    run(sim, DisconnectScan::new(DisconnectCause::Drain, most, 0)).count
}

fn rebalance(sim: &mut Sim, most: usize, from: usize) -> (usize, Option<usize>) {
    let done = run(
        sim,
        DisconnectScan::new(DisconnectCause::Rebalance, most, from),
    );
    (done.count, done.next)
}

/// Lets a client come from another machine.
fn set_remote(sim: &mut Sim, connection: SimConnection) {
    let address = "192.0.2.1:50000".parse().unwrap();
    let connection = &mut sim.shards[0].delivery.connections[connection.at];
    connection.peer = PeerAddress::Tcp(address);
}

fn movable(sim: &mut Sim) -> usize {
    run(sim, DisconnectableCount::new(DisconnectCause::Rebalance))
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

#[test]
fn a_rebalancing_disconnects_clients_without_a_durable_session() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let clients: Vec<_> = (0..600)
        .map(|n| sim.connect(0, &format!("c{n}"), n % 3 > 0))
        .collect();
    for &client in &clients {
        set_remote(&mut sim, client);
        sim.take_bytes(client);
    }
    assert_eq!(movable(&mut sim), 400);
    let (closed, next) = rebalance(&mut sim, 100, 0);
    assert_eq!(closed, 100);
    let another_server = ReasonCode::USE_ANOTHER_SERVER.0;
    assert_eq!(answer(&mut sim, clients[1]), (DISCONNECT, another_server));
    assert!(!sim.is_closing(clients[0]), "a durable session");
    // The next one continues there.
    let next = next.unwrap();
    assert_eq!(next, 150);
    assert_eq!(movable(&mut sim), 300);
    assert_eq!(rebalance(&mut sim, 1000, next), (300, None));
    assert_eq!(movable(&mut sim), 0);
    assert_eq!(rebalance(&mut sim, 1000, 0), (0, None));
    let stay = clients.iter().filter(|&&client| !sim.is_closing(client));
    assert_eq!(stay.count(), 200);
}

#[test]
fn a_drain_takes_the_place_of_a_rebalancing() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let client = sim.connect(0, "c", true);
    set_remote(&mut sim, client);
    set_draining(&sim, true);
    assert_eq!(rebalance(&mut sim, 10, 0).0, 0);
    set_draining(&sim, false);
    assert_eq!(rebalance(&mut sim, 10, 0), (1, None));
}

#[test]
fn a_rebalancing_leaves_clients_that_know_no_other_node() {
    let mut sim = Sim::new(1, BrokerLimits::default(), 1);
    let connect = [
        0x10, 14, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 1, b'c',
    ];
    let tunnelled = sim.accept_tunnel(0, PeerAddress::Unix, &connect);
    set_remote(&mut sim, tunnelled);
    let local = sim.connect(0, "local", true);
    let in_memory = sim.connect(0, "in-memory", true);
    sim.shards[0].delivery.connections[in_memory.at].peer = PeerAddress::Memory;
    assert_eq!(movable(&mut sim), 0);
    assert_eq!(rebalance(&mut sim, 10, 0).0, 0);
    for connection in [tunnelled, local, in_memory] {
        assert!(!sim.is_closing(connection));
    }
}

#[test]
fn a_rebalancing_disconnects_clients_whose_session_is_at_another_node() {
    let mut cluster = ClusterSim::new(2, 1, 1, false);
    let first = cluster.connect(1, 0, "c", false);
    cluster.nodes[1].drop_connection(first);
    cluster.settle();
    let passed_on = cluster.connect(0, 0, "c", false);
    assert!(!cluster.nodes[0].has_session("c"));
    set_remote(&mut cluster.nodes[0], passed_on);
    assert_eq!(movable(&mut cluster.nodes[0]), 1);
    assert_eq!(movable(&mut cluster.nodes[1]), 0, "the exit of the tunnel");
    assert_eq!(rebalance(&mut cluster.nodes[0], 10, 0), (1, None));
    assert!(cluster.nodes[0].is_closing(passed_on));
    cluster.settle();
    assert!(cluster.nodes[1].has_session("c"));
}
