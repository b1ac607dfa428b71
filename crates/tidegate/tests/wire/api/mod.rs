//! The HTTP API of a real node: who may use it, and what a change over it does to those who connect.

mod access;
mod added_listeners;
mod connectors;
mod declared;
mod effects;
mod namespaces;
mod observation;
mod push;
mod schemathesis;
mod secrets;
mod settings;
mod streams;

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use testkit::report_skipped;

use crate::support::{DEADLINE, Node, external};

/// The answer of the API.
pub(crate) struct ApiResponse {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// These tests start nodes of their own.
pub(crate) fn own_node() -> bool {
    if external().is_some() {
        report_skipped("needs a node of its own");
    }
    external().is_none()
}

/// A node that asks for credentials.
fn closed() -> Node {
    closed_with(&[])
}

fn closed_with(arguments: &[&str]) -> Node {
    Node::start(&[&["--set", "http.anonymous_role=none"], arguments].concat())
}

/// The token with which the node's owner is an admin.
pub(crate) fn local_token(node: &Node) -> String {
    let path = node.data_dir().join("api.token");
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

pub(crate) fn send(
    node: &Node,
    token: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> ApiResponse {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let authorization = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let fields = format!("{authorization}Content-Type: application/json\r\n");
    exchange(node, (method, path), &fields, &body)
}

/// Posts a body that is not JSON.
pub(crate) fn send_text(node: &Node, path: &str, media_type: &str, body: &str) -> ApiResponse {
    let fields = format!("Content-Type: {media_type}\r\n");
    exchange(node, ("POST", path), &fields, body)
}

fn exchange(node: &Node, request: (&str, &str), fields: &str, body: &str) -> ApiResponse {
    try_exchange(node, request, fields, body).unwrap()
}

/// As [`send`] without a token; `None` if the answer takes longer than tests usually wait.
pub(crate) fn try_send(node: &Node, method: &str, path: &str, body: &Value) -> Option<ApiResponse> {
    let fields = "Content-Type: application/json\r\n";
    try_exchange(node, (method, path), fields, &body.to_string()).ok()
}

fn try_exchange(
    node: &Node,
    (method, path): (&str, &str),
    fields: &str,
    body: &str,
) -> io::Result<ApiResponse> {
    let address = node.address("http");
    let network = node.enter_network();
    let mut socket = TcpStream::connect(address)?;
    drop(network);
    socket.set_read_timeout(Some(DEADLINE))?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{fields}\
         Content-Length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes())?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok(ApiResponse {
        status: status.expect("a status line"),
        body: serde_json::from_str(body).unwrap_or_default(),
    })
}
