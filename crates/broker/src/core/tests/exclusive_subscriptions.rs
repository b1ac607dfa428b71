//! Exclusive subscriptions of a cluster: at most one client has that of a topic, at whichever node it is.

use std::sync::mpsc;

use mqtt::{Packet, Properties, QoS, ReasonCode, SubscribeBuf, UnsubscribeBuf, Version};

use super::cluster_sim::{ClusterSim, name, packets, payloads};
use super::sim::{Sim, SimConnection};
use crate::control::{ControlError, SubscriptionRequest};
use crate::core::node_messages::{NODE_PROTOCOL, NodeMessage, decode};
use crate::core::succession::SessionHold;

const GRANTED: Option<ReasonCode> = Some(ReasonCode(1));
const HELD: Option<ReasonCode> = Some(ReasonCode::QUOTA_EXCEEDED);
const UNDECIDED: Option<ReasonCode> = Some(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);

fn send_subscribe(node: &mut Sim, connection: &mut SimConnection, topics: &[&str]) {
    let mut subscribe = SubscribeBuf::new(1);
    for topic in topics {
        let options = mqtt::SubscriptionOptions::new(QoS::AtLeastOnce);
        subscribe.push(&format!("$exclusive/{topic}"), options);
    }
    let mut bytes = Vec::new();
    subscribe.encode(Properties::EMPTY, Version::V5, &mut bytes);
    node.send(connection, &bytes);
}

/// The codes of the SUBACK that a client has got.
fn suback(node: &mut Sim, connection: SimConnection) -> Option<Vec<ReasonCode>> {
    packets(&node.take_bytes(connection), |packet| match packet {
        Packet::SubAck(suback) => Some(suback.codes.iter().map(|&code| ReasonCode(code)).collect()),
        _ => None,
    })
}

fn code(node: &mut Sim, connection: SimConnection) -> Option<ReasonCode> {
    suback(node, connection).map(|codes| codes[0])
}

fn disconnect_code(node: &mut Sim, connection: SimConnection) -> Option<ReasonCode> {
    packets(&node.take_bytes(connection), |packet| match packet {
        Packet::Disconnect(disconnect) => Some(disconnect.reason),
        _ => None,
    })
}

impl ClusterSim {
    /// Subscribes exclusively; `None`: the SUBACK waits.
    fn try_exclusive(
        &mut self,
        node: usize,
        connection: &mut SimConnection,
        topic: &str,
    ) -> Option<ReasonCode> {
        self.nodes[node].take_bytes(*connection);
        send_subscribe(&mut self.nodes[node], connection, &[topic]);
        self.settle();
        code(&mut self.nodes[node], *connection)
    }

    fn unsubscribe(&mut self, node: usize, connection: &mut SimConnection, topic: &str) {
        let mut unsubscribe = UnsubscribeBuf::new(2);
        unsubscribe.push(&format!("$exclusive/{topic}"));
        let mut bytes = Vec::new();
        unsubscribe.encode(Properties::EMPTY, Version::V5, &mut bytes);
        self.nodes[node].send(connection, &bytes);
        self.settle();
    }

    /// The nodes and clients with the subscription of a topic.
    fn exclusive_holders(&self, topic: &str) -> Vec<(usize, String)> {
        let mut holders = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            for shard in &node.shards {
                for (client_id, &session) in &shard.by_client_id {
                    if shard.has_subscription(session, topic, Some("$exclusive/")) {
                        holders.push((number, client_id.to_string()));
                    }
                }
            }
        }
        holders
    }
}

#[test]
fn one_client_of_the_cluster_has_the_subscription() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 1000 + n, false);
        let topic = format!("exclusive/{n}");
        let mut first = cluster.connect(0, 0, "first", true);
        let mut near = cluster.connect(0, 1, "near", true);
        let mut far = cluster.connect(1, 0, "far", true);
        assert_eq!(cluster.try_exclusive(0, &mut first, &topic), GRANTED);
        assert_eq!(cluster.try_exclusive(1, &mut far, &topic), HELD);
        assert_eq!(cluster.try_exclusive(0, &mut near, &topic), HELD);
        // The holder may subscribe again [MQTT-3.8.4-3], and gets each message once.
        assert_eq!(cluster.try_exclusive(0, &mut first, &topic), GRANTED);
        let mut publisher = cluster.connect(2, 0, "publisher", true);
        cluster.nodes[2].publish(&mut publisher, &topic, b"x", QoS::AtLeastOnce, 1);
        cluster.settle();
        assert_eq!(payloads(&mut cluster.nodes[0], &mut first), [b"x".to_vec()]);
        assert!(payloads(&mut cluster.nodes[1], &mut far).is_empty());
        // Other topics are free.
        let other = format!("{topic}/other");
        assert_eq!(cluster.try_exclusive(1, &mut far, &other), GRANTED);
        cluster.unsubscribe(0, &mut first, &topic);
        assert_eq!(cluster.try_exclusive(1, &mut far, &topic), GRANTED);
        assert_eq!(cluster.try_exclusive(0, &mut first, &topic), HELD);
        cluster.nodes[1].drop_connection(far);
        cluster.settle();
        assert_eq!(cluster.try_exclusive(0, &mut near, &topic), GRANTED);
    }
}

