//! The journal of a shard: what a turn writes to the store, and what waits until it is written.
//!
//! All changes of a turn to durable sessions, retained and delayed messages go into one batch of the store, numbered by
//! the turn. Answers that confirm receipt are PUBACK, PUBREC, PUBCOMP, PUBREL and SUBACK. They and QoS 2 messages to a
//! subscriber stay in their outbox, with everything behind them, until their turn is complete. A turn is complete when
//! its own batch is in the log. What other shards wrote because of its shard messages must also be in the log. Turns
//! complete in order.
//!
//! A shard confirms shard messages by *its own* log alone, not by what it forwarded in turn. Two shards thus never wait
//! for each other.

mod links;

use std::collections::VecDeque;

use super::hash_state::RandomState;
use hashbrown::HashMap;
use hooks::MessageView;
use mqtt::{QoS, SubscriptionOptions};
use store::{QueueEntry, QueueFetch, StateKind, StoreBatch};

use super::node_link::NodeLink;
use super::records;
use super::session::PublicationNumber;
use super::shard_link::ShardLink;
use super::stored_reads::StoredReads;
use super::tables::{ConnectionIx, SessionIx};

/// What the turns of one shard write, and what waits for them.
///
/// It owns the batch of the turn in progress, the turns that are not complete, and what they hold. The caller adds
/// records during a turn, and passes the batch that [`end_turn`](Self::end_turn) returns to the store before any output
/// of the turn leaves. Then it reports the progress of a turn: [`mark_logged`](Self::mark_logged),
/// [`mark_confirmed`](Self::mark_confirmed) and [`mark_settled`](Self::mark_settled). After each it releases what
/// [`pop_releasable`](Self::pop_releasable) returns, and sends what [`next_confirmation`](Self::next_confirmation)
/// returns to other shards.
pub(crate) struct ShardJournal {
    shard: u16,
    node_router: Option<u16>,
    /// `None` outside a cluster.
    pub(super) node_link: Option<Box<NodeLink>>,
    /// Whether a message that was published in this turn, since the last one of a client, goes to other nodes and is not in the link.
    has_unlinked_for_nodes: bool,
    batch: StoreBatch,
    /// Number of the turn in progress.
    turn: u64,
    /// Turns whose batch is not yet in the log.
    unlogged_turns: VecDeque<u64>,
    /// Turns for which hooks have data that is not durable yet.
    unsettled_turns: VecDeque<u64>,
    /// Whether the turn in progress will wait for hooks.
    waits_for_hooks: bool,
    /// Delayed messages that were due, to be deleted when the results of their turn are durable.
    routed_delayed: VecDeque<(u64, [u8; 16])>,
    /// For each other shard, the turns whose shard messages it has not confirmed.
    unconfirmed_turns: Vec<VecDeque<u64>>,
    /// Turns, sessions and packet ids of QoS 2 messages that other nodes have not logged yet.
    unconfirmed_ids: VecDeque<(u64, u64, u16)>,
    /// Turns, sessions and numbers of numbered messages that other nodes have not logged yet.
    unconfirmed_numbers: VecDeque<(u64, u64, PublicationNumber)>,
    /// Sessions and numbers of those that they have logged, to be written in this turn.
    confirmed_numbers: Vec<(u64, PublicationNumber)>,
    /// Shards that have to confirm shard messages of this turn.
    shards_to_confirm: u64,
    /// Number of the last message in the link to each other shard.
    link_seqs: Vec<u64>,
    /// Shards with new entries in their link.
    updated_links: u64,
    /// Connections with bytes that wait for a turn.
    held_connections: VecDeque<HeldTurn>,
    /// Shard messages received: the own turn, the sending shard, the sender's turn.
    received_turns: VecDeque<(u64, u16, u64)>,
    /// Sessions by their number in the store.
    session_by_number: HashMap<u64, SessionIx, RandomState>,
    next_number: u64,
    /// Number of shards; shards assign interleaved session numbers.
    shard_count: u64,
    pub(super) reads: StoredReads,
    /// Whether the store rejects new writes; set by its owner.
    pub(crate) rejects_writes: bool,
    scratch: Vec<u8>,
}

/// What waits for a turn.
struct HeldTurn {
    turn: u64,
    since_ms: u64,
    connections: Vec<ConnectionIx>,
}

/// The results of closing a turn.
pub(crate) struct TurnEnd {
    pub(crate) turn: u64,
    /// Shards that have to confirm the turn, one bit each.
    pub(crate) shards_to_confirm: u64,
    /// Shards whose messages may leave only when the turn is in the log.
    pub(crate) updated_links: u64,
    /// The batch to pass to the store.
    pub(crate) batch: Option<StoreBatch>,
    pub(crate) fetches: Vec<QueueFetch>,
    /// Whether hooks have to report when the turn is durable.
    pub(crate) waits_for_hooks: bool,
}

