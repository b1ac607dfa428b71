//! MQTT over QUIC (RFC 9000): handshakes, certificates, changes of the client's address, limits.

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use quinn::{ConnectionError, VarInt};
use rustls::ClientConfig;
use serde_json::json;

use super::{client_info, folder, get, greet, listener, own_node};
use crate::api::{local_token, send};
use crate::certificates::{self, Authority, TlsIdentity};
use crate::quic_client::{QuicClient, start_connecting};
use crate::support::{Connect, DEADLINE, Node, Publish, Raw, eventually, kind, unique};

const NO_APPLICATION_PROTOCOL: u64 = 0x178;
const CONNECTION_REJECTED: u64 = 0x2;

pub(super) struct QuicNode {
    pub(super) node: Node,
    authority: Authority,
    tls: Arc<ClientConfig>,
    server: TlsIdentity,
}

impl QuicNode {
    pub(super) fn start(more_tls: &str, more: &str) -> QuicNode {
        let authority = Authority::new(folder());
        let server = authority.issue_server("server");
        let more_tls = more_tls.replace("CA", authority.certificate_path().to_str().unwrap());
        let tls = format!(
            "tls = {{ certificate = \"{}\", private_key = \"{}\"{more_tls} }}\n{more}",
            server.certificate.display(),
            server.key.display()
        );
        let config = listener("quic", "quic", "127.0.0.1:0", &tls);
        QuicNode {
            node: Node::start_with_config(&[], &config),
            tls: authority.client_config(None),
            authority,
            server,
        }
    }

    pub(super) fn address(&self) -> &str {
        self.node.address("quic")
    }

    /// What clients trust.
    pub(super) fn certificate_path(&self) -> PathBuf {
        self.authority.certificate_path()
    }

    pub(super) fn connect(&self) -> QuicClient {
        QuicClient::connect(self.address(), &self.tls)
    }

    /// A connection, and its first stream with a session.
    pub(super) fn client(&self, version: u8) -> (QuicClient, Raw) {
        let client = self.connect();
        let mut raw = Raw::over(client.open(), version);
        greet(&mut raw);
        (client, raw)
    }

    pub(super) fn connections(&self) -> u64 {
        let answer = get(&self.node, "/api/v1/listeners/quic");
        let quic: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(quic["protocol"], "quic");
        quic["connections"].as_u64().unwrap()
    }

    fn metric(&self, name: &str) -> u64 {
        let answer = get(&self.node, "/metrics");
        let line = answer.body.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or("0");
        value.parse::<f64>().unwrap() as u64
    }
}

#[test]
fn messages_of_every_qos_and_size_pass_through_one_stream() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    for version in [3, 4, 5] {
        let (_client, mut raw) = quic.client(version);
        let mut tcp = super::client(&quic.node, "mqtt", 5);
        let (up, down) = (unique("up"), unique("down"));
        raw.subscribe(&down, 2);
        tcp.subscribe(&up, 0);
        let large: Vec<u8> = (0..400_000_u32).map(|number| number as u8).collect();
        for payload in [&b"zero"[..], &large] {
            raw.publish(&up, payload);
            tcp.recv_message(&up, payload);
            tcp.publish(&down, payload);
            raw.recv_message(&down, payload);
        }
        raw.publish_qos1(&up, "one", 1);
        raw.publish_qos2(&up, "two", 2);
        tcp.recv_message(&up, "one");
        tcp.recv_message(&up, "two");
        tcp.publish_qos1(&down, "one", 1);
        tcp.publish_qos2(&down, "two", 2);
        for payload in ["one", "two"] {
            let message = raw.recv_message(&down, payload);
            raw.acknowledge(&message);
        }
        raw.ping();
    }
    eventually("the connections have ended", || quic.connections() == 0);
}

