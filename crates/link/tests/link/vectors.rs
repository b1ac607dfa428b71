//! The test vectors of `docs/internals/link.md`.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use content::RangeSet;
use content::{ContentDigest, DigestAlgorithm};
use link::error_code::ErrorCode;
use link::priority::Priority;
use link::wire::control::{
    Accept, Cancel, Done, GOAWAY_FLAG_FINAL, GoAway, Open, StreamKind, TransferId,
    WINDOW_FLAG_DATA, encode_ack, encode_window,
};
use link::wire::entries::put_entry;
use link::wire::handshake::{
    Credentials, Hello, InitialCredit, LaneState, Limits, LinkId, StreamState, Welcome,
};
use link::wire::header::FrameType;
use link::wire::reader::FrameReader;
use link::wire::writer::FrameWriter;

const DOCUMENT: &str = include_str!("../../../../docs/internals/link.md");

struct VectorTable {
    table: String,
    all: Vec<u8>,
    frames: usize,
}

impl VectorTable {
    fn add(
        &mut self,
        text: &str,
        frame_type: FrameType,
        flags: u8,
        stream: u32,
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut payload = Vec::new();
        fill(&mut payload);
        let mut writer = FrameWriter::default();
        writer.push(frame_type, flags, stream, &payload, Bytes::new());
        self.add_written(text, writer);
    }

    fn add_written(&mut self, text: &str, mut writer: FrameWriter) {
        let mut slices = VecDeque::new();
        writer.take(&mut slices);
        let bytes: Vec<u8> = slices.into_iter().flatten().collect();
        let mut hex = String::new();
        for byte in &bytes {
            hex.push_str(&format!("{byte:02x}"));
        }
        self.table.push_str(&format!("| {text} | `{hex}` |\n"));
        self.all.extend(bytes);
        self.frames += 1;
    }
}

fn ranges(list: &[(u64, u64)]) -> RangeSet {
    list.iter().map(|(start, end)| *start..*end).collect()
}

