//! Messages that come again after a crash, when their subscribers are logged but the data of hooks may not be durable.
//!
//! A QoS 2 packet id and the entries of subscribers are in the log with the batch of their turn. Rows of hooks become
//! durable a little later, and PUBREC waits for both. A publisher that got no PUBREC sends the message again: then
//! hooks receive it a second time, and subscribers do not. So hooks process a message at least once, and its
//! subscribers get it exactly once. Messages that hooks published because of it are published again. A delayed message,
//! which no publisher sends again, stays in the store until both are durable.

use hooks::{MessageOrigin, MessageView, PublishVerdict};
use mqtt::{Publish, QoS, ReasonCode};
use store::StateKind;

use super::connection::CloseReason;
use super::message::Message;
use super::publish::{DELAYED_PREFIX, SYS_PREFIX, message_origin, message_view};
use super::records;
use super::shard::Shard;
use super::tables::SessionIx;

impl Shard {
    /// Handles a repeated QoS 2 message with a known packet id. If the node has been started since, hooks are notified
    /// of it.
    #[inline]
    pub(super) fn notify_redelivered(
        &mut self,
        session: SessionIx,
        publish: &Publish<'_>,
    ) -> Result<(), CloseReason> {
        let incoming = &mut self.delivery.sessions[session].incoming_qos2;
        let is_restored =
            (incoming.as_mut()).is_some_and(|incoming| incoming.take_restored(publish.packet_id));
        if is_restored
            && self.notify_hooks_of_redelivery(session, publish)? == PublishVerdict::Reject
        {
            // The client sends it again with its next connection, until hooks accept it.
            let incoming = &mut self.delivery.sessions[session].incoming_qos2;
            (incoming.get_or_insert_default()).undo_take_restored(publish.packet_id);
            return Err(CloseReason::new(ReasonCode::QUOTA_EXCEEDED, "store_full"));
        }
        Ok(())
    }

    /// Notifies hooks of a message that its subscribers have already received.
    #[cold]
    pub(super) fn notify_hooks_of_redelivery(
        &mut self,
        session: SessionIx,
        publish: &Publish<'_>,
    ) -> Result<PublishVerdict, CloseReason> {
        let view = message_view(publish, self.now_ms(), self.delivery.next_message_number());
        // A delayed message is in the store as a whole, and hooks receive it when it is due.
        let is_reported_when_due =
            view.topic.starts_with(DELAYED_PREFIX) || view.topic.starts_with(SYS_PREFIX);
        if is_reported_when_due || self.check_publish_allowed(session, &view)?.is_some() {
            return Ok(PublishVerdict::Continue);
        }
        let origin = message_origin(publish);
        Ok(self.call_publish_hooks_only(&view, Some(session), &origin))
    }

    fn call_publish_hooks_only(
        &mut self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
        hook_origin: &MessageOrigin<'_>,
    ) -> PublishVerdict {
        let mut verdict = PublishVerdict::Continue;
        if self.delivery.interest.may_want_topic(view.topic)
            && self.delivery.hooks.wants_topic(view.topic)
        {
            verdict = self.call_publish_hooks(view, origin, hook_origin);
            let publisher = origin.and_then(|at| self.delivery.sessions[at].connection);
            self.publish_hook_messages(publisher);
        }
        verdict
    }

    /// Publishes a due message of `$delayed/...`. `number` is that of its place in the store.
    pub(crate) fn publish_due_delayed(&mut self, message: &Message, number: u64) {
        if let Some(journal) = &mut self.delivery.journal {
            let key = records::delayed_key(message.received_ms(), number);
            journal.delete(StateKind::Delayed, &key);
        }
        let view = message.view();
        // Its publisher has the answer already and does not send it again. It therefore goes to other shards and nodes by way
        // of the links in the store, in the batch that deletes it.
        self.is_publishing_exactly_once =
            view.qos != QoS::AtMostOnce && self.delivery.journal.is_some();
        match number & records::DELAYED_ROUTED {
            0 => self.publish_internal(&view),
            _ => drop(self.call_publish_hooks_only(&view, None, &MessageOrigin::default())),
        }
        self.is_publishing_exactly_once = false;
        if let Some(journal) = &mut self.delivery.journal
            && journal.waits_for_hooks()
        {
            // Its subscribers have it with this turn. If the node is killed before the data of hooks is durable, hooks are
            // notified again.
            let number = number | records::DELAYED_ROUTED;
            let key = records::delayed_key(message.received_ms(), number);
            journal.put(StateKind::Delayed, &key, &records::message_bytes(&view));
            journal.delete_delayed_when_complete(key);
        }
    }
}
