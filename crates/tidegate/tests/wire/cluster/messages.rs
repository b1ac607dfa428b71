//! What clients of different nodes notice of each other while all nodes run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::support::{Cluster, evict, get, nats_or_skip, reachable, status};
use crate::support::{
    Connect, Node, Packet, Props, Publish, Raw, Subscribe, ack, eventually, kind, unique,
};

const SESSION_TAKEN_OVER: u8 = 0x8e;

/// The retained message that a new subscription gets.
pub(super) fn retained(node: &Node, topic: &str) -> Option<Packet> {
    let mut raw = Raw::client(node, 5);
    raw.subscribe_for_codes(&Subscribe::new(1).filter(topic, 0));
    let packets = raw.ping_for_packets();
    packets
        .into_iter()
        .find(|packet| packet.kind == kind::PUBLISH)
}

#[test]
fn three_nodes_form_a_cluster_and_each_answers_for_it() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    for (index, node) in cluster.nodes.iter().enumerate() {
        let status = status(node);
        assert_eq!(status["node"], format!("node-{}", index + 1));
        assert_eq!(reachable(&status), ["node-1", "node-2", "node-3"]);
        assert_eq!(status["nats"]["state"], "ready", "{status}");
        assert!(status["nats"]["managed"].is_null(), "{status}");
        let others = status["members"].as_array().unwrap().iter();
        let others = others.filter(|member| member["is_self"] == false);
        assert_eq!(others.count(), 2);
        assert_eq!(get(node, "/readyz").status, 200);
    }
}

#[test]
fn only_members_that_have_ended_can_be_evicted() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let node = &cluster.nodes[0];
    let refused = evict(node, "node-2");
    assert_eq!(refused.status, 409, "{}", refused.body);
    for unknown in ["node-9", "node-1", "not%20a%20name"] {
        let refused = evict(node, unknown);
        assert_eq!(refused.status, 404, "{unknown}: {}", refused.body);
    }
    assert_eq!(reachable(&status(node)).len(), 3);
}

#[test]
fn a_node_that_is_alone_has_no_cluster() {
    if !crate::api::own_node() {
        return;
    }
    let node = Node::shared();
    let answer = get(node, "/api/v1/cluster");
    assert_eq!(answer.status, 404);
    let detail = answer.body["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("cluster.node"), "{}", answer.body);
    assert_eq!(evict(node, "node-1").status, 404);
}

#[test]
fn messages_of_each_qos_cross_nodes_in_order_and_qos_2_once() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let prefix = unique("qos/");
    let mut subscriber = Raw::client(&cluster.nodes[0], 5);
    subscriber.subscribe(&format!("{prefix}/#"), 2);
    for (index, node) in cluster.nodes.iter().enumerate() {
        let mut publisher = Raw::client(node, 5);
        for number in 0..10_u16 {
            publisher.publish(&format!("{prefix}/{index}/0"), number.to_string());
            publisher.publish_qos1(&format!("{prefix}/{index}/1"), number.to_string(), 1);
            publisher.publish_qos2(&format!("{prefix}/{index}/2"), number.to_string(), 2);
        }
    }
    let mut received: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut messages, mut released) = (0, 0);
    while messages < 3 * 3 * 10 || released < 3 * 10 {
        let packet = subscriber.recv_packet();
        if packet.kind == kind::PUBREL {
            subscriber.send(&ack(kind::PUBCOMP, packet.id()));
            released += 1;
            continue;
        }
        assert_eq!(packet.kind, kind::PUBLISH, "{packet:?}");
        let qos = packet.topic.rsplit('/').next().unwrap();
        assert_eq!(packet.qos().to_string(), qos, "{packet:?}");
        match packet.qos() {
            0 => {}
            1 => subscriber.send(&ack(kind::PUBACK, packet.id())),
            _ => subscriber.send(&ack(kind::PUBREC, packet.id())),
        }
        let payload = String::from_utf8(packet.payload.clone()).unwrap();
        received.entry(packet.topic).or_default().push(payload);
        messages += 1;
    }
    for (topic, payloads) in &received {
        let expected: Vec<_> = (0..10).map(|number| number.to_string()).collect();
        assert_eq!(*payloads, expected, "{topic}");
    }
    assert_eq!(received.len(), 9);
    assert!(subscriber.try_recv(Duration::from_millis(100)).is_none());
}

