//! Stores sessions and subscriptions, and ends the turns of a shard: the batch of a turn is passed to the log, and what waits for
//! it is released afterwards.
//!
//! It orchestrates: the records of a turn, and what waits for it, are in `ShardJournal`.

use mqtt::{PacketType, ReasonCode};

use store::{QueuePage, StateKind, StoreBatch};

use super::connection::{CloseReason, Connection, ConnectionPhase};
use super::delivery::Delivery;
use super::journal::TurnEnd;
use super::records::{self, SessionRecord};
use super::shard::Shard;
use super::shard_link::ShardLink;
use super::shard_messages::ShardMessage;
use super::shared_backlog::SharedBacklog;
use super::subscriber_list::Subscriber;
use super::tables::{ConnectionIx, FilterId, GroupId, SessionIx};

/// How long an answer waits for a store that does not write.
const MAX_ANSWER_DELAY_MS: u64 = 5000;
/// How long an answer waits for other nodes that can be reached. Nodes that cannot be reached are given up earlier.
const MAX_NODE_ANSWER_DELAY_MS: u64 = 30_000;

impl Delivery {
    /// Whether the store accepts no new messages at present.
    #[inline]
    pub(crate) fn rejects_new_messages(&self) -> bool {
        self.journal
            .as_ref()
            .is_some_and(|journal| journal.rejects_writes)
    }

    /// Like `hold`, for an answer to writes of an earlier turn.
    pub(crate) fn hold_for_incomplete_turns(&mut self, at: ConnectionIx) {
        if let Some(journal) = &mut self.journal
            && (journal.has_pending_records() || journal.last_complete_turn() + 1 < journal.turn())
            && self.connections[at].outbox.hold(journal.turn())
        {
            journal.hold_connection(at, self.now_ms);
        }
    }
}

impl Shard {
    /// Sets whether the store rejects writes, and tells the other nodes.
    pub(crate) fn set_store_rejects(&mut self, rejects: bool) {
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        if std::mem::replace(&mut journal.rejects_writes, rejects) != rejects
            && let Some(router) = self.node_router
        {
            self.shard_queues
                .send(router, ShardMessage::StoreRejects(rejects));
        }
    }

    /// Whether a message would have to be stored by other nodes while the store of one of them rejects writes.
    #[inline]
    pub(crate) fn is_rejected_by_nodes(&mut self, topic: &str, retain: bool) -> bool {
        if !self.has_rejecting_node {
            return false;
        }
        let Some(router) = self.node_router else {
            return false;
        };
        let (set, _) = self.tree.match_topic(topic);
        // All nodes store retained messages.
        if retain || set.remote_shards & 1 << router != 0 {
            return true;
        }
        let groups = set.groups.clone();
        let is_elsewhere = |&group: &GroupId| {
            let mut remote = self.tree.group(group).remote().iter();
            remote.any(|members| members.shard == router && members.total > 0)
        };
        groups.iter().any(is_elsewhere)
    }

    /// Closes the connections whose answers have waited too long for a store that does not write, here or on another node.
    ///
    /// What they wait for is in memory and will be written when the store recovers, or is lost with the process. So there
    /// is no true answer to it: PUBACK and PUBREC with success would confirm what is not durable [MQTT-4.3.2-4,
    /// MQTT-4.3.3-8]. With an error they would say that a message is not accepted (MQTT 5, section 3.4.2.1) that
    /// subscribers may still receive. 3.1.1 has no negative answer at all. A closed connection leaves it open. The
    /// client sends again what was not acknowledged [MQTT-4.4.0-1], and then a failing store rejects it before it takes
    /// effect.
    pub(crate) fn close_unanswered_connections(&mut self) {
        let now_ms = self.now_ms();
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        let (overdue, detail) = match journal.rejects_writes {
            true => (
                journal.take_overdue(now_ms.saturating_sub(MAX_ANSWER_DELAY_MS)),
                "the store cannot write; what was not acknowledged may be lost",
            ),
            false => {
                let since_ms = now_ms.saturating_sub(MAX_NODE_ANSWER_DELAY_MS);
                let mut overdue = journal.take_overdue_at_nodes(since_ms);
                if self.node_router.is_some() {
                    // The log is held until the standby of the node has it.
                    overdue.append(&mut journal.take_overdue(since_ms));
                }
                (
                    overdue,
                    "another node of the cluster has not stored a message in time, or the standby of this one; it is also waited \
                     for while the NATS servers cannot be used",
                )
            }
        };
        self.close_without_answers(overdue, detail);
    }

