//! WebSocket frames: how MQTT may be cut into them, control frames between, and what is a protocol error (RFC 6455).

use std::io::Write;
use std::net::TcpStream;

use crate::support::{
    Connect, Node, Packet, Publish, Subscribe, WsStream, kind, masked_frame, unique, upgrade,
};

const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
const BINARY_MORE: u8 = 0x02;
const CONTINUE_MORE: u8 = 0x00;
const CONTINUE: u8 = 0x80;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

const PINGREQ: [u8; 2] = [0xc0, 0x00];
const PINGRESP: [u8; 2] = [0xd0, 0x00];

fn open() -> WsStream {
    open_with_socket().0
}

/// With the socket itself, for bytes that are no proper frames.
fn open_with_socket() -> (WsStream, TcpStream) {
    let (socket, head) = upgrade(Node::shared().address("ws"), "/mqtt", Some("mqtt"));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    (WsStream::over(socket.try_clone().unwrap()), socket)
}

fn connected() -> WsStream {
    connected_with_socket().0
}

fn connected_with_socket() -> (WsStream, TcpStream) {
    let (mut ws, socket) = open_with_socket();
    ws.send_frame(BINARY, &Connect::new(5, unique("frame")).bytes());
    expect_connack(&mut ws);
    (ws, socket)
}

fn recv(ws: &mut WsStream) -> (u8, Vec<u8>) {
    ws.recv_frame()
        .unwrap()
        .expect("a frame, not the end of the connection")
}

/// The MQTT bytes of the next frames, `length` of them; the node may cut them as it likes.
fn recv_mqtt(ws: &mut WsStream, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let (first_byte, payload) = recv(ws);
        assert!(
            matches!(first_byte & 0x0f, 0 | 2),
            "a data frame: {first_byte:#04x}"
        );
        bytes.extend(payload);
    }
    assert_eq!(bytes.len(), length, "{bytes:02x?}");
    bytes
}

fn expect_connack(ws: &mut WsStream) {
    let (first_byte, bytes) = recv(ws);
    assert_eq!(first_byte, BINARY);
    let connack = Packet::parse(&bytes, 5);
    assert_eq!(
        (connack.kind, connack.reason),
        (kind::CONNACK, 0),
        "{connack:?}"
    );
}

fn ping(ws: &mut WsStream) {
    ws.send_frame(BINARY, &PINGREQ);
    assert_eq!(recv_mqtt(ws, 2), PINGRESP);
}

/// The node must send a close frame with this code and end the connection. An MQTT DISCONNECT may come before.
fn expect_close(ws: &mut WsStream, code: u16) {
    loop {
        let (first_byte, payload) = recv(ws);
        if first_byte == CLOSE {
            assert!(payload.len() >= 2, "a close frame with a code");
            assert_eq!(u16::from_be_bytes([payload[0], payload[1]]), code);
            break;
        }
        assert_eq!(first_byte, BINARY, "{payload:02x?}");
    }
    assert!(
        matches!(ws.recv_frame(), Ok(None) | Err(_)),
        "the end of the connection"
    );
}

#[test]
fn several_packets_may_share_a_frame() {
    let mut ws = open();
    let topic = unique("ws/several/");
    let mut bytes = Connect::new(5, unique("frame")).bytes();
    bytes.extend(Subscribe::new(1).filter(&topic, 0).bytes(5));
    bytes.extend(Publish::new(&topic, "a").bytes(5));
    bytes.extend(PINGREQ);
    ws.send_frame(BINARY, &bytes);
    let mut stream = Vec::new();
    // The last two bytes to come are the PINGRESP: its own message may be delivered before or after.
    let wanted = Publish::new(&topic, "a").bytes(5);
    while !(stream.windows(2).any(|bytes| bytes == PINGRESP)
        && stream.windows(wanted.len()).any(|bytes| bytes == wanted))
    {
        let (_, payload) = recv(&mut ws);
        stream.extend(payload);
    }
    assert_eq!(stream[0], kind::CONNACK << 4);
}

#[test]
fn mqtt_6_0_0_2_a_packet_may_span_frames() {
    let mut ws = open();
    let connect = Connect::new(5, unique("frame")).bytes();
    for byte in &connect {
        ws.send_frame(BINARY, &[*byte]);
    }
    expect_connack(&mut ws);
    // The end of one packet and the beginning of the next in one frame.
    ws.send_frame(BINARY, &[0xc0]);
    ws.send_frame(BINARY, &[0x00, 0xc0]);
    ws.send_frame(BINARY, &[0x00]);
    assert_eq!(recv_mqtt(&mut ws, 4), [PINGRESP, PINGRESP].concat());
}

