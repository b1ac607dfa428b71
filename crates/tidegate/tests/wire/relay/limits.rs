//! Limits of endpoints: rates of their clients, kept messages, and clients that are gone.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{BINARY, CLOSE, PING, PONG, RelayClient, TEXT, ask, change_endpoint, new_endpoint};
use crate::api::own_node;
use crate::support::Node;

/// Sends texts at once, and returns the time until the receiver has all and the sender is read again.
fn send_at_once(node: &Node, definition: Value, texts: &[String]) -> Duration {
    let id = new_endpoint(node, definition);
    let (mut sender, mut receiver) = (RelayClient::join(node, &id), RelayClient::join(node, &id));
    let started = Instant::now();
    for text in texts {
        sender.send_text(text);
    }
    for text in texts {
        assert_eq!(&receiver.expect_text(), text, "in order, and none is lost");
    }
    sender.synchronise();
    started.elapsed()
}

#[test]
fn a_client_over_its_rate_is_not_read_for_a_while_and_loses_nothing() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let texts: Vec<_> = (0..40).map(|n| n.to_string()).collect();
    let limit = json!({"mode": "direct", "max_messages_per_s": 25});
    // What is allowed for one second is relayed at once; the rest takes 0.6 s.
    let passed = send_at_once(node, limit, &texts);
    assert!(passed > Duration::from_millis(500), "{passed:?}");
    let texts: Vec<_> = (0..16)
        .map(|n| format!("{n:02}{}", "x".repeat(9_998)))
        .collect();
    let limit = json!({"mode": "direct", "max_bytes_per_s": 100_000});
    let passed = send_at_once(node, limit, &texts);
    assert!(passed > Duration::from_millis(500), "{passed:?}");
    // Others are not slowed.
    let passed = send_at_once(node, json!({"mode": "direct"}), &texts);
    assert!(passed < Duration::from_secs(10), "{passed:?}");
}

/// Texts of the kept messages, newest first; of binary ones their length.
fn kept(node: &Node, id: &str) -> Vec<Value> {
    let (status, history) = ask(
        node,
        "GET",
        &format!("endpoints/{id}/messages"),
        json!(null),
    );
    assert_eq!(status, 200, "{history}");
    let entries = history.as_array().unwrap().iter();
    let shown = |entry: &Value| match entry.get("text") {
        Some(text) => text.clone(),
        None => entry["binary_bytes"].clone(),
    };
    entries.map(shown).collect()
}

#[test]
fn an_endpoint_keeps_its_last_messages_within_its_limits() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let id = new_endpoint(node, json!({"mode": "direct", "history_messages": 4}));
    let mut sender = RelayClient::join(node, &id);
    for text in ["1", "2", "3"] {
        sender.send_text(text);
    }
    sender.0.send_frame(BINARY, &[0xff; 7]);
    // Characters and not bytes count.
    let long = "ü".repeat(6000);
    sender.send_text(&long);
    sender.send_text(&long[..10_000]);
    sender.synchronise();
    let cut = format!("{}… (cut)", &long[..10_000]);
    let exact = json!(&long[..10_000]);
    assert_eq!(
        kept(node, &id),
        [exact.clone(), json!(cut), json!(7), json!("3")]
    );
    // Lower limits apply at once.
    change_endpoint(node, &id, json!({"mode": "direct", "history_messages": 3}));
    assert_eq!(kept(node, &id), [exact.clone(), json!(cut), json!(7)]);
    change_endpoint(
        node,
        &id,
        json!({"mode": "direct", "history_bytes": 11_000}),
    );
    assert_eq!(kept(node, &id), [exact]);
    for text in ["4", "5"] {
        sender.send_text(text);
    }
    sender.send_text(&"x".repeat(4_000));
    sender.synchronise();
    let newest = kept(node, &id);
    assert_eq!(newest[1..], [json!("5"), json!("4")]);
    change_endpoint(node, &id, json!({"mode": "direct", "history_messages": 0}));
    assert_eq!(kept(node, &id), Vec::<Value>::new());
}

