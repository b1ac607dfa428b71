//! Telemetry while its store has no room: devices are told, and may send it again.

use serde_json::json;

use super::{ask, connect, latest, product, with_token};
use crate::support::{Node, Publish, Raw, ack, eventually, external, kind, temporary_directory};

const TELEMETRY: &str = "v1/devices/me/telemetry";
const QUOTA_EXCEEDED: u8 = 0x97;

fn config(min_free_bytes: u64) -> String {
    format!("[telemetry]\nmin_free_bytes = {min_free_bytes}\n")
}

/// The reason in the answer to a QoS 1 or 2 message.
fn answer(raw: &mut Raw, publish: Publish) -> u8 {
    raw.send_publish(&publish);
    let packet = raw.recv_packet();
    let expected = match publish.qos {
        1 => kind::PUBACK,
        _ => kind::PUBREC,
    };
    assert_eq!((packet.kind, packet.id()), (expected, publish.packet_id));
    packet.reason
}

fn telemetry(n: u32) -> Publish {
    Publish::new(TELEMETRY, format!("{{\"n\":{n}}}"))
}

#[test]
fn telemetry_is_rejected_until_its_store_has_room() {
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let mut node = Node::spawn(temporary_directory(), &["--shards", "1"], &config(0));
    node.wait_until_it_listens().unwrap();
    for mode in ["sync", "actor"] {
        product(&node, mode, json!({"mode": mode}));
        with_token(&node, &format!("of-{mode}"), mode, json!({}));
    }
    // No disk has so much room.
    let file = node.data_dir().join("tidegate.toml");
    std::fs::write(&file, config(1 << 43)).unwrap();
    node.restart();
    for mode in ["sync", "actor"] {
        let id = format!("of-{mode}");
        let mut raw = connect(&node, &id);
        eventually("the store is full", || {
            answer(&mut raw, telemetry(0).qos(1, 1)) == QUOTA_EXCEEDED
        });
        assert_eq!(answer(&mut raw, telemetry(1).qos(2, 2)), QUOTA_EXCEEDED);
        let path = format!("token-{id}/telemetry");
        let (status, _, problem) = ask(&node, ("POST", &path), "", r#"{"n": 2}"#);
        assert_eq!(status, 507, "{problem}");
        // QoS 0 gets no answer, and what is not for this store is taken.
        raw.send_publish(&telemetry(3));
        let attributes = Publish::new("v1/devices/me/attributes", r#"{"model": "x"}"#);
        assert_ne!(answer(&mut raw, attributes.qos(1, 4)), QUOTA_EXCEEDED);
    }
    std::fs::write(&file, config(0)).unwrap();
    node.restart();
    for mode in ["sync", "actor"] {
        let id = format!("of-{mode}");
        let mut raw = connect(&node, &id);
        assert!(answer(&mut raw, telemetry(5).qos(1, 1)) < 0x80);
        assert!(answer(&mut raw, telemetry(6).qos(2, 2)) < 0x80);
        raw.send(&ack(kind::PUBREL, 2));
        raw.recv(kind::PUBCOMP);
        eventually("it is stored", || latest(&node, &id) == json!({"n": 6}));
    }
}
