//! The limits of a listener: connections, rates, packet size, keep-alive, time to connect.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{client, folder, greet, limited, listener, open, own_node};
use crate::certificates::Authority;
use crate::support::{
    Connect, DEADLINE, Node, Props, Publish, Raw, Value, eventually, kind, unique, upgrade,
};

const MAXIMUM_PACKET_SIZE: u8 = 0x27;
const SERVER_KEEP_ALIVE: u8 = 0x13;

#[test]
fn more_connections_than_the_limit_are_rejected() {
    if !own_node() {
        return;
    }
    let node = limited("max_connections = 3");
    let mut inside: Vec<Raw> = (0..3).map(|_| client(&node, "limited", 5)).collect();
    for version in [4, 5] {
        let mut fourth = open(&node, "limited", version);
        fourth.send(&Connect::new(version, unique("fourth")).bytes());
        // Either a CONNACK that says why (3: server unavailable, 0x97: quota exceeded) or just the end.
        for packet in fourth.packets_until_closed() {
            assert_eq!(packet.kind, kind::CONNACK, "{packet:?}");
            assert!([3, 0x88, 0x89, 0x97].contains(&packet.reason), "{packet:?}");
        }
    }
    for raw in &mut inside {
        raw.ping();
    }
    client(&node, "mqtt", 5).ping();

    inside.pop().unwrap().disconnect();
    eventually("the place of a client that left is free", || {
        is_let_in(&node)
    });
}

/// Whether a client of the listener `limited` gets a good CONNACK now.
fn is_let_in(node: &Node) -> bool {
    let mut raw = open(node, "limited", 5);
    raw.send(&Connect::new(5, unique("again")).bytes());
    raw.try_recv_unless_closed(Duration::from_millis(500))
        .is_some_and(|packet| packet.reason == 0)
}

#[test]
fn connections_of_one_address_are_not_the_limit_of_another_listener() {
    if !own_node() {
        return;
    }
    let config = listener("one", "mqtt", "127.0.0.1:0", "max_connections = 1")
        + &listener("two", "mqtt", "127.0.0.1:0", "max_connections = 1");
    let node = Node::start_with_config(&[], &config);
    let mut first = client(&node, "one", 5);
    let mut second = client(&node, "two", 5);
    first.ping();
    second.ping();
}

#[test]
fn connections_come_in_no_faster_than_the_accept_rate() {
    if !own_node() {
        return;
    }
    let rate = 10;
    let node = limited(&format!("max_new_connections_per_s = {rate}"));
    let start = Instant::now();
    let mut waiting: Vec<Raw> = (0..40)
        .map(|_| {
            let mut raw = open(&node, "limited", 5);
            raw.send(&Connect::new(5, unique("rate")).bytes());
            raw
        })
        .collect();
    // A client over the rate waits or is closed; it is never let in early.
    let mut let_in = 0;
    for raw in &mut waiting {
        let connack = raw.try_recv_unless_closed(Duration::from_secs(10));
        let_in += u32::from(connack.is_some_and(|packet| packet.reason == 0));
    }
    let allowed = rate as f64 * (start.elapsed().as_secs_f64() + 1.0) + 1.0;
    assert!(let_in >= rate, "at least the burst of one second: {let_in}");
    assert!(f64::from(let_in) <= allowed, "{let_in} of {allowed}");
    drop(waiting);
    eventually("later clients are let in", || is_let_in(&node));
}

#[test]
fn a_client_over_the_message_rate_is_slowed_and_not_disconnected() {
    if !own_node() {
        return;
    }
    let node = limited("max_client_messages_per_s = 50");
    let mut fast = client(&node, "limited", 5);
    let start = Instant::now();
    let count = 200u16;
    for packet_id in 1..=count {
        fast.send_publish(&Publish::new("rate/messages", "x").qos(1, packet_id));
    }
    // Meanwhile others on the same listener are served at once.
    client(&node, "limited", 4).ping();
    for packet_id in 1..=count {
        assert_eq!(fast.recv(kind::PUBACK).id(), packet_id);
    }
    let seconds = start.elapsed().as_secs_f64();
    // A burst of one second is allowed, so 200 messages at 50 a second take 3 seconds.
    assert!(seconds > 2.5, "200 messages took only {seconds} s");
    fast.ping();
}

