//! Frames of the link protocol: whole at once and piece by piece mean the same, and a link handles whatever they contain.
//!
//! The first byte chooses the size of the pieces. Then follow frames of a type, flags, a stream, a length and a payload;
//! headers and checksums are made of them, because chance would never find valid ones.
#![no_main]

use std::collections::VecDeque;
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use content::RangeSet;
use libfuzzer_sys::fuzz_target;
use link::config::LinkConfig;
use link::core::{LinkCore, LinkEvent};
use link::priority::Priority;
use link::wire::handshake::{Hello, LinkId};
use link::wire::header::{FrameType, encode_header};
use link::wire::reader::{Frame, FrameReader};

const TYPES: [FrameType; 15] = [
    FrameType::Hello,
    FrameType::Welcome,
    FrameType::Messages,
    FrameType::Open,
    FrameType::Accept,
    FrameType::Reject,
    FrameType::Data,
    FrameType::Done,
    FrameType::Ack,
    FrameType::Window,
    FrameType::Cancel,
    FrameType::Ping,
    FrameType::Pong,
    FrameType::GoAway,
    FrameType::Optional,
];

fuzz_target!(|data: &[u8]| {
    let Some((piece, input)) = data.split_first() else {
        return;
    };
    // The bytes as they are, which nearly always end with an error.
    read(input, input.len().max(1));
    let bytes = encode(input);
    let frames = read(&bytes, bytes.len().max(1));
    assert_eq!(frames, read(&bytes, usize::from(*piece).max(1)));
    run(frames);
});

fn encode(mut input: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while input.len() >= 4 {
        let frame_type = TYPES[usize::from(input.get_u8()) % TYPES.len()];
        let (flags, stream) = (input.get_u8(), u32::from(input.get_u8()));
        let len = usize::from(input.get_u8()).min(input.len());
        let (payload, rest) = input.split_at(len);
        bytes.extend_from_slice(&encode_header(frame_type, flags, stream, &[payload]));
        bytes.extend_from_slice(payload);
        input = rest;
    }
    bytes
}

fn read(bytes: &[u8], piece: usize) -> Vec<Frame> {
    let mut reader = FrameReader::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece) {
        reader.push(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return frames,
            }
        }
    }
    frames
}

/// An accepting end that has something of its own to send.
fn run(frames: Vec<Frame>) {
    let now = Instant::now();
    let config = LinkConfig::default();
    let limits = config.limits;
    let mut core = LinkCore::new(LinkId([1; 16]), config);
    let large = Bytes::from(vec![1; 300_000]);
    for priority in Priority::ALL {
        for payload in [large.slice(..10), large.clone()] {
            core.send(priority, payload).expect("the queue is empty");
        }
    }
    let mut begun = None;
    for frame in frames {
        if frame.frame_type == FrameType::Hello && begun.is_none() {
            let Ok(hello) = Hello::decode(&frame.payload) else {
                return;
            };
            core.accept(&hello, false, now);
            begun = Some(hello);
            continue;
        }
        let result = core.handle_frame(frame, now);
        let mut slices = VecDeque::new();
        core.poll_transmit(now, &mut slices);
        if result.is_err() {
            // The next carrier continues the link with what is left of this one.
            let Some(hello) = &begun else {
                return;
            };
            core.accept(hello, true, now);
        }
        let mut opened = 0;
        while let Some(event) = core.next_event() {
            if let LinkEvent::StreamOpened(info) = event {
                opened += 1;
                core.accept_stream(info.id, &RangeSet::new());
                core.read(info.id);
            }
        }
        assert!(opened <= limits.max_streams);
    }
    while core.next_message().is_some() {}
}
