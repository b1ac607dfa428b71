//! What a shard writes down, and what has to wait until it is written.
//!
//! Everything a turn of the shard changes in durable sessions, retained and delayed messages goes into one batch of
//! the store, numbered by the turn. An answer that says "I have it" (PUBACK, PUBREC, PUBCOMP, PUBREL, SUBACK) and a
//! QoS 2 message on its way to a subscriber stay in their outbox, with everything behind them, until the turn they
//! belong to is complete: its own batch is in the log, and so is what other shards wrote because of words that left
//! with it. Turns complete in their order.
//!
//! Another shard confirms words by *its own* log alone, not by what it passed on in turn, so that two shards never
//! wait for each other.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use mqtt::QoS;
use store::{Batch, Fetch, Space};

use super::deliver::Dispatch;
use super::message::MessageView;
use super::stored;

/// Sessions whose stored messages are read at once; others wait for their turn.
const FETCHES_AT_ONCE: usize = 64;
/// How much of one session's stored messages is read at once.
const FETCH_MESSAGES: u32 = 128;
const FETCH_BYTES: u32 = 64 * 1024;

/// Session numbers from here on are not sessions but links: queues of what one shard has for another.
pub(crate) const LINKS: u64 = 1 << 62;

/// A QoS 2 message that a durable session published and another shard has subscribers for must reach them once, though
/// its packet id is written down by one shard and who gets it by the other, and the node may die in between. So it is
/// written into the link together with the packet id, the words about it leave when that is in the log, and the
/// other shard takes it out of the link in the batch in which it writes down who gets it. What a start finds in a
/// link is delivered then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// How many shards the node had. Their sessions are those whose number leaves the shard's as remainder.
    pub(crate) shards: u16,
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl Link {
    pub(crate) fn number(self) -> u64 {
        LINKS | u64::from(self.shards) << 32 | u64::from(self.from) << 16 | u64::from(self.to)
    }

    pub(crate) fn of(number: u64) -> Option<Self> {
        (number & LINKS != 0).then_some(Self {
            shards: (number >> 32) as u16,
            from: (number >> 16) as u16,
            to: number as u16,
        })
    }
}

pub(crate) struct Journal {
    shard: u16,
    batch: Batch,
    /// Number of the turn being filled.
    turn: u64,
    /// Turns whose batch is not yet in the log.
    unlogged: VecDeque<u64>,
    /// Turns of which hooks have something that is not safe yet.
    unsettled: VecDeque<u64>,
    /// Whether this turn will be one.
    waits_for_hooks: bool,
    /// Delayed messages that were due, to be deleted when what came of them in this turn is safe.
    due: VecDeque<(u64, [u8; 16])>,
    /// For each other shard the turns whose words it has not confirmed.
    unconfirmed: Vec<VecDeque<u64>>,
    /// Shards that get words in this turn that they have to confirm.
    to_confirm: u64,
    /// Number of the last message in the link to each other shard.
    link_seqs: Vec<u64>,
    /// Shards with something new in their link.
    linked: u64,
    /// Connections with bytes that wait for a turn.
    held: VecDeque<(u64, Vec<u32>)>,
    /// Words heard: in which turn of ours, from which shard, which turn of theirs.
    heard: VecDeque<(u64, u16, u64)>,
    /// Sessions by the number they are stored under.
    by_number: HashMap<u64, u32, RandomState>,
    next_number: u64,
    /// Shards number their sessions alternately.
    step: u64,
    wants_fetch: VecDeque<u64>,
    fetches: Vec<Fetch>,
    fetching: usize,
    /// Why the store takes nothing new; told by its owner.
    pub(crate) refuses: bool,
    scratch: Vec<u8>,
}