#[test]
fn the_message_rate_does_not_count_what_is_no_message() {
    if !own_node() {
        return;
    }
    let node = limited("max_client_messages_per_s = 1");
    let mut raw = client(&node, "limited", 5);
    let start = Instant::now();
    for _ in 0..100 {
        raw.ping();
    }
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_client_over_the_byte_rate_is_slowed_and_not_disconnected() {
    if !own_node() {
        return;
    }
    let node = limited("max_client_bytes_per_s = 200000");
    let mut fast = client(&node, "limited", 5);
    let start = Instant::now();
    let payload = vec![b'x'; 20_000];
    for packet_id in 1..=50 {
        fast.send_publish(&Publish::new("rate/bytes", &payload).qos(1, packet_id));
    }
    client(&node, "limited", 4).ping();
    for packet_id in 1..=50 {
        assert_eq!(fast.recv(kind::PUBACK).id(), packet_id);
    }
    let seconds = start.elapsed().as_secs_f64();
    // A megabyte at 200,000 bytes a second, of which a burst of one second and what is read at once are free.
    assert!(seconds > 2.5, "1,000,000 bytes took only {seconds} s");
    fast.ping();
}

/// The node cannot hear the pings of a client it does not read.
#[test]
fn a_slowed_client_is_not_taken_for_a_silent_one() {
    if !own_node() {
        return;
    }
    let node = limited("max_client_messages_per_s = 20");
    let mut fast = open(&node, "limited", 5);
    let connect = Connect::new(5, unique("slowed")).keep_alive(1);
    assert_eq!(fast.hand_shake(&connect).reason, 0);
    let count = 60u16;
    for packet_id in 1..=count {
        fast.send_publish(&Publish::new("rate/slowed", "x").qos(1, packet_id));
    }
    let mut next = 1;
    while next <= count {
        fast.send(&[0xc0, 0x00]);
        while let Some(packet) = fast.try_recv(Duration::from_millis(200)) {
            match packet.kind {
                kind::PUBACK => {
                    assert_eq!(packet.id(), next);
                    next += 1;
                }
                other => assert_eq!(other, kind::PINGRESP, "{packet:?}"),
            }
        }
    }
    // What it sends after that is heard as well.
    fast.send_publish(&Publish::new("rate/slowed", "x").qos(1, 100));
    let acknowledged = std::iter::repeat_with(|| fast.recv_packet())
        .find(|packet| packet.kind == kind::PUBACK)
        .unwrap();
    assert_eq!(acknowledged.id(), 100);
}

#[test]
fn a_slowed_client_still_gets_messages() {
    if !own_node() {
        return;
    }
    let node = limited("max_client_messages_per_s = 1");
    let mut slow = client(&node, "limited", 5);
    slow.subscribe("rate/in", 1);
    for packet_id in 1..=20 {
        slow.send_publish(&Publish::new("rate/out", "x").qos(1, packet_id));
    }
    let mut other = client(&node, "mqtt", 5);
    for number in 0..50u8 {
        other.publish_qos1("rate/in", [number], 1);
    }
    let mut got = 0u8;
    while got < 50 {
        let packet = slow.recv_packet();
        if packet.kind == kind::PUBLISH {
            assert_eq!(packet.payload, [got]);
            got += 1;
        } else {
            assert_eq!(packet.kind, kind::PUBACK);
        }
    }
}

#[test]
fn a_listener_may_take_smaller_packets_than_the_node() {
    if !own_node() {
        return;
    }
    let node = limited("max_packet_size = 1000");
    let mut raw = open(&node, "limited", 5);
    let connack = raw.hand_shake(&Connect::new(5, unique("size")));
    assert!(
        connack
            .properties
            .contains(&(MAXIMUM_PACKET_SIZE, Value::U32(1000))),
        "{connack:?}"
    );
    // Fixed header 3, topic 6, packet id 2, properties 1: 1000 bytes in all.
    raw.publish_qos1("size", vec![0; 988], 1);
    raw.send_publish(&Publish::new("size", vec![0; 989]).qos(1, 2));
    raw.expect_disconnect(0x95);

    let mut old = client(&node, "limited", 4);
    old.send_publish(&Publish::new("size", vec![0; 2000]));
    old.expect_closed();
    // The node's own limit holds elsewhere.
    client(&node, "mqtt", 5).publish_qos1("size", vec![0; 2000], 1);
}

#[test]
fn a_connect_over_the_packet_size_is_rejected() {
    if !own_node() {
        return;
    }
    let node = limited("max_packet_size = 1000");
    let mut raw = open(&node, "limited", 5);
    let large = Props::new().pair(0x26, "filler", &"x".repeat(2000));
    raw.send(&Connect::new(5, unique("size")).properties(large).bytes());
    for packet in raw.packets_until_closed() {
        assert!([0x81, 0x95].contains(&packet.reason), "{packet:?}");
    }
}

#[test]
fn keep_alive_bounds_are_announced_to_the_client() {
    if !own_node() {
        return;
    }
    let node = limited("min_keep_alive_s = 10\nmax_keep_alive_s = 60");
    for (asked, announced) in [
        (5, Some(10)),
        (10, None),
        (30, None),
        (60, None),
        (61, Some(60)),
        (0, Some(60)),
    ] {
        let connect = Connect::new(5, unique("keep")).keep_alive(asked);
        let connack = open(&node, "limited", 5).hand_shake(&connect);
        assert_eq!(connack.reason, 0);
        let answer = connack
            .properties
            .iter()
            .find(|(id, _)| *id == SERVER_KEEP_ALIVE);
        let wanted = announced.map(|seconds| (SERVER_KEEP_ALIVE, Value::U16(seconds)));
        assert_eq!(answer, wanted.as_ref(), "asked for {asked} s");
    }
}

#[test]
fn a_silent_client_is_disconnected_after_the_listener_s_keep_alive() {
    if !own_node() {
        return;
    }
    let node = limited("max_keep_alive_s = 1");
    let mut watcher = client(&node, "mqtt", 5);
    let topic = unique("keep/will/");
    watcher.subscribe(&topic, 0);
    let mut silent = open(&node, "limited", 5);
    let will = crate::support::Will::new(&topic, "silent");
    let connect = Connect::new(5, unique("keep")).keep_alive(600).will(will);
    assert_eq!(silent.hand_shake(&connect).reason, 0);
    silent.expect_disconnect(0x8d);
    watcher.recv_message(&topic, "silent");
}

/// The node must end this connection though the client stays.
fn expect_cut(mut socket: TcpStream, what: &str) {
    use std::io::Read;
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut bytes = [0; 1024];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return,
            // A rejection in words, an alert or a close frame may come first.
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("{what}: not cut: {error}"),
        }
    }
}

