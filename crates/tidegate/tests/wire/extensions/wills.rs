//! Will delay, session expiry and message expiry together.

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
fn a_session_expiry_shortened_on_disconnect_brings_the_will_forward() {
    let Some(node) = node() else { return };
    let (mut watcher, topic) = watcher(node);
    let mut raw = Raw::connect(
        node,
        &session(&unique("c"), 3600).will(delayed_will(&topic, 3600)),
    );
    let start = Instant::now();
    disconnect_with_will(&mut raw, &Props::new().u32(property::SESSION_EXPIRY, 1));
    watcher.recv_message(&topic, "will");
    expect_waited(start, 1000);
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
fn the_will_delay_counts_from_the_end_of_the_connection() {
    let Some(node) = node() else { return };
    let (mut watcher, topic) = watcher(node);
    let raw = Raw::connect(
        node,
        &session(&unique("c"), 3600).will(delayed_will(&topic, 1)),
    );
    // Longer than the delay, with the connection open.
    assert!(watcher.try_recv(Duration::from_millis(1500)).is_none());
    let start = Instant::now();
    raw.cut();
    watcher.recv_message(&topic, "will");
    expect_waited(start, 1000);
}

#[test]
fn the_will_of_the_new_connection_takes_the_place_of_the_old_one() {
    let Some(node) = node() else { return };
    let (mut watcher, topic) = watcher(node);
    let id = unique("c");
    let mut old = delayed_will(&topic, 1);
    old.payload = b"old".to_vec();
    Raw::connect(node, &session(&id, 3600).will(old)).cut();
    let mut new = delayed_will(&topic, 0);
    new.payload = b"new".to_vec();
    let raw = Raw::connect(node, &session(&id, 3600).will(new));
    assert!(watcher.try_recv(Duration::from_millis(1500)).is_none());
    raw.cut();
    watcher.recv_message(&topic, "new");
    expect_silence(&mut watcher);
}

#[test]
fn a_connection_without_a_will_leaves_none() {
    let Some(node) = node() else { return };
    let (mut watcher, topic) = watcher(node);
    let id = unique("c");
    Raw::connect(node, &session(&id, 3600).will(delayed_will(&topic, 1))).cut();
    Raw::connect(node, &session(&id, 3600)).cut();
    assert!(watcher.try_recv(Duration::from_millis(1500)).is_none());
}

#[test]
fn the_message_expiry_of_a_will_counts_from_its_publication() {
    let Some(node) = node() else { return };
    let (mut watcher, topic) = watcher(node);
    let properties = Props::new()
        .u32(property::WILL_DELAY, 2)
        .u32(property::MESSAGE_EXPIRY, 1);
    let will = Will::new(&topic, "fresh").properties(properties);
    Raw::connect(node, &session(&unique("c"), 3600).will(will)).cut();
    let message = watcher.recv_message(&topic, "fresh");
    assert!(matches!(
        message.number(property::MESSAGE_EXPIRY),
        Some(0 | 1)
    ));
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
