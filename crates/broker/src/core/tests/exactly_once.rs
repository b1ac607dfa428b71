//! QoS 2 messages between nodes that are killed: each message arrives exactly once.

use std::ops::RangeInclusive;

use mqtt::{Ack, Packet, PacketType, Properties, QoS, ReasonCode, Version};
use tempfile::TempDir;

use super::cluster_sim::{ClusterSim, name, payloads};
use super::sim::{AWAY_TIMEOUT_MS, Sim, SimConnection};
use crate::core::succession::SessionHold;

/// A client with a durable session.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) id: &'static str,
    /// The node that has its session.
    pub(super) node: usize,
    connection: Option<SimConnection>,
}

impl Client {
    pub(super) fn connect(cluster: &mut ClusterSim, node: usize, id: &'static str) -> Self {
        let connection = cluster.connect(node, cluster.seed as usize % 2, id, false);
        cluster.nodes[node].take_bytes(connection);
        Self {
            id,
            node,
            connection: Some(connection),
        }
    }

    pub(super) fn connection(&mut self) -> &mut SimConnection {
        self.connection.as_mut().expect("it is connected")
    }

    /// A subscriber, which is not connected afterwards.
    pub(super) fn subscribed(
        cluster: &mut ClusterSim,
        node: usize,
        id: &'static str,
        filter: &str,
    ) -> Self {
        let mut client = Self::connect(cluster, node, id);
        cluster.nodes[node].subscribe(client.connection(), filter, QoS::ExactlyOnce);
        cluster.settle();
        client.disconnect(cluster);
        client
    }

    pub(super) fn disconnect(&mut self, cluster: &mut ClusterSim) {
        if let Some(connection) = self.connection.take() {
            cluster.nodes[self.node].drop_connection(connection);
            cluster.settle();
        }
    }

    /// Connects to its session again.
    fn return_to(&mut self, cluster: &mut ClusterSim, node: usize) {
        self.node = node;
        let connection = cluster.nodes[node].connect(0, self.id, false);
        self.connection = Some(connection);
        for _ in 0..40 {
            cluster.pass(100);
            if has_session(cluster, node, connection) {
                return;
            }
        }
        let places: Vec<bool> = cluster
            .nodes
            .iter()
            .map(|node| node.has_session(self.id))
            .collect();
        let answer = cluster.nodes[node].peek_bytes(connection);
        panic!(
            "{} has no session at node {node}; nodes with it: {places:?}; {answer:?}",
            self.id
        );
    }

    pub(super) fn publish(&mut self, cluster: &mut ClusterSim, payload: &[u8], packet_id: u16) {
        let node = self.node;
        let connection = self.connection();
        cluster.nodes[node].publish(connection, "t/1", payload, QoS::ExactlyOnce, packet_id);
    }

    /// Whether a message was acknowledged; then it is completed.
    fn complete(&mut self, cluster: &mut ClusterSim, packet_id: u16) -> bool {
        let node = self.node;
        let connection = *self.connection();
        if !cluster.nodes[node].has(connection, PacketType::PubRec) {
            return false;
        }
        let ack = Ack {
            packet_id,
            reason: ReasonCode::SUCCESS,
            properties: Properties::EMPTY,
        };
        let mut bytes = Vec::new();
        Packet::PubRel(ack).encode(Version::V5, &mut bytes);
        cluster.nodes[node].send(self.connection(), &bytes);
        cluster.settle();
        true
    }

    /// The messages that wait for it, sorted.
    pub(super) fn take(&mut self, cluster: &mut ClusterSim) -> Vec<String> {
        let node = self.node;
        self.return_to(cluster, node);
        let mut all = Vec::new();
        loop {
            cluster.settle();
            let got = payloads(&mut cluster.nodes[node], self.connection());
            if got.is_empty() {
                break;
            }
            let texts = got.into_iter().map(|got| String::from_utf8(got).unwrap());
            all.extend(texts);
        }
        self.disconnect(cluster);
        all.sort();
        all
    }
}

fn has_session(cluster: &ClusterSim, node: usize, connection: SimConnection) -> bool {
    let bytes = cluster.nodes[node].peek_bytes(connection);
    super::cluster_sim::packets(&bytes, |packet| match packet {
        Packet::ConnAck(connack) => Some(connack.session_present),
        _ => None,
    }) == Some(true)
}

/// Everything proceeds at one node, and nothing leaves it or arrives.
pub(super) fn settle_alone(cluster: &mut ClusterSim, node: usize) {
    let node = &mut cluster.nodes[node];
    while node.step() || (0..2).any(|shard| node.log_one(shard)) {}
}

