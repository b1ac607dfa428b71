//! Tests of the event stream, as Server-Sent Events and through a WebSocket.

use std::sync::Arc;
use std::time::Duration;

use broker::control::BrokerEventKind;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use api::HttpConfig;

use crate::access::{basic, bearer, local, make_operator, send, token};
use crate::client::get;
use crate::fake::{FakeState, Server, config};

const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) async fn open(server: &Server, target: &str, fields: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Fields of a request for a WebSocket.
const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Reads until this text has arrived.
pub(crate) async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    let waiting = async {
        while !String::from_utf8_lossy(&read).contains(text) {
            let mut some = [0; 4096];
            let count = stream.read(&mut some).await.unwrap();
            assert_ne!(
                count,
                0,
                "closed before {text:?}: {}",
                String::from_utf8_lossy(&read)
            );
            read.extend_from_slice(&some[..count]);
        }
    };
    timeout(DEADLINE, waiting).await.expect("it comes in time");
    String::from_utf8_lossy(&read).into_owned()
}

fn disconnected(client_id: &str) -> BrokerEventKind {
    BrokerEventKind::Disconnected {
        client_id: client_id.into(),
        username: None,
        reason: "normal",
    }
}

async fn wait_for_listeners(state: &Arc<FakeState>, count: usize) {
    let waiting = async {
        while state.listeners_of_events() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, waiting)
        .await
        .expect("they come and go in time");
}

#[tokio::test]
async fn events_are_streamed_and_filtered() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let mut all = open(&server, "/api/v1/events", "").await;
    let head = read_until(&mut all, ": connected").await;
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    let mut one = open(
        &server,
        "/api/v1/events?client_id=pump&types=connected,disconnected",
        "",
    )
    .await;
    read_until(&mut one, ": connected").await;
    state.tell(disconnected("valve"));
    state.tell(disconnected("pump"));
    let received_text = read_until(&mut all, "pump").await;
    assert!(
        received_text.contains("event: disconnected\ndata: {"),
        "{received_text}"
    );
    assert!(
        received_text.contains("valve") && received_text.contains("\"reason\":\"normal\""),
        "{received_text}"
    );
    let received_text = read_until(&mut one, "pump").await;
    assert!(!received_text.contains("valve"), "{received_text}");
    let wrong = get(server.address, "/api/v1/events?types=rain").await;
    assert_eq!(
        (wrong.status, wrong.problem().contains("disconnected")),
        (400, true)
    );
}

#[tokio::test]
async fn counters_are_sent_periodically_and_losses_are_reported() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let mut stream = open(&server, "/api/v1/events?stats_interval_s=1&types=stats", "").await;
    let received_text = read_until(&mut stream, "messages_received_total").await;
    let line = received_text
        .lines()
        .find_map(|line| line.strip_prefix("data: "))
        .unwrap();
    let stats: Value = serde_json::from_str(line).unwrap();
    assert_eq!(stats["metrics"]["messages_received_total"], 12.0);
    // More than the node buffers for a slow subscriber, before this one can read.
    for n in 0..20 {
        state.tell(disconnected(&n.to_string()));
    }
    read_until(&mut stream, "event: lost").await;
}

#[tokio::test]
async fn a_websocket_carries_the_same() {
    let state = FakeState::with_clients(0);
    let server = Server::start(&state).await;
    let mut stream = open(&server, "/api/v1/events?types=disconnected", UPGRADE).await;
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    wait_for_listeners(&state, 1).await;
    state.tell(disconnected("pump"));
    let mut frame = [0; 2];
    timeout(DEADLINE, stream.read_exact(&mut frame))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(frame[0], 0x81, "a whole text message");
    let mut payload = vec![0; usize::from(frame[1])];
    stream.read_exact(&mut payload).await.unwrap();
    let event: Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(
        (event["event"].as_str(), event["client_id"].as_str()),
        (Some("disconnected"), Some("pump"))
    );
    // A close frame, masked with zeros; it is acknowledged and the event stream ends.
    stream
        .write_all(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8])
        .await
        .unwrap();
    let mut rest = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(rest, [0x88, 2, 0x03, 0xe8]);
    wait_for_listeners(&state, 0).await;
}

