//! Compression of messages (permessage-deflate, RFC 7692), with the cases 12 and 13 of the Autobahn test suite.

use std::sync::LazyLock;

use serde_json::json;
use ws::{Deflater, Inflater};

use super::limits::send_split;
use super::{BINARY, RelayClient, TEXT, new_endpoint};
use crate::api::own_node;
use crate::support::{Node, WsStream, masked_frame, upgrade};

const COMPRESSED: u8 = 0x40;

static COMPRESSING: LazyLock<Node> =
    LazyLock::new(|| Node::start(&["--set", "listener.ws.compression=true", "--shards", "1"]));

/// Connects with this offer; the client and the extension that the node chose.
fn connect(node: &Node, id: &str, offer: &str) -> (RelayClient, Option<String>) {
    let fields = format!("tidegate-relay\r\nSec-WebSocket-Extensions: {offer}");
    let (socket, head) = upgrade(node.address("ws"), &format!("/ws/{id}"), Some(&fields));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let chosen = head
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Extensions: "));
    let chosen = chosen.map(str::to_owned);
    (RelayClient(WsStream::over(socket)), chosen)
}

fn compressing(node: &Node, id: &str) -> RelayClient {
    let (client, chosen) = connect(node, id, "permessage-deflate; client_max_window_bits");
    assert_eq!(
        chosen.as_deref(),
        Some("permessage-deflate; server_no_context_takeover; client_no_context_takeover")
    );
    client
}

fn compressed(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(Deflater::default().deflate(payload, &mut out));
    out
}

fn inflated(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let result = Inflater::default().inflate(payload, true, &mut out, 1 << 24);
    assert_eq!(result.unwrap(), (payload.len(), true));
    out
}

/// A message as its receiver understands it: whether it was compressed, opcode and payload.
fn receive(client: &mut RelayClient) -> (bool, u8, Vec<u8>) {
    let (first_byte, payload) = client.receive().expect("a frame");
    match first_byte & COMPRESSED != 0 {
        true => (true, first_byte & !COMPRESSED, inflated(&payload)),
        false => (false, first_byte, payload),
    }
}

/// Parts one after the other, cut at exactly this length.
fn parts_of(length: usize, part: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for n in 0.. {
        if bytes.len() >= length {
            break;
        }
        bytes.extend(part(n));
    }
    bytes.truncate(length);
    bytes
}

/// Text that can be compressed, of exactly this length.
fn text_of(length: usize) -> Vec<u8> {
    parts_of(length, |n| {
        format!("{{\"sensor\":{n},\"value\":{}}}\n", n * 37 % 101).into_bytes()
    })
}

/// A bitmap whose grey changes slowly.
fn bitmap_of(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 512 / 4 + n / 512) as u8).collect()
}

/// A poem in UTF-8, cut within a character now and then.
fn poem_of(length: usize) -> Vec<u8> {
    parts_of(length, |n| {
        format!("Vers {n}: Über allen Gipfeln ist Ruh, in allen Wipfeln spürest du\n").into_bytes()
    })
}

fn html_of(length: usize) -> Vec<u8> {
    parts_of(length, |n| {
        format!(
            "<tr class=\"row\"><td>{n}</td><td>{}</td></tr>\n",
            n * n % 977
        )
        .into_bytes()
    })
}

/// A document of text and parts that are compressed already.
fn document_of(length: usize) -> Vec<u8> {
    let noise = noise_of(1 << 16);
    parts_of(length, |n| {
        let mut part = format!(
            "{n:06} 0 obj << /Length 32 /Filter /FlateDecode /Type /XObject /Subtype /Form >> stream\n"
        )
        .into_bytes();
        part.extend(&noise[n * 32 % noise.len()..][..32]);
        part
    })
}

