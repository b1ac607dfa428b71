//! Delivery of a message to one session: into its connection's outbox, its in-flight window or its queue.
//!
//! [`Delivery`] owns all connections and sessions of the shard. It does not use the subscription tree, so that the
//! router can walk the tree while it delivers.

use hooks::{
    AckKind, Client, ConnectionInfo, DropReason, Hooks, Interest, MessageView, PacketFacts,
};
use mqtt::{QoS, Version};
use std::rc::Rc;
use std::sync::Arc;

use super::ack_watchers::AckWatchers;
use super::connection::{CloseReason, Connection, ConnectionPhase};
use super::dispatch::Dispatch;
use super::encoding::PublishEnvelope;
use super::journal::ShardJournal;
use super::message::Message;
use super::outbox::{BufferPool, SHARE_FROM_BYTES};
use super::relay_backlog::RelayMemory;
use super::retained_store::RetainedStore;
use super::session::{SendWindow, Session, SessionMessage};
use super::session_filter::SessionFilter;
use super::subscriber_list::Subscriber;
use super::tables::{ConnectionIx, GroupId, NO_GROUP, SessionIx, Table};
use crate::config::BrokerLimits;
use crate::metrics::{Metric, ShardMetrics};

/// Pumping continues when the outbox is smaller than this.
pub(crate) const PUMP_LOW_BYTES: usize = 16 * 1024;
/// One published message in this many is timed until it is written to a socket.
const SAMPLE_EVERY: u32 = 1024;

/// The connections and sessions of a shard, and what delivering a message to them needs.
///
/// It decides nothing about connections. Those to be closed are collected in `pending_closes`, which the shard carries
/// out after each call. Those with output are in `dirty`; their owner writes them at the end of the turn.
pub(crate) struct Delivery {
    pub(crate) connections: Table<ConnectionIx, Connection>,
    pub(crate) sessions: Table<SessionIx, Session>,
    pub(crate) pool: BufferPool,
    pub(crate) deflater: ws::Deflater,
    /// Connections with output added since the last turn.
    pub(crate) dirty: Vec<ConnectionIx>,
    /// Connections to close, collected while another operation is in progress.
    pub(crate) pending_closes: Vec<(ConnectionIx, CloseReason)>,
    pub(crate) metrics: Arc<ShardMetrics>,
    pub(crate) limits: Arc<BrokerLimits>,
    pub(crate) hooks: Box<dyn Hooks>,
    pub(crate) interest: Interest,
    pub(crate) now_ms: u64,
    pub(crate) now_us: u64,
    /// Bytes in all outboxes, without those in `relay_memory`.
    pub(crate) buffered_bytes: usize,
    pub(crate) relay_memory: RelayMemory,
    /// Bytes in all session queues that are held in memory.
    pub(super) queued_bytes: usize,
    pub(super) retained: Arc<RetainedStore>,
    /// Which sessions receive the message that is being delivered; `None`: all. Data from before a start, or from another
    /// node, is for some of them only.
    pub(crate) session_filter: Option<SessionFilter>,
    /// `None`: nothing is durable on this node.
    pub(crate) journal: Option<Box<ShardJournal>>,
    pub(crate) ack_watchers: AckWatchers,
    sample_in: u32,
    /// Number of the message received last, see [`MessageView::number`].
    last_message_number: u32,
}

/// Fills in the publisher of a message, which is known by its session alone until its names are needed.
pub(crate) fn with_publisher<'a>(
    sessions: &'a Table<SessionIx, Session>,
    origin: Option<SessionIx>,
    view: &MessageView<'a>,
) -> MessageView<'a> {
    match origin {
        Some(session) => {
            let session = &sessions[session];
            MessageView {
                from_client_id: &session.client_id,
                from_username: session.username.as_deref().unwrap_or(""),
                ..*view
            }
        }
        None => *view,
    }
}