    /// Closes connections without the answers that wait for a log, see
    /// [`close_unanswered_connections`](Self::close_unanswered_connections).
    pub(crate) fn close_without_answers(
        &mut self,
        connections: Vec<ConnectionIx>,
        detail: &'static str,
    ) {
        for at in connections {
            let is_connected =
                |connection: &Connection| connection.phase == ConnectionPhase::Connected;
            if !self.delivery.connections.get(at).is_some_and(is_connected) {
                continue;
            }
            // Another connection may have got the slot meanwhile.
            let Some(first_byte) = self.delivery.discard_held_output(at) else {
                continue;
            };
            // Nothing is sent before CONNACK [MQTT-3.2.0-1].
            let closing = match first_byte >> 4 == PacketType::ConnAck as u8 {
                true => CloseReason::without_code("store_failed"),
                false => {
                    CloseReason::new(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR, "store_failed")
                }
            };
            self.close(at, closing.with_detail(detail));
        }
    }

    /// Writes the durable state of a session, or deletes it if the session is no longer durable.
    pub(crate) fn persist_session(&mut self, at: SessionIx) {
        if self.delivery.journal.is_none() {
            return;
        }
        let session = &self.delivery.sessions[at];
        if session.store_number == 0 && session.expiry_s > 0 {
            self.make_durable(at);
        }
        let session = &mut self.delivery.sessions[at];
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        let is_kept = session.store_number != 0 || session.will.is_some();
        let before = session.record_number.take();
        if let Some(before) = before
            && (!is_kept || before != session.store_number)
        {
            let key = records::session_key(&session.client_id, before);
            journal.delete(StateKind::Sessions, &key);
        }
        if !is_kept {
            return;
        }
        session.record_number = Some(session.store_number);
        let numbers = session.accepted_numbers.as_mut();
        let numbers = numbers.map(|numbers| numbers.write());
        let body = session
            .will
            .as_ref()
            .map(|will| records::message_bytes(&will.message.view()));
        let record = SessionRecord {
            number: session.store_number,
            version: session.version,
            connected: session.connection.is_some(),
            clean_start: session.is_clean_start,
            bridge: session.is_bridge,
            provisional: session.is_provisional,
            expiry_s: session.expiry_s,
            created_ms: session.created_ms,
            disconnected_ms: session.disconnected_ms,
            username: session.username.as_deref(),
            adoption: session.adoption.as_deref().copied(),
            accepted_numbers: numbers.as_deref(),
            will: session
                .will
                .as_ref()
                .map(|will| (will.delay_s, body.as_deref().unwrap_or_default())),
        };
        let mut bytes = Vec::with_capacity(64);
        record.write(&mut bytes);
        let key = records::session_key(&session.client_id, session.store_number);
        journal.put(StateKind::Sessions, &key, &bytes);
    }

    /// Makes a session durable from now on, with its subscriptions and its waiting messages.
    fn make_durable(&mut self, at: SessionIx) {
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        let number = journal.assign_number(at);
        let session = &mut self.delivery.sessions[at];
        session.store_number = number;
        let mut seq = session.last_seq;
        if let Some(outbound) = &mut session.outbound {
            outbound.persist_all(|packet_id, session_message| {
                seq += 1;
                journal.append_message(&session_message.message.view());
                let identifiers = session_message.identifiers.as_deref().unwrap_or(&[]);
                let (qos, retain) = (session_message.qos, session_message.retain);
                journal.append_entry((number, seq), packet_id, qos, retain, identifiers);
                seq
            });
        }
        session.last_seq = seq;
        for packet_id in session.incoming_qos2.iter().flat_map(|set| set.iter()) {
            journal.restore_packet_id(number, packet_id);
        }
        for (filter, group) in session.subscriptions.clone() {
            let written = self.filter_as_written(filter, group);
            let entry = self.tree.filter(filter);
            let subscriber = match group == super::tables::NO_GROUP {
                true => entry.subscribers.get(at).copied(),
                false => self.tree.group(group).member(at).copied(),
            };
            if let Some(subscriber) = subscriber {
                self.persist_subscription(subscriber, &written);
            }
        }
    }

    /// The session has ended. Its stored messages are deleted, unless a shared backlog takes them over.
    pub(crate) fn delete_stored_session(&mut self, at: SessionIx, backlog: Option<SharedBacklog>) {
        let session = &mut self.delivery.sessions[at];
        let Some(journal) = &mut self.delivery.journal else {
            return;
        };
        if let Some(number) = session.record_number.take() {
            let key = records::session_key(&session.client_id, number);
            journal.delete(StateKind::Sessions, &key);
        }
        match backlog {
            Some(backlog) => self.start_redistribution(backlog),
            None if session.store_number != 0 => journal.end_session(session.store_number),
            None => {}
        }
    }

    pub(super) fn persist_subscription(&mut self, subscriber: Subscriber, written: &str) {
        let number = self.delivery.sessions[subscriber.session].store_number;
        if number != 0
            && let Some(journal) = &mut self.delivery.journal
        {
            let (options, identifier) = (subscriber.options, subscriber.identifier);
            journal.put_subscription(number, written, options, identifier);
        }
    }

