//! `$exclusive/{topic}`: one client at a time may subscribe to the topic this way.

use super::*;

fn node() -> Option<&'static Node> {
    node_with(&[])
}

fn try_exclusive(raw: &mut Raw, topic: &str) -> u8 {
    let subscribe = Subscribe::new(1).filter(format!("$exclusive/{topic}"), 1);
    raw.subscribe_for_codes(&subscribe)[0]
}

#[test]
fn the_second_subscriber_is_rejected() {
    let Some(node) = node() else { return };
    let topic = unique("exclusive/");
    let mut first = client(node);
    assert_eq!(try_exclusive(&mut first, &topic), 1);
    // On either shard.
    let mut others: Vec<Raw> = clients_on_both_shards(node, 2)
        .into_iter()
        .flatten()
        .collect();
    for other in &mut others {
        assert_eq!(try_exclusive(other, &topic), reason::QUOTA_EXCEEDED);
    }
    client(node).publish_qos1(&topic, "x", 1);
    first.recv_message(&topic, "x");
    for other in &mut others {
        expect_silence(other);
    }
}

#[test]
fn the_holder_may_subscribe_again() {
    let Some(node) = node() else { return };
    let topic = unique("exclusive/");
    let mut raw = client(node);
    assert_eq!(try_exclusive(&mut raw, &topic), 1);
    assert_eq!(try_exclusive(&mut raw, &topic), 1);
    client(node).publish_qos1(&topic, "once", 1);
    let message = raw.recv_message(&topic, "once");
    raw.acknowledge(&message);
    raw.ping();
}

#[test]
fn other_topics_are_free() {
    let Some(node) = node() else { return };
    let topic = unique("exclusive/");
    let (mut first, mut second) = (client(node), client(node));
    assert_eq!(try_exclusive(&mut first, &format!("{topic}/a")), 1);
    assert_eq!(try_exclusive(&mut second, &format!("{topic}/b")), 1);
}

#[test]
fn ordinary_subscribers_are_not_concerned() {
    let Some(node) = node() else { return };
    let topic = unique("exclusive/");
    let mut before = client(node);
    before.subscribe(&topic, 0);
    let mut holder = client(node);
    assert_eq!(try_exclusive(&mut holder, &topic), 1);
    let mut after = client(node);
    after.subscribe(&topic, 0);
    client(node).publish(&topic, "x");
    for raw in [&mut before, &mut holder, &mut after] {
        raw.recv_message(&topic, "x");
    }
}

#[test]
fn unsubscribing_frees_the_topic() {
    let Some(node) = node() else { return };
    let topic = unique("exclusive/");
    let (mut first, mut second) = (client(node), client(node));
    assert_eq!(try_exclusive(&mut first, &topic), 1);
    assert_eq!(try_exclusive(&mut second, &topic), reason::QUOTA_EXCEEDED);
    first.unsubscribe(&format!("$exclusive/{topic}"));
    assert_eq!(try_exclusive(&mut second, &topic), 1);
    client(node).publish(&topic, "x");
    second.recv_message(&topic, "x");
    expect_silence(&mut first);
}

#[test]
fn an_ordinary_subscription_to_the_same_topic_is_another_one() {
    let Some(node) = node() else { return };
    let topic = unique("exclusive/");
    let (mut first, mut second) = (client(node), client(node));
    assert_eq!(try_exclusive(&mut first, &topic), 1);
    first.subscribe(&topic, 0);
    first.unsubscribe(&topic);
    assert_eq!(try_exclusive(&mut second, &topic), reason::QUOTA_EXCEEDED);
    client(node).publish(&topic, "still subscribed");
    first.recv_message(&topic, "still subscribed");
}

#[test]
fn the_end_of_the_session_frees_the_topic() {
    let Some(node) = node() else { return };
    for cut in [false, true] {
        let topic = unique("exclusive/");
        let mut first = client(node);
        assert_eq!(try_exclusive(&mut first, &topic), 1);
        match cut {
            true => first.cut(),
            false => first.disconnect(),
        }
        let mut second = client(node);
        eventually("the topic is free", || {
            try_exclusive(&mut second, &topic) == 1
        });
    }
}

#[test]
fn a_session_that_is_away_holds_the_topic_until_it_expires() {
    let Some(node) = node() else { return };
    let topic = unique("exclusive/");
    let mut first = Raw::connect(node, &session(&unique("c"), 1));
    assert_eq!(try_exclusive(&mut first, &topic), 1);
    first.disconnect();
    let mut second = client(node);
    assert_eq!(try_exclusive(&mut second, &topic), reason::QUOTA_EXCEEDED);
    eventually("the topic is free", || {
        try_exclusive(&mut second, &topic) == 1
    });
}

#[test]
fn a_session_that_comes_back_still_holds_it() {
    let Some(node) = node() else { return };
    let topic = unique("exclusive/");
    let id = unique("c");
    let mut first = Raw::connect(node, &session(&id, 60));
    assert_eq!(try_exclusive(&mut first, &topic), 1);
    first.disconnect();
    // Perhaps on the other shard.
    for _ in 0..6 {
        Raw::connect(node, &session(&id, 60)).disconnect();
    }
    let mut first = Raw::connect(node, &session(&id, 0));
    let mut second = client(node);
    assert_eq!(try_exclusive(&mut second, &topic), reason::QUOTA_EXCEEDED);
    client(node).publish(&topic, "x");
    first.recv_message(&topic, "x");
}

#[test]
fn wildcards_and_nothing_cannot_be_exclusive() {
    let Some(node) = node() else { return };
    let mut raw = client(node);
    for topic in ["a/#", "+", ""] {
        assert_eq!(
            try_exclusive(&mut raw, topic),
            reason::FILTER_INVALID,
            "{topic}"
        );
    }
}

#[test]
fn it_can_be_turned_off() {
    let Some(node) = node_with(&["limits.exclusive_subscription_available=false"]) else {
        return;
    };
    let mut raw = client(node);
    let code = try_exclusive(&mut raw, &unique("exclusive/"));
    assert!(code >= 0x80, "{code:#04x}");
}