fn noise_of(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

const AUTOBAHN_SIZES: [usize; 10] = [16, 64, 256, 1024, 4096, 8192, 16384, 32768, 65536, 131_072];

/// Sizes and fragments of the cases 11 to 18 of each kind, and single bytes.
const AUTOBAHN_FRAGMENTS: [(usize, usize); 9] = [
    (8192, 256),
    (16384, 256),
    (32768, 256),
    (65536, 256),
    (131_072, 256),
    (131_072, 1024),
    (131_072, 4096),
    (131_072, 32768),
    (300, 1),
];

/// Opcode, content, and whether it can be compressed.
type PayloadKind = (u8, fn(usize) -> Vec<u8>, bool);

/// Autobahn 12.1.1 to 12.5.10: what the sender compresses, or does not, reaches all receivers, compressed for those who have
/// negotiated it. The suite sends a JSON file, a bitmap, a text in German, a page and a document; the last kind here cannot be
/// compressed.
#[test]
fn autobahn_12_compressed_messages_of_all_sizes() {
    if !own_node() {
        return;
    }
    const KINDS: [PayloadKind; 6] = [
        (TEXT, text_of, true),
        (BINARY, bitmap_of, true),
        (BINARY, poem_of, true),
        (TEXT, html_of, true),
        (BINARY, document_of, true),
        (BINARY, noise_of, false),
    ];
    let node = &*COMPRESSING;
    let id = new_endpoint(node, json!({"mode": "direct"}));
    let mut sender = compressing(node, &id);
    let mut receivers = [compressing(node, &id), compressing(node, &id)];
    let mut plain = RelayClient::connect(node, &id);
    for (kind, (opcode, payload_of, is_compressible)) in (1..).zip(KINDS) {
        for (number, size) in (1..).zip(AUTOBAHN_SIZES) {
            let payload = payload_of(size);
            // The suite sends a thousand of each.
            let repeated = if size > 4096 { 1 } else { 10 };
            for compresses in [false, is_compressible && size > 100].repeat(repeated) {
                match compresses {
                    true => sender
                        .0
                        .send_frame(opcode | COMPRESSED, &compressed(&payload)),
                    false => sender.0.send_frame(opcode, &payload),
                }
                for receiver in &mut receivers {
                    let received = receive(receiver);
                    let expected = (is_compressible && size >= 256, opcode, payload.clone());
                    assert!(received == expected, "12.{kind}.{number}, {size} bytes");
                }
                assert!(plain.receive().unwrap() == (opcode, payload.clone()));
            }
        }
    }
}

/// Autobahn 12.1.11 to 12.1.18: fragments of one compressed message. Only the first is marked; control frames between
/// them are not compressed.
#[test]
fn autobahn_12_1_11_fragments_of_compressed_messages() {
    if !own_node() {
        return;
    }
    let node = &*COMPRESSING;
    let id = new_endpoint(node, json!({"mode": "direct"}));
    let mut sender = compressing(node, &id);
    let mut receiver = RelayClient::connect(node, &id);
    for (size, fragment_bytes) in AUTOBAHN_FRAGMENTS {
        let payload = text_of(size);
        let whole = compressed(&payload);
        for (n, fragment) in whole.chunks(fragment_bytes).enumerate() {
            let opcode = if n == 0 { 0x01 | COMPRESSED } else { 0x00 };
            sender.0.send_frame(opcode, fragment);
        }
        sender.0.send_frame(0x89, b"ping in between");
        sender.0.send_frame(0x80, b"");
        let pong = sender.receive().unwrap();
        assert_eq!(pong, (0x8a, b"ping in between".to_vec()));
        assert!(receiver.receive().unwrap() == (TEXT, payload), "{size}");
    }
}

/// Autobahn 13.1 to 13.7: offers of parameters, with the sizes and fragments of each.
#[test]
fn autobahn_13_offered_parameters() {
    if !own_node() {
        return;
    }
    let node = &*COMPRESSING;
    let id = new_endpoint(node, json!({"mode": "direct"}));
    let mut sender = RelayClient::connect(node, &id);
    const CHOSEN: &str =
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
    for (case, offer, more) in [
        ("13.1", "permessage-deflate", Some("")),
        (
            "13.2",
            "permessage-deflate; server_no_context_takeover",
            Some(""),
        ),
        (
            "13.3",
            "permessage-deflate; server_max_window_bits=9",
            Some("; server_max_window_bits=9"),
        ),
        (
            "13.4",
            "permessage-deflate; server_max_window_bits=15",
            Some(""),
        ),
        (
            "13.5",
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=9",
            Some("; server_max_window_bits=9"),
        ),
        (
            "13.6",
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=15",
            Some(""),
        ),
        (
            "13.7",
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=9, \
             permessage-deflate; server_no_context_takeover, permessage-deflate",
            Some("; server_max_window_bits=9"),
        ),
        (
            "unknown",
            "permessage-deflate; x=1, x-webkit-deflate-frame",
            None,
        ),
    ] {
        let (mut receiver, chosen) = connect(node, &id, offer);
        let expected = more.map(|more| format!("{CHOSEN}{more}"));
        assert_eq!(chosen, expected, "{case}");
        for size in AUTOBAHN_SIZES {
            let payload = text_of(size);
            sender.0.send_frame(TEXT, &payload);
            // A small window would not hold a longer message.
            let most = match more {
                Some("") => usize::MAX,
                Some(_) => 512,
                None => 0,
            };
            let is_compressed = (256..=most).contains(&size);
            let received = receive(&mut receiver);
            assert!(
                received == (is_compressed, TEXT, payload),
                "{case}, {size} bytes"
            );
        }
        if more.is_none() {
            continue;
        }
        // The other direction, in fragments: 13.x.11 to 13.x.18.
        for (size, fragment_bytes) in AUTOBAHN_FRAGMENTS {
            let payload = text_of(size);
            let whole = compressed(&payload);
            let count = whole.chunks(fragment_bytes).count();
            for (n, fragment) in (1..).zip(whole.chunks(fragment_bytes)) {
                let first = if n == 1 { 0x01 | COMPRESSED } else { 0x00 };
                let last = if n == count { 0x80 } else { 0x00 };
                receiver.0.send_frame(first | last, fragment);
            }
            let received = sender.receive().unwrap();
            assert!(received == (TEXT, payload), "{case}, {size} bytes back");
        }
    }
}

#[test]
fn a_compressed_frame_may_be_split_at_every_byte() {
    if !own_node() {
        return;
    }
    let node = &*COMPRESSING;
    let id = new_endpoint(node, json!({"mode": "direct"}));
    let elsewhere = new_endpoint(node, json!({}));
    let (mut sender, mut receiver) = (compressing(node, &id), compressing(node, &id));
    let mut other = RelayClient::join(node, &elsewhere);
    let text = text_of(300);
    let frame = masked_frame(TEXT | COMPRESSED, &compressed(&text));
    for at in 1..frame.len() {
        send_split(&mut sender, &mut other, &frame, at);
        assert_eq!(receive(&mut receiver), (true, TEXT, text.clone()), "{at}");
    }
}

#[test]
fn compression_is_off_unless_it_is_set() {
    if !own_node() {
        return;
    }
    let node = Node::shared();
    let id = new_endpoint(node, json!({"mode": "direct"}));
    let (mut client, chosen) = connect(node, &id, "permessage-deflate");
    assert_eq!(chosen, None);
    client
        .0
        .send_frame(TEXT | COMPRESSED, &compressed(&text_of(300)));
    assert_eq!(client.expect_close().0, 1002);
}

#[test]
fn messages_that_break_the_extension_close_the_connection() {
    if !own_node() {
        return;
    }
    let node = &*COMPRESSING;
    let definition = json!({"mode": "direct", "max_message_bytes": 100_000});
    let id = new_endpoint(node, definition);
    let mut witness = RelayClient::connect(node, &id);
    let mut not_utf8 = text_of(300);
    not_utf8[200] = 0xff;
    let bomb = compressed(&vec![b'0'; 10_000_000]);
    assert!(bomb.len() < 100_000, "its length alone is not refused");
    let two_frames = [
        masked_frame(0x01 | COMPRESSED, &compressed(&text_of(300))),
        masked_frame(0x80 | COMPRESSED, b""),
    ];
    for (case, bytes, code) in [
        ("no compressed data", masked_frame(0xc1, &[0xff; 20]), 1007),
        (
            "text that is not UTF-8",
            masked_frame(0xc1, &compressed(&not_utf8)),
            1007,
        ),
        ("a compressed ping", masked_frame(0xc9, b"ping"), 1002),
        ("a continuation that is marked", two_frames.concat(), 1002),
        ("another reserved bit", masked_frame(0xe1, b"x"), 1002),
        ("a bomb", masked_frame(0xc2, &bomb), 1009),
        (
            "one byte more than the limit",
            masked_frame(0xc2, &compressed(&text_of(100_001))),
            1009,
        ),
        (
            "a frame longer than any",
            masked_frame(0xc2, &noise_of(114_000)),
            1009,
        ),
    ] {
        let mut client = compressing(node, &id);
        client.0.send_bytes(&bytes);
        assert_eq!(client.expect_close().0, code, "{case}");
    }
    let mut client = compressing(node, &id);
    let payload = text_of(100_000);
    client
        .0
        .send_frame(BINARY | COMPRESSED, &compressed(&payload));
    assert!(witness.receive().unwrap() == (BINARY, payload));
}

/// An unfinished compressed message holds a window, which counts as memory, and ends as any other unfinished message does.
#[test]
fn an_unfinished_compressed_message_is_cut_off() {
    if !own_node() {
        return;
    }
    let config = "limits.max_partial_packet_bytes_per_shard = '1MiB'\nlimits.packet_timeout_s = 2\n\
                  [[listener]]\nname = 'ws'\nbind = '127.0.0.1:0'\ncompression = true\n";
    let node = Node::start_with_config(&["--shards", "1"], config);
    let id = new_endpoint(&node, json!({"mode": "direct"}));
    let begin = || {
        let mut client = compressing(&node, &id);
        // An empty block: nothing is decompressed yet.
        let empty = [0x00, 0x00, 0x00, 0xff, 0xff];
        client.0.send_frame(0x01 | COMPRESSED, &empty);
        client
    };
    // A listener may use half of the memory, which is enough for the windows of 11.
    let mut clients: Vec<RelayClient> = (0..11).map(|_| begin()).collect();
    for client in &mut clients {
        client.0.send_frame(0x89, b"");
        assert_eq!(client.receive().unwrap().0, 0x8a);
    }
    let mut one_more = begin();
    assert_eq!(one_more.expect_close(), (1008, "quota_exceeded".into()));
    for client in &mut clients {
        assert_eq!(client.expect_close().0, 1008);
    }
}
