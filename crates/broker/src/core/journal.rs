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
use store::{QueueFetch, StateKind, StoreBatch};

use super::delivery::Dispatch;
use super::message::MessageView;
use super::records;

/// Sessions whose stored messages are read at once; others wait for their turn.
const MAX_CONCURRENT_FETCHES: usize = 64;
/// How much of one session's stored messages is read at once.
const FETCH_MESSAGES: u32 = 128;
const FETCH_BYTES: u32 = 64 * 1024;

/// Session numbers from here on are not sessions but links: queues of what one shard has for another.
pub(crate) const FIRST_LINK_NUMBER: u64 = 1 << 62;

/// A QoS 2 message that a durable session published and another shard has subscribers for must reach them once, though
/// its packet id is written down by one shard and who gets it by the other, and the node may die in between. So it is
/// written into the link together with the packet id, the words about it leave when that is in the log, and the
/// other shard takes it out of the link in the batch in which it writes down who gets it. What a start finds in a
/// link is delivered then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardLink {
    /// How many shards the node had. Their sessions are those whose number leaves the shard's as remainder.
    pub(crate) shards: u16,
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl ShardLink {
    pub(crate) fn store_number(self) -> u64 {
        FIRST_LINK_NUMBER
            | u64::from(self.shards) << 32
            | u64::from(self.from) << 16
            | u64::from(self.to)
    }

    pub(crate) fn from_store_number(number: u64) -> Option<Self> {
        (number & FIRST_LINK_NUMBER != 0).then_some(Self {
            shards: (number >> 32) as u16,
            from: (number >> 16) as u16,
            to: number as u16,
        })
    }
}

pub(crate) struct ShardJournal {
    shard: u16,
    batch: StoreBatch,
    /// Number of the turn being filled.
    turn: u64,
    /// Turns whose batch is not yet in the log.
    unlogged_turns: VecDeque<u64>,
    /// Turns of which hooks have something that is not safe yet.
    unsettled_turns: VecDeque<u64>,
    /// Whether this turn will be one.
    waits_for_hooks: bool,
    /// Delayed messages that were due, to be deleted when what came of them in this turn is safe.
    routed_delayed: VecDeque<(u64, [u8; 16])>,
    /// For each other shard the turns whose words it has not confirmed.
    unconfirmed_turns: Vec<VecDeque<u64>>,
    /// Shards that get words in this turn that they have to confirm.
    shards_to_confirm: u64,
    /// Number of the last message in the link to each other shard.
    link_seqs: Vec<u64>,
    /// Shards with something new in their link.
    updated_links: u64,
    /// Connections with bytes that wait for a turn.
    held_connections: VecDeque<(u64, Vec<u32>)>,
    /// Words heard: in which turn of ours, from which shard, which turn of theirs.
    received_turns: VecDeque<(u64, u16, u64)>,
    /// Sessions by the number they are stored under.
    session_by_number: HashMap<u64, u32, RandomState>,
    next_number: u64,
    /// Shards number their sessions alternately.
    shard_count: u64,
    fetch_requests: VecDeque<u64>,
    fetches: Vec<QueueFetch>,
    active_fetches: usize,
    /// Why the store takes nothing new; told by its owner.
    pub(crate) refuses_writes: bool,
    scratch: Vec<u8>,
}

/// What the end of a turn leaves.
pub(crate) struct TurnEnd {
    pub(crate) turn: u64,
    /// Shards that have to confirm the turn, one bit each.
    pub(crate) shards_to_confirm: u64,
    /// Shards to which words may leave only when the turn is in the log.
    pub(crate) updated_links: u64,
    /// For the store, like the rest.
    pub(crate) batch: Option<StoreBatch>,
    pub(crate) fetches: Vec<QueueFetch>,
    /// Hooks are to say when the turn is safe.
    pub(crate) waits_for_hooks: bool,
}

