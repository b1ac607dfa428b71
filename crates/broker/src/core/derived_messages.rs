//! Messages that hooks publish because of other messages, and the waiting of their publishers.
//!
//! They are published in the order in which hooks returned them: some at once, the rest in later turns, with other work
//! in between. Messages derived from a derived message are queued behind all others and charged to the same budget.
//! Rules that answer each other thus terminate, however they branch. The publisher of the first message is answered
//! when the last one is published, and is not read until then.
//!
//! It orchestrates: the messages and their budgets are in `DerivedMessages`, what a publisher waits for in `PublisherWait`.

use std::sync::Arc;

use hooks::{MessageDraftView, MessageOrigin, MessageView, OutgoingMessages};
use mqtt::{PacketType, QoS, ReasonCode};

use super::derived_queue::DerivedBudget;
use super::message::expiry_time_ms;
use super::shard::Shard;
use super::tables::ConnectionIx;
use crate::metrics::Metric;

/// Derived messages that are published in the turn of the message they derive from.
const MAX_DERIVED_IN_FIRST_TURN: usize = 32;

impl Shard {
    /// Takes the messages that hooks requested because of a message of this connection, or of events, and publishes the
    /// first ones.
    pub(super) fn publish_derived(&mut self, publisher: Option<ConnectionIx>) {
        let budget = self.collect_derived(publisher);
        if self.derived_messages.is_publishing() {
            return;
        }
        for _ in 0..MAX_DERIVED_IN_FIRST_TURN {
            if !self.publish_next_derived() {
                return;
            }
        }
        self.derived_messages.set_unfinished(budget);
    }

    fn collect_derived(&mut self, publisher: Option<ConnectionIx>) -> Option<Arc<DerivedBudget>> {
        let mut budget = None;
        let most = u64::from(self.limits.max_derived_messages);
        let delivery = &mut self.delivery;
        while let Some(outgoing) = delivery.hooks.take_outgoing() {
            let new_budget = |outgoing: &OutgoingMessages| {
                // Each event that is not a message may derive as many as a message.
                let events = publisher.map_or(outgoing.len() as u64, |_| 1);
                let publisher = publisher.map(|at| (at, delivery.connections[at].serial));
                DerivedBudget::new(most.saturating_mul(events), publisher)
            };
            budget = Some(self.derived_messages.push(outgoing, budget, new_budget));
        }
        budget
    }

    /// Publishes one derived message; false if there is none.
    pub(crate) fn publish_next_derived(&mut self) -> bool {
        let Some(mut batch) = self.derived_messages.take_first() else {
            return false;
        };
        if let Some((draft, budget)) = batch.next_message() {
            self.publish_from_budget(&draft, budget);
        }
        if let Some(emptied) = self.derived_messages.put_back(batch) {
            self.delivery.hooks.recycle_outgoing(emptied);
        }
        true
    }

    fn publish_from_budget(&mut self, draft: &MessageDraftView<'_>, budget: &Arc<DerivedBudget>) {
        let most_us = u64::from(self.limits.max_derived_processing_ms) * 1000;
        if !budget.charge_message(most_us) {
            self.metrics().inc(Metric::DroppedDerived);
            self.delivery.hooks.outgoing_dropped(draft.topic, draft.tag);
            return;
        }
        self.derived_messages.begin(budget);
        self.publish_draft(draft);
        self.derived_messages.end();
        self.take_backpressure(budget.publisher());
    }

    /// Charges time to the budget of the derived messages being published.
    pub(crate) fn charge_derived(&self, us: u64) {
        self.derived_messages.charge_time(us);
    }

    /// Publishes messages that hooks have created on another thread.
    pub(crate) fn publish_outgoing(&mut self, outgoing: &OutgoingMessages) {
        for draft in outgoing.iter() {
            self.publish_draft(&draft);
        }
    }

    fn publish_draft(&mut self, draft: &MessageDraftView<'_>) {
        let now_ms = self.now_ms();
        let max_qos = QoS::try_from(self.limits().max_qos).unwrap_or(QoS::ExactlyOnce);
        let view = MessageView {
            topic: draft.topic,
            properties: draft.properties,
            payload: draft.payload,
            shared_payload: None,
            qos: draft.qos.min(max_qos),
            retain: draft.retain && self.node.limits.retain_available,
            received_ms: now_ms,
            expires_ms: expiry_time_ms(draft.properties, now_ms),
            from_client_id: draft.client_id,
            from_username: draft.username,
            is_derived: draft.tag != 0,
            number: self.delivery.next_message_number(),
        };
        let origin = MessageOrigin {
            tag: draft.tag,
            ..MessageOrigin::default()
        };
        self.publish_from(&view, None, &origin);
    }

    /// Asks the hooks whether the connection with this serial has to wait for a component behind them. Without a
    /// connection that caused it, no publisher waits.
    pub(super) fn take_backpressure(&mut self, publisher: Option<(ConnectionIx, u32)>) {
        let Some(backpressure) = self.delivery.hooks.take_backpressure() else {
            return;
        };
        if let Some((at, serial)) = publisher
            && let Some(connection) = self.delivery.connections.get_mut(at)
            && connection.serial == serial
        {
            let wait = &mut connection.extra().publisher_wait;
            wait.add_backpressure(backpressure);
        }
    }

    /// Answers a PUBLISH when all messages derived from it are published.
    #[inline]
    pub(super) fn acknowledge_publish(
        &mut self,
        at: ConnectionIx,
        kind: PacketType,
        packet_id: u16,
        reason: ReasonCode,
    ) {
        if !self.derived_messages.has_unfinished() {
            return self.send_ack(at, kind, packet_id, reason);
        }
        let extra = self.delivery.connections[at].extra();
        extra.publisher_wait.keep_ack((kind, packet_id, reason));
    }

    /// Makes a connection wait, because messages derived from its last one are still pending.
    #[inline]
    pub(super) fn wait_for_derived(&mut self, at: ConnectionIx) {
        if let Some(unfinished) = self.derived_messages.take_unfinished() {
            let extra = self.delivery.connections[at].extra();
            extra.publisher_wait.wait_for_derived(unfinished);
        }
    }

    /// Whether a publisher has to wait; if not, sends it the answer that waited.
    pub(super) fn poll_publisher_wait(&mut self, at: ConnectionIx) -> bool {
        let Some(extra) = &mut self.delivery.connections[at].extra else {
            return false;
        };
        let polled = extra.publisher_wait.poll();
        if let Some((kind, packet_id, reason)) = polled.ack {
            self.send_ack(at, kind, packet_id, reason);
        }
        polled.is_held
    }
}
