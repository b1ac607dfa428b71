//! The engine's hooks of one shard: turns hook calls of the broker into rule events if a rule selects them.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use hooks::{
    AcceptedConnect, AckKind, Authorization, BackpressureCheck, Client, ClientAction, DropReason,
    DurableCallback, Hooks, HooksFactory, Interest, MessageOrigin, MessageView, OutgoingMessages,
    PacketFacts, PeerAddress, PublishVerdict, RejectedConnect, carries_secret,
};
use mqtt::{Properties, QoS, ReasonCode, SubscriptionOptions, Version};
use rules::index::IndexQuery;
use rules::{ConnectionDetails, EvaluationScratch, EventKind, RuleEvent, WillDetails};
use wall_clock::now_ms;

use crate::counters::RuleCounter;
use crate::engine_shared::{EngineShared, RuleSnapshot};
use crate::evaluation::{EventEvaluation, index_query};
use crate::evaluation_context::EvaluationContext;
use crate::producer_context::ProducerContext;
use crate::rule_lineage::RuleLineage;
use crate::running_rule::RunningRule;

pub(crate) struct RuleHooksFactory(pub(crate) Arc<EngineShared>);

impl HooksFactory for RuleHooksFactory {
    fn hooks_for(&self, shard: u16) -> Box<dyn Hooks> {
        Box::new(RuleHooks::new(self.0.clone(), shard))
    }
}

struct RuleHooks {
    shared: Arc<EngineShared>,
    snapshot: Cache<Arc<ArcSwap<RuleSnapshot>>, Arc<RuleSnapshot>>,
    scratch: EvaluationScratch,
    is_scratch_used: bool,
    stage: ProducerContext,
}

/// Rules that an event matched; nearly always few.
#[derive(Default)]
struct MatchedRules<'a> {
    few: [Option<&'a RunningRule>; 8],
    more: Vec<&'a RunningRule>,
    count: usize,
}

impl<'a> MatchedRules<'a> {
    #[inline]
    fn push(&mut self, bound: &'a RunningRule) {
        match self.few.get_mut(self.count) {
            Some(place) => *place = Some(bound),
            None => self.more.push(bound),
        }
        self.count += 1;
    }

    #[inline]
    fn get(&self, at: usize) -> Option<&'a RunningRule> {
        match self.few.get(at) {
            Some(place) => *place,
            None => self.more.get(at - self.few.len()).copied(),
        }
    }
}

impl RuleHooks {
    fn new(shared: Arc<EngineShared>, shard: u16) -> Self {
        let EvaluationContext { scratch, stage } = shared.evaluation_context(usize::from(shard));
        Self {
            snapshot: Cache::new(shared.snapshot.clone()),
            scratch,
            is_scratch_used: false,
            stage,
            shared,
        }
    }

    /// Evaluates the rules on an event. Calls `fill` to set the event's fields only if there are candidate
    /// rules. `fill` works in place, because an event is too large to move.
    #[inline]
    fn emit_event<'e>(
        &'e mut self,
        query: &IndexQuery<'e>,
        now_ms: Option<u64>,
        lineage: RuleLineage,
        fill: impl FnOnce(&mut RuleEvent<'e>),
    ) {
        let index = &self.snapshot.load().index;
        let mut matched_rules = MatchedRules::default();
        index.matches(query, |bound| matched_rules.push(bound));
        if matched_rules.count == 0 {
            return;
        }
        if self.is_scratch_used {
            self.scratch.reset();
        }
        self.is_scratch_used = true;
        let at_ms = now_ms.unwrap_or_else(self::now_ms);
        let mut event = RuleEvent::new(query.kind, at_ms);
        event.client_id = query.client_id.unwrap_or_default();
        event.topic = query.topic;
        event.qos = query.qos;
        event.node = &self.shared.settings.node_name;
        event.node_ip = &self.shared.node_ip;
        fill(&mut event);
        let view = self.scratch.view(&event, at_ms);
        let mut run = EventEvaluation {
            index,
            rows: &self.shared.rows,
            scratch: &self.scratch,
            stage: &mut self.stage,
            lineage,
            now_ms: at_ms,
            chained: 0,
        };
        run.evaluate_all(&view, |at| matched_rules.get(at));
    }

