//! Live messages, published topics and rejected connections: what the node observes for readers.

use std::sync::Arc;
use std::time::Duration;

use hooks::{
    DropReason, HooksFactory as _, Interest, MessageOrigin, MessageView, PeerAddress,
    RejectedConnect,
};
use mqtt::ReasonCode;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::access::{basic, local, send};
use crate::client::get;
use crate::events::{open, read_until};
use crate::fake::{FakeState, Server};

const DEADLINE: Duration = Duration::from_secs(20);

/// Publishes a message as a shard would, and returns whether the observer wanted it.
fn publish(server: &Server, topic: &str, payload: &[u8]) -> bool {
    let mut hooks = server.observer.hooks_for(0);
    let is_wanted = hooks.interest().contains(Interest::PUBLISH) && hooks.wants_topic(topic);
    if is_wanted {
        let view = MessageView::from_client("pump-1", topic, payload, 1_700_000_000_000);
        hooks.publish(&view, &MessageOrigin::default());
    }
    is_wanted
}

#[tokio::test]
async fn messages_of_a_filter_are_streamed() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    for wrong in [
        "",
        "?topic_filter=a%23",
        "?topic_filter=a&client_id=b",
        "?topic_filter=a&max_per_s=0",
    ] {
        let answer = get(server.address, &format!("/api/v1/messages/live{wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.body);
    }
    assert!(!publish(&server, "plant/1", b"too early"));
    let target = "/api/v1/messages/live?topic_filter=plant/%23&payload_bytes=5&max_per_s=2";
    let mut stream = open(&server, target, "").await;
    read_until(&mut stream, ": connected").await;
    assert!(!publish(&server, "office", b"no"));
    assert!(publish(&server, "plant/1", "21.5\u{b0}C".as_bytes()));
    let read = read_until(&mut stream, "\n\n").await;
    let data = read
        .lines()
        .find_map(|line| line.strip_prefix("data: "))
        .unwrap();
    let mut message: Value = serde_json::from_str(data).unwrap();
    message["at_ms"] = json!(0);
    let expected = json!({
        "event": "message", "at_ms": 0, "direction": "published", "topic": "plant/1", "payload": "21.5",
        "payload_encoding": "text", "payload_bytes": 7, "is_truncated": true, "qos": 0, "retain": false,
        "publisher": "pump-1", "content_type": null,
    });
    assert_eq!(message, expected);
    for _ in 0..10 {
        publish(&server, "plant/1", b"\xff\x00");
    }
    let read = read_until(&mut stream, "\"event\":\"skipped\"").await;
    assert!(read.contains("event: skipped"), "{read}");
    drop(stream);
    let ended = async {
        while publish(&server, "plant/1", b"") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(DEADLINE, ended)
        .await
        .expect("nothing is observed any more");
}

#[tokio::test]
async fn a_stream_of_messages_ends_with_its_key() {
    let server = Server::closed(&FakeState::with_clients(0)).await;
    let key = json!({"id": "k", "role": "viewer"});
    let key = send(&server, &local(), "POST", "/api/v1/api-keys", &key)
        .await
        .json();
    let key = basic("k", key["secret"].as_str().unwrap());
    let mut stream = open(&server, "/api/v1/messages/live?topic_filter=%23", &key).await;
    read_until(&mut stream, ": connected").await;
    let deleted = send(
        &server,
        &local(),
        "DELETE",
        "/api/v1/api-keys/k",
        &Value::Null,
    )
    .await;
    assert_eq!(deleted.status, 204);
    let mut rest = Vec::new();
    let ended = timeout(DEADLINE, stream.read_to_end(&mut rest)).await;
    ended.expect("the stream ends").unwrap();
}

#[tokio::test]
async fn a_recording_shows_what_happened_to_messages() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let put =
        async |body: Value| send(&server, "", "PUT", "/api/v1/message-recording", &body).await;
    for wrong in [
        json!({"topic_filter": "a#"}),
        json!({"duration_s": 0}),
        json!({"duration_s": 3601}),
    ] {
        assert_eq!(put(wrong.clone()).await.status, 422, "{wrong}");
    }
    assert!(!publish(&server, "plant/1", b"too early"));
    let started = put(json!({"topic_filter": "plant/#"})).await;
    assert_eq!(
        (started.status, &started.json()["running"]),
        (200, &json!(true))
    );
    assert!(publish(&server, "plant/1", b"21.5") && !publish(&server, "office", b""));
    let mut hooks = server.observer.hooks_for(0);
    let view = MessageView::from_client("pump-1", "plant/1", b"21.5", 1_700_000_000_000);
    hooks.dropped(
        None,
        &view,
        &MessageOrigin::default(),
        DropReason::NoSubscribers,
    );
    let log = get(server.address, "/api/v1/message-trace?client_id=pump-1")
        .await
        .json();
    let steps: Vec<_> = log["data"].as_array().unwrap().iter().collect();
    assert_eq!(steps.len(), 2, "{log}");
    assert_eq!(
        (&steps[0]["step"], &steps[0]["payload_bytes"]),
        (&json!("received"), &json!(4))
    );
    assert_eq!(
        (&steps[1]["step"], &steps[1]["reason"]),
        (&json!("dropped"), &json!("no_subscribers"))
    );
    assert_eq!(steps[0]["message_id"], steps[1]["message_id"]);
    let page = get(server.address, "/api/v1/message-trace?limit=1")
        .await
        .json();
    let next = page["next"].as_str().unwrap();
    let rest = get(
        server.address,
        &format!("/api/v1/message-trace?after={next}"),
    )
    .await
    .json();
    assert_eq!(rest["data"][0]["step"], "dropped");
    let ended = send(
        &server,
        "",
        "DELETE",
        "/api/v1/message-recording",
        &Value::Null,
    )
    .await;
    assert_eq!(ended.status, 204);
    assert!(!publish(&server, "plant/1", b"too late"));
    let status = get(server.address, "/api/v1/message-recording")
        .await
        .json();
    assert_eq!(
        (&status["running"], &status["entries"]),
        (&json!(false), &json!(2))
    );
}

#[tokio::test]
async fn published_topics_are_a_tree() {
    let server = Arc::new(Server::start(&FakeState::with_clients(0)).await);
    let read = |query: &'static str| {
        let server = server.clone();
        async move {
            let answer = get(server.address, &format!("/api/v1/published-topics{query}")).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            answer.json()
        }
    };
    assert!(!publish(&server, "plant/1/t", b"too early"));
    let first = read("").await;
    assert_eq!(first["data"], json!([]));
    for (topic, payload) in [("plant/1/t", "20"), ("plant/1/t", "21"), ("office", "x")] {
        assert!(publish(&server, topic, payload.as_bytes()));
    }
    let root = read("?limit=1").await;
    assert_eq!(root["data"][0]["topic"], "office");
    assert!(root["next"].is_string() && root["recorded"] == 3);
    let below = read("?parent=plant/1").await;
    let leaf = &below["data"][0];
    assert_eq!(
        (&leaf["topic"], &leaf["messages"]),
        (&json!("plant/1/t"), &json!(2))
    );
    assert_eq!(leaf["last"]["payload"], "21");
    assert_eq!(leaf["last"]["publisher"], "pump-1");
    let found = read("?contains=1/T").await;
    assert_eq!(found["data"][0]["topic"], "plant/1/t");
}

