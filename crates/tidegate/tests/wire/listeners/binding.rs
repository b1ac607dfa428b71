//! Addresses: IPv4 and IPv6, Unix sockets, taken ports, and who is let in where.

use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;

use super::{USER, client, client_info, folder, greet, listener, open, own_node};
use crate::relay::{ask, new_endpoint};
use crate::support::{Connect, Node, Raw, WsStream, unique, upgrade_over};

#[test]
fn ipv6_is_served() {
    if !own_node() {
        return;
    }
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        crate::interop::report_skipped("this machine has no IPv6");
        return;
    }
    let node = Node::start_with_config(&[], &listener("six", "mqtt", "[::1]:0", ""));
    assert!(
        node.address("six").starts_with("[::1]:"),
        "{}",
        node.address("six")
    );
    let mut raw = open(&node, "six", 5);
    let client_id = greet(&mut raw);
    let info = client_info(&node, &client_id);
    let peer = info["peer_address"].as_str().unwrap();
    assert!(peer.starts_with("[::1]:"), "{peer}");
    assert_eq!(info["listener"], "six");
}

#[test]
fn a_unix_socket_is_served_and_removed() {
    if !own_node() {
        return;
    }
    let path = folder().join("mqtt.sock");
    let config = listener("unix", "unix", path.to_str().unwrap(), "");
    let node = Node::start_with_config(&[], &config);
    assert_eq!(node.address("unix"), path.to_str().unwrap());
    let mut raw = Raw::over(UnixStream::connect(&path).unwrap(), 4);
    let client_id = greet(&mut raw);
    raw.ping();
    assert_eq!(client_info(&node, &client_id)["peer_address"], "unix");
    assert!(node.terminate(Duration::from_secs(20)).success());
    assert!(!path.exists(), "a graceful stop removes the socket");
}

#[test]
fn a_unix_socket_serves_websocket_for_mqtt_and_relay_endpoints() {
    if !own_node() {
        return;
    }
    let path = folder().join("ws.sock");
    let config = listener("local", "ws", path.to_str().unwrap(), "");
    let node = Node::start_with_config(&[], &config);
    assert_eq!(node.address("local"), path.to_str().unwrap());
    let open = |target: &str, protocol| {
        let mut socket = UnixStream::connect(&path).unwrap();
        let head = upgrade_over(&mut socket, target, protocol);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        WsStream::over(socket)
    };
    let mut raw = Raw::over(open("/mqtt", Some("mqtt")), 5);
    let client_id = greet(&mut raw);
    raw.ping();
    assert_eq!(client_info(&node, &client_id)["peer_address"], "unix");

    let id = new_endpoint(&node, json!({"mode": "direct"}));
    let room = format!("/ws/{id}");
    let (mut a, mut b) = (open(&room, None), open(&room, None));
    a.send_frame(0x81, b"over a Unix socket");
    let received = b.recv_frame().unwrap().unwrap();
    assert_eq!(received, (0x81, b"over a Unix socket".to_vec()));
    let (_, connections) = ask(
        &node,
        "GET",
        &format!("endpoints/{id}/connections"),
        json!(null),
    );
    assert_eq!(
        connections["data"][0]["peer_address"], "unix",
        "{connections}"
    );

    let (_, listeners) = ask(&node, "GET", "listeners", json!(null));
    assert_eq!(listeners["data"][0]["protocol"], "ws", "{listeners}");
    assert!(node.terminate(Duration::from_secs(20)).success());
    assert!(!path.exists(), "a graceful stop removes the socket");
}

#[test]
fn a_unix_socket_left_behind_by_a_dead_node_is_replaced() {
    if !own_node() {
        return;
    }
    let path = folder().join("mqtt.sock");
    let config = listener("unix", "unix", path.to_str().unwrap(), "");
    let node = Node::start_with_config(&[], &config);
    node.signal(libc::SIGKILL);
    assert!(node.wait(Duration::from_secs(5)).is_some());
    assert!(path.exists());
    let _node = Node::start_with_config(&[], &config);
    greet(&mut Raw::over(UnixStream::connect(&path).unwrap(), 5));
}