/// A node is killed and starts again; what was on the way to others when it died is passed on.
pub(super) fn restart(cluster: &mut ClusterSim, node: usize) {
    let dir = cluster.kill(node);
    cluster.is_silent.clear();
    cluster.settle();
    cluster.start_again(node, dir, SessionHold::Released);
    cluster.settle();
    cluster.nodes[node].forward_restored();
    cluster.settle();
}

/// A node is killed, and another one adopts what it had. Returns the store.
pub(super) fn fail_over(cluster: &mut ClusterSim, node: usize, standby: usize) -> TempDir {
    cluster.nodes[standby].with_router(|router| router.set_standby_for(&name(node), true));
    cluster.settle();
    let dir = cluster.kill(node);
    for _ in 0..cluster.random(20) {
        cluster.step();
    }
    cluster.nodes[standby].pass(10);
    cluster.nodes[standby].adopt_all(&name(node), &dir);
    for _ in 0..cluster.random(20) {
        cluster.step();
    }
    cluster.nodes[standby].with_router(|router| router.end_succession(&name(node), true));
    cluster.settle();
    cluster.nodes[standby].with_router(|router| router.set_standby_for(&name(node), false));
    cluster.settle();
    dir
}

/// A node starts again whose sessions were adopted.
pub(super) fn return_without_sessions(cluster: &mut ClusterSim, node: usize, dir: TempDir) {
    cluster.start_again(node, dir, SessionHold::Held);
    cluster.settle();
    cluster.nodes[node].abandon_all();
    cluster.pass(10);
    cluster.nodes[node].with_router(|router| router.hold_sessions(SessionHold::Released));
    cluster.nodes[node].forward_restored();
    cluster.settle();
}

/// The runs of a test. `TIDEGATE_TEST_SEEDS=100` sets their number: each opens several stores.
pub(super) fn seeds() -> RangeInclusive<u64> {
    let seeds = std::env::var("TIDEGATE_TEST_SEEDS").ok();
    1..=seeds.map_or(5, |seeds| seeds.parse().expect("a number of seeds"))
}

fn with_subscriber(nodes: usize, seed: u64) -> (ClusterSim, Client, Client) {
    let mut cluster = ClusterSim::with_stores(nodes, seed);
    let subscriber = Client::subscribed(&mut cluster, 1, "subscriber", "t/+");
    let publisher = Client::connect(&mut cluster, 0, "publisher");
    (cluster, publisher, subscriber)
}

#[test]
fn a_receiver_that_is_killed_before_it_confirms_gets_each_message_once() {
    for seed in seeds() {
        let (mut cluster, mut publisher, mut subscriber) = with_subscriber(2, seed * 7919);
        for n in 1..=3_u16 {
            publisher.publish(&mut cluster, n.to_string().as_bytes(), n);
        }
        cluster.settle_without_logs_of(&[1]);
        // Some of its turns are logged, and it confirms nothing.
        cluster.is_silent.push(1);
        for _ in 0..cluster.random(8) {
            cluster.step();
        }
        restart(&mut cluster, 1);
        cluster.is_silent.clear();
        cluster.settle();
        assert!(publisher.complete(&mut cluster, 1), "seed {seed}");
        assert_eq!(
            subscriber.take(&mut cluster),
            ["1", "2", "3"],
            "seed {seed}"
        );
    }
}

#[test]
fn a_sender_that_is_killed_before_others_have_a_message_sends_it_once() {
    for seed in seeds() {
        let (mut cluster, mut publisher, mut subscriber) = with_subscriber(2, seed * 104_729);
        publisher.publish(&mut cluster, b"1", 1);
        match seed % 3 {
            // Its shards log the message, and the node router does not send it.
            0 => while (0..2).any(|shard| cluster.nodes[0].log_one(shard)) {},
            1 => settle_alone(&mut cluster, 0),
            _ => {
                for _ in 0..cluster.random(30) {
                    cluster.step();
                }
            }
        }
        let is_acknowledged = publisher.complete(&mut cluster, 1);
        if is_acknowledged {
            continue;
        }
        restart(&mut cluster, 0);
        // The client sends it again.
        publisher.return_to(&mut cluster, 0);
        publisher.publish(&mut cluster, b"1", 1);
        cluster.settle();
        assert!(publisher.complete(&mut cluster, 1), "seed {seed}");
        assert_eq!(subscriber.take(&mut cluster), ["1"], "seed {seed}");
    }
}

