//! PUBLISH from a client: validation, detection of duplicates, routing and the answer to the publisher.
//!
//! It orchestrates: what it decides depends on the limits, the hooks and the session, and it keeps nothing itself.

use hooks::{
    Authorization, ClientAction, DropReason, Interest, MessageOrigin, MessageView, NEVER_MS,
    PublishTicket, PublishVerdict,
};
use mqtt::{PacketType, Properties, Publish, QoS, ReasonCode, Version};

use super::connection::CloseReason;
use super::delivery::{hook_client, with_publisher};
use super::encoding::encode_ack;
use super::journal::ShardJournal;
use super::message::{Message, copy_forwardable, expiry_time_ms};
use super::records;
use super::session::NUMBER_PROPERTY;
use super::shard::{ConnectionAction, Shard};
use super::tables::{ConnectionIx, SessionIx, TableIx as _};
use super::timers::Timer;
use crate::metrics::Metric;
use hooks::relay::RELAY_TOPIC_PREFIX;
use store::StateKind;

pub(super) const DELAYED_PREFIX: &str = "$delayed/";
/// Prefix of the topics published by the broker itself.
pub(crate) const SYS_PREFIX: &str = "$SYS/";

pub(super) fn publish_rejection(
    code: ReasonCode,
    detail: impl Into<std::rc::Rc<str>>,
) -> CloseReason {
    CloseReason::new(code, "protocol_error").with_detail(detail)
}

#[inline]
pub(super) fn message_view<'p>(publish: &Publish<'p>, now_ms: u64, number: u32) -> MessageView<'p> {
    MessageView {
        topic: publish.topic,
        properties: publish.properties,
        payload: publish.payload,
        shared_payload: None,
        qos: publish.qos,
        retain: publish.retain,
        received_ms: now_ms,
        expires_ms: expiry_time_ms(publish.properties, now_ms),
        from_client_id: "",
        from_username: "",
        is_derived: false,
        number,
    }
}

#[inline]
pub(super) fn message_origin<'o>(publish: &Publish<'_>) -> MessageOrigin<'o> {
    MessageOrigin {
        packet_id: publish.packet_id,
        dup: publish.dup,
        ..MessageOrigin::default()
    }
}

impl Shard {
    #[inline]
    pub(crate) fn handle_publish(
        &mut self,
        at: ConnectionIx,
        first_byte: u8,
        body: &[u8],
    ) -> Result<ConnectionAction, CloseReason> {
        let connection = &mut self.delivery.connections[at];
        let (session, version) = (connection.session, connection.version);
        if let Some(extra) = &mut connection.extra
            && let Some(rate) = &mut extra.rate
        {
            rate.count_message();
        }
        let mut publish = Publish::decode(first_byte, body, version, mqtt::Direction::FromClient)?;
        self.check_publish(&publish)?;
        if publish.properties.is_empty() {
            return self.accept_publish(at, session, &publish);
        }
        // Properties that concern only this connection are removed; the topic may come from an alias.
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let topic = match publish.properties.topic_alias() {
            Some(alias) => Some(self.resolve_topic_alias(at, alias, publish.topic)?),
            None => None,
        };
        if let Some(topic) = &topic {
            publish.topic = topic;
        }
        let number = self.publication_number(at, session, &publish)?;
        let dropped = number.map(|_| NUMBER_PROPERTY);
        copy_forwardable(publish.properties, dropped, &mut scratch);
        publish.properties = Properties::from_validated(&scratch);
        let result = match number {
            None => self.accept_publish(at, session, &publish),
            Some(number) => self.accept_numbered_publish(at, session, &publish, number),
        };
        self.scratch = scratch;
        result
    }

