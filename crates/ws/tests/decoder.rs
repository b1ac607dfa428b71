//! The decoder against RFC 6455: its examples, its rules, and streams split at arbitrary positions.

use proptest::prelude::*;
use ws::{
    Decoder, DecoderEvent, DecoderOptions, MAX_UNCONSUMED_BYTES, Opcode, Role, close_codes,
    encode_close, encode_frame,
};

/// An item as seen by a reader of whole messages.
#[derive(Debug, Clone, PartialEq)]
enum DecodedItem {
    Message { binary: bool, payload: Vec<u8> },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    Error(u16),
}

fn options(role: Role) -> DecoderOptions {
    DecoderOptions {
        role,
        refuse_text: false,
        max_message_bytes: 1 << 20,
        has_compression: false,
    }
}

/// Feeds `pieces` one after the other and retains unconsumed bytes, as a connection does.
fn read(options: DecoderOptions, pieces: &[&[u8]]) -> Vec<DecodedItem> {
    let mut decoder = Decoder::new(options);
    let mut buffer = Vec::new();
    let mut message = Vec::new();
    let mut seen = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let step = match decoder.decode(&mut buffer[at..]) {
                Ok(step) => step,
                Err(error) => {
                    seen.push(DecodedItem::Error(error.code));
                    continue;
                }
            };
            match step.event {
                None => {
                    at += step.consumed;
                    break;
                }
                Some(DecoderEvent::Data {
                    chunk,
                    is_binary: binary,
                    is_end_of_message: end_of_message,
                    ..
                }) => {
                    message.extend_from_slice(chunk);
                    if end_of_message {
                        let payload = std::mem::take(&mut message);
                        seen.push(DecodedItem::Message { binary, payload });
                    }
                }
                Some(DecoderEvent::Ping(payload)) => seen.push(DecodedItem::Ping(payload.to_vec())),
                Some(DecoderEvent::Pong(payload)) => seen.push(DecodedItem::Pong(payload.to_vec())),
                Some(DecoderEvent::Close { code, reason }) => {
                    seen.push(DecodedItem::Close(code, reason.to_owned()))
                }
            }
            assert!(step.consumed > 0, "an event takes bytes");
            at += step.consumed;
        }
        buffer.drain(..at);
        assert!(
            buffer.len() <= MAX_UNCONSUMED_BYTES,
            "{} bytes held back",
            buffer.len()
        );
    }
    seen
}

fn read_whole(role: Role, bytes: &[u8]) -> Vec<DecodedItem> {
    read(options(role), &[bytes])
}

fn text(payload: &str) -> DecodedItem {
    DecodedItem::Message {
        binary: false,
        payload: payload.into(),
    }
}