fn vectors() -> VectorTable {
    let mut vectors = VectorTable {
        table: "| frame | bytes |\n|---|---|\n".to_owned(),
        all: Vec::new(),
        frames: 0,
    };
    let limits = Limits {
        max_frame_bytes: 1_048_640,
        message_window_bytes: 16 << 20,
        data_window_bytes: 64 << 20,
        stream_window_bytes: 8 << 20,
        max_streams: 1024,
        horizon: 1 << 20,
        idle_timeout_ms: 30_000,
    };
    let credit = InitialCredit {
        message_bytes: 16 << 20,
        data_bytes: 64 << 20,
    };
    let lanes: [LaneState; 4] = std::array::from_fn(|lane| LaneState {
        first: lane as u64 + 1,
        received: ranges(&[(0, 5), (7, 9)]),
    });
    let hello = Hello {
        min_version: 1,
        max_version: 1,
        link_id: LinkId(std::array::from_fn(|index| index as u8)),
        limits,
        credit,
        lanes: lanes.clone(),
        credentials: Credentials::Token("secret".to_owned()),
        streams: Vec::new(),
        client_id: String::new(),
    };
    let text = "HELLO: versions 1 to 1, link id 00 to 0f, default limits, all credit, lanes from 1, 2, 3 and 4 with received 0 to 4 and 7 to 8, token `secret`";
    vectors.add(text, FrameType::Hello, 0, 0, |out| hello.encode(out));
    let hello = Hello {
        client_id: "gateway-7".to_owned(),
        ..hello
    };
    let text = "HELLO: the same with client id `gateway-7`";
    vectors.add(text, FrameType::Hello, 0, 0, |out| hello.encode(out));
    let welcome = Welcome {
        version: 1,
        is_resumed: true,
        limits,
        credit,
        lanes,
        streams: Vec::new(),
    };
    let text = "WELCOME: known link, otherwise as HELLO";
    vectors.add(text, FrameType::Welcome, 0, 0, |out| welcome.encode(out));
    let welcome = Welcome {
        streams: vec![StreamState {
            priority: Priority::Bulk,
            number: 7,
            credit: 8 << 20,
            received: ranges(&[(0, 65_536), (131_072, 131_073)]),
        }],
        ..welcome
    };
    let text =
        "WELCOME: the same with stream 7, bulk, credit 8 MiB, received 0 to 65,535 and 131,072";
    vectors.add(text, FrameType::Welcome, 0, 0, |out| welcome.encode(out));
    let mut writer = FrameWriter::default();
    let mut entries = BytesMut::new();
    for message in ["a", "", "bc"] {
        put_entry(&mut entries, message.as_bytes());
    }
    writer.push_messages(2, 300, entries.freeze());
    vectors.add_written("MESSAGES: normal, 300 to 302: `a`, empty, `bc`", writer);
    let open = Open {
        kind: StreamKind::Stream,
        is_resume: true,
        number: 7,
        transfer_id: TransferId([0xaa; 16]),
        size: Some(1_000_000),
        digest: Some(DigestAlgorithm::Sha256),
        metadata: b"name".to_vec(),
    };
    let text = "OPEN: bulk, stream 5, resume, number 7, transfer id 16 times aa, size 1,000,000, SHA-256, metadata `name`";
    vectors.add(text, FrameType::Open, 3, 5, |out| open.encode(out));
    let accept = Accept {
        credit: 8 << 20,
        received: ranges(&[(0, 65_536), (131_072, 131_073)]),
    };
    let text = "ACCEPT: stream 5, credit 8 MiB, received 0 to 65,535 and 131,072";
    vectors.add(text, FrameType::Accept, 3, 5, |out| accept.encode(out));
    let rejection = Cancel {
        number: 7,
        code: ErrorCode::STORAGE_FAILED,
        text: "disk full".to_owned(),
    };
    let text = "REJECT: stream 5, number 7, code 11, `disk full`";
    vectors.add(text, FrameType::Reject, 3, 5, |out| rejection.encode(out));
    vectors.add(
        "DATA: stream 5, offset 65,536, `data`",
        FrameType::Data,
        3,
        5,
        |out| {
            out.extend_from_slice(&65_536_u64.to_le_bytes());
            out.extend_from_slice(b"data");
        },
    );
    let done = Done {
        size: 1_000_000,
        digest: Some(ContentDigest {
            algorithm: DigestAlgorithm::Blake3,
            bytes: [0xbb; 32],
        }),
    };
    let text = "DONE: stream 5, size 1,000,000, BLAKE3 32 times bb";
    vectors.add(text, FrameType::Done, 3, 5, |out| done.encode(out));
    vectors.add(
        "ACK: normal messages 0 to 302",
        FrameType::Ack,
        2,
        0,
        |out| {
            encode_ack(&ranges(&[(0, 303)]), out);
        },
    );
    let text = "ACK: stream 5, bytes 65,536 to 131,071";
    vectors.add(text, FrameType::Ack, 3, 5, |out| {
        encode_ack(&ranges(&[(65_536, 131_072)]), out);
    });
    let text = "WINDOW: all streams, 72 MiB";
    vectors.add(text, FrameType::Window, WINDOW_FLAG_DATA, 0, |out| {
        encode_window(72 << 20, out);
    });
    let cancel = Cancel {
        number: 7,
        code: ErrorCode::CANCELLED,
        text: String::new(),
    };
    let text = "CANCEL: number 7 of priority bulk, code 9, no text";
    vectors.add(text, FrameType::Cancel, 3, 0, |out| cancel.encode(out));
    let ping = 0x0102_0304_0506_0708_u64.to_le_bytes();
    vectors.add("PING: 08 to 01", FrameType::Ping, 0, 0, |out| {
        out.extend_from_slice(&ping)
    });
    vectors.add("PONG: 08 to 01", FrameType::Pong, 0, 0, |out| {
        out.extend_from_slice(&ping)
    });
    let goaway = GoAway {
        code: ErrorCode::SHUTTING_DOWN,
        text: "bye".to_owned(),
    };
    let text = "GOAWAY: final, code 12, `bye`";
    vectors.add(text, FrameType::GoAway, GOAWAY_FLAG_FINAL, 0, |out| {
        goaway.encode(out)
    });
    assert_eq!(Hello::decode(&encoded(|out| hello.encode(out))), Ok(hello));
    assert_eq!(
        Welcome::decode(&encoded(|out| welcome.encode(out))),
        Ok(welcome)
    );
    assert_eq!(Open::decode(&encoded(|out| open.encode(out))), Ok(open));
    assert_eq!(
        Accept::decode(&encoded(|out| accept.encode(out))),
        Ok(accept)
    );
    assert_eq!(
        Cancel::decode(&encoded(|out| rejection.encode(out))),
        Ok(rejection)
    );
    assert_eq!(Done::decode(&encoded(|out| done.encode(out))), Ok(done));
    assert_eq!(
        GoAway::decode(&encoded(|out| goaway.encode(out))),
        Ok(goaway)
    );
    vectors
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

#[test]
fn the_document_has_the_bytes_of_this_implementation() {
    let table = vectors().table;
    assert!(
        DOCUMENT.contains(&table),
        "docs/internals/link.md must contain this table; a change of existing lines is a new protocol version:\n{table}"
    );
}

#[test]
fn frames_come_out_of_pieces_of_any_size() {
    let vectors = vectors();
    for piece in [1, 2, 3, 7, 16, 17, 100, vectors.all.len()] {
        let mut reader = FrameReader::new();
        let mut frames = 0;
        for bytes in vectors.all.chunks(piece) {
            reader.push(bytes);
            while reader.next_frame().unwrap().is_some() {
                frames += 1;
            }
        }
        assert_eq!(frames, vectors.frames, "pieces of {piece}");
    }
}

#[test]
fn truncated_payloads_are_rejected() {
    let vectors = vectors();
    let mut reader = FrameReader::new();
    reader.push(&vectors.all);
    // Without a field that is left out, a payload is one of these.
    let mut complete = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        complete.push(frame.payload.clone());
        for len in 0..frame.payload.len() {
            let part = &frame.payload[..len];
            let is_rejected = match frame.frame_type {
                FrameType::Hello => Hello::decode(part).is_err(),
                FrameType::Welcome => Welcome::decode(part).is_err(),
                FrameType::Open => Open::decode(part).is_err(),
                FrameType::Accept => Accept::decode(part).is_err(),
                FrameType::Reject | FrameType::Cancel => Cancel::decode(part).is_err(),
                FrameType::Done => Done::decode(part).is_err(),
                FrameType::GoAway => GoAway::decode(part).is_err(),
                _ => true,
            };
            // An empty list of streams means the same as none.
            let is_hello = frame.frame_type == FrameType::Hello && part.ends_with(&[0]);
            let is_same = |payload| Hello::decode(payload) == Hello::decode(part);
            let is_rejected = is_rejected || is_hello && complete.iter().any(|it| is_same(it));
            let is_rejected = is_rejected || complete.iter().any(|payload| payload == part);
            assert!(is_rejected, "{:?} of {len} bytes", frame.frame_type);
        }
    }
}
