//! The PROXY protocol, versions 1 and 2: behind a load balancer the node knows who the client really is.

use std::io::Write;
use std::net::TcpStream;

use super::{client_info, folder, greet, listener, open, own_node};
use crate::certificates::Authority;
use crate::support::{Connect, Node, Raw, WsStream, unique};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

fn node() -> &'static Node {
    Node::shared_with_config(
        &[],
        &(listener(
            "proxied",
            "mqtt",
            "127.0.0.1:0",
            "proxy_protocol = true\nallow_anonymous = true\nconnect_timeout_s = 2",
        ) + &listener(
            "proxied-ws",
            "ws",
            "127.0.0.1:0",
            "proxy_protocol = true\nallow_anonymous = true",
        )),
    )
}

/// A header of version 2: command and version, family and transport, addresses and whatever follows.
fn version_2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.extend([0x20 | command, family]);
    header.extend((rest.len() as u16).to_be_bytes());
    header.extend(rest);
    header
}

/// Source 203.0.113.7:5555, destination 198.51.100.1:1883.
fn ipv4() -> Vec<u8> {
    let mut addresses = vec![203, 0, 113, 7, 198, 51, 100, 1];
    addresses.extend(5555u16.to_be_bytes());
    addresses.extend(1883u16.to_be_bytes());
    addresses
}

/// The address the node takes for that of a client that sends `header` first.
fn peer_after(header: &[u8]) -> String {
    let mut raw = open(node(), "proxied", 5);
    raw.send(header);
    let client_id = greet(&mut raw);
    let info = client_info(node(), &client_id);
    info["peer_address"].as_str().unwrap().to_owned()
}

/// The node must close the connection without an answer, at the latest when the time to connect is over.
fn rejected(bytes: &[u8]) {
    let mut raw = open(node(), "proxied", 5);
    raw.send(bytes);
    raw.expect_closed();
}

#[test]
fn version_1_provides_the_client_address() {
    if !own_node() {
        return;
    }
    let header = b"PROXY TCP4 203.0.113.7 198.51.100.1 5555 1883\r\n";
    assert_eq!(peer_after(header), "203.0.113.7:5555");
    let header = b"PROXY TCP6 2001:db8::7 2001:db8::1 5555 1883\r\n";
    assert_eq!(peer_after(header), "[2001:db8::7]:5555");
}

#[test]
fn version_1_unknown_keeps_the_connection_s_own_address() {
    if !own_node() {
        return;
    }
    for header in [
        &b"PROXY UNKNOWN\r\n"[..],
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
    ] {
        assert!(peer_after(header).starts_with("127.0.0.1:"));
    }
}

#[test]
fn version_2_provides_the_client_address() {
    if !own_node() {
        return;
    }
    assert_eq!(peer_after(&version_2(1, 0x11, &ipv4())), "203.0.113.7:5555");

    let mut addresses = Vec::new();
    addresses.extend(0x2001_0db8_0000_0000_0000_0000_0000_0007u128.to_be_bytes());
    addresses.extend(0x2001_0db8_0000_0000_0000_0000_0000_0001u128.to_be_bytes());
    addresses.extend(5555u16.to_be_bytes());
    addresses.extend(1883u16.to_be_bytes());
    assert_eq!(
        peer_after(&version_2(1, 0x21, &addresses)),
        "[2001:db8::7]:5555"
    );
}

#[test]
fn version_2_with_further_fields_is_understood() {
    if !own_node() {
        return;
    }
    let mut rest = ipv4();
    // PP2_TYPE_AUTHORITY and PP2_TYPE_NOOP.
    rest.extend([0x02, 0, 11]);
    rest.extend(b"example.org");
    rest.extend([0x04, 0x01, 0x00]);
    rest.extend([0; 256]);
    assert_eq!(peer_after(&version_2(1, 0x11, &rest)), "203.0.113.7:5555");
}

#[test]
fn version_2_local_keeps_the_connection_s_own_address() {
    if !own_node() {
        return;
    }
    // A health check of the proxy itself; what it says about addresses is to be ignored.
    assert!(peer_after(&version_2(0, 0x00, &[])).starts_with("127.0.0.1:"));
    assert!(peer_after(&version_2(0, 0x11, &ipv4())).starts_with("127.0.0.1:"));
}

