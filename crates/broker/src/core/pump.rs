//! Sends the messages that wait for a connected session as its window and its socket allow. These are messages in
//! flight from an earlier connection, the queue, and retained messages of new subscriptions. It works in steps, so that
//! a client with a million queued messages does not delay others.

use hooks::{DropReason, Interest, MessageOrigin, MessageView};
use mqtt::{PacketType, QoS, ReasonCode};
use std::rc::Rc;
use std::sync::Arc;

use super::delivery::{Delivery, send_window, subscription_identifiers};
use super::encoding::encode_ack;
use super::message::Message;
use super::outbox::PUMP_HIGH_BYTES;
use super::session::{SessionMessage, Transmit};
use super::subscriber_list::Subscriber;
use super::tables::{ConnectionIx, NO_GROUP, SessionIx};

impl Delivery {
    /// Sends the messages that wait for a connected session as far as window and socket allow. The order is: messages
    /// in flight from an earlier connection, the queue, retained messages of new subscriptions.
    pub(crate) fn pump(&mut self, session_at: SessionIx) {
        let session = &mut self.sessions[session_at];
        let Some(at) = session.connection else { return };
        if session.is_relay {
            self.pump_relay(at);
            return;
        }
        self.connections[at].wants_pump = false;
        loop {
            let connection = &mut self.connections[at];
            if connection.outbox.len() >= PUMP_HIGH_BYTES {
                connection.wants_pump = true;
                return;
            }
            let window = send_window(connection, &self.limits);
            let max_age_ms = match self.limits.max_queued_age_s {
                0 => u64::MAX,
                seconds => u64::from(seconds) * 1000,
            };
            let session = &mut self.sessions[session_at];
            let mut transmit = None;
            if let Some(outbound) = &mut session.outbound
                && outbound.has_pending()
            {
                let before = outbound.size();
                transmit = outbound.next(window, self.now_ms, max_age_ms);
                let after = outbound.size();
                if before.bytes_in_memory != after.bytes_in_memory {
                    self.update_queue_counters(before, after);
                }
                if transmit.is_none() {
                    return;
                }
            }
            self.request_more_messages(session_at);
            if let Some(transmit) = transmit {
                self.transmit(session_at, at, transmit);
                continue;
            }
            if !self.pump_retained(session_at, at) {
                return;
            }
        }
    }

    fn transmit(&mut self, session: SessionIx, at: ConnectionIx, transmit: Transmit) {
        match transmit {
            Transmit::Publish {
                packet_id,
                session_message,
                dup,
            } => {
                if session_message.seq != 0
                    && !dup
                    && let Some(journal) = &mut self.journal
                {
                    journal.mark_sent(
                        self.sessions[session].store_number,
                        session_message.seq,
                        packet_id,
                    );
                }
                self.send_session_message(session, at, packet_id, &session_message, dup);
            }
            Transmit::PubRel { packet_id } => {
                let version = self.connections[at].version;
                let (kind, reason) = (PacketType::PubRel, ReasonCode::SUCCESS);
                self.write(at, |out| encode_ack(kind, version, packet_id, reason, out));
            }
            Transmit::PublishQos0 { session_message } => {
                self.mark_stored_done(session, session_message.seq);
                self.send_session_message(session, at, 0, &session_message, false);
            }
            Transmit::Expired { session_message } => {
                self.mark_stored_done(session, session_message.seq);
                self.record_drop(
                    Some(session),
                    &session_message.message.view(),
                    DropReason::Expired,
                );
            }
            Transmit::NoLongerAllowed { session_message } => {
                self.mark_stored_done(session, session_message.seq);
                let view = session_message.message.view();
                self.record_drop(Some(session), &view, DropReason::NotAuthorized);
            }
            Transmit::Withdrawn {
                packet_id,
                session_message,
            } => {
                if session_message.seq != 0
                    && let Some(journal) = &mut self.journal
                {
                    journal.mark_released(self.sessions[session].store_number, session_message.seq);
                }
                let view = session_message.message.view();
                self.record_drop(Some(session), &view, DropReason::NotAuthorized);
                self.hold_outbox(at);
                self.transmit(session, at, Transmit::PubRel { packet_id });
            }
        }
    }

