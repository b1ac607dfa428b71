//! Operations of the control plane on a shard: publish, subscribe for a client, disconnect clients.
//!
//! It orchestrates: a request becomes the call that a packet of a client would cause, and a response waits in
//! `PendingResponses`.

use bytes::Bytes;
use hooks::relay::RELAY_TOPIC_PREFIX;
use hooks::{Client, MessageView, NEVER_MS, PacketFacts};
use mqtt::{PropertiesBuf, Property, QoS, ReasonCode, SubscribeFilter, SubscriptionOptions};

use super::ack_watchers::AckCallback;
use super::connection::CloseReason;
use super::dispatch::Dispatch;
use super::encoding::PublishEnvelope;
use super::inspection::{ScanStep, ShardScan};
use super::message::expiry_time_ms;
use super::outbox::SHARE_FROM_BYTES;
use super::pending_exclusives::ExclusiveContinuation;
use super::publish::SYS_PREFIX;
use super::shard::Shard;
use super::subscriber_list::Subscriber;
use super::tables::{ConnectionIx, NO_GROUP, SessionIx, TableIx};
use crate::control::{
    ControlError, DirectDelivery, PublishRequest, PublishResult, SubscriptionRequest,
};

/// Connections examined in one turn.
const CONNECTIONS_PER_STEP: usize = 4096;
/// Connections closed in one turn.
const CLOSES_PER_STEP: usize = 256;

/// Whether a message is rejected while the store accepts none or the shard's buffers are full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PublishAdmission {
    IfRoom,
    Always,
}

/// The publisher names that hooks and queue listings show. Empty for the broker itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct PublisherIdentity {
    pub(crate) client_id: String,
    pub(crate) username: String,
}

fn invalid_field(field: &'static str, expected: impl Into<String>) -> ControlError {
    ControlError::InvalidField {
        field,
        expected: expected.into(),
    }
}

/// MQTT strings have at most 65,535 bytes and no U+0000.
fn checked_string<'a>(field: &'static str, text: &'a str) -> Result<&'a str, ControlError> {
    if text.len() > usize::from(u16::MAX) || text.contains('\0') {
        return Err(invalid_field(
            field,
            "expected at most 65,535 bytes and no U+0000",
        ));
    }
    Ok(text)
}

fn build_properties(publication: &PublishRequest) -> Result<PropertiesBuf, ControlError> {
    let mut properties = PropertiesBuf::new();
    if publication.is_utf8 {
        if std::str::from_utf8(&publication.payload).is_err() {
            return Err(invalid_field(
                "payload",
                "expected UTF-8, because is_utf8 is set",
            ));
        }
        properties.push(Property::PayloadFormatIndicator(1));
    }
    if let Some(seconds) = publication.message_expiry_s {
        properties.push(Property::MessageExpiryInterval(seconds));
    }
    if let Some(content_type) = &publication.content_type {
        properties.push(Property::ContentType(checked_string(
            "content_type",
            content_type,
        )?));
    }
    if let Some(topic) = &publication.response_topic {
        let topic = checked_string("response_topic", topic)?;
        if topic.is_empty() || mqtt::has_wildcards(topic) {
            return Err(invalid_field(
                "response_topic",
                "expected a topic name without wildcards",
            ));
        }
        properties.push(Property::ResponseTopic(topic));
    }
    if let Some(data) = &publication.correlation_data {
        if data.len() > usize::from(u16::MAX) {
            return Err(invalid_field(
                "correlation_data",
                "expected at most 65,535 bytes",
            ));
        }
        properties.push(Property::CorrelationData(data));
    }
    for (name, value) in &publication.user_properties {
        properties.push(Property::UserProperty(
            checked_string("user_properties", name)?,
            checked_string("user_properties", value)?,
        ));
    }
    Ok(properties)
}

