//! WebSocket: the upgrade, and MQTT through it.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{folder, greet, listener, own_node};
use crate::certificates::{Authority, TlsStream};
use crate::support::{Connect, DEADLINE, Node, Raw, Stream, WsStream, unique, upgrade};

/// Sends a request as it is and reads the head of the response.
fn ask(address: &str, request: &str) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let head = read_head(&mut socket);
    (socket, head)
}

fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

/// A good request, to be spoilt.
const REQUEST: &str = "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Protocol: mqtt\r\n\r\n";

#[test]
fn the_upgrade_proves_itself_and_chooses_mqtt() {
    let node = Node::shared();
    let (_, head) = ask(node.address("ws"), REQUEST);
    assert_eq!(status(&head), "101", "{head}");
    let head = head.to_ascii_lowercase();
    // The answer to the nonce in RFC 6455, section 1.3.
    assert!(
        head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="),
        "{head}"
    );
    // [MQTT-6.0.0-4]
    assert!(head.contains("sec-websocket-protocol: mqtt\r\n"), "{head}");
}

#[test]
fn mqtt_is_chosen_among_several_subprotocols() {
    let node = Node::shared();
    let (_, head) = upgrade(node.address("ws"), "/mqtt", Some("graphql-ws, mqtt, chat"));
    assert!(
        head.to_ascii_lowercase()
            .contains("sec-websocket-protocol: mqtt\r\n"),
        "{head}"
    );
}

#[test]
fn a_client_of_another_protocol_is_rejected() {
    let node = Node::shared();
    let (_, head) = upgrade(node.address("ws"), "/mqtt", Some("graphql-ws"));
    assert_eq!(status(&head), "400", "{head}");
}

