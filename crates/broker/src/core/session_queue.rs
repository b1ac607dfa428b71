//! A session's queue: messages that the client is about to receive are in memory, the rest in the store, within the
//! session's limits and by its policy. The queue of a session that is not durable is in memory entirely.

use hooks::{DropReason, Interest, MessageView};
use mqtt::{QoS, ReasonCode};
use std::rc::Rc;

use super::connection::CloseReason;
use super::delivery::{Delivery, hook_client, shared_dispatch_message, with_publisher};
use super::dispatch::Dispatch;
use super::records;
use super::session::{QueueLimits, QueueRoom, QueueSize, Session, SessionMessage};
use super::tables::{ConnectionIx, GroupId, NO_GROUP, SessionIx};
use crate::config::BrokerLimits;
use crate::metrics::Metric;
use store::QueuePage;

fn queue_limits(limits: &BrokerLimits) -> QueueLimits {
    QueueLimits {
        max_messages: limits.max_queued_messages as usize,
        max_bytes: limits.max_queued_bytes as usize,
        policy: limits.queue_policy,
    }
}

impl Session {
    /// The number of the next message stored for the session; 0 if messages are not stored.
    #[inline]
    pub(crate) fn next_seq(&mut self) -> u64 {
        if self.store_number == 0 {
            return 0;
        }
        self.last_seq += 1;
        self.last_seq
    }

    /// Whether another message is left to the store only. That is so if the session is durable, and either has no
    /// connection or already has enough messages in memory. Messages of groups stay in memory, since other members may
    /// have to take them over.
    fn should_store_only(&self, group: GroupId) -> bool {
        let has_room = self.outbound.as_ref().is_none_or(|o| o.has_memory_room());
        self.store_number != 0 && (!has_room || self.connection.is_none() && group == NO_GROUP)
    }
}

