//! How connections and sessions end: the DISCONNECT, the session's remaining state, the will, the messages of shared
//! subscriptions.
//!
//! It orchestrates: the end of a session concerns `Delivery`, the tree, the timers, the journal and the directory.

use hooks::{
    Authorization, ClientAction, DropReason, Interest, MessageOrigin, MessageView, PeerAddress,
};
use mqtt::{Disconnect, Packet, PropertiesBuf, Property, ReasonCode, Version};
use std::sync::atomic::Ordering::Relaxed;

use super::connection::{CloseReason, ConnectionPhase};
use super::directory::NodeDirectory;
use super::message::expiry_time_ms;
use super::publish::SYS_PREFIX;
use super::shard::Shard;
use super::tables::{ConnectionIx, NO_GROUP, NO_SESSION, SessionIx};
use crate::metrics::Metric;

impl Shard {
    /// Closes a connection: sends DISCONNECT if the version has one for servers, then ignores further input. The slot
    /// stays until its owner has written the outbox and calls [`Shard::remove_connection`].
    pub(crate) fn close(&mut self, at: ConnectionIx, closing: CloseReason) {
        let connection = &mut self.delivery.connections[at];
        if connection.phase == ConnectionPhase::Closing {
            return;
        }
        let was_authenticating = connection.phase == ConnectionPhase::Authenticating;
        let was_connected = connection.phase == ConnectionPhase::Connected;
        let was_tunnelled = connection.phase == ConnectionPhase::Tunnelled;
        connection.phase = ConnectionPhase::Closing;
        let closing_connections = &self.node.directory.closing_connections;
        closing_connections.fetch_add(1, Relaxed);
        let (version, session) = (connection.version, connection.session);
        let connection_is_relay = connection.is_relay();
        if let Some(detail) = &closing.detail {
            tracing::debug!(peer = %connection.peer, why = closing.reason, %detail, "closing a connection");
        }
        self.release_partial(at);
        if was_authenticating {
            self.withdraw_claim(at);
        }
        if was_tunnelled {
            self.close_tunnel(at);
        }
        if was_connected
            && !connection_is_relay
            && version == Version::V5
            && let Some(code) = closing.code
        {
            self.send_disconnect(at, code, &closing);
        }
        if connection_is_relay || closing.relay.is_some() {
            self.write_relay_close(at, &closing);
        }
        self.to_wake.push(at);
        if was_connected && connection_is_relay {
            self.end_relay(at, session, &closing);
        } else if was_connected && session != NO_SESSION {
            self.detach_session(at, session, &closing);
        }
    }

    fn send_disconnect(&mut self, at: ConnectionIx, reason: ReasonCode, closing: &CloseReason) {
        let mut properties = PropertiesBuf::new();
        let connection = &self.delivery.connections[at];
        if let Some(detail) = &closing.detail
            && self.limits().send_reason_strings
            && connection.wants_problem_information
        {
            properties.push(Property::ReasonString(detail));
        }
        if reason == ReasonCode::USE_ANOTHER_SERVER
            && let Some(reference) = &self.node.server_reference
        {
            properties.push(Property::ServerReference(reference));
        }
        let max = connection.max_packet_out as usize;
        let mut packet = Vec::new();
        let disconnect = Disconnect {
            reason,
            properties: properties.as_properties(),
        };
        Packet::Disconnect(disconnect).encode(Version::V5, &mut packet);
        if packet.len() > max {
            // The reason string is omitted if the packet would be too large with it [MQTT-3.14.2-3].
            packet.clear();
            let properties = mqtt::Properties::EMPTY;
            Packet::Disconnect(Disconnect { reason, properties }).encode(Version::V5, &mut packet);
        }
        self.delivery
            .write(at, |out| out.extend_from_slice(&packet));
    }

