//! How a node ends: clients are told, what is ready is sent, and it takes no longer than said.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use super::{client, greet, own_node};
use crate::support::{Connect, Node, Raw, Value, WsStream, unique};

/// Much longer than a stop of a node with a few clients takes.
const LIMIT: Duration = Duration::from_secs(20);
const SERVER_REFERENCE: u8 = 0x1c;

#[test]
fn sigterm_disconnects_clients_and_exits_cleanly() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let node_file = node.data_dir().join("node.json");
    assert!(node_file.exists());
    let mut modern: Vec<Raw> = (0..20).map(|_| client(&node, "mqtt", 5)).collect();
    let mut old = client(&node, "mqtt", 4);
    let mut oldest = client(&node, "mqtt", 3);
    let mut browser = Raw::over(WsStream::connect(node.address("ws")), 5);
    greet(&mut browser);
    // Half-open: no CONNECT yet.
    let mut nobody = Raw::open(&node, 5);

    node.signal(libc::SIGTERM);
    for raw in &mut modern {
        raw.expect_disconnect(0x8b);
    }
    old.expect_closed();
    oldest.expect_closed();
    browser.expect_disconnect(0x8b);
    nobody.expect_closed();
    let status = node.wait(LIMIT).expect("the node ends within its limit");
    assert!(status.success(), "{status}; it wrote:\n{}", node.log());
    assert!(!node_file.exists(), "node.json is removed");
    for name in ["mqtt", "ws", "http"] {
        assert!(
            TcpStream::connect(node.address(name)).is_err(),
            "{name} is closed"
        );
    }
}

#[test]
fn sigint_ends_a_node_as_well() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let mut raw = client(&node, "mqtt", 5);
    node.signal(libc::SIGINT);
    raw.expect_disconnect(0x8b);
    assert!(node.wait(LIMIT).expect("the node ends").success());
}

#[test]
fn clients_receive_a_server_reference() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--set", "node.server_reference=other.example:1883"]);
    let mut raw = client(&node, "mqtt", 5);
    node.signal(libc::SIGTERM);
    // Use another server (section 4.11).
    let disconnect = raw.expect_disconnect(0x9c);
    let wanted = (SERVER_REFERENCE, Value::String("other.example:1883".into()));
    assert!(disconnect.properties.contains(&wanted), "{disconnect:?}");
}

#[test]
fn what_was_acknowledged_before_the_stop_is_delivered_before_the_goodbye() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let topic = unique("stop/flush/");
    let mut receiver = client(&node, "mqtt", 5);
    receiver.subscribe(&topic, 0);
    let mut sender = client(&node, "mqtt", 5);
    let payload = vec![b'x'; 1000];
    // Less than the receiver's socket and outbox hold, as it does not read yet.
    for _ in 0..200 {
        sender.publish_qos1(&topic, &payload, 1);
    }
    node.signal(libc::SIGTERM);
    for _ in 0..200 {
        receiver.recv_message(&topic, &payload);
    }
    receiver.expect_disconnect(0x8b);
}

#[test]
fn a_client_that_does_not_read_cannot_hold_the_node_up() {
    if !own_node() {
        return;
    }
    let node = Node::start(&["--set", "node.stop_timeout_s=2"]);
    let topic = unique("stop/stuck/");
    let mut stuck = client(&node, "mqtt", 5);
    stuck.subscribe(&topic, 0);
    let mut sender = client(&node, "mqtt", 5);
    let payload = vec![b'x'; 100_000];
    // 20 MB: far more than the sockets in between take.
    for _ in 0..200 {
        sender.publish_qos1(&topic, &payload, 1);
    }
    let status = node.terminate(LIMIT);
    assert!(status.success(), "{status}; it wrote:\n{}", node.log());
    drop(stuck);
}

#[test]
fn a_second_sigterm_does_no_harm() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let mut raws: Vec<Raw> = (0..50).map(|_| client(&node, "mqtt", 5)).collect();
    node.signal(libc::SIGTERM);
    node.signal(libc::SIGTERM);
    for raw in &mut raws {
        let packets = raw.packets_until_closed();
        assert!(
            packets.iter().all(|packet| packet.reason == 0x8b),
            "{packets:?}"
        );
    }
    assert!(node.wait(LIMIT).is_some());
}

#[test]
fn a_will_does_not_hold_the_stop_up() {
    if !own_node() {
        return;
    }
    let node = Node::start(&[]);
    let mut raw = Raw::open(&node, 5);
    let will = crate::support::Will::new("stop/will", "gone").qos(1);
    assert_eq!(
        raw.hand_shake(&Connect::new(5, unique("will")).will(will))
            .reason,
        0
    );
    let status = node.terminate(LIMIT);
    assert!(
        status.success(),
        "a will at the stop does not hold it up: {status}"
    );
}

#[test]
fn two_nodes_do_not_share_a_data_directory() {
    if !own_node() {
        return;
    }
    let first = Node::start(&[]);
    let data_dir = first.data_dir().to_str().unwrap();
    let mut second = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    second.args(["serve", "--data-dir", data_dir]);
    second.args([
        "--mqtt",
        "127.0.0.1:0",
        "--ws",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIDEGATE_")) {
        second.env_remove(name);
    }
    let second = second.output().unwrap();
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success(), "{errors}");
    assert!(
        errors.contains(data_dir),
        "says which folder is taken: {errors}"
    );
    assert!(
        first.data_dir().join("node.json").exists(),
        "still the first node's"
    );
    client(&first, "mqtt", 5).ping();
}
