//! What systems post to a source of a real node: it meets rules, and is answered when they have taken it.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{closed, local_token, own_node, send};
use crate::support::{Connect, DEADLINE, Node, Raw, kind, unique};

const TOKEN: &str = "token-of-the-weather-service";

/// Status and head of the answer.
fn post(node: &Node, source: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let address = node.address("http");
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut request = format!(
        "POST /api/v1/sources/{source}/push HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    socket
        .write_all(format!("{request}\r\n{body}").as_bytes())
        .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.to_ascii_lowercase())
}

fn put(node: &Node, token: &str, path: &str, body: Value) {
    let made = send(node, token, "PUT", path, &body);
    assert_eq!(made.status, 201, "{path}: {}", made.body);
}

#[test]
fn what_is_posted_to_a_source_meets_rules() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let put = |path: &str, body: Value| put(&node, &token, path, body);
    put("/api/v1/connectors/hooks", json!({"type": "http"}));
    put(
        "/api/v1/sources/weather",
        json!({
            "connector": "hooks", "token": TOKEN, "format": "json_array", "headers": ["X-Station"],
            "topic": "weather/${headers.'x-station'}", "max_body_bytes": 100
        }),
    );
    put(
        "/api/v1/rules/weather",
        json!({
            "sql": "SELECT topic, payload.t AS t FROM \"$bridges/http:weather\"",
            "actions": [{"kind": "republish", "topic": "in/${topic}", "payload": "${t}", "qos": 1}]
        }),
    );
    let mut watcher = Raw::connect(&node, &Connect::new(5, unique("watcher")));
    watcher.subscribe("in/#", 0);
    let bearer = format!("Bearer {TOKEN}");
    let right = [("authorization", &*bearer), ("x-station", "7")];
    let (status, head) = post(&node, "weather", &right, r#"[{"t": 21.5}, {"t": -3}]"#);
    assert_eq!(status, 204, "{head}");
    for expected in ["21.5", "-3"] {
        let message = watcher.recv(kind::PUBLISH);
        assert_eq!(
            (&*message.topic, &*message.payload),
            ("in/weather/7", expected.as_bytes())
        );
    }
    // The token of an admin is none of the source's, nor the other way round.
    let admin = format!("Bearer {token}");
    let none: &[(&str, &str)] = &[];
    let too_much = format!("[{}]", " ".repeat(100));
    let rejections = [
        ("weather", none, "[]", 401),
        ("weather", &[("authorization", &admin)], "[]", 401),
        ("weather", &right, "no array", 422),
        ("weather", &right, &too_much, 413),
        ("other", &right, "[]", 404),
    ];
    for (source, headers, body, expected) in rejections {
        let (status, head) = post(&node, source, headers, body);
        assert_eq!(status, expected, "{head}");
    }
    let path = "/api/v1/sources/weather";
    assert_eq!(send(&node, TOKEN, "GET", path, &Value::Null).status, 401);
    let mut shown = send(&node, &token, "GET", path, &Value::Null).body;
    assert!(!shown.to_string().contains(TOKEN), "{shown}");
    // What was shown may be put back, with a change: the token stays.
    shown["enabled"] = false.into();
    assert_eq!(send(&node, &token, "PUT", path, &shown).status, 200);
    let (status, head) = post(&node, "weather", &right, "[]");
    assert!(status == 503 && head.contains("retry-after:"), "{head}");
    shown["enabled"] = true.into();
    assert_eq!(send(&node, &token, "PUT", path, &shown).status, 200);
    assert_eq!(post(&node, "weather", &right, "[]").0, 204);
    let status = send(&node, &token, "GET", "/api/v1/source-status", &Value::Null);
    assert_eq!(status.body["data"][0]["received"], 2, "{}", status.body);
}

#[test]
fn a_full_sink_holds_up_who_posts() {
    if !own_node() {
        return;
    }
    let node = closed();
    let token = local_token(&node);
    let put = |path: &str, body: Value| put(&node, &token, path, body);
    put("/api/v1/connectors/hooks", json!({"type": "http"}));
    // Nobody listens there.
    put(
        "/api/v1/connectors/gone",
        json!({"type": "http", "url": "http://127.0.0.1:9"}),
    );
    put(
        "/api/v1/sinks/gone",
        json!({"connector": "gone", "queue": {"max_rows": 3}, "batch": {"max_rows": 1}}),
    );
    put(
        "/api/v1/sources/in",
        json!({"connector": "hooks", "token": TOKEN, "max_waiting_requests": 1}),
    );
    put(
        "/api/v1/rules/keep",
        json!({
            "sql": "SELECT * FROM \"$bridges/http:in\"",
            "actions": [{"kind": "sink", "sink": "gone"}]
        }),
    );
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", &*bearer)];
    let mut statuses = Vec::new();
    // The sink takes some, and one after that is answered late.
    while statuses.last() != Some(&429) {
        let (status, head) = post(&node, "in", &headers, "{}");
        assert!(
            status == 204 || head.contains("retry-after: 1"),
            "{status} {head}"
        );
        statuses.push(status);
        assert!(statuses.len() < 100, "{statuses:?}");
    }
    assert_eq!(statuses[0], 204);
    // Late, and from then on its place is taken.
    assert!(statuses.contains(&503), "{statuses:?}");
}

#[test]
fn a_sink_of_a_node_posts_to_the_source_of_another() {
    if !own_node() {
        return;
    }
    let (here, there) = (closed(), closed());
    let (token, token_there) = (local_token(&here), local_token(&there));
    let signature = json!({"secret": "between-two-nodes", "prefix": "sha256="});
    put(
        &there,
        &token_there,
        "/api/v1/connectors/hooks",
        json!({"type": "http"}),
    );
    put(
        &there,
        &token_there,
        "/api/v1/sources/other",
        json!({
            "connector": "hooks", "signature": signature, "format": "json_array", "topic": "${payload.topic}",
            "local_topic": "other/${payload.topic}"
        }),
    );
    let url = format!("http://{}/api/v1/sources/other", there.address("http"));
    put(
        &here,
        &token,
        "/api/v1/connectors/there",
        json!({"type": "http", "url": url}),
    );
    put(
        &here,
        &token,
        "/api/v1/sinks/there",
        json!({"connector": "there", "path": "/push", "signature": signature}),
    );
    put(
        &here,
        &token,
        "/api/v1/rules/onward",
        json!({
            "sql": "SELECT topic, payload FROM \"plant/#\"",
            "actions": [{"kind": "sink", "sink": "there"}]
        }),
    );
    let mut watcher = Raw::connect(&there, &Connect::new(5, unique("watcher")));
    watcher.subscribe("other/#", 0);
    let mut device = Raw::connect(&here, &Connect::new(5, unique("device")));
    device.publish_qos1("plant/7", "x", 1);
    let message = watcher.recv(kind::PUBLISH);
    assert_eq!(message.topic, "other/plant/7");
    let payload: Value = serde_json::from_slice(&message.payload).unwrap();
    assert_eq!(payload, json!({"topic": "plant/7", "payload": "x"}));
}
