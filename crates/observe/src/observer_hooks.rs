//! The hooks of one shard: they pass messages and rejections to what records them.

use std::sync::Arc;

use hooks::{
    AckKind, Client, DropReason, Hooks, Interest, MessageOrigin, MessageView, PacketFacts,
    PublishVerdict, RejectedConnect,
};
use wall_clock::now_ms;

use crate::live_messages::MessageTaps;
use crate::message_trace::{MessageStep, MessageTrace};
use crate::rejected_connections::RejectedConnections;
use crate::topic_tree::{TopicRecorder, TopicTree};

/// What all shards record.
#[derive(Default)]
pub(crate) struct ShardObservation {
    pub(crate) taps: Arc<MessageTaps>,
    pub(crate) tree: TopicTree,
    pub(crate) log: MessageTrace,
    pub(crate) rejected: RejectedConnections,
}

pub(crate) struct ObserverHooks {
    observed: Arc<ShardObservation>,
    topics: TopicRecorder,
    /// Makes all shards read the interest again.
    refresh_interest: Box<dyn Fn()>,
}

impl ObserverHooks {
    pub(crate) fn new(observed: Arc<ShardObservation>, refresh_interest: Box<dyn Fn()>) -> Self {
        Self {
            topics: observed.tree.recorder(),
            observed,
            refresh_interest,
        }
    }
}

impl Hooks for ObserverHooks {
    fn interest(&self) -> Interest {
        let mut interest = Interest::CONNECT_REJECTED;
        if self.observed.tree.is_active() || !self.observed.taps.is_empty() {
            interest = interest | Interest::PUBLISH;
        }
        if self.observed.taps.has_clients() {
            interest = interest | Interest::DELIVER;
        }
        if self.observed.log.is_running() {
            interest = interest
                | Interest::PUBLISH
                | Interest::DELIVER
                | Interest::ACK
                | Interest::QUEUE
                | Interest::DROP;
        }
        interest
    }

    fn connect_rejected(&mut self, rejected: &RejectedConnect<'_>) {
        self.observed.rejected.record(rejected, now_ms());
    }

    fn wants_topic(&mut self, topic: &str) -> bool {
        let observed = &self.observed;
        observed.tree.is_active()
            || observed.taps.wants_topic(topic)
            || observed.log.wants_topic(topic)
    }

    fn publish(&mut self, message: &MessageView<'_>, _: &MessageOrigin<'_>) -> PublishVerdict {
        let now_ms = now_ms();
        self.observed.taps.published(message, now_ms);
        self.observed.tree.record(&self.topics, message, now_ms);
        self.observed.log.received(message, now_ms);
        PublishVerdict::Continue
    }

    fn delivered(&mut self, client: &Client<'_>, message: &MessageView<'_>, packet_id: u16) {
        let (observed, now_ms) = (&self.observed, now_ms());
        observed.taps.delivered(client.client_id, message, now_ms);
        let step = MessageStep::Sent { packet_id };
        (observed.log).record(message, Some(client.client_id), step, now_ms);
    }

    fn acked(
        &mut self,
        client: &Client<'_>,
        message: &MessageView<'_>,
        _packet: PacketFacts<'_>,
        kind: AckKind,
    ) {
        let step = MessageStep::Acknowledged(kind);
        (self.observed.log).record(message, Some(client.client_id), step, now_ms());
    }

    fn queued(&mut self, client: &Client<'_>, message: &MessageView<'_>) {
        let step = MessageStep::Queued;
        (self.observed.log).record(message, Some(client.client_id), step, now_ms());
    }

    fn dropped(
        &mut self,
        client: Option<&Client<'_>>,
        message: &MessageView<'_>,
        _origin: &MessageOrigin<'_>,
        why: DropReason,
    ) {
        let client_id = client.map(|client| client.client_id);
        // A denied message is reported as dropped for its publisher.
        let is_denied = why == DropReason::NotAuthorized
            && client_id.is_none_or(|id| id == message.from_client_id);
        let (subscriber, step) = match is_denied {
            true => (None, MessageStep::Denied),
            false => (client_id, MessageStep::Dropped(why)),
        };
        (self.observed.log).record(message, subscriber, step, now_ms());
    }

    fn housekeeping(&mut self) {
        let now_ms = now_ms();
        let has_ended = self.observed.tree.deactivate_if_idle(now_ms);
        if self.observed.log.stop_if_over(now_ms) || has_ended {
            (self.refresh_interest)();
        }
    }
}
