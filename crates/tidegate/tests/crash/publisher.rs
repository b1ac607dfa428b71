//! Publishes numbers to a topic of its own and does what MQTT asks of a client whose connection broke: sends again what was
//! not acknowledged, in order and with the same packet identifiers.

use std::collections::VecDeque;
use std::time::Duration;

use crate::line::{ClientLine, ConnectionLost, lasting};
use crate::stage::{Act, Sent, Stage};
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
    flights: VecDeque<Flight>,
    /// The node has acknowledged something of this session.
    is_known: bool,
}

struct Flight {
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
            flights: VecDeque::new(),
            is_known: false,
        }
    }

    fn topic(&self) -> String {
        format!("crash/{}", self.name)
    }

    /// Publishes until the play settles and everything is acknowledged.
    pub(crate) fn run(mut self, stage: &Stage) -> Sent {
        let mut number = 0;
        while let Some((address, now)) = stage.next_node(number) {
            number = now;
            if let Ok(()) = self.publish(&address, stage) {
                break;
            }
        }
        Sent {
            topic: self.topic(),
            qos: self.qos,
            messages: self.sent,
        }
    }

    fn publish(&mut self, address: &str, stage: &Stage) -> Result<(), ConnectionLost> {
        let (mut line, session_present) =
            ClientLine::open(address, &lasting(self.version, &self.name))?;
        let name = &self.name;
        assert!(
            session_present || !self.is_known,
            "{name}: the session is lost"
        );
        for flight in &self.flights {
            line.send(&self.bytes(flight, true))?;
        }
        loop {
            let act = stage.act();
            if act == Act::Load && self.flights.len() < WINDOW {
                for _ in 0..=self.random.below(WINDOW - self.flights.len()) {
                    let flight = self.next();
                    let bytes = self.bytes(&flight, false);
                    // Under way from now on, whether the node is still there to get it or not.
                    self.flights.push_back(flight);
                    line.send(&bytes)?;
                }
            }
            if act != Act::Load && self.flights.is_empty() {
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

    fn next(&mut self) -> Flight {
        while self.flights.iter().any(|flight| flight.id == self.next_id) {
            self.next_id = self.next_id % PACKET_IDS + 1;
        }
        let flight = Flight {
            id: self.next_id,
            number: self.sent,
            is_received: false,
        };
        self.next_id = self.next_id % PACKET_IDS + 1;
        self.sent += 1;
        flight
    }

    /// What brings a flight on: PUBLISH, or PUBREL.
    fn bytes(&self, flight: &Flight, again: bool) -> Vec<u8> {
        if flight.is_received {
            return ack(kind::PUBREL, flight.id);
        }
        let mut publish = Publish::new(self.topic(), flight.number.to_string());
        publish.dup = again;
        publish.qos(self.qos, flight.id).bytes(self.version)
    }

    fn acknowledged(
        &mut self,
        packet: &Packet,
        line: &mut ClientLine,
    ) -> Result<(), ConnectionLost> {
        let name = &self.name;
        let at = self
            .flights
            .iter()
            .position(|flight| flight.id == packet.id());
        let at = at.unwrap_or_else(|| panic!("{name}: {packet:?} acknowledges nothing"));
        // A PUBREL that came through before the kill is not known afterwards.
        let is_done_before = packet.kind == kind::PUBCOMP && packet.reason == 0x92;
        assert!(packet.reason < 0x80 || is_done_before, "{name}: {packet:?}");
        self.is_known = true;
        match (packet.kind, self.qos) {
            (kind::PUBACK, 1) | (kind::PUBCOMP, 2) => {
                self.flights.remove(at);
                Ok(())
            }
            (kind::PUBREC, 2) => {
                self.flights[at].is_received = true;
                line.send(&ack(kind::PUBREL, packet.id()))
            }
            _ => panic!("{name}: {packet:?}"),
        }
    }
}