    fn emit_client_event<'e>(
        &'e mut self,
        query: &IndexQuery<'e>,
        client: &Client<'e>,
        fill: impl FnOnce(&mut RuleEvent<'e>),
    ) {
        self.emit_event(query, None, RuleLineage::default(), |event| {
            event.username = client.username;
            event.peer = address_of(client);
            event.socket = client.local_address.copied();
            fill(event);
        });
    }

    fn emit_subscription_event<'e>(
        &'e mut self,
        kind: EventKind,
        client: &Client<'e>,
        filter: &'e str,
        options: SubscriptionOptions,
        packet: PacketFacts<'e>,
    ) {
        let qos = Some(options.qos as u8);
        let query = index_query(kind, Some(filter), client.client_id, qos);
        self.emit_client_event(&query, client, |event| {
            event.message_id = (packet.packet_id > 0).then_some(packet.packet_id);
            event.properties = packet.properties;
        });
    }

    /// Emits an event about a message and its recipient, or about a message without recipient.
    fn emit_message_event<'e>(
        &mut self,
        kind: EventKind,
        client: Option<&Client<'e>>,
        message: &MessageView<'e>,
        packet: PacketFacts<'e>,
        (reason, emqx_reason): (Option<&'e str>, Option<&'e str>),
    ) {
        if self.is_ignored_topic(message.topic) {
            return;
        }
        let client_id = client.map_or(message.from_client_id, |client| client.client_id);
        let username = match client {
            Some(client) => client.username,
            None => non_empty(message.from_username),
        };
        let peer = client.and_then(address_of);
        let socket = client.and_then(|client| client.local_address.copied());
        let (topic, qos) = (Some(message.topic), Some(message.qos as u8));
        let lineage = match message.is_derived {
            true => RuleLineage::NO_REPUBLISH,
            false => RuleLineage::default(),
        };
        let query = index_query(kind, topic, client_id, qos);
        let id = self.shared.message_id(message.received_ms, message.number);
        self.emit_event(&query, None, lineage, |event| {
            event.id = Some(id);
            event.username = username;
            event.peer = peer;
            event.socket = socket;
            event.retain = message.retain;
            event.payload = Some(message.payload);
            event.message_id = (packet.packet_id > 0).then_some(packet.packet_id);
            event.ack_properties = packet.properties;
            event.received_at_ms = Some(message.received_ms);
            event.from_client_id = non_empty(message.from_client_id);
            event.from_username = non_empty(message.from_username);
            event.properties = message.properties;
            event.reason = reason;
            event.emqx_reason = emqx_reason;
        });
    }

    /// Whether rules ignore messages to this topic.
    fn is_ignored_topic(&self, topic: &str) -> bool {
        self.shared.settings.ignore_sys_messages && topic.starts_with("$SYS/")
    }
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn peer_address(peer: Option<PeerAddress>) -> Option<SocketAddr> {
    match peer {
        Some(PeerAddress::Tcp(address)) => Some(address),
        Some(PeerAddress::Unix | PeerAddress::Memory) | None => None,
    }
}

/// A packet of which only the identifier is known.
fn packet_of(packet_id: u16) -> PacketFacts<'static> {
    PacketFacts {
        packet_id,
        ..PacketFacts::NONE
    }
}

/// The current or the last address of a client.
fn address_of(client: &Client<'_>) -> Option<SocketAddr> {
    match client.peer {
        Some(peer) => peer_address(Some(peer)),
        None => client.last_address,
    }
}

fn protocol_level(version: Version) -> u8 {
    match version {
        Version::V31 => 3,
        Version::V311 => 4,
        Version::V5 => 5,
    }
}

