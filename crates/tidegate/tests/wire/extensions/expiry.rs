//! Expiry of messages and how it meets queues, retained messages and shards.

use super::*;

fn node() -> Option<&'static Node> {
    node_with(&[])
}

fn expiring(topic: &str, payload: &str, seconds: u32) -> Publish {
    Publish::new(topic, payload)
        .qos(1, 1)
        .properties(Props::new().u32(property::MESSAGE_EXPIRY, seconds))
}

/// Time is the subject here.
fn wait_ms(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

#[test]
fn a_message_expires_behind_a_full_window() {
    let Some(node) = node() else { return };
    let topic = unique("expiry/");
    let properties = Props::new().u16(property::RECEIVE_MAXIMUM, 1);
    let mut raw = Raw::connect(node, &connect(&unique("c")).properties(properties));
    raw.subscribe(&topic, 1);
    let mut publisher = client(node);
    publisher.publish_qos1(&topic, "first", 1);
    let first = raw.recv_message(&topic, "first");
    publish_for_code(&mut publisher, &expiring(&topic, "expires", 1));
    publish_for_code(&mut publisher, &expiring(&topic, "stays", 100));
    wait_ms(2100);
    raw.acknowledge(&first);
    let message = raw.recv_message(&topic, "stays");
    let left = message.number(property::MESSAGE_EXPIRY).unwrap();
    assert!((90..=98).contains(&left), "{message:?}");
}

#[test]
fn retained_messages_expire_by_the_nodes_rule_too() {
    let Some(node) = node_with(&["limits.retained_expiry_s=1"]) else {
        return;
    };
    let topic = unique("expiry/");
    let mut publisher = client(node);
    let plain = Publish::new(format!("{topic}/plain"), "x")
        .qos(1, 1)
        .retain();
    publish_for_code(&mut publisher, &plain);
    let own = expiring(&format!("{topic}/own"), "x", 100).retain();
    publish_for_code(&mut publisher, &own);
    let found = |filter: &str| -> Vec<String> {
        let mut raw = client(node);
        raw.subscribe(filter, 0);
        raw.ping_for_packets()
            .into_iter()
            .map(|p| p.topic)
            .collect()
    };
    let filter = format!("{topic}/#");
    assert_eq!(found(&filter).len(), 2);
    eventually("one of them has gone", || {
        found(&filter) == [format!("{topic}/own")]
    });
}

#[test]
fn an_expired_retained_message_is_not_replaced_by_the_one_before() {
    let Some(node) = node() else { return };
    let topic = unique("expiry/");
    let mut publisher = client(node);
    publish_for_code(
        &mut publisher,
        &Publish::new(&topic, "before").qos(1, 1).retain(),
    );
    publish_for_code(&mut publisher, &expiring(&topic, "brief", 1).retain());
    wait_ms(2100);
    let mut raw = client(node);
    raw.subscribe(&topic, 0);
    raw.ping();
}

#[test]
fn a_message_that_expires_at_once_still_reaches_who_is_there() {
    let Some(node) = node() else { return };
    for mut raw in clients_on_both_shards(node, 1).into_iter().flatten() {
        let topic = unique("expiry/");
        raw.subscribe(&topic, 1);
        publish_for_code(&mut client(node), &expiring(&topic, "brief", 1));
        let message = raw.recv_message(&topic, "brief");
        assert!(matches!(
            message.number(property::MESSAGE_EXPIRY),
            Some(0 | 1)
        ));
    }
}

#[test]
fn what_is_in_flight_keeps_its_place_but_counts_down() {
    let Some(node) = node() else { return };
    let topic = unique("expiry/");
    let id = unique("c");
    let mut raw = Raw::connect(node, &session(&id, 60));
    raw.subscribe(&topic, 1);
    publish_for_code(&mut client(node), &expiring(&topic, "sent", 100));
    let sent = raw.recv_message(&topic, "sent");
    raw.cut();
    wait_ms(2100);
    let mut raw = Raw::connect(node, &session(&id, 0));
    let again = raw.recv_message(&topic, "sent");
    assert_eq!((again.id(), again.dup()), (sent.id(), true));
    let left = again.number(property::MESSAGE_EXPIRY).unwrap();
    assert!((90..=98).contains(&left), "{again:?}");
}
