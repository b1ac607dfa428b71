//! A client with a durable subscription to everything that the publishers send. It is connected all the time or now and
//! then, and has everything in the end, in order.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::line::{ClientLine, ConnectionLost, LIMIT, lasting};
use crate::run_state::{PublisherTotals, RunPhase, RunState};
use crate::support::{Packet, Random, Subscribe, ack, kind};

/// How long everything may take to arrive in the end.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    Always,
    Visits,
}

pub(crate) struct Subscriber {
    name: String,
    version: u8,
    qos: u8,
    presence: Presence,
    random: Random,
    /// What came, as it came, by topic.
    received: BTreeMap<String, Vec<u32>>,
    /// QoS 2 packet identifiers between PUBLISH and PUBREL; they survive the connection.
    held: HashSet<u16>,
}

impl Subscriber {
    pub(crate) fn new(
        name: String,
        version: u8,
        qos: u8,
        presence: Presence,
        random: Random,
    ) -> Subscriber {
        Subscriber {
            name,
            version,
            qos,
            presence,
            random,
            received: BTreeMap::new(),
            held: HashSet::new(),
        }
    }

    /// Makes the subscription, on a node that lives.
    pub(crate) fn subscribe(&mut self, address: &str) {
        let connect = lasting(self.version, &self.name);
        let (mut line, _) = ClientLine::open(address, &connect).unwrap();
        let subscribe = Subscribe::new(1).filter("crash/#", self.qos);
        line.send(&subscribe.bytes(self.version)).unwrap();
        line.wait_for(kind::SUBACK).unwrap();
    }

    pub(crate) fn run(mut self, run_state: &RunState) {
        let mut number = 0;
        let mut deadline = None;
        while let Some((address, now)) = run_state.next_node(number) {
            number = now;
            if self.presence == Presence::Visits && run_state.phase() == RunPhase::Load {
                if self.random.below(3) > 0 {
                    continue;
                }
                run_state.pause(Duration::from_millis(self.random.below(100) as u64));
            }
            if let Ok(true) = self.receive(&address, run_state) {
                break;
            }
            if run_state.phase() == RunPhase::Delivered {
                let deadline = *deadline.get_or_insert(Instant::now() + PATIENCE);
                assert!(
                    Instant::now() < deadline,
                    "{}: it takes too long",
                    self.name
                );
            }
        }
        if run_state.phase() != RunPhase::Aborted {
            self.check(&run_state.sent());
        }
    }

    /// Receives for a while; true when everything is there.
    fn receive(&mut self, address: &str, run_state: &RunState) -> Result<bool, ConnectionLost> {
        let (mut line, session_present) =
            ClientLine::open(address, &lasting(self.version, &self.name))?;
        assert!(session_present, "{}: the session is lost", self.name);
        let visit = Duration::from_millis(20 + self.random.below(200) as u64);
        let until = Instant::now() + visit;
        let mut last = Instant::now();
        loop {
            if let Some(packet) = line.poll(Duration::from_millis(20))? {
                last = Instant::now();
                self.take(&packet, &mut line)?;
                continue;
            }
            match run_state.phase() {
                RunPhase::Aborted => return Ok(true),
                RunPhase::Load if self.presence == Presence::Visits && Instant::now() > until => {
                    // Leaves politely or just goes.
                    if self.random.below(2) == 0 {
                        let _ = line.leave();
                    }
                    return Ok(false);
                }
                // Nothing more has come for a moment, and what was sent is known.
                RunPhase::Delivered if self.has_all(&run_state.sent()) => {
                    self.linger(&mut line)?;
                    let _ = line.leave();
                    return Ok(true);
                }
                RunPhase::Delivered if last.elapsed() > LIMIT => {
                    self.check(&run_state.sent());
                    return Ok(true);
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, packet: &Packet, line: &mut ClientLine) -> Result<(), ConnectionLost> {
        match (packet.kind, packet.qos()) {
            (kind::PUBLISH, 1) => {
                self.note(packet);
                line.send(&ack(kind::PUBACK, packet.id()))
            }
            (kind::PUBLISH, 2) => {
                if self.held.insert(packet.id()) {
                    self.note(packet);
                }
                line.send(&ack(kind::PUBREC, packet.id()))
            }
            (kind::PUBREL, _) => {
                self.held.remove(&packet.id());
                line.send(&ack(kind::PUBCOMP, packet.id()))
            }
            _ => panic!("{}: {packet:?}", self.name),
        }
    }

    fn note(&mut self, packet: &Packet) {
        let number = packet.text().parse().unwrap();
        let numbers = self.received.entry(packet.topic.clone()).or_default();
        numbers.push(number);
    }

    /// What the node still has to say, such as a message for the second time, comes before its PINGRESP.
    fn linger(&mut self, line: &mut ClientLine) -> Result<(), ConnectionLost> {
        line.send(&[0xc0, 0])?;
        while let Some(packet) = line.poll(LIMIT)? {
            if packet.kind == kind::PINGRESP {
                return Ok(());
            }
            self.take(&packet, line)?;
        }
        panic!("{}: no PINGRESP", self.name);
    }

    fn has_all(&self, sent: &[PublisherTotals]) -> bool {
        sent.iter().all(|sent| {
            let numbers = self.received.get(&sent.topic);
            let first = firsts(numbers.map_or(&[], Vec::as_slice));
            first.len() == sent.messages as usize
        })
    }

    /// Everything is there, in order, and nothing twice that must not be.
    fn check(&self, sent: &[PublisherTotals]) {
        let name = &self.name;
        for sent in sent {
            let topic = &sent.topic;
            let received = self.received.get(topic).map_or(&[][..], Vec::as_slice);
            let first = firsts(received);
            let expected: Vec<u32> = (0..sent.messages).collect();
            if let Some(missing) = expected.iter().find(|number| !first.contains(number)) {
                let count = expected.len() - first.len();
                panic!("{name}: {topic}: {count} messages are lost, the first is {missing}");
            }
            if let Some(at) = (0..first.len()).find(|&at| first[at] != expected[at]) {
                panic!("{name}: {topic}: out of order: {:?}", around(&first, at));
            }
            if self.qos.min(sent.qos) == 2
                && let Some(at) = (0..received.len()).find(|&at| received[at] != at as u32)
            {
                panic!(
                    "{name}: {topic}: twice at QoS 2: {:?}",
                    around(received, at)
                );
            }
        }
    }
}

/// Each number where it came for the first time.
fn firsts(numbers: &[u32]) -> Vec<u32> {
    let mut seen = HashSet::with_capacity(numbers.len());
    let new = numbers
        .iter()
        .copied()
        .filter(|number| seen.insert(*number));
    new.collect()
}

fn around(numbers: &[u32], at: usize) -> &[u32] {
    &numbers[at.saturating_sub(5)..(at + 5).min(numbers.len())]
}
