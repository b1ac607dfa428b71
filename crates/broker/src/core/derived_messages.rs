//! Messages that hooks publish because of other messages, and the waiting of their publishers.
//!
//! They are published in the order in which hooks returned them: some at once, the rest in later turns, with other work
//! in between. Messages derived from a derived message are queued behind all others and charged to the same budget, so
//! that rules that answer each other terminate, however they branch. The publisher of the first message is answered
//! when the last one is published, and is not read until then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hooks::{MessageDraftView, MessageOrigin, MessageView, OutgoingMessages, OutgoingPosition};
use mqtt::{PacketType, QoS, ReasonCode};

use super::derived_queue::{DerivedBatch, DerivedBudget};
use super::message::expiry_time_ms;
use super::shard::Shard;
use super::tables::ConnectionIx;
use crate::metrics::Metric;

/// Derived messages that are published in the turn of the message they derive from.
const MAX_DERIVED_IN_FIRST_TURN: usize = 32;
/// Bytes of derived messages that may wait on a shard.
const MAX_WAITING_BYTES: usize = 64 << 20;

impl Shard {
    /// Takes the messages that hooks requested because of a message of this connection, or of events, and publishes the
    /// first ones.
    pub(super) fn publish_derived(&mut self, publisher: Option<ConnectionIx>) {
        let budget = self.collect_derived(publisher);
        if self.derived_messages.current.is_some() {
            return;
        }
        for _ in 0..MAX_DERIVED_IN_FIRST_TURN {
            if !self.publish_next_derived() {
                return;
            }
        }
        self.derived_messages.unfinished_budget =
            budget.filter(|budget| Arc::strong_count(budget) > 1);
    }

    fn collect_derived(&mut self, publisher: Option<ConnectionIx>) -> Option<Arc<DerivedBudget>> {
        let mut budget = self.derived_messages.current.clone();
        let most = u64::from(self.limits.max_derived_messages);
        while let Some(outgoing) = self.delivery.hooks.take_outgoing() {
            let budget = budget.get_or_insert_with(|| {
                // Each event that is not a message may derive as many as a message.
                let events = publisher.map_or(outgoing.len() as u64, |_| 1);
                let serial = |at: ConnectionIx| self.delivery.connections[at].serial;
                Arc::new(DerivedBudget {
                    messages: AtomicU64::new(most.saturating_mul(events)),
                    time_spent_us: AtomicU64::new(0),
                    publisher: publisher.map(|at| (at, serial(at))),
                })
            });
            if self.derived_messages.waiting_bytes > MAX_WAITING_BYTES {
                budget.messages.store(0, Relaxed);
            }
            self.derived_messages.waiting_bytes += outgoing.size();
            self.derived_messages.waiting.push_back(DerivedBatch {
                outgoing,
                next: OutgoingPosition::default(),
                budget: budget.clone(),
            });
        }
        budget
    }

    /// Publishes one derived message; false if there is none.
    pub(crate) fn publish_next_derived(&mut self) -> bool {
        let Some(mut batch) = self.derived_messages.waiting.pop_front() else {
            return false;
        };
        if let Some((draft, next)) = batch.outgoing.message_at(batch.next) {
            batch.next = next;
            self.publish_from_budget(&draft, &batch.budget);
        }
        if batch.outgoing.message_at(batch.next).is_some() {
            self.derived_messages.waiting.push_front(batch);
            return true;
        }
        self.derived_messages.waiting_bytes -= batch.outgoing.size();
        batch.outgoing.clear();
        self.delivery.hooks.recycle_outgoing(batch.outgoing);
        true
    }

    fn publish_from_budget(&mut self, draft: &MessageDraftView<'_>, budget: &Arc<DerivedBudget>) {
        let left = budget.messages.load(Relaxed);
        let most_us = u64::from(self.limits.max_derived_processing_ms) * 1000;
        if left == 0 || budget.time_spent_us.load(Relaxed) > most_us {
            self.metrics().inc(Metric::DroppedDerived);
            self.delivery.hooks.outgoing_dropped(draft.topic, draft.tag);
            return;
        }
        budget.messages.store(left - 1, Relaxed);
        self.derived_messages.current = Some(budget.clone());
        self.publish_draft(draft);
        self.derived_messages.current = None;
        self.take_backpressure(budget.publisher);
    }

    /// Charges time to the budget of the derived messages being published.
    pub(crate) fn charge_derived(&self, us: u64) {
        if let Some(batch) = self.derived_messages.waiting.front() {
            batch.budget.time_spent_us.fetch_add(us, Relaxed);
        }
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
            wait.backpressure = Some(match wait.backpressure.take() {
                None => backpressure,
                Some(before) => Box::new(move || before() || backpressure()),
            });
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
        if self.derived_messages.unfinished_budget.is_none() {
            return self.send_ack(at, kind, packet_id, reason);
        }
        let extra = self.delivery.connections[at].extra();
        extra.publisher_wait.pending_ack = Some((kind, packet_id, reason));
    }

    /// Makes a connection wait, because messages derived from its last one are still pending.
    #[inline]
    pub(super) fn wait_for_derived(&mut self, at: ConnectionIx) {
        if let Some(unfinished) = self.derived_messages.unfinished_budget.take() {
            let extra = self.delivery.connections[at].extra();
            extra.publisher_wait.derived_budget = Some(unfinished);
        }
    }

    /// Whether a publisher has to wait; if not, sends it the answer that waited.
    pub(super) fn poll_publisher_wait(&mut self, at: ConnectionIx) -> bool {
        let Some(extra) = &mut self.delivery.connections[at].extra else {
            return false;
        };
        let wait = &mut extra.publisher_wait;
        if let Some(budget) = &wait.derived_budget {
            if Arc::strong_count(budget) > 1 {
                return true;
            }
            wait.derived_budget = None;
        }
        let answer = wait.pending_ack.take();
        let is_held = wait.backpressure.as_ref().is_some_and(|waits| waits());
        if !is_held {
            wait.backpressure = None;
        }
        if let Some((kind, packet_id, reason)) = answer {
            self.send_ack(at, kind, packet_id, reason);
        }
        is_held
    }
}
