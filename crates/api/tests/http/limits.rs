//! Tests of the limits per client and per class of requests, and of client addresses behind
//! proxies.

use std::time::Duration;

use api::{ForwardedHeader, HttpConfig};
use broker::config::BindAddress;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::client::{HttpResponse, get};
use crate::fake::{FakeState, Server, config};

const DEADLINE: Duration = Duration::from_secs(60);

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut bytes)).await;
    // A closed connection may appear as a reset.
    let _ = read.expect("the server closes");
    bytes
}

async fn metric(server: &Server, line: &str) -> u64 {
    let metrics = get(server.address, "/metrics").await.body;
    let found = metrics.lines().find_map(|other| other.strip_prefix(line));
    let found = found.unwrap_or_else(|| panic!("no {line} in {metrics}"));
    found.trim().parse().unwrap()
}

/// Sends requests without end and reads nothing, until the server closes.
async fn pipeline_without_reading(address: std::net::SocketAddr) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    while stream.write_all(request.as_bytes()).await.is_ok() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_are_closed_and_keep_nobody_out() {
    let narrow = HttpConfig {
        max_connections: 8,
        max_connections_per_address: 8,
        write_timeout_s: 1,
        ..config()
    };
    let server = Server::start_with(&FakeState::with_clients(0), narrow).await;
    let address = server.address;
    let greedy: Vec<_> = (0..16)
        .map(|_| tokio::spawn(pipeline_without_reading(address)))
        .collect();
    for task in greedy {
        timeout(DEADLINE, task)
            .await
            .expect("closed in time")
            .unwrap();
    }
    assert_eq!(get(address, "/healthz").await.status, 200);
    let closed = "tidegate_http_connections_closed_total{reason=\"write_timeout\"}";
    assert!(metric(&server, closed).await > 0);
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let narrow = HttpConfig {
        max_connections: 4,
        max_connections_per_address: 2,
        ..config()
    };
    let server = Server::start_with(&FakeState::with_clients(0), narrow).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    for stream in &mut idle[2..] {
        assert!(read_to_end(stream).await.is_empty(), "closed at once");
    }
    drop(idle);
    let served = async {
        // The server notices closed connections when it reads.
        loop {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(request).await;
            if read_to_end(&mut stream).await.starts_with(b"HTTP/1.1 200") {
                break;
            }
        }
    };
    timeout(DEADLINE, served)
        .await
        .expect("there is room again");
    let closed = "tidegate_http_connections_closed_total{reason=\"address_limit\"}";
    assert!(metric(&server, closed).await >= 2);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_ends_the_request() {
    let hasty = HttpConfig {
        body_timeout_s: 1,
        ..config()
    };
    let server = Server::start_with(&FakeState::with_clients(0), hasty).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = HttpResponse::parse(&read_to_end(&mut stream).await);
    assert_eq!(answer.status, 408, "{}", answer.body);
    assert!(answer.problem().contains("within 1 s"));
}

async fn logged_in_from(server: &Server, preface: &str, fields: &str) -> u16 {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let body = r#"{"username":"ann","password":"wrong guess"}"#;
    let request = format!(
        "{preface}POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    HttpResponse::parse(&read_to_end(&mut stream).await).status
}

#[tokio::test]
async fn only_a_trusted_proxy_may_name_the_client_address() {
    let behind = |trusted: &str| HttpConfig {
        max_failed_logins: 1,
        trusted_proxies: trusted.parse().unwrap(),
        forwarded_header: ForwardedHeader::XForwardedFor,
        ..config()
    };
    let state = FakeState::with_clients(0);
    let server = Server::start_with(&state, behind("127.0.0.0/8")).await;
    let from = |address: &str| format!("X-Forwarded-For: 127.0.0.1, {address}\r\n");
    assert_eq!(logged_in_from(&server, "", &from("192.0.2.1")).await, 401);
    assert_eq!(logged_in_from(&server, "", &from("192.0.2.1")).await, 429);
    assert_eq!(logged_in_from(&server, "", &from("192.0.2.2")).await, 401);

    let server = Server::start_with(&state, behind("10.0.0.0/8")).await;
    assert_eq!(logged_in_from(&server, "", &from("192.0.2.1")).await, 401);
    assert_eq!(
        logged_in_from(&server, "", &from("192.0.2.2")).await,
        429,
        "a client cannot choose its address"
    );
}

#[tokio::test]
async fn the_proxy_protocol_names_the_client() {
    let proxied = HttpConfig {
        max_failed_logins: 1,
        proxy_protocol: true,
        ..config()
    };
    let server = Server::start_with(&FakeState::with_clients(0), proxied).await;
    let from = |address: &str| format!("PROXY TCP4 {address} 127.0.0.1 5555 80\r\n");
    assert_eq!(logged_in_from(&server, &from("192.0.2.1"), "").await, 401);
    assert_eq!(logged_in_from(&server, &from("192.0.2.1"), "").await, 429);
    assert_eq!(logged_in_from(&server, &from("192.0.2.2"), "").await, 401);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let direct = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(direct).await.unwrap();
    assert!(read_to_end(&mut stream).await.is_empty(), "no header");
}

#[tokio::test]
async fn http_is_served_on_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("http.sock");
    let on_socket = HttpConfig {
        bind: BindAddress::Unix(path.clone()),
        ..config()
    };
    let server = Server::start_with(&FakeState::with_clients(1), on_socket).await;
    let mut stream = UnixStream::connect(&path).await.unwrap();
    // A client on a Unix socket cannot be a web page, so the host name is not checked.
    let request = b"GET /api/v1/clients HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(HttpResponse::parse(&bytes).status, 200);
    timeout(DEADLINE, server.stop())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(!path.exists(), "the socket is removed");
}
