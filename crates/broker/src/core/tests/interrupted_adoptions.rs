//! A node fails while it adopts the sessions of another one: each QoS 2 message arrives exactly once at the sessions that move.

use super::cluster_sim::{ClusterSim, name};
use super::exactly_once::{Client, fail_over, return_without_sessions, seeds};
use super::sim::Sim;
use crate::core::succession::SessionHold;

/// The second node fails, then the first one, which adopts its sessions. The third one has adopted those of the first one when that returns
/// and begins anew. What the third one has for the sessions of the second one reaches the first one then, which passes it on, because
/// the third one may have some of these sessions. Those of the first one have got it when it was published there.
#[test]
fn messages_of_a_node_that_it_passes_on_to_its_adopter_arrive_once() {
    for seed in seeds() {
        let mut cluster = ClusterSim::with_stores(3, seed * 7919);
        let mut own = Client::subscribed(&mut cluster, 0, "own", "t/+");
        let mut other = Client::subscribed(&mut cluster, 1, "other", "t/+");
        // The adopter has got the message for its own sessions before.
        let mut near =
            ["near-0", "near-1"].map(|id| Client::subscribed(&mut cluster, 2, id, "t/+"));
        let mut publisher = Client::connect(&mut cluster, 0, "publisher");
        cluster.nodes[0].with_router(|router| router.set_standby_for(&name(1), true));
        cluster.settle();
        let of_other = cluster.kill(1);
        publisher.publish(&mut cluster, b"message", 1);
        cluster.settle();
        let dir = fail_over(&mut cluster, 0, 2);
        cluster.start_again(0, dir, SessionHold::Held);
        cluster.nodes[0].with_router(|router| router.begin_succession(&name(1)));
        cluster.settle();
        cluster.nodes[0].abandon_all();
        cluster.pass(10);
        cluster.nodes[0].with_router(|router| router.hold_sessions(SessionHold::Released));
        cluster.settle();
        cluster.nodes[0].adopt_all(&name(1), &of_other);
        cluster.settle();
        cluster.nodes[0].with_router(|router| router.end_succession(&name(1), true));
        cluster.settle();
        (own.node, other.node) = (2, 0);
        let [first, second] = &mut near;
        for client in [&mut own, &mut other, first, second] {
            let got = client.take(&mut cluster);
            assert_eq!(got, ["message"], "seed {seed}, {}", client.id);
        }
    }
}

/// The standby, which adopts the sessions of a node, is killed and starts again.
fn restart_standby(cluster: &mut ClusterSim, failed: usize) {
    let dir = cluster.kill(2);
    let (seed, now_ms) = (cluster.random(1 << 20) as u64, cluster.nodes[2].now_ms);
    cluster.nodes[2] = Sim::open(&name(2), 2, (seed, now_ms), dir);
    cluster.nodes[2].with_router(|router| router.begin_succession(&name(failed)));
    cluster.join(0, 2);
    cluster.settle();
}

/// The standby is killed after it has delivered and confirmed messages of others, before and after it has adopted a session. The others send
/// them for the adopted sessions when the second attempt has ended.
#[test]
fn messages_during_an_adoption_that_is_interrupted_arrive_once() {
    for seed in seeds() {
        let mut cluster = ClusterSim::with_stores(3, seed * 7919);
        let mut subscriber = Client::subscribed(&mut cluster, 1, "subscriber", "t/+");
        let mut others =
            ["other-0", "other-1"].map(|id| Client::subscribed(&mut cluster, 2, id, "t/+"));
        let mut publisher = Client::connect(&mut cluster, 0, "publisher");
        cluster.nodes[2].with_router(|router| router.set_standby_for(&name(1), true));
        cluster.settle();
        let of_failed = cluster.kill(1);
        publisher.publish(&mut cluster, b"before", 1);
        cluster.settle();
        cluster.nodes[2].adopt_all(&name(1), &of_failed);
        cluster.settle();
        publisher.publish(&mut cluster, b"after", 2);
        cluster.settle();
        restart_standby(&mut cluster, 1);
        cluster.nodes[2].adopt_all(&name(1), &of_failed);
        cluster.settle();
        cluster.nodes[2].with_router(|router| router.end_succession(&name(1), true));
        cluster.settle();
        subscriber.node = 2;
        let [first, second] = &mut others;
        for client in [&mut subscriber, first, second] {
            let got = client.take(&mut cluster);
            assert_eq!(got, ["after", "before"], "seed {seed}, {}", client.id);
        }
    }
}

/// The session that is adopted after the start must not get the number of one that has got the message and has ended.
#[test]
fn sessions_that_are_adopted_after_a_start_get_messages_from_before() {
    for seed in seeds() {
        let mut cluster = ClusterSim::with_stores(3, seed * 7919);
        let mut subscriber = Client::subscribed(&mut cluster, 1, "subscriber", "t/+");
        let ended = ["ended-0", "ended-1", "ended-2", "ended-3"];
        for id in ended {
            Client::subscribed(&mut cluster, 2, id, "t/+");
        }
        let mut publisher = Client::connect(&mut cluster, 0, "publisher");
        cluster.nodes[2].with_router(|router| router.set_standby_for(&name(1), true));
        cluster.settle();
        let of_failed = cluster.kill(1);
        publisher.publish(&mut cluster, b"before", 1);
        cluster.settle();
        for id in ended {
            assert!(cluster.nodes[2].terminate(id));
        }
        cluster.settle();
        restart_standby(&mut cluster, 1);
        cluster.nodes[2].adopt_all(&name(1), &of_failed);
        cluster.settle();
        cluster.nodes[2].with_router(|router| router.end_succession(&name(1), true));
        cluster.settle();
        subscriber.node = 2;
        assert_eq!(subscriber.take(&mut cluster), ["before"], "seed {seed}");
    }
}

/// The node whose sessions were adopted passes a message of its adopter on to that, which it is about to adopt itself.
#[test]
fn messages_that_are_passed_on_to_an_adopter_that_returns_are_for_the_adopted_sessions() {
    for seed in seeds() {
        let mut cluster = ClusterSim::with_stores(2, seed * 7919);
        let mut subscriber = Client::subscribed(&mut cluster, 1, "subscriber", "t/+");
        let mut near = Client::subscribed(&mut cluster, 0, "near", "t/+");
        let mut publisher = Client::connect(&mut cluster, 0, "publisher");
        let dir = fail_over(&mut cluster, 1, 0);
        return_without_sessions(&mut cluster, 1, dir);
        // Claims wait for the nodes that have not registered their sessions.
        for _ in 0..8 {
            cluster.pass(1000);
        }
        let mut new = Client::subscribed(&mut cluster, 1, "new", "t/+");
        cluster.nodes[1].with_router(|router| router.set_standby_for(&name(0), true));
        cluster.settle();
        cluster.separate(0, 1);
        publisher.publish(&mut cluster, b"message", 1);
        cluster.settle();
        cluster.join(0, 1);
        cluster.settle();
        cluster.nodes[1].with_router(|router| router.end_succession(&name(0), false));
        cluster.settle();
        subscriber.node = 0;
        for client in [&mut subscriber, &mut near, &mut new] {
            let got = client.take(&mut cluster);
            assert_eq!(got, ["message"], "seed {seed}, {}", client.id);
        }
    }
}
