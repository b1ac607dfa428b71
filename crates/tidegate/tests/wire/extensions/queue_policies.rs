//! What happens to one more message for a session whose queue is full.

use super::*;

const TEN: &str = "limits.max_queued_messages=10";

fn node_for(policy: &str) -> Option<&'static Node> {
    node_with(&[TEN, &format!("limits.queue_policy={policy}")])
}

/// What a session that was away for messages 0 to 14 finds.
fn kept_while_away(node: &Node) -> Vec<u32> {
    let topic = unique("queue/");
    let id = unique("c");
    let mut raw = Raw::connect(node, &session(&id, 60));
    raw.subscribe(&topic, 2);
    raw.disconnect();
    let mut publisher = client(node);
    publish_all(&mut publisher, &topic, 0..15);
    expect_queue(node, &id, 10, 5);
    let mut raw = Raw::connect(node, &session(&id, 0));
    let kept = collect(std::slice::from_mut(&mut raw), 10).concat();
    raw.ping();
    kept
}

#[test]
fn drop_oldest_keeps_the_last_ones() {
    let Some(node) = node_for("drop_oldest") else {
        return;
    };
    assert_eq!(kept_while_away(node), (5..15).collect::<Vec<_>>());
}

#[test]
fn drop_newest_keeps_the_first_ones() {
    let Some(node) = node_for("drop_newest") else {
        return;
    };
    assert_eq!(kept_while_away(node), (0..10).collect::<Vec<_>>());
}

/// A client that takes message 0 and no more; 1 to 10 fill its queue.
struct BlockedClient {
    client_id: String,
    raw: Raw,
    /// Message 0, to be acknowledged.
    first: Packet,
    publisher: Raw,
    topic: String,
}

fn blocked_client(node: &Node) -> BlockedClient {
    let topic = unique("queue/");
    let client_id = unique("c");
    let one_at_a_time = Props::new().u16(property::RECEIVE_MAXIMUM, 1);
    let mut raw = Raw::connect(node, &connect(&client_id).properties(one_at_a_time));
    raw.subscribe(&topic, 1);
    let mut publisher = client(node);
    publisher.publish_qos1(&topic, "0", 1);
    let first = raw.recv_message(&topic, "0");
    publish_all(&mut publisher, &topic, 1..11);
    expect_queue(node, &client_id, 10, 0);
    BlockedClient {
        client_id,
        raw,
        first,
        publisher,
        topic,
    }
}

#[test]
fn disconnect_ends_a_client_that_is_too_slow() {
    let Some(node) = node_for("disconnect") else {
        return;
    };
    let mut blocked_client = blocked_client(node);
    blocked_client
        .publisher
        .publish_qos1(&blocked_client.topic, "11", 1);
    blocked_client.raw.expect_disconnect(reason::QUOTA_EXCEEDED);
}

#[test]
fn disconnect_keeps_what_a_session_that_is_away_has() {
    let Some(node) = node_for("disconnect") else {
        return;
    };
    assert_eq!(kept_while_away(node), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_message_in_flight_is_not_dropped() {
    let Some(node) = node_for("drop_oldest") else {
        return;
    };
    let mut blocked_client = blocked_client(node);
    publish_all(&mut blocked_client.publisher, &blocked_client.topic, 11..14);
    // 0 is in flight: 1 to 3 made room for 11 to 13.
    expect_queue(node, &blocked_client.client_id, 10, 3);
    blocked_client.raw.acknowledge(&blocked_client.first);
    assert_eq!(
        collect(&mut [blocked_client.raw], 10).concat(),
        (4..14).collect::<Vec<_>>()
    );
}

#[test]
fn the_bytes_of_a_queue_are_bounded_too() {
    let settings = ["limits.max_queued_bytes=10000"];
    let Some(node) = node_with(&settings) else {
        return;
    };
    let topic = unique("queue/");
    let id = unique("c");
    let mut raw = Raw::connect(node, &session(&id, 60));
    raw.subscribe(&topic, 1);
    raw.disconnect();
    let mut publisher = client(node);
    for number in 0..40_u32 {
        // A number of 1,000 digits.
        publisher.publish_qos1(&topic, format!("{number:01000}"), 1);
    }
    let mut kept = 0;
    eventually("all of them are at the session", || {
        let session = api(node, &format!("/api/v1/sessions/{id}"));
        kept = session["queued_messages"].as_u64().unwrap();
        kept + session["messages_dropped"].as_u64().unwrap() == 40
    });
    assert!((5..=10).contains(&kept), "{kept}");
    let mut raw = Raw::connect(node, &session(&id, 0));
    let kept = collect(std::slice::from_mut(&mut raw), kept as usize).concat();
    assert_eq!(kept, (40 - kept.len() as u32..40).collect::<Vec<_>>());
}

#[test]
fn qos_0_waits_for_nobody() {
    let Some(node) = node_with(&[]) else { return };
    assert_eq!(qos_0_kept_while_away(node, 1, 3), [] as [u32; 0]);
}

#[test]
fn qos_0_messages_are_queued_if_configured() {
    let Some(node) = node_with(&["limits.queue_qos0_messages=true"]) else {
        return;
    };
    assert_eq!(qos_0_kept_while_away(node, 4, 0), [0, 1, 2]);
}

/// What a session finds that was away for three QoS 0 messages and one of QoS 1; `queued` and `dropped` of these four.
fn qos_0_kept_while_away(node: &Node, queued: u64, dropped: u64) -> Vec<u32> {
    let topic = unique("queue/");
    let id = unique("c");
    let mut raw = Raw::connect(node, &session(&id, 60));
    raw.subscribe(&topic, 2);
    raw.disconnect();
    let mut publisher = client(node);
    for number in 0..3 {
        publisher.publish(&topic, number.to_string());
    }
    // A fence: the last to come. Its PUBACK says that the publisher's shard has it; the session may be on another.
    publisher.publish_qos1(&topic, "99", 1);
    expect_queue(node, &id, queued, dropped);
    let mut raw = Raw::connect(node, &session(&id, 0));
    let mut kept = Vec::new();
    eventually("the fence", || {
        kept.extend(drain(&mut raw));
        kept.contains(&99)
    });
    kept.retain(|number| *number != 99);
    kept
}