/// The reason for the end of a connection, in the terms of rules.
fn disconnect_reason(reason: &'static str) -> &'static str {
    match reason {
        "keep_alive_timeout" => "timeout",
        "taken_over" | "discarded" => "takenover",
        "closed_by_client" => "tcp_closed",
        other => other,
    }
}

/// EMQX's term for the reason of a disconnect, if it differs.
fn emqx_disconnect_reason(reason: &'static str) -> Option<&'static str> {
    match reason {
        "keep_alive_timeout" => Some("keepalive_timeout"),
        "discarded" => Some("discarded"),
        _ => None,
    }
}

/// EMQX's term for the reason of a dropped message, if it differs.
fn emqx_drop_reason(why: DropReason) -> Option<&'static str> {
    match why {
        DropReason::Offline => Some("qos0_msg"),
        _ => None,
    }
}

/// The known facts about a client's connection.
fn connection_details(client: &Client<'_>) -> ConnectionDetails<'static> {
    let facts = client.connection;
    ConnectionDetails {
        version: protocol_level(client.version),
        keep_alive_s: facts.keep_alive_s,
        clean_start: facts.clean_start,
        session_expiry_s: facts.session_expiry_s,
        connected_at_ms: facts.connected_ms,
        is_anonymous: client.username.is_none(),
        ..ConnectionDetails::default()
    }
}

/// The result of an authentication, in the terms of rules.
fn authentication_result(code: ReasonCode) -> Option<&'static str> {
    Some(match code {
        ReasonCode::SUCCESS => "success",
        ReasonCode::BAD_USER_NAME_OR_PASSWORD => "bad_username_or_password",
        ReasonCode::NOT_AUTHORIZED => "not_authorized",
        ReasonCode::BANNED => "banned",
        ReasonCode::BAD_AUTHENTICATION_METHOD => "bad_authentication_method",
        _ => return None,
    })
}

fn connack_result(code: ReasonCode) -> &'static str {
    match code {
        ReasonCode::CLIENT_IDENTIFIER_NOT_VALID => "client_identifier_not_valid",
        ReasonCode::SERVER_BUSY => "server_busy",
        ReasonCode::SERVER_UNAVAILABLE => "server_unavailable",
        ReasonCode::QUOTA_EXCEEDED => "quota_exceeded",
        ReasonCode::TOPIC_NAME_INVALID => "topic_name_invalid",
        ReasonCode::PAYLOAD_FORMAT_INVALID => "payload_format_invalid",
        ReasonCode::QOS_NOT_SUPPORTED => "qos_not_supported",
        ReasonCode::RETAIN_NOT_SUPPORTED => "retain_not_supported",
        ReasonCode::PROTOCOL_ERROR => "protocol_error",
        ReasonCode::MALFORMED_PACKET => "malformed_packet",
        ReasonCode::UNSUPPORTED_PROTOCOL_VERSION => "unsupported_protocol_version",
        code => authentication_result(code).unwrap_or("unspecified_error"),
    }
}

impl Hooks for RuleHooks {
    fn interest(&self) -> Interest {
        self.shared.snapshot.load().interest
    }

    #[inline]
    fn wants_topic(&mut self, topic: &str) -> bool {
        let index = &self.snapshot.load().index;
        index.may_match(EventKind::Publish, topic) && !carries_secret(topic)
    }

    fn publish(&mut self, message: &MessageView<'_>, origin: &MessageOrigin<'_>) -> PublishVerdict {
        self.stage.has_matched = false;
        // Another hook may need a topic that carries secrets.
        if RuleLineage(origin.tag) == RuleLineage::IGNORED
            || self.is_ignored_topic(message.topic)
            || carries_secret(message.topic)
        {
            return PublishVerdict::Continue;
        }
        let (topic, qos) = (Some(message.topic), Some(message.qos as u8));
        let now_ms = Some(message.received_ms);
        let query = index_query(EventKind::Publish, topic, message.from_client_id, qos);
        let id = self.shared.message_id(message.received_ms, message.number);
        self.emit_event(&query, now_ms, RuleLineage(origin.tag), |event| {
            event.id = Some(id);
            event.username = non_empty(message.from_username);
            event.peer = peer_address(origin.client.and_then(|client| client.peer));
            event.socket = origin
                .client
                .and_then(|client| client.local_address.copied());
            event.retain = message.retain;
            event.dup = origin.dup;
            event.payload = Some(message.payload);
            event.message_id = (origin.packet_id > 0).then_some(origin.packet_id);
            event.received_at_ms = Some(message.received_ms);
            event.properties = message.properties;
        });
        match self.stage.has_pending_effects() {
            true => PublishVerdict::ContinueAndCollect,
            false => PublishVerdict::Continue,
        }
    }

    fn has_consumed(&mut self, _: &MessageView<'_>) -> bool {
        self.stage.has_matched
    }

