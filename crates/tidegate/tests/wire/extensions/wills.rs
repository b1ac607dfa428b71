//! Wills with sessions that end early, of other shards, and of their own subscribers.

use super::*;

fn node() -> Option<&'static Node> {
    node_with(&[])
}

fn watcher(node: &Node) -> (Raw, String) {
    let topic = unique("will/");
    let mut raw = client(node);
    raw.subscribe(&topic, 1);
    (raw, topic)
}

fn delayed_will(topic: &str, seconds: u32) -> Will {
    Will::new(topic, "will").properties(Props::new().u32(property::WILL_DELAY, seconds))
}

fn disconnect_with_will(raw: &mut Raw, properties: &Props) {
    let body = [&[0x04][..], &properties.bytes()].concat();
    raw.send(&crate::support::frame(0xe0, &body));
    raw.expect_closed();
}

#[test]
fn a_session_ended_on_disconnect_publishes_its_will_at_once() {
    let Some(node) = node() else { return };
    let (mut watcher, topic) = watcher(node);
    let mut raw = Raw::connect(
        node,
        &session(&unique("c"), 3600).will(delayed_will(&topic, 3600)),
    );
    disconnect_with_will(&mut raw, &Props::new().u32(property::SESSION_EXPIRY, 0));
    watcher.recv_message(&topic, "will");
}

#[test]
fn a_will_reaches_subscribers_on_both_shards_and_those_away() {
    let Some(node) = node() else { return };
    let topic = unique("will/");
    let mut watchers: Vec<Raw> = clients_on_both_shards(node, 1)
        .into_iter()
        .flatten()
        .collect();
    for watcher in &mut watchers {
        watcher.subscribe(&topic, 1);
    }
    let away = unique("c");
    let mut raw = Raw::connect(node, &session(&away, 60));
    raw.subscribe(&topic, 1);
    raw.disconnect();
    let will = Will::new(&topic, "will").qos(1);
    Raw::connect(node, &connect(&unique("c")).will(will)).cut();
    for watcher in &mut watchers {
        watcher.recv_message(&topic, "will");
    }
    let mut raw = Raw::connect(node, &session(&away, 0));
    raw.recv_message(&topic, "will");
}

#[test]
fn a_client_does_not_get_its_own_will_with_no_local() {
    let Some(node) = node() else { return };
    let (mut watcher, topic) = watcher(node);
    let id = unique("c");
    let will = Will::new(&topic, "own").qos(1);
    let mut raw = Raw::connect(node, &session(&id, 3600).will(will));
    raw.subscribe(&topic, 1 | option::NO_LOCAL);
    raw.cut();
    watcher.recv_message(&topic, "own");
    let mut raw = Raw::connect(node, &session(&id, 0));
    expect_silence(&mut raw);
}
