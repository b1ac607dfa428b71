//! The will (3.1.2.5 to 3.1.2.7, 3.14.4-3).

use super::{V311, client, subscriber, topic};
use crate::support::{Connect, Node, Raw, Will, ack, kind, unique};

/// A connected client with a will on `topic`.
fn with_will(will: Will) -> Raw {
    Raw::connect(Node::shared(), &Connect::new(V311, unique("c")).will(will))
}

#[test]
fn mqtt_3_1_2_8_the_will_is_published_when_the_client_cuts_the_connection() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 2);
    for qos in 0..3 {
        with_will(Will::new(&topic, "gone").qos(qos)).cut();
        let will = watcher.recv_message(&topic, "gone");
        assert_eq!(
            (will.qos(), will.retain(), will.dup()),
            (qos, false, false),
            "{will:?}"
        );
        watcher.acknowledge(&will);
    }
    watcher.ping();
}

#[test]
fn mqtt_3_1_2_8_the_will_is_published_after_a_protocol_error() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    let errors: [&[u8]; 5] = [
        &[0x00, 0],
        &[0x36, 3, 0, 1, b'a'],
        &[0x10, 0],
        &[0x80, 6, 0, 1, 0, 1, b'a', 0],
        &[0xe1, 0],
    ];
    for bytes in errors {
        let mut raw = with_will(Will::new(&topic, "error"));
        raw.send(bytes);
        raw.expect_closed();
        watcher.recv_message(&topic, "error");
    }
    watcher.ping();
}

#[test]
fn mqtt_3_1_2_8_the_will_is_published_at_a_takeover() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    let connect = Connect::new(V311, unique("c")).will(Will::new(&topic, "taken over"));
    let mut first = Raw::connect(Node::shared(), &connect);
    let mut second = Raw::connect(Node::shared(), &connect);
    first.expect_closed();
    watcher.recv_message(&topic, "taken over");
    // Once for the first connection, not for the second, which lives.
    second.ping();
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_3_1_2_8_the_will_of_a_rejected_connect_is_not_published() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    let mut raw = Raw::open(Node::shared(), V311);
    raw.send(
        &Connect::new(V311, "")
            .persistent()
            .will(Will::new(&topic, "rejected"))
            .bytes(),
    );
    assert_eq!(raw.recv(kind::CONNACK).reason, 2);
    raw.expect_closed();
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_3_1_2_8_the_will_of_a_stored_session_is_published_when_its_connection_ends() {
    let (id, topic) = (unique("c"), topic());
    let mut watcher = subscriber(&topic, 0);
    let connect = super::persistent(&id).will(Will::new(&topic, "first"));
    Raw::connect(Node::shared(), &connect).cut();
    watcher.recv_message(&topic, "first");
    // The will belongs to the connection: the next one brings its own, or none.
    let connect = super::persistent(&id).will(Will::new(&topic, "second"));
    Raw::connect(Node::shared(), &connect).cut();
    watcher.recv_message(&topic, "second");
    super::resume(&id, true).cut();
    super::resume(&id, true).disconnect();
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_3_1_2_8_an_empty_will_message_is_published() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    with_will(Will::new(&topic, "")).cut();
    watcher.recv_message(&topic, "");
}

#[test]
fn mqtt_3_1_2_10_a_published_will_is_gone() {
    let (id, topic) = (unique("c"), topic());
    let mut watcher = subscriber(&topic, 0);
    let connect = super::persistent(&id).will(Will::new(&topic, "once"));
    Raw::connect(Node::shared(), &connect).cut();
    watcher.recv_message(&topic, "once");
    super::resume(&id, true).cut();
    // Takes the session over, so that the server has dealt with the end of the last connection.
    super::resume(&id, true).ping();
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_3_1_2_12_without_a_will_flag_nothing_is_published() {
    let topic = topic();
    let mut watcher = subscriber(&format!("{topic}/#"), 0);
    let id = unique("c");
    Raw::connect(Node::shared(), &Connect::new(V311, &id)).cut();
    Raw::connect(Node::shared(), &Connect::new(V311, &id)).ping();
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_3_1_2_16_a_will_without_retain_is_not_retained() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 1);
    with_will(Will::new(&topic, "plain").qos(1)).cut();
    let will = watcher.recv_message(&topic, "plain");
    assert!(!will.retain());
    subscriber(&topic, 1).ping();
}

#[test]
fn mqtt_3_1_2_17_a_will_with_retain_is_retained() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 1);
    with_will(Will::new(&topic, "kept").qos(1).retain()).cut();
    let will = watcher.recv_message(&topic, "kept");
    assert!(!will.retain(), "for an established subscription");
    let mut late = subscriber(&topic, 1);
    let retained = late.recv_message(&topic, "kept");
    assert!(retained.retain(), "for a new subscription");
    assert_eq!(retained.qos(), 1);
}

#[test]
fn mqtt_3_1_2_17_an_empty_will_with_retain_removes_the_retained_message() {
    let topic = topic();
    let mut publisher = client();
    publisher.send_publish(
        &crate::support::Publish::new(&topic, "old")
            .qos(1, 1)
            .retain(),
    );
    publisher.recv(kind::PUBACK);
    let mut watcher = subscriber(&topic, 0);
    watcher.recv_message(&topic, "old");
    with_will(Will::new(&topic, "").retain()).cut();
    watcher.recv_message(&topic, "");
    subscriber(&topic, 0).ping();
}

#[test]
fn mqtt_3_14_4_3_disconnect_discards_the_will() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    with_will(Will::new(&topic, "discarded")).disconnect();
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_3_14_4_3_disconnect_discards_the_will_even_with_the_end_of_the_connection_behind_it() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    for _ in 0..20 {
        let mut raw = with_will(Will::new(&topic, "discarded"));
        raw.send(&[0xe0, 0x00]);
        raw.cut();
    }
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
    // And what came before the DISCONNECT in the same segment is still delivered.
    let mut raw = with_will(Will::new(&topic, "discarded"));
    let mut bytes = crate::support::Publish::new(&topic, "last words").bytes(V311);
    bytes.extend([0xe0, 0x00]);
    raw.send(&bytes);
    raw.expect_closed();
    watcher.recv_message(&topic, "last words");
}

#[test]
fn a_client_gets_its_own_will_after_it_comes_back() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.disconnect();
    Raw::connect(
        Node::shared(),
        &super::persistent(&id).will(Will::new(&topic, "mine").qos(1)),
    )
    .cut();
    let mut watch = super::resume(&id, true);
    let will = watch.recv_message(&topic, "mine");
    watch.send(&ack(kind::PUBACK, will.id()));
    watch.ping();
}
