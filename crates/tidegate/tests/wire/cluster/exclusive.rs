//! `$exclusive/{topic}` and `$delayed/{seconds}/{topic}` in a cluster of real nodes.

use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{Cluster, durable};
use crate::api::send;
use crate::support::{Node, Publish, Raw, Subscribe, eventually, kind, unique};

const GRANTED: u8 = 1;
const HELD: u8 = 0x97;
/// The nodes have not agreed.
const UNDECIDED: u8 = 0x83;
/// Time for a session to be adopted: 5 s until the failure is noticed, and the adoption.
const FAILOVER: Duration = Duration::from_secs(25);

fn try_exclusive(raw: &mut Raw, topic: &str) -> u8 {
    let subscribe = Subscribe::new(1).filter(format!("$exclusive/{topic}"), 1);
    raw.subscribe_for_codes(&subscribe)[0]
}

/// Subscribes for a client by the API of its node; returns the status.
fn subscribe_by_api(node: &Node, client_id: &str, topic: &str) -> u16 {
    let path = format!("/api/v1/sessions/{client_id}/subscriptions");
    let body = json!({"topic_filter": format!("$exclusive/{topic}"), "qos": 1});
    send(node, "", "POST", &path, &body).status
}

#[test]
fn one_client_of_all_nodes_has_an_exclusive_subscription() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    // Their topics have different owners.
    for _ in 0..6 {
        let topic = unique("exclusive/");
        let mut first = Raw::client(&cluster.nodes[0], 5);
        assert_eq!(try_exclusive(&mut first, &topic), GRANTED);
        assert_eq!(try_exclusive(&mut first, &topic), GRANTED);
        let id = unique("e");
        let mut second = Raw::connect(&cluster.nodes[1], &durable(&id));
        let mut third = Raw::client(&cluster.nodes[2], 4);
        assert_eq!(try_exclusive(&mut second, &topic), HELD);
        // The only failure code of 3.1.1 [MQTT-3.9.3-2].
        assert_eq!(try_exclusive(&mut third, &topic), 0x80);
        assert_eq!(subscribe_by_api(&cluster.nodes[1], &id, &topic), 409);
        third.publish_qos1(&topic, "for the first", 1);
        let message = first.recv_message(&topic, "for the first");
        first.acknowledge(&message);
        first.unsubscribe(&format!("$exclusive/{topic}"));
        eventually("the topic is free", || {
            try_exclusive(&mut second, &topic) == GRANTED
        });
        assert_eq!(try_exclusive(&mut first, &topic), HELD);
        // It belongs to the session, and ends with it.
        second.cut();
        assert_eq!(try_exclusive(&mut third, &topic), 0x80);
        let path = format!("/api/v1/sessions/{id}");
        let ended = send(&cluster.nodes[2], "", "DELETE", &path, &json!(null));
        assert_eq!(ended.status, 204);
        eventually("the topic is free", || {
            try_exclusive(&mut third, &topic) == GRANTED
        });
        assert_eq!(try_exclusive(&mut first, &topic), HELD);
    }
}

/// Takes what waits for a client; returns the payloads.
fn take(raw: &mut Raw, quiet: Duration) -> Vec<String> {
    let mut payloads = Vec::new();
    while let Some(packet) = raw.try_recv(quiet) {
        if packet.kind == kind::PUBLISH {
            payloads.push(packet.text().to_owned());
            raw.acknowledge(&packet);
        }
    }
    payloads
}

#[test]
fn exclusive_subscriptions_and_delayed_messages_of_a_killed_node_continue_at_its_standby() {
    let Some(mut cluster) = Cluster::start_with_standbys_or_skip(3) else {
        return;
    };
    cluster.wait_for_standbys();
    let (topic, delayed, id) = (unique("exclusive/"), unique("delayed/"), unique("e"));
    let mut holder = Raw::connect(&cluster.nodes[0], &durable(&id));
    assert_eq!(try_exclusive(&mut holder, &topic), GRANTED);
    let mut other = Raw::client(&cluster.nodes[1], 5);
    assert_eq!(try_exclusive(&mut other, &topic), HELD);
    let mut witness = Raw::client(&cluster.nodes[2], 5);
    witness.subscribe(&delayed, 2);
    let mut publisher = Raw::client(&cluster.nodes[0], 5);
    // Due before, while and after the sessions are adopted, and when the node is there again.
    for (number, seconds) in [1, 3, 20, 45].into_iter().enumerate() {
        let name = format!("$delayed/{seconds}/{delayed}");
        let publish = Publish::new(name, format!("after {seconds}")).qos(1, number as u16 + 1);
        publisher.send_publish(&publish);
        publisher.recv(kind::PUBACK);
    }
    let published = Instant::now();
    let message = witness.recv_message(&delayed, "after 1");
    witness.acknowledge(&message);
    cluster.nodes[0].signal(libc::SIGKILL);
    assert!(
        cluster.nodes[0].wait(Duration::from_secs(10)).is_some(),
        "the node has ended"
    );
    drop((holder, publisher));

    // Nobody else gets the subscription meanwhile.
    let (deadline, mut held) = (Instant::now() + FAILOVER, 0);
    while held < 20 {
        let code = try_exclusive(&mut other, &topic);
        assert!([HELD, UNDECIDED].contains(&code), "{code:#04x}");
        assert!(Instant::now() < deadline, "undecided for too long");
        // The nodes notice the failure one after the other.
        held = match code == HELD && published.elapsed() > Duration::from_secs(8) {
            true => held + 1,
            false => 0,
        };
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut holder = loop {
        let mut raw = Raw::open(&cluster.nodes[2], 5);
        let connack = raw.hand_shake(&durable(&id));
        if connack.reason == 0 {
            assert!(connack.session_present);
            break raw;
        }
        assert!(Instant::now() < deadline, "still rejected: {connack:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    other.publish_qos1(&topic, "for the holder", 9);
    let message = holder.recv_message(&topic, "for the holder");
    holder.acknowledge(&message);
    // The one that became due while nobody had it comes at once after the adoption.
    let rest = (published + Duration::from_secs(22)).saturating_duration_since(Instant::now());
    let received = take(&mut witness, rest.max(Duration::from_secs(3)));
    assert_eq!(received, ["after 3", "after 20"]);

    cluster.nodes[0].start_again();
    cluster.wait_until_connected();
    let mut again = Raw::client(&cluster.nodes[0], 5);
    assert_eq!(try_exclusive(&mut again, &topic), HELD);
    let rest = (published + Duration::from_secs(48)).saturating_duration_since(Instant::now());
    assert_eq!(
        take(&mut witness, rest.max(Duration::from_secs(3))),
        ["after 45"]
    );
    holder.unsubscribe(&format!("$exclusive/{topic}"));
    eventually("the topic is free", || {
        try_exclusive(&mut again, &topic) == GRANTED
    });
    assert_eq!(try_exclusive(&mut other, &topic), HELD);
}