#[test]
fn a_client_that_answers_no_ping_is_disconnected_and_others_stay() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let id = new_endpoint(node, json!({"mode": "direct", "ping_interval_s": 1}));
    let mut quiet = RelayClient::join(node, &id);
    let mut alive = RelayClient::join(node, &id);
    let answering = std::thread::spawn(move || {
        let mut pings = 0;
        while pings < 3 {
            let (first_byte, payload) = alive.0.recv_frame().unwrap().expect("it stays");
            assert_eq!(first_byte, PING, "{payload:?}");
            alive.0.send_frame(PONG, &payload);
            pings += 1;
        }
        alive
    });
    let mut pings = 0;
    let (first_byte, payload) = loop {
        match quiet.0.recv_frame().unwrap().expect("a close frame") {
            (PING, _) => pings += 1,
            frame => break frame,
        }
    };
    assert_eq!((first_byte, pings), (CLOSE, 2));
    assert_eq!(payload, [&1008_u16.to_be_bytes()[..], b"no pong"].concat());
    assert_eq!(quiet.receive(), None);
    answering.join().unwrap().synchronise();
}

#[test]
fn json_mode_wraps_each_kind_of_message_as_documented() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let id = new_endpoint(node, json!({"mode": "json"}));
    let (mut a, mut b) = (RelayClient::join(node, &id), RelayClient::join(node, &id));
    // What is sent, the data and the time that receivers get, as they are written; `None`: now.
    let rows = [
        (
            r#"{"type":"t","data":{"x":1},"timestamp":5,"more":2}"#,
            r#"{"x":1}"#,
            Some("5"),
        ),
        (r#"{"data":[1, 2],"type":"t"}"#, "[1, 2]", None),
        (r#"{"type":"t","data":null}"#, "null", None),
        (r#"{"type":"t"}"#, r#"{"type":"t"}"#, None),
        (
            r#"{"data":1,"timestamp":5}"#,
            r#"{"data":1,"timestamp":5}"#,
            None,
        ),
        (r#"{"type":"t","data":1.50e+300}"#, "1.50e+300", None),
        ("[1,2]", "[1,2]", None),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890",
            None,
        ),
        (r#""text""#, r#""text""#, None),
        ("true", "true", None),
        ("no JSON", r#""no JSON""#, None),
        (r#"{"open":"#, r#""{\"open\":""#, None),
        ("", r#""""#, None),
    ];
    for (sent, data, time) in rows {
        a.send_text(sent);
        let text = b.expect_text();
        let start = format!("{{\"type\":\"message\",\"data\":{data},\"timestamp\":");
        let written = text
            .strip_prefix(&start)
            .and_then(|it| it.strip_suffix('}'));
        let written = written.unwrap_or_else(|| panic!("{sent}: {text}"));
        match time {
            Some(time) => assert_eq!(written, time, "{sent}"),
            None => assert!(
                written.parse::<u64>().unwrap() > 1_700_000_000_000,
                "{text}"
            ),
        }
    }
}

/// Sends the frame in two pieces, which the node reads one after the other.
pub(super) fn send_split(
    sender: &mut RelayClient,
    other: &mut RelayClient,
    frame: &[u8],
    at: usize,
) {
    sender.0.send_bytes(&frame[..at]);
    other.synchronise();
    sender.0.send_bytes(&frame[at..]);
}

#[test]
fn frames_of_every_length_may_be_split_at_every_byte_of_their_header() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "1"]);
    let id = new_endpoint(&node, json!({"mode": "direct"}));
    let elsewhere = new_endpoint(&node, json!({}));
    let mut sender = RelayClient::join(&node, &id);
    let mut receiver = RelayClient::join(&node, &id);
    let mut other = RelayClient::join(&node, &elsewhere);
    // With lengths of 7, 16 and 64 bits.
    for length in [5, 300, 70_000] {
        let bytes: Vec<u8> = (0..length).map(|n: u32| (n % 251) as u8).collect();
        let text = "x".repeat(length as usize).into_bytes();
        for (opcode, payload) in [(BINARY, &bytes), (TEXT, &text)] {
            let frame = crate::support::masked_frame(opcode, payload);
            let header = frame.len() - payload.len();
            for at in (1..header + 5).chain([frame.len() - 1]) {
                send_split(&mut sender, &mut other, &frame, at);
                let received = receiver.receive();
                assert!(
                    received.as_ref() == Some(&(opcode, payload.clone())),
                    "{opcode:x}, {length} bytes, split at {at}"
                );
            }
        }
    }
}
