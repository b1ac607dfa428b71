//! SUBSCRIBE: updates the subscription tree, announces the change to the other shards, then sends SUBACK.
//!
//! A SUBACK waits until every shard has the filter, so that a message published after it always arrives. One number per
//! shard records what that shard has confirmed, since messages between two shards keep their order.
//!
//! It orchestrates: filters are in the tree, waiting SUBACKs in `PendingSubAcks`, retained messages in `RetainedDelivery`.

use hooks::{Authorization, ClientAction, Interest, PacketFacts};
use mqtt::{
    Packet, Properties, PropertiesBuf, Property, ReasonCode, SubAck, Subscribe, SubscribeFilter,
    SubscriptionFilter,
};
use std::rc::Rc;

use super::connection::{CloseReason, ConnectionPhase};
use super::pending_suback::PendingSubAck;
use super::shard::{ConnectionAction, Shard};
use super::subscriber_list::Subscriber;
use super::subscription_tree::{EXCLUSIVE_GROUP, filter_and_group};
use super::tables::{ConnectionIx, NO_GROUP, SessionIx};
use crate::metrics::Metric;

/// The outcome of one filter of a SUBSCRIBE.
pub(super) struct SubscribeOutcome {
    code: ReasonCode,
    detail: Option<String>,
    sequence: u64,
    retained: Option<(Rc<str>, Subscriber)>,
}

/// Bytes that a subscription counts for besides its filter and the name of its group.
const SUBSCRIPTION_OVERHEAD_BYTES: u64 = 64;

/// Bytes that a subscription counts for in the limits on subscription bytes.
pub(super) fn subscription_bytes(text: &str, group: Option<&str>) -> u64 {
    SUBSCRIPTION_OVERHEAD_BYTES + (text.len() + group.map_or(0, str::len)) as u64
}

impl SubscribeOutcome {
    /// When all shards have confirmed this number, they know the filter.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    fn rejected(code: ReasonCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: Some(detail.into()),
            sequence: 0,
            retained: None,
        }
    }
}

impl Shard {
    pub(crate) fn handle_subscribe(
        &mut self,
        at: ConnectionIx,
        subscribe: &Subscribe<'_>,
    ) -> Result<ConnectionAction, CloseReason> {
        let session = self.session_of_connection(at);
        let topics = self.exclusive_topics_to_claim(session, subscribe.filters.iter());
        if topics.is_empty() {
            return self.process_subscribe(at, subscribe);
        }
        let continuation = self.continue_subscribe(at, subscribe);
        self.claim_exclusives(session, topics, continuation);
        // Packets that the client sends meanwhile wait.
        self.delivery.connections[at].is_held = true;
        Ok(ConnectionAction::AwaitResume)
    }

    /// Processes a SUBSCRIBE whose exclusive subscriptions are decided.
    pub(super) fn process_subscribe(
        &mut self,
        at: ConnectionIx,
        subscribe: &Subscribe<'_>,
    ) -> Result<ConnectionAction, CloseReason> {
        let session = self.session_of_connection(at);
        let identifier = subscribe
            .properties
            .subscription_identifiers()
            .next()
            .unwrap_or(0);
        let packet = PacketFacts {
            packet_id: subscribe.packet_id,
            properties: subscribe.properties,
        };
        let mut codes = Vec::with_capacity(subscribe.filters.len());
        let mut sequence = 0;
        let mut retained = Vec::new();
        let mut detail = None;
        for filter in subscribe.filters.iter() {
            let outcome = self.subscribe_one(session, &filter, identifier, packet)?;
            codes.push(self.suback_code(at, outcome.code));
            sequence = sequence.max(outcome.sequence);
            retained.extend(outcome.retained);
            detail = detail.or(outcome.detail);
        }
        let packet = self.suback(at, subscribe.packet_id, &codes, detail.as_deref());
        let connection = &mut self.delivery.connections[at];
        let pending_suback = PendingSubAck {
            sequence,
            connection: at,
            serial: connection.serial,
            packet,
            retained,
            is_durable: self.delivery.sessions[session].store_number != 0,
        };
        if self.shard_queues.is_applied_by_all(sequence) {
            self.send_pending_suback(pending_suback);
            return Ok(ConnectionAction::Continue);
        }
        // Packets that the client sends meanwhile wait, so that its own messages reach it after the SUBACK.
        connection.is_held = true;
        self.pending_subacks.push(pending_suback);
        Ok(ConnectionAction::AwaitResume)
    }