#[test]
fn the_examples_of_section_5_7() {
    let unmasked_hello = [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
    assert_eq!(read_whole(Role::Client, &unmasked_hello), [text("Hello")]);
    let masked_hello = [
        0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
    ];
    assert_eq!(read_whole(Role::Server, &masked_hello), [text("Hello")]);
    let fragments = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
    assert_eq!(read_whole(Role::Client, &fragments), [text("Hello")]);
    let ping = [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
    assert_eq!(
        read_whole(Role::Client, &ping),
        [DecodedItem::Ping(b"Hello".to_vec())]
    );
    let pong = [
        0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
    ];
    assert_eq!(
        read_whole(Role::Server, &pong),
        [DecodedItem::Pong(b"Hello".to_vec())]
    );
    for (header, length) in [
        (&[0x82, 0x7E, 0x01, 0x00][..], 256),
        (&[0x82, 0x7F, 0, 0, 0, 0, 0, 1, 0, 0][..], 65536),
    ] {
        let payload = vec![0xA5; length];
        let binary = DecodedItem::Message {
            binary: true,
            payload: payload.clone(),
        };
        assert_eq!(
            read_whole(Role::Client, &[header, &payload].concat()),
            [binary]
        );
    }

    let mut out = Vec::new();
    encode_frame(
        Opcode::Text,
        b"Hello",
        Some([0x37, 0xfa, 0x21, 0x3d]),
        &mut out,
    );
    assert_eq!(out, masked_hello);
    out.clear();
    encode_frame(Opcode::Text, b"Hello", None, &mut out);
    assert_eq!(out, unmasked_hello);
}

#[test]
fn a_byte_stream_gets_payload_before_its_frame_is_whole() {
    let mut frame = Vec::new();
    encode_frame(
        Opcode::Binary,
        b"0123456789",
        Some([9, 8, 7, 6]),
        &mut frame,
    );
    let mut decoder = Decoder::new(DecoderOptions::byte_stream(Role::Server));
    // Only the header is consumed, without an event.
    let step = decoder.decode(&mut frame[..6]).unwrap();
    assert_eq!((step.event, step.consumed), (None, 6));
    for (range, expected, end) in [
        (6..9, &b"012"[..], false),
        (9..10, b"3", false),
        (10..16, b"456789", true),
    ] {
        let step = decoder.decode(&mut frame[range.clone()]).unwrap();
        assert_eq!(step.consumed, range.len());
        let Some(DecoderEvent::Data {
            chunk,
            is_binary: true,
            is_end_of_message: end_of_message,
            ..
        }) = step.event
        else {
            panic!("{step:?}");
        };
        assert_eq!((chunk, end_of_message), (expected, end));
    }
}

#[test]
fn the_state_is_small() {
    assert!(size_of::<Decoder>() < 64, "{} bytes", size_of::<Decoder>());
}

#[test]
fn control_frames_may_come_between_fragments_but_not_messages() {
    let interleaved = [0x01, 0x01, b'a', 0x89, 0x00, 0x80, 0x01, b'b'];
    assert_eq!(
        read_whole(Role::Client, &interleaved),
        [DecodedItem::Ping(vec![]), text("ab")]
    );
    let nested = [0x01, 0x01, b'a', 0x82, 0x00];
    assert_eq!(
        read_whole(Role::Client, &nested),
        [DecodedItem::Error(close_codes::PROTOCOL_ERROR)]
    );
    assert_eq!(
        read_whole(Role::Client, &[0x80, 0x00]),
        [DecodedItem::Error(close_codes::PROTOCOL_ERROR)]
    );
}

#[test]
fn empty_frames_end_messages_and_are_passed_over_inside_them() {
    let empty_fragments = [0x02, 0x00, 0x00, 0x00, 0x80, 0x00, 0x82, 0x00];
    let empty = DecodedItem::Message {
        binary: true,
        payload: vec![],
    };
    assert_eq!(
        read_whole(Role::Client, &empty_fragments),
        [empty.clone(), empty]
    );
}

#[test]
fn text_is_rejected_where_only_bytes_are_spoken() {
    let text = [0x81, 0x80, 0, 0, 0, 0];
    let seen = read(DecoderOptions::byte_stream(Role::Server), &[&text]);
    assert_eq!(seen, [DecodedItem::Error(close_codes::UNSUPPORTED_DATA)]);
}

#[test]
fn text_must_be_utf8_over_fragments() {
    let whole = [0x01, 0x01, 0xC3, 0x80, 0x01, 0xA4];
    assert_eq!(read_whole(Role::Client, &whole), [text("ä")]);
    let cut_off = [0x81, 0x01, 0xC3];
    assert_eq!(
        read_whole(Role::Client, &cut_off),
        [DecodedItem::Error(close_codes::INVALID_PAYLOAD)]
    );
    // Rejected before the frame is complete.
    let wrong = [0x81, 0x7E, 0x40, 0x00, 0xFF];
    assert_eq!(
        read_whole(Role::Client, &wrong),
        [DecodedItem::Error(close_codes::INVALID_PAYLOAD)]
    );
}

#[test]
fn long_messages_are_rejected_at_the_header_that_makes_them_so() {
    let limited = DecoderOptions {
        max_message_bytes: 4,
        ..options(Role::Client)
    };
    assert_eq!(
        read(limited, &[&[0x82, 0x05]]),
        [DecodedItem::Error(close_codes::MESSAGE_TOO_BIG)]
    );
    assert_eq!(
        read(limited, &[&[0x02, 0x03, 1, 2, 3, 0x80, 0x02]]),
        [DecodedItem::Error(close_codes::MESSAGE_TOO_BIG)]
    );
    // The limit applies to each message separately.
    assert_eq!(
        read(limited, &[&[0x82, 0x03, 1, 2, 3, 0x82, 0x03, 1, 2, 3]]).len(),
        2
    );
}

#[test]
fn compressed_messages_are_marked_and_their_content_is_not_checked() {
    let options = DecoderOptions {
        has_compression: true,
        max_message_bytes: 100,
        ..options(Role::Client)
    };
    // Not UTF-8, in two fragments; then a message that is not compressed.
    let mut bytes = [0x41, 0x02, 0xff, 0xfe, 0x80, 0x01, 0xff, 0x81, 0x01, b'a'];
    let mut decoder = Decoder::new(options);
    let mut seen = Vec::new();
    let mut at = 0;
    loop {
        let step = decoder.decode(&mut bytes[at..]).unwrap();
        at += step.consumed;
        match step.event {
            Some(DecoderEvent::Data {
                chunk,
                is_compressed,
                is_end_of_message,
                ..
            }) => seen.push((chunk.to_vec(), is_compressed, is_end_of_message)),
            event => break assert_eq!(event, None),
        }
    }
    let expected = [
        (vec![0xff, 0xfe], true, false),
        (vec![0xff], true, true),
        (vec![b'a'], false, true),
    ];
    assert_eq!(seen, expected);

    // Incompressible content may become longer, but not without bounds.
    assert!(read(options, &[&[0xc2, 125]]).is_empty());
    for too_long in [&[0xc2, 126, 0x10, 0x00][..], &[0x82, 101]] {
        let error = DecodedItem::Error(close_codes::MESSAGE_TOO_BIG);
        assert_eq!(read(options, &[too_long]), [error]);
    }
    // Only the first fragment is marked.
    let marked_twice = [0x41, 0x00, 0xc0, 0x00];
    assert_eq!(
        read(options, &[&marked_twice]),
        [DecodedItem::Error(close_codes::PROTOCOL_ERROR)]
    );
}

#[test]
fn close_frames_are_checked() {
    let cases: [(&[u8], DecodedItem); 6] = [
        (&[0x88, 0x00], DecodedItem::Close(None, String::new())),
        (
            &[0x88, 0x02, 0x03, 0xE8],
            DecodedItem::Close(Some(1000), String::new()),
        ),
        (
            &[0x88, 0x05, 0x0F, 0xA0, b'b', b'y', b'e'],
            DecodedItem::Close(Some(4000), "bye".into()),
        ),
        (
            &[0x88, 0x01, 0x03],
            DecodedItem::Error(close_codes::PROTOCOL_ERROR),
        ),
        (
            &[0x88, 0x02, 0x03, 0xED],
            DecodedItem::Error(close_codes::PROTOCOL_ERROR),
        ),
        (
            &[0x88, 0x03, 0x03, 0xE8, 0xFF],
            DecodedItem::Error(close_codes::INVALID_PAYLOAD),
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(read_whole(Role::Client, bytes), [expected], "{bytes:?}");
    }
}

#[test]
fn nothing_is_read_after_a_close_or_an_error() {
    let mut bytes = Vec::new();
    encode_close(Some(close_codes::GOING_AWAY), "", None, &mut bytes);
    encode_frame(Opcode::Ping, b"", None, &mut bytes);
    assert_eq!(
        read_whole(Role::Client, &bytes),
        [DecodedItem::Close(Some(1001), String::new())]
    );
    let after_error = [0xFF, 0x89, 0x00];
    assert_eq!(
        read_whole(Role::Client, &after_error),
        [DecodedItem::Error(close_codes::PROTOCOL_ERROR)]
    );
}

/// A message with the positions at which it is fragmented, or a control frame.
#[derive(Debug, Clone)]
enum EncodedItem {
    Message {
        text: Option<String>,
        payload: Vec<u8>,
        cuts: Vec<usize>,
        ping_between: bool,
    },
    Control {
        ping: bool,
        payload: Vec<u8>,
    },
}

fn sent() -> impl Strategy<Value = EncodedItem> {
    let payload = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..300),
        1 => proptest::collection::vec(any::<u8>(), 65_530..65_545),
    ];
    let cuts = proptest::collection::vec(0usize..400, 0..4);
    prop_oneof![
        3 => (proptest::option::of(any::<String>()), payload, cuts, any::<bool>()).prop_map(
            |(text, payload, cuts, ping_between)| EncodedItem::Message { text, payload, cuts, ping_between }
        ),
        1 => (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..126))
            .prop_map(|(ping, payload)| EncodedItem::Control { ping, payload }),
    ]
}

