//! Keep-alive (3.1.2-24) and PINGREQ (3.12).

use std::time::{Duration, Instant};

use super::{V311, subscriber, topic};
use crate::support::{Connect, Node, Publish, Raw, Will, kind, unique};

/// The connection must end 1.5 s after `since`, give or take the server's clock tick and a busy machine.
fn expect_end(raw: &mut Raw, since: Instant) {
    let packets = raw.packets_until_closed();
    assert!(
        packets.iter().all(|packet| packet.kind == kind::PUBLISH),
        "{packets:?}"
    );
    let elapsed = since.elapsed();
    assert!(
        elapsed >= Duration::from_millis(1400),
        "closed too early: after {elapsed:?}"
    );
    assert!(
        elapsed <= Duration::from_millis(4000),
        "closed too late: after {elapsed:?}"
    );
}

#[test]
fn mqtt_3_1_2_24_a_silent_client_is_disconnected_after_one_and_a_half_keep_alives() {
    let start = Instant::now();
    let mut raw = Raw::connect(
        Node::shared(),
        &Connect::new(V311, unique("c")).keep_alive(1),
    );
    expect_end(&mut raw, start);
}

#[test]
fn mqtt_3_1_2_24_half_a_packet_does_not_count() {
    let start = Instant::now();
    let mut raw = Raw::connect(
        Node::shared(),
        &Connect::new(V311, unique("c")).keep_alive(1),
    );
    raw.send(&[0x30, 20, 0, 5]);
    std::thread::sleep(Duration::from_millis(700));
    raw.send(b"topic");
    expect_end(&mut raw, start);
}

#[test]
fn mqtt_3_1_2_24_what_the_server_sends_does_not_count() {
    let topic = topic();
    let start = Instant::now();
    let mut raw = Raw::connect(
        Node::shared(),
        &Connect::new(V311, unique("c")).keep_alive(1),
    );
    raw.subscribe(&topic, 0);
    let mut publisher = super::client();
    let writer = std::thread::spawn(move || {
        while start.elapsed() < Duration::from_secs(3) {
            publisher.publish(&topic, "x");
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    expect_end(&mut raw, start);
    writer.join().unwrap();
}

#[test]
fn mqtt_3_1_2_24_every_packet_of_the_client_counts() {
    let mut raw = Raw::connect(
        Node::shared(),
        &Connect::new(V311, unique("c")).keep_alive(1),
    );
    let packets: [Vec<u8>; 4] = [
        vec![0xc0, 0],
        Publish::new("nowhere", "x").bytes(V311),
        vec![0x40, 2, 0, 99],
        crate::support::Unsubscribe::new(1)
            .filter("none")
            .bytes(V311),
    ];
    for packet in packets {
        raw.send(&packet);
        // Each pause is under 1.5 s, all together are not.
        std::thread::sleep(Duration::from_millis(800));
    }
    raw.ping_for_packets();
}

#[test]
fn mqtt_3_1_2_24_a_client_that_went_silent_leaves_its_will() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    let will = Will::new(&topic, "silent");
    let mut raw = Raw::connect(
        Node::shared(),
        &Connect::new(V311, unique("c")).keep_alive(1).will(will),
    );
    watcher.recv_message(&topic, "silent");
    raw.expect_closed();
}

#[test]
fn mqtt_3_1_2_10_keep_alive_0_turns_it_off() {
    let mut raw = Raw::connect(
        Node::shared(),
        &Connect::new(V311, unique("c")).keep_alive(0),
    );
    assert!(raw.try_recv(Duration::from_millis(2500)).is_none());
    raw.ping();
}

#[test]
fn mqtt_3_12_4_1_pingreq_is_answered_by_pingresp() {
    let mut raw = super::client();
    for _ in 0..3 {
        raw.ping();
    }
    // Also many at once, as many answers.
    raw.send(&[0xc0, 0].repeat(1000));
    for _ in 0..1000 {
        raw.recv_exactly(&[0xd0, 0]);
    }
    raw.ping();
}
