//! Messages between the nodes of a cluster: delivery, confirmation, and nodes that are lost and return.

use mqtt::{Packet, PacketType, QoS, ReasonCode};

use super::cluster_sim::{ClusterSim, name, packets, payloads, publish_packet};
use super::sim::{AWAY_TIMEOUT_MS, Sim, SimConnection};
use crate::core::cross_shard_batch::CrossShardMessage;
use crate::core::node_messages::{self, NODE_PROTOCOL, NodeMessage};
use crate::core::peer_loss::PeerLoss;
use crate::core::peer_node_ix::PeerNodeIx;
use crate::core::tables::TableIx as _;
use crate::metrics::Metric;

#[test]
fn a_message_published_after_the_suback_arrives_from_any_node() {
    for seed in 1..=200 {
        let mut cluster = ClusterSim::new(3, 2, seed * 7919, false);
        let mut subscriber = cluster.connect(0, 0, "subscriber", true);
        let mut publisher = cluster.connect(1, 1, "publisher", true);
        let mut other = cluster.connect(0, 1, "other", true);
        cluster.nodes[0].take_bytes(subscriber);
        // Another client uses the same filter meanwhile, so that the node's interest begins and ends.
        cluster.nodes[0].subscribe(&mut other, "a/+", QoS::AtMostOnce);
        for _ in 0..cluster.random(6) {
            cluster.step();
        }
        if cluster.random(2) == 0 {
            cluster.nodes[0].drop_connection(other);
        }
        let filter = if cluster.random(2) == 0 { "a/+" } else { "a/b" };
        cluster.nodes[0].subscribe(&mut subscriber, filter, QoS::AtLeastOnce);
        while !cluster.nodes[0].has(subscriber, PacketType::SubAck) {
            assert!(cluster.step(), "no SUBACK, and no message is waiting");
        }
        cluster.nodes[1].publish(&mut publisher, "a/b", b"late", QoS::AtLeastOnce, 1);
        cluster.settle();
        let got = payloads(&mut cluster.nodes[0], &mut subscriber);
        assert_eq!(got, [b"late".to_vec()], "seed {seed}");
    }
}

#[test]
fn a_message_reaches_each_node_once_and_no_node_that_does_not_want_it() {
    let mut cluster = ClusterSim::new(3, 2, 5, false);
    let mut subscribers = Vec::new();
    for node in 0..2 {
        for shard in 0..2 {
            let id = format!("subscriber-{node}-{shard}");
            let mut connection = cluster.connect(node, shard, &id, true);
            cluster.nodes[node].subscribe(&mut connection, "t/#", QoS::AtMostOnce);
            subscribers.push((node, connection));
        }
    }
    cluster.settle();
    let mut publisher = cluster.connect(0, 1, "publisher", true);
    for n in 0..50_u8 {
        cluster.nodes[0].publish(&mut publisher, "t/x", &[n], QoS::AtMostOnce, 0);
    }
    cluster.nodes[0].publish(&mut publisher, "other", b"-", QoS::AtMostOnce, 0);
    cluster.settle();
    let expected: Vec<Vec<u8>> = (0..50).map(|n| vec![n]).collect();
    for (node, connection) in &mut subscribers {
        assert_eq!(payloads(&mut cluster.nodes[*node], connection), expected);
    }
    let counts = |node: usize| {
        cluster.nodes[node]
            .router
            .as_ref()
            .map(|router| router.counts)
    };
    assert_eq!(counts(0).map(|counts| counts.messages_sent), Some(50));
    assert_eq!(counts(1).map(|counts| counts.messages_received), Some(50));
    assert_eq!(counts(2).map(|counts| counts.messages_received), Some(0));
}