impl ShardJournal {
    /// `first_number` is above every number that was ever used.
    pub(crate) fn new(
        shard: u16,
        shards: u16,
        node_router: Option<u16>,
        first_number: u64,
    ) -> Self {
        let receivers = shards + u16::from(node_router.is_some());
        let node_link = node_router.map(|to| {
            let link = ShardLink {
                shards,
                from: shard,
                to,
            };
            Box::new(NodeLink::new(link.store_number()))
        });
        Self {
            node_router,
            node_link,
            has_unlinked_for_nodes: false,
            shard,
            link_seqs: vec![0; usize::from(receivers)],
            updated_links: 0,
            batch: StoreBatch::default(),
            turn: 1,
            unlogged_turns: VecDeque::new(),
            unsettled_turns: VecDeque::new(),
            waits_for_hooks: false,
            routed_delayed: VecDeque::new(),
            unconfirmed_turns: (0..receivers).map(|_| VecDeque::new()).collect(),
            unconfirmed_ids: VecDeque::new(),
            unconfirmed_numbers: VecDeque::new(),
            confirmed_numbers: Vec::new(),
            shards_to_confirm: 0,
            held_connections: VecDeque::new(),
            received_turns: VecDeque::new(),
            session_by_number: HashMap::default(),
            next_number: first_number + u64::from(shard),
            shard_count: shards.into(),
            reads: StoredReads::default(),
            rejects_writes: false,
            scratch: Vec::new(),
        }
    }

    /// Whether messages are recorded on their way to other nodes.
    pub(crate) fn has_node_link(&self) -> bool {
        self.node_link.is_some()
    }

    /// Assigns a number to a session of this shard.
    pub(crate) fn assign_number(&mut self, session: SessionIx) -> u64 {
        let number = self.next_number;
        self.next_number += self.shard_count;
        self.session_by_number.insert(number, session);
        number
    }

    pub(crate) fn bind_session(&mut self, number: u64, session: SessionIx) {
        self.session_by_number.insert(number, session);
    }

    pub(crate) fn session_by_number(&self, number: u64) -> Option<SessionIx> {
        self.session_by_number.get(&number).copied()
    }

