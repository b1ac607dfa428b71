//! MQTT in compressed WebSocket messages (permessage-deflate, RFC 7692).

use ws::{Deflater, Inflater};

use super::own_node;
use crate::support::{Connect, Node, Packet, Publish, Subscribe, WsStream, kind, unique, upgrade};

const COMPRESSED_BINARY: u8 = 0xc2;

fn compressing() -> (Node, WsStream) {
    let arguments = [
        "listener.ws.compression=true",
        "limits.max_packet_size=8MiB",
    ];
    let node = Node::start(&["--set", arguments[0], "--set", arguments[1]]);
    let ws = open(&node);
    (node, ws)
}

fn open(node: &Node) -> WsStream {
    let fields = "mqtt\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits";
    let (socket, head) = upgrade(node.address("ws"), "/mqtt", Some(fields));
    assert!(head.contains("permessage-deflate"), "{head}");
    WsStream::over(socket)
}

fn send_compressed(ws: &mut WsStream, mqtt: &[u8]) {
    let mut compressed = Vec::new();
    assert!(Deflater::default().deflate(mqtt, &mut compressed));
    ws.send_frame(COMPRESSED_BINARY, &compressed);
}

/// The MQTT bytes of the next frames, `length` of them, and whether any frame was compressed.
fn recv_mqtt(ws: &mut WsStream, length: usize) -> (Vec<u8>, bool) {
    let (mut bytes, mut is_compressed) = (Vec::new(), false);
    while bytes.len() < length {
        let (first_byte, payload) = ws.recv_frame().unwrap().expect("a frame");
        match first_byte {
            COMPRESSED_BINARY => {
                is_compressed = true;
                let result = Inflater::default().inflate(&payload, true, &mut bytes, 1 << 24);
                assert_eq!(result.unwrap(), (payload.len(), true));
            }
            0x82 => bytes.extend(payload),
            other => panic!("{other:#04x}: {payload:02x?}"),
        }
    }
    assert_eq!(bytes.len(), length);
    (bytes, is_compressed)
}

#[test]
fn compressed_packets_are_exchanged() {
    if !own_node() {
        return;
    }
    let (_node, mut ws) = compressing();
    let topic = unique("ws/deflate/");
    ws.send_frame(0x82, &Connect::new(5, unique("deflate")).bytes());
    recv_connack(&mut ws);
    ws.send_frame(0x82, &Subscribe::new(1).filter(&topic, 0).bytes(5));
    let (suback, is_compressed) = recv_mqtt(&mut ws, 6);
    assert_eq!(suback[0] >> 4, kind::SUBACK);
    assert!(!is_compressed, "it is too short");
    // Several packets in one message that expands to more than is processed at a time.
    let publish = Publish::new(&topic, "0123456789".repeat(70_000)).bytes(5);
    send_compressed(&mut ws, &publish.repeat(3));
    let (received, is_compressed) = recv_mqtt(&mut ws, 3 * publish.len());
    assert!(is_compressed);
    assert!(received == publish.repeat(3));
}

/// A short message that expands to a million requests: they are processed piece by piece, others are served meanwhile,
/// and the client that does not read its answers is not read any further.
#[test]
fn a_compressed_flood_of_packets_is_processed_in_pieces() {
    if !own_node() {
        return;
    }
    let (node, mut ws) = compressing();
    ws.send_frame(0x82, &Connect::new(5, unique("flood")).bytes());
    recv_connack(&mut ws);
    const PINGS: usize = 4_000_000;
    send_compressed(&mut ws, &[0xc0, 0x00].repeat(PINGS));
    let mut other = open(&node);
    other.send_frame(0x82, &Connect::new(5, unique("other")).bytes());
    recv_connack(&mut other);
    other.send_frame(0x82, &[0xc0, 0x00]);
    assert_eq!(recv_mqtt(&mut other, 2).0, [0xd0, 0x00]);
    let (answers, _) = recv_mqtt(&mut ws, 2 * PINGS);
    assert!(answers == [0xd0, 0x00].repeat(PINGS));
}

fn recv_connack(ws: &mut WsStream) {
    let (_, connack) = ws.recv_frame().unwrap().unwrap();
    assert_eq!(Packet::parse(&connack, 5).kind, kind::CONNACK);
}

#[test]
fn invalid_compressed_data_closes_with_1007() {
    if !own_node() {
        return;
    }
    let (_node, mut ws) = compressing();
    ws.send_frame(COMPRESSED_BINARY, &[0xff; 20]);
    let (first_byte, payload) = ws.recv_frame().unwrap().unwrap();
    assert_eq!(
        (first_byte, &payload[..2]),
        (0x88, &1007_u16.to_be_bytes()[..])
    );
    assert!(
        matches!(ws.recv_frame(), Ok(None) | Err(_)),
        "no other frame"
    );
}
