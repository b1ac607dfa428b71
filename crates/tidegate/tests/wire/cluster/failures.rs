//! What clients notice of a node that fails, and of a failure of NATS.

use std::time::Duration;

use super::messages::retained;
use super::objects::put_rule;
use super::support::{Cluster, evict, get, member_count, reachable, status};
use crate::support::{Node, Publish, Raw, eventually, kind, unique};

fn retain(node: &Node, topic: &str, payload: &str) {
    let mut publisher = Raw::client(node, 5);
    publisher.send_publish(&Publish::new(topic, payload).qos(1, 1).retain());
    publisher.recv(kind::PUBACK);
}

#[test]
fn a_killed_node_is_reported_and_gets_what_it_missed_when_it_returns() {
    let Some(mut cluster) = Cluster::start_or_skip(3) else {
        return;
    };
    let [changed, deleted, added] = ["changed/", "deleted/", "added/"].map(unique);
    for topic in [&changed, &deleted] {
        retain(&cluster.nodes[0], topic, "old");
        eventually("the node that is killed has the message", || {
            retained(&cluster.nodes[2], topic).is_some()
        });
    }
    let topic = unique("alive/");
    let mut subscriber = Raw::client(&cluster.nodes[1], 5);
    subscriber.subscribe(&topic, 1);
    cluster.nodes[2].signal(libc::SIGKILL);
    assert!(cluster.nodes[2].wait(Duration::from_secs(10)).is_some());
    // The others continue at once, before they notice.
    Raw::client(&cluster.nodes[0], 5).publish_qos1(&topic, "at once", 1);
    let message = subscriber.recv_message(&topic, "at once");
    subscriber.acknowledge(&message);
    for node in &cluster.nodes[..2] {
        eventually("the end of the node is reported", || {
            reachable(&status(node)) == ["node-1", "node-2"]
        });
        assert_eq!(get(node, "/readyz").status, 200);
    }
    // A new subscription is not delayed by the missing node.
    let mut late = Raw::client(&cluster.nodes[0], 5);
    late.subscribe(&topic, 0);
    Raw::client(&cluster.nodes[1], 5).publish_qos1(&topic, "without it", 1);
    late.recv_message(&topic, "without it");

    retain(&cluster.nodes[0], &changed, "new");
    retain(&cluster.nodes[1], &deleted, "");
    retain(&cluster.nodes[1], &added, "new");
    cluster.nodes[2].start_again();
    cluster.wait_until_connected();
    let payload = |topic: &str| retained(&cluster.nodes[2], topic).map(|packet| packet.payload);
    for topic in [&changed, &added] {
        eventually("the returned node has the new message", || {
            payload(topic).as_deref() == Some(b"new")
        });
    }
    eventually("the returned node has not the deleted message", || {
        payload(&deleted).is_none()
    });
    Raw::client(&cluster.nodes[2], 5).publish_qos1(&topic, "again", 1);
    late.recv_message(&topic, "again");
}

#[test]
fn a_member_that_was_lost_is_evicted() {
    let Some(cluster) = Cluster::start_or_skip(2) else {
        return;
    };
    cluster.nodes[1].signal(libc::SIGKILL);
    assert!(cluster.nodes[1].wait(Duration::from_secs(10)).is_some());
    let node = &cluster.nodes[0];
    eventually("the end of the node is noticed", || {
        reachable(&status(node)) == ["node-1"]
    });
    assert_eq!(member_count(&status(node)), 2, "a lost member stays listed");
    let answer = evict(node, "node-2");
    assert_eq!(answer.status, 204, "{}", answer.body);
    eventually("the member is gone", || member_count(&status(node)) == 1);
    assert_eq!(evict(node, "node-2").status, 404);
}

#[test]
fn a_node_that_stops_leaves_the_cluster() {
    let Some(mut cluster) = Cluster::start_or_skip(2) else {
        return;
    };
    cluster.nodes[1].terminate(Duration::from_secs(30));
    eventually("the node is no member any more", || {
        member_count(&status(&cluster.nodes[0])) == 1
    });
    cluster.nodes[1].start_again();
    cluster.wait_until_connected();
}

#[test]
fn without_nats_each_node_serves_its_clients_and_everything_heals() {
    let Some(cluster) = Cluster::start_or_skip(2) else {
        return;
    };
    let (first, second) = (&cluster.nodes[0], &cluster.nodes[1]);
    let topic = unique("heal/");
    let mut near = Raw::client(first, 5);
    near.subscribe(&topic, 1);
    let mut far = Raw::client(second, 5);
    far.subscribe(&topic, 0);
    cluster.nats().kill();
    for node in [first, second] {
        eventually("the node is degraded and says so", || {
            let answer = get(node, "/readyz");
            answer.status == 200 && answer.body["degraded"].is_string()
        });
        assert_eq!(status(node)["nats"]["state"], "disconnected");
    }
    // Clients of one node notice nothing, new ones included.
    Raw::client(first, 5).publish_qos1(&topic, "local", 1);
    let message = near.recv_message(&topic, "local");
    near.acknowledge(&message);
    let other = unique("heal/");
    near.subscribe(&other, 0);
    Raw::client(first, 5).publish_qos1(&other, "new filter", 1);
    near.recv_message(&other, "new filter");
    let retained_topic = unique("heal/retained/");
    retain(first, &retained_topic, "written without NATS");
    // Objects are for all nodes, or not at all.
    let rule = unique("r").replace('/', "-");
    let rejected = put_rule(first, &rule, "SELECT * FROM \"a\"");
    assert_eq!(rejected.status, 503, "{}", rejected.body);

    cluster.nats().start();
    cluster.wait_until_connected();
    for node in [first, second] {
        eventually("the node is ready again", || {
            get(node, "/readyz").body["degraded"].is_null()
        });
    }
    // The subscription made meanwhile is known, and so is the retained message.
    eventually("messages arrive again", || {
        Raw::client(second, 5).publish_qos1(&other, "healed", 1);
        near.try_recv(Duration::from_secs(1)).is_some()
    });
    eventually("the retained message arrives", || {
        retained(second, &retained_topic)
            .is_some_and(|packet| packet.payload == b"written without NATS")
    });
    eventually("objects can be changed again", || {
        put_rule(first, &rule, "SELECT * FROM \"a\"").status == 201
    });
}
