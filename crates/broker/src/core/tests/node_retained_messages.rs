//! Retained messages on the nodes of a cluster.

use bytes::Bytes;
use mqtt::{Properties, Publish, QoS, Version};

use super::cluster_sim::ClusterSim;
use super::sim::{Sim, SimConnection};

fn retain(node: &mut Sim, connection: &mut SimConnection, topic: &str, payload: &[u8], id: u16) {
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: true,
        topic,
        packet_id: id,
        properties: Properties::EMPTY,
        payload,
    };
    let mut bytes = Vec::new();
    publish.encode(Version::V5, &mut bytes);
    node.send(connection, &bytes);
}

/// The retained messages of a node.
fn retained(node: &Sim) -> Vec<(String, Vec<u8>)> {
    let messages = node.shards[0]
        .node
        .retained
        .matching("#", None, 1000, node.now_ms);
    messages
        .iter()
        .map(|message| {
            (
                message.view().topic.to_owned(),
                message.view().payload.to_vec(),
            )
        })
        .collect()
}

#[test]
fn retained_messages_are_the_same_on_all_nodes_after_any_separation() {
    for seed in 1..=60 {
        let mut cluster = ClusterSim::new(3, 2, seed * 3571, seed % 2 == 0);
        let mut publishers: Vec<SimConnection> = (0..3)
            .map(|node| cluster.connect(node, 0, &format!("publisher{node}"), true))
            .collect();
        cluster.settle();
        for n in 0..60_u16 {
            let node = cluster.random(3);
            let topic = format!("t/{}", cluster.random(5));
            let payload = match cluster.random(4) {
                0 => Vec::new(),
                _ => vec![n as u8 + 1],
            };
            // The clocks of the nodes differ.
            let now_ms = 1_000_000 + 60_000 * node as u64 + u64::from(n);
            cluster.nodes[node].now_ms = now_ms;
            let publisher = &mut publishers[node];
            retain(&mut cluster.nodes[node], publisher, &topic, &payload, n + 1);
            match cluster.random(8) {
                0 => {
                    let (a, b) = [(0, 1), (0, 2), (1, 2)][cluster.random(3)];
                    cluster.separate(a, b);
                    cluster.join(a, b);
                }
                1..4 => cluster.settle(),
                _ => {
                    cluster.step();
                }
            }
        }
        cluster.settle();
        assert_eq!(
            retained(&cluster.nodes[0]),
            retained(&cluster.nodes[1]),
            "seed {seed}"
        );
        assert_eq!(
            retained(&cluster.nodes[0]),
            retained(&cluster.nodes[2]),
            "seed {seed}"
        );
        // What is published after everything has settled replaces what is there, whatever the clocks show.
        retain(
            &mut cluster.nodes[0],
            &mut publishers[0],
            "t/0",
            b"newest",
            1000,
        );
        cluster.settle();
        for node in &cluster.nodes {
            let newest = ("t/0".to_owned(), b"newest".to_vec());
            assert!(retained(node).contains(&newest), "seed {seed}");
        }
    }
}

#[test]
fn retained_messages_that_a_node_lacks_are_sent_piece_by_piece() {
    let mut cluster = ClusterSim::new(2, 1, 5, false);
    let mut publisher = cluster.connect(0, 0, "publisher", true);
    cluster.separate(0, 1);
    let payload = vec![7; 500_000];
    for n in 0..40 {
        let topic = format!("t/{n}");
        retain(
            &mut cluster.nodes[0],
            &mut publisher,
            &topic,
            &payload,
            n + 1,
        );
        cluster.settle();
    }
    let set_behind = |cluster: &mut ClusterSim, behind: u64| {
        cluster.nodes[0].with_router(|router| router.peers_behind = behind);
    };
    set_behind(&mut cluster, 1 << 1);
    cluster.join(0, 1);
    cluster.settle();
    assert_eq!(retained(&cluster.nodes[1]).len(), 0, "the node is behind");
    set_behind(&mut cluster, 0);
    cluster.collect();
    let bytes: usize = cluster.wires[0][1].iter().map(Bytes::len).sum();
    assert!((1 << 20..10 << 20).contains(&bytes), "{bytes} in one turn");
    for _ in 0..10 {
        cluster.pass(100);
    }
    assert_eq!(retained(&cluster.nodes[0]), retained(&cluster.nodes[1]));
    assert_eq!(retained(&cluster.nodes[1]).len(), 40);
}