    pub(super) fn delete_stored_subscription(
        &mut self,
        at: SessionIx,
        filter: FilterId,
        group: GroupId,
    ) {
        let number = self.delivery.sessions[at].store_number;
        if number == 0 || self.delivery.journal.is_none() {
            return;
        }
        let written = self.filter_as_written(filter, group);
        if let Some(journal) = &mut self.delivery.journal {
            let mut key = Vec::new();
            records::subscription_key(number, &written, &mut key);
            journal.delete(StateKind::Subscriptions, &key);
        }
    }

    /// Closes the turn. Its batch must be passed to the store before any output of this shard is written to a socket or
    /// sent to another shard.
    pub(crate) fn end_turn(&mut self, spare: impl FnOnce() -> StoreBatch) -> Option<TurnEnd> {
        self.persist_accepted_numbers();
        self.persist_received();
        let journal = self.delivery.journal.as_mut()?;
        let end = journal.end_turn(spare);
        let (turn, mut to_confirm) = (end.turn, end.shards_to_confirm);
        self.shard_queues.hold_until_logged(end.updated_links, turn);
        while to_confirm != 0 {
            let shard = to_confirm.trailing_zeros() as u16;
            to_confirm &= to_confirm - 1;
            self.shard_queues
                .send(shard, ShardMessage::TurnMarker { turn });
        }
        self.release_complete_turns();
        Some(end)
    }

    /// The store has logged everything up to a turn.
    pub(crate) fn handle_turn_logged(&mut self, turn: u64) {
        if let Some(journal) = &mut self.delivery.journal {
            journal.mark_logged(turn);
        }
        self.shard_queues.release_logged(turn);
        if let (Some(router), Some(journal)) = (self.node_router, &mut self.delivery.journal) {
            while let Some(batch) = journal.pop_logged_for_nodes() {
                self.shard_queues.send_batch(router, batch);
            }
        }
        self.release_complete_turns();
    }

    /// The log of this node has everything up to a turn, and the standby perhaps not. That suffices for messages to other shards:
    /// what these write comes later in the log, and so in the copy of the standby. It does not suffice for messages to other
    /// nodes: if the standby adopted the sessions without them, the publisher would send them again, with other identities.
    pub(crate) fn handle_turn_written(&mut self, turn: u64) {
        self.shard_queues.release_logged(turn);
    }

    /// The data of hooks for a turn is durable.
    pub(crate) fn handle_turn_settled(&mut self, turn: u64) {
        if let Some(journal) = &mut self.delivery.journal {
            journal.mark_settled(turn);
        }
        self.release_complete_turns();
    }

    /// Releases the output that waited for turns that are complete, and confirms turns to other shards.
    pub(crate) fn release_complete_turns(&mut self) {
        while let Some(journal) = &mut self.delivery.journal
            && let Some((turn, connections)) = journal.pop_releasable()
        {
            for at in connections {
                let Some(connection) = self.delivery.connections.get_mut(at) else {
                    continue;
                };
                connection.outbox.release(turn);
                if connection.phase == ConnectionPhase::Closing {
                    self.to_wake.push(at);
                }
                self.delivery.mark_socket_dirty(at);
            }
        }
        if let Some(journal) = &mut self.delivery.journal {
            journal.delete_routed_delayed();
        }
        while let Some(journal) = &mut self.delivery.journal
            && let Some((shard, turn)) = journal.next_confirmation()
        {
            self.shard_queues
                .send(shard, ShardMessage::TurnLogged { turn });
        }
        self.send_ready_responses();
    }

    /// Handles a page of a session's stored messages.
    pub(crate) fn handle_fetched_page(&mut self, page: QueuePage) {
        if ShardLink::from_store_number(page.session).is_some() {
            self.link_pages.push(page);
            return;
        }
        self.redistribute_page(&page);
        let session = page.session;
        self.delivery.handle_fetched_page(page);
        self.resume_after_load(session);
        self.close_pending_connections();
    }

    /// All messages to be sent again to a resumed client have been loaded: the packets it sent meanwhile are processed.
    fn resume_after_load(&mut self, number: u64) {
        let journal = self.delivery.journal.as_ref();
        let session = journal.and_then(|journal| journal.session_by_number(number));
        let session = session.and_then(|at| self.delivery.sessions.get(at));
        let Some(at) = session.and_then(|session| session.connection) else {
            return;
        };
        let serial = self.delivery.connections[at].serial;
        let is_awaiting_suback = self.pending_subacks.has_suback_of(at, serial);
        let is_awaiting_claims = self.has_pending_exclusives(at, serial);
        let connection = &mut self.delivery.connections[at];
        if connection.is_held && !is_awaiting_suback && !is_awaiting_claims {
            connection.is_held = false;
            self.to_wake.push(at);
        }
    }

    /// Whether the turn has to be closed.
    pub(crate) fn has_open_turn(&self) -> bool {
        let journal = self.delivery.journal.as_ref();
        !self.sessions_with_new_numbers.is_empty()
            || journal.is_some_and(|journal| journal.has_work())
    }
}
