//! Sessions of a cluster: claims, takeovers, and connections that are passed on by tunnels.

use mqtt::{Packet, QoS, ReasonCode};

use super::cluster_sim::{ClusterSim, name, packets, payloads};
use super::sim::{Sim, SimConnection};
use crate::core::node_messages::NODE_PROTOCOL;
use crate::core::peer_loss::PeerLoss;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::succession::SessionHold;

fn disconnect_code(node: &mut Sim, connection: SimConnection) -> Option<ReasonCode> {
    packets(&node.take_bytes(connection), |packet| match packet {
        Packet::Disconnect(disconnect) => Some(disconnect.reason),
        _ => None,
    })
}

/// The code of CONNACK, and whether a session was present.
fn connack(node: &mut Sim, connection: SimConnection) -> Option<(ReasonCode, bool)> {
    connack_in(&node.take_bytes(connection))
}

fn connack_in(bytes: &[u8]) -> Option<(ReasonCode, bool)> {
    packets(bytes, |packet| match packet {
        Packet::ConnAck(connack) => Some((connack.code, connack.session_present)),
        _ => None,
    })
}

/// The nodes that have a session of a client id.
fn holders(cluster: &ClusterSim, client_id: &str) -> Vec<usize> {
    let has = |node: &Sim| node.has_session(client_id);
    (0..cluster.nodes.len())
        .filter(|&n| has(&cluster.nodes[n]))
        .collect()
}

// [MQTT-3.1.4-3], over nodes.
#[test]
fn a_client_that_connects_to_another_node_takes_its_session_over() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 100 + n, false);
        let id = format!("client-{n}");
        let first = cluster.connect(0, 0, &id, true);
        assert_eq!(
            connack(&mut cluster.nodes[0], first),
            Some((ReasonCode::SUCCESS, false))
        );
        let second = cluster.connect(1, 1, &id, true);
        assert_eq!(
            disconnect_code(&mut cluster.nodes[0], first),
            Some(ReasonCode::SESSION_TAKEN_OVER)
        );
        assert_eq!(
            connack(&mut cluster.nodes[1], second),
            Some((ReasonCode::SUCCESS, false))
        );
        assert_eq!(holders(&cluster, &id), [1]);
    }
}

#[test]
fn a_durable_session_is_ended_by_a_clean_start_at_another_node() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 200 + n, false);
        let id = format!("client-{n}");
        let first = cluster.connect(0, 0, &id, false);
        cluster.nodes[0].drop_connection(first);
        let resumed = cluster.connect(0, 1, &id, false);
        assert_eq!(
            connack(&mut cluster.nodes[0], resumed),
            Some((ReasonCode::SUCCESS, true))
        );
        let clean = cluster.connect(1, 1, &id, true);
        assert_eq!(
            connack(&mut cluster.nodes[1], clean),
            Some((ReasonCode::SUCCESS, false))
        );
        assert_eq!(holders(&cluster, &id), [1]);
        // Its own node has released it.
        cluster.nodes[1].drop_connection(clean);
        let again = cluster.connect(0, 0, &id, false);
        assert_eq!(
            connack(&mut cluster.nodes[0], again),
            Some((ReasonCode::SUCCESS, false))
        );
    }
}

#[test]
fn a_durable_session_is_used_from_any_node() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 500 + n, false);
        let id = format!("client-{n}");
        let mut first = cluster.connect(0, 0, &id, false);
        cluster.nodes[0].subscribe(&mut first, "a/+", QoS::AtLeastOnce);
        cluster.settle();
        cluster.nodes[0].drop_connection(first);
        let mut publisher = cluster.connect(1, 0, "publisher", true);
        cluster.nodes[1].publish(&mut publisher, "a/b", b"queued", QoS::AtLeastOnce, 1);
        cluster.settle();
        // The client arrives at another node, with a packet right behind CONNECT.
        let mut elsewhere = cluster.nodes[2].connect(1, &id, false);
        cluster.nodes[2].publish(&mut elsewhere, "a/own", b"early", QoS::AtLeastOnce, 7);
        cluster.settle();
        assert_eq!(
            connack_in(&cluster.nodes[2].peek_bytes(elsewhere)),
            Some((ReasonCode::SUCCESS, true))
        );
        let got = payloads(&mut cluster.nodes[2], &mut elsewhere);
        assert_eq!(got, [b"queued".to_vec(), b"early".to_vec()], "client {n}");
        assert_eq!(holders(&cluster, &id), [0]);
        // The end of the connection reaches the session.
        cluster.nodes[2].drop_connection(elsewhere);
        cluster.settle();
        assert!(cluster.exits[0].is_empty());
        cluster.nodes[1].publish(&mut publisher, "a/b", b"later", QoS::AtLeastOnce, 2);
        cluster.settle();
        // Now the node with the session: the entry is told that it was taken over.
        let mut elsewhere = cluster.connect(1, 0, &id, false);
        let home = cluster.connect(0, 1, &id, false);
        assert_eq!(
            disconnect_code(&mut cluster.nodes[1], elsewhere),
            Some(ReasonCode::SESSION_TAKEN_OVER)
        );
        assert!(cluster.nodes[1].is_closing(elsewhere));
        // Nothing happens to what is closed.
        cluster.nodes[1].publish(&mut elsewhere, "a/b", b"never", QoS::AtLeastOnce, 3);
        cluster.settle();
        let mut home = home;
        let got = payloads(&mut cluster.nodes[0], &mut home);
        assert_eq!(got, [b"later".to_vec()]);
    }
}