/// What the end of a turn leaves.
pub(crate) struct TurnEnd {
    pub(crate) turn: u64,
    /// Shards that have to confirm the turn, one bit each.
    pub(crate) to_confirm: u64,
    /// Shards to which words may leave only when the turn is in the log.
    pub(crate) linked: u64,
    /// For the store, like the rest.
    pub(crate) batch: Option<Batch>,
    pub(crate) fetches: Vec<Fetch>,
    /// Hooks are to say when the turn is safe.
    pub(crate) waits_for_hooks: bool,
}

impl Journal {
    /// `first_number` is above every number that was ever used.
    pub(crate) fn new(shard: u16, shards: u16, first_number: u64) -> Self {
        Self {
            shard,
            link_seqs: vec![0; usize::from(shards)],
            linked: 0,
            batch: Batch::default(),
            turn: 1,
            unlogged: VecDeque::new(),
            unsettled: VecDeque::new(),
            waits_for_hooks: false,
            due: VecDeque::new(),
            unconfirmed: (0..shards).map(|_| VecDeque::new()).collect(),
            to_confirm: 0,
            held: VecDeque::new(),
            heard: VecDeque::new(),
            by_number: HashMap::default(),
            next_number: first_number + u64::from(shard),
            step: shards.into(),
            wants_fetch: VecDeque::new(),
            fetches: Vec::new(),
            fetching: 0,
            refuses: false,
            scratch: Vec::new(),
        }
    }

    /// A number for a session of this shard.
    pub(crate) fn number_for(&mut self, session: u32) -> u64 {
        let number = self.next_number;
        self.next_number += self.step;
        self.by_number.insert(number, session);
        number
    }

    pub(crate) fn know(&mut self, number: u64, session: u32) {
        self.by_number.insert(number, session);
    }

    pub(crate) fn session(&self, number: u64) -> Option<u32> {
        self.by_number.get(&number).copied()
    }

    /// A number for anything else that needs one of its own.
    pub(crate) fn unique(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += self.step;
        number
    }

    /// Whether something of this turn has to be in a log before it may be answered.
    #[inline]
    pub(crate) fn is_touched(&self) -> bool {
        self.to_confirm != 0 || self.waits_for_hooks || !self.batch.is_empty()
    }

