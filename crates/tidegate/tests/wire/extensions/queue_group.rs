//! `$queue/{filter}`: a shared subscription without a name.

use super::*;

fn node() -> Option<&'static Node> {
    node_with(&[])
}

#[test]
fn each_message_goes_to_one_subscriber() {
    let Some(node) = node() else { return };
    let topic = unique("queue/");
    let mut members: Vec<Raw> = (0..4).map(|_| client(node)).collect();
    for member in &mut members {
        member.subscribe(&format!("$queue/{topic}/+"), 1);
    }
    let mut publisher = client(node);
    publish_all(&mut publisher, &format!("{topic}/a"), 0..40);
    let mut received = collect(&mut members, 40);
    assert!(received.iter().all(|numbers| !numbers.is_empty()));
    received[0].sort_unstable();
    let mut all = received.concat();
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<_>>());
}

#[test]
fn it_is_another_group_than_those_with_a_name() {
    let Some(node) = node() else { return };
    let topic = unique("queue/");
    let filters = [
        format!("$queue/{topic}"),
        format!("$share/queue/{topic}"),
        topic.clone(),
    ];
    let mut members: Vec<Raw> = filters
        .iter()
        .map(|filter| {
            let mut raw = client(node);
            raw.subscribe(filter, 0);
            raw
        })
        .collect();
    client(node).publish(&topic, "to each of them");
    for member in &mut members {
        member.recv_message(&topic, "to each of them");
    }
}

#[test]
fn it_gets_no_retained_messages() {
    let Some(node) = node() else { return };
    let topic = unique("queue/");
    let mut publisher = client(node);
    publish_for_code(
        &mut publisher,
        &Publish::new(&topic, "kept").qos(1, 1).retain(),
    );
    let mut member = client(node);
    member.subscribe(&format!("$queue/{topic}"), 0);
    expect_silence(&mut member);
}

#[test]
fn unsubscribing_takes_the_whole_filter() {
    let Some(node) = node() else { return };
    let topic = unique("queue/");
    let filter = format!("$queue/{topic}");
    let mut member = client(node);
    member.subscribe(&filter, 0);
    for (filter, code) in [(&topic, 0x11), (&filter, 0x00), (&filter, 0x11)] {
        member.send(&Unsubscribe::new(1).filter(filter).bytes(5));
        assert_eq!(member.recv(kind::UNSUBACK).payload, [code], "{filter}");
    }
    client(node).publish_qos1(&topic, "left", 1);
    expect_silence(&mut member);
}

#[test]
fn a_filter_must_follow() {
    let Some(node) = node() else { return };
    let mut raw = client(node);
    for filter in ["$queue/", "$queue/a/#/b", "$queue/a+"] {
        let codes = raw.subscribe_for_codes(&Subscribe::new(1).filter(filter, 0));
        assert_eq!(codes, [reason::FILTER_INVALID], "{filter}");
    }
}

#[test]
fn a_member_that_goes_away_hands_on() {
    let Some(node) = node() else { return };
    let topic = unique("queue/");
    let filter = format!("$queue/{topic}");
    let mut first = client(node);
    first.subscribe(&filter, 1);
    client(node).publish_qos1(&topic, "handed on", 1);
    first.recv_message(&topic, "handed on");
    let mut second = client(node);
    second.subscribe(&filter, 1);
    first.cut();
    second.recv_message(&topic, "handed on");
}