impl ShardJournal {
    /// `first_number` is above every number that was ever used.
    pub(crate) fn new(shard: u16, shards: u16, first_number: u64) -> Self {
        Self {
            shard,
            link_seqs: vec![0; usize::from(shards)],
            updated_links: 0,
            batch: StoreBatch::default(),
            turn: 1,
            unlogged_turns: VecDeque::new(),
            unsettled_turns: VecDeque::new(),
            waits_for_hooks: false,
            routed_delayed: VecDeque::new(),
            unconfirmed_turns: (0..shards).map(|_| VecDeque::new()).collect(),
            shards_to_confirm: 0,
            held_connections: VecDeque::new(),
            received_turns: VecDeque::new(),
            session_by_number: HashMap::default(),
            next_number: first_number + u64::from(shard),
            shard_count: shards.into(),
            fetch_requests: VecDeque::new(),
            fetches: Vec::new(),
            active_fetches: 0,
            refuses_writes: false,
            scratch: Vec::new(),
        }
    }

    /// A number for a session of this shard.
    pub(crate) fn assign_number(&mut self, session: u32) -> u64 {
        let number = self.next_number;
        self.next_number += self.shard_count;
        self.session_by_number.insert(number, session);
        number
    }

    pub(crate) fn bind_session(&mut self, number: u64, session: u32) {
        self.session_by_number.insert(number, session);
    }

    pub(crate) fn session_by_number(&self, number: u64) -> Option<u32> {
        self.session_by_number.get(&number).copied()
    }