    #[inline]
    fn check_publish(&self, publish: &Publish<'_>) -> Result<(), CloseReason> {
        let limits = &*self.limits;
        if publish.qos as u8 > limits.max_qos {
            return Err(publish_rejection(
                ReasonCode::QOS_NOT_SUPPORTED,
                "PUBLISH: the QoS is too high",
            ));
        }
        if publish.retain && !limits.retain_available {
            return Err(publish_rejection(
                ReasonCode::RETAIN_NOT_SUPPORTED,
                "PUBLISH: retained messages are disabled on this node",
            ));
        }
        // A topic has at most one level more than bytes, so that the levels of short topics need not be counted.
        if publish.topic.len() >= usize::from(limits.max_topic_levels.min(limits.max_topic_bytes))
            && let Err(error) = mqtt::validate_topic_name(publish.topic, &self.topic_limits())
        {
            return Err(publish_rejection(
                ReasonCode::TOPIC_NAME_INVALID,
                format!("PUBLISH: {error}"),
            ));
        }
        Ok(())
    }

    fn resolve_topic_alias(
        &mut self,
        at: ConnectionIx,
        alias: u16,
        topic: &str,
    ) -> Result<Box<str>, CloseReason> {
        if alias == 0 || alias > self.limits().topic_alias_maximum {
            // [MQTT-3.3.2-8, MQTT-3.3.2-9]
            return Err(publish_rejection(
                ReasonCode::TOPIC_ALIAS_INVALID,
                "PUBLISH: topic alias out of range",
            ));
        }
        let aliases = &mut self.delivery.connections[at].extra().aliases_in;
        let slot = usize::from(alias) - 1;
        if aliases.len() <= slot {
            aliases.resize(slot + 1, None);
        }
        if !topic.is_empty() {
            aliases[slot] = Some(topic.into());
            return Ok(topic.into());
        }
        aliases[slot].clone().ok_or_else(|| {
            publish_rejection(
                ReasonCode::PROTOCOL_ERROR,
                "PUBLISH: this topic alias has no topic yet",
            )
        })
    }

    pub(super) fn accept_publish(
        &mut self,
        at: ConnectionIx,
        session: SessionIx,
        publish: &Publish<'_>,
    ) -> Result<ConnectionAction, CloseReason> {
        if publish.qos == QoS::ExactlyOnce && self.is_duplicate_qos2(at, session, publish)? {
            self.derived_messages.begin_publisher();
            self.notify_redelivered(session, publish)?;
            let reason = ReasonCode::SUCCESS;
            self.acknowledge_publish(at, PacketType::PubRec, publish.packet_id, reason);
            self.wait_for_derived(at);
            return Ok(self.action_after_publish(at));
        }
        if publish.qos != QoS::AtMostOnce
            && (self.delivery.rejects_new_messages()
                || self.is_rejected_by_nodes(publish.topic, publish.retain))
        {
            return self.reject_store_unavailable(at, publish);
        }
        self.metrics().inc(match publish.qos {
            QoS::AtMostOnce => Metric::ReceivedQos0,
            QoS::AtLeastOnce => Metric::ReceivedQos1,
            QoS::ExactlyOnce => Metric::ReceivedQos2,
        });
        self.delivery.sessions[session].messages_received += 1;
        self.rejected_by_hooks = false;
        self.deferred_by_hooks = false;
        self.derived_messages.begin_publisher();
        self.begin_publication(session, publish.qos);
        let result = self.accept_new_message(session, publish);
        self.is_publishing_exactly_once = false;
        let reason = result?;
        if reason.is_error() && self.rejected_by_hooks {
            return self.reject_store_unavailable(at, publish);
        }
        match publish.qos {
            QoS::AtMostOnce => {}
            _ if self.deferred_by_hooks => self.keep_deferred_number(at, publish.packet_id),
            QoS::AtLeastOnce => {
                if !reason.is_error() {
                    self.record_publication_number(session);
                }
                self.acknowledge_publish(at, PacketType::PubAck, publish.packet_id, reason);
            }
            QoS::ExactlyOnce => {
                if !reason.is_error() {
                    self.record_incoming_qos2(session, publish.packet_id);
                }
                self.acknowledge_publish(at, PacketType::PubRec, publish.packet_id, reason);
            }
        }
        self.wait_for_derived(at);
        Ok(self.action_after_publish(at))
    }

