//! WebSocket frames: whole at once and piece by piece mean the same, and bounds hold whatever arrives.
//!
//! The first byte chooses role, handling of text, a bound on messages, compression and how much is decompressed at a time, the
//! second the size of the pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ws::{
    Decoder, DecoderEvent, DecoderOptions, Inflater, MAX_UNCONSUMED_BYTES, Role, close_codes,
};

/// Bound on a decompressed message.
const MAX_INFLATED_BYTES: usize = 1 << 16;

#[derive(Debug, PartialEq)]
enum DecodedEvent {
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
        has_compression: choice & 8 != 0,
    };
    let room = if choice & 16 == 0 { 3 } else { 1 << 20 };
    let whole = read(options, bytes, bytes.len(), 1 << 20);
    let pieces = read(options, bytes, usize::from(*piece).max(1), room);
    assert_eq!(whole, pieces);
});

/// What has arrived of a message.
#[derive(Default)]
struct PartialMessage {
    payload: Vec<u8>,
    inflater: Inflater,
    /// Bytes decompressed at a time.
    room: usize,
    has_failed: bool,
}

impl PartialMessage {
    /// Appends a piece of a compressed message. False: it is invalid or too long.
    fn inflate(&mut self, chunk: &[u8], is_end: bool) -> bool {
        let mut rest = chunk;
        loop {
            let before = self.payload.len();
            let result = self
                .inflater
                .inflate(rest, is_end, &mut self.payload, self.room);
            assert!(self.payload.len() - before <= self.room);
            let Ok((consumed, is_done)) = result else {
                return false;
            };
            rest = &rest[consumed..];
            if self.payload.len() > MAX_INFLATED_BYTES {
                return false;
            }
            if is_done {
                assert!(rest.is_empty());
                assert_eq!(self.inflater.is_active(), !is_end);
                return true;
            }
        }
    }
}

/// Reads as a connection does: what is not consumed stays in front of the next piece.
fn read(options: DecoderOptions, bytes: &[u8], piece: usize, room: usize) -> Vec<DecodedEvent> {
    let mut decoder = Decoder::new(options);
    let mut buffer = Vec::new();
    let mut message = PartialMessage {
        room,
        ..PartialMessage::default()
    };
    let mut seen = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        buffer.extend_from_slice(piece);
        let mut at = 0;
        while take_event(&mut decoder, &mut buffer, &mut at, &mut message, &mut seen) {}
        buffer.drain(..at);
        assert!(buffer.len() <= MAX_UNCONSUMED_BYTES);
    }
    if !decoder.is_closed() && !message.has_failed && !message.payload.is_empty() {
        seen.push(DecodedEvent::Open(message.payload));
    }
    seen
}

/// Whether there was an event.
fn take_event(
    decoder: &mut Decoder,
    buffer: &mut [u8],
    at: &mut usize,
    message: &mut PartialMessage,
    seen: &mut Vec<DecodedEvent>,
) -> bool {
    if message.has_failed {
        *at = buffer.len();
        return false;
    }
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
            seen.push(DecodedEvent::Error(error.code));
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
            is_compressed,
            is_end_of_message,
        }) => {
            if !is_compressed {
                message.payload.extend_from_slice(chunk);
            } else if !message.inflate(chunk, is_end_of_message) {
                message.has_failed = true;
                seen.push(DecodedEvent::Error(close_codes::INVALID_PAYLOAD));
                return false;
            }
            if is_end_of_message {
                let payload = std::mem::take(&mut message.payload);
                if !is_binary && !is_compressed {
                    assert!(std::str::from_utf8(&payload).is_ok());
                }
                seen.push(DecodedEvent::Message { is_binary, payload });
            }
        }
        Some(DecoderEvent::Ping(payload)) => {
            assert!(payload.len() <= 125);
            seen.push(DecodedEvent::Ping(payload.to_vec()));
        }
        Some(DecoderEvent::Pong(payload)) => seen.push(DecodedEvent::Pong(payload.to_vec())),
        Some(DecoderEvent::Close { code, reason }) => {
            assert!(decoder.is_closed());
            seen.push(DecodedEvent::Close(code, reason.to_owned()));
        }
    }
    assert!(step.consumed > 0, "an event takes bytes");
    true
}
