//! MQTT over WebSocket (chapter 6).

use std::io::{Read, Write};

use super::{V311, subscriber, topic};
use crate::support::{
    Connect, Node, Publish, Raw, Subscribe, WsStream, external, kind, unique, upgrade,
};

/// The address of the WebSocket listener; none if another broker has none.
fn address() -> Option<&'static str> {
    let node = Node::shared();
    (external().is_none() || node.has_listener("ws")).then(|| node.address("ws"))
}

fn connect_bytes() -> Vec<u8> {
    Connect::new(V311, unique("c")).bytes()
}

/// Frames until the connection ends. Returns the status code of the close frame, if one came.
fn frames_until_closed(stream: &mut WsStream) -> (Vec<(u8, Vec<u8>)>, Option<u16>) {
    let mut frames = Vec::new();
    let mut status = None;
    while let Ok(Some((first_byte, payload))) = stream.recv_frame() {
        if first_byte == 0x88 {
            status = payload
                .get(..2)
                .map(|code| u16::from_be_bytes(code.try_into().unwrap()));
            // The closing handshake's other half lets the server end the connection.
            stream.send_frame(0x88, &payload);
        } else {
            frames.push((first_byte, payload));
        }
    }
    (frames, status)
}

#[test]
fn mqtt_6_0_0_1_packets_travel_in_binary_frames() {
    let Some(address) = address() else { return };
    let mut stream = WsStream::connect(address);
    stream.send_frame(0x82, &connect_bytes());
    assert_eq!(
        stream.recv_frame().unwrap(),
        Some((0x82, vec![0x20, 2, 0, 0]))
    );
    stream.send_frame(0x82, &[0xc0, 0]);
    assert_eq!(stream.recv_frame().unwrap(), Some((0x82, vec![0xd0, 0])));
}

#[test]
fn mqtt_6_0_0_1_a_text_frame_closes_the_connection() {
    let Some(address) = address() else { return };
    let mut stream = WsStream::connect(address);
    stream.send_frame(0x81, b"hello");
    let (frames, _) = frames_until_closed(&mut stream);
    assert!(frames.is_empty(), "{frames:?}");
    // Also later, and even if the text happens to be a packet.
    let mut stream = WsStream::connect(address);
    stream.send_frame(0x82, &connect_bytes());
    assert_eq!(
        stream.recv_frame().unwrap(),
        Some((0x82, vec![0x20, 2, 0, 0]))
    );
    stream.send_frame(0x81, &Publish::new("a", "x").bytes(V311));
    let (frames, status) = frames_until_closed(&mut stream);
    assert!(frames.is_empty(), "{frames:?}");
    if external().is_none() {
        assert_eq!(status, Some(1003), "the close frame's status");
    }
}

#[test]
fn mqtt_6_0_0_2_a_frame_may_hold_many_packets() {
    let Some(address) = address() else { return };
    let topic = topic();
    let mut bytes = connect_bytes();
    bytes.extend(Subscribe::new(1).filter(&topic, 0).bytes(V311));
    for number in 0..100 {
        bytes.extend(Publish::new(&topic, format!("{number}")).bytes(V311));
    }
    bytes.extend([0xc0, 0]);
    let mut raw = Raw::over(WsStream::connect(address), V311);
    raw.send(&bytes);
    raw.recv_exactly(&[0x20, 2, 0, 0]);
    // The SUBACK may come after messages, the rest is in order.
    let mut packets: Vec<_> = (0..102).map(|_| raw.recv_packet()).collect();
    packets.retain(|packet| packet.bytes != [0x90, 3, 0, 1, 0]);
    assert_eq!(packets.len(), 101);
    assert_eq!(packets.remove(100).bytes, [0xd0, 0]);
    for (number, packet) in packets.iter().enumerate() {
        assert_eq!(packet.text(), number.to_string());
    }
}

#[test]
fn mqtt_6_0_0_2_a_packet_may_be_spread_over_frames() {
    let Some(address) = address() else { return };
    let topic = topic();
    let mut raw = Raw::over(WsStream::connect(address), V311);
    for byte in connect_bytes() {
        raw.send(&[byte]);
    }
    raw.recv_exactly(&[0x20, 2, 0, 0]);
    raw.subscribe(&topic, 0);
    let payload = vec![b'p'; 300];
    // Two packets, cut where neither begins.
    let bytes = [
        Publish::new(&topic, &payload).bytes(V311),
        Publish::new(&topic, "two").bytes(V311),
    ]
    .concat();
    for piece in bytes.chunks(97) {
        raw.send(piece);
    }
    raw.recv_message(&topic, &payload);
    raw.recv_message(&topic, "two");
    raw.ping();
}

#[test]
fn mqtt_6_0_0_2_a_packet_may_be_spread_over_the_fragments_of_a_message() {
    let Some(address) = address() else { return };
    let mut stream = WsStream::connect(address);
    let bytes = connect_bytes();
    stream.send_frame(0x02, &bytes[..5]);
    // A control frame may come between fragments.
    stream.send_frame(0x89, b"are you there");
    stream.send_frame(0x00, &bytes[5..9]);
    stream.send_frame(0x80, &bytes[9..]);
    assert_eq!(
        stream.recv_frame().unwrap(),
        Some((0x8a, b"are you there".to_vec()))
    );
    assert_eq!(
        stream.recv_frame().unwrap(),
        Some((0x82, vec![0x20, 2, 0, 0]))
    );
}

