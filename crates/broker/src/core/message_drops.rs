//! Messages that do not reach a session: counters, and calls of hooks.

use hooks::{DropReason, Interest, MessageOrigin, MessageView};
use mqtt::QoS;

use super::delivery::{Delivery, hook_client, with_publisher};
use super::session::QueueSize;
use super::tables::SessionIx;
use crate::metrics::Metric;

impl Delivery {
    /// Counts and reports that a message did not reach a session, or any session. The view names the publisher.
    pub(crate) fn record_drop(
        &mut self,
        session: Option<SessionIx>,
        view: &MessageView<'_>,
        why: DropReason,
    ) {
        self.count_drop(session, why);
        if self.interest.contains(Interest::DROP) {
            let client =
                session.map(|session| hook_client(&self.sessions[session], &self.connections));
            let origin = MessageOrigin::default();
            self.hooks.dropped(client.as_ref(), view, &origin, why);
        }
    }

    /// Like [`Delivery::record_drop`], for one of the subscribers of a message whose publisher may be a session of
    /// this shard.
    pub(super) fn record_subscriber_drop(
        &mut self,
        publisher: Option<SessionIx>,
        session: SessionIx,
        view: &MessageView<'_>,
        why: DropReason,
    ) {
        self.count_drop(Some(session), why);
        if self.interest.contains(Interest::DROP) {
            let named = with_publisher(&self.sessions, publisher, view);
            let client = hook_client(&self.sessions[session], &self.connections);
            let origin = MessageOrigin::default();
            self.hooks.dropped(Some(&client), &named, &origin, why);
        }
    }

    /// Like [`Delivery::record_drop`], for a message received from a session of this shard that reaches no subscriber.
    pub(crate) fn dropped_from(
        &mut self,
        publisher: Option<SessionIx>,
        session: Option<SessionIx>,
        view: &MessageView<'_>,
        origin: &MessageOrigin<'_>,
        why: DropReason,
    ) {
        self.count_drop(session, why);
        self.notify_drop(publisher, session, view, origin, why);
    }

    /// Records a message that reached no subscriber. If a hook has processed it, as telemetry or by a rule, it is not
    /// counted as dropped. Hooks that observe drops are called in any case.
    pub(crate) fn record_no_subscribers(
        &mut self,
        publisher: Option<SessionIx>,
        view: &MessageView<'_>,
        origin: &MessageOrigin<'_>,
        is_seen_by_hooks: bool,
    ) {
        let is_consumed = is_seen_by_hooks && {
            let named = with_publisher(&self.sessions, publisher, view);
            self.hooks.has_consumed(&named)
        };
        if !is_consumed {
            self.count_drop(None, DropReason::NoSubscribers);
        }
        self.notify_drop(publisher, None, view, origin, DropReason::NoSubscribers);
    }

    fn notify_drop(
        &mut self,
        publisher: Option<SessionIx>,
        session: Option<SessionIx>,
        view: &MessageView<'_>,
        origin: &MessageOrigin<'_>,
        why: DropReason,
    ) {
        if self.interest.contains(Interest::DROP) {
            let client_of =
                |session: SessionIx| hook_client(&self.sessions[session], &self.connections);
            let origin = MessageOrigin {
                client: publisher.map(client_of),
                ..*origin
            };
            let named = with_publisher(&self.sessions, publisher, view);
            let client = session.map(client_of);
            self.hooks.dropped(client.as_ref(), &named, &origin, why);
        }
    }

    fn count_drop(&mut self, session: Option<SessionIx>, why: DropReason) {
        self.metrics.inc(match why {
            DropReason::NoSubscribers => Metric::DroppedNoSubscribers,
            DropReason::QueueFull => Metric::DroppedQueueFull,
            DropReason::Expired => Metric::DroppedExpired,
            DropReason::TooLarge => Metric::DroppedTooLarge,
            DropReason::NoLocal => Metric::DroppedNoLocal,
            DropReason::NotAuthorized => Metric::DroppedNotAuthorized,
            DropReason::SessionEnded => Metric::DroppedSessionEnded,
            DropReason::Offline => Metric::DroppedOffline,
        });
        if let Some(session) = session {
            self.sessions[session].messages_dropped += 1;
        }
    }

    /// Frees the resources of a session without a connection; its waiting messages count as dropped.
    pub(crate) fn drop_backlog(&mut self, session_at: SessionIx) {
        let Some(mut outbound) = self.sessions[session_at].outbound.take() else {
            return;
        };
        self.update_queue_counters(outbound.size(), QueueSize::default());
        // Only the store knows which messages these were.
        self.metrics.add(
            Metric::DroppedSessionEnded,
            outbound.count_only_stored() as u64,
        );
        for session_message in outbound.drain_all() {
            if session_message.qos != QoS::AtMostOnce {
                self.record_drop(
                    Some(session_at),
                    &session_message.message.view(),
                    DropReason::SessionEnded,
                );
            }
        }
    }
}