#[tokio::test]
async fn rejected_connections_have_a_step_and_a_reason() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let rejected = RejectedConnect {
        client_id: Some("pump-7"),
        username: Some("ann"),
        peer: PeerAddress::Tcp(([10, 0, 0, 7], 4711).into()),
        local_address: None,
        listener: "mqtt",
        code: ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        detail: Some("the credentials were not accepted"),
        connect: None,
    };
    let mut hooks = server.observer.hooks_for(0);
    hooks.connect_rejected(&rejected);
    hooks.connect_rejected(&rejected);
    let answer = get(
        server.address,
        "/api/v1/rejected-connections?address=10.0.0.7",
    )
    .await;
    let mut row = answer.json()["data"][0].clone();
    assert_eq!(row["at_ms"].as_u64().map(|at_ms| at_ms > 0), Some(true));
    for field in ["at_ms", "first_at_ms"] {
        row.as_object_mut().unwrap().remove(field);
    }
    let expected = json!({
        "count": 2, "client_id": "pump-7", "username": "ann", "address": "10.0.0.7", "listener": "mqtt",
        "step": "authentication", "reason_code": 134, "reason": "the credentials were not accepted",
    });
    assert_eq!(row, expected);
    let other = get(
        server.address,
        "/api/v1/rejected-connections?address=10.0.0.8",
    )
    .await;
    assert_eq!(other.json()["data"], json!([]));
    let wrong = get(server.address, "/api/v1/rejected-connections?address=x").await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
}