/// The packet id is stored with the message, so that it arrives even if the client does not send it again.
#[test]
fn a_message_whose_packet_id_is_stored_is_sent_after_a_start() {
    let (mut cluster, mut publisher, mut subscriber) = with_subscriber(2, 11);
    publisher.publish(&mut cluster, b"1", 1);
    while (0..2).any(|shard| cluster.nodes[0].log_one(shard)) {}
    assert!(
        !publisher.complete(&mut cluster, 1),
        "others do not have it yet"
    );
    restart(&mut cluster, 0);
    // Twice, so that it is certain that nothing is left.
    restart(&mut cluster, 0);
    assert_eq!(subscriber.take(&mut cluster), ["1"]);
}

#[test]
fn a_message_is_not_forwarded_before_the_standby_has_it() {
    let (mut cluster, mut publisher, mut subscriber) = with_subscriber(2, 12);
    publisher.publish(&mut cluster, b"1", 1);
    let shard = publisher.connection().shard;
    cluster.nodes[0].write_all(shard);
    cluster.without_log = vec![0];
    cluster.settle();
    assert_eq!(subscriber.take(&mut cluster), [""; 0]);
    cluster.without_log.clear();
    cluster.settle();
    assert!(publisher.complete(&mut cluster, 1));
    assert_eq!(subscriber.take(&mut cluster), ["1"]);
}

#[test]
fn sessions_that_a_standby_adopts_get_each_message_once() {
    for seed in seeds() {
        let (mut cluster, mut publisher, mut subscriber) = with_subscriber(3, seed * 7919);
        let mut near = Client::subscribed(&mut cluster, 2, "near", "#");
        for n in 1..=4_u16 {
            publisher.publish(&mut cluster, n.to_string().as_bytes(), n);
            if n == 2 {
                // Some are logged by the node that fails, and not confirmed.
                cluster.is_silent = vec![1];
                for _ in 0..cluster.random(20) {
                    cluster.step();
                }
            }
        }
        cluster.is_silent.clear();
        let dir = fail_over(&mut cluster, 1, 2);
        subscriber.node = 2;
        publisher.publish(&mut cluster, b"5", 5);
        cluster.settle();
        assert!(publisher.complete(&mut cluster, 1), "seed {seed}");
        return_without_sessions(&mut cluster, 1, dir);
        let all = ["1", "2", "3", "4", "5"];
        assert_eq!(subscriber.take(&mut cluster), all, "seed {seed}");
        assert_eq!(near.take(&mut cluster), all, "seed {seed}");
    }
}

/// Messages that are published while the standby adopts sessions go to the failed node and to the standby.
#[test]
fn messages_during_an_adoption_arrive_once() {
    for seed in seeds() {
        let (mut cluster, mut publisher, mut subscriber) = with_subscriber(3, seed * 7919);
        let mut at_standby = Client::connect(&mut cluster, 2, "publisher-2");
        cluster.nodes[2].with_router(|router| router.set_standby_for(&name(1), true));
        cluster.settle();
        let dir = cluster.kill(1);
        let mut expected = Vec::new();
        let mut publish = |cluster: &mut ClusterSim, n: u16| {
            publisher.publish(cluster, format!("a{n}").as_bytes(), n);
            at_standby.publish(cluster, format!("b{n}").as_bytes(), n);
            expected.extend([format!("a{n}"), format!("b{n}")]);
            for _ in 0..cluster.random(30) {
                cluster.step();
            }
        };
        publish(&mut cluster, 1);
        cluster.nodes[2].adopt_all(&name(1), &dir);
        for n in 2..5 {
            publish(&mut cluster, n);
        }
        cluster.nodes[2].with_router(|router| router.end_succession(&name(1), true));
        publish(&mut cluster, 5);
        cluster.settle();
        publish(&mut cluster, 6);
        cluster.settle();
        subscriber.node = 2;
        expected.sort();
        assert_eq!(subscriber.take(&mut cluster), expected, "seed {seed}");
    }
}

