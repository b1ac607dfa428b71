//! Frames that no correct peer sends, and peers that know more or less than this end.

use content::RangeSet;
use link::config::LinkConfig;
use link::core::{LinkCore, LinkEvent, NewStream, StreamRead};
use link::error_code::{ErrorCode, ProtocolError};
use link::message::MessageId;
use link::priority::Priority;
use link::wire::control::{Open, StreamKind, TransferId};
use link::wire::handshake::Limits;
use link::wire::header::{FrameType, encode_header};

use crate::simulation::{FAST, stream};
use crate::support::{Simulation, content};

/// A server whose client has connected, and then sends frames by hand.
fn server_with(limits: impl FnOnce(&mut Limits)) -> Simulation {
    let mut config = LinkConfig::default();
    limits(&mut config.limits);
    let mut simulation = Simulation::new(config);
    simulation.connect();
    simulation.run(FAST, |simulation| {
        simulation.client.core.is_connected() && simulation.server.core.is_connected()
    });
    simulation
}

/// Passes a frame to the server.
fn receive(
    simulation: &mut Simulation,
    frame_type: FrameType,
    stream: u32,
    payload: &[u8],
) -> Result<(), ProtocolError> {
    let mut bytes = encode_header(frame_type, 0, stream, &[payload]).to_vec();
    bytes.extend_from_slice(payload);
    let server = &mut simulation.server;
    server.reader.push(&bytes);
    let frame = server.reader.next_frame().unwrap().unwrap();
    server.core.handle_frame(frame, simulation.now)
}

#[test]
fn messages_before_an_invalid_one_do_not_exist() {
    // Number 2, before number 1; then an entry that is longer than the frame.
    for (first, expected) in [(2, 0), (1, 0)] {
        let mut simulation = server_with(|_| {});
        let payload = [first, 1, b'a', 9, b'b'];
        receive(&mut simulation, FrameType::Messages, 0, &payload).unwrap_err();
        simulation.connect();
        for _ in 0..3 {
            simulation.step(FAST);
        }
        assert_eq!(simulation.server.messages.len(), expected);
        // Their numbers can be used.
        receive(&mut simulation, FrameType::Messages, 0, &[first, 1, b'a']).unwrap();
        simulation.server.collect();
        assert_eq!(simulation.server.messages.len(), expected + 1);
    }
}

#[test]
fn frames_without_messages_are_rejected() {
    let mut simulation = server_with(|_| {});
    for first in [1, 2] {
        let error = receive(&mut simulation, FrameType::Messages, 0, &[first]).unwrap_err();
        assert_eq!(error.code, ErrorCode::PROTOCOL_VIOLATION, "{first}");
    }
}

#[test]
fn content_beyond_the_credit_is_not_read() {
    let mut simulation = server_with(|limits| {
        limits.data_window_bytes = 65_536;
        limits.stream_window_bytes = 131_072;
    });
    let mut open = Vec::new();
    Open {
        kind: StreamKind::Stream,
        is_resume: false,
        number: 1,
        transfer_id: TransferId([1; 16]),
        size: None,
        digest: None,
        metadata: Vec::new(),
    }
    .encode(&mut open);
    receive(&mut simulation, FrameType::Open, 1, &open).unwrap();
    let id = MessageId {
        priority: Priority::ALL[0],
        number: 1,
    };
    simulation.server.core.accept_stream(id, &RangeSet::new());
    let data = [0; 8 + 70_000];
    let error = receive(&mut simulation, FrameType::Data, 1, &data).unwrap_err();
    assert_eq!(error.code, ErrorCode::LIMIT_EXCEEDED);
    assert_eq!(simulation.server.core.read(id), StreamRead::Pending);
}

#[test]
fn messages_of_a_restarted_server_arrive_although_their_numbers_were_used_before() {
    let mut simulation = Simulation::new(LinkConfig::default());
    simulation.connect();
    for number in 0..3 {
        let payload = content(100, number);
        let core = &mut simulation.server.core;
        core.send(Priority::High, payload).unwrap();
    }
    simulation.run(FAST, |simulation| simulation.client.messages.len() == 3);
    simulation.cut();
    let id = simulation.server.core.id();
    simulation.server.core = LinkCore::new(id, LinkConfig::default());
    simulation.server_knows_link = false;
    simulation.connect();
    let core = &mut simulation.server.core;
    core.send(Priority::High, content(100, 3)).unwrap();
    simulation.run(FAST, |simulation| simulation.client.messages.len() == 4);
    let last = simulation.client.messages.pop().unwrap();
    assert!(last.payload.into_bytes() == content(100, 3));
    assert!(simulation.client.events.contains(&LinkEvent::PeerStateLost));
}

/// The first new content arrives as soon as a handshake permits: the sender does not ask what the receiver has.
#[test]
fn a_stream_continues_without_another_round_trip() {
    for is_client in [true, false] {
        let mut simulation = Simulation::new(LinkConfig::default());
        simulation.connect();
        simulation.run(FAST, |simulation| {
            simulation.client.core.is_connected() && simulation.server.core.is_connected()
        });
        let piece = content(40_000, 1);
        let from = match is_client {
            true => &mut simulation.client.core,
            false => &mut simulation.server.core,
        };
        let new = NewStream {
            digest: None,
            ..stream(Priority::Bulk, None)
        };
        let id = from.open_stream(new).unwrap();
        let mut offset = 0;
        let mut end = 0;
        let mut steps_after_connecting = None;
        for step in 0..200 {
            let now = simulation.now;
            let (from, to) = match is_client {
                true => (&mut simulation.client.core, &mut simulation.server.core),
                false => (&mut simulation.server.core, &mut simulation.client.core),
            };
            while from.write(id, offset, piece.clone()).is_ok() {
                offset += piece.len() as u64;
            }
            to.accept_stream(id, &Default::default());
            while let StreamRead::Chunk(chunk) = to.read(id) {
                assert_eq!(chunk.offset, end, "repeated or out of order");
                end = chunk.range().end;
                to.acknowledge_data(id, chunk.range(), now);
                if step >= 100 {
                    steps_after_connecting.get_or_insert(step - 100);
                }
            }
            if step == 99 {
                assert!(end > 0);
                simulation.connect();
            } else {
                simulation.step(FAST);
            }
        }
        // HELLO, WELCOME and content take a step each; that of the accepting end needs no answer to WELCOME.
        let limit = if is_client { 4 } else { 3 };
        assert!(
            steps_after_connecting.unwrap() <= limit,
            "{is_client} {steps_after_connecting:?}"
        );
        assert!(simulation.violation.is_none());
    }
}
