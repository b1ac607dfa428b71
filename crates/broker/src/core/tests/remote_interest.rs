//! Filters of other nodes: compares what the node router and the shards know with a scan of all filters.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::QoS;
use proptest::prelude::*;

use super::cluster_sim::{ClusterSim, payloads};
use super::sim::{AWAY_TIMEOUT_MS, Sim};
use crate::core::filter_key::{FilterFingerprint, FilterKey};
use crate::core::node_messages::NODE_PROTOCOL;
use crate::core::node_messages::{self, Announcement};
use crate::core::peer_loss::PeerLoss;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::remote_interest::{
    MAX_SHAPES, NodeFilterChange, NodeFilters, RemoteInterest as _, RouterFilters,
};
use crate::core::subscription_tree::SubscriptionTree;

const NODES: u8 = 3;
const SHARDS: usize = 2;

fn peer(node: u8) -> PeerNodeIx {
    PeerNodeIx::new(node)
}

/// A node with two shards whose other nodes are played by the test. The slots of these are their indices.
struct NodeUnderTest {
    sim: Sim,
    wanted: BTreeMap<u8, BTreeSet<String>>,
}

impl NodeUnderTest {
    fn new() -> Self {
        let mut sim = Sim::in_cluster("node", SHARDS, 1, false);
        sim.finish_restore();
        let mut node = Self {
            sim,
            wanted: (0..NODES).map(|node| (node, BTreeSet::new())).collect(),
        };
        for other in 0..NODES {
            node.join(other);
        }
        node
    }

    /// Another node becomes reachable, and has not announced anything yet.
    fn join(&mut self, other: u8) {
        let name = format!("other-{other}");
        self.sim
            .with_router(|router| router.add_peer(peer(other), &name, NODE_PROTOCOL));
        self.sim.settle();
    }

    fn lose(&mut self, other: u8, loss: PeerLoss) {
        self.sim
            .with_router(|router| router.remove_peer(peer(other), loss));
        self.sim.settle();
    }

    /// What it has announced since it became reachable is everything that the node wants.
    fn complete(&mut self, other: u8) {
        let complete = node_messages::encode_complete(0);
        self.receive(other, &complete);
        self.sim.settle();
    }

    fn receive(&mut self, other: u8, message: &[u8]) {
        self.sim.with_router(|router| {
            let handled = router.handle_node_message(peer(other), message);
            handled.expect("the message is valid");
        });
    }

    fn announce(&mut self, other: u8, filter: &str, wanted: bool) {
        let announcement = Announcement::Filter {
            filter: filter.into(),
            wanted,
        };
        let mut messages = Vec::new();
        node_messages::encode_announcements(&[announcement], 0, 0, |message| {
            messages.push(message);
        });
        for message in messages {
            self.receive(other, &message);
        }
        self.sim.settle();
        let filters = self.wanted.get_mut(&other).expect("a node of the test");
        match wanted {
            true => filters.insert(filter.to_owned()),
            false => filters.remove(filter),
        };
    }

    /// The nodes that want a topic, by a scan of all filters.
    fn expected(&self, topic: &str) -> u64 {
        let wants = |filters: &BTreeSet<String>| {
            filters
                .iter()
                .any(|filter| mqtt::filter_matches(filter, topic))
        };
        let nodes = self.wanted.iter().filter(|(_, filters)| wants(filters));
        nodes.fold(0, |bits, (node, _)| bits | 1 << node)
    }

    fn check(&mut self, topic: &str) {
        let expected = self.expected(topic);
        let router = self.sim.router.as_mut().expect("the node is in a cluster");
        // Three times: the first is computed, the second is cached, the third is read from the cache.
        for _ in 0..3 {
            let nodes = router.remote.match_topic(topic).0.remote_shards;
            assert_eq!(nodes, expected, "nodes that want {topic}");
            for shard in &mut self.sim.shards {
                let shards = shard.tree.match_topic(topic).0.remote_shards;
                let is_wanted = shards & 1 << SHARDS != 0;
                assert_eq!(is_wanted, expected != 0, "whether a node wants {topic}");
            }
        }
    }

