//! Subscriptions that come and go. After each kill there are those whose SUBACK came, and none whose UNSUBACK came.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::line::{ClientLine, ConnectionLost, LIMIT, lasting};
use crate::run_state::{RunPhase, RunState};
use crate::support::{Packet, Publish, Random, Subscribe, Unsubscribe, ack, kind};

const TOPICS: usize = 20;
/// A topic that is subscribed to all the time: what comes before its message has come.
const LAST: usize = TOPICS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedState {
    Yes,
    No,
    /// The last change was not acknowledged.
    Either,
}

pub(crate) struct SubscriptionToggler {
    random: Random,
    expected_states: [ExpectedState; TOPICS],
    is_known: bool,
    next_id: u16,
    /// Number of the last round, in which every topic got a message.
    round: u32,
}

impl SubscriptionToggler {
    pub(crate) fn new(random: Random) -> SubscriptionToggler {
        SubscriptionToggler {
            random,
            expected_states: [ExpectedState::No; TOPICS],
            is_known: false,
            next_id: 0,
            round: 0,
        }
    }

    pub(crate) fn run(mut self, run_state: &RunState) {
        let mut number = 0;
        while let Some((address, now)) = run_state.next_node(number) {
            number = now;
            if let Ok(()) = self.toggle(&address, run_state) {
                return;
            }
        }
    }

    fn toggle(&mut self, address: &str, run_state: &RunState) -> Result<(), ConnectionLost> {
        let (mut line, session_present) = ClientLine::open(address, &lasting(5, "toggler"))?;
        assert!(session_present || !self.is_known, "the session is lost");
        if !self.is_known {
            let id = self.id();
            let subscribe = Subscribe::new(id).filter(topic(LAST), 1);
            line.send(&subscribe.bytes(5))?;
            self.wait_for(kind::SUBACK, id, &mut line)?;
            self.is_known = true;
        }
        self.check(&mut line)?;
        while run_state.phase() == RunPhase::Load {
            self.change(&mut line)?;
            run_state.pause(Duration::from_millis(1));
        }
        self.check(&mut line)?;
        let _ = line.leave();
        Ok(())
    }

    fn id(&mut self) -> u16 {
        self.next_id = self.next_id % 60_000 + 1;
        self.next_id
    }

    /// One subscription more or less.
    fn change(&mut self, line: &mut ClientLine) -> Result<(), ConnectionLost> {
        let number = self.random.below(TOPICS);
        let id = self.id();
        let subscribes = self.random.below(2) == 0;
        self.expected_states[number] = ExpectedState::Either;
        if subscribes {
            line.send(&Subscribe::new(id).filter(topic(number), 1).bytes(5))?;
            self.wait_for(kind::SUBACK, id, line)?;
            self.expected_states[number] = ExpectedState::Yes;
        } else {
            line.send(&Unsubscribe::new(id).filter(topic(number)).bytes(5))?;
            self.wait_for(kind::UNSUBACK, id, line)?;
            self.expected_states[number] = ExpectedState::No;
        }
        Ok(())
    }

    /// Publishes to every topic and sees which messages come back.
    fn check(&mut self, line: &mut ClientLine) -> Result<(), ConnectionLost> {
        self.round += 1;
        let round = self.round.to_string();
        for number in 0..=TOPICS {
            let publish = Publish::new(topic(number), &round).qos(1, self.id());
            line.send(&publish.bytes(5))?;
        }
        let mut received = BTreeSet::new();
        while !received.contains(&topic(LAST)) {
            let packet = next(line)?;
            // Of an earlier round: it was queued when the node was killed.
            if packet.kind == kind::PUBLISH && packet.payload == round.as_bytes() {
                received.insert(packet.topic);
            }
        }
        for number in 0..TOPICS {
            let has_come = received.contains(&topic(number));
            let expected = match self.expected_states[number] {
                ExpectedState::Yes => true,
                ExpectedState::No => false,
                ExpectedState::Either => has_come,
            };
            assert_eq!(has_come, expected, "subscription to {}", topic(number));
        }
        Ok(())
    }

    fn wait_for(&mut self, kind: u8, id: u16, line: &mut ClientLine) -> Result<(), ConnectionLost> {
        loop {
            let packet = next(line)?;
            if packet.kind == kind && packet.id() == id {
                return Ok(());
            }
        }
    }
}

fn topic(number: usize) -> String {
    format!("toggle/{number}")
}

/// The next packet; a message is acknowledged.
fn next(line: &mut ClientLine) -> Result<Packet, ConnectionLost> {
    let Some(packet) = line.poll(LIMIT)? else {
        panic!("the toggler hears nothing");
    };
    if packet.kind == kind::PUBLISH && packet.qos() == 1 {
        line.send(&ack(kind::PUBACK, packet.id()))?;
    }
    Ok(packet)
}