#[test]
fn a_shared_subscription_over_nodes_gets_each_message_once() {
    for seed in 1..=100 {
        let mut cluster = ClusterSim::new(3, 2, seed * 104_729, false);
        let mut members = Vec::new();
        for n in 0..6 {
            let node = n % 3;
            let mut member = cluster.connect(node, n % 2, &format!("member{n}"), true);
            cluster.nodes[node].subscribe(&mut member, "$share/group/t/#", QoS::AtLeastOnce);
            members.push((node, member));
        }
        cluster.settle();
        let mut publishers: Vec<SimConnection> = (0..3)
            .map(|node| cluster.connect(node, 0, &format!("publisher{node}"), true))
            .collect();
        for n in 0..30_u8 {
            let node = usize::from(n) % 3;
            let topic = "t/x";
            let id = u16::from(n) + 1;
            cluster.nodes[node].publish(&mut publishers[node], topic, &[n], QoS::AtLeastOnce, id);
            if cluster.random(3) == 0 {
                cluster.step();
            }
        }
        cluster.settle();
        let mut got: Vec<Vec<u8>> = Vec::new();
        for (node, member) in &mut members {
            let taken = payloads(&mut cluster.nodes[*node], member);
            assert!(!taken.is_empty(), "seed {seed}: a member got nothing");
            got.extend(taken);
        }
        got.sort();
        let expected: Vec<Vec<u8>> = (0..30).map(|n| vec![n]).collect();
        assert_eq!(got, expected, "seed {seed}");
    }
}

#[test]
fn a_publisher_is_answered_when_the_session_on_another_node_has_the_message_in_its_log() {
    let mut cluster = ClusterSim::new(2, 2, 3, true);
    let mut subscriber = cluster.connect(0, 0, "subscriber", false);
    cluster.nodes[0].subscribe(&mut subscriber, "q/#", QoS::AtLeastOnce);
    cluster.settle();
    cluster.nodes[0].drop_connection(subscriber);
    let mut publisher = cluster.connect(1, 1, "publisher", true);
    cluster.settle();
    cluster.nodes[1].take_bytes(publisher);
    cluster.nodes[1].publish(&mut publisher, "q/1", b"kept", QoS::AtLeastOnce, 7);
    // Everything proceeds except the log of the subscriber's shard.
    for _ in 0..10_000 {
        cluster.collect();
        let stepped = (0..2).any(|node| cluster.nodes[node].step())
            || cluster.nodes[1].log_one(0)
            || cluster.nodes[1].log_one(1);
        let mut moved = false;
        for (from, to) in [(0, 1), (1, 0)] {
            if let Some(message) = cluster.wires[from][to].pop_front() {
                moved = true;
                cluster.nodes[to].with_router(|router| {
                    router
                        .handle_node_message(PeerNodeIx::from_position(from), &message)
                        .expect("valid");
                });
            }
        }
        if !stepped && !moved {
            break;
        }
    }
    let ready = ready_bytes(&cluster.nodes[1], publisher);
    assert_eq!(ready, 0, "PUBACK before the message was in the log");
    cluster.settle();
    assert!(cluster.nodes[1].has(publisher, PacketType::PubAck));
    let queued = cluster.nodes[0]
        .shards
        .iter()
        .map(|shard| shard.metrics().get(Metric::QueuedMessages));
    assert_eq!(queued.sum::<u64>(), 1);
}

/// A filter of a group may begin like an extension; the nodes would interrupt their connection if they did not understand it.
#[test]
fn filters_of_groups_that_begin_like_extensions_are_announced() {
    for (written, topic) in [
        ("$share/g/$share/a/b", "$share/a/b"),
        ("$queue/$share/a/b", "$share/a/b"),
        ("$queue/$queue/a", "$queue/a"),
        ("$exclusive/$queue/", "$queue/"),
        ("$exclusive/$exclusive/a", "$exclusive/a"),
    ] {
        let mut cluster = ClusterSim::new(2, 2, 17, false);
        let mut subscriber = cluster.connect(0, 0, "subscriber", true);
        cluster.nodes[0].subscribe(&mut subscriber, written, QoS::AtLeastOnce);
        cluster.settle();
        assert!(cluster.nodes[0].has(subscriber, PacketType::SubAck));
        let mut publisher = cluster.connect(1, 0, "publisher", true);
        cluster.nodes[1].publish(&mut publisher, topic, b"x", QoS::AtLeastOnce, 1);
        cluster.settle();
        let got = payloads(&mut cluster.nodes[0], &mut subscriber);
        assert_eq!(got, [b"x".to_vec()], "{written}");
    }
}

fn ready_bytes(node: &Sim, connection: SimConnection) -> usize {
    node.shards[connection.shard].delivery.connections[connection.at]
        .outbox
        .ready_bytes()
}

