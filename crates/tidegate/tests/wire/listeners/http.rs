//! The HTTP listener: metrics that promtool accepts, and the two questions of a supervisor.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{client, get, own_node};
use crate::interop::{find_program, installed, report_skipped};
use crate::support::{Node, Raw, WsStream, eventually, kind, unique};

fn promtool() -> Option<PathBuf> {
    let found = installed("TIDEGATE_TEST_PROMTOOL", "prometheus/usr/bin/promtool");
    found.or_else(|| find_program("promtool"))
}

/// A node that has done a little of everything.
fn busy_node() -> Node {
    let node = Node::start(&[]);
    let topic = unique("metrics/");
    for version in [3, 4, 5] {
        let mut receiver = client(&node, "mqtt", version);
        receiver.subscribe(&topic, 2);
        let mut sender = client(&node, "mqtt", version);
        sender.publish(&topic, "zero");
        sender.publish_qos1(&topic, "one", 1);
        sender.publish_qos2(&topic, "two", 2);
        for _ in 0..3 {
            let message = receiver.recv(kind::PUBLISH);
            receiver.acknowledge(&message);
        }
        receiver.unsubscribe(&topic);
        receiver.disconnect();
        sender.disconnect();
    }
    let mut rejected = Raw::open(&node, 4);
    rejected.send(b"\x10\xff\xff\xff\xff\xff");
    rejected.expect_closed();
    drop(WsStream::connect(node.address("ws")));
    node
}

/// The sum of all samples of a metric, whatever their labels.
fn sum(metrics: &str, name: &str) -> f64 {
    let samples = metrics.lines().filter(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
    });
    samples
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[test]
fn promtool_has_nothing_to_say_against_the_metrics() {
    if !own_node() {
        return;
    }
    let Some(promtool) = promtool() else {
        return report_skipped("promtool is not installed");
    };
    let node = busy_node();
    let answer = get(&node, "/metrics");
    assert_eq!(answer.status, 200);
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check
        .stdin
        .take()
        .unwrap()
        .write_all(answer.body.as_bytes())
        .unwrap();
    let output = check.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && report.trim().is_empty(),
        "{report}\n{}",
        answer.body
    );
}

#[test]
fn promtool_accepts_the_alert_rules() {
    let Some(promtool) = promtool() else {
        return report_skipped("promtool is not installed");
    };
    let rules = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/prometheus/rules.yml"
    );
    let output = Command::new(promtool)
        .args(["check", "rules", rules])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
}

#[test]
fn metrics_count_events() {
    if !own_node() {
        return;
    }
    let node = busy_node();
    let answer = get(&node, "/metrics");
    assert!(
        answer
            .head
            .contains("content-type: text/plain; version=0.0.4"),
        "{}",
        answer.head
    );
    // A pair in each of three versions exchanged one message at each QoS.
    eventually("9 messages in and 9 out", || {
        let metrics = get(&node, "/metrics").body;
        let received = sum(&metrics, "tidegate_messages_received_total");
        let sent = sum(&metrics, "tidegate_messages_sent_total");
        received >= 9.0 && sent >= 9.0
    });
    let metrics = get(&node, "/metrics").body;
    let families = metrics
        .lines()
        .filter(|line| line.starts_with("# TYPE tidegate_"))
        .count();
    assert!(families >= 20, "{families} families:\n{metrics}");
}

#[test]
fn health_and_readiness_are_reported() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    for path in ["/healthz", "/readyz"] {
        let answer = get(node, path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    assert_eq!(get(node, "/nothing/here").status, 404);
}

#[test]
fn a_kicked_client_is_disconnected() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let mut raw = Raw::open(node, 5);
    let client_id = super::greet(&mut raw);
    let address = node.address("http");
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    let request = format!(
        "DELETE /api/v1/clients/{client_id} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).unwrap();
    raw.expect_disconnect(0x98);
}