    /// Whether this turn has to be closed.
    pub(crate) fn has_work(&self) -> bool {
        self.is_touched()
            || !self.fetches.is_empty()
            || self.held.back().is_some_and(|&(turn, _)| turn == self.turn)
            || self
                .heard
                .back()
                .is_some_and(|&(turn, ..)| turn == self.turn)
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// Messages that another shard has to write down go to it in this turn.
    #[inline]
    fn expect_confirmation(&mut self, shard: u16) {
        self.to_confirm |= 1 << shard;
    }

    /// A message goes to another shard, for all its subscribers or for one member of a group. What has to arrive
    /// exactly once gets a place in the link, which is returned; everything else above QoS 0 the other shard confirms.
    pub(crate) fn cross(
        &mut self,
        to: u16,
        view: &MessageView<'_>,
        dispatch: &mut Dispatch<'_>,
        member: Option<(&str, &str)>,
    ) -> Option<u64> {
        if view.qos == QoS::AtMostOnce {
            return None;
        }
        if !dispatch.exactly_once {
            self.expect_confirmation(to);
            return None;
        }
        if !std::mem::replace(&mut dispatch.journaled, true) {
            self.message(view);
        }
        Some(self.link(to, member))
    }

    /// A message; what follows with [`Journal::entry`] waits for it.
    #[inline]
    pub(crate) fn message(&mut self, view: &MessageView<'_>) {
        self.batch.message_with_head(
            stored::message_head_len(view),
            |head| stored::message_head(view, head),
            &stored::message_parts(view),
        );
    }

    /// After a start, links are continued where they ended.
    pub(crate) fn continue_link(&mut self, link: Link, last_seq: u64) {
        if usize::from(link.shards) == self.link_seqs.len() && link.from == self.shard {
            self.link_seqs[usize::from(link.to)] = last_seq;
        }
    }

    /// The message written last is on its way to another shard, for all its subscribers or for one member of a group.
    fn link(&mut self, to: u16, member: Option<(&str, &str)>) -> u64 {
        let seq = &mut self.link_seqs[usize::from(to)];
        *seq += 1;
        let link = Link {
            shards: self.step as u16,
            from: self.shard,
            to,
        };
        self.scratch.clear();
        stored::put_member(member, &mut self.scratch);
        self.batch.entry(link.number(), *seq, 0, &self.scratch);
        self.linked |= 1 << to;
        *seq
    }

    /// A message has arrived from another shard, and who gets it is written down.
    pub(crate) fn unlink(&mut self, from: u16, seq: u64) {
        let link = Link {
            shards: self.step as u16,
            from,
            to: self.shard,
        };
        self.batch.done(link.number(), seq);
    }

    /// The message written last waits for a session.
    #[inline]
    pub(crate) fn entry(
        &mut self,
        (number, seq): (u64, u64),
        packet_id: u16,
        qos: QoS,
        retain: bool,
        identifiers: &[u32],
    ) {
        if identifiers.is_empty() {
            let attributes = [stored::attribute_byte(qos, retain)];
            return self.batch.entry(number, seq, packet_id, &attributes);
        }
        self.scratch.clear();
        stored::put_attributes(qos, retain, identifiers, &mut self.scratch);
        self.batch.entry(number, seq, packet_id, &self.scratch);
    }

    pub(crate) fn sent(&mut self, number: u64, seq: u64, packet_id: u16) {
        self.batch.sent(number, seq, packet_id);
    }

    pub(crate) fn released(&mut self, number: u64, seq: u64) {
        self.batch.released(number, seq);
    }

    #[inline]
    pub(crate) fn done(&mut self, number: u64, seq: u64) {
        self.batch.done(number, seq);
    }

    pub(crate) fn received(&mut self, number: u64, packet_id: u16) {
        self.batch.received(number, packet_id);
    }

    pub(crate) fn forgotten(&mut self, number: u64, packet_id: u16) {
        self.batch.forgotten(number, packet_id);
    }

    pub(crate) fn end(&mut self, number: u64) {
        self.by_number.remove(&number);
        self.batch.end(number);
    }

    /// What is stored under a number is no session's any more, and is not thrown away yet.
    pub(crate) fn forget_number(&mut self, number: u64) {
        self.by_number.remove(&number);
    }

    pub(crate) fn put(&mut self, space: Space, key: &[u8], value: &[u8]) {
        self.batch.put(space, key, value);
    }

    pub(crate) fn delete(&mut self, space: Space, key: &[u8]) {
        self.batch.delete(space, key);
    }

    /// A connection has bytes that wait for this turn.
    pub(crate) fn hold(&mut self, connection: u32) {
        match self.held.back_mut() {
            Some((turn, connections)) if *turn == self.turn => connections.push(connection),
            _ => self.held.push_back((self.turn, vec![connection])),
        }
    }

    /// The next connections whose turn is complete, and that turn.
    pub(crate) fn let_go(&mut self) -> Option<(u64, Vec<u32>)> {
        let complete = self.complete();
        match self.held.front() {
            Some(&(turn, _)) if turn <= complete => self.held.pop_front(),
            _ => None,
        }
    }

    /// The last turn that is complete.
    pub(crate) fn complete(&self) -> u64 {
        let before = |turns: &VecDeque<u64>| turns.front().map_or(self.turn, |&first| first) - 1;
        let others = self.unconfirmed.iter().map(before).min();
        let own = before(&self.unlogged).min(before(&self.unsettled));
        own.min(others.unwrap_or(u64::MAX))
    }

    /// Words of another shard's turn were heard in this one.
    pub(crate) fn heard(&mut self, from: u16, turn: u64) {
        self.heard.push_back((self.turn, from, turn));
    }

    /// The next words of another shard that are in our log, with all that came of them.
    pub(crate) fn confirmation(&mut self) -> Option<(u16, u64)> {
        let logged = self.unlogged.front().map_or(self.turn, |&first| first) - 1;
        match self.heard.front() {
            Some(&(turn, from, theirs)) if turn <= logged => {
                self.heard.pop_front();
                Some((from, theirs))
            }
            _ => None,
        }
    }

    /// Everything up to a turn is in the log.
    pub(crate) fn logged(&mut self, turn: u64) {
        while self.unlogged.front().is_some_and(|&first| first <= turn) {
            self.unlogged.pop_front();
        }
    }

    /// What is answered from now on in this turn waits for what hooks have made of it.
    pub(crate) fn wait_for_hooks(&mut self) {
        self.waits_for_hooks = true;
    }

    pub(crate) fn waits_for_hooks(&self) -> bool {
        self.waits_for_hooks
    }

    /// Deletes a delayed message when this turn is complete.
    pub(crate) fn delete_when_complete(&mut self, key: [u8; 16]) {
        self.due.push_back((self.turn, key));
    }

    #[cfg(test)]
    pub(super) fn keeps_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Deletes the delayed messages whose turn is complete.
    pub(crate) fn delete_complete(&mut self) {
        let complete = self.complete();
        while let Some(&(turn, key)) = self.due.front()
            && turn <= complete
        {
            self.due.pop_front();
            self.batch.delete(Space::Delayed, &key);
        }
    }

    /// What hooks have made of a turn is safe. Turns are told in any order.
    pub(crate) fn settled(&mut self, turn: u64) {
        self.unsettled.retain(|&other| other != turn);
    }

    pub(crate) fn confirmed(&mut self, shard: u16, turn: u64) {
        let unconfirmed = &mut self.unconfirmed[usize::from(shard)];
        while unconfirmed.front().is_some_and(|&first| first <= turn) {
            unconfirmed.pop_front();
        }
    }

    /// Closes the turn.
    pub(crate) fn end_turn(&mut self, spare: impl FnOnce() -> Batch) -> TurnEnd {
        let turn = self.turn;
        let to_confirm = std::mem::take(&mut self.to_confirm);
        for (shard, unconfirmed) in self.unconfirmed.iter_mut().enumerate() {
            if to_confirm & 1 << shard != 0 {
                unconfirmed.push_back(turn);
            }
        }
        let batch = (!self.batch.is_empty()).then(|| {
            self.unlogged.push_back(turn);
            let mut batch = std::mem::replace(&mut self.batch, spare());
            batch.number = turn;
            batch
        });
        self.turn += 1;
        let waits_for_hooks = std::mem::take(&mut self.waits_for_hooks);
        if waits_for_hooks {
            self.unsettled.push_back(turn);
        }
        let fetches = std::mem::take(&mut self.fetches);
        TurnEnd {
            turn,
            to_confirm,
            linked: std::mem::take(&mut self.linked),
            batch,
            fetches,
            waits_for_hooks,
        }
    }

    /// Asks for the stored messages of a session from `from_seq` on, now or when others are done.
    pub(crate) fn fetch(&mut self, number: u64) {
        self.wants_fetch.push_back(number);
    }

    /// The next session whose stored messages may be asked for.
    pub(crate) fn next_fetch(&mut self) -> Option<u64> {
        if self.fetching >= FETCHES_AT_ONCE {
            return None;
        }
        self.wants_fetch.pop_front()
    }

    pub(crate) fn start_fetch(&mut self, session: u64, from_seq: u64) {
        self.fetching += 1;
        self.fetches.push(Fetch {
            session,
            from_seq,
            max_messages: FETCH_MESSAGES,
            max_bytes: FETCH_BYTES,
        });
    }

    pub(crate) fn fetched(&mut self) {
        self.fetching -= 1;
    }
}