#[test]
fn a_node_that_disappears_delays_no_answer() {
    let mut cluster = ClusterSim::new(3, 2, 11, true);
    let mut far = cluster.connect(2, 0, "far", false);
    cluster.nodes[2].subscribe(&mut far, "q", QoS::AtLeastOnce);
    cluster.settle();
    let mut publisher = cluster.connect(0, 0, "publisher", true);
    let mut subscriber = cluster.connect(0, 1, "subscriber", true);
    cluster.settle();
    cluster.nodes[0].take_bytes(publisher);
    cluster.nodes[0].take_bytes(subscriber);
    cluster.nodes[0].publish(&mut publisher, "q", b"1", QoS::AtLeastOnce, 1);
    cluster.nodes[0].subscribe(&mut subscriber, "new", QoS::AtMostOnce);
    // Neither is answered before the node is given up.
    while cluster.nodes[0].step() || cluster.nodes[0].log_one(0) || cluster.nodes[0].log_one(1) {}
    assert_eq!(ready_bytes(&cluster.nodes[0], publisher), 0);
    cluster.separate(0, 2);
    cluster.settle();
    assert!(cluster.nodes[0].has(subscriber, PacketType::SubAck));
    // The node may return at once, so that its message waits for a moment.
    assert_eq!(ready_bytes(&cluster.nodes[0], publisher), 0);
    cluster.pass(AWAY_TIMEOUT_MS);
    assert!(cluster.nodes[0].has(publisher, PacketType::PubAck));
}

#[test]
fn a_node_that_leaves_delays_no_answer() {
    let (mut cluster, publisher) = with_durable_subscriber(11);
    cluster.nodes[0].with_router(|router| router.remove_peer(PeerNodeIx::new(1), PeerLoss::Left));
    cluster.settle();
    assert!(cluster.nodes[0].has(publisher, PacketType::PubAck));
}

/// A cluster with a durable session without connection on node 1. A message for it was published on node 0 and has not
/// reached node 1.
fn with_durable_subscriber(seed: u64) -> (ClusterSim, SimConnection) {
    let mut cluster = ClusterSim::new(2, 2, seed, true);
    let mut subscriber = cluster.connect(1, 0, "subscriber", false);
    cluster.nodes[1].subscribe(&mut subscriber, "q/#", QoS::AtLeastOnce);
    cluster.settle();
    cluster.nodes[1].drop_connection(subscriber);
    let mut publisher = cluster.connect(0, 1, "publisher", true);
    cluster.settle();
    cluster.nodes[0].take_bytes(publisher);
    cluster.nodes[0].publish(&mut publisher, "q/1", b"1", QoS::AtLeastOnce, 1);
    while cluster.nodes[0].step() || cluster.nodes[0].log_one(0) || cluster.nodes[0].log_one(1) {}
    (cluster, publisher)
}

fn queued_messages(node: &Sim) -> u64 {
    let shards = node.shards.iter();
    shards
        .map(|shard| shard.metrics().get(Metric::QueuedMessages))
        .sum()
}

#[test]
fn a_message_reaches_a_node_that_is_lost_for_a_moment_exactly_once() {
    for seed in 1..=50 {
        let (mut cluster, mut publisher) = with_durable_subscriber(seed * 7919);
        // The message, its record in the log or the confirmation may be lost.
        for _ in 0..cluster.random(12) {
            cluster.step();
        }
        cluster.separate(0, 1);
        cluster.nodes[0].publish(&mut publisher, "q/2", b"2", QoS::AtLeastOnce, 2);
        cluster.nodes[0].publish(&mut publisher, "q/3", b"3", QoS::AtMostOnce, 0);
        cluster.settle();
        let mut early = cluster.nodes[0].take_bytes(publisher).len();
        // Both answers have the same length.
        assert!(
            early <= 4,
            "seed {seed}: the second message is answered too early"
        );
        cluster.join(0, 1);
        for _ in 0..cluster.random(12) {
            cluster.step();
        }
        if cluster.random(2) == 0 {
            cluster.separate(0, 1);
            cluster.join(0, 1);
        }
        cluster.settle();
        early += cluster.nodes[0].take_bytes(publisher).len();
        assert_eq!(early, 8, "seed {seed}: both are answered");
        assert_eq!(queued_messages(&cluster.nodes[1]), 2, "seed {seed}");
    }
}

