//! Rules that ask for more than the node can do at once: who waits for it, and who does not.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{api, count, make, status};
use crate::support::{Node, Publish, Raw, ack, eventually, external, kind};

/// Everything on one shard, where nobody may hold up the others.
fn node(arguments: &[&str]) -> Node {
    Node::start(&[&["--shards", "1"], arguments].concat())
}

#[test]
fn a_sink_whose_target_is_away_stops_those_alone_who_feed_it() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = node(&[]);
    let sink =
        json!({"name": "away", "connector": "nobody", "path": "/", "queue": {"max_rows": 3}});
    let connector = json!({"name": "nobody", "type": "http", "url": "http://127.0.0.1:9"});
    for (path, body) in [("connectors", connector), ("sinks", sink)] {
        let (status, answer) = api(&node, "POST", path, &body);
        assert_eq!(status, 201, "{answer}");
    }
    make(
        &node,
        "rows",
        "SELECT payload FROM \"fed/#\"",
        json!([{"kind": "sink", "sink": "away"}]),
    );
    let mut others: Vec<Raw> = (0..4).map(|_| Raw::client(&node, 4)).collect();
    // One that has published to the sink while it had room.
    others[0].publish_qos1("fed/once", "x", 1);
    let mut feeder = Raw::client(&node, 4);
    let mut sent = 0;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        sent += 1;
        feeder.send_publish(&Publish::new("fed/much", "x").qos(1, sent));
        if feeder.try_recv(Duration::from_secs(1)).is_none() {
            break;
        }
        assert!(Instant::now() < deadline, "the sink has no bound");
    }
    for other in &mut others {
        for n in 1..20 {
            other.publish_qos1("other/topic", "x", n);
            other.publish_qos2("other/topic", "x", n + 100);
        }
        other.ping();
    }
    // Room, by whoever takes the sink away: the feeder is read again.
    let (status, answer) = api(&node, "DELETE", "rules/rows", &json!(null));
    assert_eq!(status, 204, "{answer}");
    let (status, answer) = api(&node, "DELETE", "sinks/away", &json!(null));
    assert_eq!(status, 204, "{answer}");
    eventually("the feeder is answered", || {
        feeder.try_recv(Duration::from_millis(100)).is_some()
    });
    feeder.ping();
}

/// Three rules with 16 actions each, all of which meet what the others publish.
fn answering_rules(node: &Node) {
    for name in ["a", "b", "c"] {
        let actions: Vec<_> = (0..16)
            .map(|n| json!({"kind": "republish", "topic": format!("loop/{name}/{n}"), "payload": "${payload}"}))
            .collect();
        make(node, name, "SELECT payload FROM \"loop/#\"", json!(actions));
    }
}

#[test]
fn rules_that_answer_each_other_end_and_let_others_in_between() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let node = node(&["--set", "limits.max_derived_messages=300"]);
    answering_rules(&node);
    let mut watcher = Raw::client(&node, 4);
    watcher.subscribe("loop/#", 0);
    let mut publisher = Raw::client(&node, 5);
    publisher.send_publish(&Publish::new("loop/begin", "x").qos(2, 1));
    let mut other = Raw::client(&node, 4);
    other.publish_qos1("elsewhere", "x", 1);
    // The answer comes when all is published that comes of the message.
    assert_eq!(publisher.recv(kind::PUBREC).reason, 0);
    let got = watcher.ping_for_packets();
    assert_eq!(got.len(), 301);
    assert_eq!(got[0].topic, "loop/begin");
    for name in ["a", "b", "c"] {
        let prefix = format!("loop/{name}/");
        let topics = got[1..49].iter().map(|packet| &*packet.topic);
        let of_rule: Vec<_> = topics.filter(|topic| topic.starts_with(&prefix)).collect();
        let expected: Vec<_> = (0..16).map(|n| format!("{prefix}{n}")).collect();
        assert_eq!(of_rule, expected, "in their order");
    }
    publisher.send(&ack(kind::PUBREL, 1));
    publisher.recv(kind::PUBCOMP);
    let dropped: u64 = ["a", "b", "c"]
        .iter()
        .map(|name| count(&node, name, "failed_limit"))
        .sum();
    assert!(dropped > 1000, "{}", status(&node, "a"));
    let log = node.log();
    let warnings = log.matches("max_derived_messages").count();
    assert!((1..50).contains(&warnings), "{warnings} times");
}

#[test]
fn a_node_stops_while_rules_answer_each_other() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let unbounded = [
        "--set",
        "limits.max_derived_messages=4000000000",
        "--set",
        "limits.max_derived_processing_ms=3600000",
    ];
    let node = node(&unbounded);
    answering_rules(&node);
    let mut publisher = Raw::client(&node, 4);
    publisher.send_publish(&Publish::new("loop/begin", "x").qos(1, 1));
    let mut other = Raw::client(&node, 4);
    other.publish_qos1("elsewhere", "x", 1);
    other.ping();
    assert!(node.terminate(Duration::from_secs(20)).success());
}
