//! Keep-alive (3.1.2-24) and PINGREQ (3.12).

use std::time::{Duration, Instant};

use super::V311;
use crate::support::{Connect, Node, Raw, kind, unique};

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
