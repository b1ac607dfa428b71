//! A reproducible random sequence of batches, and a simple model of their effect.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that fails may panic; not every test uses all"
)]

use std::collections::{BTreeMap, BTreeSet};

/// A reproducible pseudorandom generator.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelQueueEntry {
    pub(crate) packet_id: u16,
    pub(crate) released: bool,
    pub(crate) attributes: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModelSession {
    pub(crate) entries: BTreeMap<u64, ModelQueueEntry>,
    pub(crate) received: BTreeSet<u16>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoreModel {
    /// Number of batches so far.
    pub(crate) number: u64,
    pub(crate) sessions: BTreeMap<u64, ModelSession>,
    /// Space, key, value.
    pub(crate) keyed: BTreeMap<(usize, Vec<u8>), Vec<u8>>,
    next_seq: BTreeMap<u64, u64>,
    generation: u64,
}

const SLOTS: u64 = 12;

impl StoreModel {
    /// Sessions with queued messages.
    pub(crate) fn waiting(&self) -> Vec<u64> {
        let sessions = self.sessions.iter();
        let waits =
            |session: &ModelSession| !session.entries.is_empty() || !session.received.is_empty();
        sessions
            .filter(|(_, session)| waits(session))
            .map(|(&id, _)| id)
            .collect()
    }

    pub(crate) fn messages(&self) -> u64 {
        let sessions = self.sessions.values();
        sessions.map(|session| session.entries.len() as u64).sum()
    }

    /// The next batch of this seed's script, written to `batch` and applied to the model.
    pub(crate) fn step(&mut self, seed: u64, batch: &mut super::StoreBatch) {
        self.number += 1;
        batch.number = self.number;
        let mut random = Random::new(seed.wrapping_mul(1_000_003) ^ self.number);
        for _ in 0..=random.below(8) {
            self.random_step(&mut random, batch);
        }
        // In the keyed state and in the log, which must agree.
        let number = self.number.to_le_bytes().to_vec();
        batch.put(super::StateKind::Delayed, b"last", &number);
        self.keyed.insert((3, b"last".to_vec()), number);
        batch.begin_message(&[&self.number.to_le_bytes()]);
        batch.add_entry(0, self.number, 0, b"");
        batch.complete_entry(0, self.number - 1);
        let item = ModelQueueEntry {
            packet_id: 0,
            released: false,
            attributes: Vec::new(),
            body: self.number.to_le_bytes().to_vec(),
        };
        self.sessions.entry(0).or_default().entries = BTreeMap::from([(self.number, item)]);
    }

    fn random_step(&mut self, random: &mut Random, batch: &mut super::StoreBatch) {
        match random.below(20) {
            0..=6 => self.queue(random, batch),
            7..=11 => {
                if let Some((session, seq)) = self.pick(random) {
                    batch.complete_entry(session, seq);
                    self.session(session).entries.remove(&seq);
                }
            }
            12..=13 => {
                if let Some((session, seq)) = self.pick(random) {
                    let packet_id = random.below(5) as u16;
                    let item = self.session(session).entries.get_mut(&seq).unwrap();
                    if !item.released {
                        batch.mark_sent(session, seq, packet_id);
                        item.packet_id = packet_id;
                    }
                }
            }
            14 => {
                if let Some((session, seq)) = self.pick(random) {
                    batch.mark_released(session, seq);
                    let item = self.session(session).entries.get_mut(&seq).unwrap();
                    item.released = true;
                    item.body.clear();
                }
            }
            15 => {
                let (session, id) = (self.any_session(random), 1 + random.below(9) as u16);
                batch.add_received_id(session, id);
                self.session(session).received.insert(id);
            }
            16 => {
                let (session, id) = (self.any_session(random), 1 + random.below(9) as u16);
                batch.remove_received_id(session, id);
                self.session(session).received.remove(&id);
            }
            17 => {
                if random.one_in(10) {
                    let session = self.any_session(random);
                    batch.end_session(session);
                    self.sessions.remove(&session);
                    self.generation += 1;
                }
            }
            _ => {
                let space = random.below(5) as usize;
                let key = vec![random.below(20) as u8];
                if random.one_in(3) {
                    batch.delete(super::StateKind::ALL[space], &key);
                    self.keyed.remove(&(space, key));
                } else {
                    let value = bytes_of(random, 200);
                    batch.put(super::StateKind::ALL[space], &key, &value);
                    self.keyed.insert((space, key), value);
                }
            }
        }
    }

    fn queue(&mut self, random: &mut Random, batch: &mut super::StoreBatch) {
        let max = match random.below(200) {
            0 => 70_000,
            1..=10 => 5000,
            _ => 200,
        };
        let body = bytes_of(random, max);
        let half = body.len() / 2;
        batch.begin_message(&[&body[..half], &body[half..]]);
        let mut chosen = BTreeSet::new();
        for _ in 0..=random.below(3) {
            chosen.insert(self.any_session(random));
        }
        for session in chosen {
            let seq = self.next_seq.entry(session).or_default();
            *seq += 1 + random.below(3);
            let seq = *seq;
            let attributes = bytes_of(random, 9);
            let packet_id = random.below(3) as u16;
            batch.add_entry(session, seq, packet_id, &attributes);
            let item = ModelQueueEntry {
                packet_id,
                released: false,
                attributes,
                body: body.clone(),
            };
            self.session(session).entries.insert(seq, item);
        }
    }

    /// Session numbers are not reused: the range advances with each session that ends.
    fn any_session(&self, random: &mut Random) -> u64 {
        1 + self.generation + random.below(SLOTS)
    }

    fn session(&mut self, id: u64) -> &mut ModelSession {
        self.sessions.entry(id).or_default()
    }

    /// An entry, mostly the oldest of its session.
    fn pick(&self, random: &mut Random) -> Option<(u64, u64)> {
        let waiting: Vec<u64> = self
            .sessions
            .keys()
            .copied()
            .filter(|&id| id != 0)
            .collect();
        if waiting.is_empty() {
            return None;
        }
        let session = waiting[random.below(waiting.len() as u64) as usize];
        let entries = &self.sessions[&session].entries;
        if entries.is_empty() {
            return None;
        }
        let nth = if random.one_in(3) {
            random.below(entries.len() as u64) as usize
        } else {
            0
        };
        entries.keys().nth(nth).map(|&seq| (session, seq))
    }
}

fn bytes_of(random: &mut Random, max: u64) -> Vec<u8> {
    let len = random.below(max + 1);
    let first = random.next() as u8;
    (0..len).map(|at| first.wrapping_add(at as u8)).collect()
}