/// Encodes the items as a peer would, and returns the expected decoded items.
fn write(all: &[EncodedItem], mask: Option<[u8; 4]>) -> (Vec<u8>, Vec<DecodedItem>) {
    let mut bytes = Vec::new();
    let mut seen = Vec::new();
    for sent in all {
        match sent {
            EncodedItem::Control { ping, payload } => {
                let opcode = if *ping { Opcode::Ping } else { Opcode::Pong };
                encode_frame(opcode, payload, mask, &mut bytes);
                seen.push(if *ping {
                    DecodedItem::Ping(payload.clone())
                } else {
                    DecodedItem::Pong(payload.clone())
                });
            }
            EncodedItem::Message {
                text,
                payload,
                cuts,
                ping_between,
            } => {
                let payload = text
                    .as_ref()
                    .map_or(payload.as_slice(), |text| text.as_bytes());
                let mut cuts: Vec<usize> =
                    cuts.iter().map(|cut| *cut.min(&payload.len())).collect();
                cuts.sort_unstable();
                cuts.push(payload.len());
                let mut start = 0;
                for (index, end) in cuts.iter().copied().enumerate() {
                    let opcode = match (index, text.is_some()) {
                        (0, true) => Opcode::Text,
                        (0, false) => Opcode::Binary,
                        _ => Opcode::Continuation,
                    };
                    let is_final = index + 1 == cuts.len();
                    let fragment = &payload[start..end];
                    bytes.extend_from_slice(
                        ws::FrameHeader::fragment(opcode, is_final, fragment.len(), mask)
                            .as_bytes(),
                    );
                    let at = bytes.len();
                    bytes.extend_from_slice(fragment);
                    if let Some(mask) = mask {
                        ws::apply_mask(&mut bytes[at..], mask);
                    }
                    if !is_final && *ping_between {
                        encode_frame(Opcode::Ping, b"between", mask, &mut bytes);
                        seen.push(DecodedItem::Ping(b"between".to_vec()));
                    }
                    start = end;
                }
                seen.push(DecodedItem::Message {
                    binary: text.is_none(),
                    payload: payload.to_vec(),
                });
            }
        }
    }
    (bytes, seen)
}

fn split<'a>(bytes: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*length).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

proptest! {
    #[test]
    fn encoded_items_decode_at_any_split(
        all in proptest::collection::vec(sent(), 0..6),
        mask: Option<[u8; 4]>,
        lengths in proptest::collection::vec(prop_oneof![1usize..8, 1usize..5000], 1..20),
    ) {
        let role = if mask.is_some() { Role::Server } else { Role::Client };
        let (bytes, expected) = write(&all, mask);
        prop_assert_eq!(read(options(role), &split(&bytes, &lengths)), expected);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_read_the_same_however_they_are_cut(
        bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0x8B, 0u8..4], 0..400),
        is_server: bool,
        lengths in proptest::collection::vec(1usize..40, 1..10),
    ) {
        let role = if is_server { Role::Server } else { Role::Client };
        let whole = read_whole(role, &bytes);
        prop_assert_eq!(read(options(role), &split(&bytes, &lengths)), whole);
    }
}