#[test]
fn each_filter_of_a_subscribe_is_decided_alone() {
    let mut cluster = ClusterSim::new(3, 2, 1100, false);
    let mut first = cluster.connect(0, 0, "first", true);
    assert_eq!(cluster.try_exclusive(0, &mut first, "b"), GRANTED);
    let mut second = cluster.connect(1, 0, "second", true);
    cluster.nodes[1].take_bytes(second);
    let topics = ["a", "b", "a", "c", "d/#"];
    send_subscribe(&mut cluster.nodes[1], &mut second, &topics);
    // What follows the SUBSCRIBE is not processed before it.
    cluster.nodes[1].publish(&mut second, "a", b"own", QoS::AtMostOnce, 0);
    cluster.settle();
    let bytes = cluster.nodes[1].take_bytes(second);
    let codes = packets(&bytes, |packet| match packet {
        Packet::SubAck(suback) => Some(suback.codes.to_vec()),
        _ => None,
    });
    let (held, invalid) = (
        ReasonCode::QUOTA_EXCEEDED.0,
        ReasonCode::TOPIC_FILTER_INVALID.0,
    );
    assert_eq!(codes, Some(vec![1, held, 1, 1, invalid]));
    let own = packets(&bytes, |packet| match packet {
        Packet::Publish(publish) => Some(publish.payload.to_vec()),
        _ => None,
    });
    assert_eq!(own, Some(b"own".to_vec()));
}

#[test]
fn the_subscription_is_free_when_the_node_of_its_client_is_gone() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 1200 + n, false);
        let topic = format!("exclusive/{n}");
        let mut first = cluster.connect(0, 0, "first", true);
        assert_eq!(cluster.try_exclusive(0, &mut first, &topic), GRANTED);
        let mut second = cluster.connect(1, 0, "second", true);
        assert_eq!(cluster.try_exclusive(1, &mut second, &topic), HELD);
        cluster.separate(0, 1);
        cluster.separate(0, 2);
        cluster.settle();
        assert_eq!(cluster.try_exclusive(1, &mut second, &topic), GRANTED);
        let mut third = cluster.connect(2, 0, "third", true);
        assert_eq!(cluster.try_exclusive(2, &mut third, &topic), HELD);
    }
}

/// While it is not known what the other nodes have, nobody gets what somebody else may have.
#[test]
fn a_claim_waits_until_all_nodes_have_registered_their_subscriptions() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 1300 + n, false);
        let topic = format!("exclusive/{n}");
        let mut first = cluster.connect(0, 0, "first", true);
        assert_eq!(cluster.try_exclusive(0, &mut first, &topic), GRANTED);
        let mut second = cluster.connect(1, 0, "second", true);
        // Each topic has another owner when a node comes back, and the first node has not registered yet.
        cluster.separate(1, 2);
        cluster.separate(0, 2);
        cluster.settle();
        cluster.is_silent.push(0);
        cluster.join(0, 2);
        cluster.join(1, 2);
        let answer = cluster.try_exclusive(1, &mut second, &topic);
        assert!(answer.is_none() || answer == HELD, "{n}: {answer:?}");
        cluster.is_silent.clear();
        cluster.settle();
        let answer = answer.or(code(&mut cluster.nodes[1], second));
        assert_eq!(answer, HELD, "{n}");
    }
}