/// The SUBACK means that publishers of all nodes are heard.
#[test]
fn after_the_suback_messages_of_all_nodes_arrive() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut publishers: Vec<Raw> = cluster
        .nodes
        .iter()
        .map(|node| Raw::client(node, 4))
        .collect();
    let mut subscriber = Raw::client(&cluster.nodes[1], 4);
    for round in 0..30 {
        let topic = unique("suback/");
        // Alternately exact filters and wildcards, whose trees differ.
        let filter = match round % 2 {
            0 => topic.clone(),
            _ => topic.replace("suback/", "+/"),
        };
        subscriber.subscribe(&filter, 0);
        for (index, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish(&topic, format!("{index}"));
        }
        let mut payloads: Vec<_> = publishers
            .iter()
            .map(|_| subscriber.recv(kind::PUBLISH).payload.clone())
            .collect();
        payloads.sort();
        assert_eq!(payloads, [b"0", b"1", b"2"], "{filter}");
        subscriber.unsubscribe(&filter);
    }
}

#[test]
fn a_shared_subscription_with_members_at_several_nodes_gets_each_message_once() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let topic = unique("share/");
    let filter = format!("$share/group/{topic}");
    let mut members: Vec<Raw> = [0, 0, 1]
        .iter()
        .map(|index| {
            let mut raw = Raw::client(&cluster.nodes[*index], 5);
            raw.subscribe(&filter, 0);
            raw
        })
        .collect();
    // A plain subscription beside it gets all of them: when it has them, they are routed.
    let mut plain = Raw::client(&cluster.nodes[0], 5);
    plain.subscribe(&topic, 0);
    const COUNT: usize = 60;
    for node in [&cluster.nodes[0], &cluster.nodes[2]] {
        let mut publisher = Raw::client(node, 5);
        for number in 0..COUNT / 2 {
            publisher.publish_qos1(&topic, format!("{} {number}", node.pid()), 1);
        }
    }
    for _ in 0..COUNT {
        plain.recv(kind::PUBLISH);
    }
    let mut payloads = Vec::new();
    eventually("the group has all messages", || {
        for member in &mut members {
            while let Some(packet) = member.try_recv(Duration::from_millis(5)) {
                payloads.push(packet.payload);
            }
        }
        payloads.len() >= COUNT
    });
    let count = payloads.len();
    payloads.sort();
    payloads.dedup();
    assert_eq!((payloads.len(), count), (COUNT, COUNT), "each once");
}

#[test]
fn retained_messages_are_known_to_all_nodes_until_they_are_deleted() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let topic = unique("retained/");
    let mut publisher = Raw::client(&cluster.nodes[2], 5);
    for payload in ["first", "second"] {
        publisher.send_publish(&Publish::new(&topic, payload).qos(1, 1).retain());
        publisher.recv(kind::PUBACK);
        for node in &cluster.nodes {
            eventually(&format!("{payload} is at all nodes"), || {
                let packet = retained(node, &topic);
                packet.is_some_and(|packet| packet.payload == payload.as_bytes())
            });
        }
    }
    // Deleted elsewhere.
    let mut publisher = Raw::client(&cluster.nodes[0], 5);
    publisher.send_publish(&Publish::new(&topic, "").qos(1, 1).retain());
    publisher.recv(kind::PUBACK);
    for node in &cluster.nodes {
        eventually("the message is deleted at all nodes", || {
            retained(node, &topic).is_none()
        });
    }
}