/// The standby is killed when it has adopted the sessions, before it has said so, and begins again.
#[test]
fn messages_between_two_attempts_to_adopt_the_same_sessions_arrive_once() {
    for seed in seeds() {
        let (mut cluster, mut publisher, mut subscriber) = with_subscriber(3, seed * 7919);
        cluster.nodes[2].with_router(|router| router.set_standby_for(&name(1), true));
        cluster.settle();
        let dir = cluster.kill(1);
        cluster.nodes[2].adopt_all(&name(1), &dir);
        cluster.settle();
        let of_standby = cluster.kill(2);
        let now_ms = cluster.nodes[2].now_ms;
        cluster.nodes[2] = Sim::open(&name(2), 2, (seed, now_ms), of_standby);
        cluster.nodes[2].with_router(|router| router.begin_succession(&name(1)));
        cluster.join(0, 2);
        cluster.settle();
        publisher.publish(&mut cluster, b"1", 1);
        cluster.settle();
        cluster.nodes[2].adopt_all(&name(1), &dir);
        cluster.settle();
        cluster.nodes[2].with_router(|router| router.end_succession(&name(1), true));
        cluster.settle();
        subscriber.node = 2;
        assert_eq!(subscriber.take(&mut cluster), ["1"], "seed {seed}");
    }
}

/// The standby has delivered the message to its own sessions, but has not got it for those that it adopts.
#[test]
fn nothing_is_lost_if_the_publisher_is_killed_while_a_receiver_is_being_succeeded() {
    for seed in seeds() {
        let (mut cluster, mut publisher, mut subscriber) = with_subscriber(3, seed * 7919);
        let mut others =
            ["other-0", "other-1"].map(|id| Client::subscribed(&mut cluster, 2, id, "t/+"));
        cluster.nodes[2].with_router(|router| router.set_standby_for(&name(1), true));
        cluster.settle();
        let dir = cluster.kill(1);
        publisher.publish(&mut cluster, b"message", 1);
        cluster.settle();
        cluster.nodes[2].pass(10);
        cluster.nodes[2].adopt_all(&name(1), &dir);
        let publisher_dir = cluster.kill(0);
        cluster.nodes[2].with_router(|router| router.end_succession(&name(1), true));
        cluster.settle();
        cluster.start_again(0, publisher_dir, SessionHold::Released);
        cluster.settle();
        cluster.nodes[0].forward_restored();
        cluster.settle();
        subscriber.node = 2;
        assert_eq!(subscriber.take(&mut cluster), ["message"], "seed {seed}");
        for other in &mut others {
            assert_eq!(other.take(&mut cluster), ["message"], "seed {seed}");
        }
    }
}

#[test]
fn a_standby_that_adopts_a_publisher_sends_its_messages_once() {
    for seed in seeds() {
        let (mut cluster, mut publisher, mut subscriber) = with_subscriber(3, seed * 104_729);
        let mut own = Client::subscribed(&mut cluster, 0, "own", "t/#");
        let mut near = Client::subscribed(&mut cluster, 2, "near", "#");
        publisher.publish(&mut cluster, b"1", 1);
        match seed % 3 {
            0 => while (0..2).any(|shard| cluster.nodes[0].log_one(shard)) {},
            1 => settle_alone(&mut cluster, 0),
            _ => {
                for _ in 0..cluster.random(40) {
                    cluster.step();
                }
            }
        }
        let is_acknowledged = publisher.complete(&mut cluster, 1);
        let dir = fail_over(&mut cluster, 0, 2);
        own.node = 2;
        publisher.return_to(&mut cluster, 2);
        if !is_acknowledged {
            publisher.publish(&mut cluster, b"1", 1);
            cluster.settle();
            assert!(publisher.complete(&mut cluster, 1), "seed {seed}");
        }
        return_without_sessions(&mut cluster, 0, dir);
        for client in [&mut subscriber, &mut own, &mut near] {
            assert_eq!(
                client.take(&mut cluster),
                ["1"],
                "seed {seed}, {}",
                client.id
            );
        }
        // Nothing is left in the links.
        restart(&mut cluster, 2);
        for client in [&mut subscriber, &mut own, &mut near] {
            assert_eq!(
                client.take(&mut cluster),
                [""; 0],
                "seed {seed}, {}",
                client.id
            );
        }
    }
}

#[test]
fn a_member_of_a_group_on_a_node_that_is_killed_gets_each_message_once() {
    for seed in seeds() {
        let mut cluster = ClusterSim::with_stores(2, seed * 7919);
        let mut member = Client::subscribed(&mut cluster, 1, "member", "$share/g/t/+");
        let mut publisher = Client::connect(&mut cluster, 0, "publisher");
        for n in 1..=3_u16 {
            publisher.publish(&mut cluster, n.to_string().as_bytes(), n);
        }
        cluster.is_silent = vec![1];
        for _ in 0..cluster.random(40) {
            cluster.step();
        }
        restart(&mut cluster, seed as usize % 2);
        cluster.is_silent.clear();
        cluster.settle();
        if seed % 2 == 0 {
            publisher.return_to(&mut cluster, 0);
            for n in 1..=3_u16 {
                publisher.publish(&mut cluster, n.to_string().as_bytes(), n);
            }
            cluster.settle();
        }
        assert_eq!(member.take(&mut cluster), ["1", "2", "3"], "seed {seed}");
    }
}