#[test]
fn connections_without_a_connect_in_time_are_cut() {
    use std::io::Write;
    if !own_node() {
        return;
    }
    let authority = Authority::new(folder());
    let server = authority.issue_server("server");
    let tls = format!(
        "connect_timeout_s = 1\ntls = {{ certificate = \"{}\", private_key = \"{}\" }}",
        server.certificate.display(),
        server.key.display()
    );
    let config = listener("plain", "mqtt", "127.0.0.1:0", "connect_timeout_s = 1")
        + &listener("web", "ws", "127.0.0.1:0", "connect_timeout_s = 1")
        + &listener("tls", "mqtts", "127.0.0.1:0", &tls)
        + &listener(
            "proxied",
            "mqtt",
            "127.0.0.1:0",
            "connect_timeout_s = 1\nproxy_protocol = true",
        );
    let node = Node::start_with_config(&[], &config);
    let connect = |name: &str| TcpStream::connect(node.address(name)).unwrap();

    let mut patient = client(&node, "plain", 5);
    let silent = ["plain", "web", "tls", "proxied"].map(|name| (name, connect(name)));
    let mut half = connect("plain");
    half.write_all(&Connect::new(5, unique("half")).bytes()[..7])
        .unwrap();
    let mut half_request = connect("web");
    half_request
        .write_all(b"GET /mqtt HTTP/1.1\r\nHost: x\r\n")
        .unwrap();
    let (upgraded, _) = upgrade(node.address("web"), "/mqtt", Some("mqtt"));
    let encrypted = authority.connect(node.address("tls"), None).unwrap();
    for (name, socket) in silent {
        expect_cut(socket, &format!("silent on {name}"));
    }
    expect_cut(half, "half a CONNECT");
    expect_cut(half_request, "half a request");
    expect_cut(upgraded, "upgraded and silent");
    expect_cut(encrypted.sock, "encrypted and silent");
    // The time is for connecting only.
    patient.ping();
}

#[test]
fn a_trickle_of_bytes_does_not_extend_the_time_to_connect() {
    use std::io::Write;
    if !own_node() {
        return;
    }
    let node = limited("connect_timeout_s = 1");
    let mut socket = TcpStream::connect(node.address("limited")).unwrap();
    let start = Instant::now();
    // A CONNECT of 200 bytes that would take 20 seconds.
    for byte in Connect::new(5, "x".repeat(180)).bytes() {
        if socket.write_all(&[byte]).is_err() {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "not cut");
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("a CONNECT in 20 seconds was taken");
}

#[test]
fn a_connection_without_connect_does_not_outlast_its_time() {
    use std::io::{Read, Write};
    if !own_node() {
        return;
    }
    let node = limited("connect_timeout_s = 1");
    let mut socket = TcpStream::connect(node.address("limited")).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0);
    // The node does not wait for the client to close, too.
    let end = Instant::now();
    while socket.write_all(b"x").is_ok() {
        assert!(end.elapsed() < Duration::from_secs(1), "still open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn limits_of_one_client_do_not_carry_over_to_its_next_connection() {
    if !own_node() {
        return;
    }
    let node = limited("max_client_messages_per_s = 5");
    let client_id = unique("carry");
    for _ in 0..3 {
        let mut raw = open(&node, "limited", 5);
        assert_eq!(raw.hand_shake(&Connect::new(5, &client_id)).reason, 0);
        for packet_id in 1..=5 {
            raw.send_publish(&Publish::new("carry", "x").qos(1, packet_id));
            assert_eq!(raw.recv(kind::PUBACK).id(), packet_id);
        }
        raw.disconnect();
    }
    greet(&mut open(&node, "limited", 5));
}
