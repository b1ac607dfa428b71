//! What the control plane does to a shard: publish, subscribe for a client, send clients away.

use bytes::Bytes;
use mqtt::{PropertiesBuf, Property, QoS, ReasonCode, SubscribeFilter, SubscriptionOptions};

use super::connection::Closing;
use super::deliver::Dispatch;
use super::inspect::{Step, Walk};
use super::message::{MessageView, NEVER_MS, expires_ms};
use super::outbox::SHARE_FROM_BYTES;
use super::publish::SYS;
use super::shard::Shard;
use super::sublist::{NO_GROUP, Subscriber};
use super::watched::Watcher;
use crate::control::{NewSubscription, Publication, Published, Refusal, Told};
use crate::hooks::{Client, PacketFacts};

/// Connections looked at in one turn, and those of them that are closed in it.
const PIECE_LOOKED_AT: usize = 4096;
const PIECE_CLOSED: usize = 256;

/// Answers that wait at once; the control plane asks few questions at a time, but a store that hangs may keep them.
const MAX_AWAITED_ANSWERS: usize = 4096;

/// An answer to the control plane that waits for the log of this turn, and for other shards to know what was said.
pub(crate) struct AwaitedAnswer {
    turn: u64,
    sequence: u64,
    answer: Box<dyn FnOnce() + Send>,
}

/// Who publishes: the names hooks and queues see. Empty for the broker itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Publisher {
    pub(crate) client_id: String,
    pub(crate) username: String,
}

fn invalid(field: &'static str, expected: impl Into<String>) -> Refusal {
    Refusal::Invalid {
        field,
        expected: expected.into(),
    }
}

/// MQTT strings have 65,535 bytes at most, and no U+0000.
fn text<'a>(field: &'static str, text: &'a str) -> Result<&'a str, Refusal> {
    if text.len() > usize::from(u16::MAX) || text.contains('\0') {
        return Err(invalid(
            field,
            "expected at most 65,535 bytes and no U+0000",
        ));
    }
    Ok(text)
}

fn properties_of(publication: &Publication) -> Result<PropertiesBuf, Refusal> {
    let mut properties = PropertiesBuf::new();
    if publication.is_utf8 {
        if std::str::from_utf8(&publication.payload).is_err() {
            return Err(invalid("payload", "expected UTF-8, as is_utf8 says"));
        }
        properties.push(Property::PayloadFormatIndicator(1));
    }
    if let Some(seconds) = publication.message_expiry_s {
        properties.push(Property::MessageExpiryInterval(seconds));
    }
    if let Some(content_type) = &publication.content_type {
        properties.push(Property::ContentType(text("content_type", content_type)?));
    }
    if let Some(topic) = &publication.response_topic {
        let topic = text("response_topic", topic)?;
        if topic.is_empty() || mqtt::has_wildcards(topic) {
            return Err(invalid(
                "response_topic",
                "expected a topic name without wildcards",
            ));
        }
        properties.push(Property::ResponseTopic(topic));
    }
    if let Some(data) = &publication.correlation_data {
        if data.len() > usize::from(u16::MAX) {
            return Err(invalid("correlation_data", "expected at most 65,535 bytes"));
        }
        properties.push(Property::CorrelationData(data));
    }
    for (name, value) in &publication.user_properties {
        properties.push(Property::UserProperty(
            text("user_properties", name)?,
            text("user_properties", value)?,
        ));
    }
    Ok(properties)
}

