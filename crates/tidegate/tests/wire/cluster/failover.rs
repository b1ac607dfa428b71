//! What clients notice when the node with their durable sessions is killed: its standby adopts the sessions.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::{Cluster, change_drain, durable, reachable, status};
use crate::support::{Connect, Node, Packet, Publish, Raw, Will, ack, eventually, kind, unique};

/// Time until a client has its session again after the node was killed: 5 s until that is noticed, and the adoption.
const FAILOVER: Duration = Duration::from_secs(25);
/// Stands for a PUBREC among the payloads.
const RECEIVED: &str = "(PUBREC)";

fn wait_for_standby(node: &Node) -> String {
    eventually("the standby is current", || {
        status(node)["standby"]["state"] == "current"
    });
    let name = &status(node)["standby"]["node"];
    name.as_str().expect("a name").to_owned()
}

fn kill(cluster: &mut Cluster, index: usize) {
    cluster.nodes[index].signal(libc::SIGKILL);
    assert!(cluster.nodes[index].wait(Duration::from_secs(10)).is_some());
}

/// Connects as clients do: again and again until the node accepts.
pub(super) fn reconnect(node: &Node, connect: &Connect) -> (Raw, Packet) {
    let deadline = Instant::now() + FAILOVER;
    loop {
        let mut raw = Raw::open(node, connect.version);
        let connack = raw.hand_shake(connect);
        if connack.reason == 0 {
            return (raw, connack);
        }
        assert!(Instant::now() < deadline, "still rejected: {connack:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits for the acknowledgement of a message, which may have to wait for the adoption.
pub(super) fn wait_for_ack(publisher: &mut Raw, kind: u8) {
    let packet = publisher.try_recv(FAILOVER).expect("an acknowledgement");
    assert_eq!((packet.kind, packet.reason), (kind, 0), "{packet:?}");
}

/// Takes and acknowledges the messages that wait for a client, until none has come for a while. Completes the QoS 2
/// messages of the client itself, which count as [`RECEIVED`].
pub(super) fn drain(raw: &mut Raw) -> Vec<String> {
    let mut payloads = Vec::new();
    while let Some(packet) = raw.try_recv(Duration::from_millis(800)) {
        match packet.kind {
            kind::PUBREL => raw.send(&ack(kind::PUBCOMP, packet.id())),
            kind::PUBLISH => {
                payloads.push(packet.text().to_owned());
                match packet.qos() {
                    0 => {}
                    1 => raw.send(&ack(kind::PUBACK, packet.id())),
                    _ => raw.send(&ack(kind::PUBREC, packet.id())),
                }
            }
            kind::PUBREC => {
                payloads.push(RECEIVED.to_owned());
                raw.send(&ack(kind::PUBREL, packet.id()));
            }
            kind::PUBCOMP => {}
            other => panic!("unexpected packet of kind {other}: {packet:?}"),
        }
    }
    payloads
}

/// [MQTT-4.4.0-1] and [MQTT-4.3.3] across the failure of the node that has the session.
#[test]
fn sessions_of_a_killed_node_continue_at_its_standby() {
    let Some(mut cluster) = Cluster::start_with_standbys_or_skip(3) else {
        return;
    };
    let standby = wait_for_standby(&cluster.nodes[0]);
    assert_ne!(standby, "node-1");
    let topic = unique("failover/");
    let ids: Vec<String> = (0..20).map(|_| unique("f")).collect();
    for (number, id) in ids.iter().enumerate() {
        let mut client = Raw::connect(&cluster.nodes[0], &durable(id));
        client.subscribe(&topic, 1 + number as u8 % 2);
        client.disconnect();
    }
    // One client has acknowledged nothing of what it got, and the first half of a QoS 2 exchange of its own.
    let mut busy = Raw::connect(&cluster.nodes[0], &durable(&ids[1]));
    let elsewhere = unique("failover/other/");
    busy.send_publish(&Publish::new(&elsewhere, "first half").qos(2, 77));
    busy.recv(kind::PUBREC);
    let mut other = Raw::client(&cluster.nodes[1], 5);
    other.subscribe(&elsewhere, 2);

    let mut near = Raw::client(&cluster.nodes[0], 5);
    let mut far = Raw::client(&cluster.nodes[2], 5);
    let mut expected = Vec::new();
    for number in 0..10_u16 {
        let payloads = [format!("near {number}"), format!("far {number}")];
        near.publish_qos1(&topic, &payloads[0], number + 1);
        far.publish_qos2(&topic, &payloads[1], number + 1);
        expected.extend(payloads);
    }
    let will_topic = unique("failover/will/");
    let mut mourner = Raw::client(&cluster.nodes[1], 5);
    mourner.subscribe(&will_topic, 1);
    let mut connect = durable(&unique("w"));
    connect.will = Some(Will::new(&will_topic, "gone").qos(1));
    let with_will = Raw::connect(&cluster.nodes[0], &connect);

    kill(&mut cluster, 0);
    drop((busy, with_will, near));
    // What is published now is acknowledged when the standby has it.
    let published = Instant::now();
    far.send_publish(&Publish::new(&topic, "during").qos(1, 100));
    wait_for_ack(&mut far, kind::PUBACK);
    expected.push("during".to_owned());
    eventually("the node is reported as lost", || {
        reachable(&status(&cluster.nodes[1])) == ["node-2", "node-3"]
    });
    let (mut first, connack) = reconnect(&cluster.nodes[1], &durable(&ids[0]));
    assert!(connack.session_present);
    assert!(published.elapsed() < FAILOVER, "{:?}", published.elapsed());
    let is_complete = |received: &[String], expected: &[String]| {
        // A QoS 1 message may come again; no message is missing, and the order of those of a publisher is kept.
        let mut seen = received.to_vec();
        seen.dedup();
        expected.iter().all(|payload| seen.contains(payload))
    };
    let received = drain(&mut first);
    assert!(is_complete(&received, &expected), "{received:?}");
    for (number, id) in ids.iter().enumerate().skip(1) {
        let node = &cluster.nodes[1 + number % 2];
        let (mut raw, connack) = reconnect(node, &durable(id));
        assert!(connack.session_present, "client {number}");
        if number == 1 {
            // The packet id of its message is known, so that the message is not published again.
            raw.send_publish(&Publish::new(&elsewhere, "first half").qos(2, 77).dup());
        }
        let received = drain(&mut raw);
        assert_eq!(
            received.iter().any(|payload| payload == RECEIVED),
            number == 1
        );
        assert!(is_complete(&received, &expected), "{number}: {received:?}");
        let of_qos2: Vec<_> = received
            .iter()
            .filter(|payload| payload.starts_with("far"))
            .collect();
        if number % 2 == 1 {
            assert_eq!(of_qos2.len(), 10, "{number}: {received:?}");
        }
        // Live messages arrive as before.
        far.publish_qos1(&topic, format!("live {number}"), 200 + number as u16);
        expected.push(format!("live {number}"));
        raw.cut();
    }
    let other_payloads = drain(&mut other);
    assert!(other_payloads.len() <= 1, "{other_payloads:?}");
    let will = mourner.try_recv(FAILOVER).expect("the will of a client");
    assert_eq!(will.text(), "gone");
    mourner.acknowledge(&will);

    // The node returns without the sessions, and its standby is another node or the same.
    cluster.nodes[0].start_again();
    cluster.wait_until_connected();
    wait_for_standby(&cluster.nodes[0]);
    let mut again = Raw::connect_for_connack(&cluster.nodes[0], &durable(&ids[2]));
    assert!(again.1.session_present);
    far.publish_qos1(&topic, "after", 300);
    expected.clear();
    expected.push("after".to_owned());
    let received = drain(&mut again.0);
    assert!(is_complete(&received, &expected), "{received:?}");
    assert_eq!(
        received
            .iter()
            .filter(|payload| *payload == "after")
            .count(),
        1,
        "{received:?}"
    );
    assert_eq!(drain(&mut mourner), [""; 0], "the will comes once");
}

#[test]
fn sessions_of_a_node_that_stops_in_order_continue_at_its_standby() {
    let Some(mut cluster) = Cluster::start_with_standbys_or_skip(3) else {
        return;
    };
    wait_for_standby(&cluster.nodes[0]);
    let (topic, id) = (unique("stop/"), unique("s"));
    let mut client = Raw::connect(&cluster.nodes[0], &durable(&id));
    client.subscribe(&topic, 1);
    client.disconnect();
    let mut publisher = Raw::client(&cluster.nodes[1], 5);
    publisher.publish_qos1(&topic, "before", 1);
    cluster.nodes[0].terminate(Duration::from_secs(30));
    publisher.send_publish(&Publish::new(&topic, "during").qos(1, 2));
    wait_for_ack(&mut publisher, kind::PUBACK);
    let (mut client, connack) = reconnect(&cluster.nodes[2], &durable(&id));
    assert!(connack.session_present);
    assert_eq!(drain(&mut client), ["before", "during"]);
    client.cut();
    // A start within the time would have kept the sessions there; now they stay.
    cluster.nodes[0].start_again();
    cluster.wait_until_connected();
    publisher.publish_qos1(&topic, "after", 3);
    let (mut client, connack) = reconnect(&cluster.nodes[0], &durable(&id));
    assert!(connack.session_present);
    // The node that has returned passes on what may be for its former sessions until the others have forgotten these, so that the
    // message may arrive from both (MQTT 5.0, 4.3.2: at least once).
    let mut received = drain(&mut client);
    received.dedup();
    assert_eq!(received, ["after"]);
}

/// Nobody waits for its return, as with a node that was stopped without a drain.
#[test]
fn sessions_of_a_node_that_stops_after_a_drain_continue_at_once() {
    let Some(cluster) = Cluster::start_with_standbys_or_skip(3) else {
        return;
    };
    wait_for_standby(&cluster.nodes[0]);
    let (topic, id) = (unique("drained/"), unique("d"));
    let mut client = Raw::connect(&cluster.nodes[0], &durable(&id));
    client.subscribe(&topic, 1);
    client.cut();
    Raw::client(&cluster.nodes[1], 5).publish_qos1(&topic, "before", 1);
    let drained = change_drain(&cluster.nodes[1], "POST", "node-1");
    assert_eq!(drained.status, 204, "{}", drained.body);
    eventually("the others know of the drain", || {
        let of = |node: &Node| status(node)["members"].as_array().cloned();
        let drained = |member: &Value| member["node"] == "node-1" && member["is_draining"] == true;
        (cluster.nodes[1..].iter()).all(|node| of(node).is_some_and(|of| of.iter().any(drained)))
    });
    cluster.nodes[0].terminate(Duration::from_secs(30));
    let stopped = Instant::now();
    let (mut client, connack) = reconnect(&cluster.nodes[2], &durable(&id));
    let elapsed = stopped.elapsed();
    assert!(connack.session_present);
    assert_eq!(drain(&mut client), ["before"]);
    // Without the drain, 5 s pass before the adoption begins.
    assert!(elapsed < Duration::from_secs(4), "{elapsed:?}");
    eprintln!("a client has its session {elapsed:?} after the process has ended");
}
