//! Rules at work in a node: made over the API, met by the messages of real clients.

mod actions;
mod backpressure;
mod events;
mod lifecycle;
mod tools;
mod windows;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::{Node, Raw, kind};

/// Asks the API; the status and the JSON.
fn api(node: &Node, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let (status, answer) = api_text(node, method, path, &body);
    (status, serde_json::from_str(&answer).unwrap_or_default())
}

/// Like [`api`], with JSON as it is sent.
fn api_text(node: &Node, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(node.address("http")).unwrap();
    write!(
        stream,
        "{method} /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\nif-match: *\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, body.to_owned())
}

fn make(node: &Node, name: &str, sql: &str, actions: Value) {
    let rule = json!({"name": name, "sql": sql, "actions": actions});
    let (status, answer) = api(node, "POST", "rules", &rule);
    assert_eq!(status, 201, "{answer}");
}

/// A rule whose outputs are published to a topic, as JSON.
fn republish(node: &Node, name: &str, sql: &str, topic: &str) {
    make(
        node,
        name,
        sql,
        json!([{"kind": "republish", "topic": topic}]),
    );
}

fn change(node: &Node, name: &str, rule: &Value) -> (u16, Value) {
    api(node, "PUT", &format!("rules/{name}"), rule)
}

fn status(node: &Node, name: &str) -> Value {
    let (status, answer) = api(node, "GET", &format!("rules/{name}/status"), &Value::Null);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn count(node: &Node, name: &str, counter: &str) -> u64 {
    status(node, name)["counters"][counter].as_u64().unwrap()
}

/// The next message as its topic and its JSON.
fn next(raw: &mut Raw) -> (String, Value) {
    let message = raw.recv(kind::PUBLISH);
    raw.acknowledge(&message);
    let json = serde_json::from_slice(&message.payload);
    let text = String::from_utf8_lossy(&message.payload).into_owned();
    (message.topic, json.unwrap_or(Value::String(text)))
}