#[test]
fn a_node_that_has_started_again_gets_what_it_had_not_logged() {
    let (mut cluster, publisher) = with_durable_subscriber(17);
    cluster.separate(0, 1);
    cluster.nodes[1] = Sim::in_cluster(&name(1), 2, 5, true);
    cluster.nodes[1].finish_restore();
    let mut subscriber = cluster.nodes[1].connect(0, "subscriber", false);
    cluster.nodes[1].subscribe(&mut subscriber, "q/#", QoS::AtLeastOnce);
    cluster.settle();
    cluster.nodes[1].take_bytes(subscriber);
    cluster.join(0, 1);
    cluster.settle();
    assert!(cluster.nodes[0].has(publisher, PacketType::PubAck));
    let got = payloads(&mut cluster.nodes[1], &mut subscriber);
    assert_eq!(got, [b"1".to_vec()]);
}

#[test]
fn another_node_that_gets_the_place_of_a_lost_one_confirms_nothing_of_it() {
    let (mut cluster, publisher) = with_durable_subscriber(19);
    cluster.separate(0, 1);
    cluster.nodes[0]
        .with_router(|router| router.add_peer(PeerNodeIx::new(1), "another", NODE_PROTOCOL));
    let logged = node_messages::encode_logged(1000);
    cluster.nodes[0].with_router(|router| {
        router
            .handle_node_message(PeerNodeIx::new(1), &logged)
            .expect("valid");
    });
    cluster.settle();
    assert_eq!(ready_bytes(&cluster.nodes[0], publisher), 0);
    cluster.pass(AWAY_TIMEOUT_MS);
    assert!(cluster.nodes[0].has(publisher, PacketType::PubAck));
}

#[test]
fn a_message_for_a_member_of_a_node_that_does_not_return_goes_to_another_member() {
    let mut cluster = ClusterSim::new(3, 1, 29, true);
    for node in [1, 2] {
        let mut member = cluster.connect(node, 0, &format!("member-{node}"), false);
        cluster.nodes[node].subscribe(&mut member, "$share/g/t", QoS::AtLeastOnce);
        cluster.settle();
        cluster.nodes[node].drop_connection(member);
    }
    let mut publisher = cluster.connect(0, 0, "publisher", true);
    cluster.settle();
    cluster.nodes[0].take_bytes(publisher);
    for id in 1..=20 {
        cluster.nodes[0].publish(&mut publisher, "t", b"1", QoS::AtLeastOnce, id);
    }
    while cluster.nodes[0].step() || cluster.nodes[0].log_one(0) {}
    cluster.separate(0, 2);
    cluster.settle();
    let of_others = queued_messages(&cluster.nodes[1]);
    assert!((1..20).contains(&of_others), "{of_others}");
    cluster.without_log = vec![1];
    cluster.pass(AWAY_TIMEOUT_MS);
    cluster.without_log.clear();
    let answered = cluster.nodes[0].take_bytes(publisher).len() / 4;
    assert!(answered < 20, "answered before the other member has them");
    cluster.settle();
    let rest = cluster.nodes[0].take_bytes(publisher).len() / 4;
    assert_eq!(answered + rest, 20);
    assert_eq!(queued_messages(&cluster.nodes[1]), 20);
}

#[test]
fn a_message_that_a_node_passes_on_is_answered_when_the_third_node_has_logged_it() {
    let mut cluster = ClusterSim::new(3, 1, 31, true);
    let mut members = Vec::new();
    for node in [1, 2] {
        let mut member = cluster.connect(node, 0, &format!("member-{node}"), false);
        cluster.nodes[node].subscribe(&mut member, "$share/g/t", QoS::AtLeastOnce);
        cluster.settle();
        members.push(member);
    }
    // Only the member of node 1 is online.
    cluster.nodes[2].drop_connection(members[1]);
    let mut publisher = cluster.connect(0, 0, "publisher", true);
    cluster.settle();
    cluster.nodes[0].take_bytes(publisher);
    cluster.nodes[0].publish(&mut publisher, "t", b"1", QoS::AtLeastOnce, 1);
    while cluster.nodes[0].step() || cluster.nodes[0].log_one(0) {}
    // It leaves while the message is on its way.
    assert!(cluster.nodes[1].terminate("member-1"));
    while cluster.nodes[1].step() || cluster.nodes[1].log_one(0) {}
    cluster.settle_without_logs_of(&[2]);
    assert_eq!(ready_bytes(&cluster.nodes[0], publisher), 0);
    cluster.settle();
    assert!(cluster.nodes[0].has(publisher, PacketType::PubAck));
    assert_eq!(queued_messages(&cluster.nodes[2]), 1);
}

