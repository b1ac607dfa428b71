//! Listing and deleting the messages that wait for a session.

use broker::BrokerHandle;
use broker::control::QueuedMessage;
use mqtt::QoS;

use crate::client::{Client, ReceivedPacket};
use crate::{Node, eventually, wait};

fn payloads(rows: &[QueuedMessage]) -> Vec<&str> {
    rows.iter()
        .map(|row| std::str::from_utf8(&row.message.payload).unwrap())
        .collect()
}

fn look(
    handle: &BrokerHandle,
    client_id: &str,
    after: Option<u64>,
    limit: usize,
) -> Vec<QueuedMessage> {
    wait(handle.queued_messages(client_id, after, limit)).expect("there is a session")
}

fn publish(node: &Node, topic: &str, numbers: std::ops::Range<u32>) {
    let mut publisher = node.client("publisher");
    for number in numbers {
        publisher.publish(topic, number.to_string().as_bytes(), false);
    }
}

#[test]
fn the_queue_of_an_offline_client_is_paged_and_cleared() {
    let node = Node::start();
    let handle = node.handle();
    let mut client = Client::connect(&node.address(), "away", false);
    client.subscribe("q", QoS::AtLeastOnce);
    client.drop_connection();
    eventually("it has gone", || {
        !wait(handle.client("away")).unwrap().connected
    });
    publish(&node, "q", 0..5);
    eventually("all are there", || {
        look(&handle, "away", None, 10).len() == 5
    });
    let rows = look(&handle, "away", None, 2);
    assert_eq!(payloads(&rows), ["0", "1"]);
    assert!(rows.iter().all(|row| row.packet_id.is_none()));
    assert_eq!(rows[0].message.publisher.as_deref(), Some("publisher"));
    let rows = look(&handle, "away", Some(rows[1].position), 10);
    assert_eq!(payloads(&rows), ["2", "3", "4"]);

    assert_eq!(wait(handle.clear_queue("away")), Some(5));
    assert_eq!(wait(handle.clear_queue("away")), Some(0));
    assert!(look(&handle, "away", None, 10).is_empty());
    assert_eq!(wait(handle.client("away")).unwrap().queued_messages, 0);
    publish(&node, "q", 5..6);
    let mut back = Client::connect(&node.address(), "away", false);
    assert_eq!(back.message(), ("q".into(), b"5".to_vec()));

    assert!(wait(handle.queued_messages("nobody", None, 10)).is_none());
    assert_eq!(wait(handle.clear_queue("nobody")), None);
}

#[test]
fn messages_in_flight_are_listed_with_their_packet_id_and_not_deleted() {
    let node = Node::start();
    let handle = node.handle();
    let mut slow = Client::connect_slow(&node.address(), "slow", true);
    slow.subscribe("q", QoS::AtLeastOnce);
    publish(&node, "q", 0..6);
    eventually("all are there", || {
        look(&handle, "slow", None, 10).len() == 6
    });
    let rows = look(&handle, "slow", None, 10);
    assert_eq!(payloads(&rows), ["0", "1", "2", "3", "4", "5"]);
    let sent: Vec<bool> = rows.iter().map(|row| row.packet_id.is_some()).collect();
    assert_eq!(sent, [true, true, false, false, false, false]);
    // One is acknowledged and the next is sent: the others keep their positions.
    let ReceivedPacket::Message { packet_id, .. } = slow.next() else {
        panic!("expected a message");
    };
    slow.ack(packet_id);
    eventually("the third is sent", || {
        let rows = look(&handle, "slow", None, 10);
        rows.len() == 5 && rows[1].packet_id.is_some()
    });
    let later = look(&handle, "slow", None, 10);
    let positions =
        |rows: &[QueuedMessage]| -> Vec<u64> { rows.iter().map(|row| row.position).collect() };
    assert_eq!(positions(&later), positions(&rows)[1..]);

    assert_eq!(wait(handle.clear_queue("slow")), Some(3));
    assert_eq!(payloads(&look(&handle, "slow", None, 10)), ["1", "2"]);
    publish(&node, "q", 6..7);
    let mut got = Vec::new();
    for _ in 0..3 {
        got.push(String::from_utf8(slow.message().1).unwrap());
    }
    assert_eq!(got, ["1", "2", "6"]);
}

#[test]
fn a_long_payload_is_truncated_in_listings() {
    let node = Node::start();
    let handle = node.handle();
    let mut client = Client::connect(&node.address(), "away", false);
    client.subscribe("q", QoS::AtLeastOnce);
    client.drop_connection();
    let long = vec![b'x'; 200_000];
    node.client("publisher").publish("q", &long, false);
    eventually("it is there", || look(&handle, "away", None, 1).len() == 1);
    let message = &look(&handle, "away", None, 1)[0].message;
    assert_eq!(
        (message.payload.len(), message.payload_bytes),
        (64 * 1024, 200_000)
    );
}

#[test]
fn the_queue_of_a_durable_session_is_listed_and_cleared_in_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start_in(directory.path());
    let handle = node.handle();
    let mut slow = Client::connect_slow(&node.address(), "slow", false);
    slow.subscribe("q", QoS::AtLeastOnce);
    publish(&node, "q", 0..4);
    assert!(matches!(
        slow.next(),
        ReceivedPacket::Message { packet_id: 1, .. }
    ));
    assert!(matches!(
        slow.next(),
        ReceivedPacket::Message { packet_id: 2, .. }
    ));
    slow.drop_connection();
    eventually("it has gone", || {
        !wait(handle.client("slow")).unwrap().connected
    });
    publish(&node, "q", 4..600);
    let count = || wait(handle.client("slow")).unwrap().queued_messages;
    eventually("all are there", || count() == 600);
    let mut rows = Vec::new();
    loop {
        let after = rows.last().map(|row: &QueuedMessage| row.position);
        let page = look(&handle, "slow", after, 70);
        if page.is_empty() {
            break;
        }
        rows.extend(page);
    }
    let numbers: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    assert_eq!(payloads(&rows), numbers);
    let ids: Vec<u16> = rows.iter().filter_map(|row| row.packet_id).collect();
    assert_eq!(ids, [1, 2]);

    let delete = |row: &QueuedMessage| wait(handle.delete_queued_message("slow", row.position));
    assert_eq!(delete(&rows[300]), Some(true));
    assert_eq!(delete(&rows[300]), Some(false));
    // It was sent.
    assert_eq!(delete(&rows[1]), Some(false));
    assert_eq!(wait(handle.clear_queue("slow")), Some(597));
    assert_eq!(count(), 2);
    // A handle keeps the store open.
    drop((handle, node));

    let node = Node::start_in(directory.path());
    let handle = node.handle();
    assert_eq!(payloads(&look(&handle, "slow", None, 10)), ["0", "1"]);
    publish(&node, "q", 600..601);
    let mut back = Client::connect(&node.address(), "slow", false);
    let got: Vec<_> = (0..3).map(|_| back.message().1).collect();
    assert_eq!(got, [&b"0"[..], b"1", b"600"]);
}