    fn suback(
        &self,
        at: ConnectionIx,
        packet_id: u16,
        codes: &[u8],
        detail: Option<&str>,
    ) -> Vec<u8> {
        let connection = &self.delivery.connections[at];
        let encode = |properties: Properties<'_>| {
            let suback = SubAck {
                packet_id,
                properties,
                codes,
            };
            let mut packet = Vec::new();
            Packet::SubAck(suback).encode(connection.version, &mut packet);
            packet
        };
        if let Some(detail) = detail
            && connection.version == mqtt::Version::V5
            && connection.wants_problem_information
            && self.limits().send_reason_strings
        {
            let mut properties = PropertiesBuf::new();
            properties.push(Property::ReasonString(detail));
            let packet = encode(properties.as_properties());
            // Omitted if the packet would be too large with it [MQTT-3.9.2-1].
            if packet.len() <= connection.max_packet_out as usize {
                return packet;
            }
        }
        encode(Properties::EMPTY)
    }

    /// Maps a code to the client's version: 3.1.1 has one failure code; 3.1 has none, but the client still receives a
    /// failure.
    fn suback_code(&self, at: ConnectionIx, code: ReasonCode) -> u8 {
        let is_v5 = self.delivery.connections[at].version == mqtt::Version::V5;
        if code.is_error() && !is_v5 {
            ReasonCode::UNSPECIFIED_ERROR.0
        } else {
            code.0
        }
    }

    fn subscribe_one(
        &mut self,
        session_at: SessionIx,
        filter: &SubscribeFilter<'_>,
        identifier: u32,
        packet: PacketFacts<'_>,
    ) -> Result<SubscribeOutcome, CloseReason> {
        let limits = self.limits.clone();
        let kind = match mqtt::parse_filter(filter.filter, &self.topic_limits()) {
            Ok(kind) => kind,
            Err(error) => {
                return Ok(SubscribeOutcome::rejected(
                    ReasonCode::TOPIC_FILTER_INVALID,
                    error.to_string(),
                ));
            }
        };
        let (text, group) = filter_and_group(&kind);
        if mqtt::has_wildcards(text) && !limits.wildcard_subscription_available {
            return self.reject_unavailable(
                session_at,
                ReasonCode::WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
                "wildcard subscriptions are disabled on this node",
            );
        }
        let is_shared = matches!(
            kind,
            SubscriptionFilter::Shared { .. } | SubscriptionFilter::Queue { .. }
        );
        if is_shared && !limits.shared_subscription_available {
            return self.reject_unavailable(
                session_at,
                ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                "shared subscriptions are disabled on this node",
            );
        }
        if is_shared && filter.options.no_local {
            // [MQTT-3.8.3-4]
            return Err(
                CloseReason::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                    .with_detail("SUBSCRIBE: no local on a shared subscription"),
            );
        }
        let action = ClientAction::Subscribe {
            filter: filter.filter,
            options: filter.options,
        };
        match self.authorize(session_at, &action) {
            Authorization::Allow => {}
            Authorization::Deny => {
                return Ok(SubscribeOutcome::rejected(
                    ReasonCode::NOT_AUTHORIZED,
                    "not authorized",
                ));
            }
            Authorization::Disconnect => {
                return Err(CloseReason::new(
                    ReasonCode::NOT_AUTHORIZED,
                    "not_authorized",
                ));
            }
        }
        if let Some(rejected) = self.check_subscription_quota(session_at, text, group) {
            return Ok(rejected);
        }
        if self.delivery.sessions[session_at].store_number != 0
            && self.delivery.rejects_new_messages()
        {
            return Ok(SubscribeOutcome::rejected(
                ReasonCode::QUOTA_EXCEEDED,
                "the store accepts no writes now",
            ));
        }
        if let SubscriptionFilter::Exclusive { topic } = kind {
            if !limits.exclusive_subscription_available {
                return Ok(SubscribeOutcome::rejected(
                    ReasonCode::TOPIC_FILTER_INVALID,
                    "$exclusive subscriptions are disabled on this node",
                ));
            }
            if let Err((code, detail)) = self.take_exclusive(session_at, topic) {
                return Ok(SubscribeOutcome::rejected(code, detail));
            }
        }
        let mut options = filter.options;
        if self.delivery.sessions[session_at].is_bridge && group.is_none() {
            options.no_local = true;
            options.retain_as_published = true;
        }
        options.qos = options
            .qos
            .min(mqtt::QoS::try_from(limits.max_qos).unwrap_or(options.qos));
        let subscriber = Subscriber {
            session: session_at,
            identifier,
            options,
        };
        let outcome = self.insert_subscription(text, group, subscriber);
        self.persist_subscription(subscriber, filter.filter);
        if self.delivery.interest.contains(Interest::SUBSCRIBE) {
            self.call_hook(session_at, |hooks, client| {
                hooks.subscribed(client, filter.filter, options, packet);
            });
        }
        Ok(outcome)
    }

    /// Rejects a new subscription that exceeds a limit of its session or of the shard.
    pub(super) fn check_subscription_quota(
        &self,
        session: SessionIx,
        text: &str,
        group: Option<&str>,
    ) -> Option<SubscribeOutcome> {
        let limits = &self.limits;
        let state = &self.delivery.sessions[session];
        if state.subscriptions.len() >= limits.max_subscriptions_per_session as usize
            && !self.has_subscription(session, text, group)
        {
            self.metrics().inc(Metric::SubscriptionsOverQuota);
            return Some(SubscribeOutcome::rejected(
                ReasonCode::QUOTA_EXCEEDED,
                format!(
                    "a session may have at most {} subscriptions",
                    limits.max_subscriptions_per_session
                ),
            ));
        }
        let bytes = subscription_bytes(text, group);
        let of_session = state.subscription_bytes + bytes;
        let of_shard = self.metrics().get(Metric::SubscriptionBytes) + bytes;
        let exceeded = match () {
            () if of_session > limits.max_subscription_bytes_per_session => Some((
                "a session",
                limits.max_subscription_bytes_per_session,
                "limits.max_subscription_bytes_per_session",
            )),
            () if of_shard > limits.max_subscription_bytes_per_shard => Some((
                "all sessions of a shard",
                limits.max_subscription_bytes_per_shard,
                "limits.max_subscription_bytes_per_shard",
            )),
            () => None,
        };
        if let Some((whose, max, setting)) = exceeded
            && !self.has_subscription(session, text, group)
        {
            self.metrics().inc(Metric::SubscriptionsOverQuota);
            return Some(SubscribeOutcome::rejected(
                ReasonCode::QUOTA_EXCEEDED,
                format!("subscriptions of {whose} may have at most {max} bytes ({setting})"),
            ));
        }
        None
    }

    /// Rejects a feature that CONNACK announced as unavailable: a protocol error in version 5 (sections 3.2.2.3.11 and
    /// 3.2.2.3.13), a failure of this one filter before.
    fn reject_unavailable(
        &self,
        session: SessionIx,
        code: ReasonCode,
        detail: &'static str,
    ) -> Result<SubscribeOutcome, CloseReason> {
        match self.delivery.sessions[session].version {
            mqtt::Version::V5 => Err(CloseReason::new(code, "protocol_error").with_detail(detail)),
            _ => Ok(SubscribeOutcome::rejected(code, detail)),
        }
    }

    pub(super) fn has_subscription(
        &self,
        session: SessionIx,
        text: &str,
        group: Option<&str>,
    ) -> bool {
        let Some(filter) = self.tree.find(text) else {
            return false;
        };
        let group = match group {
            None => NO_GROUP,
            Some(name) => match self.tree.find_group(filter, name) {
                Some(group) => group,
                None => return false,
            },
        };
        let subscriptions = &self.delivery.sessions[session].subscriptions;
        subscriptions.binary_search(&(filter, group)).is_ok()
    }

    /// Inserts a subscription into the tree and, if it is the first of its kind here, announces it to the other shards.
    pub(super) fn insert_subscription(
        &mut self,
        text: &str,
        group: Option<&str>,
        subscriber: Subscriber,
    ) -> SubscribeOutcome {
        let filter = self.tree.find_or_insert(text);
        let (group_id, is_new, sequence) = match group {
            None => {
                let first = self.tree.filter(filter).subscribers.is_empty();
                let is_new = self.tree.subscribe(filter, subscriber);
                if first {
                    self.announce_filter(filter, true);
                }
                (
                    NO_GROUP,
                    is_new,
                    self.tree.filter(filter).announced_sequence,
                )
            }
            Some(name) => {
                let group = self.tree.find_or_insert_group(filter, name);
                let is_new = self.tree.group_mut(group).join(subscriber);
                if is_new {
                    self.announce_members(group);
                }
                (group, is_new, self.tree.group(group).announced_sequence)
            }
        };
        let session = &mut self.delivery.sessions[subscriber.session];
        if let Err(place) = session.subscriptions.binary_search(&(filter, group_id)) {
            let bytes = subscription_bytes(text, group);
            session.subscriptions.insert(place, (filter, group_id));
            session.subscription_bytes += bytes;
            self.metrics().inc(Metric::Subscriptions);
            self.metrics().add(Metric::SubscriptionBytes, bytes);
        }
        // Retained messages: never for shared subscriptions; otherwise by retain handling [MQTT-3.3.1-9 to 3.3.1-11].
        let wants_retained = group.is_none_or(|name| name == EXCLUSIVE_GROUP)
            && match subscriber.options.retain_handling {
                0 => true,
                1 => is_new,
                _ => false,
            };
        SubscribeOutcome {
            code: ReasonCode(subscriber.options.qos as u8),
            detail: None,
            sequence,
            retained: wants_retained.then(|| (self.tree.filter(filter).text.clone(), subscriber)),
        }
    }

    /// Sends a SUBACK, followed by the retained messages for its subscriptions.
    pub(super) fn send_pending_suback(&mut self, pending_suback: PendingSubAck) {
        let at = pending_suback.connection;
        let Some(connection) = self.delivery.connections.get(at) else {
            return;
        };
        if connection.serial != pending_suback.serial
            || connection.phase != ConnectionPhase::Connected
        {
            return;
        }
        if std::mem::take(&mut self.delivery.connections[at].is_held) {
            self.to_wake.push(at);
        }
        if pending_suback.is_durable {
            self.delivery.hold_for_incomplete_turns(at);
        }
        self.delivery
            .write(at, |out| out.extend_from_slice(&pending_suback.packet));
        if !pending_suback.retained.is_empty() {
            self.send_retained(at, pending_suback.retained);
        }
    }

    fn send_retained(&mut self, at: ConnectionIx, subscriptions: Vec<(Rc<str>, Subscriber)>) {
        let connection = &mut self.delivery.connections[at];
        let session = connection.session;
        let pending = &mut connection.extra().retained;
        for (filter, subscriber) in subscriptions {
            pending.subscribe(&filter, subscriber);
        }
        self.delivery.pump(session);
    }

    /// Subscribes a session without a SUBSCRIBE packet. Returns the granted QoS and the number of the announcement to
    /// the other shards, or the error. Retained messages are sent if the client is connected.
    pub(super) fn subscribe_without_packet(
        &mut self,
        session: SessionIx,
        filter: &SubscribeFilter<'_>,
    ) -> Result<(ReasonCode, u64), (ReasonCode, String)> {
        let outcome = match self.subscribe_one(session, filter, 0, PacketFacts::NONE) {
            Ok(outcome) => outcome,
            Err(closing) => {
                let code = closing.code.unwrap_or(ReasonCode::UNSPECIFIED_ERROR);
                let detail = closing.detail.as_deref().unwrap_or(closing.reason);
                return Err((code, detail.to_owned()));
            }
        };
        if outcome.code.is_error() {
            return Err((outcome.code, outcome.detail.unwrap_or_default()));
        }
        if let Some((filter, subscriber)) = outcome.retained
            && let Some(at) = self.delivery.sessions[session].connection
        {
            self.send_retained(at, vec![(filter, subscriber)]);
        }
        Ok((outcome.code, outcome.sequence))
    }
}
