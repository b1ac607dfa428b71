//! WebSocket frames: whole at once and piece by piece mean the same, and bounds hold whatever arrives.
//!
//! The first byte chooses role, handling of text and a bound on messages, the second the size of the pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ws::{Decoder, DecoderEvent, DecoderOptions, MAX_UNCONSUMED_BYTES, Role, close_codes};

#[derive(Debug, PartialEq)]
enum Seen {
    Message {
        is_binary: bool,
        payload: Vec<u8>,
    },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
    Error(u16),
    /// A message that the end of the bytes left open.
    Open(Vec<u8>),
}

fuzz_target!(|data: &[u8]| {
    let [choice, piece, bytes @ ..] = data else {
        return;
    };
    let options = DecoderOptions {
        role: if choice & 1 == 0 {
            Role::Server
        } else {
            Role::Client
        },
        refuse_text: choice & 2 != 0,
        max_message_bytes: if choice & 4 == 0 { 64 } else { u64::MAX },
    };
    let whole = read(options, bytes, bytes.len());
    let pieces = read(options, bytes, usize::from(*piece).max(1));
    assert_eq!(whole, pieces);
});

/// Reads as a connection does: what is not consumed stays in front of the next piece.
fn read(options: DecoderOptions, bytes: &[u8], piece: usize) -> Vec<Seen> {
    let mut decoder = Decoder::new(options);
    let mut buffer = Vec::new();
    let mut message = Vec::new();
    let mut seen = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        buffer.extend_from_slice(piece);
        let mut at = 0;
        while take_event(&mut decoder, &mut buffer, &mut at, &mut message, &mut seen) {}
        buffer.drain(..at);
        assert!(buffer.len() <= MAX_UNCONSUMED_BYTES);
    }
    if !decoder.is_closed() && !message.is_empty() {
        seen.push(Seen::Open(message));
    }
    seen
}

/// Whether there was an event.
fn take_event(
    decoder: &mut Decoder,
    buffer: &mut [u8],
    at: &mut usize,
    message: &mut Vec<u8>,
    seen: &mut Vec<Seen>,
) -> bool {
    let available = buffer.len() - *at;
    let step = match decoder.decode(&mut buffer[*at..]) {
        Ok(step) => step,
        Err(error) => {
            assert!(matches!(
                error.code,
                close_codes::PROTOCOL_ERROR
                    | close_codes::UNSUPPORTED_DATA
                    | close_codes::INVALID_PAYLOAD
                    | close_codes::MESSAGE_TOO_BIG
            ));
            assert!(decoder.is_closed());
            seen.push(Seen::Error(error.code));
            *at = buffer.len();
            return false;
        }
    };
    assert!(step.consumed <= available);
    *at += step.consumed;
    match step.event {
        None => return false,
        Some(DecoderEvent::Data {
            chunk,
            is_binary,
            is_end_of_message,
        }) => {
            message.extend_from_slice(chunk);
            if is_end_of_message {
                let payload = std::mem::take(message);
                if !is_binary {
                    assert!(std::str::from_utf8(&payload).is_ok());
                }
                seen.push(Seen::Message {
                    is_binary,
                    payload,
                });
            }
        }
        Some(DecoderEvent::Ping(payload)) => {
            assert!(payload.len() <= 125);
            seen.push(Seen::Ping(payload.to_vec()));
        }
        Some(DecoderEvent::Pong(payload)) => seen.push(Seen::Pong(payload.to_vec())),
        Some(DecoderEvent::Close { code, reason }) => {
            assert!(decoder.is_closed());
            seen.push(Seen::Close(code, reason.to_owned()));
        }
    }
    assert!(step.consumed > 0, "an event takes bytes");
    true
}