    /// A client publishes a message that is not a duplicate.
    #[inline]
    fn begin_publication(&mut self, session: SessionIx, qos: QoS) {
        if let Some(journal) = &mut self.delivery.journal
            && (qos == QoS::ExactlyOnce || self.publication_number.is_some())
        {
            journal.begin_publication();
            // So that messages derived from it are not lost on their way to other nodes, either.
            self.is_publishing_exactly_once =
                journal.has_node_link() && self.delivery.sessions[session].store_number != 0;
        }
    }

    /// Rejects a message because the store accepts no writes. Before version 5, closing the connection is the only
    /// possible answer [MQTT-3.3.5-2].
    pub(super) fn reject_store_unavailable(
        &mut self,
        at: ConnectionIx,
        publish: &Publish<'_>,
    ) -> Result<ConnectionAction, CloseReason> {
        let rejection = ReasonCode::QUOTA_EXCEEDED;
        self.metrics().inc(Metric::DroppedStoreFull);
        if self.delivery.connections[at].version != Version::V5 {
            return Err(CloseReason::new(rejection, "store_full"));
        }
        let kind = match publish.qos {
            QoS::ExactlyOnce => PacketType::PubRec,
            _ => PacketType::PubAck,
        };
        // It confirms nothing, so that it does not wait for the records of this turn, which may never be written.
        let version = self.delivery.connections[at].version;
        self.delivery.write(at, |out| {
            encode_ack(kind, version, publish.packet_id, rejection, out);
        });
        Ok(ConnectionAction::Continue)
    }

    /// Whether a QoS 2 message was received before and is not released yet [MQTT-4.3.3-10].
    fn is_duplicate_qos2(
        &mut self,
        at: ConnectionIx,
        session: SessionIx,
        publish: &Publish<'_>,
    ) -> Result<bool, CloseReason> {
        let Some(incoming) = &self.delivery.sessions[session].incoming_qos2 else {
            return Ok(false);
        };
        if incoming.contains(publish.packet_id) {
            return Ok(true);
        }
        let version = self.delivery.connections[at].version;
        if version == Version::V5 && incoming.len() >= u32::from(self.limits().receive_maximum) {
            // [MQTT-3.3.4-7]
            return Err(CloseReason::new(
                ReasonCode::RECEIVE_MAXIMUM_EXCEEDED,
                "receive_maximum_exceeded",
            ));
        }
        if incoming.len() == u32::from(u16::MAX) {
            return Err(publish_rejection(
                ReasonCode::PROTOCOL_ERROR,
                "PUBLISH: no packet id is free",
            ));
        }
        Ok(false)
    }

    /// Validates a message that is not a duplicate and routes it; returns the answer for its publisher.
    #[inline]
    fn accept_new_message(
        &mut self,
        session: SessionIx,
        publish: &Publish<'_>,
    ) -> Result<ReasonCode, CloseReason> {
        let mut view = message_view(publish, self.now_ms(), self.delivery.next_message_number());
        let mut delay_s = None;
        if view.topic.starts_with('$') {
            if let Some(rest) = view.topic.strip_prefix(DELAYED_PREFIX) {
                let Some((seconds, topic)) = self.parse_delayed(rest) else {
                    return Ok(ReasonCode::TOPIC_NAME_INVALID);
                };
                // Authorization applies to the topic on which the message will be published.
                view.topic = topic;
                delay_s = Some(seconds);
            } else if view.topic.starts_with(SYS_PREFIX) {
                let origin = message_origin(publish);
                let why = DropReason::NotAuthorized;
                self.delivery
                    .dropped_from(Some(session), None, &view, &origin, why);
                return Ok(ReasonCode::NOT_AUTHORIZED);
            }
        }
        if let Some(rejection) = self.check_publish_allowed(session, &view)? {
            return Ok(rejection);
        }
        if let Some(delay_s) = delay_s {
            return Ok(self.schedule_delayed(session, delay_s, &view));
        }
        Ok(self.publish_from(&view, Some(session), &message_origin(publish)))
    }

