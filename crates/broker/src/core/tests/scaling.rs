//! Measures the gain of a second shard without sockets. The kernel's share of the work and the load generator would
//! need cores of their own. Run it with `cargo test --release -p tidegate-broker -- --ignored --nocapture two_shards`.
//!
//! Each shard is a thread with 50 publishers. A topic's one subscriber is on any shard with the same probability, so
//! that with two shards half of all messages cross. A message counts when it is in its subscriber's outbox. Rates are
//! per second of the threads' own processor time, times the number of shards: the capacity when each shard has its own
//! core.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use hooks::{Authentication, NoHooks, PeerAddress};
use mqtt::{Connect, Properties, Publish, QoS, SubscribeBuf, SubscriptionOptions, Version};

use super::sim::node;
use crate::config::BrokerLimits;
use crate::core::node::NodeState;
use crate::core::shard::Shard;
use crate::core::tables::ConnectionIx;
use crate::net::inbox::{InboxItem, ShardInbox};

const PAIRS_PER_SHARD: usize = 50;
const BATCH: usize = 50;
const FOR: Duration = Duration::from_secs(2);
/// Bytes that may wait between two shards before publishers pause.
const CROSSING: usize = 4 << 20;

/// Nanoseconds of processor time used by this thread.
fn thread_cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

struct Runner {
    shard: Shard,
    inboxes: Arc<[ShardInbox]>,
    now_ms: u64,
    /// Deliveries found in outboxes.
    delivered: u64,
}

impl Runner {
    fn new(id: usize, node: Arc<NodeState>, inboxes: Arc<[ShardInbox]>) -> Self {
        let check = Box::new(|_, _| Authentication::allow());
        let shards = inboxes.len() as u16;
        let shard = Shard::new(id as u16, shards, node, Box::new(NoHooks), check, 1_000_000);
        Self {
            shard,
            inboxes,
            now_ms: 1_000_000,
            delivered: 0,
        }
    }

    fn connect(&mut self, client_id: &str) -> ConnectionIx {
        let at = self.shard.open_connection(0, PeerAddress::Unix);
        let mut bytes = Vec::new();
        let connect = Connect {
            version: Version::V311,
            clean_start: true,
            keep_alive_s: 0,
            client_id,
            username: None,
            password: None,
            will: None,
            properties: Properties::EMPTY,
            is_bridge: false,
        };
        connect.encode(&mut bytes);
        self.shard.receive(at, &mut bytes);
        at
    }

    fn subscribe(&mut self, at: ConnectionIx, filter: &str) {
        let mut bytes = Vec::new();
        let mut subscribe = SubscribeBuf::new(1);
        subscribe.push(filter, SubscriptionOptions::new(QoS::AtMostOnce));
        subscribe.encode(Properties::EMPTY, Version::V311, &mut bytes);
        self.shard.receive(at, &mut bytes);
    }

    /// Ends a turn like a shard's flusher, with outboxes emptied instead of written.
    fn end_turn(&mut self, packet_len: usize) {
        let id = self.shard.id;
        for at in std::mem::take(&mut self.shard.delivery.dirty) {
            let connection = &mut self.shard.delivery.connections[at];
            connection.is_dirty = false;
            let len = connection.outbox.len();
            self.delivered += (len / packet_len) as u64;
            self.shard.delivery.record_written(at, len);
        }
        for to in 0..self.inboxes.len() as u16 {
            let messages = self.shard.shard_queues.take_ready(to);
            if !messages.is_empty() {
                let bytes = messages
                    .iter()
                    .map(crate::core::shard_messages::ShardMessage::size_bytes)
                    .sum();
                self.inboxes[usize::from(to)].push(InboxItem::ShardMessages {
                    from: id,
                    messages,
                    bytes,
                });
            }
        }
        for item in self.inboxes[usize::from(id)].take_all() {
            if let InboxItem::ShardMessages { from, messages, .. } = item {
                self.shard.handle_shard_messages(from, messages);
            }
        }
        for at in std::mem::take(&mut self.shard.to_wake) {
            self.shard.resume(at);
        }
    }

    fn is_congested(&self) -> bool {
        let id = usize::from(self.shard.id);
        self.inboxes
            .iter()
            .enumerate()
            .any(|(n, inbox)| n != id && inbox.queued_bytes() > CROSSING)
    }
}

fn topic(n: usize) -> String {
    format!("bench/pair/{n:04}")
}

/// Deliveries per second of processor time, summed over the shards.
fn capacity(shards: usize) -> f64 {
    let node = node(shards, BrokerLimits::default(), None, false);
    let inboxes: Arc<[ShardInbox]> = (0..shards).map(|_| ShardInbox::new(0)).collect();
    let barrier = Arc::new(Barrier::new(shards));
    let run = |id: usize| {
        let (node, inboxes, barrier) = (node.clone(), inboxes.clone(), barrier.clone());
        move || {
            let mut runner = Runner::new(id, node, inboxes);
            // Topic n is published on shard n % shards; the shard of its subscriber is independent of that.
            let total = PAIRS_PER_SHARD * shards;
            for n in (0..total).filter(|n| n / shards % shards == id) {
                let at = runner.connect(&format!("subscriber{n}"));
                runner.subscribe(at, &topic(n));
            }
            let mut batches: Vec<(ConnectionIx, Vec<u8>)> = (0..total)
                .filter(|n| n % shards == id)
                .map(|n| {
                    let at = runner.connect(&format!("publisher{n}"));
                    let mut bytes = Vec::new();
                    let topic = topic(n);
                    let publish = Publish {
                        dup: false,
                        qos: QoS::AtMostOnce,
                        retain: false,
                        topic: &topic,
                        packet_id: 0,
                        properties: Properties::EMPTY,
                        payload: &[7; 64],
                    };
                    for _ in 0..BATCH {
                        publish.encode(Version::V311, &mut bytes);
                    }
                    (at, bytes)
                })
                .collect();
            let packet_len = batches[0].1.len() / BATCH;
            barrier.wait();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(300) {
                runner.end_turn(packet_len);
            }
            barrier.wait();
            runner.delivered = 0;
            let cpu = thread_cpu_ns();
            let begun = Instant::now();
            while begun.elapsed() < FOR {
                for (at, bytes) in &mut batches {
                    if runner.is_congested() {
                        std::thread::yield_now();
                    } else {
                        runner.shard.set_now(runner.now_ms, 0);
                        runner.shard.receive(*at, bytes);
                    }
                }
                runner.end_turn(packet_len);
            }
            runner.delivered as f64 / ((thread_cpu_ns() - cpu) as f64 / 1e9)
        }
    };
    let threads: Vec<_> = (0..shards).map(|id| std::thread::spawn(run(id))).collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum()
}

#[test]
#[ignore = "a measurement, for a quiet machine and the release profile"]
fn two_shards_against_one() {
    let mut ratios = Vec::new();
    for round in 1..=5 {
        let (one, two) = (capacity(1), capacity(2));
        ratios.push(two / one);
        println!(
            "round {round}: one {:.2} M/s, two {:.2} M/s, ratio {:.2}",
            one / 1e6,
            two / 1e6,
            two / one
        );
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[2]);
}