#[test]
fn a_node_that_returns_delays_no_answer_that_waits_for_another_node() {
    let mut cluster = ClusterSim::new(3, 1, 13, true);
    for node in [1, 2] {
        let mut subscriber = cluster.connect(node, 0, &format!("subscriber-{node}"), false);
        cluster.nodes[node].subscribe(&mut subscriber, "q", QoS::AtLeastOnce);
        cluster.settle();
        cluster.nodes[node].drop_connection(subscriber);
    }
    let mut publisher = cluster.connect(0, 0, "publisher", true);
    // The numbers of batches are above those after the return.
    for id in 1..20 {
        cluster.nodes[0].publish(&mut publisher, "q", b"before", QoS::AtLeastOnce, id);
        cluster.settle();
    }
    cluster.nodes[0].take_bytes(publisher);
    cluster.nodes[0].publish(&mut publisher, "q", b"waits", QoS::AtLeastOnce, 20);
    cluster.settle_without_logs_of(&[1, 2]);
    cluster.separate(0, 2);
    cluster.join(0, 2);
    cluster.settle_without_logs_of(&[1]);
    assert_eq!(ready_bytes(&cluster.nodes[0], publisher), 0);
    cluster.settle();
    assert!(cluster.nodes[0].has(publisher, PacketType::PubAck));
}

#[test]
fn an_answer_waits_for_no_batch_that_nobody_confirms() {
    for seed in 1..=20 {
        let mut cluster = ClusterSim::new(2, 2, seed * 7919, true);
        let mut subscriber = cluster.connect(0, 0, "subscriber", false);
        cluster.nodes[0].subscribe(&mut subscriber, "q", QoS::AtLeastOnce);
        let mut publisher = cluster.connect(1, 1, "publisher", true);
        let mut other = cluster.connect(1, 0, "other", true);
        cluster.settle();
        cluster.nodes[1].take_bytes(publisher);
        // The first message fills a batch; the others are in batches without messages above QoS 0.
        let large = vec![0; 200_000];
        let mut both = publish_packet("q", &large, QoS::AtLeastOnce, 1);
        both.extend(publish_packet("q", b"0", QoS::AtMostOnce, 0));
        cluster.nodes[1].send(&mut publisher, &both);
        cluster.nodes[1].publish(&mut other, "q", b"0", QoS::AtMostOnce, 0);
        cluster.settle();
        let is_answered = cluster.nodes[1].has(publisher, PacketType::PubAck);
        assert!(is_answered, "seed {seed}");
    }
}

#[test]
fn the_time_of_a_message_of_another_node_does_not_depend_on_its_neighbours() {
    let mut cluster = ClusterSim::new(2, 1, 3, false);
    let mut subscriber = cluster.connect(0, 0, "subscriber", true);
    cluster.nodes[0].subscribe(&mut subscriber, "t", QoS::AtMostOnce);
    let mut publisher = cluster.connect(1, 0, "publisher", true);
    cluster.settle();
    cluster.nodes[0].take_bytes(subscriber);
    // Messages that were received a minute ago fill a batch.
    let large = vec![0; 100_000];
    let packets = publish_packet("t", &large, QoS::AtMostOnce, 0).repeat(3);
    cluster.nodes[1].send(&mut publisher, &packets);
    cluster.nodes[1].pass(60_000);
    cluster.nodes[0].pass(60_000);
    while cluster.nodes[1].step() {}
    cluster.collect();
    let now_ms = cluster.nodes[0].now_ms;
    let mut received = 0;
    for message in cluster.wires[1][0].drain(..) {
        if let Ok(NodeMessage::Batch { batch, .. }) = node_messages::decode(&message, now_ms) {
            received += batch.count;
            let is_old =
                |crossing: CrossShardMessage<'_>| crossing.view.received_ms + 60_000 == now_ms;
            assert!(batch.iter().all(is_old));
        }
    }
    assert_eq!(received, 3);
}