/// [MQTT-3.1.2-5]: the subscriptions of a session belong to it, wherever it continues.
#[test]
fn an_adopted_session_keeps_the_subscription() {
    for n in 0..20 {
        let mut cluster = ClusterSim::with_stores(3, 1400 + n);
        let topic = format!("exclusive/{n}");
        cluster.nodes[1].with_router(|router| router.set_standby_for(&name(0), true));
        let mut first = cluster.connect(0, n as usize % 2, "first", false);
        assert_eq!(cluster.try_exclusive(0, &mut first, &topic), GRANTED);
        let mut second = cluster.connect(2, 0, "second", true);
        let dir = cluster.kill(0);
        cluster.settle();
        // Until the session is adopted, it is not known who has the subscription.
        assert_eq!(cluster.try_exclusive(2, &mut second, &topic), None, "{n}");
        cluster.pass(1000);
        assert_eq!(code(&mut cluster.nodes[2], second), None, "{n}");
        cluster.pass(1100);
        assert_eq!(code(&mut cluster.nodes[2], second), UNDECIDED, "{n}");
        assert_eq!(cluster.try_exclusive(2, &mut second, &topic), None, "{n}");
        cluster.nodes[1].adopt_all(&name(0), &dir);
        cluster.settle();
        cluster.nodes[1].with_router(|router| router.end_succession(&name(0), true));
        cluster.settle();
        assert_eq!(code(&mut cluster.nodes[2], second), HELD, "{n}");
        let mut publisher = cluster.connect(2, 1, "publisher", true);
        cluster.nodes[2].publish(&mut publisher, &topic, b"x", QoS::AtLeastOnce, 1);
        cluster.settle();
        let mut first = cluster.connect(1, 0, "first", false);
        cluster.settle();
        assert_eq!(payloads(&mut cluster.nodes[1], &mut first), [b"x".to_vec()]);

        // The node returns, and ends what is at its standby. That does not concern the subscription there.
        cluster.start_again(0, dir, SessionHold::Held);
        cluster.settle();
        cluster.nodes[0].terminate("first");
        cluster.nodes[0].with_router(|router| router.hold_sessions(SessionHold::Released));
        cluster.settle();
        assert_eq!(cluster.exclusive_holders(&topic), [(1, "first".to_owned())]);
        assert_eq!(cluster.try_exclusive(2, &mut second, &topic), HELD, "{n}");
        cluster.unsubscribe(1, &mut first, &topic);
        assert_eq!(
            cluster.try_exclusive(2, &mut second, &topic),
            GRANTED,
            "{n}"
        );
    }
}

#[test]
fn of_two_clients_with_the_subscription_the_earlier_one_keeps_it() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 1500 + n, false);
        let topic = format!("exclusive/{n}");
        let mut first = cluster.connect(0, 0, "z", true);
        assert_eq!(cluster.try_exclusive(0, &mut first, &topic), GRANTED);
        cluster.separate(0, 1);
        cluster.separate(0, 2);
        cluster.settle();
        cluster.pass(4000);
        // One that is connected when the nodes meet, one that is away then.
        let is_connected = n % 2 == 0;
        let mut second = cluster.connect(1, 0, "a", is_connected);
        assert_eq!(cluster.try_exclusive(1, &mut second, &topic), GRANTED);
        if !is_connected {
            cluster.nodes[1].drop_connection(second);
        }
        cluster.pass(1000);
        cluster.join(0, 1);
        cluster.join(0, 2);
        cluster.settle();
        assert_eq!(cluster.exclusive_holders(&topic), [(0, "z".to_owned())]);
        if is_connected {
            // MQTT has no packet that ends one subscription.
            assert_eq!(disconnect_code(&mut cluster.nodes[1], second), HELD, "{n}");
        } else {
            assert!(cluster.nodes[1].has_session("a"));
        }
        let mut second = cluster.connect(1, 0, "a", is_connected);
        assert_eq!(cluster.try_exclusive(1, &mut second, &topic), HELD, "{n}");
        let mut publisher = cluster.connect(2, 0, "publisher", true);
        for id in 1..4 {
            cluster.nodes[2].publish(&mut publisher, &topic, b"x", QoS::AtLeastOnce, id);
        }
        cluster.settle();
        assert_eq!(payloads(&mut cluster.nodes[0], &mut first).len(), 3);
        cluster.unsubscribe(0, &mut first, &topic);
        assert_eq!(
            cluster.try_exclusive(1, &mut second, &topic),
            GRANTED,
            "{n}"
        );
    }
}

