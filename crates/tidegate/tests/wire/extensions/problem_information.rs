//! Reason strings: sent where the client allows them and the node's configuration does.

use super::*;

fn reason_string(packet: &Packet) -> Option<&str> {
    packet
        .property(property::REASON_STRING)
        .map(|value| match value {
            Value::String(text) => text.as_str(),
            other => panic!("a reason string that is {other:?}"),
        })
}

fn disconnected_for_qos_3(node: &Node, properties: Props) -> Packet {
    let mut raw = Raw::connect(node, &connect(&unique("c")).properties(properties));
    raw.send(&Publish::new("a", "x").qos(3, 1).bytes(5));
    raw.expect_disconnect(reason::MALFORMED)
}

#[test]
fn a_disconnect_has_a_reason_string() {
    let Some(node) = node_with(&[]) else { return };
    let packet = disconnected_for_qos_3(node, Props::new());
    let text = reason_string(&packet).unwrap_or_default();
    assert!(text.contains("PUBLISH"), "{packet:?}");
}

#[test]
fn a_rejected_connect_has_a_reason_string() {
    let Some(node) = node_with(&[]) else { return };
    let mut raw = Raw::open(node, 5);
    let properties = Props::new().u16(property::RECEIVE_MAXIMUM, 0);
    let connack = raw.hand_shake(&connect(&unique("c")).properties(properties));
    assert_eq!(connack.reason, reason::PROTOCOL_ERROR);
    let text = reason_string(&connack).unwrap_or_default();
    assert!(
        text.to_lowercase().contains("receive maximum"),
        "{connack:?}"
    );
}

#[test]
fn a_rejected_subscription_has_a_reason_string() {
    let Some(node) = node_with(&[]) else { return };
    let mut raw = client(node);
    raw.send(&Subscribe::new(1).filter("a/#/b", 0).bytes(5));
    let suback = raw.recv(kind::SUBACK);
    assert_eq!(suback.payload, [reason::FILTER_INVALID]);
    assert!(reason_string(&suback).is_some(), "{suback:?}");
}

#[test]
fn what_succeeds_needs_no_reason() {
    let Some(node) = node_with(&[]) else { return };
    let topic = unique("t/");
    let (mut raw, connack) = Raw::connect_for_connack(node, &connect(&unique("c")));
    assert_eq!(reason_string(&connack), None);
    raw.send(&Subscribe::new(1).filter(&topic, 0).bytes(5));
    raw.recv_exactly(&[0x90, 4, 0, 1, 0, 0]);
    raw.send(&Unsubscribe::new(2).filter(&topic).bytes(5));
    raw.recv_exactly(&[0xb0, 4, 0, 2, 0, 0]);
    raw.send_publish(&Publish::new(&topic, "x").qos(1, 3));
    let puback = raw.recv(kind::PUBACK);
    assert_eq!(puback.properties, []);
}

#[test]
fn a_client_that_wants_none_gets_none_but_in_connack_and_disconnect() {
    let Some(node) = node_with(&[]) else { return };
    let properties = Props::new().byte(property::REQUEST_PROBLEM_INFO, 0);
    let mut raw = Raw::connect(node, &connect(&unique("c")).properties(properties));
    raw.send(&Subscribe::new(1).filter("a/#/b", 0).bytes(5));
    raw.recv_exactly(&[0x90, 4, 0, 1, 0, reason::FILTER_INVALID]);
    raw.send_publish(&Publish::new("$SYS/x", "x").qos(1, 2));
    assert_eq!(raw.recv(kind::PUBACK).properties, []);
    // The user properties of messages are not meant [MQTT-3.1.2-29].
    let topic = unique("t/");
    raw.subscribe(&topic, 0);
    let user = Props::new().pair(property::USER, "k", "v");
    raw.send_publish(&Publish::new(&topic, "x").properties(user));
    assert_eq!(raw.recv_message(&topic, "x").properties.len(), 1);
}

#[test]
fn they_can_be_turned_off() {
    let Some(node) = node_with(&["limits.send_reason_strings=false"]) else {
        return;
    };
    let packet = disconnected_for_qos_3(node, Props::new());
    assert_eq!(packet.properties, []);
    let mut raw = client(node);
    raw.send(&Subscribe::new(1).filter("a/#/b", 0).bytes(5));
    raw.recv_exactly(&[0x90, 4, 0, 1, 0, reason::FILTER_INVALID]);
}

#[test]
fn a_reason_string_gives_way_to_the_maximum_packet_size() {
    let Some(node) = node_with(&[]) else { return };
    for size in [20, 30, 40, 64] {
        let properties = Props::new().u32(property::MAXIMUM_PACKET_SIZE, size);
        let mut raw = Raw::connect(node, &connect(&unique("c")).properties(properties.clone()));
        raw.send(&Subscribe::new(1).filter("a/#/b", 0).bytes(5));
        assert!(raw.recv(kind::SUBACK).bytes.len() <= size as usize);
        let packet = disconnected_for_qos_3(node, properties);
        assert!(packet.bytes.len() <= size as usize, "{packet:?}");
    }
}