    /// Detaches a connection from its session, which then continues alone or ends.
    fn detach_session(&mut self, at: ConnectionIx, session_at: SessionIx, closing: &CloseReason) {
        self.metrics().sub(Metric::ClientsConnected, 1);
        let connection = &mut self.delivery.connections[at];
        // Hooks are told where the client was last.
        connection.peer = connection.current_peer();
        if self.delivery.interest.contains(Interest::DISCONNECT) {
            self.call_hook(session_at, |hooks, client| {
                hooks.disconnected(client, closing.reason)
            });
        }
        self.delivery.queue_pending_retained(session_at, at);
        let now_ms = self.now_ms();
        let peer = self.delivery.connections[at].peer;
        let session = &mut self.delivery.sessions[session_at];
        session.connection = None;
        if let PeerAddress::Tcp(address) = peer {
            session.last_address = Some(Box::new(address));
        }
        session.disconnected_ms = now_ms;
        session.disconnect_reason = Some(closing.reason);
        if let Some(outbound) = &mut session.outbound {
            outbound.reset_for_resend();
            if outbound.is_idle() {
                session.outbound = None;
            }
        }
        if session
            .incoming_qos2
            .as_ref()
            .is_some_and(|incoming| incoming.len() == 0)
        {
            session.incoming_qos2 = None;
        }
        if !closing.publishes_will {
            // [MQTT-3.14.4-3]
            session.will = None;
        }
        let expiry_s = session.expiry_s;
        self.set_group_presence(session_at, false);
        if expiry_s == 0 {
            self.end_session(session_at);
            return;
        }
        self.redistribute_shared(session_at);
        self.delivery.unload_queue(session_at);
        let session = &mut self.delivery.sessions[session_at];
        let due_ms = |delay_s: u32| now_ms + u64::from(delay_s) * 1000;
        let expiry_at_ms = (expiry_s != u32::MAX).then(|| due_ms(expiry_s));
        let will_delay_s = session.will.as_ref().map(|will| will.delay_s);
        let will_at_ms = will_delay_s.filter(|&delay_s| delay_s > 0).map(due_ms);
        self.timers
            .start_session(session_at, &mut session.timers, expiry_at_ms, will_at_ms);
        if will_delay_s == Some(0) {
            self.publish_will(session_at);
        }
        self.persist_session(session_at);
    }

    pub(crate) fn publish_will(&mut self, session_at: SessionIx) {
        let Some(will) = self.delivery.sessions[session_at].will.take() else {
            return;
        };
        self.persist_session(session_at);
        let now_ms = self.now_ms();
        let view = will.message.view();
        let expires_ms = expiry_time_ms(view.properties, now_ms);
        let view = MessageView {
            received_ms: now_ms,
            expires_ms,
            number: self.delivery.next_message_number(),
            ..view
        };
        self.metrics().inc(Metric::WillsPublished);
        if !self.is_will_allowed(session_at, &view) {
            let (origin, why) = (MessageOrigin::default(), DropReason::NotAuthorized);
            self.delivery
                .dropped_from(Some(session_at), None, &view, &origin, why);
            return;
        }
        self.publish_view(&view, Some(session_at));
    }

    /// Whether the client may publish the will to its topic.
    fn is_will_allowed(&mut self, session_at: SessionIx, view: &MessageView<'_>) -> bool {
        let (topic, qos, retain) = (view.topic, view.qos, view.retain);
        !topic.starts_with(SYS_PREFIX)
            && self.authorize(session_at, &ClientAction::Publish { topic, qos, retain })
                == Authorization::Allow
    }

    /// Passes unacknowledged messages of shared subscriptions to members that are online.
    fn redistribute_shared(&mut self, session_at: SessionIx) {
        let tree = &self.tree;
        let Some(outbound) = &mut self.delivery.sessions[session_at].outbound else {
            return;
        };
        let before = outbound.size();
        let taken = outbound.drain_shared(|group| {
            group != NO_GROUP
                && tree.groups.get(group).is_some_and(|group| {
                    let is_member = group.member(session_at).is_some();
                    let elsewhere = group.remote().iter();
                    let (online, total) = elsewhere.fold((0, 0), |(online, total), remote| {
                        (online + remote.online, total + remote.total)
                    });
                    // A session that only lost its connection keeps messages that no other member could receive at
                    // once.
                    let anybody = group.local_online() > 0 || online > 0;
                    anybody || !is_member && (group.local_len() > 0 || total > 0)
                })
        });
        let after = outbound.size();
        self.delivery.update_queue_counters(before, after);
        for session_message in &taken {
            self.delivery
                .mark_stored_done(session_at, session_message.seq);
        }
        self.redistribute(taken);
    }

    /// A session that is ending must not be chosen again.
    fn leave_groups(&mut self, session_at: SessionIx) {
        let session = &self.delivery.sessions[session_at];
        for &(_, group) in session
            .subscriptions
            .iter()
            .filter(|(_, group)| *group != NO_GROUP)
        {
            self.tree.group_mut(group).leave(session_at);
        }
    }