    fn delivered(&mut self, client: &Client<'_>, message: &MessageView<'_>, packet_id: u16) {
        let reasons = (None, None);
        let packet = packet_of(packet_id);
        self.emit_message_event(EventKind::Delivered, Some(client), message, packet, reasons);
    }

    fn acked(
        &mut self,
        client: &Client<'_>,
        message: &MessageView<'_>,
        packet: PacketFacts<'_>,
        kind: AckKind,
    ) {
        let word = match kind {
            AckKind::PubAck => "ack",
            AckKind::PubRec => "rec",
            AckKind::PubComp => "comp",
        };
        let reasons = (Some(word), None);
        self.emit_message_event(EventKind::Acked, Some(client), message, packet, reasons);
        // PUBCOMP adds no information about the message.
        if kind != AckKind::PubComp {
            let kind = EventKind::MessageAcked;
            self.emit_message_event(kind, Some(client), message, packet, reasons);
        }
    }

    fn dropped(
        &mut self,
        client: Option<&Client<'_>>,
        message: &MessageView<'_>,
        origin: &MessageOrigin<'_>,
        why: DropReason,
    ) {
        let reason = why.as_str();
        let reasons = (Some(reason), emqx_drop_reason(why));
        // An incoming message (`origin.client` is set) counts as dropped for all recipients, also if the drop
        // concerns its publisher, who may not publish it.
        let distinct = match (client, origin.client) {
            (Some(_), None) => EventKind::DeliveryDropped,
            _ => EventKind::MessageDropped,
        };
        let client = origin.client.as_ref().or(client);
        let packet = packet_of(origin.packet_id);
        for kind in [EventKind::Dropped, distinct] {
            self.emit_message_event(kind, client, message, packet, reasons);
        }
        if why == DropReason::NoSubscribers && message.qos != QoS::AtMostOnce {
            let reasons = (Some(reason), None);
            self.emit_message_event(EventKind::Offline, client, message, packet, reasons);
        }
    }

    fn queued(&mut self, client: &Client<'_>, message: &MessageView<'_>) {
        let reasons = (None, None);
        self.emit_message_event(
            EventKind::Offline,
            Some(client),
            message,
            PacketFacts::NONE,
            reasons,
        );
    }

    fn connected(&mut self, client: &Client<'_>, accepted: &AcceptedConnect<'_>) {
        let connect = accepted.connect;
        let will = connect.will.as_ref().map(|will| WillDetails {
            topic: will.topic,
            payload: will.payload,
            qos: will.qos as u8,
            retain: will.retain,
        });
        let connection = ConnectionDetails {
            version: protocol_level(connect.version),
            keep_alive_s: accepted.keep_alive_s,
            clean_start: connect.clean_start,
            session_expiry_s: accepted.session_expiry_s,
            receive_maximum: connect.properties.receive_maximum().unwrap_or(u16::MAX),
            connected_at_ms: now_ms(),
            disconnected_at_ms: None,
            is_superuser: accepted.is_superuser,
            is_anonymous: client.username.is_none(),
            will,
        };
        let properties = connect.properties;
        for kind in [
            EventKind::AuthnComplete,
            EventKind::Connack,
            EventKind::Connected,
        ] {
            self.emit_client_event(
                &index_query(kind, None, client.client_id, None),
                client,
                |event| {
                    // An unauthenticated client may have sent a user name.
                    event.username = client.username.or(connect.username);
                    event.connection = Some(&connection);
                    event.properties = properties;
                    event.reason = (kind != EventKind::Connected).then_some("success");
                    event.result = (kind != EventKind::Connected).then_some("success");
                },
            );
        }
    }

    fn connect_rejected(&mut self, rejected: &RejectedConnect<'_>) {
        let connection = rejected.connect.map(|connect| ConnectionDetails {
            version: protocol_level(connect.version),
            keep_alive_s: connect.keep_alive_s,
            clean_start: connect.clean_start,
            session_expiry_s: connect.properties.session_expiry_interval().unwrap_or(0),
            receive_maximum: connect.properties.receive_maximum().unwrap_or(u16::MAX),
            is_anonymous: connect.username.is_none(),
            ..ConnectionDetails::default()
        });
        let client_id = rejected.client_id.unwrap_or_default();
        let mut notify = |kind, word| {
            let lineage = RuleLineage::default();
            self.emit_event(
                &index_query(kind, None, client_id, None),
                None,
                lineage,
                |event| {
                    event.username = rejected.username;
                    event.peer = peer_address(Some(rejected.peer));
                    event.socket = rejected.local_address;
                    event.connection = connection.as_ref();
                    event.properties = rejected
                        .connect
                        .map_or(Properties::EMPTY, |connect| connect.properties);
                    event.reason = Some(word);
                    event.result = Some("failure");
                },
            );
        };
        if let Some(word) = authentication_result(rejected.code) {
            notify(EventKind::AuthnComplete, word);
        }
        notify(EventKind::Connack, connack_result(rejected.code));
    }

