//! A node fails while it adopts the sessions of another one: each QoS 2 message arrives exactly once at the sessions that move.

use super::cluster_sim::{ClusterSim, name};
use super::exactly_once::{Client, fail_over, seeds};
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
