//! The kit itself: each server starts, keeps its data through a kill, and is gone afterwards.

// The workspace allows unwrap in `#[test]` functions; this binary is tests and what they stand on.
#![allow(clippy::unwrap_used)]

use std::net::TcpStream;
use std::time::{Duration, Instant};

use testkit::{Proxy, ProxyMode, ServerKind, TestServer};

/// Killed, it does not answer; started again, it has the same port and what was written. Dropped, it is gone.
fn keeps_its_data_through_a_kill(server: TestServer, read: impl Fn(&TestServer) -> Option<String>) {
    let address = server.address();
    let pid = server.pid();
    server.kill();
    assert!(TcpStream::connect(address).is_err(), "it still listens");
    server.start();
    assert_eq!(server.address(), address);
    assert_ne!(server.pid(), pid);
    assert_eq!(read(&server).as_deref(), Some("kept"));
    server.stop();
    server.start();
    assert_eq!(read(&server).as_deref(), Some("kept"));
    drop(server);
    assert!(TcpStream::connect(address).is_err(), "it still listens");
}

fn read_sql(server: &TestServer) -> Option<String> {
    let rows = server.sql("SELECT 1; SELECT value, NULL FROM things");
    assert_eq!((rows.len(), &rows[0][1]), (1, &None));
    rows[0][0].clone()
}

#[test]
fn mariadb() {
    let Some(server) = TestServer::start_or_skip(ServerKind::MariaDb) else {
        return;
    };
    server.sql("CREATE TABLE things (value TEXT); INSERT INTO things VALUES ('kept')");
    let why = server.try_sql("SELECT * FROM nothing").unwrap_err();
    assert!(why.contains("doesn't exist"), "{why}");
    keeps_its_data_through_a_kill(server, read_sql);
}

#[test]
fn postgres() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Postgres) else {
        return;
    };
    server.sql("CREATE TABLE things (value TEXT); INSERT INTO things VALUES ('kept')");
    let why = server.try_sql("SELECT * FROM nothing").unwrap_err();
    assert!(why.contains("does not exist"), "{why}");
    keeps_its_data_through_a_kill(server, read_sql);
}

#[test]
fn redis() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Redis) else {
        return;
    };
    server.redis(&["SET", "thing", "kept"]);
    assert_eq!(
        server.redis(&["MGET", "thing", "none"]),
        [Some("kept".into()), None]
    );
    assert_eq!(
        server.redis(&["AUTH", testkit::USER, testkit::PASSWORD]),
        [Some("OK".into())]
    );
    keeps_its_data_through_a_kill(server, |server| server.redis(&["GET", "thing"]).remove(0));
}

#[test]
fn nats() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Nats) else {
        return;
    };
    let mut client = server.nats();
    client.subscribe("a.*");
    client.publish("a.b", "hello");
    let next = client.next(Duration::from_secs(10));
    assert_eq!(next, Some(("a.b".into(), "hello".into())));
    let made = client.request(
        "$JS.API.STREAM.CREATE.kept",
        r#"{"name": "kept", "subjects": ["kept"], "storage": "file"}"#,
    );
    assert!(!made.contains("error"), "{made}");
    assert!(client.request("kept", "x").contains("\"seq\":1"));
    keeps_its_data_through_a_kill(server, |server| {
        let info = server.nats().request("$JS.API.STREAM.INFO.kept", "");
        info.contains("\"messages\":1").then(|| "kept".into())
    });
}

#[test]
fn mosquitto() {
    let Some(server) = TestServer::start_or_skip(ServerKind::Mosquitto) else {
        return;
    };
    keeps_its_data_through_a_kill(server, |_| Some("kept".into()));
}

/// A server that answers each byte with the same byte.
fn echo() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                std::io::copy(&mut stream.try_clone().unwrap(), &mut stream)
            });
        }
    });
    address
}

#[test]
fn a_proxy_delays_stalls_cuts_and_refuses() {
    use std::io::{Read, Write};
    let proxy = Proxy::start(echo());
    let connect = || {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        stream
    };
    let mut byte = [0];
    let mut stream = connect();
    stream.write_all(b"a").unwrap();
    stream.read_exact(&mut byte).unwrap();

    let delay = Duration::from_millis(30);
    proxy.set_mode(ProxyMode::Delay(delay));
    let start = Instant::now();
    stream.write_all(b"b").unwrap();
    stream.read_exact(&mut byte).unwrap();
    assert!(start.elapsed() >= 2 * delay, "there and back");

    proxy.set_mode(ProxyMode::Stall);
    stream.write_all(b"c").unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    assert!(stream.read(&mut byte).is_err(), "it passed");
    proxy.set_mode(ProxyMode::Pass);
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"c");

    proxy.close_connections();
    assert!(matches!(stream.read(&mut byte), Ok(0) | Err(_)));
    let mut stream = connect();
    stream.write_all(b"d").unwrap();
    stream.read_exact(&mut byte).unwrap();
    proxy.set_mode(ProxyMode::Refuse);
    assert!(matches!(stream.read(&mut byte), Ok(0) | Err(_)));
    assert!(matches!(connect().read(&mut byte), Ok(0) | Err(_)));
    assert_eq!(proxy.accepted_count(), 3);
}
