//! The request of a WebSocket handshake: whole at once and piece by piece have the same answer.
//!
//! The first byte is the size of the pieces, the second the bound on the request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ws::{ServerHandshake, ServerHandshakeStep, ServerOptions};

fuzz_target!(|data: &[u8]| {
    let [piece, bound, bytes @ ..] = data else {
        return;
    };
    let mut options = ServerOptions::mqtt("/mqtt");
    options.max_header_bytes = 64 + usize::from(*bound) * 16;
    options.require_subprotocol = bound & 1 != 0;
    let whole = ServerHandshake::new().feed(&options, bytes);
    check(&whole, bytes);
    let mut handshake = ServerHandshake::new();
    let piece = usize::from(*piece).max(1);
    for end in (piece..bytes.len()).step_by(piece).chain([bytes.len()]) {
        let step = handshake.feed(&options, &bytes[..end]);
        check(&step, &bytes[..end]);
        match (&step, &whole) {
            (ServerHandshakeStep::Incomplete, _) if end < bytes.len() => {}
            (ServerHandshakeStep::Incomplete, ServerHandshakeStep::Incomplete) => {}
            (ServerHandshakeStep::Accepted(step), ServerHandshakeStep::Accepted(whole)) => {
                assert_eq!(step.consumed, whole.consumed);
                assert_eq!(step.response, whole.response);
                return;
            }
            (ServerHandshakeStep::Rejected(_), ServerHandshakeStep::Rejected(_)) => return,
            _ => panic!("in pieces {step:?}, whole {whole:?}"),
        }
    }
});

fn check(step: &ServerHandshakeStep, bytes: &[u8]) {
    match step {
        ServerHandshakeStep::Incomplete => {}
        ServerHandshakeStep::Accepted(accepted) => {
            assert!(accepted.consumed <= bytes.len());
            assert!(bytes[..accepted.consumed].ends_with(b"\n"));
            assert!(accepted.response.starts_with(b"HTTP/1.1 101 "));
            assert!(accepted.response.ends_with(b"\r\n\r\n"));
            // Nothing of the request may end a header of the answer.
            let text = std::str::from_utf8(&accepted.response).expect("the answer is text");
            assert!(text.lines().count() <= 6);
        }
        ServerHandshakeStep::Rejected(rejected) => {
            assert!((400..600).contains(&rejected.status));
            let start = format!("HTTP/1.1 {} ", rejected.status);
            assert!(rejected.response.starts_with(start.as_bytes()));
        }
    }
}
