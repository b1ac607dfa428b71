//! Streams of the API end with the credentials that opened them, and not with those of others.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{closed, local_token, own_node, send};
use crate::support::{Connect, DEADLINE, Node, Raw, unique};

/// Streams that a viewer may open.
const OF_VIEWERS: [&str; 5] = [
    "/api/v1/events",
    "/api/v1/messages/live?topic_filter=%23",
    "/api/v1/alarm-events",
    "/api/v1/devices/d/telemetry/live",
    "/api/v1/telemetry/live?devices=d",
];
/// One that needs the role operator.
const TRACE: &str = "/api/v1/rules/r/trace";

/// An open stream; what is read from it must come within [`DEADLINE`], which is less than the time after which a silent stream
/// looks at its credentials anyway.
struct EventStream {
    path: &'static str,
    lines: BufReader<TcpStream>,
}

impl EventStream {
    fn open(node: &Node, path: &'static str, authorization: &str) -> Self {
        let mut socket = TcpStream::connect(node.address("http")).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        write!(
            socket,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {authorization}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut stream = Self {
            path,
            lines: BufReader::new(socket),
        };
        let status = stream.next_line().unwrap();
        assert!(status.starts_with("HTTP/1.1 200 "), "{path}: {status}");
        stream.read_until(": connected");
        stream
    }

    /// `None`: the stream has ended.
    fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line);
        let read =
            read.unwrap_or_else(|error| panic!("{} neither goes on nor ends: {error}", self.path));
        (read > 0).then_some(line)
    }

    fn read_until(&mut self, part: &str) -> String {
        loop {
            let line = self.next_line();
            let line = line.unwrap_or_else(|| panic!("{} ended before {part:?}", self.path));
            if line.contains(part) {
                return line;
            }
        }
    }

    fn read_to_end(mut self) {
        while self.next_line().is_some() {}
    }
}

/// A node with a device `d` and a rule `r`, and the token of an admin.
fn node() -> (Node, String) {
    let node = closed();
    let admin = local_token(&node);
    for (path, object) in [
        ("/api/v1/products", json!({"id": "p"})),
        ("/api/v1/devices", json!({"id": "d", "product": "p"})),
        (
            "/api/v1/rules",
            json!({"name": "r", "sql": "SELECT topic FROM \"t/#\"",
                "actions": [{"kind": "republish", "topic": "out"}]}),
        ),
    ] {
        let made = send(&node, &admin, "POST", path, &object);
        assert_eq!(made.status, 201, "{path}: {}", made.body);
    }
    (node, admin)
}

fn open_all(node: &Node, authorization: &str) -> Vec<EventStream> {
    let paths = OF_VIEWERS.into_iter().chain([TRACE]);
    paths
        .map(|path| EventStream::open(node, path, authorization))
        .collect()
}

/// Creates an API key; the value of the Authorization field.
fn api_key(node: &Node, admin: &str, id: &str, role: &str) -> String {
    let key = json!({"id": id, "role": role});
    let made = send(node, admin, "POST", "/api/v1/api-keys", &key);
    assert_eq!(made.status, 201, "{}", made.body);
    let secret = made.body["secret"].as_str().unwrap();
    format!("Basic {}", STANDARD.encode(format!("{id}:{secret}")))
}

/// Creates an operator and logs in; the value of the Authorization field.
fn operator(node: &Node, admin: &str, name: &str) -> String {
    let password = "correct horse";
    let wanted = json!({"username": name, "role": "operator", "password": password, "must_change_password": false});
    let made = send(node, admin, "POST", "/api/v1/operators", &wanted);
    assert_eq!(made.status, 201, "{}", made.body);
    let login = json!({"username": name, "password": password});
    let answer = send(node, "", "POST", "/api/v1/login", &login);
    assert_eq!(answer.status, 200, "{}", answer.body);
    format!("Bearer {}", answer.body["token"].as_str().unwrap())
}

/// Another's stream of events goes on.
fn expect_event(node: &Node, stream: &mut EventStream) {
    let client_id = unique("streams");
    let _client = Raw::connect(node, &Connect::new(5, &client_id));
    stream.read_until(&client_id);
}

#[test]
fn streams_end_at_once_when_their_api_key_is_deleted() {
    if !own_node() {
        return;
    }
    let (node, admin) = node();
    let deleted = api_key(&node, &admin, "key-deleted", "operator");
    let other = api_key(&node, &admin, "key-other", "operator");
    let streams = open_all(&node, &deleted);
    let mut others = open_all(&node, &other);
    let path = "/api/v1/api-keys/key-deleted";
    let answer = send(&node, &admin, "DELETE", path, &Value::Null);
    assert_eq!(answer.status, 204, "{}", answer.body);
    for stream in streams {
        stream.read_to_end();
    }
    expect_event(&node, &mut others[0]);
    // So do all others of the key that is left: they have been looked at, and are not closed.
    for stream in &mut others[1..] {
        stream.read_until(": still here");
    }
}

#[test]
fn streams_end_at_once_when_their_operator_is_demoted_or_deleted() {
    if !own_node() {
        return;
    }
    let (node, admin) = node();
    let ann = operator(&node, &admin, "ann");
    let bob = operator(&node, &admin, "bob");
    let mut streams = open_all(&node, &ann);
    let mut others = open_all(&node, &bob);
    let demoted = send(
        &node,
        &admin,
        "PUT",
        "/api/v1/operators/ann",
        &json!({"role": "viewer"}),
    );
    assert_eq!(demoted.status, 200, "{}", demoted.body);
    let trace = streams.pop().unwrap();
    assert_eq!(trace.path, TRACE);
    trace.read_to_end();
    // A viewer may see the others.
    expect_event(&node, &mut streams[0]);
    for stream in &mut streams[1..] {
        stream.read_until(": still here");
    }
    expect_event(&node, &mut others[0]);
    let answer = send(
        &node,
        &admin,
        "DELETE",
        "/api/v1/operators/ann",
        &Value::Null,
    );
    assert_eq!(answer.status, 204, "{}", answer.body);
    for stream in streams {
        stream.read_to_end();
    }
    expect_event(&node, &mut others[0]);
    // The trace of the operator that is left shows what the rule does.
    let trace = others.last_mut().unwrap();
    let mut device = Raw::connect(&node, &Connect::new(5, unique("device")));
    device.publish("t/1", "{}");
    trace.read_until("event: trace");
}

#[test]
fn streams_end_at_once_with_the_login_that_opened_them() {
    if !own_node() {
        return;
    }
    let (node, admin) = node();
    let ann = operator(&node, &admin, "ann");
    let streams = open_all(&node, &ann);
    let token = ann.strip_prefix("Bearer ").unwrap();
    let answer = send(&node, token, "POST", "/api/v1/logout", &Value::Null);
    assert_eq!(answer.status, 204, "{}", answer.body);
    for stream in streams {
        stream.read_to_end();
    }
}
