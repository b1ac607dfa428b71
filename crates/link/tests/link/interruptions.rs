//! Interruptions, repeated carriers and arbitrary frames, chosen at random.

use std::collections::{HashMap, VecDeque};

use content::RangeSet;
use link::config::LinkConfig;
use link::core::LinkEvent;
use link::priority::Priority;
use link::size_class::SizeClass;
use link::wire::header::{FrameType, encode_header};
use proptest::prelude::*;

use crate::simulation::{Collector, FAST, SIZES};
use crate::support::{RandomChoices, Simulation, content};

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn interruptions_lose_and_repeat_nothing(
        seed in 1u64..u64::MAX,
        speed in 2_000usize..200_000,
        cut_every in 5u64..60,
    ) {
        let mut choices = RandomChoices(seed);
        let mut simulation = Simulation::new(LinkConfig::default());
        let mut collector = Collector::default();
        let mut expected = HashMap::new();
        let mut budget: i64 = 3_000_000;
        let mut steps = 0_u64;
        loop {
            steps += 1;
            prop_assert!(steps < 100_000, "the simulation does not end");
            if !simulation.is_connected() && choices.below(3) == 0 {
                simulation.connect();
            } else if budget > 0 && choices.below(cut_every) == 0 {
                simulation.cut();
            }
            if budget > 0 && choices.below(3) == 0 {
                let size = match choices.below(20) {
                    0 => 1_048_576 + choices.below(200_000) as usize,
                    1..6 => SIZES[choices.below(SIZES.len() as u64) as usize],
                    _ => choices.below(2000) as usize,
                };
                let priority = Priority::ALL[choices.below(4) as usize];
                let payload = content(size, steps);
                let core = &mut simulation.client.core;
                if let Ok(id) = core.send(priority, payload.clone()) {
                    expected.insert(id, payload);
                    budget -= size as i64;
                }
            }
            simulation.step(speed);
            collector.run(&mut simulation);
            if budget <= 0 && simulation.client.core.is_idle() {
                break;
            }
        }
        prop_assert!(simulation.violation.is_none(), "{:?}", simulation.violation);
        let mut last_small = HashMap::new();
        for message in std::mem::take(&mut simulation.server.messages) {
            if message.class < SizeClass::Large {
                let last = last_small.insert(message.id.priority, message.id.number);
                prop_assert!(last < Some(message.id.number), "messages keep their order");
            }
            let payload = expected.remove(&message.id).expect("a message arrives once");
            prop_assert!(message.payload.into_bytes() == payload);
        }
        for (id, bytes) in collector.complete {
            prop_assert!(expected.remove(&id).expect("a stream arrives once") == bytes);
        }
        prop_assert!(expected.is_empty(), "{} messages are lost", expected.len());
        prop_assert_eq!(simulation.client.core.queued_bytes(), 0);
    }

    /// A carrier keeps the order of its bytes. Carriers as a whole may arrive late, in another order, or twice.
    #[test]
    fn carriers_that_arrive_late_or_twice_lose_and_repeat_nothing(
        seed in 1u64..u64::MAX,
        cut_every in 5u64..40,
    ) {
        let mut choices = RandomChoices(seed);
        let mut simulation = Simulation::new(LinkConfig::default());
        let mut collector = Collector::default();
        let mut expected = HashMap::new();
        let mut steps = 0_u64;
        while steps < 300 || !simulation.client.core.is_idle() {
            steps += 1;
            prop_assert!(steps < 100_000, "the simulation does not end");
            if !simulation.is_connected() {
                // The server may know nothing of a carrier that was cut at once, until it arrives.
                let carriers = simulation.carriers as u64;
                if carriers > 0 && simulation.server_knows_link && choices.below(2) == 0 {
                    let carrier = carriers - 1 - choices.below(carriers.min(3));
                    simulation.replay(carrier as usize, |simulation| collector.run(simulation));
                }
                simulation.connect();
            } else if steps < 300 && choices.below(cut_every) == 0 {
                simulation.cut();
            }
            if steps < 300 && choices.below(3) == 0 {
                let size = match choices.below(40) {
                    0 => 1_048_576 + choices.below(200_000) as usize,
                    1..4 => 131_072 + choices.below(100_000) as usize,
                    _ => choices.below(2000) as usize,
                };
                let priority = Priority::ALL[choices.below(4) as usize];
                let payload = content(size, steps);
                let core = &mut simulation.client.core;
                if let Ok(id) = core.send(priority, payload.clone()) {
                    expected.insert(id, payload);
                }
            }
            simulation.step(20_000);
            collector.run(&mut simulation);
        }
        prop_assert!(simulation.violation.is_none(), "{:?}", simulation.violation);
        for message in std::mem::take(&mut simulation.server.messages) {
            let payload = expected.remove(&message.id).expect("a message arrives once");
            prop_assert!(message.payload.into_bytes() == payload);
        }
        for (id, bytes) in collector.complete {
            prop_assert!(expected.remove(&id).expect("a stream arrives once") == bytes);
        }
        prop_assert!(expected.is_empty(), "{} messages are lost", expected.len());
    }

    #[test]
    fn any_frames_of_a_peer_are_handled_without_panic(
        frames in proptest::collection::vec(
            (0u8..=15, any::<u8>(), 0u32..4, proptest::collection::vec(any::<u8>(), 0..60)),
            0..40,
        ),
    ) {
        let mut simulation = Simulation::new(LinkConfig::default());
        simulation.connect();
        for _ in 0..3 {
            simulation.step(FAST);
        }
        let id = simulation.server.core.send(Priority::Normal, content(400_000, 1)).unwrap();
        for (code, flags, stream, payload) in frames {
            let Some(bytes) = support_frame(code, flags, stream, &payload) else {
                continue;
            };
            simulation.server.reader.push(&bytes);
            let frame = simulation.server.reader.next_frame().unwrap().unwrap();
            let result = simulation.server.core.handle_frame(frame, simulation.now);
            let mut slices = VecDeque::new();
            simulation.server.core.poll_transmit(simulation.now, &mut slices);
            if result.is_err() || !simulation.is_connected() {
                // The next carrier continues the link with what is left of this one.
                simulation.connect();
                for _ in 0..3 {
                    simulation.step(FAST);
                }
            }
            simulation.server.collect();
            for event in std::mem::take(&mut simulation.server.events) {
                if let LinkEvent::StreamOpened(info) = event {
                    simulation.server.core.accept_stream(info.id, &RangeSet::new());
                    simulation.server.core.read(info.id);
                }
            }
        }
        simulation.server.core.outgoing_stream(id);
    }
}

/// A frame with a valid header and checksum.
fn support_frame(code: u8, flags: u8, stream: u32, payload: &[u8]) -> Option<Vec<u8>> {
    let types = [
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
    let frame_type = *types.get(usize::from(code))?;
    let mut bytes = encode_header(frame_type, flags, stream, &[payload]).to_vec();
    bytes.extend_from_slice(payload);
    Some(bytes)
}