    /// Filters in the tree and in the tables of the router, and of each shard.
    fn filter_counts(&self) -> Vec<(usize, usize)> {
        let router = self.sim.router.as_ref().expect("the node is in a cluster");
        let of_router = (
            router.remote.filters.len(),
            router.remote.remote_interest().len(),
        );
        let of_shards = self.sim.shards.iter();
        let of_shards =
            of_shards.map(|shard| (shard.tree.filters.len(), shard.tree.remote_interest().len()));
        [of_router].into_iter().chain(of_shards).collect()
    }
}

/// Filters of as many shapes as there are tables.
fn filters_of_all_tables() -> Vec<String> {
    let levels = |n: usize| (0..7).map(move |level| if n & 1 << level != 0 { "+" } else { "x" });
    (0..MAX_SHAPES)
        .map(|n| levels(n).collect::<Vec<_>>().join("/"))
        .collect()
}

#[derive(Debug, Clone)]
enum Step {
    Announce {
        node: u8,
        filter: String,
        wanted: bool,
    },
    /// A node is lost, returns, and announces some of its filters again.
    Return {
        node: u8,
        keep_every: usize,
    },
    /// A node is lost and does not return, but begins anew later.
    GiveUp {
        node: u8,
    },
    Match {
        topic: String,
    },
}

fn level() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        6 => Just("a"), 4 => Just("b"), 2 => Just(""), 1 => Just("$SYS"), 1 => Just("long level name")
    ]
}

fn topic() -> impl Strategy<Value = String> {
    prop::collection::vec(level(), 1..9)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("a topic has a character", |topic| !topic.is_empty())
}

/// Of up to 1000 shapes, so that not all have a table.
fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![1 => level(), 1 => Just("+")];
    (prop::collection::vec(level, 0..9), any::<bool>())
        .prop_map(|(mut levels, multi_level)| {
            if multi_level || levels.is_empty() {
                levels.push("#");
            }
            levels.join("/")
        })
        .prop_filter("a filter has a character", |filter| !filter.is_empty())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..NODES, filter()).prop_map(|(node, filter)| Step::Announce { node, filter, wanted: true }),
        3 => (0..NODES, filter()).prop_map(|(node, filter)| Step::Announce { node, filter, wanted: false }),
        1 => (0..NODES, 1..4_usize).prop_map(|(node, keep_every)| Step::Return { node, keep_every }),
        1 => (0..NODES).prop_map(|node| Step::GiveUp { node }),
        6 => topic().prop_map(|topic| Step::Match { topic }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn nodes_get_what_a_scan_of_all_filters_finds(
        few_tables in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut node = NodeUnderTest::new();
        if few_tables {
            // Nearly all tables are in use already.
            for filter in &filters_of_all_tables()[..MAX_SHAPES - 3] {
                node.announce(NODES - 1, filter, true);
            }
        }
        let mut topics: BTreeSet<String> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Announce { node: other, filter, wanted: true } => {
                    node.announce(other, &filter, true);
                }
                Step::Announce { node: other, filter, wanted: false } => {
                    // One that exists, if possible.
                    let known = node.wanted[&other].range(filter.clone()..).next().cloned();
                    node.announce(other, &known.unwrap_or(filter), false);
                }
                Step::Return { node: other, keep_every } => {
                    node.lose(other, PeerLoss::Silent);
                    node.join(other);
                    let before = node.wanted[&other].clone();
                    let kept = before.iter().step_by(keep_every);
                    for filter in kept.clone() {
                        node.announce(other, filter, true);
                    }
                    // What it wanted stays in force until it has announced everything.
                    for topic in topics.iter().take(5) {
                        node.check(topic);
                    }
                    node.wanted.insert(other, kept.cloned().collect());
                    node.complete(other);
                }
                Step::GiveUp { node: other } => {
                    node.lose(other, PeerLoss::Left);
                    node.wanted.insert(other, BTreeSet::new());
                    for topic in &topics {
                        node.check(topic);
                    }
                    node.join(other);
                }
                Step::Match { topic } => {
                    node.check(&topic);
                    topics.insert(topic);
                }
            }
        }
        for topic in &topics {
            node.check(topic);
        }
        let counts = node.filter_counts();
        let distinct: BTreeSet<&String> = node.wanted.values().flatten().collect();
        for &(in_tree, in_tables) in &counts {
            prop_assert_eq!((in_tree, in_tables), counts[0], "the same filters are in tables everywhere");
            prop_assert_eq!(in_tree + in_tables, distinct.len());
        }
        for other in 0..NODES {
            node.lose(other, PeerLoss::Left);
        }
        for counts in node.filter_counts() {
            prop_assert_eq!(counts, (0, 0), "nothing remains of nodes that are given up");
        }
    }
}