#[test]
fn the_api_shows_listener_and_address() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let client = quic.connect();
    let mut raw = Raw::over(client.open(), 5);
    let client_id = greet(&mut raw);
    let info = client_info(&quic.node, &client_id);
    assert_eq!(info["listener"], "quic");
    let address = client.endpoint.local_addr().unwrap().to_string();
    assert_eq!(info["peer_address"], address);
    assert_eq!(quic.connections(), 1);
}

#[test]
fn tidegate_pub_and_sub_connect_to_quic_urls() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let port = quic.address().rsplit(':').next().unwrap();
    let url = format!("quic://localhost:{port}");
    let authority = quic.authority.certificate_path();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(arguments)
            .args(["-L", &url, "--cafile", authority.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut tcp = super::client(&quic.node, "mqtt", 5);
    tcp.subscribe("quic/pub", 0);
    // QoS 0: the client closes its connection right after the message.
    for number in 0..5 {
        let number = number.to_string();
        run(&["pub", "-t", "quic/pub", "-m", &number]);
        tcp.recv_message("quic/pub", &number);
    }
    tcp.send_publish(&Publish::new("quic/sub", "hello").retain());
    tcp.ping();
    let received = run(&["sub", "-t", "quic/sub", "-q", "1", "-C", "1"]);
    assert_eq!(received, "hello\n");
}

/// RFC 9001 section 8.1: an endpoint closes a connection without a common protocol with `no_application_protocol`.
#[test]
fn rfc_9001_8_1_clients_of_another_protocol_are_rejected() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    for alpn in [&[&b"h3"[..]][..], &[]] {
        match QuicClient::try_connect(quic.address(), &quic.tls, alpn) {
            Err(ConnectionError::ConnectionClosed(close)) => {
                assert_eq!(u64::from(close.error_code), NO_APPLICATION_PROTOCOL);
            }
            other => panic!(
                "{:?}",
                other.map(|_| "let in").unwrap_or_else(|e| panic!("{e}"))
            ),
        }
    }
    let (_client, mut raw) = quic.client(5);
    raw.ping();
    eventually("the failed handshakes are counted", || {
        quic.metric("tidegate_connections_rejected_total{reason=\"handshake\"}") == 2
    });
}

#[test]
fn client_certificates_are_verified_and_name_the_user() {
    if !own_node() {
        return;
    }
    let more =
        ", client_ca = \"CA\", require_client_certificate = true, common_name_as_username = true";
    let quic = QuicNode::start(more, "allow_anonymous = false");
    let identity = quic.authority.issue_client("sensor-17");
    let tls = quic.authority.client_config(Some(&identity));
    let client = QuicClient::connect(quic.address(), &tls);
    let mut raw = Raw::over(client.open(), 5);
    let client_id = greet(&mut raw);
    assert_eq!(client_info(&quic.node, &client_id)["username"], "sensor-17");

    let strangers = Authority::new(folder());
    let stranger = strangers.issue_client("stranger");
    for identity in [None, Some(&stranger)] {
        let tls = quic.authority.client_config(identity);
        // The client of TLS 1.3 completes its handshake before the server has seen its certificate.
        if let Ok(client) = QuicClient::try_connect(quic.address(), &tls, &[b"mqtt"]) {
            let closed = client.closed();
            assert!(
                matches!(closed, ConnectionError::ConnectionClosed(_)),
                "{closed:?}"
            );
        }
    }
    // The client may learn of the rejection before the listener has counted it.
    eventually("the rejected connections are gone", || {
        quic.connections() == 1
    });
}

#[test]
fn new_connections_receive_a_renewed_certificate() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let shown = || {
        let identity = quic.connect().connection.peer_identity().unwrap();
        let chain = identity.downcast::<Vec<rustls::pki_types::CertificateDer<'static>>>();
        chain.unwrap()[0].to_vec()
    };
    let (_client, mut old) = quic.client(5);
    let before = shown();
    assert_eq!(
        before,
        certificates::read_certificate(&quic.server.certificate).to_vec()
    );
    let renewed = quic.authority.issue_server("server");
    quic.node.signal(libc::SIGHUP);
    let renewed = certificates::read_certificate(&renewed.certificate).to_vec();
    eventually("the new certificate is shown", || shown() == renewed);
    old.ping();
}

