//! Relay endpoints: rooms of WebSocket connections.

mod autobahn;
mod bench;
mod clients;
mod compression;
mod device_isolation;
mod devices;
mod endpoints;
mod events;
mod faulty_proxy;
mod floods;
mod guide;
mod isolation;
mod limits;
mod messages;
mod owner_bans;
mod quotas;
mod rules;
mod soak;

use serde_json::{Value, json};

use crate::api::{local_token, send};
use crate::support::{Node, WsStream, upgrade};

pub(crate) const TEXT: u8 = 0x81;
pub(crate) const BINARY: u8 = 0x82;
pub(crate) const CLOSE: u8 = 0x88;
pub(crate) const PING: u8 = 0x89;
pub(crate) const PONG: u8 = 0x8a;

/// Sends a request to the API; its status and body.
pub(crate) fn ask(node: &Node, method: &str, path: &str, body: Value) -> (u16, Value) {
    let path = format!("/api/v1/{path}");
    let answer = send(node, &local_token(node), method, &path, &body);
    (answer.status, answer.body)
}

/// Creates an endpoint, and returns its id.
pub(crate) fn new_endpoint(node: &Node, definition: Value) -> String {
    let (status, endpoint) = ask(node, "POST", "endpoints", definition);
    assert_eq!(status, 201, "{endpoint}");
    endpoint["id"].as_str().unwrap().to_owned()
}

/// Replaces the definition of an endpoint.
pub(crate) fn change_endpoint(node: &Node, id: &str, definition: Value) {
    let (status, answer) = ask(node, "PUT", &format!("endpoints/{id}"), definition);
    assert_eq!(status, 200, "{answer}");
}

pub(crate) fn statistics(node: &Node, id: &str) -> Value {
    let (status, answer) = ask(node, "GET", &format!("endpoints/{id}/status"), json!(null));
    assert_eq!(status, 200, "{answer}");
    answer
}

/// A client of an endpoint. `target` is what follows `/ws/`.
pub(crate) struct RelayClient(pub(crate) WsStream);

impl RelayClient {
    pub(crate) fn connect(node: &Node, target: &str) -> Self {
        let (socket, head) = upgrade(node.address("ws"), &format!("/ws/{target}"), None);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Self(WsStream::over(socket))
    }

    /// Connects, and waits until the client gets everything that is sent from then on.
    pub(crate) fn join(node: &Node, target: &str) -> Self {
        let mut client = Self::connect(node, target);
        client.synchronise();
        client
    }

    /// Waits until the node has processed what this client has sent. Nothing else may arrive meanwhile.
    pub(crate) fn synchronise(&mut self) {
        self.0.send_frame(PING, b"synchronise");
        assert_eq!(self.receive(), Some((PONG, b"synchronise".to_vec())));
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        self.0.send_frame(TEXT, text.as_bytes());
    }

    /// The next frame that is no ping; `None`: the connection has ended.
    pub(crate) fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let frame = self.0.recv_frame().unwrap()?;
            if frame.0 != PING {
                return Some(frame);
            }
        }
    }

    pub(crate) fn expect_text(&mut self) -> String {
        let (first_byte, payload) = self.receive().expect("a frame");
        assert_eq!(first_byte, TEXT, "{payload:?}");
        String::from_utf8(payload).unwrap()
    }

    pub(crate) fn expect_json(&mut self) -> Value {
        serde_json::from_str(&self.expect_text()).unwrap()
    }

    /// A system message and a close frame: the code of the message, the close code and its reason.
    pub(crate) fn expect_refusal(&mut self) -> (String, u16, String) {
        let message = self.expect_json();
        assert_eq!(message["type"], "system", "{message}");
        assert_eq!(message["level"], "error", "{message}");
        assert!(message["timestamp"].is_u64(), "{message}");
        let (code, reason) = self.expect_close();
        (message["code"].as_str().unwrap().to_owned(), code, reason)
    }

    pub(crate) fn expect_close(&mut self) -> (u16, String) {
        let (first_byte, payload) = self.receive().expect("a frame");
        assert_eq!(first_byte, CLOSE, "{}", String::from_utf8_lossy(&payload));
        let code = u16::from_be_bytes([payload[0], payload[1]]);
        (code, String::from_utf8(payload[2..].to_vec()).unwrap())
    }
}