#[test]
fn a_message_may_be_fragmented() {
    let mut ws = open();
    let connect = Connect::new(5, unique("frame")).bytes();
    let (head, tail) = connect.split_at(5);
    ws.send_frame(BINARY_MORE, head);
    ws.send_frame(CONTINUE_MORE, &[]);
    ws.send_frame(CONTINUE_MORE, &tail[..3]);
    ws.send_frame(CONTINUE, &tail[3..]);
    expect_connack(&mut ws);
    ping(&mut ws);
}

#[test]
fn empty_frames_do_no_harm() {
    let mut ws = connected();
    for _ in 0..100 {
        ws.send_frame(BINARY, &[]);
    }
    ping(&mut ws);
}

#[test]
fn ping_is_answered_by_pong_also_within_a_message() {
    let mut ws = connected();
    for payload in [&b""[..], b"are you there", &[7; 125]] {
        ws.send_frame(PING, payload);
        assert_eq!(recv(&mut ws), (PONG, payload.to_vec()));
    }
    ws.send_frame(BINARY_MORE, &PINGREQ[..1]);
    ws.send_frame(PING, b"between");
    assert_eq!(recv(&mut ws), (PONG, b"between".to_vec()));
    ws.send_frame(CONTINUE, &PINGREQ[1..]);
    assert_eq!(recv_mqtt(&mut ws, 2), PINGRESP);
}

#[test]
fn a_pong_nobody_asked_for_is_ignored() {
    let mut ws = connected();
    ws.send_frame(PONG, b"hello");
    ping(&mut ws);
}

#[test]
fn mqtt_6_0_0_1_text_frames_are_rejected() {
    let mut ws = connected();
    ws.send_frame(TEXT, b"{}");
    expect_close(&mut ws, 1003);

    let mut ws = open();
    ws.send_frame(TEXT, &Connect::new(5, unique("frame")).bytes());
    expect_close(&mut ws, 1003);
}

#[test]
fn close_is_answered_by_close() {
    let mut ws = connected();
    ws.send_frame(CLOSE, &1000u16.to_be_bytes());
    expect_close(&mut ws, 1000);
}

#[test]
fn disconnect_ends_the_websocket_properly() {
    let mut ws = connected();
    ws.send_frame(BINARY, &[0xe0, 0x00]);
    expect_close(&mut ws, 1000);
}

#[test]
fn protocol_errors_are_closed_with_1002() {
    // Each as the bytes on the wire and what is wrong with them.
    let unmasked = [BINARY, 2, 0xc0, 0x00].to_vec();
    let cases = [
        ("not masked", unmasked),
        ("a reserved bit", masked_frame(BINARY | 0x40, &PINGREQ)),
        ("an unknown opcode", masked_frame(0x83, &PINGREQ)),
        ("an unknown control opcode", masked_frame(0x8b, b"")),
        ("nothing to continue", masked_frame(CONTINUE, &PINGREQ)),
        ("a long control frame", masked_frame(PING, &[0; 126])),
        ("a fragmented control frame", masked_frame(0x09, b"")),
        ("a close frame of one byte", masked_frame(CLOSE, &[3])),
    ];
    for (what, bytes) in cases {
        println!("{what}");
        let (mut ws, mut socket) = connected_with_socket();
        socket.write_all(&bytes).unwrap();
        expect_close(&mut ws, 1002);
    }
}

#[test]
fn a_new_message_within_a_fragmented_one_is_an_error() {
    let mut ws = connected();
    ws.send_frame(BINARY_MORE, &PINGREQ[..1]);
    ws.send_frame(BINARY, &PINGREQ);
    expect_close(&mut ws, 1002);
}

#[test]
fn malformed_mqtt_in_a_good_frame_gets_its_reason_and_a_close() {
    let mut ws = connected();
    // A PUBLISH with both QoS bits set.
    ws.send_frame(BINARY, &[0x36, 0x00]);
    let (first_byte, payload) = recv(&mut ws);
    assert_eq!(first_byte, BINARY);
    let disconnect = Packet::parse(&payload, 5);
    assert_eq!(
        (disconnect.kind, disconnect.reason),
        (kind::DISCONNECT, 0x81)
    );
    let (first_byte, _) = recv(&mut ws);
    assert_eq!(first_byte, CLOSE);
}

#[test]
fn a_frame_that_claims_to_be_huge_costs_no_memory() {
    let node = Node::shared();
    if crate::support::external().is_some() {
        return testkit::report_skipped("needs a node of its own");
    }
    let before = node.resident_bytes();
    let sockets: Vec<WsStream> = (0..50)
        .map(|_| {
            let (ws, mut socket) = connected_with_socket();
            // 2^62 bytes to come, of which a few do.
            let mut bytes = vec![BINARY, 0x80 | 127];
            bytes.extend((1u64 << 62).to_be_bytes());
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8]);
            socket.write_all(&bytes).unwrap();
            ws
        })
        .collect();
    // Others are served meanwhile, and what was sent has been read by then.
    ping(&mut connected());
    let after = node.resident_bytes();
    assert!(after < before + (64 << 20), "{before} -> {after} bytes");
    drop(sockets);
}