#[test]
fn messages_for_a_node_whose_store_fails_are_rejected() {
    let (mut cluster, first) = with_durable_subscriber(37);
    cluster.without_log = vec![1];
    let mut publisher = cluster.connect(0, 0, "another", true);
    let puback = |cluster: &mut ClusterSim, publisher: &mut SimConnection, topic: &str, id| {
        cluster.nodes[0].take_bytes(*publisher);
        cluster.nodes[0].publish(publisher, topic, b"1", QoS::AtLeastOnce, id);
        packets(
            &cluster.nodes[0].take_bytes(*publisher),
            |packet| match packet {
                Packet::PubAck(ack) => Some(ack.reason),
                _ => None,
            },
        )
    };
    let set_rejects = |cluster: &mut ClusterSim, rejects: bool| {
        cluster.nodes[1].shards[0].set_store_rejects(rejects);
        cluster.nodes[1].with_router(|_| {});
        cluster.settle();
    };
    set_rejects(&mut cluster, true);
    let rejected = puback(&mut cluster, &mut publisher, "q/1", 1);
    assert_eq!(rejected, Some(ReasonCode::QUOTA_EXCEEDED));
    // Nobody elsewhere wants it. The answer to the first publisher is due before.
    let local = puback(&mut cluster, &mut publisher, "local", 2);
    assert_ne!(local, Some(ReasonCode::QUOTA_EXCEEDED));
    set_rejects(&mut cluster, false);
    let accepted = puback(&mut cluster, &mut publisher, "q/1", 3);
    assert_eq!(accepted, None, "it waits for the log");
    // A publisher waits for a limited time.
    cluster.pass(29_000);
    assert!(!cluster.nodes[0].is_closing(first));
    cluster.pass(2_000);
    assert!(cluster.nodes[0].is_closing(first));
}

#[test]
fn nodes_agree_again_after_separations() {
    for seed in 1..=60 {
        let mut cluster = ClusterSim::new(3, 2, seed * 6151, false);
        let mut subscribers: Vec<(usize, SimConnection, bool)> = Vec::new();
        for round in 0..10 {
            match cluster.random(4) {
                0 => {
                    let (a, b) = [(0, 1), (0, 2), (1, 2)][cluster.random(3)];
                    cluster.separate(a, b);
                    for _ in 0..cluster.random(20) {
                        cluster.step();
                    }
                    cluster.join(a, b);
                }
                1 if !subscribers.is_empty() => {
                    let at = cluster.random(subscribers.len());
                    let (node, connection, _) = subscribers.swap_remove(at);
                    cluster.nodes[node].drop_connection(connection);
                }
                _ => {
                    let (node, shard) = (cluster.random(3), cluster.random(2));
                    let id = format!("subscriber-{round}");
                    let mut connection = cluster.connect(node, shard, &id, true);
                    let filter = ["t", "t/#", "+", "$share/g/t"][cluster.random(4)];
                    cluster.nodes[node].subscribe(&mut connection, filter, QoS::AtMostOnce);
                    subscribers.push((node, connection, filter.starts_with('$')));
                }
            }
            for _ in 0..cluster.random(30) {
                cluster.step();
            }
        }
        cluster.settle();
        for (node, connection, _) in &mut subscribers {
            cluster.nodes[*node].take_bytes(*connection);
        }
        // Each node knows exactly the filters of the others: a message arrives once at each plain subscriber.
        for node in 0..3 {
            let mut publisher = cluster.connect(node, 0, &format!("publisher{node}"), true);
            cluster.nodes[node].publish(&mut publisher, "t", &[node as u8], QoS::AtMostOnce, 0);
            cluster.settle();
        }
        let mut shared = Vec::new();
        let mut members = 0;
        for (node, connection, is_shared) in &mut subscribers {
            let got = payloads(&mut cluster.nodes[*node], connection);
            if *is_shared {
                members += 1;
                shared.extend(got);
            } else {
                assert_eq!(got, [vec![0], vec![1], vec![2]], "seed {seed}");
            }
        }
        let complete = (0..3).all(|node| {
            cluster.nodes[node]
                .router
                .as_ref()
                .is_some_and(|router| router.is_complete())
        });
        assert!(complete, "seed {seed}");
        shared.sort();
        let expected = if members > 0 { 3 } else { 0 };
        assert_eq!(shared.len(), expected, "seed {seed}: {shared:?}");
    }
}