    fn authorized(
        &mut self,
        client: &Client<'_>,
        action: &ClientAction<'_>,
        answer: Authorization,
        source: Option<&'static str>,
    ) {
        let (word, topic, qos) = match *action {
            ClientAction::Publish { topic, qos, .. } => ("publish", topic, qos),
            ClientAction::Subscribe { filter, options } => ("subscribe", filter, options.qos),
        };
        let result = match answer {
            Authorization::Allow => "allow",
            Authorization::Deny | Authorization::Disconnect => "deny",
        };
        let query = index_query(
            EventKind::AuthzComplete,
            Some(topic),
            client.client_id,
            Some(qos as u8),
        );
        self.emit_client_event(&query, client, |event| {
            event.action = Some(word);
            event.result = Some(result);
            event.authz_source = source;
        });
    }

    fn disconnected(&mut self, client: &Client<'_>, reason: &'static str) {
        let connection = ConnectionDetails {
            disconnected_at_ms: Some(now_ms()),
            ..connection_details(client)
        };
        let query = index_query(EventKind::Disconnected, None, client.client_id, None);
        self.emit_client_event(&query, client, |event| {
            event.connection = Some(&connection);
            event.reason = Some(disconnect_reason(reason));
            event.emqx_reason = emqx_disconnect_reason(reason);
        });
    }

    fn subscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        self.emit_subscription_event(EventKind::Subscribed, client, filter, options, packet);
    }

    fn unsubscribed(
        &mut self,
        client: &Client<'_>,
        filter: &str,
        options: SubscriptionOptions,
        packet: PacketFacts<'_>,
    ) {
        self.emit_subscription_event(EventKind::Unsubscribed, client, filter, options, packet);
    }

    fn ping(&mut self, client: &Client<'_>) {
        let query = index_query(EventKind::Ping, None, client.client_id, None);
        let connection = connection_details(client);
        self.emit_client_event(&query, client, |event| event.connection = Some(&connection));
    }

    fn take_outgoing(&mut self) -> Option<OutgoingMessages> {
        self.stage.take_outgoing()
    }

    fn recycle_outgoing(&mut self, outgoing: OutgoingMessages) {
        if self.stage.outgoing.is_empty() {
            self.stage.outgoing = outgoing;
        }
    }

    fn has_unsettled_work(&mut self) -> bool {
        self.stage.take_unsettled()
    }

    fn notify_when_durable(&mut self, done: DurableCallback) {
        let (shared, producer) = (self.shared.clone(), self.stage.producer as u16);
        let rows = move || match shared.ports.sinks.get() {
            Some(sink_port) => sink_port.notify_when_durable(producer, done),
            None => done(),
        };
        match self.shared.ports.devices.get() {
            // The results may become rows.
            Some(devices) if self.stage.take_unsettled_devices() => {
                devices.notify_when_durable(Box::new(rows));
            }
            _ => rows(),
        }
    }

    fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        self.stage.take_backpressure()
    }

    fn outgoing_dropped(&mut self, topic: &str, tag: u64) {
        let Some(bound) = self.shared.find_by_lineage(RuleLineage(tag)) else {
            return;
        };
        let counters = bound.monitor.counters.producer(self.stage.producer);
        counters.increment(RuleCounter::ActionsFailed);
        counters.increment(RuleCounter::FailedLimit);
        if self.stage.may_warn(now_ms()) {
            tracing::warn!(
                rule = &*bound.name,
                topic,
                "message published by a rule is dropped: too many messages derive from one (limits.max_derived_messages, \
                 limits.max_derived_processing_ms); is there a loop of rules?"
            );
        }
    }
}