#[test]
fn a_stored_session_that_returns_has_its_subscription_as_before() {
    for n in 0..20 {
        let mut cluster = ClusterSim::with_stores(3, 1600 + n);
        let topic = format!("exclusive/{n}");
        let mut first = cluster.connect(0, 0, "first", false);
        assert_eq!(cluster.try_exclusive(0, &mut first, &topic), GRANTED);
        cluster.pass(1000);
        let dir = cluster.kill(0);
        cluster.settle();
        let mut second = cluster.connect(1, 0, "second", true);
        let is_taken = n % 2 == 0;
        if is_taken {
            assert_eq!(cluster.try_exclusive(1, &mut second, &topic), GRANTED);
        }
        cluster.start_again(0, dir, SessionHold::Released);
        cluster.settle();
        if is_taken {
            assert_eq!(disconnect_code(&mut cluster.nodes[1], second), HELD, "{n}");
            second = cluster.connect(1, 0, "second", true);
        }
        assert_eq!(cluster.exclusive_holders(&topic), [(0, "first".to_owned())]);
        assert_eq!(cluster.try_exclusive(1, &mut second, &topic), HELD, "{n}");
    }
}

#[test]
fn a_client_takes_the_subscription_along_to_another_node() {
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 1700 + n, false);
        let topic = format!("exclusive/{n}");
        let mut before = cluster.connect(0, 0, "client", true);
        assert_eq!(cluster.try_exclusive(0, &mut before, &topic), GRANTED);
        // Its session ends there [MQTT-3.1.4-3].
        let mut after = cluster.connect(1, 0, "client", true);
        assert_eq!(cluster.try_exclusive(1, &mut after, &topic), GRANTED, "{n}");
        let mut other = cluster.connect(2, 0, "other", true);
        assert_eq!(cluster.try_exclusive(2, &mut other, &topic), HELD, "{n}");
        cluster.nodes[1].drop_connection(after);
        cluster.settle();
        assert_eq!(cluster.try_exclusive(2, &mut other, &topic), GRANTED, "{n}");
    }
}

#[test]
fn a_client_that_goes_before_the_answer_does_not_keep_the_subscription() {
    let mut granted = 0;
    for n in 0..20 {
        let mut cluster = ClusterSim::new(3, 2, 1800 + n, false);
        let topic = format!("exclusive/{n}");
        let mut first = cluster.connect(0, 0, "first", n % 2 == 0);
        send_subscribe(&mut cluster.nodes[0], &mut first, &[&topic]);
        for _ in 0..n % 10 {
            cluster.step();
        }
        cluster.nodes[0].drop_connection(first);
        cluster.settle();
        let mut second = cluster.connect(1, 0, "second", true);
        // A durable session has it if the answer came in time.
        let expected = match cluster.exclusive_holders(&topic).is_empty() {
            true => GRANTED,
            false => HELD,
        };
        granted += u32::from(expected == GRANTED);
        assert_eq!(cluster.try_exclusive(1, &mut second, &topic), expected);
    }
    assert!(granted >= 10, "{granted}");
}

/// The messages are not sent to a node of the version before, which cannot read them.
#[test]
fn nodes_of_the_version_before_have_exclusive_subscriptions_of_their_own() {
    let mut cluster = ClusterSim::new(3, 1, 1900, false);
    cluster.separate(0, 2);
    cluster.separate(1, 2);
    cluster.protocols[2] = NODE_PROTOCOL - 1;
    cluster.join(0, 2);
    cluster.join(1, 2);
    for n in 0..20 {
        let topic = format!("exclusive/{n}");
        let mut first = cluster.connect(0, 0, &format!("first-{n}"), true);
        let mut second = cluster.connect(1, 0, &format!("second-{n}"), true);
        send_subscribe(&mut cluster.nodes[0], &mut first, &[&topic]);
        for _ in 0..100 {
            cluster.collect();
            for from in 0..2 {
                for message in &cluster.wires[from][2] {
                    let message = decode(message, 1).unwrap();
                    assert!(!matches!(message, NodeMessage::Exclusives(_)));
                }
            }
            cluster.step();
        }
        cluster.settle();
        assert_eq!(code(&mut cluster.nodes[0], first), GRANTED);
        assert_eq!(cluster.try_exclusive(1, &mut second, &topic), HELD);
        // This node does not know of the others.
        let mut third = cluster.connect(2, 0, &format!("third-{n}"), true);
        assert_eq!(cluster.try_exclusive(2, &mut third, &topic), GRANTED);
    }
}