    /// Ends a session without a connection: its will, its subscriptions, its messages, its client id.
    pub(crate) fn end_session(&mut self, session_at: SessionIx) {
        // Its shared subscriptions first, so that neither its messages nor its will return to it.
        self.leave_groups(session_at);
        if !self.is_abandoning_sessions {
            self.redistribute_shared(session_at);
        }
        // [MQTT-3.1.2-10]: the will is due at the latest when the session ends.
        self.publish_will(session_at);
        let backlog = match self.is_abandoning_sessions {
            true => None,
            false => self.collect_shared_backlog(session_at),
        };
        self.delivery.ack_watchers.remove_session(session_at);
        let session = &mut self.delivery.sessions[session_at];
        debug_assert!(session.connection.is_none());
        self.timers.stop_session(&mut session.timers);
        let subscriptions = std::mem::take(&mut session.subscriptions);
        let client_id = session.client_id.clone();
        for (filter, group) in subscriptions {
            self.remove_subscription(session_at, filter, group);
        }
        match backlog {
            Some(_) => self.delivery.release_backlog(session_at),
            None => self.delivery.drop_backlog(session_at),
        }
        self.delete_stored_session(session_at, backlog);
        let is_relay = self.delivery.sessions.remove(session_at).is_relay;
        self.by_client_id.remove(&*client_id);
        self.node.directory.release(&client_id, self.id);
        NodeDirectory::release_slot(&self.node.directory.sessions);
        self.metrics().sub(Metric::Sessions, 1);
        if !is_relay {
            self.announce_session_end(&client_id);
            if self.delivery.interest.contains(Interest::SESSION) {
                self.delivery.hooks.session_ended(&client_id);
            }
        }
    }

    /// Closes the connections that were marked while another operation was in progress.
    pub(crate) fn close_pending_connections(&mut self) {
        while let Some((at, closing)) = self.delivery.pending_closes.pop() {
            if self.delivery.connections.contains(at) {
                self.close(at, closing);
            }
        }
    }

    /// The peer has closed the connection, or the socket failed.
    pub(crate) fn connection_lost(&mut self, at: ConnectionIx, why: &'static str) {
        self.close(at, CloseReason::without_code(why));
        self.close_pending_connections();
    }

    /// Frees the slot of a connection that its owner has closed.
    pub(crate) fn remove_connection(&mut self, at: ConnectionIx) {
        self.release_partial(at);
        let mut connection = self.delivery.connections.remove(at);
        self.delivery.buffered_bytes -= connection.outbox.bytes_without_frames();
        let released = connection.outbox.clear(&mut self.delivery.pool);
        self.delivery.relay_memory.release_bytes(released);
        if let Some(timer) = connection.extra.and_then(|extra| extra.expiry_timer) {
            self.timers.cancel(timer);
        }
        self.metrics().sub(Metric::Connections, 1);
    }

    /// Closes the connection of a client and ends its session.
    pub(crate) fn terminate_client(&mut self, client_id: &str) -> bool {
        let Some(&session) = self.by_client_id.get(client_id) else {
            return false;
        };
        let why = CloseReason::new(ReasonCode::ADMINISTRATIVE_ACTION, "kicked");
        self.terminate_session(session, why);
        true
    }

    /// Ends a session with its connection, if it has one.
    pub(super) fn terminate_session(&mut self, session_at: SessionIx, closing: CloseReason) {
        let session = &mut self.delivery.sessions[session_at];
        session.expiry_s = 0;
        match session.connection {
            Some(at) => self.close(at, closing),
            None => self.end_session(session_at),
        }
        self.close_pending_connections();
    }

    /// Closes every connection for a graceful stop.
    pub(crate) fn close_all(&mut self) {
        self.is_stopping = true;
        let all: Vec<ConnectionIx> = self.delivery.connections.iter().map(|(at, _)| at).collect();
        for at in all {
            self.close_for_shutdown(at);
        }
        self.close_pending_connections();
    }

    /// Closes a connection of a server that stops, and refers the client to another one if that is configured.
    pub(super) fn close_for_shutdown(&mut self, at: ConnectionIx) {
        // A server reference goes with 0x9C (section 4.11).
        let code = match self.node.server_reference {
            Some(_) => ReasonCode::USE_ANOTHER_SERVER,
            None => ReasonCode::SERVER_SHUTTING_DOWN,
        };
        self.close(at, CloseReason::new(code, "server_shutting_down"));
    }
}