#[test]
fn mqtt_6_0_0_2_frames_may_be_spread_over_segments() {
    let Some(address) = address() else { return };
    let (mut socket, head) = upgrade(address, "/mqtt", Some("mqtt"));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let frame = crate::support::masked_frame(0x82, &connect_bytes());
    for byte in frame {
        socket.write_all(&[byte]).unwrap();
    }
    let mut answer = [0; 6];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x82, 4, 0x20, 2, 0, 0]);
}

#[test]
fn mqtt_6_0_0_4_the_server_selects_the_sub_protocol_mqtt() {
    let Some(address) = address() else { return };
    for offer in ["mqtt", "mqttv3.1, mqtt", "mqtt, mqttv3.1", "chat,mqtt"] {
        let (_socket, head) = upgrade(address, "/mqtt", Some(offer));
        assert!(head.starts_with("HTTP/1.1 101 "), "{offer}: {head}");
        let selected: Vec<&str> = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-protocol"))
            .map(|(_, value)| value.trim())
            .collect();
        assert_eq!(selected, ["mqtt"], "{offer}: {head}");
    }
}

#[test]
fn mqtt_6_websocket_the_upgrade_is_confirmed_with_the_right_key() {
    let Some(address) = address() else { return };
    let (_socket, head) = upgrade(address, "/mqtt", Some("mqtt"));
    // The example of RFC 6455, section 1.3.
    let accept = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("sec-websocket-accept")
            .then(|| value.trim())
    });
    assert_eq!(accept, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
}

#[test]
fn mqtt_6_websocket_clients_and_tcp_clients_exchange_messages() {
    let Some(address) = address() else { return };
    let topic = topic();
    let mut tcp = subscriber(&topic, 2);
    let mut ws = Raw::over(WsStream::connect(address), V311);
    assert_eq!(ws.hand_shake(&Connect::new(V311, unique("c"))).reason, 0);
    ws.subscribe(&topic, 2);
    for payload in [vec![b's'; 10], vec![b'm'; 1000], vec![b'l'; 100_000]] {
        ws.send_publish(&Publish::new(&topic, &payload).qos(1, 1));
        let mut packets = [ws.recv_packet(), ws.recv_packet()];
        packets.sort_by_key(|packet| packet.kind);
        assert!(packets[0].payload == payload);
        assert_eq!(packets[1].bytes, [0x40, 2, 0, 1]);
        ws.acknowledge(&packets[0]);
        let message = tcp.recv_message(&topic, &payload);
        tcp.acknowledge(&message);
    }
}

#[test]
fn mqtt_6_websocket_the_end_of_the_connection_publishes_the_will() {
    let Some(address) = address() else { return };
    let topic = topic();
    let mut watcher = subscriber(&topic, 0);
    let will =
        |text: &str| Connect::new(V311, unique("c")).will(crate::support::Will::new(&topic, text));
    // Closed by the WebSocket closing handshake, without DISCONNECT.
    let mut stream = WsStream::connect(address);
    stream.send_frame(0x82, &will("close frame").bytes());
    assert_eq!(
        stream.recv_frame().unwrap(),
        Some((0x82, vec![0x20, 2, 0, 0]))
    );
    stream.send_frame(0x88, &1000_u16.to_be_bytes());
    watcher.recv_message(&topic, "close frame");
    // Cut.
    let mut stream = WsStream::connect(address);
    stream.send_frame(0x82, &will("cut").bytes());
    assert_eq!(
        stream.recv_frame().unwrap(),
        Some((0x82, vec![0x20, 2, 0, 0]))
    );
    drop(stream);
    watcher.recv_message(&topic, "cut");
    // DISCONNECT.
    let mut raw = Raw::over(WsStream::connect(address), V311);
    assert_eq!(raw.hand_shake(&will("discarded")).reason, 0);
    raw.send(&[0xe0, 0]);
    raw.expect_closed();
    super::client().publish(&topic, "marker");
    watcher.recv_message(&topic, "marker");
}

#[test]
fn mqtt_6_websocket_frames_that_are_not_masked_close_the_connection() {
    let Some(address) = address() else { return };
    let (mut socket, _) = upgrade(address, "/mqtt", Some("mqtt"));
    let connect = connect_bytes();
    socket.write_all(&[0x82, connect.len() as u8]).unwrap();
    socket.write_all(&connect).unwrap();
    let (frames, _) = frames_until_closed(&mut WsStream::over(socket));
    assert!(
        frames.iter().all(|(first_byte, _)| *first_byte == 0x88),
        "{frames:?}"
    );
}

#[test]
fn mqtt_6_websocket_another_path_or_no_upgrade_is_rejected_in_words() {
    let Some(address) = address() else { return };
    if external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let (_socket, head) = upgrade(address, "/other", Some("mqtt"));
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    let mut socket = std::net::TcpStream::connect(address).unwrap();
    socket
        .set_read_timeout(Some(crate::support::DEADLINE))
        .unwrap();
    socket
        .write_all(b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    let _ = socket.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

#[test]
fn mqtt_6_websocket_kinds_of_packets_are_the_same() {
    let Some(address) = address() else { return };
    let mut raw = Raw::over(WsStream::connect(address), V311);
    raw.send(&Publish::new("a", "x").bytes(V311));
    let packets = raw.packets_until_closed();
    assert!(
        packets.iter().all(|packet| packet.kind != kind::CONNACK),
        "{packets:?}"
    );
}
