//! Which session stays if two nodes have one of the same client.

use mqtt::{Packet, QoS, ReasonCode};
use tempfile::TempDir;

use super::cluster_sim::{ClusterSim, name, packets};
use super::sim::SimConnection;
use crate::core::peer_loss::PeerLoss;
use crate::core::succession::SessionHold;

fn connack_of(
    cluster: &mut ClusterSim,
    node: usize,
    connection: SimConnection,
) -> Option<(ReasonCode, bool)> {
    packets(
        &cluster.nodes[node].take_bytes(connection),
        |packet| match packet {
            Packet::ConnAck(connack) => Some((connack.code, connack.session_present)),
            _ => None,
        },
    )
}

/// The claim of the client is granted when its session has been adopted by its node. The session is as old as before, so that it does
/// not give way to one that the client got elsewhere because it was not known.
#[test]
fn a_claim_that_an_adopted_session_has_answered_does_not_make_it_a_new_one() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::with_stores(3, 1400 + n);
        let mut client = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].subscribe(&mut client, "q", QoS::AtLeastOnce);
        cluster.settle();
        let dir = cluster.kill(1);
        cluster.settle();
        cluster.separate(0, 2);
        cluster.settle();
        cluster.pass(4000);
        let elsewhere = cluster.connect(2, 0, &id, false);
        let answer = connack_of(&mut cluster, 2, elsewhere);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        cluster.nodes[2].drop_connection(elsewhere);
        cluster.pass(100);
        cluster.nodes[0].with_router(|router| {
            router.set_standby_for(&name(1), true);
            router.begin_succession(&name(1));
        });
        let client = cluster.connect(0, n as usize % 2, &id, false);
        cluster.nodes[0].adopt_all(&name(1), &dir);
        cluster.pass(500);
        cluster.nodes[0].with_router(|router| router.end_succession(&name(1), true));
        cluster.settle();
        let answer = connack_of(&mut cluster, 0, client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "{id}");
        cluster.join(0, 2);
        cluster.settle();
        let has = [0, 2].map(|node| cluster.nodes[node].has_session(&id));
        assert_eq!(has, [true, false], "{id}");
    }
}

/// A node that has adopted sessions is adopted itself. Before it notices that, it expects to adopt the sessions of its adopter, which it
/// has lost as well.
#[test]
fn a_session_that_was_adopted_twice_stays_at_the_last_node() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::with_stores(4, 1500 + n);
        let mut client = cluster.connect(2, 0, &id, false);
        cluster.nodes[2].subscribe(&mut client, "q", QoS::AtLeastOnce);
        cluster.settle();
        let dir = cluster.kill(2);
        cluster.pass(10);
        cluster.nodes[1].with_router(|router| router.begin_succession(&name(2)));
        cluster.nodes[1].adopt_all(&name(2), &dir);
        cluster.nodes[1].with_router(|router| router.end_succession(&name(2), true));
        cluster.settle();
        cluster.nodes[0].with_router(|router| router.set_standby_for(&name(1), true));
        cluster.nodes[1].with_router(|router| router.set_standby_for(&name(0), true));
        cluster.settle();
        cluster.lose(0, 1, PeerLoss::Reconnecting);
        cluster.pass(10);
        cluster.lose(1, 0, PeerLoss::Reconnecting);
        cluster.settle();
        cluster.nodes[0].adopt_all(&name(1), &dir);
        cluster.settle();
        cluster.join(0, 1);
        cluster.settle();
        let has = [0, 1].map(|node| cluster.nodes[node].has_session(&id));
        assert_eq!(has, [true, false], "{id}");
    }
}

/// The earlier node has noticed late that the client was gone, and has started again since.
#[test]
fn the_session_that_began_later_stays_whenever_the_client_has_left_the_other_one() {
    for n in 0..10 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::new(2, 2, 1600 + n, true);
        cluster.separate(0, 1);
        cluster.pass(61_000);
        cluster.connect(0, 0, &id, false);
        cluster.pass(1000);
        cluster.nodes[1].restore_session(&id);
        cluster.join(0, 1);
        cluster.settle();
        let has = [0, 1].map(|node| cluster.nodes[node].has_session(&id));
        assert_eq!(has, [true, false], "{id}");
    }
}