    /// Inlined, because the message of each PUBLISH passes it.
    #[inline(always)]
    pub(super) fn check_publish_allowed(
        &mut self,
        session: SessionIx,
        view: &MessageView<'_>,
    ) -> Result<Option<ReasonCode>, CloseReason> {
        if self.needs_authorization(session) || view.topic.starts_with(RELAY_TOPIC_PREFIX) {
            let action = ClientAction::Publish {
                topic: view.topic,
                qos: view.qos,
                retain: view.retain,
            };
            match self.authorize(session, &action) {
                Authorization::Allow => {}
                Authorization::Deny => {
                    let (origin, why) = (MessageOrigin::default(), DropReason::NotAuthorized);
                    self.delivery
                        .dropped_from(Some(session), Some(session), view, &origin, why);
                    return Ok(Some(ReasonCode::NOT_AUTHORIZED));
                }
                Authorization::Disconnect => {
                    return Err(CloseReason::new(
                        ReasonCode::NOT_AUTHORIZED,
                        "not_authorized",
                    ));
                }
            }
        }
        if !view.properties.is_empty()
            && self.limits.validate_payload_format
            && view.properties.payload_format_indicator() == Some(1)
            && std::str::from_utf8(view.payload).is_err()
        {
            return match view.qos {
                // Closing is the only possible answer to a QoS 0 message.
                QoS::AtMostOnce => Err(publish_rejection(
                    ReasonCode::PAYLOAD_FORMAT_INVALID,
                    "PUBLISH: the payload is marked as UTF-8 but is not valid UTF-8",
                )),
                _ => Ok(Some(ReasonCode::PAYLOAD_FORMAT_INVALID)),
            };
        }
        Ok(None)
    }

    /// Processes an accepted message from a client or from the broker itself: hooks, retained store, subscribers.
    pub(crate) fn publish_view(
        &mut self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
    ) -> ReasonCode {
        self.publish_from(view, origin, &MessageOrigin::default())
    }

    /// Like [`Shard::publish_view`], with the origin of the message for hooks; this function adds the client to it.
    /// Inlined, because the message of each PUBLISH passes it.
    #[inline(always)]
    pub(super) fn publish_from(
        &mut self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
        hook_origin: &MessageOrigin<'_>,
    ) -> ReasonCode {
        if self.delivery.interest.may_want_topic(view.topic)
            && self.delivery.hooks.wants_topic(view.topic)
        {
            return self.publish_with_hooks(view, origin, hook_origin);
        }
        self.forward_message(view, origin, hook_origin, false)
    }

    #[inline(never)]
    fn publish_with_hooks(
        &mut self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
        hook_origin: &MessageOrigin<'_>,
    ) -> ReasonCode {
        let verdict = self.call_publish_hooks(view, origin, hook_origin);
        if verdict == PublishVerdict::Deny {
            let why = DropReason::NotAuthorized;
            self.delivery
                .dropped_from(origin, origin, view, hook_origin, why);
            return ReasonCode::NOT_AUTHORIZED;
        }
        let publisher = origin.and_then(|at| self.delivery.sessions[at].connection);
        if matches!(
            verdict,
            PublishVerdict::Stop | PublishVerdict::Defer | PublishVerdict::Reject
        ) {
            // A hook that stops the message may still have to make it durable.
            self.wait_for_hooks(publisher);
            self.rejected_by_hooks = verdict == PublishVerdict::Reject;
            self.deferred_by_hooks = verdict == PublishVerdict::Defer;
            return match verdict {
                PublishVerdict::Reject => ReasonCode::QUOTA_EXCEEDED,
                _ => ReasonCode::SUCCESS,
            };
        }
        let answer = self.forward_message(view, origin, hook_origin, true);
        if verdict == PublishVerdict::ContinueAndCollect {
            self.publish_hook_messages(publisher);
        }
        answer
    }