impl Shard {
    /// Validates a request of the control plane, builds a message in the name of the given publisher, and passes it to
    /// `send`. No authorization applies.
    fn with_node_message<T>(
        &mut self,
        publication: &PublishRequest,
        from: &PublisherIdentity,
        admission: PublishAdmission,
        send: impl FnOnce(&mut Self, &MessageView<'_>) -> T,
    ) -> Result<T, ControlError> {
        let limits = self.limits.clone();
        if let Err(error) = mqtt::validate_topic_name(&publication.topic, &self.topic_limits()) {
            return Err(invalid_field("topic", error.to_string()));
        }
        if publication.topic.starts_with(SYS_PREFIX) || publication.topic.starts_with("$delayed/") {
            let expected = "expected a topic that does not begin with $SYS/ or $delayed/";
            return Err(invalid_field("topic", expected));
        }
        let qos = match QoS::try_from(publication.qos) {
            Ok(qos) if publication.qos <= limits.max_qos => qos,
            _ => {
                let expected = format!("expected a QoS of at most {}", limits.max_qos.min(2));
                return Err(invalid_field("qos", expected));
            }
        };
        if publication.retain && !limits.retain_available {
            return Err(invalid_field(
                "retain",
                "retained messages are disabled on this node",
            ));
        }
        if publication.retain && publication.topic.starts_with(RELAY_TOPIC_PREFIX) {
            let expected = "expected false, because relay endpoints have no retained messages";
            return Err(invalid_field("retain", expected));
        }
        let properties = build_properties(publication)?;
        let size = publication.topic.len()
            + publication.payload.len()
            + properties.as_properties().as_bytes().len();
        // The limit for a client's PUBLISH applies here, too.
        if size + 16 > limits.max_packet_size as usize {
            let expected = format!("expected at most {} bytes in all", limits.max_packet_size);
            return Err(invalid_field("payload", expected));
        }
        if admission == PublishAdmission::IfRoom {
            if self.delivery.rejects_new_messages() {
                return Err(ControlError::StoreUnavailable);
            }
            if self.is_saturated() {
                return Err(ControlError::LimitReached(
                    "the node's message buffers are full; try again".to_owned(),
                ));
            }
        }
        let now_ms = self.now_ms();
        let properties = properties.as_properties();
        let shared: Option<&Bytes> =
            (publication.payload.len() >= SHARE_FROM_BYTES).then_some(&publication.payload);
        let view = MessageView {
            topic: &publication.topic,
            properties,
            payload: &publication.payload,
            shared_payload: shared,
            qos,
            retain: publication.retain,
            received_ms: now_ms,
            expires_ms: expiry_time_ms(properties, now_ms),
            from_client_id: checked_string("from", &from.client_id)?,
            from_username: checked_string("from", &from.username)?,
            is_derived: false,
            number: self.delivery.next_message_number(),
        };
        let sent = send(self, &view);
        self.close_pending_connections();
        Ok(sent)
    }

    pub(crate) fn publish_as_node(
        &mut self,
        publication: &PublishRequest,
        from: &PublisherIdentity,
    ) -> Result<PublishResult, ControlError> {
        self.publish_admitted(publication, from, PublishAdmission::IfRoom)
    }

    /// Publishes a message that derives from an accepted one, and is therefore not rejected for lack of room.
    pub(crate) fn publish_accepted(
        &mut self,
        publication: &PublishRequest,
    ) -> Result<PublishResult, ControlError> {
        let node = PublisherIdentity::default();
        self.publish_admitted(publication, &node, PublishAdmission::Always)
    }

    fn publish_admitted(
        &mut self,
        publication: &PublishRequest,
        from: &PublisherIdentity,
        admission: PublishAdmission,
    ) -> Result<PublishResult, ControlError> {
        let publish = |shard: &mut Self, view: &MessageView<'_>| shard.publish_view(view, None);
        let code = self.with_node_message(publication, from, admission, publish)?;
        match code {
            ReasonCode::SUCCESS => Ok(PublishResult {
                has_subscribers: true,
            }),
            ReasonCode::NO_MATCHING_SUBSCRIBERS => Ok(PublishResult {
                has_subscribers: false,
            }),
            ReasonCode::NOT_AUTHORIZED => Err(ControlError::ReservedTopic),
            _ => Err(ControlError::LimitReached(
                "the message was delivered but not retained: the limit of retained messages is reached".to_owned(),
            )),
        }
    }

    /// Sends a message to one client only, if a subscription of it matches the topic; the subscription determines QoS
    /// and identifier. Returns whether there is one. A session without a connection queues it like any other message.
    pub(crate) fn send_to_session(
        &mut self,
        client_id: &str,
        publication: &PublishRequest,
    ) -> Result<bool, ControlError> {
        let Some(session) = self.by_client_id.get(client_id).copied() else {
            return Ok(false);
        };
        let from = PublisherIdentity::default();
        self.with_node_message(
            publication,
            &from,
            PublishAdmission::IfRoom,
            |shard, view| {
                let Some(subscriber) = shard.best_subscription(session, view.topic) else {
                    return false;
                };
                let mut dispatch = Dispatch::new(view, None);
                shard
                    .delivery
                    .deliver(&mut dispatch, &subscriber, &[], NO_GROUP);
                true
            },
        )
    }

    /// Like [`Shard::send_to_session`], for a connected client only; the message is never queued for another. `acked`
    /// is called when the client has acknowledged it.
    pub(crate) fn send_to_connected_session(
        &mut self,
        client_id: &str,
        publication: &PublishRequest,
        acked: AckCallback,
    ) -> Result<Option<DirectDelivery>, ControlError> {
        let sessions = &self.delivery.sessions;
        let session = self.by_client_id.get(client_id).copied();
        let connected = session.filter(|at| sessions[*at].connection.is_some());
        let Some(session) = connected else {
            return Ok(None);
        };
        let from = PublisherIdentity::default();
        self.with_node_message(
            publication,
            &from,
            PublishAdmission::IfRoom,
            |shard, view| {
                let Some(subscriber) = shard.best_subscription(session, view.topic) else {
                    return Ok(None);
                };
                let qos = view.qos.min(subscriber.options.qos);
                shard.check_client_packet_size(session, view, qos)?;
                let delivery = &mut shard.delivery;
                let outbound = delivery.sessions[session].outbound.as_ref();
                let (before, _) = outbound.map_or((0, 0), |outbound| outbound.inflight_span());
                let mut dispatch = Dispatch::new(view, None);
                delivery.deliver(&mut dispatch, &subscriber, &[], NO_GROUP);
                let outbound = delivery.sessions[session].outbound.as_ref();
                let (now, packet_id) = outbound.map_or((0, 0), |outbound| outbound.inflight_span());
                let is_watched = qos == QoS::AtLeastOnce
                    && now > before
                    && delivery.ack_watchers.add(session, packet_id, acked);
                Ok(Some(DirectDelivery {
                    qos: qos as u8,
                    is_ack_tracked: is_watched,
                }))
            },
        )?
    }

    /// Checks that a message fits into the largest packet that the connected client of a session accepts.
    fn check_client_packet_size(
        &self,
        session: SessionIx,
        view: &MessageView<'_>,
        qos: QoS,
    ) -> Result<(), ControlError> {
        let Some(at) = self.delivery.sessions[session].connection else {
            return Ok(());
        };
        let connection = &self.delivery.connections[at];
        let envelope = PublishEnvelope {
            version: connection.version,
            dup: false,
            qos,
            retain: false,
            packet_id: 0,
            alias: None,
            identifiers: &[],
        };
        let max_bytes = connection.max_packet_out;
        match envelope.packet_len(view) <= max_bytes as usize {
            true => Ok(()),
            false => {
                let expected = format!(
                    "expected a packet of at most {max_bytes} bytes, the client's Maximum Packet Size"
                );
                Err(invalid_field("payload", expected))
            }
        }
    }

    /// The subscription by which a session receives messages on a topic; of several the one with the highest QoS.
    fn best_subscription(&self, session: SessionIx, topic: &str) -> Option<Subscriber> {
        let subscriptions = &self.delivery.sessions[session].subscriptions;
        let filters = &self.tree.filters;
        let wanting = subscriptions
            .iter()
            .map(|(filter, _)| &filters[*filter])
            .filter(|filter| mqtt::filter_matches(&filter.text, topic));
        let subscribers = wanting.filter_map(|filter| filter.subscribers.get(session));
        subscribers.max_by_key(|found| found.options.qos).copied()
    }

    /// Deletes a retained message, like a client's empty message but without notifying subscribers; false if there is
    /// none.
    pub(crate) fn delete_retained(&mut self, topic: &str) -> Result<bool, ControlError> {
        if self.node.retained.get(topic, self.now_ms()).is_none() {
            return Ok(false);
        }
        let view = MessageView {
            topic,
            properties: mqtt::Properties::EMPTY,
            payload: &[],
            shared_payload: None,
            qos: QoS::AtMostOnce,
            retain: true,
            received_ms: self.now_ms(),
            expires_ms: NEVER_MS,
            from_client_id: "",
            from_username: "",
            is_derived: false,
            number: 0,
        };
        match self.store_retained(&view, None) {
            Ok(()) => Ok(true),
            Err(_) => Err(ControlError::StoreUnavailable),
        }
    }

    /// Whether publishers have to wait.
    pub(crate) fn is_saturated(&self) -> bool {
        let limits = self.limits();
        self.is_congested
            || self.delivery.buffered_bytes > limits.max_buffered_bytes_per_shard as usize
            || self.shard_queues.waiting_bytes > limits.max_cross_shard_bytes as usize
    }

    /// Subscribes the client of a session, once the cluster has decided about an exclusive subscription. `respond` gets the
    /// granted QoS when the subscription is in the log and all shards know it; `None`: no session.
    pub(crate) fn subscribe_for_client(
        &mut self,
        client_id: Box<str>,
        subscription: SubscriptionRequest,
        respond: impl FnOnce(Option<Result<u8, ControlError>>) + Send + 'static,
    ) {
        let Some(&session) = self.by_client_id.get(&*client_id) else {
            return respond(None);
        };
        let filter = SubscribeFilter {
            filter: &subscription.topic_filter,
            options: SubscriptionOptions::new(QoS::try_from(subscription.qos).unwrap_or_default()),
        };
        let topics = self.exclusive_topics_to_claim(session, std::iter::once(filter));
        let finish = move |shard: &mut Shard| {
            let Some(&session) = shard.by_client_id.get(&*client_id) else {
                return respond(None);
            };
            let outcome = shard.subscribe_session(session, &subscription);
            let sequence = outcome.as_ref().map_or(0, |&(_, sequence)| sequence);
            let respond = move || respond(Some(outcome.map(|(qos, _)| qos)));
            shard.respond_when_durable(sequence, Box::new(respond));
        };
        match topics.is_empty() {
            true => finish(self),
            false => {
                let finish = ExclusiveContinuation::Request(Box::new(finish));
                self.claim_exclusives(session, topics, finish);
            }
        }
    }

    fn subscribe_session(
        &mut self,
        session: SessionIx,
        subscription: &SubscriptionRequest,
    ) -> Result<(u8, u64), ControlError> {
        let Ok(qos) = QoS::try_from(subscription.qos) else {
            return Err(invalid_field("qos", "expected 0, 1 or 2"));
        };
        if subscription.retain_handling > 2 {
            return Err(invalid_field("retain_handling", "expected 0, 1 or 2"));
        }
        checked_string("topic_filter", &subscription.topic_filter)?;
        if self.delivery.rejects_new_messages() {
            return Err(ControlError::StoreUnavailable);
        }
        let filter = SubscribeFilter {
            filter: &subscription.topic_filter,
            options: SubscriptionOptions {
                qos,
                no_local: subscription.no_local,
                retain_as_published: subscription.retain_as_published,
                retain_handling: subscription.retain_handling,
            },
        };
        let outcome = self.subscribe_without_packet(session, &filter);
        self.close_pending_connections();
        match outcome {
            Ok((code, sequence)) => Ok((code.0, sequence)),
            Err((ReasonCode::QUOTA_EXCEEDED, detail)) => Err(ControlError::LimitReached(detail)),
            Err((ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR, _)) => Err(ControlError::Unavailable),
            Err((_, detail)) => Err(invalid_field("topic_filter", detail)),
        }
    }

    /// Returns false if the session has no such subscription, and the number of the announcement to the other shards.
    pub(crate) fn unsubscribe_for_client(&mut self, client_id: &str, filter: &str) -> (bool, u64) {
        let Some(&session) = self.by_client_id.get(client_id) else {
            return (false, 0);
        };
        let code = self.unsubscribe_one(session, filter, PacketFacts::NONE);
        self.close_pending_connections();
        (
            code == ReasonCode::SUCCESS,
            self.shard_queues.last_sequence(),
        )
    }

    /// Sends a response once the records of this turn are in the log and the other shards have confirmed `sequence`.
    pub(crate) fn respond_when_durable(&mut self, sequence: u64, answer: Box<dyn FnOnce() + Send>) {
        if self.pending_responses.is_full() {
            // If it is dropped, the caller receives an error.
            return;
        }
        let journal = self.delivery.journal.as_ref();
        let turn = journal
            .filter(|journal| journal.has_pending_records())
            .map_or(0, |journal| journal.turn());
        self.pending_responses.push(turn, sequence, answer);
        self.send_ready_responses();
    }

    /// Sends a response once the records of this turn are in the log, and what other shards got of it is in theirs. It
    /// does not wait for the data of hooks. The caller limits the number of its responses.
    pub(crate) fn respond_when_stored(&mut self, respond: Box<dyn FnOnce() + Send>) {
        let journal = self.delivery.journal.as_ref();
        let turn = journal
            .filter(|journal| journal.has_unlogged_records())
            .map_or(0, |journal| journal.turn());
        self.stored_responses.push(turn, 0, respond);
        self.send_ready_responses();
    }

    /// Sends a response once the records of this turn are in the log of this shard, and all shards and nodes have applied the
    /// announcements up to `sequence`. It waits for nothing that other nodes have to store. The caller limits the number of
    /// its responses.
    pub(crate) fn respond_when_logged(&mut self, sequence: u64, respond: Box<dyn FnOnce() + Send>) {
        let journal = self.delivery.journal.as_ref();
        let turn = journal
            .filter(|journal| journal.has_unlogged_records())
            .map_or(0, |journal| journal.turn());
        self.logged_responses.push(turn, sequence, respond);
        self.send_ready_responses();
    }

    /// Sends the responses that need not wait any more; called when turns complete and when other shards confirm.
    #[inline]
    pub(crate) fn send_ready_responses(&mut self) {
        if self.pending_responses.is_empty()
            && self.stored_responses.is_empty()
            && self.logged_responses.is_empty()
        {
            return;
        }
        let journal = self.delivery.journal.as_ref();
        let (complete, stored) = journal.map_or((u64::MAX, u64::MAX), |journal| {
            (journal.last_complete_turn(), journal.last_stored_turn())
        });
        let logged = journal.map_or(u64::MAX, |journal| journal.last_logged_turn());
        let links = &self.shard_queues;
        self.pending_responses
            .send_ready(complete, |sequence| links.is_applied_by_all(sequence));
        self.stored_responses.send_ready(stored, |_| true);
        self.logged_responses
            .send_ready(logged, |sequence| links.is_applied_by_all(sequence));
    }

    /// Closes the connection of a client with a reason; its session continues as after any other close.
    pub(crate) fn disconnect_client(
        &mut self,
        client_id: &str,
        code: ReasonCode,
        why: &'static str,
    ) -> bool {
        let session = self.by_client_id.get(client_id).copied();
        let connection = session.and_then(|at| self.delivery.sessions[at].connection);
        if let Some(at) = connection {
            self.close(at, CloseReason::new(code, why));
            self.close_pending_connections();
        }
        connection.is_some()
    }
}

/// Selects the connections to close.
#[derive(Clone)]
pub(crate) enum DisconnectSelector<F> {
    /// All connections of a listener, including those that have not sent CONNECT yet.
    Listener(u16),
    /// The connections of clients for which the predicate is true.
    Clients(F),
}

/// Closes connections, some in each turn, and counts them.
pub(crate) struct DisconnectScan<F> {
    selector: DisconnectSelector<F>,
    code: ReasonCode,
    why: &'static str,
    next: usize,
    count: u64,
}

impl<F> DisconnectScan<F> {
    pub(crate) fn new(
        selector: DisconnectSelector<F>,
        code: ReasonCode,
        why: &'static str,
    ) -> Self {
        Self {
            selector,
            code,
            why,
            next: 0,
            count: 0,
        }
    }
}

impl<F: Fn(&Client<'_>) -> bool + Send + 'static> ShardScan for DisconnectScan<F> {
    type ScanResult = u64;

    fn step(mut self, shard: &mut Shard) -> ScanStep<Self> {
        let mut to_close = Vec::new();
        let mut looked_at = 0;
        let connections = &shard.delivery.connections;
        let end = connections.end_position();
        while looked_at < CONNECTIONS_PER_STEP
            && to_close.len() < CLOSES_PER_STEP
            && self.next < end
        {
            looked_at += 1;
            let at = ConnectionIx::from_position(self.next);
            self.next += 1;
            let Some(connection) = connections.get(at) else {
                continue;
            };
            if connection.phase == super::connection::ConnectionPhase::Closing {
                continue;
            }
            let goes = match &self.selector {
                DisconnectSelector::Listener(listener) => connection.listener == *listener,
                DisconnectSelector::Clients(predicate) => {
                    let session = shard.delivery.sessions.get(connection.session);
                    session
                        .filter(|session| session.connection == Some(at))
                        .is_some_and(|session| {
                            predicate(&super::delivery::hook_client(session, connections))
                        })
                }
            };
            if goes {
                to_close.push(at);
            }
        }
        for at in to_close {
            self.count += 1;
            shard.close(at, CloseReason::new(self.code, self.why));
        }
        shard.close_pending_connections();
        match self.next < shard.delivery.connections.end_position() {
            true => ScanStep::Continue(self),
            false => ScanStep::Done(self.count),
        }
    }
}
