//! Benchmarks masking, decoding and encoding of frames. `cargo bench -p tidegate-ws`

use std::hint::black_box;
use std::time::Instant;

use ws::{Decoder, DecoderOptions, FrameHeader, Opcode, Role, apply_mask, encode_frame};

fn main() {
    for payload_bytes in [16, 64, 1024, 65_536] {
        let payload = vec![7; payload_bytes];
        let mut data = payload.clone();
        report("mask in place", payload_bytes, 1, || {
            apply_mask(black_box(&mut data), black_box([1, 2, 3, 4]));
        });

        // As read from a socket: as many frames as fit into 64 KiB.
        let frames = (65_536 / (payload_bytes + 14)).max(1);
        let mut sent = Vec::new();
        for _ in 0..frames {
            encode_frame(Opcode::Binary, &payload, Some([1, 2, 3, 4]), &mut sent);
        }
        let mut received = sent.clone();
        let mut decoder = Decoder::new(DecoderOptions::byte_stream(Role::Server));
        report("decode as a server", payload_bytes, frames, || {
            received.copy_from_slice(&sent);
            let mut at = 0;
            while at < received.len() {
                at += black_box(decoder.decode(&mut received[at..]))
                    .expect("what we encoded is valid")
                    .consumed;
            }
        });

        let mut out = Vec::with_capacity(payload_bytes + 14);
        report("encode as a server", payload_bytes, 1, || {
            out.clear();
            encode_frame(Opcode::Binary, black_box(&payload), None, &mut out);
            black_box(&out);
        });
        report("encode a header", payload_bytes, 1, || {
            black_box(FrameHeader::new(
                Opcode::Binary,
                black_box(payload_bytes),
                None,
            ));
        });
    }
}

/// Runs `work`, which handles `frames` frames, repeatedly and prints the best time per frame.
fn report(what: &str, payload_bytes: usize, frames: usize, mut work: impl FnMut()) {
    const ROUNDS: usize = 20;
    let calls = (4_000_000 / (payload_bytes + 64) / frames).max(1);
    let best = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..calls {
                work();
            }
            start.elapsed().as_nanos() as f64 / (calls * frames) as f64
        })
        .fold(f64::INFINITY, f64::min);
    println!(
        "{what:<20} {payload_bytes:>6} B {best:>10.1} ns/frame {:>8.2} GB/s",
        payload_bytes as f64 / best
    );
}