/// The registration of the failed node was on its way for some time, so that the session seems to have begun after the adoption. The
/// client wanted it, so that it does not give way to earlier ones.
#[test]
fn an_adopted_session_stays_although_that_of_the_failed_node_is_registered_late() {
    for n in 0..10 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::new(2, 2, 1700 + n, true);
        cluster.nodes[0].with_router(|router| router.set_standby_for(&name(1), true));
        cluster.pass(61_000);
        let mut client = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].subscribe(&mut client, "q", QoS::AtLeastOnce);
        cluster.settle();
        cluster.lose(0, 1, PeerLoss::Reconnecting);
        cluster.nodes[0].adopt_session(0, &name(1), &id, "q");
        cluster.settle();
        cluster.lose(1, 0, PeerLoss::Reconnecting);
        cluster.join(0, 1);
        cluster.collect();
        cluster.nodes[0].pass(300);
        cluster.settle();
        let has = [0, 1].map(|node| cluster.nodes[node].has_session(&id));
        assert_eq!(has, [true, false], "{id}");
    }
}

/// Node 0 of three has adopted the session of a client from node 1, which was killed. Returns the store of that. `is_later`: the session
/// began so late after the start of the nodes that it does not give way to an earlier one.
fn adopted_session(seed: u64, id: &str, is_later: bool) -> (ClusterSim, TempDir) {
    let mut cluster = ClusterSim::with_stores(3, seed);
    cluster.nodes[0].with_router(|router| router.set_standby_for(&name(1), true));
    if is_later {
        cluster.pass(61_000);
    }
    let mut client = cluster.connect(1, 0, id, false);
    cluster.nodes[1].subscribe(&mut client, "q", QoS::AtLeastOnce);
    cluster.settle();
    let failed = cluster.kill(1);
    cluster.pass(1000);
    cluster.nodes[0].with_router(|router| router.begin_succession(&name(1)));
    cluster.nodes[0].adopt_all(&name(1), &failed);
    cluster.nodes[0].with_router(|router| router.end_succession(&name(1), true));
    cluster.settle();
    (cluster, failed)
}

/// The failed node does not know yet that its sessions were adopted when the adopting node is started again, and some owners have not
/// learned of it. Half of the sessions give way to earlier ones of their clients, which may not have been known when these began.
#[test]
fn an_adopted_session_stays_after_a_restart_of_its_node() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let (mut cluster, failed) = adopted_session(1800 + n, &id, n % 2 == 0);
        // The record is written again.
        let client = cluster.connect(0, 0, &id, false);
        cluster.nodes[0].drop_connection(client);
        cluster.settle();
        let adopting = cluster.kill(0);
        cluster.start_again(1, failed, SessionHold::Released);
        cluster.separate(0, 1);
        // The registration is on its way for some time.
        cluster.collect();
        cluster.nodes[2].pass(300);
        cluster.settle();
        cluster.start_again(0, adopting, SessionHold::Released);
        cluster.settle();
        let has = [0, 1].map(|node| cluster.nodes[node].has_session(&id));
        assert_eq!(has, [true, false], "{id}");
    }
}

/// The client begins a new session while the owner, which does not know it yet, requests the end of the earlier one: that gives way to one
/// at another node.
#[test]
fn a_new_session_does_not_end_instead_of_the_one_that_it_replaces() {
    for n in 0..200 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::new(2, 2, 1900 + n, true);
        cluster.connect(0, 0, &id, false);
        cluster.separate(0, 1);
        cluster.pass(100);
        let earlier = cluster.connect(1, 0, &id, false);
        cluster.pass(8000);
        let answer = connack_of(&mut cluster, 1, earlier);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        cluster.join(0, 1);
        for _ in 0..cluster.random(20) {
            cluster.step();
        }
        let client = cluster.connect(1, 0, &id, true);
        let answer = connack_of(&mut cluster, 1, client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        let has = [0, 1].map(|node| cluster.nodes[node].has_session(&id));
        assert_eq!(has, [false, true], "{id}");
        assert!(!cluster.nodes[1].is_closing(client), "{id}");
    }
}

/// The adopting node has failed. The failed node has ended its sessions and has a new one of the client when the adopting node returns and
/// reports the adoption.
#[test]
fn a_new_session_at_the_failed_node_stays_when_the_adopting_node_returns() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let (mut cluster, failed) = adopted_session(2100 + n, &id, n % 2 == 0);
        let adopting = cluster.kill(0);
        cluster.pass(6000);
        cluster.start_again(1, failed, SessionHold::Held);
        cluster.separate(0, 1);
        cluster.settle();
        cluster.nodes[1].abandon_all();
        cluster.pass(10);
        cluster.nodes[1].with_router(|router| router.hold_sessions(SessionHold::Released));
        let client = cluster.connect(1, 0, &id, true);
        cluster.pass(8000);
        let answer = connack_of(&mut cluster, 1, client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        cluster.start_again(0, adopting, SessionHold::Released);
        cluster.nodes[0].with_router(|router| {
            router.begin_succession(&name(1));
            router.confirm_succession(&name(1));
        });
        cluster.settle();
        let has = [0, 1].map(|node| cluster.nodes[node].has_session(&id));
        assert_eq!(has, [false, true], "{id}");
    }
}
