//! Long polls of devices: a bound of their own, outside the places of ordinary connections.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use super::{api, ask, ask_at, get, product, with_token};
use crate::support::{DEADLINE, Node, eventually};

const POLLS: usize = 6;

/// Asks for a command of the device and does not wait for the answer.
fn begin_poll(node: &Node, device: &str) -> TcpStream {
    let mut socket = TcpStream::connect(node.address("http")).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let path = format!("/api/v1/token-{device}/rpc?timeout=60000");
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    socket
}

/// The sample of a metric with this class.
fn of_class(node: &Node, metric: &str, class: &str) -> usize {
    let (status, _, text) = ask_at(node.address("http"), ("GET", "/metrics"), "", "");
    assert_eq!(status, 200);
    let sample = format!("tidegate_{metric}{{class=\"{class}\"}} ");
    let text = text.as_str().unwrap();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(sample.as_str()));
    let value = value.unwrap_or_else(|| panic!("no {sample} in {text}"));
    value.parse().unwrap()
}

#[test]
fn more_long_polls_than_their_bound_are_rejected_and_all_others_are_answered() {
    // Fewer ordinary connections than polls: a poll takes none of them.
    let node = Node::start(&[
        "--set",
        "http.max_connections=3",
        "--set",
        "http.max_connections_per_address=3",
        "--set",
        &format!("http.max_long_polls={POLLS}"),
        "--set",
        "http.max_long_polls_per_device=1",
    ]);
    product(&node, "meter", json!({"mode": "sync"}));
    for number in 0..=POLLS {
        with_token(&node, &format!("d{number}"), "meter", json!({}));
    }
    let mut polls = Vec::new();
    for number in 0..POLLS {
        polls.push(begin_poll(&node, &format!("d{number}")));
        eventually("the device waits", || {
            of_class(&node, "http_requests_active", "long_poll") == number + 1
        });
    }
    let last = format!("token-d{POLLS}/rpc?timeout=60000");
    for _ in 0..3 {
        let (status, head, problem) = ask(&node, ("GET", &last), "", "");
        assert_eq!(status, 429, "{problem}");
        assert!(
            head.to_ascii_lowercase().contains("retry-after:"),
            "it says when to try again: {head}"
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("6 long polls are open"), "{detail}");
        for path in ["/healthz", "/readyz"] {
            assert_eq!(
                ask_at(node.address("http"), ("GET", path), "", "").0,
                200,
                "{path}"
            );
        }
        get(&node, "devices/d0");
        let (status, problem) = api(&node, "POST", "token-d1/telemetry", &json!({"t": 1}));
        assert_eq!(status, 200, "{problem}");
    }
    assert_eq!(
        of_class(&node, "http_requests_rejected_total", "long_poll"),
        3
    );
    assert_eq!(
        of_class(&node, "http_requests_active", "long_poll"),
        POLLS,
        "those that were rejected ended no other"
    );
    // One that is answered leaves its place to the next.
    let command = json!({"method": "on", "wait": false, "timeout_ms": 20_000});
    assert_eq!(api(&node, "POST", "devices/d0/commands", &command).0, 202);
    let mut answer = String::new();
    polls[0].read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"on\""),
        "{answer}"
    );
    eventually("its place is free", || {
        of_class(&node, "http_requests_active", "long_poll") == POLLS - 1
    });
    polls.push(begin_poll(&node, &format!("d{POLLS}")));
    eventually("the next device waits", || {
        of_class(&node, "http_requests_active", "long_poll") == POLLS
    });
}