#[test]
fn the_control_plane_waits_for_the_cluster_as_well() {
    let mut cluster = ClusterSim::new(3, 2, 2000, false);
    cluster.connect(0, 0, "first", true);
    cluster.connect(1, 0, "second", true);
    let subscribe = |cluster: &mut ClusterSim, node: usize, client_id: &str, topic: &str| {
        let (sender, answers) = mpsc::channel();
        let shard = (cluster.nodes[node].shards.iter_mut())
            .find(|shard| shard.by_client_id.contains_key(client_id))
            .unwrap();
        let subscription = SubscriptionRequest {
            topic_filter: format!("$exclusive/{topic}"),
            qos: 1,
            ..SubscriptionRequest::default()
        };
        let respond = move |answer| sender.send(answer).unwrap();
        shard.subscribe_for_client(client_id.into(), subscription, respond);
        // Ends the turn.
        cluster.nodes[node].with_router(|_| {});
        cluster.settle();
        answers.try_recv().unwrap().unwrap()
    };
    for n in 0..10 {
        let topic = format!("exclusive/{n}");
        assert_eq!(subscribe(&mut cluster, 0, "first", &topic).unwrap(), 1);
        let rejected = subscribe(&mut cluster, 1, "second", &topic);
        assert!(matches!(rejected, Err(ControlError::LimitReached(_))));
        // It has it already.
        assert_eq!(subscribe(&mut cluster, 0, "first", &topic).unwrap(), 1);
        let holders = cluster.exclusive_holders(&topic);
        assert_eq!(holders, [(0, "first".to_owned())]);
    }
}

/// Any order of messages, separations, subscriptions and ends: in the end at most one client has the subscription of a topic,
/// and nobody is rejected because of a client that has none.
#[test]
fn claims_leave_no_trace_whatever_happens_meanwhile() {
    let pairs = [(0, 1), (0, 2), (1, 2)];
    for seed in 0..60 {
        let mut cluster = ClusterSim::new(3, 2, 2100 + seed, false);
        let mut together = [true; 3];
        let mut connections: Vec<(usize, SimConnection)> = Vec::new();
        for number in 0..60 {
            match cluster.random(12) {
                0 => {
                    let pair = cluster.random(3);
                    let (a, b) = pairs[pair];
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
                4 if !connections.is_empty() => {
                    let index = cluster.random(connections.len());
                    let (node, connection) = connections.swap_remove(index);
                    cluster.nodes[node].drop_connection(connection);
                }
                5 if !connections.is_empty() => {
                    let index = cluster.random(connections.len());
                    let (node, mut connection) = connections[index];
                    let mut bytes = Vec::new();
                    let mut unsubscribe = UnsubscribeBuf::new(2);
                    unsubscribe.push("$exclusive/t/0");
                    unsubscribe.encode(Properties::EMPTY, Version::V5, &mut bytes);
                    cluster.nodes[node].send(&mut connection, &bytes);
                }
                6 | 7 => {
                    let (node, shard) = (cluster.random(3), cluster.random(2));
                    let id = format!("client-{number}");
                    let connection = cluster.nodes[node].connect(shard, &id, true);
                    connections.push((node, connection));
                }
                _ if !connections.is_empty() => {
                    let index = cluster.random(connections.len());
                    let (node, mut connection) = connections[index];
                    let topic = format!("t/{}", cluster.random(2));
                    send_subscribe(&mut cluster.nodes[node], &mut connection, &[&topic]);
                }
                _ => {}
            }
            // The simulation leaves closing to the owner of the sockets.
            connections.retain(|&(node, connection)| {
                let is_closing = cluster.nodes[node].is_closing(connection);
                if is_closing {
                    cluster.nodes[node].drop_connection(connection);
                }
                !is_closing
            });
        }
        for (pair, (a, b)) in pairs.into_iter().enumerate() {
            if !together[pair] {
                cluster.join(a, b);
            }
        }
        cluster.settle();
        for _ in 0..40 {
            cluster.pass(100);
        }
        for topic in ["t/0", "t/1"] {
            let holders = cluster.exclusive_holders(topic);
            assert!(holders.len() <= 1, "seed {seed}, {topic}: {holders:?}");
            let mut last = cluster.connect(seed as usize % 3, 0, "last", true);
            let node = seed as usize % 3;
            let answer = cluster.try_exclusive(node, &mut last, topic);
            match holders.is_empty() {
                true => assert_eq!(answer, GRANTED, "seed {seed}, {topic}"),
                false => assert_eq!(answer, HELD, "seed {seed}, {topic}"),
            }
            cluster.nodes[node].drop_connection(last);
            cluster.settle();
            for (node, client_id) in holders {
                cluster.nodes[node].terminate(&client_id);
                cluster.settle();
            }
            let mut last = cluster.connect(node, 0, "last", true);
            let answer = cluster.try_exclusive(node, &mut last, topic);
            assert_eq!(answer, GRANTED, "seed {seed}, {topic}");
            cluster.nodes[node].drop_connection(last);
            cluster.settle();
        }
    }
}