    /// A number for anything else that needs one of its own.
    pub(crate) fn next_unique_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += self.shard_count;
        number
    }

    /// Whether something of this turn has to be in a log before it may be answered.
    #[inline]
    pub(crate) fn has_pending_records(&self) -> bool {
        self.shards_to_confirm != 0 || self.waits_for_hooks || !self.batch.is_empty()
    }

    /// Whether this turn has to be closed.
    pub(crate) fn has_work(&self) -> bool {
        self.has_pending_records()
            || !self.fetches.is_empty()
            || self
                .held_connections
                .back()
                .is_some_and(|&(turn, _)| turn == self.turn)
            || self
                .received_turns
                .back()
                .is_some_and(|&(turn, ..)| turn == self.turn)
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// Messages that another shard has to write down go to it in this turn.
    #[inline]
    fn require_confirmation(&mut self, shard: u16) {
        self.shards_to_confirm |= 1 << shard;
    }

    /// A message goes to another shard, for all its subscribers or for one member of a group. What has to arrive
    /// exactly once gets a place in the link, which is returned; everything else above QoS 0 the other shard confirms.
    pub(crate) fn record_cross_shard(
        &mut self,
        to: u16,
        view: &MessageView<'_>,
        dispatch: &mut Dispatch<'_>,
        member: Option<(&str, &str)>,
    ) -> Option<u64> {
        if view.qos == QoS::AtMostOnce {
            return None;
        }
        if !dispatch.is_exactly_once {
            self.require_confirmation(to);
            return None;
        }
        if !std::mem::replace(&mut dispatch.is_journaled, true) {
            self.append_message(view);
        }
        Some(self.append_link_entry(to, member))
    }

    /// A message; what follows with [`ShardJournal::append_entry`] waits for it.
    #[inline]
    pub(crate) fn append_message(&mut self, view: &MessageView<'_>) {
        self.batch.begin_message_with_head(
            records::message_head_len(view),
            |head| records::message_head(view, head),
            &records::message_parts(view),
        );
    }

    /// After a start, links are continued where they ended.
    pub(crate) fn resume_link(&mut self, link: ShardLink, last_seq: u64) {
        if usize::from(link.shards) == self.link_seqs.len() && link.from == self.shard {
            self.link_seqs[usize::from(link.to)] = last_seq;
        }
    }

    /// The message written last is on its way to another shard, for all its subscribers or for one member of a group.
    fn append_link_entry(&mut self, to: u16, member: Option<(&str, &str)>) -> u64 {
        let seq = &mut self.link_seqs[usize::from(to)];
        *seq += 1;
        let link = ShardLink {
            shards: self.shard_count as u16,
            from: self.shard,
            to,
        };
        self.scratch.clear();
        records::put_member_target(member, &mut self.scratch);
        self.batch
            .add_entry(link.store_number(), *seq, 0, &self.scratch);
        self.updated_links |= 1 << to;
        *seq
    }

    /// A message has arrived from another shard, and who gets it is written down.
    pub(crate) fn complete_link_entry(&mut self, from: u16, seq: u64) {
        let link = ShardLink {
            shards: self.shard_count as u16,
            from,
            to: self.shard,
        };
        self.batch.complete_entry(link.store_number(), seq);
    }

    /// The message written last waits for a session.
    #[inline]
    pub(crate) fn append_entry(
        &mut self,
        (number, seq): (u64, u64),
        packet_id: u16,
        qos: QoS,
        retain: bool,
        identifiers: &[u32],
    ) {
        if identifiers.is_empty() {
            let attributes = [records::attribute_byte(qos, retain)];
            return self.batch.add_entry(number, seq, packet_id, &attributes);
        }
        self.scratch.clear();
        records::put_attributes(qos, retain, identifiers, &mut self.scratch);
        self.batch.add_entry(number, seq, packet_id, &self.scratch);
    }

    pub(crate) fn mark_sent(&mut self, number: u64, seq: u64, packet_id: u16) {
        self.batch.mark_sent(number, seq, packet_id);
    }

    pub(crate) fn mark_released(&mut self, number: u64, seq: u64) {
        self.batch.mark_released(number, seq);
    }

    #[inline]
    pub(crate) fn mark_done(&mut self, number: u64, seq: u64) {
        self.batch.complete_entry(number, seq);
    }

    pub(crate) fn record_packet_id(&mut self, number: u64, packet_id: u16) {
        self.batch.add_received_id(number, packet_id);
    }

    pub(crate) fn release_packet_id(&mut self, number: u64, packet_id: u16) {
        self.batch.remove_received_id(number, packet_id);
    }

    pub(crate) fn end_session(&mut self, number: u64) {
        self.session_by_number.remove(&number);
        self.batch.end_session(number);
    }

    /// What is stored under a number is no session's any more, and is not thrown away yet.
    pub(crate) fn unbind_session(&mut self, number: u64) {
        self.session_by_number.remove(&number);
    }

    pub(crate) fn put(&mut self, space: StateKind, key: &[u8], value: &[u8]) {
        self.batch.put(space, key, value);
    }

    pub(crate) fn delete(&mut self, space: StateKind, key: &[u8]) {
        self.batch.delete(space, key);
    }

    /// A connection has bytes that wait for this turn.
    pub(crate) fn hold_connection(&mut self, connection: u32) {
        match self.held_connections.back_mut() {
            Some((turn, connections)) if *turn == self.turn => connections.push(connection),
            _ => self
                .held_connections
                .push_back((self.turn, vec![connection])),
        }
    }

    /// The next connections whose turn is complete, and that turn.
    pub(crate) fn pop_releasable(&mut self) -> Option<(u64, Vec<u32>)> {
        let complete = self.last_complete_turn();
        match self.held_connections.front() {
            Some(&(turn, _)) if turn <= complete => self.held_connections.pop_front(),
            _ => None,
        }
    }

    /// The last turn that is complete.
    pub(crate) fn last_complete_turn(&self) -> u64 {
        let before = |turns: &VecDeque<u64>| turns.front().map_or(self.turn, |&first| first) - 1;
        let others = self.unconfirmed_turns.iter().map(before).min();
        let own = before(&self.unlogged_turns).min(before(&self.unsettled_turns));
        own.min(others.unwrap_or(u64::MAX))
    }

    /// Words of another shard's turn were heard in this one.
    pub(crate) fn record_turn_marker(&mut self, from: u16, turn: u64) {
        self.received_turns.push_back((self.turn, from, turn));
    }

    /// The next words of another shard that are in our log, with all that came of them.
    pub(crate) fn next_confirmation(&mut self) -> Option<(u16, u64)> {
        let logged = self
            .unlogged_turns
            .front()
            .map_or(self.turn, |&first| first)
            - 1;
        match self.received_turns.front() {
            Some(&(turn, from, theirs)) if turn <= logged => {
                self.received_turns.pop_front();
                Some((from, theirs))
            }
            _ => None,
        }
    }

    /// Everything up to a turn is in the log.
    pub(crate) fn mark_logged(&mut self, turn: u64) {
        while self
            .unlogged_turns
            .front()
            .is_some_and(|&first| first <= turn)
        {
            self.unlogged_turns.pop_front();
        }
    }

    /// What is answered from now on in this turn waits for what hooks have made of it.
    pub(crate) fn mark_waiting_for_hooks(&mut self) {
        self.waits_for_hooks = true;
    }

    pub(crate) fn waits_for_hooks(&self) -> bool {
        self.waits_for_hooks
    }

    /// Deletes a delayed message when this turn is complete.
    pub(crate) fn delete_delayed_when_complete(&mut self, key: [u8; 16]) {
        self.routed_delayed.push_back((self.turn, key));
    }

    #[cfg(test)]
    pub(super) fn has_routed_delayed(&self) -> bool {
        !self.routed_delayed.is_empty()
    }

    /// Deletes the delayed messages whose turn is complete.
    pub(crate) fn delete_routed_delayed(&mut self) {
        let complete = self.last_complete_turn();
        while let Some(&(turn, key)) = self.routed_delayed.front()
            && turn <= complete
        {
            self.routed_delayed.pop_front();
            self.batch.delete(StateKind::Delayed, &key);
        }
    }

    /// What hooks have made of a turn is safe. Turns are told in any order.
    pub(crate) fn mark_settled(&mut self, turn: u64) {
        self.unsettled_turns.retain(|&other| other != turn);
    }

    pub(crate) fn mark_confirmed(&mut self, shard: u16, turn: u64) {
        let unconfirmed = &mut self.unconfirmed_turns[usize::from(shard)];
        while unconfirmed.front().is_some_and(|&first| first <= turn) {
            unconfirmed.pop_front();
        }
    }

    /// Closes the turn.
    pub(crate) fn end_turn(&mut self, spare: impl FnOnce() -> StoreBatch) -> TurnEnd {
        let turn = self.turn;
        let to_confirm = std::mem::take(&mut self.shards_to_confirm);
        for (shard, unconfirmed) in self.unconfirmed_turns.iter_mut().enumerate() {
            if to_confirm & 1 << shard != 0 {
                unconfirmed.push_back(turn);
            }
        }
        let batch = (!self.batch.is_empty()).then(|| {
            self.unlogged_turns.push_back(turn);
            let mut batch = std::mem::replace(&mut self.batch, spare());
            batch.number = turn;
            batch
        });
        self.turn += 1;
        let waits_for_hooks = std::mem::take(&mut self.waits_for_hooks);
        if waits_for_hooks {
            self.unsettled_turns.push_back(turn);
        }
        let fetches = std::mem::take(&mut self.fetches);
        TurnEnd {
            turn,
            shards_to_confirm: to_confirm,
            updated_links: std::mem::take(&mut self.updated_links),
            batch,
            fetches,
            waits_for_hooks,
        }
    }

    /// Asks for the stored messages of a session from `from_seq` on, now or when others are done.
    pub(crate) fn request_fetch(&mut self, number: u64) {
        self.fetch_requests.push_back(number);
    }

    /// The next session whose stored messages may be asked for.
    pub(crate) fn next_fetch(&mut self) -> Option<u64> {
        if self.active_fetches >= MAX_CONCURRENT_FETCHES {
            return None;
        }
        self.fetch_requests.pop_front()
    }

    pub(crate) fn start_fetch(&mut self, session: u64, from_seq: u64) {
        self.active_fetches += 1;
        self.fetches.push(QueueFetch {
            session,
            from_seq,
            max_messages: FETCH_MESSAGES,
            max_bytes: FETCH_BYTES,
        });
    }

    pub(crate) fn finish_fetch(&mut self) {
        self.active_fetches -= 1;
    }
}