/// RFC 9000 section 9: a connection continues when the client's address changes.
#[test]
fn rfc_9000_9_a_session_survives_changes_of_the_address_without_loss() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let client = quic.connect();
    let mut raw = Raw::over(client.open(), 5);
    let client_id = greet(&mut raw);
    let mut tcp = super::client(&quic.node, "mqtt", 5);
    raw.subscribe("migration/down", 1);
    tcp.subscribe("migration/up", 1);
    let connected_at = client_info(&quic.node, &client_id)["connected_at_ms"].clone();
    let mut id = 0;
    // The same address with another port, as behind a NAT; other addresses, as in another network.
    for address in ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.1"] {
        // Messages are under way in both directions during the change.
        for _ in 0..50 {
            id += 1;
            tcp.send_publish(&Publish::new("migration/down", format!("{id}")).qos(1, id));
            raw.send_publish(&Publish::new("migration/up", format!("{id}")).qos(1, id));
        }
        let moved_to = client.move_to(address);
        for _ in 0..50 {
            id += 1;
            raw.send_publish(&Publish::new("migration/up", format!("{id}")).qos(1, id));
            tcp.send_publish(&Publish::new("migration/down", format!("{id}")).qos(1, id));
        }
        for connection in [&mut raw, &mut tcp] {
            let mut expected = id - 99..=id;
            let mut acknowledged = 0;
            while acknowledged < 100 || !expected.is_empty() {
                let packet = connection.recv_packet();
                match packet.kind {
                    kind::PUBACK => acknowledged += 1,
                    kind::PUBLISH => {
                        let next = expected.next().expect("no message comes twice");
                        assert_eq!(packet.payload, next.to_string().as_bytes());
                        connection.acknowledge(&packet);
                    }
                    _ => panic!("{packet:?}"),
                }
            }
        }
        eventually("the API shows the current address", || {
            client_info(&quic.node, &client_id)["peer_address"] == moved_to.to_string()
        });
    }
    raw.ping();
    let info = client_info(&quic.node, &client_id);
    assert_eq!(info["connected_at_ms"], connected_at);
}

#[test]
fn a_client_that_does_not_read_costs_bounded_memory_and_delays_nobody() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let (_client, mut slow) = quic.client(5);
    slow.subscribe("slow", 0);
    let mut publisher = super::client(&quic.node, "mqtt", 5);
    publisher.ping();
    let before = quic.node.resident_bytes();
    let payload = vec![7; 100_000];
    for _ in 0..1000 {
        publisher.publish("slow", &payload);
    }
    publisher.ping();
    let (_other, mut other) = quic.client(5);
    other.ping();
    let grown = quic.node.resident_bytes().saturating_sub(before);
    assert!(grown < 48 << 20, "{grown} bytes of 100 MB are in memory");
    // It has lost messages of QoS 0, but not its place in the stream.
    slow.recv_message("slow", &payload);
    let received = slow.ping_for_packets();
    assert!(received.iter().all(|packet| packet.payload == payload));
}

/// Forwards datagrams to a server and discards what it answers.
struct OneWayPath {
    address: String,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
}

impl OneWayPath {
    fn start(server: &str) -> OneWayPath {
        let clients = UdpSocket::bind("127.0.0.1:0").unwrap();
        let onward = UdpSocket::bind("127.0.0.1:0").unwrap();
        onward.connect(server).unwrap();
        let path = OneWayPath {
            address: clients.local_addr().unwrap().to_string(),
            stop: Arc::default(),
            sent: Arc::default(),
            answered: Arc::default(),
        };
        let answers = onward.try_clone().unwrap();
        for socket in [&clients, &answers] {
            let limit = Some(Duration::from_millis(50));
            socket.set_read_timeout(limit).unwrap();
        }
        let (stop, sent) = (path.stop.clone(), path.sent.clone());
        std::thread::spawn(move || {
            let mut datagram = [0; 2048];
            while !stop.load(Relaxed) {
                if let Ok(count) = clients.recv(&mut datagram) {
                    let _ = onward.send(&datagram[..count]);
                    sent.fetch_add(count as u64, Relaxed);
                }
            }
        });
        let (stop, answered) = (path.stop.clone(), path.answered.clone());
        std::thread::spawn(move || {
            let mut datagram = [0; 65536];
            while !stop.load(Relaxed) {
                if let Ok(count) = answers.recv(&mut datagram) {
                    answered.fetch_add(count as u64, Relaxed);
                }
            }
        });
        path
    }
}