    /// Sends the next retained messages of a new subscription; false if there are none or they have to wait.
    fn pump_retained(&mut self, session_at: SessionIx, at: ConnectionIx) -> bool {
        let Some(extra) = &self.connections[at].extra else {
            return false;
        };
        let Some(step) = extra.retained.next_step(&self.retained, self.now_ms) else {
            return false;
        };
        for message in &step.messages {
            let view = message.view();
            if !self.is_retained_denied(&view)
                && !self.send_retained_message(session_at, at, message, &step.subscriber)
            {
                return false;
            }
            let retained = &mut self.connections[at].extra().retained;
            retained.record_sent(view.topic);
        }
        self.connections[at].extra().retained.end_step(&step);
        true
    }

    /// Sends a retained message; false if the client's window is full.
    fn send_retained_message(
        &mut self,
        session_at: SessionIx,
        at: ConnectionIx,
        message: &Arc<Message>,
        subscriber: &Subscriber,
    ) -> bool {
        let mut session_message = retained_session_message(message, subscriber);
        let mut packet_id = 0;
        if session_message.qos != QoS::AtMostOnce {
            let window = send_window(&self.connections[at], &self.limits);
            let session = &mut self.sessions[session_at];
            if !session.outbound.get_or_insert_default().can_send(window) {
                return false;
            }
            session_message.seq = session.next_seq();
            let outbound = session.outbound.get_or_insert_default();
            packet_id = outbound.send(session_message.clone());
            if session_message.seq != 0 {
                self.persist_message(session_at, packet_id, &session_message, &mut false);
            }
        }
        self.send_session_message(session_at, at, packet_id, &session_message, false);
        true
    }

    /// Whether hooks deny a retained message that may have been stored before they did.
    fn is_retained_denied(&mut self, view: &MessageView<'_>) -> bool {
        self.interest.contains(Interest::PUBLISH_GUARD)
            && self.hooks.wants_topic(view.topic)
            && self.hooks.denies_publish(view, &MessageOrigin::default())
    }

    /// The connection of a session has closed: its remaining retained messages are queued like others, as many as fit.
    pub(crate) fn queue_pending_retained(&mut self, session_at: SessionIx, at: ConnectionIx) {
        let Some(extra) = &mut self.connections[at].extra else {
            return;
        };
        let mut pending = std::mem::take(&mut extra.retained);
        if self.sessions[session_at].expiry_s == 0 {
            return;
        }
        let most = self.limits.max_queued_messages as usize;
        while let Some(left) = pending.take_remaining(&self.retained, most, self.now_ms) {
            for message in &left.messages {
                if self.is_retained_denied(&message.view()) {
                    continue;
                }
                let session_message = retained_session_message(message, &left.subscriber);
                if session_message.qos != QoS::AtMostOnce {
                    self.enqueue_message(session_at, session_message);
                }
            }
        }
    }

    /// Called after an acknowledgement, when the window may have room for waiting messages.
    #[inline]
    pub(crate) fn pump_if_pending(&mut self, session_at: SessionIx) {
        let session = &self.sessions[session_at];
        let Some(at) = session.connection else { return };
        let retained = self.connections[at]
            .extra
            .as_ref()
            .is_some_and(|extra| !extra.retained.is_empty());
        let outbound = session.outbound.as_ref();
        if retained || outbound.is_some_and(|o| o.has_pending() || o.should_load()) {
            self.pump(session_at);
        }
    }
}

fn retained_session_message(message: &Arc<Message>, subscriber: &Subscriber) -> SessionMessage {
    let view = message.view();
    SessionMessage {
        message: Rc::new(Message::new(&view)),
        qos: view.qos.min(subscriber.options.qos),
        // New subscriptions get retained messages with the flag set [MQTT-3.3.1-8].
        retain: true,
        identifiers: subscription_identifiers(subscriber, &[]),
        group: NO_GROUP,
        seq: 0,
    }
}
