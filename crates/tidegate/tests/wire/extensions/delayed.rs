//! `$delayed/{seconds}/{topic}`: published as `{topic}` after the delay.

use super::*;

fn node() -> Option<&'static Node> {
    node_with(&[])
}

fn subscriber(node: &Node, topic: &str) -> Raw {
    let mut raw = client(node);
    raw.subscribe(topic, 2);
    raw
}

#[test]
fn a_message_is_published_after_its_delay() {
    let Some(node) = node() else { return };
    let topic = unique("delayed/");
    let mut subscriber = subscriber(node, &topic);
    let mut publisher = client(node);
    let start = Instant::now();
    for qos in 0..3 {
        let publish = Publish::new(format!("$delayed/1/{topic}"), qos.to_string()).qos(qos, 1);
        assert_eq!(publish_for_code(&mut publisher, &publish), 0);
    }
    for qos in 0..3 {
        let message = subscriber.recv_message(&topic, qos.to_string());
        expect_waited(start, 1000);
        assert_eq!(message.qos(), qos);
        subscriber.acknowledge(&message);
    }
}

#[test]
fn everything_else_about_it_is_as_published() {
    let Some(node) = node() else { return };
    let topic = unique("delayed/");
    let mut subscriber = subscriber(node, &topic);
    let properties = Props::new()
        .pair(property::USER, "b", "1")
        .string(property::CONTENT_TYPE, "text/plain")
        .pair(property::USER, "a", "2");
    let publish = Publish::new(format!("$delayed/0/{topic}"), "x")
        .qos(1, 1)
        .properties(properties);
    publish_for_code(&mut client(node), &publish);
    let message = subscriber.recv_message(&topic, "x");
    let pair = |key: &str, value: &str| (property::USER, Value::Pair(key.into(), value.into()));
    let mut users = message.properties.clone();
    users.retain(|(id, _)| *id == property::USER);
    assert_eq!(users, [pair("b", "1"), pair("a", "2")]);
    assert_eq!(
        message.property(property::CONTENT_TYPE),
        Some(&Value::String("text/plain".into()))
    );
    assert_eq!(message.properties.len(), 3);
}

#[test]
fn the_topic_may_begin_with_an_empty_level() {
    let Some(node) = node() else { return };
    let topic = unique("/delayed/");
    let mut subscriber = subscriber(node, &topic);
    client(node).publish_qos1(&format!("$delayed/0/{topic}"), "x", 1);
    subscriber.recv_message(&topic, "x");
}

#[test]
fn it_is_published_though_its_publisher_has_gone() {
    let Some(node) = node() else { return };
    let topic = unique("delayed/");
    let mut subscriber = subscriber(node, &topic);
    let mut publisher = client(node);
    publisher.publish_qos1(&format!("$delayed/1/{topic}"), "left behind", 1);
    publisher.disconnect();
    subscriber.recv_message(&topic, "left behind");
}

#[test]
fn it_waits_for_a_session_that_is_away_when_its_time_comes() {
    let Some(node) = node() else { return };
    let topic = unique("delayed/");
    let id = unique("c");
    let mut away = Raw::connect(node, &session(&id, 60));
    away.subscribe(&topic, 1);
    away.disconnect();
    let mut witness = subscriber(node, &topic);
    client(node).publish_qos1(&format!("$delayed/1/{topic}"), "x", 1);
    witness.recv_message(&topic, "x");
    let mut back = Raw::connect(node, &session(&id, 0));
    back.recv_message(&topic, "x");
}

#[test]
fn it_is_retained_when_its_time_comes() {
    let Some(node) = node() else { return };
    let topic = unique("delayed/");
    let mut witness = subscriber(node, &topic);
    let publish = Publish::new(format!("$delayed/1/{topic}"), "kept")
        .qos(1, 1)
        .retain();
    publish_for_code(&mut client(node), &publish);
    let mut early = subscriber(node, &topic);
    early.ping();
    witness.recv_message(&topic, "kept");
    let mut late = subscriber(node, &topic);
    assert!(late.recv_message(&topic, "kept").retain());
}

#[test]
fn subscribers_do_not_receive_it_under_its_delayed_name() {
    // Nobody else is on this node to be disturbed by a subscription to everything.
    let Some(node) = node_with(&["limits.max_inflight=999"]) else {
        return;
    };
    let topic = unique("delayed/");
    let delayed = format!("$delayed/0/{topic}");
    let mut watcher = client(node);
    for filter in ["$delayed/#", "#", "+/#", &delayed] {
        watcher.send(&Subscribe::new(1).filter(filter, 0).bytes(5));
        watcher.recv(kind::SUBACK);
    }
    client(node).publish_qos1(&delayed, "x", 1);
    loop {
        let message = watcher.recv(kind::PUBLISH);
        assert!(!message.topic.starts_with("$delayed"), "{message:?}");
        if message.topic == topic {
            break;
        }
    }
}

#[test]
fn a_name_that_is_not_of_its_form_is_rejected() {
    let Some(node) = node() else { return };
    let mut raw = client(node);
    for topic in [
        "$delayed/x/topic",
        "$delayed/-1/topic",
        "$delayed/1.5/topic",
        "$delayed//topic",
        "$delayed/1",
        "$delayed/1/",
        "$delayed/99999999999/topic",
    ] {
        for qos in [1, 2] {
            let code = publish_for_code(&mut raw, &Publish::new(topic, "x").qos(qos, 1));
            let expected = [reason::TOPIC_INVALID, reason::QUOTA_EXCEEDED];
            assert!(expected.contains(&code), "{topic}: {code:#04x}");
        }
        raw.publish(topic, "x");
    }
    // The publisher stays.
    raw.ping();
}

#[test]
fn a_delay_that_is_too_long_is_rejected() {
    let Some(node) = node_with(&["limits.max_publish_delay_s=10"]) else {
        return;
    };
    let mut raw = client(node);
    let topic = unique("delayed/");
    for (delay, code) in [(10, 0x00), (11, reason::QUOTA_EXCEEDED)] {
        for qos in [1, 2] {
            let publish = Publish::new(format!("$delayed/{delay}/{topic}"), "x").qos(qos, 1);
            assert_eq!(publish_for_code(&mut raw, &publish), code, "{delay} s");
        }
    }
}

#[test]
fn a_full_store_rejects_more() {
    let Some(node) = node_with(&["limits.max_delayed_messages=3"]) else {
        return;
    };
    let topic = unique("delayed/");
    let mut subscriber = subscriber(node, &topic);
    let mut publisher = client(node);
    let delayed = Publish::new(format!("$delayed/1/{topic}"), "x").qos(1, 1);
    for code in [0, 0, 0, reason::QUOTA_EXCEEDED, reason::QUOTA_EXCEEDED] {
        assert_eq!(publish_for_code(&mut publisher, &delayed), code);
    }
    // Published ones make room.
    for _ in 0..3 {
        let message = subscriber.recv_message(&topic, "x");
        subscriber.acknowledge(&message);
    }
    assert_eq!(publish_for_code(&mut publisher, &delayed), 0);
    subscriber.recv_message(&topic, "x");
}