impl Delivery {
    /// Writes a message of a durable session to the journal; `journaled`: the message itself is there for another
    /// session.
    pub(super) fn persist_message(
        &mut self,
        session: SessionIx,
        packet_id: u16,
        session_message: &SessionMessage,
        journaled: &mut bool,
    ) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if !std::mem::replace(journaled, true) {
            journal.append_message(&session_message.message.view());
        }
        let number = self.sessions[session].store_number;
        let identifiers = session_message.identifiers.as_deref().unwrap_or(&[]);
        journal.append_entry(
            (number, session_message.seq),
            packet_id,
            session_message.qos,
            session_message.retain,
            identifiers,
        );
    }

    /// Records that a message waits for a durable session; also appends the message itself, if this is its first
    /// session.
    #[inline]
    pub(super) fn persist_dispatch(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        place: (u64, u64),
        packet_id: u16,
        qos: QoS,
        retain: bool,
        identifiers: &[u32],
    ) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if !std::mem::replace(&mut dispatch.is_journaled, true) {
            // Not the copy made for the window: its bytes would have to be checked as UTF-8 again.
            journal.append_message(&with_publisher(
                &self.sessions,
                dispatch.origin,
                dispatch.view,
            ));
        }
        journal.append_entry(place, packet_id, qos, retain, identifiers);
    }

    /// Marks a stored message as no longer needed.
    #[inline]
    pub(crate) fn mark_stored_done(&mut self, session: SessionIx, seq: u64) {
        if seq != 0
            && let Some(journal) = &mut self.journal
        {
            journal.mark_done(self.sessions[session].store_number, seq);
        }
    }

    /// Holds bytes appended to a connection's outbox from now on until this turn is in the log.
    #[inline]
    pub(crate) fn hold_outbox(&mut self, at: ConnectionIx) {
        if let Some(journal) = &mut self.journal
            && journal.has_pending_records()
            && self.connections[at].outbox.hold(journal.turn())
        {
            journal.hold_connection(at, self.now_ms);
        }
    }

    /// Adds a message to a session's queue.
    pub(super) fn enqueue_dispatch(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        session: SessionIx,
        qos: QoS,
        retain: bool,
        identifiers: Option<Rc<[u32]>>,
        group: GroupId,
    ) {
        if self.interest.contains(Interest::QUEUE) && qos != QoS::AtMostOnce {
            let state = &self.sessions[session];
            if state.connection.is_none() {
                let view = with_publisher(&self.sessions, dispatch.origin, dispatch.view);
                let client = hook_client(state, &self.connections);
                self.hooks.queued(&client, &view);
            }
        }
        if self.sessions[session].should_store_only(group) {
            let view = with_publisher(&self.sessions, dispatch.origin, dispatch.view);
            let size = view.size() + size_of::<SessionMessage>();
            if !self.make_room(session, size, dispatch.origin, dispatch.view) {
                return;
            }
            let seq = self.enqueue_stored(session, size);
            let place = (self.sessions[session].store_number, seq);
            let identifiers = identifiers.as_deref().unwrap_or(&[]);
            self.persist_dispatch(dispatch, place, 0, qos, retain, identifiers);
            return;
        }
        let session_message = SessionMessage {
            message: shared_dispatch_message(dispatch, &self.sessions),
            qos,
            retain,
            identifiers,
            group,
            seq: 0,
        };
        self.enqueue_in_memory(session, session_message, &mut dispatch.is_journaled);
    }

    /// Adds a message that did not come by a dispatch to a session's queue.
    pub(crate) fn enqueue_message(&mut self, at: SessionIx, mut session_message: SessionMessage) {
        let mut journaled = false;
        if !self.sessions[at].should_store_only(session_message.group) {
            return self.enqueue_in_memory(at, session_message, &mut journaled);
        }
        let size = session_message.size();
        if self.make_room(at, size, None, &session_message.message.view()) {
            session_message.seq = self.enqueue_stored(at, size);
            self.persist_message(at, 0, &session_message, &mut journaled);
        }
    }

    fn enqueue_in_memory(
        &mut self,
        at: SessionIx,
        mut session_message: SessionMessage,
        journaled: &mut bool,
    ) {
        let size = session_message.size();
        if self.queued_bytes + size > self.limits.max_queued_bytes_per_shard as usize {
            let view = session_message.message.view();
            return self.record_drop(Some(at), &view, DropReason::QueueFull);
        }
        if !self.make_room(at, size, None, &session_message.message.view()) {
            return;
        }
        let session = &mut self.sessions[at];
        session_message.seq = session.next_seq();
        let outbound = session.outbound.get_or_insert_default();
        let before = outbound.size();
        outbound.push(session_message.clone());
        let after = outbound.size();
        if let Some(connection) = session.connection {
            self.connections[connection].wants_pump = true;
        }
        self.update_queue_counters(before, after);
        if session_message.seq != 0 {
            self.persist_message(at, 0, &session_message, journaled);
        }
    }

    fn enqueue_stored(&mut self, at: SessionIx, size: usize) -> u64 {
        let session = &mut self.sessions[at];
        let seq = session.next_seq();
        let outbound = session.outbound.get_or_insert_default();
        let before = outbound.size();
        outbound.push_stored(seq, size, self.now_ms);
        let after = outbound.size();
        if let Some(connection) = session.connection {
            self.connections[connection].wants_pump = true;
        }
        self.update_queue_counters(before, after);
        seq
    }

    /// Makes room in a session's queue by its policy; false if the message has to be dropped.
    /// `publisher` is the session that publishes the message, if it is on this shard and `view` does not name it.
    fn make_room(
        &mut self,
        at: SessionIx,
        size: usize,
        publisher: Option<SessionIx>,
        view: &MessageView<'_>,
    ) -> bool {
        let session = &mut self.sessions[at];
        let outbound = session.outbound.get_or_insert_default();
        let before = outbound.size();
        let room = outbound.make_room(size, &queue_limits(&self.limits));
        let after = outbound.size();
        match room {
            QueueRoom::Available => return true,
            QueueRoom::MadeRoom {
                session_messages,
                stored,
            } => {
                self.update_queue_counters(before, after);
                for session_message in session_messages {
                    self.mark_stored_done(at, session_message.seq);
                    self.record_drop(
                        Some(at),
                        &session_message.message.view(),
                        DropReason::QueueFull,
                    );
                }
                for seq in stored {
                    self.mark_stored_done(at, seq);
                    // Only the store knows which message it was.
                    self.record_drop(Some(at), &MessageView::unknown(), DropReason::QueueFull);
                }
                return true;
            }
            QueueRoom::Rejected => {}
            QueueRoom::Disconnect => {
                if let Some(connection) = session.connection {
                    let why = CloseReason::new(ReasonCode::QUOTA_EXCEEDED, "queue_full")
                        .with_detail("the client's message queue is full");
                    self.pending_closes.push((connection, why));
                }
            }
        }
        self.record_subscriber_drop(publisher, at, view, DropReason::QueueFull);
        false
    }

    pub(crate) fn update_queue_counters(&mut self, before: QueueSize, after: QueueSize) {
        self.queued_bytes = self.queued_bytes + after.bytes_in_memory - before.bytes_in_memory;
        self.metrics.add(
            Metric::QueuedMessages,
            (after.messages as u64).wrapping_sub(before.messages as u64),
        );
        self.metrics.add(
            Metric::QueuedBytes,
            (after.bytes as u64).wrapping_sub(before.bytes as u64),
        );
    }

    /// Removes the messages of a durable session without a connection from memory.
    pub(crate) fn unload_queue(&mut self, at: SessionIx) {
        let session = &mut self.sessions[at];
        let Some(outbound) = &mut session.outbound else {
            return;
        };
        if session.store_number != 0 && outbound.can_unload() {
            let before = outbound.size();
            outbound.unload();
            let after = outbound.size();
            if outbound.is_idle() {
                session.outbound = None;
            }
            self.update_queue_counters(before, after);
        }
    }

    /// Reads more messages from the store for a connected session, if its queue is low.
    pub(super) fn request_more_messages(&mut self, at: SessionIx) {
        let session = &self.sessions[at];
        if session.outbound.as_ref().is_some_and(|o| o.should_load())
            && let Some(journal) = &mut self.journal
        {
            journal.reads.request(session.store_number);
            self.start_fetches();
        }
    }

    /// Starts as many reads as may run concurrently.
    fn start_fetches(&mut self) {
        // Messages that were read wait in memory, so their total is limited.
        let most = self.limits.max_queued_bytes_per_shard as usize / 2;
        while self.queued_bytes <= most
            && let Some(journal) = &mut self.journal
            && let Some(number) = journal.reads.next_request()
        {
            let Some(session) = journal.session_by_number(number) else {
                continue;
            };
            let session = &mut self.sessions[session];
            if let Some(outbound) = &mut session.outbound
                && session.connection.is_some()
                && outbound.should_load()
            {
                journal.reads.start(number, outbound.start_load());
            }
        }
    }

    /// Handles a page of a session's stored messages.
    pub(crate) fn handle_fetched_page(&mut self, page: QueuePage) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        journal.reads.finish();
        if let Some(at) = journal.session_by_number(page.session) {
            self.load_page(at, &page);
        }
        self.start_fetches();
    }

    fn load_page(&mut self, at: SessionIx, page: &QueuePage) {
        let session = &mut self.sessions[at];
        let is_connected = session.connection.is_some();
        let Some(outbound) = &mut session.outbound else {
            return;
        };
        let belongs = outbound.accept_load();
        if !is_connected {
            return;
        }
        if belongs {
            let before = outbound.size();
            let mut unreadable = 0_u64;
            for entry in &page.entries {
                if !outbound.is_stored(entry.seq) {
                    continue;
                }
                let message = match entry.released {
                    true => None,
                    false => records::read_message(&entry.body),
                };
                let attributes = records::read_attributes(&entry.attributes);
                let (true, Some(attributes)) = (entry.released || message.is_some(), attributes)
                else {
                    unreadable += 1;
                    continue;
                };
                let identifiers = (!attributes.identifiers.is_empty())
                    .then(|| attributes.identifiers.as_slice().into());
                let session_message = message.map(|message| SessionMessage {
                    message: Rc::new(message),
                    qos: attributes.qos,
                    retain: attributes.retain,
                    identifiers,
                    group: NO_GROUP,
                    seq: entry.seq,
                });
                outbound.load_message(entry.seq, entry.packet_id, session_message);
            }
            outbound.finish_load_piece(page.is_last);
            let after = outbound.size();
            self.update_queue_counters(before, after);
            if unreadable > 0 {
                tracing::error!(
                    unreadable,
                    "stored messages could not be decoded; this is a bug"
                );
            }
        }
        self.pump(at);
    }
}
