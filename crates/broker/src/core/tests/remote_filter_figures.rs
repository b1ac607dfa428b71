//! Measures the memory of filters that another node wants, and the time to match topics with them. Run each test in a
//! process of its own, for memory that was released by one is used by the next:
//! `cargo test --release -p tidegate-broker --lib filters_without_wildcards -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use mqtt::SubscriptionOptions;

use super::sim::Sim;
use crate::config::BrokerLimits;
use crate::core::node_messages::NODE_PROTOCOL;
use crate::core::node_messages::{self, Announcement};
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::subscriber_list::Subscriber;
use crate::core::tables::{SessionIx, TableIx as _};

const FILTERS: usize = 1_000_000;

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Topics in an order in which memory of one is not near that of the next.
fn topics() -> Vec<String> {
    let mut n = 0;
    let mut next = || {
        n = (n + 618_033) % FILTERS;
        format!("fleet/{n}/status")
    };
    (0..FILTERS).map(|_| next()).collect()
}

fn announce(node: &mut Sim, filters: &[String]) {
    for chunk in filters.chunks(10_000) {
        let announcements: Vec<Announcement> = chunk
            .iter()
            .map(|filter| Announcement::Filter {
                filter: filter.as_str().into(),
                wanted: true,
            })
            .collect();
        node.with_router(|router| {
            node_messages::encode_announcements(&announcements, 0, 0, |message| {
                router
                    .handle_node_message(PeerNodeIx::new(0), &message)
                    .expect("the message is valid");
            });
        });
        node.settle();
    }
}

/// Prints nanoseconds per topic, of topics that are not in the cache.
fn time_matches(node: &mut Sim, topics: &[String]) -> (u64, u64) {
    let per_topic = |since: Instant| since.elapsed().as_nanos() as u64 / topics.len() as u64;
    let start = Instant::now();
    for topic in topics {
        black_box(node.shards[0].tree.match_topic(topic).0.remote_shards);
    }
    let shard_ns = per_topic(start);
    let router = node.router.as_mut().unwrap();
    let start = Instant::now();
    for topic in topics {
        black_box(router.remote.match_topic(topic).0.remote_shards);
    }
    (shard_ns, per_topic(start))
}

fn measure(what: &str, filter: impl Fn(usize) -> String) {
    let topics = topics();
    let filters: Vec<String> = (0..FILTERS).map(filter).collect();
    let mut node = Sim::in_cluster("node-0", 2, 1, false);
    node.finish_restore();
    node.with_router(|router| {
        router.add_peer(PeerNodeIx::from_position(0), "node-1", NODE_PROTOCOL)
    });
    node.settle();
    let before = resident_bytes();
    let start = Instant::now();
    announce(&mut node, &filters);
    let announce_ns = start.elapsed().as_nanos() as usize / FILTERS;
    let bytes = resident_bytes().saturating_sub(before) / FILTERS;
    let (shard_ns, router_ns) = time_matches(&mut node, &topics);
    println!(
        "{what}: {bytes} bytes and {announce_ns} ns per filter (router and 2 shards); \
         {shard_ns} ns per topic in a shard, {router_ns} ns in the router"
    );
}

/// A node without a cluster: prints nanoseconds per topic, of topics that are not in the cache.
fn measure_without_cluster() {
    let topics = topics();
    let mut node = Sim::new(2, BrokerLimits::default(), 1);
    let tree = &mut node.shards[0].tree;
    for n in 0..100_000 {
        for filter in [format!("fleet/{n}/status"), format!("fleet/{n}/#")] {
            let id = tree.find_or_insert(&filter);
            let subscriber = Subscriber {
                session: SessionIx::from_position(n),
                identifier: 0,
                options: SubscriptionOptions::default(),
            };
            tree.subscribe(id, subscriber);
        }
    }
    for round in 0..3 {
        let start = Instant::now();
        for topic in &topics {
            black_box(tree.match_topic(topic).0.remote_shards);
        }
        let ns = start.elapsed().as_nanos() as usize / topics.len();
        println!("without a cluster, 200,000 local filters, round {round}: {ns} ns per topic");
    }
}

#[test]
#[ignore = "a measurement"]
fn node_without_a_cluster() {
    measure_without_cluster();
}

#[test]
#[ignore = "a measurement"]
fn filters_without_wildcards() {
    measure("fleet/{n}/status", |n| format!("fleet/{n}/status"));
}

#[test]
#[ignore = "a measurement"]
fn filters_with_multi_level_wildcard() {
    measure("fleet/{n}/#", |n| format!("fleet/{n}/#"));
}

#[test]
#[ignore = "a measurement"]
fn filters_with_single_level_wildcard() {
    measure("fleet/+/{n}", |n| format!("fleet/+/{n}"));
}

#[test]
#[ignore = "a measurement"]
fn one_filter() {
    measure("one filter", |_| "other".to_owned());
}

#[test]
#[ignore = "a measurement"]
fn filters_of_many_shapes() {
    // 62 shapes of up to five levels.
    measure("fleet/{n}/status and 62 shapes", |n| {
        if n >= 62 {
            return format!("fleet/{n}/status");
        }
        let depth = (n / 2 + 1).ilog2();
        let plus = n / 2 + 1 - (1 << depth);
        let mut levels: Vec<&str> = (0..depth)
            .map(|level| if plus & 1 << level != 0 { "+" } else { "x" })
            .collect();
        levels.push(if n % 2 == 0 { "#" } else { "y" });
        levels.join("/")
    });
}
