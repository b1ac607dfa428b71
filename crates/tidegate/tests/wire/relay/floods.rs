//! Clients that try to exhaust the node or to break the protocol. The sources are RFC 6455, and the cases of the
//! Autobahn test suite that apply to a server that relays.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use serde_json::json;
use socket2::{Domain, Socket, Type};
use testkit::report_skipped;

use super::{BINARY, RelayClient, TEXT, ask, new_endpoint, statistics};
use crate::api::own_node;
use crate::floods::{allow_open_files, alone};
use crate::support::{DEADLINE, Node, eventually, masked_frame, upgrade};

fn connected(node: &Node, definition: serde_json::Value) -> (RelayClient, RelayClient) {
    let id = new_endpoint(node, definition);
    (
        RelayClient::connect(node, &id),
        RelayClient::connect(node, &id),
    )
}

/// Autobahn 5.3 to 5.5: fragments, whole and byte by byte.
#[test]
fn fragments_become_one_message() {
    if !own_node() {
        return;
    }
    let (mut a, mut b) = connected(Node::shared(), json!({"mode": "direct"}));
    a.0.send_frame(0x01, b"frag");
    a.0.send_frame(0x89, b"ping in between");
    a.0.send_frame(0x80, b"ment");
    assert_eq!(a.receive().unwrap(), (0x8a, b"ping in between".to_vec()));
    assert_eq!(b.expect_text(), "fragment");
}

/// Autobahn 6.4: invalid UTF-8 is rejected at once, in whichever fragment it is.
#[test]
fn invalid_text_closes_with_1007() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let (mut a, _b) = connected(node, json!({"mode": "direct"}));
    a.0.send_frame(TEXT, &[0xce, 0xba, 0xff]);
    assert_eq!(a.expect_close().0, 1007);
    let (mut a, _b) = connected(node, json!({"mode": "direct"}));
    a.0.send_frame(0x01, &[0xf4]);
    a.0.send_frame(0x00, &[0x90]);
    assert_eq!(a.expect_close().0, 1007);
}

/// Autobahn 1 to 5 and 7: what is a protocol error.
#[test]
fn violations_of_the_protocol_close_with_1002() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let cases: [(&str, Vec<u8>); 7] = [
        ("2.5: a ping of 126 bytes", masked_frame(0x89, &[0; 126])),
        ("3.1: a reserved bit", masked_frame(0xc1, b"x")),
        ("4.1.1: a reserved opcode", masked_frame(0x83, b"x")),
        ("4.2.1: a reserved control opcode", masked_frame(0x8b, b"")),
        ("5.1: a fragmented ping", masked_frame(0x09, b"")),
        ("5.9: a continuation of nothing", masked_frame(0x80, b"x")),
        (
            "7.9.1: a close code that may not be sent",
            masked_frame(0x88, &[0, 0]),
        ),
    ];
    for (case, bytes) in cases {
        let (mut a, _b) = connected(node, json!({"mode": "direct"}));
        a.0.send_frame(TEXT, b"before");
        let mut frames = a;
        frames.0.send_bytes(&bytes);
        assert_eq!(frames.expect_close().0, 1002, "{case}");
    }
}

#[test]
fn a_message_may_have_the_length_of_the_limit_and_no_more() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let definition = json!({"mode": "direct", "max_message_bytes": 1000});
    let (mut a, mut b) = connected(node, definition);
    a.0.send_frame(BINARY, &[7; 1000]);
    assert_eq!(b.receive().unwrap().1.len(), 1000);
    // The length in the header is enough.
    a.0.send_bytes(&[0x82, 0xfe, 0x03, 0xe9, 1, 2, 3, 4]);
    assert_eq!(a.expect_close().0, 1009);
    let (mut a, _b) = connected(node, json!({"mode": "direct", "max_message_bytes": 1000}));
    a.0.send_frame(0x02, &[7; 600]);
    a.0.send_frame(0x00, &[7; 600]);
    assert_eq!(a.expect_close().0, 1009);
}

#[test]
fn endless_fragments_are_cut_off_and_unfinished_messages_count_as_memory() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "1", "--set", "limits.packet_timeout_s=1"]);
    let (mut a, mut b) = connected(&node, json!({"mode": "direct"}));
    a.0.send_frame(0x02, b"begun");
    let begun = std::time::Instant::now();
    let (code, reason) = a.expect_close();
    assert_eq!(code, 1008, "{reason}");
    assert!(begun.elapsed().as_secs() < 5);
    // Connections of others are not affected.
    let (mut c, _) = (RelayClient::connect(&node, &room_of(&node)), ());
    c.send_text("x");
    assert_eq!(b.expect_text(), "x");
}

