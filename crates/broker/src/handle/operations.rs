//! Operations of the control plane: publish, subscribe for clients, disconnect clients, subscribe to events.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hooks::{BrokerPort, Client, OutgoingMessages, PublishTicket};
use mqtt::ReasonCode;
use tokio::sync::{broadcast, oneshot};

use super::BrokerHandle;
use crate::config::BrokerLimits;
use crate::control::{
    AcceptedOutcome, BrokerEvent, ControlError, DirectDelivery, PublishRequest, PublishResult,
    SHARD_RESPONSE_TIMEOUT, SubscriptionRequest,
};
use crate::core::control_plane::{DisconnectScan, DisconnectSelector, PublisherIdentity};
use crate::core::shard::Shard;
use crate::net::inbox::InboxItem;

/// Messages on their way to the log, see [`BrokerHandle::publish_accepted`].
#[derive(Debug)]
pub struct AcceptedPublication {
    /// One answer of each shard.
    answers: Vec<oneshot::Receiver<AcceptedOutcome>>,
}

impl AcceptedPublication {
    /// Waits until all messages are stored. `None`: the node is stopping, or a shard failed. While the node stops, the
    /// answer may also be missing.
    pub async fn stored(self) -> Option<AcceptedOutcome> {
        let mut outcome = AcceptedOutcome::default();
        for answer in self.answers {
            let of_shard = answer.await.ok()?;
            outcome.rejected.extend(of_shard.rejected);
            outcome.is_saturated |= of_shard.is_saturated;
        }
        Some(outcome)
    }
}