#[tokio::test]
async fn streams_are_bounded_and_end_with_the_node() {
    let state = FakeState::with_clients(0);
    let narrow = HttpConfig {
        max_event_streams: 1,
        ..config()
    };
    let server = Server::start_with(&state, narrow).await;
    let mut first = open(&server, "/api/v1/events", "").await;
    read_until(&mut first, ": connected").await;
    let second = get(server.address, "/api/v1/events").await;
    assert_eq!(second.status, 429);
    let running = server.stop();
    let mut rest = Vec::new();
    timeout(DEADLINE, first.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    timeout(DEADLINE, running).await.unwrap().unwrap().unwrap();
}

/// Well below the interval at which an idle stream checks its credentials.
const AT_ONCE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn streams_end_at_once_with_the_credentials_that_opened_them() {
    let state = FakeState::with_clients(0);
    let server = Server::closed(&state).await;
    let made = send(
        &server,
        &local(),
        "POST",
        "/api/v1/api-keys",
        &json!({"role": "viewer"}),
    )
    .await
    .json();
    let (id, secret) = (
        made["id"].as_str().unwrap(),
        made["secret"].as_str().unwrap(),
    );
    make_operator(&server, "ann", "viewer").await;
    make_operator(&server, "bob", "viewer").await;
    let ann = bearer(&token(&server, "ann").await);
    let bob = bearer(&token(&server, "bob").await);
    let key_path = format!("/api/v1/api-keys/{id}");
    let disabled = json!({"role": "viewer", "enabled": false});
    for (holder, by, method, path, body) in [
        (
            basic(id, secret),
            local(),
            "DELETE",
            key_path.as_str(),
            Value::Null,
        ),
        (ann, local(), "PUT", "/api/v1/operators/ann", disabled),
        (bob.clone(), bob, "POST", "/api/v1/logout", Value::Null),
    ] {
        let mut stream = open(&server, "/api/v1/events", &holder).await;
        read_until(&mut stream, ": connected").await;
        let answer = send(&server, &by, method, path, &body).await;
        assert!(answer.status < 300, "{path}: {}", answer.body);
        timeout(AT_ONCE, read_until(&mut stream, "0\r\n\r\n"))
            .await
            .unwrap_or_else(|_| panic!("{method} {path} does not end the stream"));
    }
}

/// Begins a transfer and returns its id.
fn begin_transfer(server: &Server) -> String {
    let owner = transfer::FileOwner::client("c");
    let request = transfer::TransferRequest::new(owner, "f", "f.bin");
    server.files.begin(request).unwrap().info().id.clone()
}

#[tokio::test]
async fn the_progress_of_a_transfer_is_streamed_until_it_is_deleted() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let id = begin_transfer(&server);
    let target = transfer::FileTarget::Id(&id);
    let mut stream = open(&server, &format!("/api/v1/files/{id}/events"), "").await;
    let first = read_until(&mut stream, "\"received_bytes\":0").await;
    assert!(first.contains("event: file\ndata: {"), "{first}");
    let written = server.files.write(target, 0, b"12345", None).unwrap();
    server.files.commit(&written).unwrap();
    read_until(&mut stream, "\"received_bytes\":5").await;
    server.files.finish(target, None, None).unwrap();
    read_until(&mut stream, "\"state\":\"complete\"").await;
    server.files.delete(&id).unwrap();
    let end = async { while stream.read(&mut [0; 4096]).await.unwrap() > 0 {} };
    timeout(DEADLINE, end).await.expect("the stream ends");
}

#[tokio::test]
async fn a_websocket_carries_the_progress_of_a_transfer() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let id = begin_transfer(&server);
    let target = transfer::FileTarget::Id(&id);
    let mut stream = open(&server, &format!("/api/v1/files/{id}/events"), UPGRADE).await;
    let first = read_until(&mut stream, "\"received_bytes\":0").await;
    assert!(first.starts_with("HTTP/1.1 101 "), "{first}");
    assert!(first.contains("\"event\":\"file\""), "{first}");
    let written = server.files.write(target, 0, b"12345", None).unwrap();
    server.files.commit(&written).unwrap();
    read_until(&mut stream, "\"received_bytes\":5").await;
    server.files.finish(target, None, None).unwrap();
    read_until(&mut stream, "\"state\":\"complete\"").await;
    server.files.delete(&id).unwrap();
    // A close frame; the client acknowledges it, masked with zeros.
    let acknowledged = async {
        let mut frame = [0; 2];
        stream.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame[0], 0x88, "a close frame");
        let closing = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8];
        stream.write_all(&closing).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    };
    timeout(DEADLINE, acknowledged)
        .await
        .expect("the stream ends");
}
