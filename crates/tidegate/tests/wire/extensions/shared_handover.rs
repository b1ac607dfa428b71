//! A member of a shared subscription that goes away hands on what it has not acknowledged: QoS 1 messages, sent or queued,
//! and queued QoS 2 messages. A QoS 2 message that was sent to it goes to no other member [MQTT-4.8.2-5].

use super::*;

fn node() -> Option<&'static Node> {
    node_with(&[])
}

fn share(topic: &str) -> String {
    format!("$share/group/{topic}")
}

/// A member that takes one message at a time and does not acknowledge.
fn slow_member(node: &Node, client_id: &str, expiry_s: u32, topic: &str) -> Raw {
    let mut connect = session(client_id, expiry_s);
    connect.properties = connect.properties.u16(property::RECEIVE_MAXIMUM, 1);
    let mut raw = Raw::connect(node, &connect);
    raw.subscribe(&share(topic), 2);
    raw
}

/// Ends the session of the first member in each of the ways there are.
fn each_way_to_leave(test: impl Fn(&Node, &mut dyn FnMut(Raw, &str))) {
    let Some(node) = node() else { return };
    test(node, &mut |raw, _| raw.disconnect());
    test(node, &mut |raw, _| raw.cut());
    test(node, &mut |mut raw, topic| {
        raw.unsubscribe(&share(topic));
        // It has left the group before its session ends.
        raw.disconnect();
    });
}

#[test]
fn a_sent_qos_1_message_goes_to_another_member() {
    let Some(node) = node() else { return };
    for cut in [false, true] {
        let topic = unique("handover/");
        let mut first = slow_member(node, &unique("c"), 0, &topic);
        client(node).publish_qos1(&topic, "1", 1);
        first.recv_message(&topic, "1");
        let mut second = client(node);
        second.subscribe(&share(&topic), 1);
        match cut {
            true => first.cut(),
            false => first.disconnect(),
        }
        let message = second.recv_message(&topic, "1");
        // It is the first time for this client.
        assert_eq!((message.qos(), message.dup()), (1, false));
        second.acknowledge(&message);
        second.ping();
    }
}

#[test]
fn queued_messages_go_to_another_member() {
    each_way_to_leave(|node, leave| {
        let topic = unique("handover/");
        let first_id = unique("c");
        let mut first = slow_member(node, &first_id, 0, &topic);
        let mut publisher = client(node);
        // This one stays with its member.
        publisher.publish_qos2(&topic, "0", 1);
        first.recv_message(&topic, "0");
        for number in 1..10 {
            match number % 2 {
                0 => publisher.publish_qos1(&topic, number.to_string(), 1),
                _ => publisher.publish_qos2(&topic, number.to_string(), 1),
            }
        }
        let mut second = client(node);
        second.subscribe(&share(&topic), 2);
        leave(first, &topic);
        let mut received = collect(&mut [second], 9).concat();
        received.sort_unstable();
        assert_eq!(received, (1..10).collect::<Vec<_>>());
    });
}

#[test]
fn a_sent_qos_2_message_goes_to_no_other_member() {
    each_way_to_leave(|node, leave| {
        let topic = unique("handover/");
        let mut first = slow_member(node, &unique("c"), 0, &topic);
        let mut publisher = client(node);
        publisher.publish_qos2(&topic, "1", 1);
        first.recv_message(&topic, "1");
        let mut second = client(node);
        second.subscribe(&share(&topic), 2);
        leave(first, &topic);
        expect_silence(&mut second);
        publisher.publish_qos1(&topic, "2", 1);
        second.recv_message(&topic, "2");
    });
}

#[test]
fn a_session_that_is_away_hands_on_while_others_are_there() {
    let Some(node) = node() else { return };
    let topic = unique("handover/");
    let id = unique("c");
    let mut first = slow_member(node, &id, 60, &topic);
    let mut publisher = client(node);
    publisher.publish_qos1(&topic, "0", 1);
    first.recv_message(&topic, "0");
    publish_all(&mut publisher, &topic, 1..5);
    let mut second = client(node);
    second.subscribe(&share(&topic), 2);
    first.cut();
    let mut received = collect(&mut [second], 5).concat();
    received.sort_unstable();
    assert_eq!(received, [0, 1, 2, 3, 4]);
    // Nothing is left for the first one.
    expect_silence(&mut Raw::connect(node, &session(&id, 0)));
}

#[test]
fn a_sent_qos_2_message_waits_for_its_member_and_is_completed_there() {
    let Some(node) = node() else { return };
    let topic = unique("handover/");
    let id = unique("c");
    let mut first = slow_member(node, &id, 60, &topic);
    let mut publisher = client(node);
    publisher.publish_qos2(&topic, "sent", 1);
    let sent = first.recv_message(&topic, "sent");
    publisher.publish_qos2(&topic, "queued", 2);
    let mut second = client(node);
    second.subscribe(&share(&topic), 2);
    first.cut();
    // [MQTT-4.8.2-4] for the one, the hand-over for the other.
    let queued = second.recv_message(&topic, "queued");
    second.acknowledge(&queued);
    let mut first = Raw::connect(node, &session(&id, 0));
    let again = first.recv_message(&topic, "sent");
    assert_eq!((again.id(), again.dup()), (sent.id(), true));
    first.acknowledge(&again);
    first.ping();
    second.ping();
}

#[test]
fn without_another_member_everything_waits() {
    let Some(node) = node() else { return };
    let topic = unique("handover/");
    let id = unique("c");
    let mut first = slow_member(node, &id, 60, &topic);
    let mut publisher = client(node);
    publisher.publish_qos1(&topic, "0", 1);
    first.recv_message(&topic, "0");
    publish_all(&mut publisher, &topic, 1..5);
    first.cut();
    let mut first = [Raw::connect(node, &session(&id, 0))];
    assert_eq!(collect(&mut first, 5)[0], [0, 1, 2, 3, 4]);
}

#[test]
fn messages_of_other_subscriptions_are_not_handed_on() {
    let Some(node) = node() else { return };
    let topic = unique("handover/");
    let own = unique("own/");
    let id = unique("c");
    let mut first = slow_member(node, &id, 60, &topic);
    first.subscribe(&own, 1);
    let mut publisher = client(node);
    publisher.publish_qos1(&own, "0", 1);
    first.recv_message(&own, "0");
    publish_all(&mut publisher, &own, 1..3);
    let mut second = client(node);
    second.subscribe(&share(&topic), 2);
    first.cut();
    expect_silence(&mut second);
    let mut first = [Raw::connect(node, &session(&id, 0))];
    assert_eq!(collect(&mut first, 3)[0], [0, 1, 2]);
}

#[test]
fn a_message_is_handed_on_from_member_to_member() {
    let Some(node) = node() else { return };
    let topic = unique("handover/");
    let mut current = slow_member(node, &unique("c"), 0, &topic);
    client(node).publish_qos1(&topic, "passed on", 1);
    for _ in 0..8 {
        let message = current.recv_message(&topic, "passed on");
        assert!(!message.dup());
        let next = slow_member(node, &unique("c"), 0, &topic);
        current.cut();
        current = next;
    }
    let message = current.recv_message(&topic, "passed on");
    current.acknowledge(&message);
    current.ping();
}
