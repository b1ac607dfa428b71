//! The answer to a WebSocket handshake: whole at once and piece by piece mean the same.
//!
//! The first byte is the size of the pieces. `ACCEPT` stands for what the key of the request asks for, as the key is
//! another one each time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ws::{ClientHandshake, ClientRequest, accept_key};

fuzz_target!(|data: &[u8]| {
    let [piece, bytes @ ..] = data else {
        return;
    };
    let request = ClientRequest {
        host: "localhost:8083",
        path: "/mqtt",
        subprotocols: &["mqtt"],
        headers: &[],
    };
    let start = || ClientHandshake::start(&request).expect("the request is valid");
    let (mut handshake, sent) = start();
    let bytes_for = |sent: &[u8]| replace(bytes, b"ACCEPT", accept_of(sent).as_bytes());
    let answer = bytes_for(&sent);
    let whole = handshake.feed(&answer);
    if let Ok(Some(accepted)) = &whole {
        assert!(accepted.consumed <= answer.len());
        assert!(matches!(
            accepted.subprotocol.as_deref(),
            None | Some("mqtt")
        ));
    }
    let (mut handshake, sent) = start();
    let answer = bytes_for(&sent);
    let piece = usize::from(*piece).max(1);
    for end in (piece..answer.len()).step_by(piece).chain([answer.len()]) {
        match (handshake.feed(&answer[..end]), &whole) {
            (Ok(None), _) if end < answer.len() => {}
            (Ok(None), Ok(None)) => {}
            (Ok(Some(step)), Ok(Some(whole))) => {
                assert_eq!(step.consumed, whole.consumed);
                return;
            }
            (Err(_), Err(_)) => return,
            (step, whole) => panic!("in pieces {step:?}, whole {whole:?}"),
        }
    }
});

fn accept_of(request: &[u8]) -> String {
    let request = std::str::from_utf8(request).expect("the request is text");
    let key = request
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "))
        .expect("the request has a key");
    accept_key(key)
}

fn replace(bytes: &[u8], name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(&byte) = rest.first() {
        match rest.strip_prefix(name) {
            Some(behind) => {
                out.extend_from_slice(value);
                rest = behind;
            }
            None => {
                out.push(byte);
                rest = &rest[1..];
            }
        }
    }
    out
}