    pub(super) fn call_publish_hooks(
        &mut self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
        hook_origin: &MessageOrigin<'_>,
    ) -> PublishVerdict {
        let delivery = &mut self.delivery;
        let named = with_publisher(&delivery.sessions, origin, view);
        let connection = origin.and_then(|at| delivery.sessions[at].connection);
        let ticket = connection
            .filter(|_| hook_origin.packet_id != 0)
            .map(|at| PublishTicket {
                shard: self.id,
                connection: at.position() as u32,
                serial: delivery.connections[at].serial,
                packet_id: hook_origin.packet_id,
                qos: view.qos,
            });
        let hook_origin = MessageOrigin {
            client: origin.map(|at| hook_client(&delivery.sessions[at], &delivery.connections)),
            device: origin.and_then(|at| delivery.sessions[at].permissions.as_ref()?.device()),
            ticket,
            ..*hook_origin
        };
        if delivery.interest.contains(Interest::PUBLISH_GUARD)
            && delivery.hooks.denies_publish(&named, &hook_origin)
        {
            return PublishVerdict::Deny;
        }
        if view.qos != QoS::AtMostOnce && delivery.hooks.rejects_publish(&named, &hook_origin) {
            return PublishVerdict::Reject;
        }
        delivery.hooks.publish(&named, &hook_origin)
    }

    /// Publishes messages that hooks requested because of a message of this connection or of events, and checks what
    /// the turn has to wait for.
    pub(crate) fn publish_hook_messages(&mut self, publisher: Option<ConnectionIx>) {
        self.publish_derived(publisher);
        self.wait_for_hooks(publisher);
    }

    /// Holds acknowledgements back until the data taken by hooks is durable, and pauses the publisher while hooks
    /// signal backpressure.
    pub(crate) fn wait_for_hooks(&mut self, publisher: Option<ConnectionIx>) {
        if self.delivery.hooks.has_unsettled_work()
            && let Some(journal) = &mut self.delivery.journal
        {
            journal.mark_waiting_for_hooks();
        }
        if !self.derived_messages.is_publishing() {
            let connections = &self.delivery.connections;
            let publisher = publisher.and_then(|at| Some((at, connections.get(at)?.serial)));
            self.take_backpressure(publisher);
        }
    }

    /// `is_seen_by_hooks`: [`hooks::Hooks::publish`] was called for the message.
    /// Inlined into both of its callers, because each message passes it.
    #[inline(always)]
    fn forward_message(
        &mut self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
        hook_origin: &MessageOrigin<'_>,
        is_seen_by_hooks: bool,
    ) -> ReasonCode {
        if view.topic.starts_with(RELAY_TOPIC_PREFIX) && !self.admit_relay_message(view, origin) {
            let why = DropReason::NotAuthorized;
            self.delivery
                .dropped_from(origin, None, view, hook_origin, why);
            return ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR;
        }
        let rejection = match view.retain {
            true => self.store_retained(view, origin).err(),
            false => None,
        };
        let is_wanted = self.route(view, origin);
        if !is_wanted {
            (self.delivery).record_no_subscribers(origin, view, hook_origin, is_seen_by_hooks);
        }
        match (rejection, is_wanted) {
            // Current subscribers have received it; the reason code reports to the publisher that it was not retained.
            (Some(rejection), _) => rejection,
            (None, true) => ReasonCode::SUCCESS,
            (None, false) => ReasonCode::NO_MATCHING_SUBSCRIBERS,
        }
    }

    pub(super) fn store_retained(
        &mut self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
    ) -> Result<(), ReasonCode> {
        let limits = &*self.limits;
        if view.payload.len() > limits.max_retained_payload_bytes as usize {
            self.dropped_at_entry(view, origin, DropReason::TooLarge);
            return Err(ReasonCode::QUOTA_EXCEEDED);
        }
        if self.delivery.rejects_new_messages() {
            self.dropped_at_entry(view, origin, DropReason::QueueFull);
            return Err(ReasonCode::QUOTA_EXCEEDED);
        }
        let mut named = with_publisher(&self.delivery.sessions, origin, view);
        if limits.retained_expiry_s > 0 && named.expires_ms == NEVER_MS {
            named.expires_ms = self.delivery.now_ms + u64::from(limits.retained_expiry_s) * 1000;
        }
        match self.node.retained.store(&named, limits) {
            Ok(version_ms) => named.received_ms = version_ms,
            Err(_) => {
                self.dropped_at_entry(view, origin, DropReason::QueueFull);
                return Err(ReasonCode::QUOTA_EXCEEDED);
            }
        }
        // The node's own messages are published again after a start.
        if named.topic.starts_with(SYS_PREFIX) {
            return Ok(());
        }
        persist_retained(self.delivery.journal.as_deref_mut(), &named);
        let is_exactly_once = named.qos != QoS::AtMostOnce && self.is_exactly_once(view, origin);
        if let Some(router) = self.node_router {
            if let Some(journal) = &mut self.delivery.journal
                && is_exactly_once
            {
                journal.record_retained_copy(&named);
                return Ok(());
            }
            self.shard_queues.push_retained_copy(router, &named);
            if named.qos != QoS::AtMostOnce
                && let Some(journal) = &mut self.delivery.journal
            {
                journal.require_confirmation(router);
            }
        }
        Ok(())
    }