/// A message whose receiver is given up goes to another member, also if it was published before a start.
#[test]
fn a_message_for_a_node_that_is_given_up_goes_to_another_member() {
    for seed in seeds() {
        let mut cluster = ClusterSim::with_stores(3, seed * 7919);
        let mut members = [
            Client::subscribed(&mut cluster, 1, "member-1", "$share/g/t/+"),
            Client::subscribed(&mut cluster, 2, "member-2", "$share/g/t/+"),
        ];
        let mut publisher = Client::connect(&mut cluster, 0, "publisher");
        for n in 1..=6_u16 {
            publisher.publish(&mut cluster, n.to_string().as_bytes(), n);
        }
        settle_alone(&mut cluster, 0);
        let _dir = cluster.kill(1);
        cluster.pass(AWAY_TIMEOUT_MS + 100);
        cluster.settle();
        let got = members[1].take(&mut cluster);
        assert_eq!(got, ["1", "2", "3", "4", "5", "6"], "seed {seed}");
        assert!(publisher.complete(&mut cluster, 1), "seed {seed}");
    }
}

/// A client that publishes one message after the other, and sends each again until it is acknowledged.
struct PersistentPublisher {
    client: Client,
    number: u16,
    is_open: bool,
    published: Vec<String>,
}

impl PersistentPublisher {
    fn send(&mut self, cluster: &mut ClusterSim) {
        if !self.is_open {
            self.number += 1;
            self.is_open = true;
            self.published.push(self.payload());
        }
        let (payload, number) = (self.payload(), self.number);
        self.client.publish(cluster, payload.as_bytes(), number);
    }

    fn payload(&self) -> String {
        format!("{}-{:03}", self.client.id, self.number)
    }

    fn poll(&mut self, cluster: &mut ClusterSim) {
        if self.is_open && self.client.complete(cluster, self.number) {
            self.is_open = false;
        }
    }
}

/// Nodes are killed at any moment, and start again or are succeeded by others.
#[test]
fn each_message_arrives_once_whatever_fails() {
    for seed in seeds() {
        let mut cluster = ClusterSim::with_stores(3, seed * 7919);
        let ids = ["subscriber-0", "subscriber-1", "subscriber-2"];
        let mut subscribers: Vec<Client> = (0..3)
            .map(|node| Client::subscribed(&mut cluster, node, ids[node], "t/#"))
            .collect();
        let ids = ["publisher-0", "publisher-1", "publisher-2"];
        let mut publishers: Vec<PersistentPublisher> = (0..3)
            .map(|node| PersistentPublisher {
                client: Client::connect(&mut cluster, node, ids[node]),
                number: 0,
                is_open: false,
                published: Vec::new(),
            })
            .collect();
        for _ in 0..8 {
            for _ in 0..cluster.random(4) {
                let of = cluster.random(3);
                if !publishers[of].is_open {
                    publishers[of].send(&mut cluster);
                }
                for _ in 0..cluster.random(25) {
                    cluster.step();
                }
            }
            let node = cluster.random(3);
            let standby = (node + 1 + cluster.random(2)) % 3;
            let is_adopted = cluster.random(2) == 0;
            if is_adopted {
                let dir = fail_over(&mut cluster, node, standby);
                return_without_sessions(&mut cluster, node, dir);
            } else {
                restart(&mut cluster, node);
            }
            cluster.pass(200);
            for subscriber in subscribers.iter_mut().filter(|client| client.node == node) {
                subscriber.node = if is_adopted { standby } else { node };
            }
            for publisher in &mut publishers {
                if publisher.client.node == node {
                    let node = if is_adopted { standby } else { node };
                    publisher.client.return_to(&mut cluster, node);
                    if publisher.is_open {
                        publisher.send(&mut cluster);
                    }
                }
                cluster.settle();
                publisher.poll(&mut cluster);
            }
        }
        cluster.settle();
        let mut all = Vec::new();
        for publisher in &mut publishers {
            publisher.poll(&mut cluster);
            assert!(!publisher.is_open, "seed {seed}: {}", publisher.payload());
            all.append(&mut publisher.published);
        }
        all.sort();
        for subscriber in &mut subscribers {
            let got = subscriber.take(&mut cluster);
            assert_eq!(got, all, "seed {seed}, {}", subscriber.id);
        }
    }
}
