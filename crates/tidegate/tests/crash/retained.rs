//! Retained messages that change all the time; what was acknowledged last is there, or something newer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::line::{ClientLine, ConnectionLost, LIMIT};
use crate::run_state::{RunPhase, RunState};
use crate::support::{Connect, Publish, Random, Subscribe, ack, kind, unique};

const TOPICS: usize = 30;
/// Every so many versions a topic has no retained message.
const CLEARED_EVERY: u32 = 5;

/// Versions of one topic, counted from 1.
#[derive(Debug, Clone, Copy, Default)]
struct TopicVersions {
    sent: u32,
    acknowledged: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct RetainedPublisher {
    slots: Arc<Mutex<Vec<TopicVersions>>>,
}

impl Default for RetainedPublisher {
    fn default() -> Self {
        Self {
            slots: Arc::new(Mutex::new(vec![TopicVersions::default(); TOPICS])),
        }
    }
}

impl RetainedPublisher {
    pub(crate) fn run(self, run_state: &RunState, mut random: Random) {
        let mut number = 0;
        while let Some((address, now)) = run_state.next_node(number) {
            number = now;
            if let Ok(()) = self.publish(&address, run_state, &mut random) {
                return;
            }
        }
    }

    fn publish(
        &self,
        address: &str,
        run_state: &RunState,
        random: &mut Random,
    ) -> Result<(), ConnectionLost> {
        let (mut line, _) = ClientLine::open(address, &Connect::new(5, "retainer"))?;
        while run_state.phase() == RunPhase::Load {
            let mut versions = Vec::new();
            for id in 1..=1 + random.below(8) as u16 {
                let topic = random.below(TOPICS);
                let version = {
                    let mut slots = self.slots.lock().unwrap();
                    slots[topic].sent += 1;
                    slots[topic].sent
                };
                versions.push((topic, version));
                let payload = match is_cleared(version) {
                    true => String::new(),
                    false => version.to_string(),
                };
                let publish = Publish::new(format!("retained/{topic}"), payload).retain();
                line.send(&publish.qos(1, id).bytes(5))?;
            }
            for _ in 0..versions.len() {
                let puback = line.wait_for(kind::PUBACK)?;
                assert!(puback.reason < 0x80, "{puback:?}");
                let (topic, version) = versions[usize::from(puback.id()) - 1];
                let mut slots = self.slots.lock().unwrap();
                slots[topic].acknowledged = slots[topic].acknowledged.max(version);
            }
            run_state.pause(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Looks at all retained messages on a node that lives.
    pub(crate) fn check(&self, address: &str) {
        let before = self.slots.lock().unwrap().clone();
        let client = Connect::new(5, unique("look"));
        let (mut line, _) = ClientLine::open(address, &client).unwrap();
        let subscribe = Subscribe::new(1).filter("retained/#", 1);
        line.send(&subscribe.bytes(5)).unwrap();
        let deadline = Instant::now() + LIMIT;
        let mut found: BTreeMap<usize, u32> = BTreeMap::new();
        let mut has_pinged = false;
        loop {
            if !has_pinged && !self.is_missing(&before, &found) {
                has_pinged = true;
                line.send(&[0xc0, 0]).unwrap();
            }
            assert!(
                Instant::now() < deadline,
                "retained messages are lost: {found:?} of {before:?}"
            );
            let Some(packet) = line.poll(Duration::from_millis(50)).unwrap() else {
                continue;
            };
            match packet.kind {
                kind::PUBLISH => {
                    if packet.qos() == 1 {
                        line.send(&ack(kind::PUBACK, packet.id())).unwrap();
                    }
                    // Changes while we look are not marked as retained, and of no interest.
                    if packet.retain() {
                        let topic = packet.topic.strip_prefix("retained/").unwrap();
                        found.insert(topic.parse().unwrap(), packet.text().parse().unwrap());
                    }
                }
                kind::PINGRESP => break,
                _ => {}
            }
        }
        let after = self.slots.lock().unwrap().clone();
        for topic in 0..TOPICS {
            let (least, most) = (before[topic].acknowledged, after[topic].sent);
            match found.get(&topic) {
                Some(version) => assert!(
                    (least..=most).contains(version),
                    "retained/{topic} has version {version}, not {least} to {most}"
                ),
                None => assert!(
                    least == 0 || (least..=most).any(is_cleared),
                    "retained/{topic} is lost; it had version {least} to {most}"
                ),
            }
        }
    }

    /// Whether a topic that nobody has changed meanwhile has not shown its message yet.
    fn is_missing(&self, before: &[TopicVersions], found: &BTreeMap<usize, u32>) -> bool {
        let now = self.slots.lock().unwrap();
        (0..TOPICS).any(|topic| {
            before[topic].sent == now[topic].sent
                && wants(&before[topic])
                && !found.contains_key(&topic)
        })
    }
}

fn is_cleared(version: u32) -> bool {
    version.is_multiple_of(CLEARED_EVERY)
}

/// Whether there must be a message, as nothing newer is under way.
fn wants(slot: &TopicVersions) -> bool {
    slot.acknowledged > 0 && slot.acknowledged == slot.sent && !is_cleared(slot.sent)
}