impl Shard {
    /// Publishes as the broker itself, under the names given: hooks, retained store, subscribers. No rule of
    /// authorisation is asked.
    /// Makes a message of what the control plane wants said, if it may be, and gives it to `send`.
    fn send_for_node<T>(
        &mut self,
        publication: &Publication,
        from: &Publisher,
        send: impl FnOnce(&mut Self, &MessageView<'_>) -> T,
    ) -> Result<T, Refusal> {
        let limits = self.limits.clone();
        if let Err(error) = mqtt::validate_topic_name(&publication.topic, &self.topic_limits()) {
            return Err(invalid("topic", error.to_string()));
        }
        if publication.topic.starts_with(SYS) || publication.topic.starts_with("$delayed/") {
            let expected = "expected a topic that does not begin with $SYS/ or $delayed/";
            return Err(invalid("topic", expected));
        }
        let qos = match QoS::try_from(publication.qos) {
            Ok(qos) if publication.qos <= limits.max_qos => qos,
            _ => {
                let expected = format!("expected a QoS of at most {}", limits.max_qos.min(2));
                return Err(invalid("qos", expected));
            }
        };
        if publication.retain && !limits.retain_available {
            return Err(invalid("retain", "retained messages are off on this node"));
        }
        let properties = properties_of(publication)?;
        let size = publication.topic.len()
            + publication.payload.len()
            + properties.as_properties().as_bytes().len();
        // As it would have to fit into a client's PUBLISH.
        if size + 16 > limits.max_packet_size as usize {
            let expected = format!("expected at most {} bytes in all", limits.max_packet_size);
            return Err(invalid("payload", expected));
        }
        if self.delivery.refuses() {
            return Err(Refusal::NotStored);
        }
        if self.is_saturated() {
            return Err(Refusal::Quota(
                "the node buffers as much as it may; try again".to_owned(),
            ));
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
            expires_ms: expires_ms(properties, now_ms),
            from_client_id: text("from", &from.client_id)?,
            from_username: text("from", &from.username)?,
            is_derived: false,
            number: self.delivery.next_number(),
        };
        let sent = send(self, &view);
        self.close_doomed();
        Ok(sent)
    }

    pub(crate) fn publish_for_node(
        &mut self,
        publication: &Publication,
        from: &Publisher,
    ) -> Result<Published, Refusal> {
        let code = self.send_for_node(publication, from, |shard, view| {
            shard.publish_view(view, None)
        })?;
        match code {
            ReasonCode::SUCCESS => Ok(Published {
                has_subscribers: true,
            }),
            ReasonCode::NO_MATCHING_SUBSCRIBERS => Ok(Published {
                has_subscribers: false,
            }),
            ReasonCode::NOT_AUTHORIZED => Err(Refusal::Denied),
            _ => Err(Refusal::Quota(
                "it reached its subscribers, but no more retained messages are kept".to_owned(),
            )),
        }
    }

    /// Sends a message to one client alone, if it has a subscription for the topic, which decides about QoS and identifier; whether it
    /// has one. A session without a connection keeps it like any other message.
    pub(crate) fn tell_for_node(
        &mut self,
        client_id: &str,
        publication: &Publication,
    ) -> Result<bool, Refusal> {
        let Some(session) = self.by_client_id.get(client_id).copied() else {
            return Ok(false);
        };
        let from = Publisher::default();
        self.send_for_node(publication, &from, |shard, view| {
            let Some(subscriber) = shard.wants(session, view.topic) else {
                return false;
            };
            let mut dispatch = Dispatch::new(*view, None);
            shard
                .delivery
                .deliver(&mut dispatch, &subscriber, &[], NO_GROUP);
            true
        })
    }

    /// The same for a client that is connected now; nothing is kept for one that is not. `acked` is called when it has acknowledged
    /// the message.
    pub(crate) fn tell_connected(
        &mut self,
        client_id: &str,
        publication: &Publication,
        acked: Watcher,
    ) -> Result<Option<Told>, Refusal> {
        let sessions = &self.delivery.sessions;
        let session = self.by_client_id.get(client_id).copied();
        let connected = session.filter(|at| sessions[*at as usize].connection.is_some());
        let Some(session) = connected else {
            return Ok(None);
        };
        let from = Publisher::default();
        self.send_for_node(publication, &from, |shard, view| {
            let subscriber = shard.wants(session, view.topic)?;
            let qos = view.qos.min(subscriber.options.qos);
            let delivery = &mut shard.delivery;
            let outbound = delivery.sessions[session as usize].outbound.as_ref();
            let (before, _) = outbound.map_or((0, 0), |outbound| outbound.flown());
            let mut dispatch = Dispatch::new(*view, None);
            delivery.deliver(&mut dispatch, &subscriber, &[], NO_GROUP);
            let outbound = delivery.sessions[session as usize].outbound.as_ref();
            let (now, packet_id) = outbound.map_or((0, 0), |outbound| outbound.flown());
            let is_watched = qos == QoS::AtLeastOnce
                && now > before
                && delivery.watched.add(session, packet_id, acked);
            Some(Told {
                qos: qos as u8,
                is_watched,
            })
        })
    }

    /// The subscription by which a session gets messages on a topic, of several the one with the highest QoS.
    fn wants(&self, session: u32, topic: &str) -> Option<Subscriber> {
        let subscriptions = &self.delivery.sessions[session as usize].subscriptions;
        let filters = &self.tree.filters;
        let wanting = subscriptions
            .iter()
            .map(|(filter, _)| &filters[*filter as usize])
            .filter(|filter| mqtt::filter_matches(&filter.text, topic));
        let subscribers = wanting.filter_map(|filter| filter.subscribers.get(session));
        subscribers.max_by_key(|found| found.options.qos).copied()
    }

    /// Takes a retained message away, as a client's empty message would but without telling subscribers; false if there
    /// is none.
    pub(crate) fn delete_retained(&mut self, topic: &str) -> Result<bool, Refusal> {
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
        match self.retain(&view, None) {
            Ok(()) => Ok(true),
            Err(_) => Err(Refusal::NotStored),
        }
    }

    /// Whether publishers have to wait.
    fn is_saturated(&self) -> bool {
        let limits = self.limits();
        self.congested
            || self.delivery.buffered_bytes > limits.max_buffered_bytes_per_shard as usize
            || self.links.waiting_bytes > limits.max_cross_shard_bytes as usize
    }

    /// Subscribes for the client of a session: what it is granted, and the number of the announcement that the other
    /// shards have to confirm.
    pub(crate) fn subscribe_for_node(
        &mut self,
        client_id: &str,
        subscription: &NewSubscription,
    ) -> Option<Result<(u8, u64), Refusal>> {
        let &session = self.by_client_id.get(client_id)?;
        Some(self.subscribe_session(session, subscription))
    }

    fn subscribe_session(
        &mut self,
        session: u32,
        subscription: &NewSubscription,
    ) -> Result<(u8, u64), Refusal> {
        let Ok(qos) = QoS::try_from(subscription.qos) else {
            return Err(invalid("qos", "expected 0, 1 or 2"));
        };
        if subscription.retain_handling > 2 {
            return Err(invalid("retain_handling", "expected 0, 1 or 2"));
        }
        text("topic_filter", &subscription.topic_filter)?;
        if self.delivery.refuses() {
            return Err(Refusal::NotStored);
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
        let outcome = self.subscribe_apart(session, &filter);
        self.close_doomed();
        match outcome {
            Ok((code, sequence)) => Ok((code.0, sequence)),
            Err((ReasonCode::QUOTA_EXCEEDED, detail)) => Err(Refusal::Quota(detail)),
            Err((_, detail)) => Err(invalid("topic_filter", detail)),
        }
    }

    /// False if the session has no such subscription. The second is the announcement that says it to the other shards.
    pub(crate) fn unsubscribe_for_node(&mut self, client_id: &str, filter: &str) -> (bool, u64) {
        let Some(&session) = self.by_client_id.get(client_id) else {
            return (false, 0);
        };
        let code = self.unsubscribe_one(session, filter, PacketFacts::NONE);
        self.close_doomed();
        (code == ReasonCode::SUCCESS, self.links.last_sequence())
    }

    /// Gives an answer once what this turn writes is in the log and the other shards have confirmed `sequence`.
    pub(crate) fn answer_when_safe(&mut self, sequence: u64, answer: Box<dyn FnOnce() + Send>) {
        if self.awaited_answers.len() >= MAX_AWAITED_ANSWERS {
            // Whoever asked learns that there is no answer.
            return;
        }
        let journal = self.delivery.journal.as_ref();
        let turn = journal
            .filter(|journal| journal.is_touched())
            .map_or(0, |journal| journal.turn());
        self.awaited_answers.push(AwaitedAnswer {
            turn,
            sequence,
            answer,
        });
        self.give_answers();
    }

    /// Gives the answers that need not wait any more; called when turns complete and when other shards confirm.
    #[inline]
    pub(crate) fn give_answers(&mut self) {
        if self.awaited_answers.is_empty() {
            return;
        }
        let journal = self.delivery.journal.as_ref();
        let complete = journal.map_or(u64::MAX, |journal| journal.complete());
        let links = &self.links;
        let done = |awaited: &mut AwaitedAnswer| {
            awaited.turn <= complete && links.is_applied(awaited.sequence)
        };
        for awaited in self.awaited_answers.extract_if(.., done) {
            (awaited.answer)();
        }
    }

    /// Ends the connection of a client with a reason; its session goes on as after any other end.
    pub(crate) fn send_away(
        &mut self,
        client_id: &str,
        code: ReasonCode,
        why: &'static str,
    ) -> bool {
        let session = self.by_client_id.get(client_id).copied();
        let connection = session.and_then(|at| self.delivery.sessions[at as usize].connection);
        if let Some(at) = connection {
            self.close(at, Closing::new(code, why));
            self.close_doomed();
        }
        connection.is_some()
    }
}

/// Which connections are to end.
#[derive(Clone)]
pub(crate) enum Whom<F> {
    /// All of a listener, those that have not said CONNECT yet among them.
    OfListener(u16),
    /// Those of the clients for which it is true.
    Clients(F),
}

/// Ends connections, some in each turn; how many there were.
pub(crate) struct SendAway<F> {
    whom: Whom<F>,
    code: ReasonCode,
    why: &'static str,
    next: usize,
    count: u64,
}

impl<F> SendAway<F> {
    pub(crate) fn new(whom: Whom<F>, code: ReasonCode, why: &'static str) -> Self {
        Self {
            whom,
            code,
            why,
            next: 0,
            count: 0,
        }
    }
}

impl<F: Fn(&Client<'_>) -> bool + Send + 'static> Walk for SendAway<F> {
    type Answer = u64;

    fn step(mut self, shard: &mut Shard) -> Step<Self> {
        let mut found = Vec::new();
        let mut looked_at = 0;
        let connections = &shard.delivery.connections;
        let end = connections.capacity();
        while looked_at < PIECE_LOOKED_AT && found.len() < PIECE_CLOSED && self.next < end {
            looked_at += 1;
            let at = self.next as u32;
            self.next += 1;
            let Some(connection) = connections.get(at as usize) else {
                continue;
            };
            if connection.phase == super::connection::Phase::Closing {
                continue;
            }
            let goes = match &self.whom {
                Whom::OfListener(listener) => connection.listener == *listener,
                Whom::Clients(is_meant) => {
                    let session = shard.delivery.sessions.get(connection.session as usize);
                    session
                        .filter(|session| session.connection == Some(at))
                        .is_some_and(|session| {
                            is_meant(&super::deliver::client_of(session, connections))
                        })
                }
            };
            if goes {
                found.push(at);
            }
        }
        for at in found {
            self.count += 1;
            shard.close(at, Closing::new(self.code, self.why));
        }
        shard.close_doomed();
        match self.next < shard.delivery.connections.capacity() {
            true => Step::More(self),
            false => Step::Done(self.count),
        }
    }
}