/// [MQTT-3.1.4-3], with the first connection at another node.
#[test]
fn mqtt5_3_1_4_3_a_connection_at_another_node_takes_the_client_id_over() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let connect = Connect::new(5, unique("t"));
    let mut connections: Vec<Raw> = Vec::new();
    // Round and round, so that the id also returns to a node that had it before.
    for index in [0, 1, 2, 0, 2] {
        let (raw, connack) = Raw::connect_for_connack(&cluster.nodes[index], &connect);
        assert!(!connack.session_present);
        if let Some(mut before) = connections.pop() {
            before.expect_disconnect(SESSION_TAKEN_OVER);
        }
        connections.push(raw);
    }
    let topic = unique("takeover/");
    connections[0].subscribe(&topic, 0);
    Raw::client(&cluster.nodes[1], 5).publish(&topic, "x");
    connections[0].recv_message(&topic, "x");
}

#[test]
fn many_clients_that_take_each_other_over_leave_one_connection() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let id = unique("r");
    let connect = Connect::new(5, &id).properties(Props::new());
    let accepted: Vec<Raw> = std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..9)
            .map(|number| {
                let (node, connect) = (&cluster.nodes[number % 3], &connect);
                scope.spawn(move || {
                    let mut raw = Raw::open(node, 5);
                    raw.send(&connect.bytes());
                    let packet = raw.recv_unless_closed()?;
                    (packet.kind == kind::CONNACK && packet.reason == 0).then_some(raw)
                })
            })
            .collect();
        let joined = tasks.into_iter().map(|task| task.join().unwrap());
        joined.flatten().collect()
    });
    let mut accepted = accepted;
    eventually("one connection remains", || {
        accepted.retain_mut(|raw| {
            raw.send(&[0xc0, 0x00]);
            // A connection that was taken over sends DISCONNECT or is closed.
            raw.try_recv_unless_closed(Duration::from_secs(2))
                .is_some_and(|packet| packet.kind == kind::PINGRESP)
        });
        accepted.len() <= 1
    });
    assert_eq!(accepted.len(), 1, "the last connection is kept");
}

#[test]
fn a_durable_session_is_resumed_from_every_node() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let connect = Connect::new(5, unique("d"))
        .persistent()
        .properties(Props::new().u32(0x11, 3600));
    let topic = unique("durable/");
    let mut first = Raw::connect(&cluster.nodes[0], &connect);
    first.subscribe(&topic, 1);
    first.cut();
    for (number, node) in [1, 2, 0, 1].into_iter().enumerate() {
        let payload = number.to_string();
        // Queued, from a node that is not the one of the next connection.
        let mut publisher = Raw::client(&cluster.nodes[(node + 1) % 3], 5);
        publisher.publish_qos1(&topic, &payload, 1);
        let (mut raw, connack) = Raw::connect_for_connack(&cluster.nodes[node], &connect);
        assert!(connack.session_present, "at node {}", node + 1);
        let message = raw.recv_message(&topic, &payload);
        raw.acknowledge(&message);
        publisher.publish_qos1(&topic, "live", 2);
        let message = raw.recv_message(&topic, "live");
        raw.acknowledge(&message);
        raw.ping();
        raw.cut();
    }
}

#[test]
fn clusters_with_different_names_share_servers_and_nothing_else() {
    let Some(nats) = nats_or_skip() else {
        return;
    };
    let one = Cluster::start(nats.clone(), "one", 2);
    let two = Cluster::start(nats, "two", 1);
    assert_eq!(reachable(&status(&one.nodes[0])), ["node-1", "node-2"]);
    assert_eq!(reachable(&status(&two.nodes[0])), ["node-1"]);
    let topic = unique("name/");
    let mut subscriber = Raw::client(&two.nodes[0], 5);
    subscriber.subscribe("#", 0);
    let mut inside = Raw::client(&one.nodes[1], 5);
    inside.subscribe(&topic, 0);
    let mut publisher = Raw::client(&one.nodes[0], 5);
    publisher.send_publish(&Publish::new(&topic, "x").qos(1, 1).retain());
    publisher.recv(kind::PUBACK);
    inside.recv_message(&topic, "x");
    assert!(subscriber.try_recv(Duration::from_millis(200)).is_none());
    assert!(retained(&two.nodes[0], &topic).is_none());
}