#[test]
fn filters_of_a_known_shape_are_not_in_the_tree() {
    let mut node = NodeUnderTest::new();
    for n in 0..100 {
        node.announce(0, &format!("fleet/{n}/#"), true);
        node.announce(1, &format!("fleet/{n}/#"), true);
        node.announce(0, &format!("fleet/+/{n}"), true);
        node.announce(0, &format!("fleet/{n}/status"), true);
    }
    assert_eq!(node.filter_counts(), [(0, 300); 3]);
    node.check("fleet/7/status");
    node.check("fleet/7");
    node.check("fleet/x/7");
}

#[test]
fn filters_of_further_shapes_are_in_the_tree_until_nobody_wants_them() {
    let mut node = NodeUnderTest::new();
    let filters = filters_of_all_tables();
    for filter in &filters {
        node.announce(0, filter, true);
    }
    node.announce(0, "further/#", true);
    assert_eq!(node.filter_counts(), [(1, MAX_SHAPES); 3]);
    // There is a table for it now, but it stays where it is.
    node.announce(0, &filters[0], false);
    node.announce(1, "further/#", true);
    assert_eq!(node.filter_counts(), [(1, MAX_SHAPES - 1); 3]);
    node.check("further/1");
    node.announce(0, "further/#", false);
    node.check("further/1");
    node.announce(1, "further/#", false);
    node.check("further/1");
    assert_eq!(node.filter_counts(), [(0, MAX_SHAPES - 1); 3]);
    node.announce(1, "further/#", true);
    node.check("further/1");
    assert_eq!(node.filter_counts(), [(0, MAX_SHAPES); 3]);
}

#[test]
fn filters_with_very_many_levels_match() {
    let mut node = NodeUnderTest::new();
    for levels in [63, 64, 65, 100] {
        let deep = vec!["a"; levels].join("/");
        node.announce(0, &format!("{deep}/#"), true);
        node.announce(1, &deep, true);
        node.announce(2, &deep.replacen('a', "+", 1), true);
    }
    // Of the filters with at most 64 levels besides the `#`.
    assert_eq!(node.filter_counts(), [(6, 6); 3]);
    for levels in [62, 63, 64, 65, 66, 99, 100, 101] {
        node.check(&vec!["a"; levels].join("/"));
    }
}

#[test]
fn a_change_of_a_remote_filter_leaves_results_of_other_topics_in_the_cache() {
    let mut tree: SubscriptionTree<RouterFilters> = SubscriptionTree::default();
    let set = |tree: &mut SubscriptionTree<RouterFilters>, filter: &str, wanted: bool| {
        let key = FilterKey::of(filter);
        assert!(tree.change_remote_filter(filter, |filters| filters.set(2, &key, wanted)));
    };
    set(&mut tree, "a/+", true);
    for _ in 0..3 {
        assert_eq!(tree.match_topic("a/1").0.remote_shards, 1 << 2);
    }
    let computed = tree.computed;
    for n in 0..1_000 {
        for filter in [format!("b/{n}"), format!("b/{n}/#")] {
            set(&mut tree, &filter, true);
            assert_eq!(tree.match_topic("a/1").0.remote_shards, 1 << 2);
            set(&mut tree, &filter, false);
        }
    }
    assert_eq!(tree.computed, computed);
    set(&mut tree, "a/+", false);
    assert!(tree.match_topic("a/1").0.is_empty());
    assert_eq!(tree.computed, computed + 1);
}

