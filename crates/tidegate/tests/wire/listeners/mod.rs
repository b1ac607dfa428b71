//! Where clients come in: every kind of listener, what it rejects, its limits, and how the node starts and stops.

mod binding;
mod http;
mod https;
mod limits;
mod proxy;
mod quic;
mod quic_aioquic;
mod quic_streams;
mod stop;
mod tls;
mod tls_scan;
mod websocket;
mod websocket_compression;
mod websocket_frames;

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::temporary_directory as folder;
use crate::support::{Connect, DEADLINE, Node, Raw, external, unique};

/// `open sesame` as the password of the user `ali`, for listeners that let nobody in without.
const USER: &str = r#"
[[user]]
username = "ali"
credential = "scram-sha-256$4096$dGlkZWdhdGUtdGVzdC1zYWx0$mCQAdQXeF/fW4AZOl/wWyP+hv///gCZA1uZbOqJ7xBs=$a8MTESLim9v91FSXWJOzgOuosFfIyS2zJpXRF9aGkfo="
"#;

/// These tests say how nodes are started, so they need the program itself.
fn own_node() -> bool {
    if external().is_some() {
        crate::interop::report_skipped("needs a node of its own");
    }
    external().is_none()
}

/// `[[listener]]` with this name, protocol and address, and further lines.
fn listener(name: &str, protocol: &str, bind: &str, more: &str) -> String {
    format!(
        "[[listener]]\nname = \"{name}\"\nprotocol = \"{protocol}\"\nbind = \"{bind}\"\n{more}\n"
    )
}

/// A node whose listener `limited` speaks MQTT on a free port with these further lines.
fn limited(more: &str) -> Node {
    Node::start_with_config(&[], &listener("limited", "mqtt", "127.0.0.1:0", more))
}

/// A connection to a named listener; nothing is sent.
fn open(node: &Node, listener: &str, version: u8) -> Raw {
    Raw::open_address(node.address(listener), version)
}

/// A clean session through a named listener.
fn client(node: &Node, listener: &str, version: u8) -> Raw {
    let mut raw = open(node, listener, version);
    greet(&mut raw);
    raw
}

/// CONNECT with a fresh client id, which must be accepted. Returns the client id.
fn greet(raw: &mut Raw) -> String {
    let client_id = unique("lis");
    let connack = raw.hand_shake(&Connect::new(raw.version, &client_id));
    assert_eq!(connack.reason, 0, "rejected: {connack:?}");
    client_id
}

/// The answer to `GET path`: status code, head and body.
pub(crate) struct HttpResponse {
    status: u16,
    head: String,
    pub(crate) body: String,
}

pub(crate) fn get(node: &Node, path: &str) -> HttpResponse {
    let address = node.address("http");
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    HttpResponse {
        status: status.expect("a status line"),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

/// What the API says about one client.
fn client_info(node: &Node, client_id: &str) -> serde_json::Value {
    let answer = get(node, &format!("/api/v1/clients/{client_id}"));
    assert_eq!(answer.status, 200, "{client_id}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}