/// Empty fragments need no memory, and long ones count as memory of the shard.
#[test]
fn fragments_without_an_end_are_bounded() {
    if !own_node() {
        return;
    }
    let limit = "limits.max_partial_packet_bytes_per_shard=1MiB";
    let node = Node::start(&["--shards", "1", "--set", limit]);
    let (mut a, mut b) = connected(&node, json!({"mode": "direct"}));
    let mut fragments = masked_frame(0x01, b"begun ");
    fragments.extend(masked_frame(0x00, b"").repeat(100_000));
    fragments.extend(masked_frame(0x80, b"ended"));
    a.0.send_bytes(&fragments);
    assert_eq!(b.expect_text(), "begun ended");
    // Half of the memory is for the clients of one listener.
    let id = room_of(&node);
    let mut unfinished: Vec<_> = (0..2).map(|_| RelayClient::connect(&node, &id)).collect();
    for client in &mut unfinished {
        client.0.send_frame(0x02, &[7; 250_000]);
        client.0.send_frame(0x89, b"");
        assert_eq!(client.receive().unwrap().0, 0x8a);
    }
    let mut one_more = RelayClient::connect(&node, &id);
    one_more.0.send_frame(0x02, &[7; 250_000]);
    assert_eq!(one_more.expect_close(), (1008, "quota_exceeded".into()));
    a.send_text("x");
    assert_eq!(b.expect_text(), "x");
    unfinished[0].0.send_frame(0x80, b"");
    assert_eq!(b.receive().unwrap().1.len(), 250_000);
}

/// A client that sends what the node answers, and never reads the answers, is not read any more.
#[test]
fn answers_that_a_client_does_not_read_are_bounded() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "1"]);
    let id = new_endpoint(&node, json!({"mode": "direct"}));
    let mut receiver = RelayClient::join(&node, &id);
    let mut sender = RelayClient::join(&node, &id);
    let before = node.resident_bytes();
    let request = json!({"type": "request", "requestId": "x".repeat(128), "requestType": "none"});
    let invalid = json!({"type": "identify", "deviceId": "x".repeat(65)});
    for answered in [
        masked_frame(0x89, &[7; 125]),
        masked_frame(TEXT, invalid.to_string().as_bytes()),
        // It is no device.
        masked_frame(TEXT, request.to_string().as_bytes()),
    ] {
        let (mut socket, _) = upgrade(node.address("ws"), &format!("/ws/{id}"), None);
        let timeout = std::time::Duration::from_secs(1);
        socket.set_write_timeout(Some(timeout)).unwrap();
        // More than the sockets take in both directions.
        let written = socket.write_all(&answered.repeat((64 << 20) / answered.len()));
        assert!(written.is_err(), "the node has read everything");
        sender.send_text("x");
        assert_eq!(receiver.expect_text(), "x");
    }
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
}

/// Of each receiver that never reads, the node keeps the backlog and what the socket has taken.
#[test]
fn receivers_that_never_read_cost_their_backlog_at_most() {
    const RECEIVERS: usize = 10;
    if !own_node() {
        return;
    }
    let node = Node::start(&["--shards", "2"]);
    // Other content for each receiver: the node shares equal frames between them.
    let ids: Vec<_> = (0..RECEIVERS)
        .map(|_| {
            new_endpoint(
                &node,
                json!({"mode": "direct", "max_backlog_bytes": 200_000, "ping_interval_s": 60}),
            )
        })
        .collect();
    let mut pairs: Vec<_> = ids
        .iter()
        .map(|id| {
            (
                RelayClient::join(&node, id),
                RelayClient::join(&node, id),
                RelayClient::join(&node, id),
            )
        })
        .collect();
    let before = node.resident_bytes();
    // More than sockets take and many times the backlogs: 8 MB for each receiver.
    let text = "x".repeat(10_000);
    for _ in 0..800 {
        for (sender, _slow, reader) in &mut pairs {
            sender.send_text(&text);
            assert_eq!(reader.expect_text().len(), text.len());
        }
    }
    let grown = node.resident_bytes().saturating_sub(before);
    // 64 KiB wait for the socket beside the backlog.
    let most = RECEIVERS as u64 * (200_000 + 65_536) + (32 << 20);
    assert!(grown < most, "{grown} bytes");
    for (id, (.., reader)) in ids.iter().zip(&mut pairs) {
        let counted = statistics(&node, id);
        assert!(counted["dropped_messages"].as_u64() > Some(0), "{counted}");
        assert_eq!(counted["current_connections"], 3, "{counted}");
        reader.synchronise();
    }
}

/// Nothing tells how near a guess is.
#[test]
fn guessed_ids_are_answered_alike() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let id = new_endpoint(node, json!({"access_key": "an-access-key-of-mine"}));
    let shorter = &id[..id.len() - 1];
    for guess in [shorter.to_owned(), format!("{id}x"), format!("_{id}")] {
        for target in [guess.clone(), format!("{guess}?key=an-access-key-of-mine")] {
            let mut client = RelayClient::connect(node, &target);
            let message = client.expect_json();
            assert_eq!(message["code"], "INVALID_ENDPOINT", "{message}");
            assert!(!message.to_string().contains(shorter), "{message}");
            assert_eq!(client.expect_close(), (1008, "Invalid endpoint".into()));
            assert_eq!(client.receive(), None);
        }
    }
}