#[test]
fn requests_that_are_no_upgrade_are_rejected_in_words() {
    let address = Node::shared().address("ws");
    let spoilt = [
        ("404", "GET /mqtt ", "GET /elsewhere "),
        ("405", "GET /mqtt ", "POST /mqtt "),
        ("426", "Upgrade: websocket\r\n", ""),
        ("426", "Version: 13", "Version: 8"),
        ("400", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
        ("400", "dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ="),
        ("400", "Host: localhost\r\n", ""),
    ];
    for (code, from, to) in spoilt {
        let (mut socket, head) = ask(address, &REQUEST.replace(from, to));
        assert_eq!(status(&head), code, "{to:?} instead of {from:?}: {head}");
        let mut body = String::new();
        let _ = socket.read_to_string(&mut body);
        assert!(body.len() > 10, "says why: {body:?}");
    }
}

#[test]
fn an_endless_request_is_cut_short() {
    let address = Node::shared().address("ws");
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.set_write_timeout(Some(DEADLINE)).unwrap();
    socket.write_all(b"GET /mqtt HTTP/1.1\r\n").unwrap();
    let line = format!("X-Filler: {}\r\n", "x".repeat(1000));
    for _ in 0..10_000 {
        if socket.write_all(line.as_bytes()).is_err() {
            return; // closed while we wrote
        }
    }
    panic!("10 MB of request header were taken");
}

#[test]
fn plain_mqtt_on_a_websocket_listener_is_closed() {
    let mut raw = Raw::open_address(Node::shared().address("ws"), 4);
    raw.send(&Connect::new(4, unique("plain")).bytes());
    while !raw.recv_bytes().is_empty() {}
}

#[test]
fn the_request_may_come_byte_by_byte() {
    let mut socket = TcpStream::connect(Node::shared().address("ws")).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    for byte in REQUEST.bytes() {
        socket.write_all(&[byte]).unwrap();
    }
    assert_eq!(status(&read_head(&mut socket)), "101");
    let mut raw = Raw::over(WsStream::over(socket), 4);
    greet(&mut raw);
    raw.ping();
}

#[test]
fn frames_may_follow_the_request_at_once() {
    use crate::support::masked_frame;
    let connect = Connect::new(5, unique("eager")).bytes();
    let mut bytes = REQUEST.as_bytes().to_vec();
    bytes.extend(masked_frame(0x82, &connect));
    bytes.extend(masked_frame(0x82, &[0xc0, 0x00]));
    let mut socket = TcpStream::connect(Node::shared().address("ws")).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.write_all(&bytes).unwrap();
    assert_eq!(status(&read_head(&mut socket)), "101");
    let mut raw = Raw::over(WsStream::over(socket), 5);
    assert_eq!(raw.recv(crate::support::kind::CONNACK).reason, 0);
    raw.recv_exactly(&[0xd0, 0x00]);
}

#[test]
fn the_path_can_be_chosen() {
    if !own_node() {
        return;
    }
    let config = listener(
        "browser",
        "ws",
        "127.0.0.1:0",
        "websocket_path = \"/broker/v1\"",
    );
    let node = Node::start_with_config(&[], &config);
    let address = node.address("browser");
    let (_, head) = upgrade(address, "/mqtt", Some("mqtt"));
    assert_eq!(status(&head), "404", "{head}");
    let (socket, head) = upgrade(address, "/broker/v1", Some("mqtt"));
    assert_eq!(status(&head), "101", "{head}");
    greet(&mut Raw::over(WsStream::over(socket), 5));
    let (_, head) = upgrade(address, "/broker/v1?token=x", Some("mqtt"));
    assert_eq!(
        status(&head),
        "101",
        "a query is not part of the path: {head}"
    );
}

#[test]
fn mqtt_over_websocket_and_over_tcp_are_one_broker() {
    let node = Node::shared();
    let mut browser = Raw::over(WsStream::connect(node.address("ws")), 5);
    greet(&mut browser);
    let topic = unique("ws/mixed/");
    browser.subscribe(&topic, 1);
    let mut device = Raw::client(node, 4);
    device.publish_qos1(&topic, "21.5", 1);
    let message = browser.recv_message(&topic, "21.5");
    browser.acknowledge(&message);
    browser.disconnect();
}

#[test]
fn a_large_message_passes_both_ways() {
    let node = Node::shared();
    let [mut sender, mut receiver] = [(); 2].map(|()| {
        let mut raw = Raw::over(WsStream::connect(node.address("ws")), 5);
        greet(&mut raw);
        raw
    });
    let topic = unique("ws/large/");
    receiver.subscribe(&topic, 2);
    // Lengths of 7, 16 and 64 bits in the frame's header.
    for length in [1, 100, 125, 126, 1_000, 65_535, 65_536, 300_000] {
        let payload: Vec<u8> = (0..length as u32)
            .map(|number| (number * 7) as u8)
            .collect();
        sender.publish_qos1(&topic, &payload, 9);
        let message = receiver.recv_message(&topic, &payload);
        receiver.acknowledge(&message);
    }
}

/// MQTT in binary frames under TLS: what [`WsStream`] is over TCP.
struct SecureWebSocket(TlsStream);

impl Read for SecureWebSocket {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut header = [0; 2];
        self.0.read_exact(&mut header)?;
        let length = usize::from(header[1]);
        assert!(
            header[0] == 0x82 && length < 126 && length <= buffer.len(),
            "{header:02x?}"
        );
        self.0.read_exact(&mut buffer[..length])?;
        Ok(length)
    }
}

impl Write for SecureWebSocket {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .write_all(&crate::support::masked_frame(0x82, bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Stream for SecureWebSocket {
    fn set_timeouts(&mut self, timeout: std::time::Duration) {
        self.0.set_timeouts(timeout);
    }

    fn shut(&mut self) {
        self.0.shut();
    }
}

#[test]
fn secure_websocket_is_served() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let server = authority.issue_server("server");
    let (certificate, key) = (server.certificate.display(), server.key.display());
    let tls = format!("tls = {{ certificate = \"{certificate}\", private_key = \"{key}\" }}");
    let node = Node::start_with_config(&[], &listener("wss", "wss", "127.0.0.1:0", &tls));
    let mut stream = authority.connect(node.address("wss"), None).unwrap();
    stream.write_all(REQUEST.as_bytes()).unwrap();
    let head = read_head(&mut stream);
    assert_eq!(status(&head), "101", "{head}");
    let mut raw = Raw::over(SecureWebSocket(stream), 5);
    greet(&mut raw);
    raw.subscribe("wss/echo", 1);
    raw.publish("wss/echo", "hello");
    raw.recv_message("wss/echo", "hello");
}
