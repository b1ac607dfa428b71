//! A network partition: one of three machines, each with a node and a NATS server, is cut off from the others for 30 s.
//!
//! `TIDEGATE_TEST_PARTITIONS=20` adds this number of partitions of 1 to 15 s.

use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{Cluster, durable, get, reachable, status};
use super::trial::{self, Trial};
use crate::api::try_send;
use crate::support::{Connect, Node, Publish, Random, Raw, kind, unique};

const PARTITION: Duration = Duration::from_secs(30);
/// How soon the majority continues, and how soon everything agrees after the partition. The goal is 10 s, which is measured on
/// an idle machine; elections of NATS servers alone take up to 9 s.
const CONVERGENCE: Duration = Duration::from_secs(60);

/// Waits for something that has to happen within [`CONVERGENCE`] of `begin`, and prints when it did.
fn within(begin: Instant, what: &str, mut condition: impl FnMut() -> bool) {
    while !condition() {
        assert!(begin.elapsed() < CONVERGENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("{:5.1} s: {what}", begin.elapsed().as_secs_f64());
}

fn connect(node: &Node, connect: &Connect) -> Option<(Raw, bool)> {
    let mut raw = Raw::open(node, connect.version);
    let connack = raw.hand_shake(connect);
    (connack.reason == 0).then_some((raw, connack.session_present))
}

/// The retained message of a topic; `None` also if the node accepts no clients yet.
fn retained(node: &Node, topic: &str) -> Option<String> {
    let (mut raw, _) = connect(node, &Connect::new(5, unique("c")))?;
    raw.subscribe(topic, 0);
    let packet = raw.try_recv(Duration::from_millis(500))?;
    Some(packet.text().to_owned())
}

fn retain(publisher: &mut Raw, topic: &str, payload: &str) {
    publisher.send_publish(&Publish::new(topic, payload).retain());
    publisher.send(&[kind::PINGREQ << 4, 0]);
    publisher.recv(kind::PINGRESP);
}

/// The status of the answer to a change of the configuration; 0: it has not come in time.
fn put_rule(node: &Node, id: &str) -> u16 {
    let rule = json!({"sql": "SELECT * FROM \"a\"", "actions": []});
    let answer = try_send(node, "PUT", &format!("/api/v1/rules/{id}"), &rule);
    answer.map_or(0, |answer| answer.status)
}

/// Also an attempt without an answer may be carried out, so that the next one changes the rule.
fn is_stored(status: u16) -> bool {
    matches!(status, 200 | 201)
}

#[test]
fn a_majority_continues_and_everything_heals_after_a_partition() {
    let _alone = trial::run_alone();
    let Some(mut cluster) = Cluster::start_on_machines_or_skip(3) else {
        return;
    };
    cluster.wait_for_standbys();
    let further = std::env::var("TIDEGATE_TEST_PARTITIONS").ok();
    let further = further.map_or(0, |count| count.parse().expect("a number"));
    let seed = Random::seed();
    let mut random = Random::new(seed);
    let lost = random.below(3);
    eprintln!("node-{} is cut off", lost + 1);
    let summary = Trial::run(&mut cluster, seed, |cluster, trial| {
        cut_off_and_check(cluster, lost);
        for _ in 0..further {
            if trial.has_lost_sessions() {
                break;
            }
            let (lost, pause_ms) = (random.below(3), 1000 + random.below(14_000) as u64);
            eprintln!("node-{} is cut off for {pause_ms} ms", lost + 1);
            cluster.network().cut(lost);
            std::thread::sleep(Duration::from_millis(pause_ms));
            cluster.network().join(lost);
            cluster.wait_until_connected();
            cluster.wait_for_standbys();
        }
    });
    eprintln!("{summary}");
}

fn cut_off_and_check(cluster: &Cluster, lost: usize) {
    let [minority, first, second] = [0, 1, 2].map(|offset| &cluster.nodes[(lost + offset) % 3]);
    let topic = unique("partition/");
    let id = unique("d");
    let mut sleeper = Raw::connect(minority, &durable(&id));
    sleeper.subscribe(&topic, 1);
    sleeper.disconnect();
    // A client that stays, and whose session ends with its connection.
    let mut local = Raw::client(minority, 5);
    local.subscribe(&topic, 0);
    let mut near = Raw::client(second, 5);
    near.subscribe(&topic, 0);
    let [retained_there, retained_here] = ["there/", "here/"].map(unique);

    let mut publisher = Raw::client(first, 5);
    let mut in_minority = Raw::client(minority, 5);
    cluster.network().cut(lost);
    let begin = Instant::now();
    publisher.send_publish(&Publish::new(&topic, "majority").qos(1, 1));
    near.recv_message(&topic, "majority");
    let rule_id = unique("r").replace('/', "-");
    within(begin, "configuration can be changed", || {
        is_stored(put_rule(first, &rule_id))
    });
    within(begin, "the publisher has its acknowledgement", || {
        publisher.try_recv(Duration::from_millis(1)).is_some()
    });
    within(begin, "the session is at its standby", || {
        let Some((mut raw, is_present)) = connect(second, &durable(&id)) else {
            return false;
        };
        assert!(is_present, "a new session");
        let message = raw.recv_message(&topic, "majority");
        raw.acknowledge(&message);
        raw.disconnect();
        true
    });
    retain(&mut publisher, &retained_there, "of the majority");

    // The minority serves its clients where that needs nobody else, and rejects what it cannot keep.
    in_minority.send_publish(&Publish::new(&topic, "minority"));
    local.recv_message(&topic, "minority");
    retain(&mut in_minority, &retained_here, "of the minority");
    let rejected = put_rule(minority, &unique("r").replace('/', "-"));
    assert!(!is_stored(rejected), "{rejected}");
    let ready = get(minority, "/readyz");
    assert!(ready.body["degraded"].is_string(), "{}", ready.body);
    in_minority.send_publish(&Publish::new(&topic, "not kept").qos(1, 1));
    let limit = PARTITION.saturating_sub(begin.elapsed());
    let limit = limit.max(Duration::from_secs(5));
    let answer = in_minority.try_recv_unless_closed(limit);
    let is_acknowledged =
        answer.is_some_and(|packet| packet.reason == 0 && packet.kind == kind::PUBACK);
    assert!(
        !is_acknowledged,
        "a message for a session that is at the standby"
    );

    std::thread::sleep(PARTITION.saturating_sub(begin.elapsed()));
    cluster.network().join(lost);
    let begin = Instant::now();
    for node in &cluster.nodes {
        within(begin, "a node reaches all others", || {
            reachable(&status(node)).len() == 3
        });
        within(begin, "it is ready", || {
            get(node, "/readyz").body["degraded"].is_null()
        });
        let path = format!("/api/v1/rules/{rule_id}");
        within(begin, "it has the configuration", || {
            get(node, &path).status == 200
        });
        for (topic, payload) in [
            (&retained_there, "of the majority"),
            (&retained_here, "of the minority"),
        ] {
            within(begin, "it has the retained message", || {
                retained(node, topic).as_deref() == Some(payload)
            });
        }
    }
    let mut number = 1;
    within(begin, "messages cross again", || {
        number += 1;
        let text = format!("after {number}");
        publisher.send_publish(&Publish::new(&topic, text).qos(1, number));
        let received = std::iter::from_fn(|| local.try_recv(Duration::from_millis(200)));
        received
            .into_iter()
            .any(|packet| packet.text().starts_with("after"))
    });
    within(
        begin,
        "the client finds its session at the node that was cut off",
        || connect(minority, &durable(&id)).is_some_and(|(_, is_present)| is_present),
    );
    within(begin, "configuration can be changed everywhere", || {
        is_stored(put_rule(minority, &unique("r").replace('/', "-")))
    });
    cluster.wait_for_standbys();
    eprintln!(
        "{:5.1} s: all nodes have a standby",
        begin.elapsed().as_secs_f64()
    );
}
