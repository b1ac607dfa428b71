//! Tests of protective limits: open addresses, slow clients, too many of them, a node that hangs.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::{HttpConfig, HttpServerError};
use broker::config::BindAddress;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{HttpResponse, get};
use crate::fake::{FakeState, Server, config};

const DEADLINE: Duration = Duration::from_secs(20);
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut bytes)).await;
    // A server that closes before it has read everything resets the connection.
    if let Err(error) = read.expect("the server closes") {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    bytes
}

#[tokio::test]
async fn beyond_loopback_there_is_no_anonymous_access() {
    let exposed = HttpConfig {
        bind: BindAddress::Tcp("0.0.0.0:0".parse().unwrap()),
        ..config()
    };
    let error = api::bind(&exposed).await.unwrap_err();
    assert!(matches!(error, HttpServerError::Exposed(_)));
    assert!(error.to_string().contains("anonymous_role"), "{error}");

    let closed = HttpConfig {
        anonymous_role: api::AnonymousRole::None,
        ..exposed
    };
    let server = Server::start_with(&FakeState::with_clients(0), closed).await;
    // Reached from another machine, the node cannot know its host names.
    for (path, status) in [("/healthz", 200), ("/metrics", 401), ("/api/docs", 401)] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.address.port()))
            .await
            .unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: node.example\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = HttpResponse::parse(&read_to_end(&mut stream).await);
        assert_eq!(answer.status, status, "{path}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_reported() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let error = api::bind(&HttpConfig::new(server.address))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(&server.address.to_string()),
        "{error}"
    );
}

#[tokio::test]
async fn a_node_that_hangs_gets_a_503() {
    let state = FakeState::with_clients(0);
    state.hold_topics.store(true, Ordering::SeqCst);
    let hasty = HttpConfig {
        request_timeout_s: 1,
        ..config()
    };
    let server = Server::start_with(&state, hasty).await;
    let answer = get(server.address, "/api/v1/topics").await;
    assert_eq!(answer.status, 503);
    assert!(answer.problem().contains("within 1 s"));
}

#[tokio::test]
async fn slow_and_idle_clients_are_closed_and_the_number_of_clients_is_bounded() {
    let narrow = HttpConfig {
        max_connections: 2,
        request_timeout_s: 1,
        ..config()
    };
    let server = Server::start_with(&FakeState::with_clients(0), narrow).await;
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"GET /healthz HTT").await.unwrap();
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    // Both permits are taken; this connection is served once the server has closed one of them.
    let mut third = TcpStream::connect(server.address).await.unwrap();
    third.write_all(HEALTH).await.unwrap();
    assert_eq!(
        HttpResponse::parse(&read_to_end(&mut third).await).status,
        200
    );
    let answer = read_to_end(&mut half).await;
    assert!(
        answer.is_empty() || HttpResponse::parse(&answer).status == 408,
        "{answer:?}"
    );
    read_to_end(&mut idle).await;
}

#[tokio::test]
async fn an_endless_head_is_rejected() {
    let server = Server::start(&FakeState::with_clients(0)).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let endless = async {
        while writer.write_all(&[b'x'; 4096]).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    let mut first = [0; 12];
    tokio::select! {
        () = endless => {}
        read = timeout(DEADLINE, reader.read_exact(&mut first)) => {
            // The reset after the response may overtake it.
            if read.expect("the server answers").is_ok() {
                assert_eq!(&first, b"HTTP/1.1 431");
            }
        }
    }
}

#[tokio::test]
async fn a_stop_finishes_what_has_begun_and_takes_nothing_new() {
    let state = FakeState::with_clients(0);
    state.hold_topics.store(true, Ordering::SeqCst);
    let server = Server::start(&state).await;
    let address = server.address;
    let mut idle = TcpStream::connect(address).await.unwrap();
    let begun = tokio::spawn(async move { get(address, "/api/v1/topics").await });
    timeout(DEADLINE, state.topics_asked.notified())
        .await
        .unwrap();
    let running = server.stop();
    read_to_end(&mut idle).await;
    assert!(!running.is_finished());
    assert!(
        TcpStream::connect(address).await.is_err(),
        "the listener is closed"
    );
    state.let_topics_go.notify_one();
    assert_eq!(begun.await.unwrap().status, 200);
    timeout(DEADLINE, running).await.unwrap().unwrap().unwrap();
}
