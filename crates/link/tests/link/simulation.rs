//! Links under a simulated clock: sizes around every limit, interruptions, damage, priorities, shutdown.

use std::collections::{HashMap, VecDeque};

use crate::support::{Simulation, content};
use bytes::Bytes;
use content::RangeSet;
use content::{ContentHasher, DigestAlgorithm};
use link::config::{AckPolicy, LinkConfig};
use link::core::{LinkEvent, NewStream, OutgoingStreamState, SendError, StreamRead};
use link::error_code::ErrorCode;
use link::message::MessageId;
use link::priority::Priority;
use link::size_class::SizeClass;
use link::wire::control::TransferId;

pub(crate) const SIZES: [usize; 33] = [
    0, 1, 2, 127, 128, 1021, 1023, 1024, 1025, 4093, 16_381, 16_383, 16_384, 16_385, 32_749,
    65_521, 65_535, 65_536, 65_537, 65_600, 131_071, 131_072, 131_073, 262_139, 262_144, 262_145,
    500_009, 524_287, 524_288, 999_983, 1_000_000, 1_048_573, 1_048_575,
];

/// The bytes that arrive per millisecond.
pub(crate) const FAST: usize = 300_000;

pub(crate) fn stream(priority: Priority, size: Option<u64>) -> NewStream {
    NewStream {
        priority,
        transfer_id: TransferId([1; 16]),
        size,
        digest: Some(DigestAlgorithm::Blake3),
        metadata: b"name".to_vec(),
        is_resume: false,
    }
}

/// The application of a receiver: accepts all streams and collects their content.
#[derive(Default)]
pub(crate) struct Collector {
    streams: HashMap<MessageId, Vec<u8>>,
    pub(crate) complete: Vec<(MessageId, Vec<u8>)>,
}

