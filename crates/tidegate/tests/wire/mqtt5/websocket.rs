//! Chapter 6, WebSocket as a transport.
//!
//! Binds clients alone: 6.0.0-3 (offer the sub-protocol `mqtt`; what the server does without it is tested).

use super::*;
use crate::support::{WsStream, upgrade};

/// An upgraded stream, or none where the broker has no WebSocket listener.
fn stream() -> Option<WsStream> {
    node()
        .has_listener("ws")
        .then(|| WsStream::connect(node().address("ws")))
}

/// The MQTT bytes in the binary frames that come, until there are `count` of them.
fn receive(stream: &mut WsStream, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        let (first_byte, payload) = stream
            .recv_frame()
            .expect("the connection stands")
            .expect("the server goes on");
        assert!(
            [0x82, 0x02, 0x00, 0x80].contains(&first_byte),
            "no binary frame: {first_byte:#04x}"
        );
        bytes.extend(payload);
    }
    bytes
}

#[test]
fn mqtt5_6_0_0_1_a_text_frame_closes_the_connection() {
    let Some(mut stream) = stream() else { return };
    stream.send_frame(0x81, &connect(&unique("c")).bytes());
    // A close frame may tell why; no CONNACK comes.
    while let Ok(Some((first_byte, payload))) = stream.recv_frame() {
        assert_eq!(first_byte, 0x88, "{payload:02x?}");
    }
}

#[test]
fn mqtt5_6_0_0_1_a_text_frame_later_closes_the_connection_too() {
    let Some(mut stream) = stream() else { return };
    stream.send_frame(0x82, &connect(&unique("c")).bytes());
    assert_eq!(receive(&mut stream, 2)[0], 0x20);
    stream.send_frame(0x81, &[0xc0, 0x00]);
    while let Ok(Some((first_byte, payload))) = stream.recv_frame() {
        let disconnect = first_byte == 0x82 && payload[0] == 0xe0;
        assert!(disconnect || first_byte == 0x88, "{payload:02x?}");
    }
}

#[test]
fn mqtt5_6_0_0_1_the_server_sends_binary_frames() {
    let Some(mut stream) = stream() else { return };
    stream.send_frame(0x82, &connect(&unique("c")).bytes());
    receive(&mut stream, 5);
    stream.send_frame(0x82, &[0xc0, 0x00]);
    assert_eq!(receive(&mut stream, 2), [0xd0, 0x00]);
}

#[test]
fn mqtt5_6_0_0_2_packets_need_not_be_aligned_with_frames() {
    let Some(mut stream) = stream() else { return };
    let connect = connect(&unique("c")).bytes();
    // One packet in many frames, some of them empty ...
    for byte in &connect {
        stream.send_frame(0x82, &[*byte]);
        stream.send_frame(0x82, &[]);
    }
    let connack = receive(&mut stream, 5);
    assert_eq!((connack[0], connack[3]), (0x20, 0x00));
    // ... many packets and a half in one frame, the other half in a message of fragments.
    stream.send_frame(0x82, &[0xc0, 0x00, 0xc0, 0x00, 0xc0]);
    stream.send_frame(0x02, &[0x00, 0xc0]);
    stream.send_frame(0x00, &[0x00]);
    stream.send_frame(0x80, &[0xc0, 0x00]);
    assert_eq!(receive(&mut stream, 10), [0xd0, 0x00].repeat(5));
}

#[test]
fn mqtt5_6_0_0_3_a_client_that_does_not_offer_mqtt_gets_no_sub_protocol() {
    if !node().has_listener("ws") {
        return;
    }
    for offer in [None, Some("soap"), Some("mqttv99, wamp")] {
        let (_, head) = upgrade(node().address("ws"), "/mqtt", offer);
        let head = head.to_lowercase();
        assert!(
            !head.contains("sec-websocket-protocol: "),
            "a sub-protocol that was not offered: {head}"
        );
        // It may be rejected, or let in without a sub-protocol, which browsers then take for a failure.
        assert!(
            head.is_empty() || head.starts_with("http/1.1 4") || head.starts_with("http/1.1 101"),
            "{head}"
        );
    }
}

#[test]
fn mqtt5_6_0_0_4_the_server_selects_mqtt() {
    if !node().has_listener("ws") {
        return;
    }
    for offer in ["mqtt", "soap, mqtt", "mqtt,soap", "wamp, mqtt , soap"] {
        let (socket, head) = upgrade(node().address("ws"), "/mqtt", Some(offer));
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(
            head.to_lowercase()
                .contains("\r\nsec-websocket-protocol: mqtt\r\n"),
            "{offer}: {head}"
        );
        let mut raw = Raw::over(WsStream::over(socket), 5);
        assert_eq!(raw.hand_shake(&connect(&unique("c"))).reason, 0);
    }
}

#[test]
fn mqtt5_section_6_a_session_goes_on_over_websocket() {
    let Some(stream) = stream() else { return };
    let id = unique("c");
    let topic = unique("ws/");
    let mut raw = Raw::connect(node(), &session(&id, 60));
    raw.subscribe(&topic, 2);
    raw.disconnect();
    client().publish_qos2(&topic, vec![b'x'; 100_000], 1);
    let mut raw = Raw::over(stream, 5);
    let connack = raw.hand_shake(&session(&id, 0));
    assert!(connack.session_present);
    let message = raw.recv_message(&topic, vec![b'x'; 100_000]);
    raw.acknowledge(&message);
    raw.ping();
}