/// The client of a session, as passed to hooks.
pub(crate) fn hook_client<'a>(
    session: &'a Session,
    connections: &'a Table<ConnectionIx, Connection>,
) -> Client<'a> {
    let connection = session.connection.map(|c| &connections[c]);
    Client {
        client_id: &session.client_id,
        username: session.username.as_deref(),
        peer: connection.map(|connection| connection.peer),
        last_address: session.last_address.as_deref().copied(),
        local_address: connection.and_then(|connection| connection.local_address.as_ref()),
        version: session.version,
        connection: ConnectionInfo {
            connected_ms: session.connected_ms,
            keep_alive_s: connection.map_or(0, |connection| connection.keep_alive_s),
            clean_start: session.is_clean_start,
            session_expiry_s: session.expiry_s,
        },
    }
}

impl Delivery {
    pub(crate) fn new(
        metrics: Arc<ShardMetrics>,
        limits: Arc<BrokerLimits>,
        retained: Arc<RetainedStore>,
        hooks: Box<dyn Hooks>,
    ) -> Self {
        Self {
            connections: Table::default(),
            sessions: Table::default(),
            pool: BufferPool::default(),
            deflater: ws::Deflater::default(),
            dirty: Vec::new(),
            pending_closes: Vec::new(),
            metrics,
            limits,
            interest: hooks.interest(),
            hooks,
            now_ms: 0,
            now_us: 0,
            buffered_bytes: 0,
            relay_memory: RelayMemory::default(),
            queued_bytes: 0,
            retained,
            session_filter: None,
            journal: None,
            ack_watchers: AckWatchers::default(),
            sample_in: SAMPLE_EVERY,
            last_message_number: 0,
        }
    }

    /// Sets the shard id that is part of message numbers; see [`MessageView::number`].
    pub(crate) fn set_message_number_shard(&mut self, id: u16) {
        self.last_message_number = u32::from(id) & 0xff;
    }

    /// Returns the number for a message that was just received.
    #[inline]
    pub(crate) fn next_message_number(&mut self) -> u32 {
        self.last_message_number = self.last_message_number.wrapping_add(0x100);
        self.last_message_number
    }

    #[inline]
    fn mark_dirty(connection: &mut Connection, at: ConnectionIx, dirty: &mut Vec<ConnectionIx>) {
        if !connection.is_dirty {
            connection.is_dirty = true;
            dirty.push(at);
        }
    }

    /// Appends the output of `write` to a connection's outbox.
    #[inline]
    pub(crate) fn write(&mut self, at: ConnectionIx, write: impl FnOnce(&mut Vec<u8>)) {
        let connection = &mut self.connections[at];
        let before = connection.outbox.len();
        connection.outbox.append_with(&mut self.pool, write);
        self.buffered_bytes += connection.outbox.len() - before;
        Self::mark_dirty(connection, at, &mut self.dirty);
    }

    /// Marks a connection whose socket has other pending work than MQTT packets.
    pub(crate) fn mark_socket_dirty(&mut self, at: ConnectionIx) {
        Self::mark_dirty(&mut self.connections[at], at, &mut self.dirty);
    }