#[test]
fn a_tunnel_ends_with_the_connection_between_its_nodes() {
    let mut cluster = ClusterSim::new(3, 1, 600, false);
    let first = cluster.connect(0, 0, "client", false);
    cluster.nodes[0].drop_connection(first);
    let elsewhere = cluster.connect(1, 0, "client", false);
    assert!(!cluster.nodes[1].is_closing(elsewhere));
    cluster.separate(0, 1);
    cluster.settle();
    assert!(cluster.nodes[1].is_closing(elsewhere));
    // The node that is alone with the client gives it a new session when it is certain that the nodes do not agree.
    cluster.pass(7500);
    let alone = cluster.connect(1, 0, "client", false);
    cluster.pass(2500);
    assert_eq!(
        connack(&mut cluster.nodes[1], alone),
        Some((ReasonCode::SUCCESS, false))
    );
}

#[test]
fn a_client_that_leaves_while_its_session_is_claimed_leaves_nothing() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 300 + n, false);
        let id = format!("client-{n}");
        let connection = cluster.nodes[0].connect(0, &id, false);
        for _ in 0..n % 5 {
            cluster.step();
        }
        cluster.nodes[0].drop_connection(connection);
        cluster.settle();
        if n % 5 == 0 {
            assert_eq!(holders(&cluster, &id), [0_usize; 0], "client {n}");
        }
        let other = cluster.connect(1, 0, &id, true);
        assert_eq!(
            connack(&mut cluster.nodes[1], other),
            Some((ReasonCode::SUCCESS, false))
        );
        assert_eq!(holders(&cluster, &id), [1]);
    }
}

/// The client has given up its connection before the nodes agree, and is connected to the node with its session.
#[test]
fn a_claim_of_a_client_that_has_left_does_not_end_its_session() {
    for n in 0..40 {
        let mut cluster = ClusterSim::new(4, 2, 1400 + n, true);
        let id = format!("client-{n}");
        let first = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].drop_connection(first);
        cluster.settle();
        cluster.separate(0, 3);
        cluster.separate(1, 3);
        // Claims wait for the third node.
        cluster.nodes[2].with_router(|router| router.hold_sessions(SessionHold::Held));
        cluster.settle();
        let elsewhere = cluster.connect(0, 0, &id, true);
        assert_eq!(connack(&mut cluster.nodes[0], elsewhere), None, "{id}");
        if n % 4 != 0 {
            // It is claimed from another owner, perhaps.
            cluster.join(0, 3);
            cluster.settle();
        }
        cluster.nodes[0].drop_connection(elsewhere);
        cluster.settle();
        let client = cluster.connect(1, 0, &id, false);
        let answer = connack(&mut cluster.nodes[1], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "{id}");
        cluster.pass(5000);
        assert_eq!(disconnect_code(&mut cluster.nodes[1], client), None, "{id}");
        assert_eq!(holders(&cluster, &id), [1], "{id}");
    }
}

/// The next connection of a client is not rejected because the one before it was closed.
#[test]
fn a_client_that_returns_at_once_claims_its_session_again() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 1, 1500 + n, false);
        let id = format!("client-{n}");
        let first = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].drop_connection(first);
        cluster.settle();
        cluster.nodes[2].with_router(|router| router.hold_sessions(SessionHold::Held));
        cluster.settle();
        let given_up = cluster.connect(0, 0, &id, false);
        cluster.nodes[0].drop_connection(given_up);
        let next = cluster.connect(0, 0, &id, false);
        assert_eq!(connack(&mut cluster.nodes[0], next), None, "{id}");
        cluster.nodes[2].with_router(|router| router.hold_sessions(SessionHold::Released));
        cluster.settle();
        let answer = connack(&mut cluster.nodes[0], next);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "{id}");
    }
}

