//! Publishes numbers to a topic of its own. After a lost connection, it sends again what was not acknowledged, in order and
//! with the same packet identifiers, as MQTT requires.

use std::collections::VecDeque;
use std::time::Duration;

use crate::line::{ClientLine, ConnectionLost, lasting};
use crate::run_state::{PublisherTotals, RunPhase, RunState};
use crate::support::{Packet, Publish, Random, ack, kind};

/// Messages not yet acknowledged to the end.
const WINDOW: usize = 16;
/// Few, so that each is used again and again: a node that does not forget one in time would lose a message.
const PACKET_IDS: u16 = 24;
/// How long to wait for an acknowledgement before sending more: this sets the pace.
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Publisher {
    name: String,
    version: u8,
    qos: u8,
    random: Random,
    sent: u32,
    next_id: u16,
    in_flight: VecDeque<InFlightMessage>,
    /// The node has acknowledged something of this session.
    is_known: bool,
}

struct InFlightMessage {
    id: u16,
    number: u32,
    /// QoS 2: PUBREC came.
    is_received: bool,
}

impl Publisher {
    pub(crate) fn new(name: String, version: u8, qos: u8, random: Random) -> Publisher {
        Publisher {
            name,
            version,
            qos,
            random,
            sent: 0,
            next_id: 1,
            in_flight: VecDeque::new(),
            is_known: false,
        }
    }

    fn topic(&self) -> String {
        format!("crash/{}", self.name)
    }

    /// Publishes until the phase `Settle`, and until everything is acknowledged.
    pub(crate) fn run(mut self, run_state: &RunState) -> PublisherTotals {
        let mut number = 0;
        while let Some((address, now)) = run_state.next_node(number) {
            number = now;
            if let Ok(()) = self.publish(&address, run_state) {
                break;
            }
        }
        PublisherTotals {
            topic: self.topic(),
            qos: self.qos,
            messages: self.sent,
        }
    }

    fn publish(&mut self, address: &str, run_state: &RunState) -> Result<(), ConnectionLost> {
        let (mut line, session_present) =
            ClientLine::open(address, &lasting(self.version, &self.name))?;
        let name = &self.name;
        assert!(
            session_present || !self.is_known,
            "{name}: the session is lost"
        );
        for message in &self.in_flight {
            line.send(&self.bytes(message, true))?;
        }
        loop {
            let phase = run_state.phase();
            if phase == RunPhase::Load && self.in_flight.len() < WINDOW {
                for _ in 0..=self.random.below(WINDOW - self.in_flight.len()) {
                    let message = self.next();
                    let bytes = self.bytes(&message, false);
                    // In flight from now on, whether or not the node still receives it.
                    self.in_flight.push_back(message);
                    line.send(&bytes)?;
                }
            }
            if phase != RunPhase::Load && self.in_flight.is_empty() {
                let _ = line.leave();
                return Ok(());
            }
            // At least one acknowledgement, then all that have come.
            let mut limit = PAUSE;
            while let Some(packet) = line.poll(limit)? {
                self.acknowledged(&packet, &mut line)?;
                limit = Duration::from_micros(100);
            }
        }
    }

    fn next(&mut self) -> InFlightMessage {
        while self
            .in_flight
            .iter()
            .any(|message| message.id == self.next_id)
        {
            self.next_id = self.next_id % PACKET_IDS + 1;
        }
        let message = InFlightMessage {
            id: self.next_id,
            number: self.sent,
            is_received: false,
        };
        self.next_id = self.next_id % PACKET_IDS + 1;
        self.sent += 1;
        message
    }

    /// The packet that continues a delivery: PUBLISH, or PUBREL.
    fn bytes(&self, message: &InFlightMessage, again: bool) -> Vec<u8> {
        if message.is_received {
            return ack(kind::PUBREL, message.id);
        }
        let mut publish = Publish::new(self.topic(), message.number.to_string());
        publish.dup = again;
        publish.qos(self.qos, message.id).bytes(self.version)
    }

    fn acknowledged(
        &mut self,
        packet: &Packet,
        line: &mut ClientLine,
    ) -> Result<(), ConnectionLost> {
        let name = &self.name;
        let at = self
            .in_flight
            .iter()
            .position(|message| message.id == packet.id());
        let at = at.unwrap_or_else(|| panic!("{name}: {packet:?} acknowledges nothing"));
        // A PUBREL that came through before the kill is not known afterwards.
        let is_done_before = packet.kind == kind::PUBCOMP && packet.reason == 0x92;
        assert!(packet.reason < 0x80 || is_done_before, "{name}: {packet:?}");
        self.is_known = true;
        match (packet.kind, self.qos) {
            (kind::PUBACK, 1) | (kind::PUBCOMP, 2) => {
                self.in_flight.remove(at);
                Ok(())
            }
            (kind::PUBREC, 2) => {
                self.in_flight[at].is_received = true;
                line.send(&ack(kind::PUBREL, packet.id()))
            }
            _ => panic!("{name}: {packet:?}"),
        }
    }
}