impl Drop for OneWayPath {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// RFC 9000 sections 8.1 and 21.3: an address that is not validated receives at most three times what it sent, and
/// forged addresses cannot occupy the server.
#[test]
fn rfc_9000_8_1_half_open_handshakes_neither_amplify_nor_block() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "connect_timeout_s = 3\nbacklog = 200");
    let path = OneWayPath::start(quic.address());
    let attempts: Vec<_> = (0..300)
        .map(|_| start_connecting(&path.address, &quic.tls, &[b"mqtt"]))
        .collect();
    eventually("further clients must prove their address", || {
        quic.metric("tidegate_quic_retries_total") > 0
    });
    assert!(
        quic.connections() <= 64,
        "{} half-open connections",
        quic.connections()
    );
    // Others are served meanwhile, after a proof of their address.
    let (_client, mut raw) = quic.client(5);
    raw.ping();
    drop(attempts);
    eventually("half-open handshakes time out", || quic.connections() == 1);
    let (sent, answered) = (path.sent.load(Relaxed), path.answered.load(Relaxed));
    assert!(answered <= 3 * sent, "{answered} bytes for {sent}");
    raw.ping();
}

#[test]
fn more_connections_than_the_limit_are_rejected() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "max_connections = 2");
    let (_first, mut first) = quic.client(5);
    let (second, _stream) = quic.client(5);
    match QuicClient::try_connect(quic.address(), &quic.tls, &[b"mqtt"]) {
        Err(ConnectionError::ConnectionClosed(close)) => {
            assert_eq!(u64::from(close.error_code), CONNECTION_REJECTED);
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a third connection was accepted"),
    }
    first.ping();
    second.connection.close(VarInt::from_u32(0), b"");
    eventually("the place is free", || {
        QuicClient::try_connect(quic.address(), &quic.tls, &[b"mqtt"]).is_ok()
    });
}

#[test]
fn clients_without_stream_or_connect_are_closed_in_time() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "connect_timeout_s = 1");
    let without_stream = quic.connect();
    let without_connect = quic.connect();
    let mut stream = Raw::over(without_connect.open(), 5);
    stream.send(&Connect::new(5, "half").bytes()[..5]);
    without_stream.closed();
    without_connect.closed();
    eventually("both places are free", || quic.connections() == 0);
}

#[test]
fn a_graceful_stop_notifies_the_client() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let (_client, mut raw) = quic.client(5);
    quic.node.signal(libc::SIGTERM);
    assert_eq!(raw.recv(kind::DISCONNECT).reason, 0x8b);
    drop((raw, _client));
    assert!(quic.node.wait(2 * DEADLINE).is_some());
}

#[test]
fn a_stopped_listener_accepts_again_when_started() {
    if !own_node() {
        return;
    }
    let quic = QuicNode::start("", "");
    let (_client, mut raw) = quic.client(5);
    let change = |state: &str| {
        let path = format!("/api/v1/listeners/quic/{state}");
        let token = local_token(&quic.node);
        let answer = send(&quic.node, &token, "POST", &path, &json!({}));
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    change("stop");
    assert!(QuicClient::try_connect(quic.address(), &quic.tls, &[b"mqtt"]).is_err());
    raw.ping();
    change("start");
    let (_other, mut other) = quic.client(5);
    other.ping();
    raw.ping();
}
