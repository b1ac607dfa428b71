//! Errors (4.8): a protocol violation costs its connection and nothing else. DISCONNECT (3.14).

use super::{V311, client, expect_violation, subscriber, topic};
use crate::support::{Connect, Node, Publish, Raw, Subscribe, kind, unique};

#[test]
fn mqtt_3_14_1_1_disconnect_with_reserved_bits_closes_the_connection_as_an_error() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    for flags in 1..16_u8 {
        let will = crate::support::Will::new(&topic, flags.to_string());
        let mut raw = Raw::connect(Node::shared(), &Connect::new(V311, unique("c")).will(will));
        raw.send(&[0xe0 | flags, 0]);
        raw.expect_closed();
        // It is no DISCONNECT: the will is published.
        watcher.recv_message(&topic, flags.to_string());
    }
}

#[test]
fn mqtt_3_14_4_the_server_closes_the_connection_after_disconnect() {
    let mut raw = client();
    raw.send(&[0xe0, 0]);
    raw.expect_closed();
}

#[test]
fn mqtt_3_14_4_2_what_comes_after_disconnect_has_no_effect() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    let mut raw = client();
    let mut bytes = Publish::new(&topic, "before").bytes(V311);
    bytes.extend([0xe0, 0]);
    bytes.extend(Publish::new(&topic, "after").bytes(V311));
    raw.send(&bytes);
    raw.expect_closed();
    watcher.recv_message(&topic, "before");
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_3_14_4_acknowledgements_due_before_disconnect_are_sent() {
    let mut raw = client();
    let mut bytes = Publish::new("nowhere", "x").qos(1, 1).bytes(V311);
    bytes.extend([0xe0, 0]);
    raw.send(&bytes);
    let packets = raw.packets_until_closed();
    assert_eq!(packets.len(), 1, "{packets:?}");
    assert_eq!(packets[0].bytes, [0x40, 2, 0, 1]);
}

#[test]
fn mqtt_4_8_0_1_a_violation_closes_only_its_own_connection() {
    let topic = topic();
    let mut raw = subscriber(&topic, 0);
    let mut publisher = client();
    for bytes in [
        &[0u8, 0][..],
        &[0x36, 3, 0, 1, b'a'],
        &[0x10, 0],
        &[0x82, 2, 0, 1],
        &[0xff; 100],
    ] {
        expect_violation("violation", bytes);
        publisher.publish(&topic, "fine");
        raw.recv_message(&topic, "fine");
    }
}

#[test]
fn mqtt_4_8_0_1_packets_before_a_violation_in_the_same_segment_are_processed() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    let mut raw = client();
    let mut bytes = Publish::new(&topic, "before").qos(1, 1).bytes(V311);
    bytes.extend([0x00, 0x00]);
    bytes.extend(Publish::new(&topic, "after").bytes(V311));
    raw.send(&bytes);
    let packets = raw.packets_until_closed();
    assert!(
        packets.len() <= 1 && packets.iter().all(|packet| packet.kind == kind::PUBACK),
        "{packets:?}"
    );
    watcher.recv_message(&topic, "before");
    client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_4_8_0_1_a_violation_keeps_a_stored_session() {
    let (id, topic) = (unique("c"), topic());
    let mut raw = super::resume(&id, false);
    raw.subscribe(&topic, 1);
    raw.send(&[0x00, 0x00]);
    raw.expect_closed();
    client().publish_qos1(&topic, "x", 1);
    super::resume(&id, true).recv_message(&topic, "x");
}

#[test]
fn a_packet_over_the_servers_limit_closes_the_connection_before_it_is_sent_in_full() {
    if crate::support::external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    // limits.max_packet_size is 1 MiB unless set; the header alone says that this one has 256 MiB.
    expect_violation("PUBLISH", &[0x30, 0xff, 0xff, 0xff, 0x7f]);
    expect_violation("SUBSCRIBE", &[0x82, 0xff, 0xff, 0xff, 0x7f, 0, 1]);
    super::expect_no_connack("CONNECT", &[0x10, 0xff, 0xff, 0xff, 0x7f]);
}

#[test]
fn a_client_that_closes_its_sending_side_is_gone() {
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    let address = Node::shared().address("mqtt");
    let stream = std::net::TcpStream::connect(address).unwrap();
    let half = stream.try_clone().unwrap();
    let mut raw = Raw::over(stream, V311);
    let will = crate::support::Will::new(&topic, "half closed");
    assert_eq!(
        raw.hand_shake(&Connect::new(V311, unique("c")).will(will))
            .reason,
        0
    );
    raw.send(&Subscribe::new(1).filter("some/filter", 0).bytes(V311));
    half.shutdown(std::net::Shutdown::Write).unwrap();
    raw.packets_until_closed();
    watcher.recv_message(&topic, "half closed");
}