    /// Delivers to one subscriber. `identifiers` are those beyond the subscriber's own.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        subscriber: &Subscriber,
        more_identifiers: &[u32],
        group: GroupId,
    ) {
        let options = subscriber.options;
        if options.no_local && dispatch.origin == Some(subscriber.session) {
            self.record_subscriber_drop(
                dispatch.origin,
                subscriber.session,
                dispatch.view,
                DropReason::NoLocal,
            );
            return;
        }
        let qos = dispatch.view.qos.min(options.qos);
        let retain = dispatch.view.retain && options.retain_as_published;
        let session = &mut self.sessions[subscriber.session];
        if let Some(filter) = &self.session_filter
            && !filter.accepts(session.store_number)
        {
            return;
        }
        if qos == QoS::AtMostOnce {
            match session.connection {
                Some(at) => {
                    self.send_qos0(dispatch, at, subscriber, more_identifiers, retain);
                }
                None if self.limits.queue_qos0_messages => {
                    let identifiers = subscription_identifiers(subscriber, more_identifiers);
                    self.enqueue_dispatch(
                        dispatch,
                        subscriber.session,
                        qos,
                        retain,
                        identifiers,
                        group,
                    );
                }
                None => {
                    self.record_subscriber_drop(
                        dispatch.origin,
                        subscriber.session,
                        dispatch.view,
                        DropReason::Offline,
                    );
                }
            }
            return;
        }
        let identifiers = subscription_identifiers(subscriber, more_identifiers);
        if let Some(at) = session.connection {
            let connection = &self.connections[at];
            let outbound = session.outbound.get_or_insert_default();
            let room = connection.outbox.len() < self.limits.max_outbox_bytes as usize;
            let behind = connection
                .extra
                .as_ref()
                .is_some_and(|extra| !extra.retained.is_empty());
            if room && !behind && outbound.can_send(send_window(connection, &self.limits)) {
                let is_left_to_store = session.store_number != 0
                    && group == NO_GROUP
                    && outbound.can_leave_to_store()
                    && !self.interest.contains(Interest::ACK);
                if is_left_to_store {
                    let identifiers = identifiers.as_deref().unwrap_or(&[]);
                    self.send_stored_message(
                        dispatch,
                        subscriber.session,
                        at,
                        qos,
                        retain,
                        identifiers,
                    );
                    return;
                }
                let message = shared_dispatch_message(dispatch, &self.sessions);
                let session = &mut self.sessions[subscriber.session];
                let session_message = SessionMessage {
                    message,
                    qos,
                    retain,
                    identifiers,
                    group,
                    seq: session.next_seq(),
                };
                let outbound = session.outbound.as_mut().expect("created above");
                let packet_id = outbound.send(session_message.clone());
                if session_message.seq != 0 {
                    let place = (session.store_number, session_message.seq);
                    let identifiers = session_message.identifiers.as_deref().unwrap_or(&[]);
                    self.persist_dispatch(dispatch, place, packet_id, qos, retain, identifiers);
                }
                // The view of the dispatch instead of the copied message, whose texts would be checked again.
                self.send_identified(
                    (subscriber.session, at),
                    (packet_id, false),
                    &session_message,
                    (dispatch.view, dispatch.origin),
                    &mut dispatch.payload,
                );
                return;
            }
        }
        self.enqueue_dispatch(
            dispatch,
            subscriber.session,
            qos,
            retain,
            identifiers,
            group,
        );
    }

    #[inline]
    fn send_qos0(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        at: ConnectionIx,
        subscriber: &Subscriber,
        more_identifiers: &[u32],
        retain: bool,
    ) {
        let connection = &mut self.connections[at];
        if connection.is_relay() {
            self.send_relay(dispatch, at, subscriber);
            return;
        }
        let mut envelope = PublishEnvelope {
            version: connection.version,
            dup: false,
            qos: QoS::AtMostOnce,
            retain,
            packet_id: 0,
            alias: None,
            identifiers: &[],
        };
        let mut all = Vec::new();
        let view = dispatch.view;
        if connection.version == Version::V5 {
            if more_identifiers.is_empty() {
                if subscriber.identifier != 0 {
                    envelope.identifiers = std::slice::from_ref(&subscriber.identifier);
                }
            } else {
                all.push(subscriber.identifier);
                all.extend_from_slice(more_identifiers);
                envelope.identifiers = &all;
            }
        }
        let len = envelope.packet_len(view);
        // While QoS 1 and 2 messages wait for the socket, QoS 0 must not use all of its outbox.
        let room = if connection.wants_pump && connection.is_slow {
            PUMP_LOW_BYTES
        } else {
            self.limits.max_outbox_bytes as usize
        };
        if connection.outbox.len() + len > room && !connection.outbox.is_empty() {
            self.record_subscriber_drop(
                dispatch.origin,
                subscriber.session,
                dispatch.view,
                DropReason::QueueFull,
            );
            return;
        }
        if len > connection.max_packet_out as usize {
            self.record_subscriber_drop(
                dispatch.origin,
                subscriber.session,
                dispatch.view,
                DropReason::TooLarge,
            );
            return;
        }
        if connection.version == Version::V5 {
            envelope.alias = alias_for(connection, view.topic, len);
        }
        let is_common = envelope.identifiers.is_empty() && envelope.alias.is_none();
        if dispatch.has_many_sessions && is_common && view.payload.len() < SHARE_FROM_BYTES {
            let form = (envelope.version == Version::V5, retain);
            if dispatch.template_form != Some(form) {
                dispatch.template_form = Some(form);
                dispatch.template.clear();
                envelope.encode_head(view, self.now_ms, &mut dispatch.template);
                dispatch.template.extend_from_slice(view.payload);
            }
            self.append_encoded(at, &dispatch.template);
        } else {
            self.encode_to_outbox(at, &envelope, view, &mut dispatch.payload);
        }
        self.sessions[subscriber.session].messages_sent += 1;
        self.metrics.inc(Metric::SentQos0);
        if self.interest.contains(Interest::DELIVER) {
            let view = with_publisher(&self.sessions, dispatch.origin, dispatch.view);
            let client = hook_client(&self.sessions[subscriber.session], &self.connections);
            self.hooks.delivered(&client, &view, 0);
        }
    }

    /// Encodes into the outbox; `shared` keeps a large payload for the next subscriber.
    #[inline]
    fn encode_to_outbox(
        &mut self,
        at: ConnectionIx,
        envelope: &PublishEnvelope<'_>,
        view: &MessageView<'_>,
        shared: &mut Option<bytes::Bytes>,
    ) {
        let now_ms = self.now_ms;
        let connection = &mut self.connections[at];
        let before = connection.outbox.len();
        if view.payload.len() < SHARE_FROM_BYTES {
            connection.outbox.append_with(&mut self.pool, |out| {
                envelope.encode_head(view, now_ms, out);
                out.extend_from_slice(view.payload);
            });
        } else {
            let pool = &mut self.pool;
            connection
                .outbox
                .append_with(pool, |out| envelope.encode_head(view, now_ms, out));
            let payload = shared.get_or_insert_with(|| bytes::Bytes::copy_from_slice(view.payload));
            connection.outbox.append_shared(payload.clone());
        }
        self.buffered_bytes += connection.outbox.len() - before;
        self.account_outbox_growth(at);
    }

    #[inline]
    pub(super) fn append_encoded(&mut self, at: ConnectionIx, packet: &[u8]) {
        let connection = &mut self.connections[at];
        connection
            .outbox
            .append_with(&mut self.pool, |out| out.extend_from_slice(packet));
        self.buffered_bytes += packet.len();
        self.account_outbox_growth(at);
    }

    #[inline]
    pub(super) fn account_outbox_growth(&mut self, at: ConnectionIx) {
        let connection = &mut self.connections[at];
        if connection.sampled_us == 0 {
            self.sample_in -= 1;
            if self.sample_in == 0 {
                self.sample_in = SAMPLE_EVERY;
                connection.sampled_us = self.now_us;
            }
        }
        Self::mark_dirty(connection, at, &mut self.dirty);
    }

    /// Sends a QoS 1 or 2 message to a durable session whose client can take it now. The message is written to the
    /// store and to the socket; only its number stays in memory.
    #[inline]
    fn send_stored_message(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        session_at: SessionIx,
        at: ConnectionIx,
        qos: QoS,
        retain: bool,
        identifiers: &[u32],
    ) {
        let connection = &self.connections[at];
        let mut envelope = PublishEnvelope {
            version: connection.version,
            dup: false,
            qos,
            retain,
            packet_id: 0,
            alias: None,
            identifiers,
        };
        let len = envelope.packet_len(dispatch.view);
        if len > connection.max_packet_out as usize {
            self.record_subscriber_drop(
                dispatch.origin,
                session_at,
                dispatch.view,
                DropReason::TooLarge,
            );
            return;
        }
        let size = with_publisher(&self.sessions, dispatch.origin, dispatch.view).size()
            + size_of::<SessionMessage>();
        let session = &mut self.sessions[session_at];
        let seq = session.next_seq();
        let outbound = session.outbound.as_mut().expect("checked by the caller");
        envelope.packet_id = outbound.send_stored(seq, qos, size);
        let place = (session.store_number, seq);
        self.persist_dispatch(
            dispatch,
            place,
            envelope.packet_id,
            qos,
            retain,
            identifiers,
        );
        self.encode_counted(
            (session_at, at),
            envelope,
            len,
            (dispatch.view, dispatch.origin),
            &mut dispatch.payload,
            true,
        );
    }

    /// Sends a message of the session's queue; a QoS 1 or 2 message has its packet id.
    pub(super) fn send_session_message(
        &mut self,
        session: SessionIx,
        at: ConnectionIx,
        packet_id: u16,
        session_message: &SessionMessage,
        dup: bool,
    ) {
        let view = session_message.message.view();
        let shared = &mut view.shared_payload.cloned();
        self.send_identified(
            (session, at),
            (packet_id, dup),
            session_message,
            (&view, None),
            shared,
        );
    }

    /// Sends a message that has its packet id and whether it may be a duplicate. `origin` is the publisher's session if
    /// the view does not name it. A message that is too large for the client counts as delivered [MQTT-3.1.2-25].
    #[inline]
    fn send_identified(
        &mut self,
        (session, at): (SessionIx, ConnectionIx),
        (packet_id, dup): (u16, bool),
        session_message: &SessionMessage,
        (view, origin): (&MessageView<'_>, Option<SessionIx>),
        shared: &mut Option<bytes::Bytes>,
    ) {
        let connection = &self.connections[at];
        let envelope = PublishEnvelope {
            version: connection.version,
            dup,
            qos: session_message.qos,
            retain: session_message.retain,
            packet_id,
            alias: None,
            identifiers: session_message.identifiers.as_deref().unwrap_or(&[]),
        };
        let len = envelope.packet_len(view);
        if len > connection.max_packet_out as usize {
            if let Some(outbound) = &mut self.sessions[session].outbound {
                outbound.abandon_packet(packet_id);
            }
            self.mark_stored_done(session, session_message.seq);
            self.record_subscriber_drop(origin, session, view, DropReason::TooLarge);
            return;
        }
        let is_stored = session_message.seq != 0;
        self.encode_counted(
            (session, at),
            envelope,
            len,
            (view, origin),
            shared,
            is_stored,
        );
    }

    /// Encodes a message that is known to fit the client's maximum packet size. `origin` is the publisher's session if
    /// the view does not name it.
    #[inline]
    fn encode_counted(
        &mut self,
        (session, at): (SessionIx, ConnectionIx),
        mut envelope: PublishEnvelope<'_>,
        len: usize,
        (view, origin): (&MessageView<'_>, Option<SessionIx>),
        shared: &mut Option<bytes::Bytes>,
        is_stored: bool,
    ) {
        if envelope.version == Version::V5 {
            envelope.alias = alias_for(&mut self.connections[at], view.topic, len);
        }
        if envelope.qos == QoS::ExactlyOnce && is_stored {
            // Its packet id must be durable first; otherwise the client would take its repetition after a crash for
            // another message.
            self.hold_outbox(at);
        }
        self.encode_to_outbox(at, &envelope, view, shared);
        self.sessions[session].messages_sent += 1;
        self.metrics.inc(match envelope.qos {
            QoS::AtMostOnce => Metric::SentQos0,
            QoS::AtLeastOnce => Metric::SentQos1,
            QoS::ExactlyOnce => Metric::SentQos2,
        });
        if envelope.dup {
            self.metrics.inc(Metric::Redelivered);
        }
        if self.interest.contains(Interest::DELIVER) {
            let view = with_publisher(&self.sessions, origin, view);
            let client = hook_client(&self.sessions[session], &self.connections);
            self.hooks.delivered(&client, &view, envelope.packet_id);
        }
    }

    /// Records that a subscriber acknowledged a message.
    pub(crate) fn record_acknowledgement(
        &mut self,
        session: SessionIx,
        session_message: Option<&SessionMessage>,
        packet: PacketFacts<'_>,
        kind: AckKind,
    ) {
        if kind != AckKind::PubRec {
            self.metrics.inc(Metric::Acknowledged);
        }
        if !self.ack_watchers.is_empty() && kind == AckKind::PubAck {
            self.ack_watchers.acknowledge(session, packet.packet_id);
        }
        if self.interest.contains(Interest::ACK)
            && let Some(session_message) = session_message
        {
            let client = hook_client(&self.sessions[session], &self.connections);
            let view = session_message.message.view();
            self.hooks.acked(&client, &view, packet, kind);
        }
    }

    /// Discards the output that waits for a turn, and returns its first byte; `None`: there is none.
    pub(crate) fn discard_held_output(&mut self, at: ConnectionIx) -> Option<u8> {
        let connection = &mut self.connections[at];
        let before = connection.outbox.len();
        let first_byte = connection.outbox.discard_held(&mut self.pool);
        self.buffered_bytes -= before - connection.outbox.len();
        first_byte
    }

    /// Records that bytes were written to the connection's socket.
    pub(crate) fn record_written(&mut self, at: ConnectionIx, count: usize) {
        let connection = &mut self.connections[at];
        let before = connection.outbox.bytes_without_frames();
        let released = connection.outbox.advance(count, &mut self.pool);
        self.buffered_bytes -= before - connection.outbox.bytes_without_frames();
        self.relay_memory.release_bytes(released);
        connection.is_slow = !connection.outbox.is_empty();
        if connection.sampled_us != 0 && connection.outbox.is_empty() {
            let us = self.now_us.saturating_sub(connection.sampled_us);
            connection.sampled_us = 0;
            self.metrics.observe_latency(us);
        }
        if connection.wants_pump
            && connection.outbox.len() <= PUMP_LOW_BYTES
            && connection.phase == ConnectionPhase::Connected
        {
            let session = connection.session;
            self.pump(session);
        }
    }
}

pub(super) fn send_window(connection: &Connection, limits: &BrokerLimits) -> SendWindow {
    SendWindow {
        messages: connection.window,
        bytes: limits.max_queued_bytes as usize,
    }
}

pub(super) fn subscription_identifiers(subscriber: &Subscriber, more: &[u32]) -> Option<Rc<[u32]>> {
    if subscriber.identifier == 0 {
        return None;
    }
    Some(
        std::iter::once(subscriber.identifier)
            .chain(more.iter().copied())
            .collect(),
    )
}

pub(super) fn shared_dispatch_message(
    dispatch: &mut Dispatch<'_>,
    sessions: &Table<SessionIx, Session>,
) -> Rc<Message> {
    match &dispatch.message {
        Some(message) => message.clone(),
        None => {
            let mut view = with_publisher(sessions, dispatch.origin, dispatch.view);
            if view.payload.len() >= SHARE_FROM_BYTES {
                let copy = || bytes::Bytes::copy_from_slice(view.payload);
                view.shared_payload = Some(dispatch.payload.get_or_insert_with(copy));
            }
            dispatch
                .message
                .insert(Rc::new(Message::new(&view)))
                .clone()
        }
    }
}

/// The alias for a topic, if the client allows aliases: its first topics get one each. `len` is the length of the
/// packet without an alias.
fn alias_for(connection: &mut Connection, topic: &str, len: usize) -> Option<(u16, bool)> {
    let extra = connection.extra.as_mut()?;
    if extra.aliases_out_max == 0 {
        return None;
    }
    if let Some(&alias) = extra.aliases_out.get(topic) {
        return Some((alias, true));
    }
    let next = extra.aliases_out.len() as u16 + 1;
    // A first use makes the packet longer, by the property and possibly by one byte per length field.
    if next > extra.aliases_out_max || len + 5 > connection.max_packet_out as usize {
        return None;
    }
    extra.aliases_out.insert(topic.into(), next);
    Some((next, false))
}