impl BrokerHandle {
    /// Runs an operation on one shard. The answer arrives when the operation is in the log. If it returned the number
    /// of an announcement, all shards have also confirmed that announcement.
    pub(super) async fn query_shard_durably<T: Send + 'static>(
        &self,
        shard: u16,
        operation: impl FnOnce(&mut Shard) -> (T, u64) + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let ask = move |shard: &mut Shard| {
            let (value, sequence) = operation(shard);
            // The caller may have stopped waiting.
            let respond = move || drop(answer.send(value));
            shard.respond_when_durable(sequence, Box::new(respond));
        };
        self.shared.inboxes[usize::from(shard)].push(InboxItem::Query(Box::new(ask)));
        tokio::time::timeout(SHARD_RESPONSE_TIMEOUT, answered)
            .await
            .ok()?
            .ok()
    }

    /// The shard that publishes to a topic for the control plane, so that messages of one topic keep their order.
    pub(super) fn shard_for(&self, topic: &str) -> u16 {
        let mut hasher = DefaultHasher::new();
        topic.hash(&mut hasher);
        (hasher.finish() % self.shared.inboxes.len() as u64) as u16
    }

    /// Publishes in the broker's own name; returns when the message is durable.
    pub async fn publish(
        &self,
        publication: PublishRequest,
    ) -> Result<PublishResult, ControlError> {
        self.publish_as(publication, "", "").await
    }

    /// Publishes under the client id and user name that hooks and queue listings show.
    pub async fn publish_as(
        &self,
        publication: PublishRequest,
        client_id: &str,
        username: &str,
    ) -> Result<PublishResult, ControlError> {
        if self.is_stopping() {
            return Err(ControlError::Unavailable);
        }
        let shard = self.shard_for(&publication.topic);
        let from = PublisherIdentity {
            client_id: client_id.to_owned(),
            username: username.to_owned(),
        };
        let publish = move |shard: &mut Shard| (shard.publish_as_node(&publication, &from), 0);
        let answer = self.query_shard_durably(shard, publish).await;
        answer.unwrap_or(Err(ControlError::Unavailable))
    }

    /// Publishes messages in the broker's own name that derive from accepted messages, for a component that hooks wait
    /// for. Messages of one topic keep their order, also between calls. They are published even while new messages are
    /// rejected.
    ///
    /// The answer is ready when the messages are stored: in the log of the shard that published them, and of the
    /// shards to which it passed them. Unlike with [`BrokerHandle::publish`] it does not wait until the data of hooks
    /// for these messages is durable. The turn of the message that they derive from may wait for this answer
    /// ([`Hooks::notify_when_durable`](hooks::Hooks::notify_when_durable)). Turns complete in order, so that an
    /// answer that waited for hooks could wait for itself.
    pub fn publish_accepted(&self, messages: Vec<PublishRequest>) -> AcceptedPublication {
        if self.is_stopping() {
            let (_, never_answered) = oneshot::channel();
            return AcceptedPublication {
                answers: vec![never_answered],
            };
        }
        let mut of_shards: Vec<Vec<PublishRequest>> = Vec::new();
        of_shards.resize_with(self.shard_count(), Vec::new);
        for message in messages {
            of_shards[usize::from(self.shard_for(&message.topic))].push(message);
        }
        let mut answers = Vec::new();
        for (inbox, messages) in self.shared.inboxes.iter().zip(of_shards) {
            if messages.is_empty() {
                continue;
            }
            let (answer, answered) = oneshot::channel();
            inbox.push(InboxItem::Query(Box::new(move |shard: &mut Shard| {
                let mut outcome = AcceptedOutcome::default();
                for message in messages {
                    if let Err(error) = shard.publish_accepted(&message) {
                        outcome.rejected.push((message.topic, error));
                    }
                }
                outcome.is_saturated = shard.is_saturated();
                // The caller may have stopped waiting.
                shard.respond_when_stored(Box::new(move || drop(answer.send(outcome))));
            })));
            answers.push(answered);
        }
        AcceptedPublication { answers }
    }

    /// Sends a message to one client only. Returns `false` if the client has no session or no subscription that matches
    /// the topic. Other subscribers do not receive it. Returns when the message is durable.
    pub async fn send_to_client(
        &self,
        client_id: &str,
        publication: PublishRequest,
    ) -> Result<bool, ControlError> {
        let Some(shard) = self.shared.node.directory.shard_of(client_id) else {
            return Ok(false);
        };
        let client_id = client_id.to_owned();
        let send = move |shard: &mut Shard| (shard.send_to_session(&client_id, &publication), 0);
        let answer = self.query_shard_durably(shard, send).await;
        answer.unwrap_or(Err(ControlError::Unavailable))
    }

    /// Like [`BrokerHandle::send_to_client`], for callers that cannot wait, such as hooks. `done` is called on the
    /// client's shard with the result, or dropped if there is no such session.
    pub fn send_to_client_then(
        &self,
        client_id: &str,
        publication: PublishRequest,
        done: impl FnOnce(Result<bool, ControlError>) + Send + 'static,
    ) {
        let Some(shard) = self.shared.node.directory.shard_of(client_id) else {
            return;
        };
        let client_id = client_id.to_owned();
        let send = move |shard: &mut Shard| done(shard.send_to_session(&client_id, &publication));
        self.shared.inboxes[usize::from(shard)].push(InboxItem::Query(Box::new(send)));
    }

    /// Sends a message to one client that is connected and has subscribed to the topic. `done` is called on the
    /// client's shard, with `None` if the client is not connected or not subscribed; the message is not queued then.
    /// `acked` is called there when the client has acknowledged the message. It is dropped when no acknowledgement can
    /// follow, because the session has ended or nothing was sent.
    pub fn send_to_connected_client(
        &self,
        client_id: &str,
        publication: PublishRequest,
        done: impl FnOnce(Result<Option<DirectDelivery>, ControlError>) + Send + 'static,
        acked: impl FnOnce() + Send + 'static,
    ) {
        let Some(shard) = self.shared.node.directory.shard_of(client_id) else {
            return done(Ok(None));
        };
        let client_id = client_id.to_owned();
        let send = move |shard: &mut Shard| {
            done(shard.send_to_connected_session(&client_id, &publication, Box::new(acked)));
        };
        self.shared.inboxes[usize::from(shard)].push(InboxItem::Query(Box::new(send)));
    }

    /// Subscribes on behalf of a client that has a session, connected or not, with the client's own permissions.
    /// Returns the granted QoS. Like a SUBACK, the answer arrives when every shard knows the subscription. `None`: no
    /// session.
    pub async fn subscribe(
        &self,
        client_id: &str,
        subscription: SubscriptionRequest,
    ) -> Option<Result<u8, ControlError>> {
        let shard = self.shared.node.directory.shard_of(client_id)?;
        let client_id = client_id.into();
        let (answer, answered) = oneshot::channel();
        // The caller may have stopped waiting.
        let respond = move |outcome| drop(answer.send(outcome));
        let subscribe =
            |shard: &mut Shard| shard.subscribe_for_client(client_id, subscription, respond);
        self.shared.inboxes[usize::from(shard)].push(InboxItem::Query(Box::new(subscribe)));
        match tokio::time::timeout(SHARD_RESPONSE_TIMEOUT, answered).await {
            Ok(Ok(outcome)) => outcome,
            _ => Some(Err(ControlError::Unavailable)),
        }
    }

    /// Returns false if the session has no such subscription. The answer arrives when every shard has removed it.
    pub async fn unsubscribe(&self, client_id: &str, topic_filter: &str) -> bool {
        let Some(shard) = self.shared.node.directory.shard_of(client_id) else {
            return false;
        };
        let (client_id, filter) = (client_id.to_owned(), topic_filter.to_owned());
        let unsubscribe =
            move |shard: &mut Shard| shard.unsubscribe_for_client(&client_id, &filter);
        self.query_shard_durably(shard, unsubscribe)
            .await
            .unwrap_or(false)
    }

    /// Closes a client's connection, with a reason code for the client and a short word for hooks, events and the log.
    /// The session continues. Returns false if there is no connection.
    pub async fn disconnect(&self, client_id: &str, code: ReasonCode, why: &'static str) -> bool {
        let Some(shard) = self.shared.node.directory.shard_of(client_id) else {
            return false;
        };
        let client_id = client_id.to_owned();
        self.query_shard(shard, move |shard| {
            shard.disconnect_client(&client_id, code, why)
        })
        .await
        .unwrap_or(false)
    }

    /// Closes the connections of all clients for which `predicate` (user name, address) returns true, like
    /// [`BrokerHandle::disconnect`], and returns their number. The predicate runs on the shards, for some thousand
    /// clients per turn.
    pub async fn disconnect_matching(
        &self,
        predicate: impl Fn(&Client<'_>) -> bool + Clone + Send + 'static,
        code: ReasonCode,
        why: &'static str,
    ) -> u64 {
        let scan =
            || DisconnectScan::new(DisconnectSelector::Clients(predicate.clone()), code, why);
        self.scan_all_shards(scan).await.into_iter().sum()
    }

    pub(super) async fn disconnect_listener(&self, listener: u16) {
        let scan = || {
            let selector: DisconnectSelector<fn(&Client<'_>) -> bool> =
                DisconnectSelector::Listener(listener);
            DisconnectScan::new(
                selector,
                ReasonCode::ADMINISTRATIVE_ACTION,
                "listener_stopped",
            )
        };
        self.scan_all_shards(scan).await;
    }

    /// Changes the limits of the whole node. Each shard applies them from its next turn: no client is disconnected, and
    /// a queue over a new bound is trimmed with its next message. Values announced in CONNACK (`max_packet_size`,
    /// `max_qos`, `receive_maximum`, `topic_alias_maximum`, available features) and the bounds on topics must not
    /// change.
    pub fn set_limits(&self, limits: BrokerLimits) {
        let node = &self.shared.node;
        node.max_connections.store(limits.max_connections, Relaxed);
        let limits = Arc::new(limits);
        for inbox in self.shared.inboxes.iter() {
            let limits = limits.clone();
            inbox.push(InboxItem::Query(Box::new(move |shard| {
                shard.set_limits(limits)
            })));
        }
    }

    /// Subscribes to events from now on. A slow receiver gets the number of events it missed. Without subscribers the
    /// shards produce no events.
    pub fn subscribe_events(&self) -> broadcast::Receiver<Arc<BrokerEvent>> {
        let receiver = self.shared.node.events.subscribe();
        // The shards would notice by themselves, but possibly after the next request sent to them.
        self.refresh_hook_interest();
        receiver
    }
}

impl BrokerPort for BrokerHandle {
    fn publish_outgoing(
        &self,
        order_key: u64,
        outgoing: OutgoingMessages,
        done: Box<dyn FnOnce() + Send>,
    ) {
        let shard = order_key % self.shared.inboxes.len() as u64;
        let publish = move |shard: &mut Shard| {
            shard.publish_outgoing(&outgoing);
            shard.close_pending_connections();
            done();
        };
        self.shared.inboxes[shard as usize].push(InboxItem::Query(Box::new(publish)));
    }

    fn acknowledge(&self, ticket: PublishTicket, reason: ReasonCode) {
        let acknowledge = move |shard: &mut Shard| {
            shard.acknowledge_deferred(ticket, reason);
        };
        let inbox = &self.shared.inboxes[usize::from(ticket.shard)];
        inbox.push(InboxItem::Query(Box::new(acknowledge)));
    }

    fn refresh_hook_interest(&self) {
        for inbox in self.shared.inboxes.iter() {
            inbox.push(InboxItem::Query(Box::new(Shard::refresh_hook_interest)));
        }
    }
}