#[test]
fn a_filter_with_the_hash_of_another_one_is_removed_alone() {
    let key = FilterKey::of("a/+");
    let FilterFingerprint { hash, check } = key.fingerprint;
    let mut other = key;
    other.fingerprint = FilterFingerprint {
        hash,
        check: !check,
    };
    let mut nodes = NodeFilters::default();
    assert_eq!(nodes.set(1, &key, true), Some(NodeFilterChange::Began));
    // Shards have to compute results of its topics again.
    assert_eq!(nodes.set(1, &other, true), Some(NodeFilterChange::Began));
    let same = Some(NodeFilterChange::SameForShards);
    assert_eq!(nodes.set(2, &other, true), same);
    assert_eq!(nodes.set(1, &other, false), same);
    // Shards know the hash only, and still have to send what the first one matches.
    assert_eq!(nodes.set(2, &other, false), same);
    assert_eq!(nodes.match_topic("a/1"), 1 << 1);
    nodes.set(1, &other, true);
    assert!(
        nodes
            .remove_node(1, |kept| kept == key.fingerprint)
            .is_empty()
    );
    assert_eq!(nodes.match_topic("a/1"), 1 << 1);
    assert_eq!(nodes.set(1, &key, false), Some(NodeFilterChange::Ended));
    assert_eq!(nodes.match_topic("a/1"), 0);
}

#[test]
fn tables_release_their_memory() {
    let mut nodes = NodeFilters::default();
    let keys: Vec<FilterKey> = (0..100_000)
        .map(|n| FilterKey::of(&format!("a/{n}")))
        .collect();
    for key in &keys {
        nodes.set(0, key, true);
    }
    let full = nodes.size_bytes();
    for key in &keys[1000..] {
        nodes.set(0, key, false);
    }
    assert!(nodes.size_bytes() < full / 20, "{}", nodes.size_bytes());
    assert_eq!(nodes.match_topic("a/999"), 1);
    for key in &keys[..1000] {
        nodes.set(0, key, false);
    }
    assert_eq!(nodes.size_bytes(), 0);
}

#[test]
fn a_node_that_returns_with_fewer_filters_gets_no_message_for_the_others() {
    let mut cluster = ClusterSim::new(2, SHARDS, 7, false);
    let mut subscriber = cluster.connect(1, 0, "subscriber", true);
    let mut other = cluster.connect(1, 1, "other", true);
    cluster.nodes[1].subscribe(&mut subscriber, "kept/+", QoS::AtMostOnce);
    for filter in ["gone/+", "gone/#", "gone/1", "+/1/#"] {
        cluster.nodes[1].subscribe(&mut other, filter, QoS::AtMostOnce);
    }
    cluster.settle();
    let mut publisher = cluster.connect(0, 0, "publisher", true);
    let mut publish = |cluster: &mut ClusterSim| {
        for topic in ["kept/1", "gone/1"] {
            // Twice, so that the second one finds the result in the cache.
            for _ in 0..2 {
                let payload = topic.as_bytes();
                cluster.nodes[0].publish(&mut publisher, topic, payload, QoS::AtMostOnce, 0);
            }
        }
        cluster.settle();
        let router = cluster.nodes[0].router.as_ref();
        router.map(|router| router.counts.messages_sent)
    };
    assert_eq!(publish(&mut cluster), Some(4));
    assert_eq!(payloads(&mut cluster.nodes[1], &mut subscriber).len(), 2);
    cluster.separate(0, 1);
    cluster.nodes[1].drop_connection(other);
    cluster.settle();
    cluster.join(0, 1);
    cluster.settle();
    assert_eq!(publish(&mut cluster), Some(4 + 2));
    let got = payloads(&mut cluster.nodes[1], &mut subscriber);
    assert_eq!(got, vec![b"kept/1".to_vec(); 2]);
}

#[test]
fn nothing_remains_of_a_node_that_does_not_return() {
    let mut node = NodeUnderTest::new();
    for filter in filters_of_all_tables() {
        node.announce(0, &filter, true);
    }
    node.announce(0, "further/#", true);
    node.announce(0, "further/+/1", true);
    node.lose(0, PeerLoss::Silent);
    node.sim.pass(AWAY_TIMEOUT_MS);
    node.check("further/2/1");
    assert_eq!(node.filter_counts(), [(2, MAX_SHAPES); 3]);
    node.sim.with_router(|router| {
        router.tick();
    });
    node.sim.settle();
    node.wanted.clear();
    node.check("further/2/1");
    assert_eq!(node.filter_counts(), [(0, 0); 3]);
}