#[test]
fn a_node_that_does_not_register_its_sessions_delays_claims_for_two_seconds_only() {
    let mut cluster = ClusterSim::new(2, 1, 400, false);
    // Node 0 sees a third node that never says anything.
    cluster.nodes[0]
        .with_router(|router| router.add_peer(PeerNodeIx::new(2), "silent", NODE_PROTOCOL));
    let ids: Vec<String> = (0..20).map(|n| format!("client-{n}")).collect();
    let waiting: Vec<_> = ids
        .iter()
        .map(|id| cluster.nodes[0].connect(0, id, true))
        .collect();
    cluster.settle();
    cluster.pass(2500);
    let accepted = waiting.iter().filter(|&&connection| {
        connack(&mut cluster.nodes[0], connection) == Some((ReasonCode::SUCCESS, false))
    });
    // The others belong to the silent node, and wait until it is given up.
    let accepted = accepted.count();
    assert!(accepted > 0 && accepted < ids.len(), "{accepted} accepted");
    cluster.nodes[0].with_router(|router| router.remove_peer(PeerNodeIx::new(2), PeerLoss::Silent));
    cluster.settle();
    cluster.pass(2500);
    assert!(ids.iter().all(|id| cluster.nodes[0].has_session(id)));
}

#[test]
fn a_session_that_is_registered_late_is_kept_instead_of_a_new_one() {
    let mut with_two_holders = 0;
    for n in 0..20 {
        let mut cluster = ClusterSim::new(2, 1, 700 + n, false);
        let id = format!("client-{n}");
        // After that, the first session gives way to no earlier one.
        cluster.pass(61_000);
        let mut first = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].subscribe(&mut first, "q", QoS::AtLeastOnce);
        cluster.settle();
        cluster.nodes[1].drop_connection(first);
        cluster.pass(10);
        cluster.separate(0, 1);
        cluster.join(0, 1);
        cluster.is_silent = vec![1];
        cluster.settle();
        if n % 2 == 1 {
            // Clients that want their sessions are rejected until then.
            cluster.pass(7500);
        }
        let second = cluster.connect(0, 0, &id, n % 2 == 0);
        cluster.pass(2500);
        with_two_holders += usize::from(holders(&cluster, &id).len() == 2);
        cluster.is_silent.clear();
        cluster.settle();
        if n % 2 == 0 {
            // The client wanted a new session.
            assert_eq!(holders(&cluster, &id), [0], "{id}");
            continue;
        }
        assert_eq!(holders(&cluster, &id), [1], "{id}");
        if cluster.nodes[0].is_closing(second) {
            let again = cluster.connect(0, 0, &id, false);
            let answer = connack_in(&cluster.nodes[0].peek_bytes(again));
            assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "{id}");
        }
    }
    // The others belong to the silent node.
    assert!(with_two_holders > 0);
}

/// Three nodes, the second of which has the session of a client that is not connected.
fn cluster_with_session(seed: u64, client_id: &str) -> ClusterSim {
    let mut cluster = ClusterSim::new(3, 1, seed, true);
    let client = cluster.connect(1, 0, client_id, false);
    cluster.nodes[1].drop_connection(client);
    cluster.settle();
    cluster
}

/// The second node has started again. It is not reachable yet, and has not read its sessions.
fn restart_second_node(cluster: &mut ClusterSim, seed: u64) {
    for other in [0, 2] {
        cluster.lose(other, 1, PeerLoss::Reconnecting);
        cluster.lose(1, other, PeerLoss::Silent);
    }
    cluster.nodes[1] = Sim::in_cluster(&name(1), 1, seed, true);
}

/// The node at which a client wants a new session fails unnoticed, and the client gets one at the node that has its session. That
/// decides no claims of others for some time, because it does not register its own sessions.
#[test]
fn a_claim_that_has_waited_does_not_end_a_later_session() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::new(2, 1, 1000 + n, true);
        let client = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].drop_connection(client);
        cluster.settle();
        cluster.nodes[1].with_router(|router| router.hold_sessions(SessionHold::Withheld));
        cluster.settle();
        cluster.connect(0, 0, &id, true);
        cluster.is_silent = vec![0];
        cluster.pass(10);
        let client = cluster.connect(1, 0, &id, true);
        let code = connack(&mut cluster.nodes[1], client);
        assert_eq!(code, Some((ReasonCode::SUCCESS, false)), "{id}");
        for _ in 0..5 {
            cluster.pass(1000);
        }
        assert!(!cluster.nodes[1].is_closing(client), "{id}");
        assert!(cluster.nodes[1].has_session(&id), "{id}");
    }
}

