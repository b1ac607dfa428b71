//! Publishing in the broker's name; retained messages.

use broker::control::{ControlError, DirectDelivery, PublishRequest, PublishResult, RetainedQuery};
use bytes::Bytes;
use mqtt::QoS;

use crate::client::ReceivedPacket;
use crate::{Node, eventually, wait};

fn publication(topic: &str, payload: &str) -> PublishRequest {
    PublishRequest {
        topic: topic.to_owned(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        qos: 1,
        ..PublishRequest::default()
    }
}

#[test]
fn messages_of_the_node_reach_subscribers_on_every_shard() {
    let node = Node::start();
    let handle = node.handle();
    // Enough clients for both shards to have some.
    let mut clients: Vec<_> = (0..8).map(|n| node.client(&format!("c{n}"))).collect();
    for client in &mut clients {
        client.subscribe("news/+", QoS::AtLeastOnce);
    }
    let published = wait(handle.publish(publication("news/today", "rain")));
    assert_eq!(
        published,
        Ok(PublishResult {
            has_subscribers: true
        })
    );
    for client in &mut clients {
        assert_eq!(client.message(), ("news/today".into(), b"rain".to_vec()));
    }
    let published = wait(handle.publish(publication("elsewhere", "rain")));
    assert_eq!(
        published,
        Ok(PublishResult {
            has_subscribers: false
        })
    );
}

#[test]
fn a_message_to_one_client_reaches_only_that_client() {
    let node = Node::start();
    let handle = node.handle();
    let mut clients: Vec<_> = (0..8).map(|n| node.client(&format!("c{n}"))).collect();
    for client in &mut clients {
        // One of two subscriptions decides.
        client.subscribe("me/+", QoS::AtMostOnce);
        client.subscribe("me/command", QoS::AtLeastOnce);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        let payload = format!("for {number}");
        let client_id = format!("c{number}");
        let result = wait(handle.send_to_client(&client_id, publication("me/command", &payload)));
        assert_eq!(result, Ok(true));
        let (done, is_done) = std::sync::mpsc::channel();
        handle.send_to_client_then(&client_id, publication("me/x", "soon"), move |result| {
            done.send(result).expect("the test waits");
        });
        assert_eq!(is_done.recv(), Ok(Ok(true)));
        assert_eq!(
            client.message(),
            ("me/command".into(), payload.into_bytes())
        );
        assert_eq!(client.message(), ("me/x".into(), b"soon".to_vec()));
    }
    assert_eq!(
        wait(handle.send_to_client("c0", publication("you/command", "x"))),
        Ok(false)
    );
    assert_eq!(
        wait(handle.send_to_client("nobody", publication("me/x", "x"))),
        Ok(false)
    );
    let rejected = wait(handle.send_to_client("c0", publication("me/#", "x")));
    assert!(matches!(
        rejected,
        Err(ControlError::InvalidField { field: "topic", .. })
    ));
}

#[test]
fn the_acknowledgement_of_a_message_to_one_client_is_reported() {
    let node = Node::start();
    let handle = node.handle();
    let tell = |client_id: &str, topic: &str| {
        let ((done, is_done), (acked, is_acked)) =
            (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let done = move |result| done.send(result).expect("the test waits");
        let acked = move || assert_eq!(acked.send(()), Ok(()), "the test waits");
        handle.send_to_connected_client(client_id, publication(topic, "x"), done, acked);
        (is_done.recv().expect("a result always arrives"), is_acked)
    };
    let mut client = node.client("c");
    client.subscribe("zero", QoS::AtMostOnce);
    client.subscribe("one", QoS::AtLeastOnce);
    let (result, is_acked) = tell("c", "one");
    let watched = |qos, is_watched| {
        Ok(Some(DirectDelivery {
            qos,
            is_ack_tracked: is_watched,
        }))
    };
    assert_eq!(result, watched(1, true));
    let ReceivedPacket::Message { packet_id, .. } = client.next() else {
        panic!("a message was sent");
    };
    assert!(is_acked.try_recv().is_err(), "it is not acknowledged yet");
    client.ack(packet_id);
    is_acked.recv().expect("it is acknowledged");
    let (result, is_acked) = tell("c", "zero");
    assert_eq!(result, watched(0, false));
    assert!(is_acked.recv().is_err(), "no acknowledgement is reported");
    assert_eq!(tell("c", "other").0, Ok(None));
    assert_eq!(tell("nobody", "one").0, Ok(None));
    // Unacknowledged messages are dropped with the session.
    let (result, is_acked) = tell("c", "one");
    assert_eq!(result, watched(1, true));
    client.drop_connection();
    assert!(is_acked.recv().is_err());
    let mut durable = crate::client::Client::connect(&node.address(), "d", false);
    durable.subscribe("one", QoS::AtLeastOnce);
    durable.drop_connection();
    eventually("the client is away", || tell("d", "one").0 == Ok(None));
}

#[test]
fn an_invalid_publish_request_names_its_field() {
    let node = Node::start_with(|config| config.limits.max_qos = 1);
    let handle = node.handle();
    let good = publication("t", "x");
    let long = "x".repeat(70_000);
    let cases: [(&str, PublishRequest); 8] = [
        ("topic", publication("", "x")),
        ("topic", publication("a/#", "x")),
        ("topic", publication("$SYS/x", "x")),
        (
            "qos",
            PublishRequest {
                qos: 2,
                ..good.clone()
            },
        ),
        (
            "payload",
            PublishRequest {
                payload: Bytes::from_static(b"\xff"),
                is_utf8: true,
                ..good.clone()
            },
        ),
        (
            "content_type",
            PublishRequest {
                content_type: Some(long),
                ..good.clone()
            },
        ),
        (
            "response_topic",
            PublishRequest {
                response_topic: Some("a/+".into()),
                ..good.clone()
            },
        ),
        (
            "user_properties",
            PublishRequest {
                user_properties: vec![("a\0".into(), String::new())],
                ..good.clone()
            },
        ),
    ];
    for (field, publication) in cases {
        match wait(handle.publish(publication)) {
            Err(ControlError::InvalidField { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn retained_messages_are_listed_read_and_deleted() {
    let node = Node::start();
    let handle = node.handle();
    let topics = ["a", "a/b", "a/b/c", "b/b", "$x/b"];
    for topic in topics {
        let retained = PublishRequest {
            retain: true,
            content_type: Some("text/plain".into()),
            message_expiry_s: Some(3600),
            user_properties: vec![("k".into(), "v".into())],
            ..publication(topic, topic)
        };
        wait(handle.publish_as(retained, "sender", "ann")).unwrap();
    }
    let page = |filter: Option<&str>, after: Option<&str>, limit| -> Vec<String> {
        let query = RetainedQuery {
            filter: filter.map(str::to_owned),
            after: after.map(str::to_owned),
            limit,
        };
        let rows = wait(handle.retained(query));
        rows.into_iter().map(|row| row.topic).collect()
    };
    assert_eq!(page(None, None, 10), ["$x/b", "a", "a/b", "a/b/c", "b/b"]);
    assert_eq!(page(None, Some("a"), 2), ["a/b", "a/b/c"]);
    assert_eq!(page(Some("#"), None, 10), ["a", "a/b", "a/b/c", "b/b"]);
    assert_eq!(page(Some("+/b"), None, 10), ["a/b", "b/b"]);
    assert_eq!(page(Some("+/b"), Some("a/b"), 10), ["b/b"]);
    assert_eq!(page(Some("a/b"), None, 10), ["a/b"]);
    assert_eq!(page(Some("a/b"), Some("a/b"), 10), [""; 0]);
    assert_eq!(page(Some("a/#"), None, 2), ["a", "a/b"]);

    let message = handle.retained_message("a/b").unwrap();
    assert_eq!(
        (&message.payload[..], message.payload_bytes),
        (&b"a/b"[..], 3)
    );
    assert_eq!(message.publisher.as_deref(), Some("sender"));
    assert_eq!(message.content_type.as_deref(), Some("text/plain"));
    assert_eq!(message.user_properties, [("k".to_owned(), "v".to_owned())]);
    assert_eq!(
        message.expires_at_ms,
        Some(message.published_at_ms + 3_600_000)
    );

    let mut client = node.client("c");
    client.subscribe("a/+", QoS::AtMostOnce);
    assert!(matches!(
        client.next(),
        ReceivedPacket::Message { retain: true, .. }
    ));
    assert_eq!(wait(handle.delete_retained("a/b")), Ok(true));
    assert_eq!(wait(handle.delete_retained("a/b")), Ok(false));
    assert!(handle.retained_message("a/b").is_none());
    assert_eq!(page(Some("a/#"), None, 10), ["a", "a/b/c"]);
    // Current subscribers are not notified: their next message is another one.
    wait(handle.publish(publication("a/z", "next"))).unwrap();
    assert_eq!(client.message(), ("a/z".into(), b"next".to_vec()));
}

#[test]
fn a_full_store_rejects_messages_of_the_control_plane() {
    let directory = tempfile::tempdir().unwrap();
    let config = store::StoreConfig {
        // More than any disk has.
        min_free_bytes: u64::MAX / 2,
        ..store::StoreConfig::default()
    };
    let node = Node::start_on_store(directory.path(), config);
    let handle = node.handle();
    eventually("the node knows", || {
        wait(handle.publish(publication("t", "x"))) == Err(ControlError::StoreUnavailable)
    });
}

#[test]
fn acknowledged_operations_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start_in(directory.path());
    for topic in ["a", "b"] {
        let retained = PublishRequest {
            retain: true,
            ..publication(topic, "kept")
        };
        wait(node.handle().publish(retained)).unwrap();
    }
    assert_eq!(wait(node.handle().delete_retained("a")), Ok(true));
    drop(node);
    let node = Node::start_in(directory.path());
    assert!(node.handle().retained_message("a").is_none());
    let kept = node.handle().retained_message("b").unwrap();
    assert_eq!(&kept.payload[..], b"kept");
}