#[test]
fn damaged_messages_between_nodes_are_rejected_without_a_panic() {
    let mut cluster = ClusterSim::new(2, 1, 3, false);
    let mut subscriber = cluster.connect(0, 0, "subscriber", true);
    cluster.nodes[0].subscribe(&mut subscriber, "$share/g/t/+", QoS::AtLeastOnce);
    cluster.nodes[0].subscribe(&mut subscriber, "t/#", QoS::AtLeastOnce);
    cluster.settle();
    let mut publisher = cluster.connect(1, 0, "publisher", true);
    let claimants: Vec<_> = (0..8)
        .map(|n| cluster.connect(1, 0, &format!("claimant-{n}"), true))
        .collect();
    let mut messages = Vec::new();
    for (n, size) in [(1, 10), (2, 40_000)] {
        let payload = vec![7; size];
        cluster.nodes[1].publish(&mut publisher, "t/x", &payload, QoS::AtLeastOnce, n);
    }
    // Claims of topics, some of which the first node owns.
    for (n, mut claimant) in claimants.into_iter().enumerate() {
        let filter = format!("$exclusive/e/{n}");
        cluster.nodes[1].subscribe(&mut claimant, &filter, QoS::AtLeastOnce);
    }
    while cluster.nodes[1].step() {}
    cluster.collect();
    messages.extend(cluster.wires[1][0].drain(..));
    let read = |message: &bytes::Bytes| node_messages::decode(message, 1).unwrap();
    let is_claim = |message| matches!(read(message), NodeMessage::Exclusives(_));
    assert!(messages.iter().any(is_claim));
    assert!(!messages.iter().all(is_claim));
    let mut stream = 0;
    for message in messages {
        for at in 0..message.len().min(400) {
            for bit in [1, 0x40, 0x80] {
                stream += 1;
                let begin = node_messages::encode_stream(stream);
                let mut damaged = message.to_vec();
                damaged[at] ^= bit;
                // Some changes are valid messages; none may panic, and a batch that is accepted can be delivered.
                cluster.nodes[0].with_router(|router| {
                    // So that it has not been received before.
                    router
                        .handle_node_message(PeerNodeIx::new(1), &begin)
                        .expect("valid");
                    let _ = router.handle_node_message(PeerNodeIx::new(1), &damaged);
                });
            }
            let short = message.slice(..at);
            cluster.nodes[0].with_router(|router| {
                assert!(
                    router
                        .handle_node_message(PeerNodeIx::new(1), &short)
                        .is_err()
                );
            });
        }
        while cluster.nodes[0].step() {}
        cluster.nodes[0].take(&mut subscriber, false);
    }
}

/// A node has started again without its members. It has not reached the node with the other member since then, which the publisher's node
/// knows.
#[test]
fn messages_for_a_member_that_is_gone_are_returned_to_a_node_that_knows_others() {
    let mut cluster = ClusterSim::new(3, 2, 730, true);
    let mut members = [0, 1].map(|node| {
        let mut member = cluster.connect(node, 0, &format!("member-{node}"), false);
        cluster.nodes[node].subscribe(&mut member, "$share/g/t/+", QoS::AtLeastOnce);
        member
    });
    let mut publisher = cluster.connect(2, 0, "publisher", true);
    cluster.separate(0, 1);
    cluster.separate(0, 2);
    cluster.separate(1, 2);
    cluster.settle();
    for n in 1..=6 {
        cluster.nodes[2].publish(&mut publisher, "t/x", b"x", QoS::AtLeastOnce, n);
    }
    cluster.settle();
    cluster.nodes[1] = Sim::in_cluster(&name(1), 2, 5, true);
    cluster.nodes[1].finish_restore();
    cluster.join(1, 2);
    cluster.settle();
    cluster.join(0, 2);
    cluster.settle();
    assert_eq!(payloads(&mut cluster.nodes[0], &mut members[0]).len(), 6);
}