#[test]
fn a_flood_of_guessed_ids_disturbs_nobody() {
    const GUESSES: usize = 4000;
    const THREADS: usize = 4;
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let (mut a, mut b) = connected(&node, json!({"mode": "direct"}));
    let before = node.resident_bytes();
    std::thread::scope(|scope| {
        let guess = |thread: usize| {
            for number in 0..GUESSES / THREADS {
                let guess = format!("guess-{thread}-{number}");
                let mut client = RelayClient::connect(&node, &guess);
                assert_eq!(client.expect_json()["code"], "INVALID_ENDPOINT");
                assert_eq!(client.expect_close().0, 1008);
            }
        };
        let guessers: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || guess(thread)))
            .collect();
        let mut number = 0;
        while guessers.iter().any(|guesser| !guesser.is_finished()) {
            number += 1;
            a.send_text(&number.to_string());
            assert_eq!(b.expect_text(), number.to_string());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    });
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
    let metrics = crate::listeners::get(&node, "/metrics").body;
    let counted = format!("tidegate_relay_connections_rejected_total {GUESSES}");
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
    eventually("the guessers are gone", || ws_connections(&node) == 2);
}

#[test]
fn half_open_upgrades_take_no_more_than_the_connections_of_the_listener() {
    if !own_node() {
        return;
    }
    let settings = [
        "listener.ws.max_connections=100",
        "listener.ws.connect_timeout_s=2",
    ];
    let node = Node::start(&["--set", settings[0], "--set", settings[1]]);
    let (mut a, mut b) = connected(&node, json!({"mode": "direct"}));
    let halves: Vec<_> = (0..300)
        .map(|_| {
            let mut socket = TcpStream::connect(node.address("ws")).unwrap();
            // The node may have closed it.
            let _ = socket.write_all(b"GET /ws/room HTTP/1.1\r\n");
            socket
        })
        .collect();
    eventually("the listener is full", || ws_connections(&node) == 100);
    a.send_text("x");
    assert_eq!(b.expect_text(), "x");
    eventually("half-open upgrades end", || ws_connections(&node) == 2);
    RelayClient::connect(&node, &room_of(&node)).send_text("y");
    assert_eq!(b.expect_text(), "y");
    drop(halves);
}

fn room_of(node: &Node) -> String {
    let (_, page) = ask(node, "GET", "endpoints", json!(null));
    page["data"][0]["id"].as_str().unwrap().to_owned()
}

/// From ten addresses, as an attacker could use them, and with requests that are incomplete in different places.
#[test]
fn ten_thousand_half_open_upgrades_end_and_the_endpoint_still_accepts_clients() {
    const COUNT: usize = 10_000;
    if !own_node() {
        return;
    }
    let _alone = alone();
    if !allow_open_files(COUNT as u64 + 1000) {
        return report_skipped("needs 11,000 open files (ulimit -n)");
    }
    let node = Node::start(&["--set", "listener.ws.connect_timeout_s=3"]);
    let id = new_endpoint(&node, json!({"mode": "direct"}));
    let (mut a, mut b) = (
        RelayClient::connect(&node, &id),
        RelayClient::connect(&node, &id),
    );
    let before = node.resident_bytes();
    let target: SocketAddr = node.address("ws").parse().unwrap();
    let beginnings = [
        String::new(),
        "G".to_owned(),
        format!("GET /ws/{id} HTTP/1.1\r\nHost: x\r\n"),
        format!("GET /ws/{id} HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r"),
    ];
    let halves: Vec<_> = (0..COUNT)
        .map(|number| {
            let source = Ipv4Addr::new(127, 0, 1, 1 + (number % 10) as u8);
            let mut socket = connect_from(source, target);
            // The node may have closed the first ones already.
            let _ = socket.write_all(beginnings[number % beginnings.len()].as_bytes());
            socket
        })
        .collect();
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes for {COUNT} connections");
    // Neither open connections nor new ones are affected.
    a.send_text("x");
    assert_eq!(b.expect_text(), "x");
    RelayClient::connect(&node, &id).send_text("new");
    assert_eq!(b.expect_text(), "new");
    for mut half in halves {
        half.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut answer = Vec::new();
        match half.read_to_end(&mut answer) {
            Ok(_) => assert!(answer.is_empty(), "{answer:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    eventually("half-open upgrades end", || ws_connections(&node) == 2);
    a.send_text("y");
    assert_eq!(b.expect_text(), "y");
}

fn connect_from(source: Ipv4Addr, target: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&target.into()).unwrap();
    socket.into()
}

/// Connections of the listener `ws`.
fn ws_connections(node: &Node) -> u64 {
    let (_, page) = ask(node, "GET", "listeners", json!(null));
    let listeners = page["data"].as_array().unwrap();
    let ws = listeners.iter().find(|listener| listener["name"] == "ws");
    ws.unwrap()["connections"].as_u64().unwrap()
}