#[test]
fn a_header_may_come_byte_by_byte_or_together_with_connect() {
    if !own_node() {
        return;
    }
    let headers = [
        b"PROXY TCP4 203.0.113.7 198.51.100.1 5555 1883\r\n".to_vec(),
        version_2(1, 0x11, &ipv4()),
    ];
    for header in headers {
        let client_id = unique("proxy");
        let mut bytes = header.clone();
        bytes.extend(Connect::new(5, &client_id).bytes());

        let mut together = open(node(), "proxied", 5);
        together.send(&bytes);
        assert_eq!(together.recv_packet().reason, 0);
        assert_eq!(
            client_info(node(), &client_id)["peer_address"],
            "203.0.113.7:5555"
        );
        together.ping();

        let mut dripping = open(node(), "proxied", 5);
        for byte in &bytes {
            dripping.send(&[*byte]);
        }
        assert_eq!(dripping.recv_packet().reason, 0);
        dripping.ping();
    }
}

#[test]
fn a_connection_without_a_header_is_closed() {
    if !own_node() {
        return;
    }
    rejected(&Connect::new(5, unique("proxy")).bytes());
}

#[test]
fn malformed_headers_are_closed() {
    if !own_node() {
        return;
    }
    let mut version_3 = version_2(1, 0x11, &ipv4());
    version_3[12] = 0x31;
    let cases = [
        b"PROXY TCP4 999.0.0.1 198.51.100.1 5555 1883\r\n".to_vec(),
        b"PROXY TCP4 203.0.113.7 198.51.100.1 99999 1883\r\n".to_vec(),
        b"PROXY TCP4 2001:db8::7 2001:db8::1 5555 1883\r\n".to_vec(),
        b"PROXY TCP9 203.0.113.7 198.51.100.1 5555 1883\r\n".to_vec(),
        b"PROXY TCP4 203.0.113.7\r\n".to_vec(),
        [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat(),
        version_2(1, 0x11, &ipv4()[..7]),
        version_2(2, 0x11, &ipv4()),
        version_3,
    ];
    for bytes in cases {
        println!("{:?}", String::from_utf8_lossy(&bytes));
        rejected(&bytes);
    }
}

#[test]
fn a_header_comes_before_the_websocket_upgrade() {
    if !own_node() {
        return;
    }
    let mut socket = TcpStream::connect(node().address("proxied-ws")).unwrap();
    socket
        .write_all(b"PROXY TCP4 203.0.113.8 198.51.100.1 6666 80\r\n")
        .unwrap();
    socket
        .write_all(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
              Sec-WebSocket-Protocol: mqtt\r\n\r\n",
        )
        .unwrap();
    let mut raw = Raw::over(upgraded(socket), 5);
    let client_id = greet(&mut raw);
    assert_eq!(
        client_info(node(), &client_id)["peer_address"],
        "203.0.113.8:6666"
    );
}

/// Reads the head of the response to an upgrade.
fn upgraded(mut socket: TcpStream) -> WsStream {
    use std::io::Read;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).unwrap() == 1 {
        head.push(byte[0]);
    }
    assert!(
        head.starts_with(b"HTTP/1.1 101 "),
        "{}",
        String::from_utf8_lossy(&head)
    );
    WsStream::over(socket)
}

#[test]
fn a_header_comes_before_tls() {
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let server = authority.issue_server("server");
    let more = format!(
        "proxy_protocol = true\nallow_anonymous = true\ntls = {{ certificate = \"{}\", private_key = \"{}\" }}",
        server.certificate.display(),
        server.key.display()
    );
    let node = Node::start_with_config(&[], &listener("tls", "mqtts", "127.0.0.1:0", &more));
    let mut socket = TcpStream::connect(node.address("tls")).unwrap();
    socket.write_all(&version_2(1, 0x11, &ipv4())).unwrap();
    let stream = crate::certificates::connect_over(socket, authority.client_config(None)).unwrap();
    let mut raw = Raw::over(stream, 5);
    let client_id = greet(&mut raw);
    assert_eq!(
        client_info(&node, &client_id)["peer_address"],
        "203.0.113.7:5555"
    );
}