#[test]
fn a_unix_socket_of_a_living_node_and_a_plain_file_are_left_alone() {
    if !own_node() {
        return;
    }
    let path = folder().join("mqtt.sock");
    let config = listener("unix", "unix", path.to_str().unwrap(), "");
    let node = Node::start_with_config(&[], &config);
    let why = Node::try_start(&[], &config)
        .err()
        .expect("the socket is in use");
    assert!(why.contains(path.to_str().unwrap()), "{why}");
    greet(&mut Raw::over(UnixStream::connect(&path).unwrap(), 5));
    drop(node);

    let file = folder().join("precious.txt");
    std::fs::write(&file, "do not delete").unwrap();
    let config = listener("unix", "unix", file.to_str().unwrap(), "");
    let why = Node::try_start(&[], &config).err().expect("not a socket");
    assert!(why.contains(file.to_str().unwrap()), "{why}");
    assert!(!std::fs::metadata(&file).unwrap().file_type().is_socket());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "do not delete");
}

/// What a node says that is to listen where somebody else does.
fn taken_by(address: &str) -> String {
    let config = listener("second", "mqtt", address, "");
    Node::try_start(&[], &config)
        .err()
        .expect("the port is taken")
}

#[test]
fn a_taken_port_is_an_error_that_names_it() {
    if !own_node() {
        return;
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let why = taken_by(&address);
    assert!(why.contains(&address), "names the address: {why}");
    assert!(why.contains("in use"), "says what is wrong: {why}");
    assert!(!why.contains("panicked"), "{why}");
}

#[test]
fn a_second_node_on_the_same_port_does_not_share_it() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    // SO_REUSEPORT must not let two nodes share a port.
    let why = taken_by(node.address("mqtt"));
    assert!(why.contains(node.address("mqtt")), "{why}");
    client(&node, "mqtt", 5).ping();
}

/// A node that listens everywhere, reached through the loopback.
fn everywhere(more: &str) -> Node {
    let config = listener("open", "mqtt", "0.0.0.0:0", more) + USER;
    Node::start_with_config(&[], &config)
}

fn open_loopback(node: &Node, version: u8) -> Raw {
    let (_, port) = node.address("open").rsplit_once(':').unwrap();
    Raw::open_address(&format!("127.0.0.1:{port}"), version)
}

#[test]
fn anonymous_clients_are_rejected_beyond_loopback() {
    if !own_node() {
        return;
    }
    let node = everywhere("");
    for (version, rejection) in [(3, 5), (4, 5), (5, 0x87)] {
        let mut raw = open_loopback(&node, version);
        let connack = raw.hand_shake(&Connect::new(version, unique("anon")));
        assert_eq!(connack.reason, rejection, "version {version}");
        raw.expect_closed();
    }
    for (version, rejection) in [(4, [4, 5]), (5, [0x86, 0x87])] {
        let mut raw = open_loopback(&node, version);
        let wrong = Connect::new(version, unique("ali"))
            .username("ali")
            .password("close sesame");
        let connack = raw.hand_shake(&wrong);
        assert!(
            rejection.contains(&connack.reason),
            "version {version}: {connack:?}"
        );
        raw.expect_closed();

        let mut raw = open_loopback(&node, version);
        let right = Connect::new(version, unique("ali"))
            .username("ali")
            .password("open sesame");
        assert_eq!(raw.hand_shake(&right).reason, 0, "version {version}");
        raw.ping();
    }
}

#[test]
fn anonymous_clients_are_accepted_beyond_loopback_if_configured() {
    if !own_node() {
        return;
    }
    let node = everywhere("allow_anonymous = true");
    greet(&mut open_loopback(&node, 5));
}

#[test]
fn anonymous_clients_are_rejected_on_loopback_if_configured() {
    if !own_node() {
        return;
    }
    let config = listener("strict", "mqtt", "127.0.0.2:0", "allow_anonymous = false")
        + &listener("lenient", "mqtt", "127.0.0.2:0", "");
    let node = Node::start_with_config(&[], &config);
    client(&node, "lenient", 5).ping();
    let connack = open(&node, "strict", 5).hand_shake(&Connect::new(5, unique("anon")));
    assert_eq!(connack.reason, 0x87);
}