/// The other nodes learn that a node has started again some milliseconds before it can be reached.
#[test]
fn clients_wait_for_a_node_that_starts_again() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = cluster_with_session(900 + n, &id);
        restart_second_node(&mut cluster, n + 1);
        cluster.settle();
        let client = cluster.connect(0, 0, &id, false);
        cluster.pass(500);
        assert_eq!(connack(&mut cluster.nodes[0], client), None, "{id}");
        cluster.join(0, 1);
        cluster.join(1, 2);
        cluster.pass(500);
        cluster.nodes[1].restore_session(&id);
        cluster.nodes[1].finish_restore();
        cluster.settle();
        assert_eq!(
            connack(&mut cluster.nodes[0], client),
            Some((ReasonCode::SUCCESS, true)),
            "{id}"
        );
        assert_eq!(holders(&cluster, &id), [1]);
    }
}

/// Its sessions have what was acknowledged for them.
#[test]
fn a_node_that_needs_longer_to_return_keeps_its_sessions() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = cluster_with_session(960 + n, &id);
        restart_second_node(&mut cluster, n + 1);
        cluster.pass(2500);
        let client = cluster.connect(0, 0, &id, false);
        let answer = connack(&mut cluster.nodes[0], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        cluster.pass(1000);
        cluster.nodes[1].restore_session(&id);
        cluster.nodes[1].finish_restore();
        cluster.join(0, 1);
        cluster.join(1, 2);
        cluster.pass(500);
        assert_eq!(holders(&cluster, &id), [1], "{id}");
    }
}

/// A node that was not scheduled for some time loses all others at once, and these have adopted its sessions.
#[test]
fn a_node_that_has_lost_most_others_at_once_gives_no_new_sessions_at_once() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = cluster_with_session(980 + n, &id);
        cluster.separate(0, 1);
        cluster.separate(0, 2);
        let client = cluster.connect(0, 0, &id, false);
        cluster.pass(1000);
        assert_eq!(connack(&mut cluster.nodes[0], client), None, "{id}");
        if n % 2 == 0 {
            cluster.join(0, 1);
            cluster.join(0, 2);
            cluster.settle();
            let answer = connack(&mut cluster.nodes[0], client);
            assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "{id}");
            continue;
        }
        // It continues alone, and what it has begun gives way when it has returned.
        cluster.pass(2500);
        let answer = connack(&mut cluster.nodes[0], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        cluster.pass(10_000);
        cluster.join(0, 1);
        cluster.join(0, 2);
        cluster.settle();
        assert_eq!(holders(&cluster, &id), [1], "{id}");
    }
}

#[test]
fn a_node_that_starts_again_and_does_not_return_delays_claims_for_two_seconds_only() {
    let mut cluster = ClusterSim::new(3, 1, 950, false);
    cluster.lose(0, 1, PeerLoss::Reconnecting);
    cluster.lose(2, 1, PeerLoss::Reconnecting);
    cluster.settle();
    let client = cluster.connect(0, 0, "client", false);
    cluster.pass(1500);
    assert_eq!(connack(&mut cluster.nodes[0], client), None);
    cluster.pass(1000);
    let answer = connack(&mut cluster.nodes[0], client);
    assert_eq!(answer, Some((ReasonCode::SUCCESS, false)));
}

