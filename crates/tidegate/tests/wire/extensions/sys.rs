//! `$SYS_PREFIX/#`: what the node tells about itself.

use super::*;

fn node() -> Option<&'static Node> {
    node_with(&["node.sys_interval_s=1"])
}

/// Subscribes; the SUBACK may come after the first message, and [`next`] passes it over.
fn watch(raw: &mut Raw, filter: &str) {
    raw.send(&Subscribe::new(1).filter(filter, 0).bytes(5));
}

/// The next message on this topic, as text.
fn next(raw: &mut Raw, topic: &str) -> String {
    loop {
        let packet = raw.recv_packet();
        if packet.kind == kind::PUBLISH && packet.topic == topic {
            return packet.text().to_owned();
        }
    }
}

#[test]
fn the_version_is_published() {
    let Some(node) = node() else { return };
    let mut raw = client(node);
    watch(&mut raw, "$SYS/broker/version");
    let version = next(&mut raw, "$SYS/broker/version");
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}

#[test]
fn the_uptime_grows() {
    let Some(node) = node() else { return };
    let mut raw = client(node);
    watch(&mut raw, "$SYS/broker/uptime");
    let seconds = |text: String| -> u64 {
        text.split_whitespace()
            .next()
            .and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("no number of seconds: {text}"))
    };
    let first = seconds(next(&mut raw, "$SYS/broker/uptime"));
    eventually("the uptime grows", || {
        seconds(next(&mut raw, "$SYS/broker/uptime")) > first
    });
}

#[test]
fn connected_clients_are_counted() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    // A node of its own, for the count.
    let node = Node::start(&["--shards", "2", "--set", "node.sys_interval_s=1"]);
    let mut raw = client(&node);
    let topic = "$SYS/broker/clients/connected";
    watch(&mut raw, topic);
    let more: Vec<Raw> = (0..6).map(|_| client(&node)).collect();
    eventually("seven clients are counted", || next(&mut raw, topic) == "7");
    drop(more);
    eventually("one client is counted", || next(&mut raw, topic) == "1");
}

#[test]
fn they_are_hidden_from_wildcards_at_the_first_level() {
    let Some(node) = node() else { return };
    let mut hidden = client(node);
    for filter in ["#", "+/#", "+/broker/#", "+/broker/uptime"] {
        watch(&mut hidden, filter);
    }
    let mut shown = client(node);
    watch(&mut shown, "$SYS/broker/uptime");
    // Two rounds have passed when the second one is here.
    next(&mut shown, "$SYS/broker/uptime");
    next(&mut shown, "$SYS/broker/uptime");
    for packet in hidden.ping_for_packets() {
        assert!(!packet.topic.starts_with('$'), "{packet:?}");
    }
}

#[test]
fn wildcards_below_show_them() {
    let Some(node) = node() else { return };
    for filter in ["$SYS/#", "$SYS/broker/+", "$SYS/+/uptime"] {
        let mut raw = client(node);
        watch(&mut raw, filter);
        eventually("a $SYS message", || {
            let packet = raw.recv_packet();
            packet.kind == kind::PUBLISH && packet.topic == "$SYS/broker/uptime"
        });
    }
}

#[test]
fn clients_may_not_publish_there() {
    let Some(node) = node() else { return };
    let topic = unique("$SYS/forged/");
    let mut watcher = client(node);
    watcher.subscribe(&topic, 2);
    let mut raw = client(node);
    for qos in [1, 2] {
        for retain in [false, true] {
            let mut publish = Publish::new(&topic, "forged").qos(qos, 1);
            publish.retain = retain;
            assert_eq!(publish_for_code(&mut raw, &publish), reason::NOT_AUTHORISED);
        }
    }
    // At QoS 0 it is dropped without a word.
    raw.publish(&topic, "forged");
    raw.ping();
    expect_silence(&mut watcher);
    let mut late = client(node);
    late.subscribe(&topic, 0);
    late.ping();
}

#[test]
fn a_will_does_not_get_there_either() {
    let Some(node) = node() else { return };
    let topic = unique("$SYS/forged/");
    let mut watcher = client(node);
    watcher.subscribe(&topic, 2);
    let mut raw = Raw::open(node, 5);
    let connect = connect(&unique("c")).will(Will::new(&topic, "forged").retain());
    // Rejecting the CONNECT is as good.
    if raw.hand_shake(&connect).reason == 0 {
        raw.cut();
    }
    expect_silence(&mut watcher);
    let mut late = client(node);
    late.subscribe(&topic, 0);
    late.ping();
}

#[test]
fn an_interval_of_0_turns_them_off() {
    let Some(node) = node_with(&["node.sys_interval_s=0"]) else {
        return;
    };
    let mut raw = client(node);
    raw.subscribe("$SYS/#", 0);
    if let Some(packet) = raw.try_recv(Duration::from_millis(1500)) {
        panic!("{packet:?}");
    }
}