    /// Sessions that follow have this number or a higher one.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Returns a unique number for another purpose.
    pub(crate) fn next_unique_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += self.shard_count;
        number
    }

    /// Whether something of this turn has to be in a log before it may be answered.
    #[inline]
    pub(crate) fn has_pending_records(&self) -> bool {
        self.waits_for_hooks || self.has_unlogged_records()
    }

    /// Whether this turn has written something, or passed something to another shard that has to write it.
    pub(crate) fn has_unlogged_records(&self) -> bool {
        self.shards_to_confirm != 0 || !self.batch.is_empty()
    }

    /// Whether this turn has to be closed.
    pub(crate) fn has_work(&self) -> bool {
        self.has_pending_records()
            || self.has_forwarded_to_nodes()
            || self.reads.has_started()
            || !self.confirmed_numbers.is_empty()
            || self
                .held_connections
                .back()
                .is_some_and(|held| held.turn == self.turn)
            || self
                .received_turns
                .back()
                .is_some_and(|&(turn, ..)| turn == self.turn)
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// Marks a shard that has to log messages of this turn.
    #[inline]
    pub(crate) fn require_confirmation(&mut self, shard: u16) {
        self.shards_to_confirm |= 1 << shard;
        self.has_unlinked_for_nodes |= self.node_router == Some(shard);
    }

    /// A client publishes a message.
    pub(crate) fn begin_publication(&mut self) {
        self.has_unlinked_for_nodes = false;
    }

    /// Appends a message; entries that follow with [`ShardJournal::append_entry`] refer to it.
    #[inline]
    pub(crate) fn append_message(&mut self, view: &MessageView<'_>) {
        self.batch.begin_message_with_head(
            records::message_head_len(view),
            |head| records::message_head(view, head),
            &records::message_parts(view),
        );
    }

    /// Records that the message written last waits for a session.
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

    /// Writes a stored message of a session at another node, with its state of delivery.
    pub(crate) fn copy_entry(&mut self, number: u64, entry: &QueueEntry) {
        self.batch.begin_message(&[&entry.body]);
        let (seq, packet_id) = (entry.seq, entry.packet_id);
        self.batch
            .add_entry(number, seq, packet_id, &entry.attributes);
        if entry.released {
            self.batch.mark_released(number, seq);
        }
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

    /// Records the packet id of a QoS 2 message that a client has published in this turn. If anything that results from the
    /// message goes to other nodes and is not in the link, the packet id is written when they have logged it: if this node
    /// died before, the client has to send the message again, and it must not be taken for one that has arrived
    /// everywhere.
    pub(crate) fn record_packet_id(&mut self, number: u64, packet_id: u16) {
        match self.has_unlinked_for_nodes {
            true => self
                .unconfirmed_ids
                .push_back((self.turn, number, packet_id)),
            false => self.restore_packet_id(number, packet_id),
        }
    }

    /// Keeps the number of a numbered message of this turn until other nodes have logged what results from it; false if all
    /// of that is in the link, or nothing goes to other nodes.
    pub(crate) fn hold_number_for_nodes(
        &mut self,
        session: u64,
        number: PublicationNumber,
    ) -> bool {
        let is_held = self.has_unlinked_for_nodes;
        if is_held {
            self.unconfirmed_numbers
                .push_back((self.turn, session, number));
        }
        is_held
    }

    /// The session has another publisher, or has ended.
    pub(crate) fn forget_numbers(&mut self, session: u64) {
        self.unconfirmed_numbers
            .retain(|&(_, other, _)| other != session);
        self.confirmed_numbers
            .retain(|&(other, _)| other != session);
    }

    /// Numbers to be written in this turn, and their sessions, because other nodes have logged their messages.
    pub(crate) fn take_confirmed_numbers(&mut self) -> Vec<(SessionIx, PublicationNumber)> {
        let confirmed = std::mem::take(&mut self.confirmed_numbers);
        let sessions = &self.session_by_number;
        let numbers = confirmed.into_iter();
        numbers
            .filter_map(|(session, number)| Some((*sessions.get(&session)?, number)))
            .collect()
    }

    /// Writes a packet id whose message is wherever it has to be.
    pub(crate) fn restore_packet_id(&mut self, number: u64, packet_id: u16) {
        self.batch.add_received_id(number, packet_id);
    }

    pub(crate) fn release_packet_id(&mut self, number: u64, packet_id: u16) {
        self.unconfirmed_ids
            .retain(|&(_, session, id)| (session, id) != (number, packet_id));
        self.batch.remove_received_id(number, packet_id);
    }

    pub(crate) fn end_session(&mut self, number: u64) {
        self.unconfirmed_ids
            .retain(|&(_, session, _)| session != number);
        self.forget_numbers(number);
        self.session_by_number.remove(&number);
        self.batch.end_session(number);
    }

    /// The records under a number no longer belong to a session, but are not deleted yet.
    pub(crate) fn unbind_session(&mut self, number: u64) {
        self.session_by_number.remove(&number);
    }

    /// Writes a subscription of a durable session; `filter` is as the client has written it.
    pub(crate) fn put_subscription(
        &mut self,
        number: u64,
        filter: &str,
        options: SubscriptionOptions,
        identifier: u32,
    ) {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        records::subscription_key(number, filter, &mut key);
        records::put_subscription(options, identifier, &mut value);
        self.put(StateKind::Subscriptions, &key, &value);
    }

    pub(crate) fn put(&mut self, space: StateKind, key: &[u8], value: &[u8]) {
        self.batch.put(space, key, value);
    }

    pub(crate) fn delete(&mut self, space: StateKind, key: &[u8]) {
        self.batch.delete(space, key);
    }

    /// Records that a connection has bytes that wait for this turn.
    pub(crate) fn hold_connection(&mut self, connection: ConnectionIx, now_ms: u64) {
        match self.held_connections.back_mut() {
            Some(held) if held.turn == self.turn => held.connections.push(connection),
            _ => self.held_connections.push_back(HeldTurn {
                turn: self.turn,
                since_ms: now_ms,
                connections: vec![connection],
            }),
        }
    }

    /// The connections with bytes that have waited since `since_ms` or longer for a log, of this or another shard. They
    /// are returned once.
    pub(crate) fn take_overdue(&mut self, since_ms: u64) -> Vec<ConnectionIx> {
        let stored = self.last_stored_turn();
        let held = self.held_connections.iter_mut();
        held.take_while(|held| held.since_ms <= since_ms)
            .filter(|held| held.turn > stored)
            .flat_map(|held| std::mem::take(&mut held.connections))
            .collect()
    }

    /// The connections with bytes that have waited since `since_ms` or longer for the logs of other nodes. They are returned
    /// once.
    pub(crate) fn take_overdue_at_nodes(&mut self, since_ms: u64) -> Vec<ConnectionIx> {
        let router = self.node_router.map(usize::from);
        let unconfirmed = router.and_then(|router| self.unconfirmed_turns[router].front().copied());
        let link = self.node_link.as_ref();
        let linked = link.and_then(|link| link.first_forwarded_turn());
        let Some(first) = unconfirmed.into_iter().chain(linked).min() else {
            return Vec::new();
        };
        let held = self.held_connections.iter_mut();
        held.take_while(|held| held.since_ms <= since_ms)
            .filter(|held| held.turn >= first)
            .flat_map(|held| std::mem::take(&mut held.connections))
            .collect()
    }

    /// All connections with bytes that wait for a log. They are returned once.
    pub(crate) fn take_held_connections(&mut self) -> Vec<ConnectionIx> {
        let held = self.held_connections.iter_mut();
        held.flat_map(|held| std::mem::take(&mut held.connections))
            .collect()
    }

    /// The next connections whose turn is complete, and that turn.
    pub(crate) fn pop_releasable(&mut self) -> Option<(u64, Vec<ConnectionIx>)> {
        let complete = self.last_complete_turn();
        match self.held_connections.front() {
            Some(held) if held.turn <= complete => {
                let held = self.held_connections.pop_front()?;
                Some((held.turn, held.connections))
            }
            _ => None,
        }
    }

    /// The last turn before the first of `turns`, which are ascending.
    fn last_turn_before(&self, turns: &VecDeque<u64>) -> u64 {
        turns.front().map_or(self.turn, |&first| first) - 1
    }

    /// The last complete turn.
    pub(crate) fn last_complete_turn(&self) -> u64 {
        self.last_stored_turn()
            .min(self.last_turn_before(&self.unsettled_turns))
    }

    /// The last turn whose own records are in the log.
    pub(crate) fn last_logged_turn(&self) -> u64 {
        self.last_turn_before(&self.unlogged_turns)
    }

    /// The last turn that is complete apart from the data of hooks: its records are in the log, and so is what other
    /// shards and nodes wrote because of it.
    pub(crate) fn last_stored_turn(&self) -> u64 {
        let others = self.unconfirmed_turns.iter();
        let others = others.map(|turns| self.last_turn_before(turns)).min();
        let link = self.node_link.as_ref();
        let linked = link.and_then(|link| link.first_unconfirmed_turn());
        self.last_turn_before(&self.unlogged_turns)
            .min(others.unwrap_or(u64::MAX))
            .min(linked.map_or(u64::MAX, |first| first - 1))
    }

    /// Records that messages of another shard's turn were received in this turn.
    pub(crate) fn record_turn_marker(&mut self, from: u16, turn: u64) {
        self.received_turns.push_back((self.turn, from, turn));
    }

    /// The next turn of another shard whose messages, with all their results, are in this shard's log.
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
        let logged = self.last_logged_turn();
        if let Some(link) = &mut self.node_link {
            link.mark_logged(logged);
        }
    }

    /// Answers from now on in this turn also wait for what hooks make durable.
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

    /// The data of hooks for a turn is durable. Turns are reported in any order.
    pub(crate) fn mark_settled(&mut self, turn: u64) {
        self.unsettled_turns.retain(|&other| other != turn);
    }

    pub(crate) fn mark_confirmed(&mut self, shard: u16, turn: u64) {
        let unconfirmed = &mut self.unconfirmed_turns[usize::from(shard)];
        while unconfirmed.front().is_some_and(|&first| first <= turn) {
            unconfirmed.pop_front();
        }
        if self.node_router == Some(shard) {
            let removed = match &mut self.node_link {
                Some(link) => link.pop_confirmed(turn, self.turn),
                None => Vec::new(),
            };
            self.remove_node_entries(&removed);
            while let Some((_, number, packet_id)) = self
                .unconfirmed_ids
                .pop_front_if(|&mut (of_turn, ..)| of_turn <= turn)
            {
                self.batch.add_received_id(number, packet_id);
            }
            while let Some((_, session, number)) = self
                .unconfirmed_numbers
                .pop_front_if(|&mut (of_turn, ..)| of_turn <= turn)
            {
                self.confirmed_numbers.push((session, number));
            }
        }
    }

    /// Closes the turn.
    pub(crate) fn end_turn(&mut self, spare: impl FnOnce() -> StoreBatch) -> TurnEnd {
        let turn = self.turn;
        let mut to_confirm = std::mem::take(&mut self.shards_to_confirm);
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
        if let (Some(link), Some(router)) = (&mut self.node_link, self.node_router) {
            link.end_turn(turn);
            // The turns that wrote these messages wait for the answer, and this one does not.
            to_confirm |= u64::from(link.has_forwarded_in(turn)) << router;
        }
        self.has_unlinked_for_nodes = false;
        self.turn += 1;
        let waits_for_hooks = std::mem::take(&mut self.waits_for_hooks);
        if waits_for_hooks {
            self.unsettled_turns.push_back(turn);
        }
        TurnEnd {
            turn,
            shards_to_confirm: to_confirm,
            updated_links: std::mem::take(&mut self.updated_links),
            batch,
            fetches: self.reads.take_started(),
            waits_for_hooks,
        }
    }
}