/// The third node has started again after the first one was killed, and does not know it. The second one has not noticed yet
/// that the first one was killed, so that nobody registers its sessions.
#[test]
fn a_node_that_does_not_know_a_failed_one_gives_no_new_sessions() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 1, 1000 + n, true);
        cluster.nodes[1].with_router(|router| router.set_standby_for(&name(0), true));
        let id = format!("client-{n}");
        let client = cluster.connect(0, 0, &id, false);
        cluster.nodes[0].drop_connection(client);
        cluster.settle();
        cluster.is_silent = vec![0];
        cluster.lose(1, 2, PeerLoss::Reconnecting);
        let now_ms = cluster.nodes[1].now_ms;
        cluster.nodes[2] = Sim::in_cluster(&name(2), 1, n + 1, true);
        cluster.nodes[2].pass(now_ms);
        cluster.nodes[2].finish_restore();
        cluster.join(1, 2);
        for attempt in 0..3 {
            let clients = [1, 2].map(|node| (node, cluster.connect(node, 0, &id, false)));
            for _ in 0..15 {
                cluster.pass(100);
            }
            for (node, client) in clients {
                let answer = connack(&mut cluster.nodes[node], client);
                let is_accepted = answer.is_some_and(|(code, _)| code == ReasonCode::SUCCESS);
                assert!(!is_accepted, "{id} at node {node}, attempt {attempt}");
            }
        }
        cluster.lose(1, 0, PeerLoss::Silent);
        cluster.settle();
        cluster.nodes[1].adopt_session(0, &name(0), &id, "q");
        cluster.nodes[1].with_router(|router| router.end_succession(&name(0), true));
        cluster.settle();
        let client = cluster.connect(1, 0, &id, false);
        let answer = connack(&mut cluster.nodes[1], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "{id}");
    }
}

/// The client got a session at the node that adopts its earlier one.
#[test]
fn an_adopted_session_replaces_one_that_began_because_it_was_not_known() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = cluster_with_session(1100 + n, &id);
        cluster.separate(0, 1);
        cluster.separate(1, 2);
        cluster.settle();
        let client = cluster.connect(0, 0, &id, false);
        let answer = connack(&mut cluster.nodes[0], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        cluster.pass(1000);
        cluster.nodes[0].adopt_session(0, &name(1), &id, "q");
        cluster.settle();
        let code = disconnect_code(&mut cluster.nodes[0], client);
        assert_eq!(code, Some(ReasonCode::SESSION_TAKEN_OVER));
        let client = cluster.connect(2, 0, &id, false);
        assert!(cluster.nodes[0].has_session(&id));
        let answer = connack(&mut cluster.nodes[2], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "{id}");
    }
}

/// The node that gave the client a session because its earlier one was not known is killed before the nodes meet.
#[test]
fn a_session_gives_way_to_an_earlier_one_also_after_a_start() {
    for n in 0..5 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::with_stores(3, 1200 + n);
        let client = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].drop_connection(client);
        cluster.pass(10);
        cluster.separate(0, 1);
        cluster.separate(1, 2);
        cluster.settle();
        let client = cluster.connect(0, 0, &id, false);
        let answer = connack(&mut cluster.nodes[0], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        cluster.nodes[0].drop_connection(client);
        cluster.pass(10);
        let dir = cluster.kill(0);
        cluster.start_again(0, dir, SessionHold::Released);
        cluster.join(1, 2);
        cluster.settle();
        assert_eq!(holders(&cluster, &id), [1], "{id}");
    }
}

/// All nodes have failed, and that with the session returns last: the others do not know that it is missing.
#[test]
fn a_session_that_a_node_gave_after_its_start_gives_way_to_an_earlier_one() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::new(3, 1, 1200 + n, true);
        cluster.pass(61_000);
        let client = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].drop_connection(client);
        cluster.settle();
        cluster.separate(0, 1);
        cluster.separate(1, 2);
        cluster.separate(0, 2);
        let now_ms = cluster.nodes[1].now_ms;
        for node in [0, 2] {
            cluster.nodes[node] = Sim::in_cluster(&name(node), 1, n + 1, true);
            cluster.nodes[node].pass(now_ms - 1_000_000);
            cluster.nodes[node].finish_restore();
        }
        cluster.join(0, 2);
        cluster.settle();
        let client = cluster.connect(2, 0, &id, false);
        let answer = connack(&mut cluster.nodes[2], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, false)), "{id}");
        cluster.pass(10_000);
        cluster.join(0, 1);
        cluster.join(1, 2);
        cluster.settle();
        assert_eq!(holders(&cluster, &id), [1], "{id}");
    }
}