impl Collector {
    pub(crate) fn run(&mut self, simulation: &mut Simulation) {
        let now = simulation.now;
        let core = &mut simulation.server.core;
        for event in simulation.server.events.drain(..) {
            if let LinkEvent::StreamOpened(info) = event {
                core.accept_stream(info.id, &RangeSet::new());
                self.streams.insert(info.id, Vec::new());
            }
        }
        let ids: Vec<MessageId> = self.streams.keys().copied().collect();
        for id in ids {
            loop {
                match core.read(id) {
                    StreamRead::Pending => break,
                    StreamRead::Chunk(chunk) => {
                        let bytes = self.streams.get_mut(&id).expect("it is being read");
                        assert_eq!(chunk.offset, bytes.len() as u64, "content comes in order");
                        bytes.extend_from_slice(&chunk.bytes);
                        core.acknowledge_data(id, chunk.range(), now);
                    }
                    StreamRead::End(done) => {
                        let bytes = self.streams.remove(&id).expect("it is being read");
                        assert_eq!(done.size, bytes.len() as u64);
                        if let Some(digest) = done.digest {
                            let mut hasher = ContentHasher::new(digest.algorithm);
                            hasher.update(&bytes);
                            assert_eq!(hasher.finish(), digest);
                        }
                        core.complete_stream(id, now);
                        self.complete.push((id, bytes));
                        break;
                    }
                    StreamRead::Cancelled(_) => {
                        self.streams.remove(&id);
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn messages_of_every_size_arrive_once_and_unchanged() {
    let mut simulation = Simulation::new(LinkConfig::default());
    simulation.connect();
    let mut expected = HashMap::new();
    for (index, size) in SIZES.into_iter().enumerate() {
        for priority in Priority::ALL {
            let payload = content(size, index as u64);
            let id = loop {
                match simulation.client.core.send(priority, payload.clone()) {
                    Ok(id) => break id,
                    Err(SendError::Full) => simulation.step(FAST),
                    Err(error) => panic!("{error}"),
                }
            };
            expected.insert(id, payload);
        }
    }
    simulation.run(FAST, |simulation| simulation.client.core.is_idle());
    for message in simulation.server.messages.drain(..) {
        let payload = expected.remove(&message.id).expect("once");
        assert_eq!(
            message.class,
            LinkConfig::default().size_classes.classify(payload.len())
        );
        assert!(
            message.payload.clone().into_bytes() == payload,
            "{}",
            message.id
        );
    }
    assert_eq!(expected.len(), 0);
    let statistics = simulation.server.core.statistics();
    assert_eq!(
        statistics.received,
        simulation.client.core.statistics().sent
    );
    assert_eq!(
        statistics.received.messages[SizeClass::Tiny as usize],
        4 * 7
    );
    assert_eq!(simulation.client.core.queued_bytes(), 0);
}

/// An eighth of the message window is the most that a receiver collects.
#[test]
fn messages_that_the_peer_does_not_collect_are_reported() {
    let mut server = LinkConfig::default();
    server.limits.message_window_bytes = 2 << 20;
    let mut simulation = Simulation::with_configs(LinkConfig::default(), server);
    let core = &mut simulation.client.core;
    // The limits of the peer are not known yet.
    let fits = core.send(Priority::Normal, content(256 << 10, 1)).unwrap();
    let early = core
        .send(Priority::Normal, content((256 << 10) + 1, 1))
        .unwrap();
    simulation.connect();
    simulation.run(FAST, |simulation| simulation.client.core.is_idle());
    let core = &mut simulation.client.core;
    assert!(core.is_settled(fits) && core.take_rejection(fits).is_none());
    let rejection = core.take_rejection(early).expect("it is rejected");
    assert_eq!(rejection.code, ErrorCode::TOO_LARGE);
    assert!(rejection.text.contains("262144 bytes"), "{rejection:?}");
    assert!(core.take_first_rejection().is_none());
    let late = core.send(Priority::Normal, content((256 << 10) + 1, 1));
    let (bytes, limit) = ((256 << 10) + 1, 256 << 10);
    assert_eq!(late, Err(SendError::TooLarge { bytes, limit }));
    core.send(Priority::Normal, content(256 << 10, 2)).unwrap();
    simulation.run(FAST, |simulation| simulation.client.core.is_idle());
    assert_eq!(simulation.server.messages.len(), 2);
}

#[test]
fn huge_messages_arrive_as_streams() {
    let mut simulation = Simulation::new(LinkConfig::default());
    simulation.connect();
    let mut collector = Collector::default();
    let sizes = [1_048_576, 1_048_577, 20_000_003];
    let payloads = sizes.map(|size| content(size, size as u64));
    for payload in &payloads {
        let core = &mut simulation.client.core;
        core.send(Priority::Normal, payload.clone()).unwrap();
    }
    simulation.run(FAST, |simulation| {
        collector.run(simulation);
        simulation.client.core.is_idle()
    });
    collector.complete.sort_by_key(|(id, _)| *id);
    let received: Vec<&Vec<u8>> = collector.complete.iter().map(|(_, bytes)| bytes).collect();
    assert!(received == payloads.iter().collect::<Vec<_>>());
}

#[test]
fn a_message_waits_for_at_most_one_chunk_of_any_priority() {
    for bulk in Priority::ALL {
        for urgent in Priority::ALL {
            let mut simulation = Simulation::new(LinkConfig::default());
            simulation.connect();
            let core = &mut simulation.client.core;
            core.send(bulk, content(30_000_000, 1)).unwrap();
            for _ in 0..5 {
                simulation.step(FAST);
            }
            let core = &mut simulation.client.core;
            let mut before = VecDeque::new();
            core.poll_transmit(simulation.now, &mut before);
            let marker = b"a message of a hundred bytes".repeat(4);
            core.send(urgent, Bytes::from(marker.clone())).unwrap();
            let mut next = VecDeque::new();
            core.poll_transmit(simulation.now, &mut next);
            let bytes: Vec<u8> = next.into_iter().flatten().collect();
            let at = bytes.windows(marker.len()).position(|w| w == marker);
            let at = at.expect("the message is in the next transmission");
            assert!(at < 1000, "{at} bytes are sent before the message");
            let chunk: usize = before.iter().map(Bytes::len).sum();
            assert!(chunk <= core.chunk_bytes() + 1000, "{chunk}");
        }
    }
}

#[test]
fn damaged_bytes_end_the_carrier_and_nothing_else() {
    for at in (0..4000).step_by(37) {
        let mut simulation = Simulation::new(LinkConfig::default());
        simulation.connect();
        simulation.corrupt_after = Some(at);
        let payloads = [10, 2000, 20_000, 200_000].map(|size| content(size, at as u64));
        for payload in &payloads {
            let core = &mut simulation.client.core;
            core.send(Priority::Normal, payload.clone()).unwrap();
        }
        simulation.run(50_000, |simulation| {
            if !simulation.is_connected() {
                simulation.connect();
            }
            simulation.client.core.is_idle()
        });
        let error = simulation.violation.expect("the damage is noticed");
        assert!(
            matches!(error.code, ErrorCode::CORRUPTED | ErrorCode::TOO_LARGE),
            "{error}"
        );
        let mut received = simulation.server.messages;
        received.sort_by_key(|message| message.id);
        let received: Vec<Bytes> = received
            .into_iter()
            .map(|message| message.payload.into_bytes())
            .collect();
        assert!(received == payloads, "byte {at}");
    }
}

#[test]
fn a_receiver_that_does_not_read_stops_the_sender_within_the_windows() {
    let config = LinkConfig::default();
    let window = config.limits.stream_window_bytes;
    let retained = config.max_retained_bytes;
    let mut simulation = Simulation::new(config);
    simulation.connect();
    let id = simulation
        .client
        .core
        .open_stream(stream(Priority::Bulk, None))
        .unwrap();
    let piece = content(100_000, 1);
    let mut offset = 0;
    while simulation
        .client
        .core
        .write(id, offset, piece.clone())
        .is_ok()
    {
        offset += piece.len() as u64;
    }
    assert!(offset < retained + piece.len() as u64 + 1);
    for _ in 0..200 {
        simulation.step(FAST);
    }
    let sent = simulation.client.core.statistics().transmitted_bytes;
    assert_eq!(sent, window);
    // Messages have credit of their own.
    let core = &mut simulation.client.core;
    core.send(Priority::Bulk, content(100, 1)).unwrap();
    simulation.run(FAST, |simulation| simulation.server.messages.len() == 1);
    // The reader continues, and so does the sender.
    let mut collector = Collector::default();
    let mut is_finished = false;
    let mut hasher = ContentHasher::new(DigestAlgorithm::Blake3);
    for _ in 0..offset / piece.len() as u64 {
        hasher.update(&piece);
    }
    simulation.run(FAST, |simulation| {
        collector.run(simulation);
        if !is_finished {
            let core = &mut simulation.client.core;
            core.finish(id, offset, Some(hasher.finish())).unwrap();
            is_finished = true;
        }
        simulation.client.core.is_idle()
    });
    assert_eq!(collector.complete[0].1.len() as u64, offset);
}

#[test]
fn messages_that_are_not_read_stop_the_sender() {
    let config = LinkConfig::default();
    let window = config.limits.message_window_bytes;
    let mut simulation = Simulation::new(config);
    simulation.connect();
    simulation.step(FAST);
    simulation.step(FAST);
    let piece = content(50_000, 1);
    let (mut sent, mut delivered) = (0, 0);
    // `step` would read the messages, so the ends exchange bytes without it.
    for _ in 0..2000 {
        while simulation
            .client
            .core
            .send(Priority::Normal, piece.clone())
            .is_ok()
        {
            sent += 1;
        }
        let mut slices = VecDeque::new();
        simulation
            .client
            .core
            .poll_transmit(simulation.now, &mut slices);
        for slice in slices {
            simulation.server.reader.push(&slice);
        }
        while let Some(frame) = simulation.server.reader.next_frame().unwrap() {
            simulation
                .server
                .core
                .handle_frame(frame, simulation.now)
                .unwrap();
        }
        let mut slices = VecDeque::new();
        simulation.now += std::time::Duration::from_millis(5);
        simulation
            .server
            .core
            .poll_transmit(simulation.now, &mut slices);
        for slice in slices {
            simulation.client.reader.push(&slice);
        }
        while let Some(frame) = simulation.client.reader.next_frame().unwrap() {
            simulation
                .client
                .core
                .handle_frame(frame, simulation.now)
                .unwrap();
        }
    }
    while simulation.server.core.next_message().is_some() {
        delivered += 1;
    }
    let fits = window / (piece.len() as u64 + 32);
    assert_eq!(delivered, fits);
    assert!(sent > delivered);
}

#[test]
fn cancelled_and_rejected_streams_end_at_both_ends_with_code_and_text() {
    let code = ErrorCode(ErrorCode::FIRST_APPLICATION_CODE + 1);
    for (is_rejected, is_cut) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut simulation = Simulation::new(LinkConfig::default());
        simulation.connect();
        let id = simulation
            .client
            .core
            .open_stream(stream(Priority::Normal, Some(1_000_000)))
            .unwrap();
        let core = &mut simulation.client.core;
        core.write(id, 0, content(500_000, 1)).unwrap();
        simulation.run(FAST, |simulation| !simulation.server.events.is_empty());
        for _ in 0..5 {
            simulation.step(FAST);
        }
        simulation.server.core.accept_stream(id, &RangeSet::new());
        if is_rejected {
            simulation.server.core.reject_stream(id, code, "no space");
        } else {
            simulation.client.core.cancel_sending(id, code, "no time");
        }
        if is_cut {
            simulation.connect();
        }
        simulation.run(FAST, |simulation| simulation.client.core.is_idle());
        if is_rejected {
            match simulation.client.core.outgoing_stream(id) {
                OutgoingStreamState::Failed(failure) => {
                    assert_eq!((failure.code, &*failure.text), (code, "no space"));
                }
                state => panic!("{state:?}"),
            }
            assert!(
                simulation
                    .client
                    .events
                    .contains(&LinkEvent::StreamEnded(id))
            );
        } else {
            match simulation.server.core.read(id) {
                StreamRead::Cancelled(failure) => {
                    assert_eq!((failure.code, &*failure.text), (code, "no time"));
                }
                read => panic!("{read:?}"),
            }
        }
        // The link is usable, and nothing of the stream occupies memory or credit.
        let core = &mut simulation.client.core;
        core.send(Priority::Normal, content(900_000, 2)).unwrap();
        simulation.run(FAST, |simulation| simulation.client.core.is_idle());
        assert_eq!(simulation.server.messages.len(), 1);
        assert_eq!(simulation.client.core.queued_bytes(), 0);
    }
}

#[test]
fn a_transfer_is_resumed_where_its_content_is_durable() {
    let mut simulation = Simulation::new(LinkConfig::default());
    simulation.connect();
    let all = content(3_000_000, 5);
    let mut hasher = ContentHasher::new(DigestAlgorithm::Sha256);
    hasher.update(&all);
    let mut new = stream(Priority::Bulk, Some(all.len() as u64));
    new.is_resume = true;
    new.digest = Some(DigestAlgorithm::Sha256);
    let core = &mut simulation.client.core;
    let id = core.open_stream(new).unwrap();
    core.write(id, 0, all.clone()).unwrap();
    core.finish(id, all.len() as u64, Some(hasher.finish()))
        .unwrap();
    simulation.run(FAST, |simulation| {
        let mut events = simulation.server.events.iter();
        events.any(|event| matches!(event, LinkEvent::StreamOpened(_)))
    });
    let stored: RangeSet = [0..1_000_000, 1_500_000..2_999_999].into_iter().collect();
    simulation.server.core.accept_stream(id, &stored);
    let mut received = RangeSet::new();
    simulation.run(FAST, |simulation| {
        let now = simulation.now;
        loop {
            match simulation.server.core.read(id) {
                StreamRead::Chunk(chunk) => {
                    let range = chunk.range();
                    assert!(chunk.bytes == all[range.start as usize..range.end as usize]);
                    received.insert(range.clone());
                    simulation.server.core.acknowledge_data(id, range, now);
                }
                StreamRead::End(done) => {
                    assert_eq!(done.digest, Some(hasher.finish()));
                    simulation.server.core.complete_stream(id, now);
                }
                _ => break,
            }
        }
        simulation.client.core.is_idle()
    });
    assert_eq!(received, stored.missing(0..all.len() as u64));
    assert!(simulation.client.core.statistics().transmitted_bytes < 500_100);
}

#[test]
fn a_silent_peer_is_noticed() {
    let config = LinkConfig::default();
    let timeout_ms = config.limits.idle_timeout_ms;
    let mut simulation = Simulation::new(config);
    simulation.connect();
    // Pings keep an idle carrier alive.
    for _ in 0..3 * timeout_ms {
        simulation.step(FAST);
    }
    assert!(simulation.is_connected());
    for _ in 0..timeout_ms + 1 {
        simulation.step(0);
    }
    assert_eq!(simulation.violation.unwrap().code, ErrorCode::TIMEOUT);
}

#[test]
fn a_shutdown_completes_what_was_accepted() {
    let mut simulation = Simulation::new(LinkConfig::default());
    simulation.connect();
    for size in SIZES {
        let core = &mut simulation.client.core;
        if core.send(Priority::Normal, content(size, 1)) == Err(SendError::Full) {
            break;
        }
    }
    let core = &mut simulation.server.core;
    core.send(Priority::Normal, content(700_000, 1)).unwrap();
    core.shut_down(ErrorCode::SHUTTING_DOWN, "maintenance");
    let error = core.send(Priority::Normal, content(1, 1)).unwrap_err();
    assert_eq!(error, SendError::ShuttingDown);
    for _ in 0..3 {
        simulation.step(1000);
    }
    simulation.connect();
    simulation.run(FAST, |simulation| {
        simulation.client.core.is_closed() && simulation.server.core.is_closed()
    });
    assert!(simulation.client.events.contains(&LinkEvent::Closed));
    assert!(
        simulation
            .client
            .events
            .contains(&LinkEvent::ShutdownRequested {
                code: ErrorCode::SHUTTING_DOWN,
                text: "maintenance".to_owned()
            })
    );
    assert!(simulation.client.core.is_idle() && simulation.server.core.is_idle());
    assert_eq!(simulation.client.messages.len(), 1);
}

#[test]
fn confirmed_messages_are_acknowledged_only_then() {
    let config = LinkConfig {
        ack_policy: AckPolicy::OnConfirmation,
        ..LinkConfig::default()
    };
    let mut simulation = Simulation::new(config);
    simulation.connect();
    let ids: Vec<MessageId> = [10, 20_000, 300_000]
        .into_iter()
        .map(|size| {
            let core = &mut simulation.client.core;
            core.send(Priority::High, content(size, 1)).unwrap()
        })
        .collect();
    simulation.run(FAST, |simulation| simulation.server.messages.len() == 3);
    for _ in 0..100 {
        simulation.step(FAST);
    }
    assert!(ids.iter().all(|id| !simulation.client.core.is_settled(*id)));
    // An interruption does not deliver them again.
    simulation.connect();
    for id in ids.iter().rev() {
        let now = simulation.now;
        simulation.server.core.acknowledge(*id, now);
        simulation.run(FAST, |simulation| simulation.client.core.is_settled(*id));
    }
    assert!(simulation.client.core.is_idle());
    assert_eq!(simulation.server.messages.len(), 3);
}

#[test]
fn a_peer_without_its_state_gets_what_was_not_acknowledged() {
    let mut simulation = Simulation::new(LinkConfig::default());
    simulation.connect();
    let core = &mut simulation.client.core;
    core.send(Priority::Normal, content(10, 1)).unwrap();
    simulation.run(FAST, |simulation| simulation.client.core.is_idle());
    simulation.cut();
    let mut restarted = Simulation::new(LinkConfig::default());
    std::mem::swap(&mut simulation.server, &mut restarted.server);
    simulation.server_knows_link = false;
    simulation
        .client
        .core
        .send(Priority::Normal, content(11, 1))
        .unwrap();
    simulation
        .server
        .core
        .send(Priority::Normal, content(12, 1))
        .unwrap();
    simulation.connect();
    simulation.run(FAST, |simulation| {
        simulation.client.core.is_idle() && simulation.server.core.is_idle()
    });
    assert_eq!(simulation.server.messages.len(), 1);
    assert_eq!(simulation.client.messages.len(), 1);
    assert!(simulation.client.events.contains(&LinkEvent::PeerStateLost));
}
