//! Messages to `$delayed/...` at a node that is killed: each is published once, when it is due or as soon as it can be.

use mqtt::{PacketType, QoS};

use super::cluster_sim::ClusterSim;
use super::exactly_once::{
    Client, fail_over, restart, return_without_sessions, seeds, settle_alone,
};

const DELAY_MS: u64 = 5000;

/// A cluster of three nodes, and a subscriber with a durable session at the second one. A message that waits at the first node was
/// acknowledged.
fn with_delayed_message(seed: u64) -> (ClusterSim, Client) {
    let mut cluster = ClusterSim::with_stores(3, seed * 7919);
    let subscriber = Client::subscribed(&mut cluster, 1, "subscriber", "t/+");
    let mut publisher = cluster.connect(0, seed as usize % 2, "publisher", true);
    let (topic, payload) = ("$delayed/5/t/1", b"later");
    cluster.nodes[0].publish(&mut publisher, topic, payload, QoS::ExactlyOnce, 1);
    cluster.settle();
    assert!(cluster.nodes[0].has(publisher, PacketType::PubRec));
    cluster.pass(1000);
    (cluster, subscriber)
}

#[test]
fn a_node_that_starts_again_publishes_its_delayed_messages_when_they_are_due() {
    for seed in seeds() {
        let (mut cluster, mut subscriber) = with_delayed_message(seed);
        restart(&mut cluster, 0);
        cluster.pass(DELAY_MS - 2000);
        assert!(subscriber.take(&mut cluster).is_empty(), "seed {seed}");
        cluster.pass(2000);
        assert_eq!(subscriber.take(&mut cluster), ["later"], "seed {seed}");
        restart(&mut cluster, 0);
        cluster.pass(1000);
        assert!(subscriber.take(&mut cluster).is_empty(), "seed {seed}");
    }
}

/// Nobody sends the message again, so that it has to be in the store until the other node has it.
#[test]
fn a_due_message_survives_the_death_of_its_node_before_other_nodes_get_it() {
    for seed in seeds() {
        let (mut cluster, mut subscriber) = with_delayed_message(seed);
        cluster.is_silent.push(0);
        cluster.nodes[0].pass(DELAY_MS);
        settle_alone(&mut cluster, 0);
        restart(&mut cluster, 0);
        assert_eq!(subscriber.take(&mut cluster), ["later"], "seed {seed}");
    }
}

#[test]
fn the_standby_publishes_delayed_messages_once() {
    for seed in seeds() {
        let (mut cluster, mut subscriber) = with_delayed_message(seed);
        let dir = fail_over(&mut cluster, 0, 2);
        // The node returns before or after the message is due.
        let is_early = seed % 2 == 0;
        if !is_early {
            cluster.pass(DELAY_MS);
            assert_eq!(subscriber.take(&mut cluster), ["later"], "seed {seed}");
        }
        return_without_sessions(&mut cluster, 0, dir);
        assert!(subscriber.take(&mut cluster).is_empty(), "seed {seed}");
        cluster.pass(2 * DELAY_MS);
        let expected: &[&str] = match is_early {
            true => &["later"],
            false => &[],
        };
        assert_eq!(subscriber.take(&mut cluster), expected, "seed {seed}");
        let limits = &cluster.nodes[0].shards[0].node.directory;
        assert_eq!(limits.delayed.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}

/// The node is killed at any moment while the message is published.
#[test]
fn a_message_that_is_due_when_its_node_is_killed_arrives_once() {
    for seed in 1..=2 * seeds().end() {
        let (mut cluster, mut subscriber) = with_delayed_message(seed);
        cluster.is_silent.extend((seed % 3 == 0).then_some(0));
        for node in &mut cluster.nodes {
            node.pass(DELAY_MS);
        }
        for _ in 0..seed % 7 {
            cluster.step();
        }
        match seed % 2 {
            0 => restart(&mut cluster, 0),
            _ => {
                let dir = fail_over(&mut cluster, 0, 2);
                cluster.is_silent.clear();
                cluster.pass(100);
                return_without_sessions(&mut cluster, 0, dir);
            }
        }
        cluster.pass(1000);
        assert_eq!(subscriber.take(&mut cluster), ["later"], "seed {seed}");
    }
}

/// A message that was acknowledged is kept although the limit is lower now, or that of the standby is reached.
#[test]
fn delayed_messages_are_adopted_beyond_the_limits() {
    let (mut cluster, mut subscriber) = with_delayed_message(1);
    let limits = &cluster.nodes[2].shards[0].limits;
    let mut lower = (**limits).clone();
    lower.max_delayed_messages = 0;
    let lower = std::sync::Arc::new(lower);
    for shard in &mut cluster.nodes[2].shards {
        shard.set_limits(lower.clone());
    }
    fail_over(&mut cluster, 0, 2);
    cluster.pass(DELAY_MS);
    assert_eq!(subscriber.take(&mut cluster), ["later"]);
}