/// Both sessions give way to an earlier one. The owner of the client id has not noticed yet that the node of the first one has
/// failed.
#[test]
fn an_adopted_session_does_not_give_way_to_that_of_the_failed_node() {
    for n in 0..20 {
        let id = format!("client-{n}");
        let mut cluster = ClusterSim::with_stores(3, 1300 + n);
        cluster.nodes[0].with_router(|router| router.set_standby_for(&name(1), true));
        let mut client = cluster.connect(1, 0, &id, false);
        cluster.nodes[1].subscribe(&mut client, "q", QoS::AtLeastOnce);
        cluster.settle();
        if n % 3 == 0 {
            // Before, the node that fails has adopted the sessions of its standby.
            cluster.nodes[1].with_router(|router| {
                router.begin_succession(&name(0));
                router.end_succession(&name(0), true);
            });
            cluster.pass(1000);
        }
        cluster.is_silent = vec![1];
        cluster.lose(0, 1, PeerLoss::Silent);
        cluster.settle();
        if n % 3 == 1 {
            // It was not scheduled, and expects to adopt the sessions of its standby.
            cluster.is_silent.clear();
            cluster.nodes[1].with_router(|router| router.begin_succession(&name(0)));
            cluster.settle();
            cluster.is_silent = vec![1];
        }
        let dir = cluster.nodes[1].kill();
        cluster.pass(10);
        cluster.nodes[0].adopt_all(&name(1), &dir);
        cluster.nodes[0].with_router(|router| router.end_succession(&name(1), true));
        cluster.settle();
        cluster.lose(2, 1, PeerLoss::Silent);
        cluster.settle();
        let client = cluster.connect(2, 0, &id, false);
        let answer = connack(&mut cluster.nodes[2], client);
        assert_eq!(answer, Some((ReasonCode::SUCCESS, true)), "{id}");
        assert!(cluster.nodes[0].has_session(&id), "{id}");
    }
}

#[test]
fn an_adopted_session_does_not_replace_one_that_the_client_wanted() {
    let mut cluster = cluster_with_session(1150, "client");
    cluster.separate(0, 1);
    cluster.separate(1, 2);
    cluster.settle();
    cluster.connect(0, 0, "client", true);
    assert!(!cluster.nodes[0].is_adoptable(0, &name(1), "client"));
}

#[test]
fn clients_wait_for_a_node_that_still_reads_its_sessions() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(2, 1, 800 + n, false);
        let id = format!("client-{n}");
        cluster.separate(0, 1);
        cluster.nodes[1] = Sim::in_cluster(&name(1), 1, n + 1, true);
        cluster.join(0, 1);
        for _ in 0..15 {
            cluster.pass(100);
        }
        let client = cluster.connect(0, 0, &id, false);
        for _ in 0..15 {
            cluster.pass(100);
        }
        assert_eq!(connack(&mut cluster.nodes[0], client), None, "{id}");
        cluster.nodes[1].restore_session(&id);
        cluster.nodes[1].finish_restore();
        cluster.settle();
        assert_eq!(
            connack(&mut cluster.nodes[0], client),
            Some((ReasonCode::SUCCESS, true)),
            "{id}"
        );
        assert_eq!(holders(&cluster, &id), [1]);
    }
}

#[test]
fn at_most_one_node_has_a_session_when_all_nodes_have_met() {
    for seed in 1..=100 {
        let mut cluster = ClusterSim::new(3, 2, seed * 104_729, false);
        let mut together = [true; 3];
        for _ in 0..60 {
            match cluster.random(8) {
                0 => {
                    // The pairs (0, 1), (0, 2) and (1, 2).
                    let pair = cluster.random(3);
                    let (a, b) = [(0, 1), (0, 2), (1, 2)][pair];
                    match together[pair] {
                        true => cluster.separate(a, b),
                        false => cluster.join(a, b),
                    }
                    together[pair] = !together[pair];
                }
                1 => cluster.pass(300),
                2 | 3 => {
                    for _ in 0..cluster.random(20) {
                        cluster.step();
                    }
                }
                _ => {
                    let (node, shard) = (cluster.random(3), cluster.random(2));
                    let id = format!("client-{}", cluster.random(3));
                    let clean = cluster.random(2) == 0;
                    let connection = cluster.nodes[node].connect(shard, &id, clean);
                    if cluster.random(3) == 0 {
                        cluster.nodes[node].drop_connection(connection);
                    }
                }
            }
        }
        for (pair, (a, b)) in [(0, 1), (0, 2), (1, 2)].into_iter().enumerate() {
            if !together[pair] {
                cluster.join(a, b);
            }
        }
        cluster.settle();
        for _ in 0..30 {
            cluster.pass(100);
        }
        for n in 0..3 {
            let id = format!("client-{n}");
            assert!(holders(&cluster, &id).len() <= 1, "seed {seed}, {id}");
            let last = cluster.connect(n, 0, &id, true);
            assert_eq!(
                connack(&mut cluster.nodes[n], last),
                Some((ReasonCode::SUCCESS, false)),
                "seed {seed}, {id}"
            );
            assert_eq!(holders(&cluster, &id), [n], "seed {seed}, {id}");
        }
    }
}