    /// Retains what another node has retained, unless this node has a later version of it.
    pub(super) fn store_retained_copy(&mut self, view: &MessageView<'_>) {
        let now_ms = self.delivery.now_ms;
        match self.node.retained.store_copy(view, &self.limits, now_ms) {
            Ok(true) => persist_retained(self.delivery.journal.as_deref_mut(), view),
            Ok(false) => {}
            Err(_) => (self.delivery).record_drop(None, view, DropReason::QueueFull),
        }
    }

    /// Records a message that was dropped for all subscribers on arrival.
    fn dropped_at_entry(
        &mut self,
        view: &MessageView<'_>,
        publisher: Option<SessionIx>,
        why: DropReason,
    ) {
        let origin = MessageOrigin::default();
        self.delivery
            .dropped_from(publisher, None, view, &origin, why);
    }

    /// Publishes a message of the broker itself, or a delayed message that is due.
    pub(crate) fn publish_internal(&mut self, view: &MessageView<'_>) {
        self.publish_view(view, None);
    }

    /// Parses `$delayed/{seconds}/{topic}` without its prefix; returns the seconds and the topic.
    fn parse_delayed<'a>(&self, rest: &'a str) -> Option<(u32, &'a str)> {
        let (seconds, topic) = rest.split_once('/')?;
        let is_good = mqtt::validate_topic_name(topic, &self.topic_limits()).is_ok()
            && !topic.starts_with(SYS_PREFIX)
            && !topic.starts_with(DELAYED_PREFIX);
        is_good.then_some((seconds.parse().ok()?, topic))
    }

    /// Stores a message until it is due.
    fn schedule_delayed(
        &mut self,
        session: SessionIx,
        delay_s: u32,
        view: &MessageView<'_>,
    ) -> ReasonCode {
        let limits = &*self.limits;
        let bytes = view.payload.len() + view.topic.len() + view.properties.as_bytes().len();
        if delay_s > limits.max_publish_delay_s
            || !self.node.directory.reserve_delayed(bytes as u64, limits)
        {
            self.dropped_at_entry(view, Some(session), DropReason::QueueFull);
            return ReasonCode::QUOTA_EXCEEDED;
        }
        let at_ms = self.now_ms() + u64::from(delay_s) * 1000;
        let named = with_publisher(&self.delivery.sessions, Some(session), view);
        // Its expiry, like all its other properties, counts from the moment of publication.
        let expires_ms = expiry_time_ms(view.properties, at_ms);
        let view = MessageView {
            received_ms: at_ms,
            expires_ms,
            ..named
        };
        let message = Box::new(Message::new(&view));
        let mut number = 0;
        if let Some(journal) = &mut self.delivery.journal {
            number = journal.next_unique_number();
            let key = records::delayed_key(at_ms, number);
            journal.put(StateKind::Delayed, &key, &records::message_bytes(&view));
        }
        let bytes = bytes as u64;
        let delayed = Timer::DelayedMessage {
            message,
            bytes,
            number,
        };
        self.timers.schedule(at_ms, delayed);
        self.metrics().inc(Metric::DelayedMessages);
        ReasonCode::SUCCESS
    }
}

/// Writes a retained message, or its removal, to the journal.
fn persist_retained(journal: Option<&mut ShardJournal>, view: &MessageView<'_>) {
    if let Some(journal) = journal {
        let topic = view.topic.as_bytes();
        match view.payload.is_empty() {
            true => journal.delete(StateKind::Retained, topic),
            false => journal.put(StateKind::Retained, topic, &records::message_bytes(view)),
        }
    }
}
