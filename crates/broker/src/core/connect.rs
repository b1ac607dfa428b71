//! From the first packet to the session: validation of CONNECT, authentication of the client, selection of its session.
//!
//! A client is authenticated on the shard that accepted it. If its session is on another shard, the connection moves
//! there (the session stays where its state is), and `establish_session` runs there.
//!
//! It orchestrates: who owns a client id is in `directory.rs`, the session and the connection are in `Delivery`.

use data_encoding::HEXLOWER;
use hooks::{Authentication, Interest, MessageView, NEVER_MS};
use mqtt::{
    Connect, Direction, Disconnect, Frame, Packet, Properties, Property, ReasonCode, Version,
};
use ring::rand::SecureRandom;
use std::sync::Arc;

use super::connection::{CloseReason, ConnectionPhase};
use super::directory::{NodeDirectory, SessionClaim};
use super::message::Message;
use super::pending_claims::SessionGrant;
use super::session::{Session, SessionWill};
use super::shard::{ConnectionAction, Shard};
use super::tables::{ConnectionIx, SessionIx};
use super::timers::Timer;
use crate::config::SessionOwnerConflict;
use crate::metrics::Metric;
use hooks::relay::RELAY_TOPIC_PREFIX;

pub(crate) fn connect_rejection(
    code: ReasonCode,
    detail: impl Into<std::rc::Rc<str>>,
) -> CloseReason {
    CloseReason::new(code, "rejected").with_detail(detail)
}

/// Closes a connection that an authenticator, a ban or a limit rejected. The detail matches the code, so that a client
/// with valid credentials does not receive the answer for wrong ones.
pub(crate) fn denied(code: ReasonCode) -> CloseReason {
    let detail = match code {
        ReasonCode::BANNED => "the client, its user or its address is banned",
        ReasonCode::SERVER_UNAVAILABLE => "the credentials cannot be checked now, try again later",
        ReasonCode::SERVER_BUSY | ReasonCode::CONNECTION_RATE_EXCEEDED => {
            "too many attempts to connect, try again later"
        }
        ReasonCode::BAD_USER_NAME_OR_PASSWORD => "the credentials were not accepted",
        _ => "the client is not allowed to connect",
    };
    connect_rejection(code, detail)
}

impl Shard {
    /// Handles the first packet of a connection; only CONNECT is allowed [MQTT-3.1.0-1].
    pub(crate) fn handle_first_packet(
        &mut self,
        at: ConnectionIx,
        frame: Frame<'_>,
        raw: &[u8],
    ) -> Result<ConnectionAction, CloseReason> {
        if frame.first_byte >> 4 != mqtt::PacketType::Connect as u8 {
            return Err(CloseReason::without_code("protocol_error")
                .with_detail("the first packet was not CONNECT [MQTT-3.1.0-1]"));
        }
        // The properties are read even if the packet turns out to be invalid, so that the rejection respects them.
        let properties = Connect::readable_properties(frame.body);
        self.apply_response_limits(at, Version::V311, properties);
        let Packet::Connect(connect) = Packet::decode(frame, Version::V311, Direction::FromClient)?
        else {
            return Err(CloseReason::without_code("protocol_error"));
        };
        self.apply_response_limits(at, connect.version, connect.properties);
        self.check_connect(&connect)?;
        self.check_drain(at)?;
        self.check_certificate_username(at, connect.username)?;
        // Parsed again when the authenticator's answer arrives, possibly on another shard.
        self.delivery.connections[at].extra().connect = raw.to_vec();
        if let Some(method) = connect.properties.authentication_method() {
            let data = connect.properties.authentication_data();
            return self.begin_auth_exchange(at, &connect, method, data);
        }
        match self.authenticate(at, &connect) {
            Authentication::Ignore => {
                let nobody = hooks::ClientGrant {
                    is_anonymous: true,
                    ..hooks::ClientGrant::default()
                };
                self.apply_grant(at, &connect, nobody);
                self.establish_session(at)
            }
            Authentication::Allow(given) => {
                self.apply_grant(at, &connect, *given);
                self.establish_session(at)
            }
            Authentication::Deny(code) => Err(denied(code)),
            later @ Authentication::Pending(_) => {
                let connection = &mut self.delivery.connections[at];
                connection.phase = ConnectionPhase::Authenticating;
                self.started_authentications
                    .push((at, connection.serial, later));
                Ok(ConnectionAction::AwaitResume)
            }
        }
    }

    pub(super) fn check_connect(&self, connect: &Connect<'_>) -> Result<(), CloseReason> {
        let limits = self.limits();
        if connect.client_id.len() > usize::from(limits.max_client_id_bytes) {
            return Err(connect_rejection(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                format!(
                    "the client id is longer than {} bytes",
                    limits.max_client_id_bytes
                ),
            ));
        }
        let may_be_empty = match connect.version {
            Version::V31 => false,
            Version::V311 => connect.clean_start,
            Version::V5 => true,
        };
        if connect
            .username
            .is_some_and(|name| name.len() > usize::from(limits.max_username_bytes))
        {
            return Err(connect_rejection(
                ReasonCode::BAD_USER_NAME_OR_PASSWORD,
                format!(
                    "the user name is longer than {} bytes",
                    limits.max_username_bytes
                ),
            ));
        }
        if connect.client_id.starts_with(RELAY_TOPIC_PREFIX) {
            return Err(connect_rejection(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                "client ids that begin with $relay/ are those of relay connections",
            ));
        }
        if connect.client_id.is_empty() && !may_be_empty {
            // [MQTT-3.1.3-8]
            return Err(connect_rejection(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                "an empty client id needs version 3.1.1 and a clean session, or version 5",
            ));
        }
        if let Some(will) = &connect.will {
            if will.qos as u8 > limits.max_qos {
                return Err(connect_rejection(
                    ReasonCode::QOS_NOT_SUPPORTED,
                    "the will's QoS is too high",
                ));
            }
            if will.retain && !limits.retain_available {
                return Err(connect_rejection(
                    ReasonCode::RETAIN_NOT_SUPPORTED,
                    "retained messages are disabled, and the will is retained",
                ));
            }
            mqtt::validate_topic_name(will.topic, &self.topic_limits()).map_err(|e| {
                connect_rejection(ReasonCode::TOPIC_NAME_INVALID, format!("will topic: {e}"))
            })?;
            if limits.validate_payload_format
                && will.properties.payload_format_indicator() == Some(1)
                && std::str::from_utf8(will.payload).is_err()
            {
                return Err(connect_rejection(
                    ReasonCode::PAYLOAD_FORMAT_INVALID,
                    "the will's payload is marked as UTF-8 but is not valid UTF-8",
                ));
            }
        }
        if self.is_stopping {
            return Err(connect_rejection(
                ReasonCode::SERVER_UNAVAILABLE,
                "the server is stopping",
            ));
        }
        Ok(())
    }

    /// Applies the client's limits on packets sent to it, rejections included.
    pub(super) fn apply_response_limits(
        &mut self,
        at: ConnectionIx,
        version: Version,
        properties: Properties<'_>,
    ) {
        let connection = &mut self.delivery.connections[at];
        connection.version = version;
        connection.wants_problem_information =
            properties.request_problem_information().unwrap_or(true);
        connection.max_packet_out = properties.maximum_packet_size().unwrap_or(u32::MAX);
    }

    pub(crate) fn topic_limits(&self) -> mqtt::TopicLimits {
        let limits = self.limits();
        mqtt::TopicLimits {
            max_bytes: limits.max_topic_bytes,
            max_levels: limits.max_topic_levels,
        }
    }

    /// Called after authentication: finds or creates the client's session and sends CONNACK.
    pub(crate) fn establish_session(
        &mut self,
        at: ConnectionIx,
    ) -> Result<ConnectionAction, CloseReason> {
        self.establish_session_with(at, None)
    }

    /// Called when the cluster has granted the client's session to this shard.
    pub(super) fn establish_granted_session(
        &mut self,
        at: ConnectionIx,
        grant: SessionGrant,
    ) -> Result<ConnectionAction, CloseReason> {
        self.establish_session_with(at, Some(grant))
    }

    fn establish_session_with(
        &mut self,
        at: ConnectionIx,
        session_grant: Option<SessionGrant>,
    ) -> Result<ConnectionAction, CloseReason> {
        let raw = std::mem::take(&mut self.delivery.connections[at].extra().connect);
        let connect = decode_connect(&raw)
            .ok_or_else(|| connect_rejection(ReasonCode::UNSPECIFIED_ERROR, "CONNECT was lost"))?;
        let extra = self.delivery.connections[at].extra();
        let granted = extra
            .grant
            .as_ref()
            .and_then(|grant| grant.client_id.clone());
        let prefix = match &granted {
            Some(_) => String::new(),
            None => self.client_id_prefix(at),
        };
        let granted_is_none = granted.is_none();
        let assigned = match (granted, connect.client_id) {
            (Some(granted), requested) => (*granted != *requested).then(|| granted.into()),
            (None, "") => Some(format!("{prefix}{}", self.assign_client_id()?)),
            (None, _) => None,
        };
        // No other client has it.
        let is_random = granted_is_none && connect.client_id.is_empty();
        let client_id = assigned.as_deref().unwrap_or(connect.client_id);
        if !client_id.starts_with(&prefix) {
            return Err(connect_rejection(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                format!("the client id must begin with {prefix:?}"),
            ));
        }
        let id = match self.node.directory.claim(client_id, self.id) {
            SessionClaim::OtherShard(shard) => {
                self.delivery.connections[at].extra().connect = raw;
                return Ok(ConnectionAction::HandOver(shard));
            }
            SessionClaim::ThisShard(id) => id,
        };
        let existing = self.by_client_id.get(&*id).copied();
        if let Some(router) = self.node_router
            && existing.is_none()
            && session_grant.is_none()
            && !is_random
        {
            // A link cannot be passed on to a session at another node.
            let keep = !connect.clean_start && !self.is_gateway_connection(at);
            return self.claim_in_cluster(at, router, &id, keep, raw);
        }
        let is_own = existing.is_none_or(|session| self.is_session_owner(at, session));
        if let Some(session) = existing
            && !is_own
            && self.delivery.sessions[session].username.is_some()
            && self.limits.session_owner_conflict == SessionOwnerConflict::RejectClient
        {
            return Err(connect_rejection(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                "the session with this client id belongs to another user",
            ));
        }
        if let Some(session) = existing
            && let Some(other) = self.delivery.sessions[session].connection
        {
            self.metrics().inc(Metric::TakenOver);
            let why = match connect.clean_start {
                true => "discarded",
                false => "taken_over",
            };
            self.close(other, CloseReason::new(ReasonCode::SESSION_TAKEN_OVER, why));
        }
        // Closing the other connection may have ended the session and released its claim.
        let existing = self.by_client_id.get(&*id).copied();
        // A session without an owner is not resumed by a named user; it ends.
        let session_present = existing.is_some() && is_own && !connect.clean_start;
        let session = match existing {
            Some(session) if session_present => {
                if session_grant.is_some() {
                    // It was adopted from another node meanwhile, and announced then.
                    self.announce_session_end(&id);
                }
                session
            }
            existing => {
                if session_grant.is_none() {
                    // Before the end of the earlier session, so that no other node gets it in between.
                    self.announce_session(&id, self.now_ms(), false, None);
                }
                let is_replacement = existing.is_some() && session_grant.is_none();
                if let Some(session) = existing {
                    self.end_session(session);
                }
                let most_s = self.limits().max_session_expiry_s;
                let created = self.new_session(&id, session_expiry_s(&connect, most_s));
                let created = created.inspect_err(|_| {
                    if session_grant.is_none() {
                        self.announce_session_end(&id);
                    }
                })?;
                let is_provisional = session_grant.is_some_and(|grant| grant.is_provisional);
                let session = &mut self.delivery.sessions[created];
                session.is_provisional = is_provisional;
                session.is_replacement = is_replacement;
                created
            }
        };
        self.attach_session(at, session, &connect);
        if session_present {
            self.recheck_subscriptions(session);
        }
        self.accept_connect(at, session, &connect, session_present, assigned.as_deref());
        match self.delivery.connections[at].is_held {
            true => Ok(ConnectionAction::AwaitResume),
            false => Ok(ConnectionAction::Continue),
        }
    }

    fn granted_username(&self, at: ConnectionIx) -> Option<&str> {
        let extra = self.delivery.connections[at].extra.as_ref()?;
        extra.grant.as_ref()?.username.as_deref()
    }

    /// Whether the user of this connection created the session. All clients without a name count as one user.
    fn is_session_owner(&self, at: ConnectionIx, session: SessionIx) -> bool {
        let session = &self.delivery.sessions[session];
        session.username.as_deref() == self.granted_username(at)
    }

    /// The required prefix of this client's client id.
    fn client_id_prefix(&self, at: ConnectionIx) -> String {
        let wanted = &self.limits.client_id_prefix;
        match self.granted_username(at) {
            Some(username) if !wanted.is_empty() => wanted.replace("${username}", username),
            _ => String::new(),
        }
    }

    fn new_session(&mut self, id: &Arc<str>, expiry_s: u32) -> Result<SessionIx, CloseReason> {
        // Ending an earlier session has released the client id.
        if let SessionClaim::OtherShard(_) = self.node.directory.claim(id, self.id) {
            return Err(connect_rejection(
                ReasonCode::SERVER_BUSY,
                "another connection with this client id was accepted at the same time",
            ));
        }
        if self.delivery.rejects_new_messages() && expiry_s > 0 {
            self.node.directory.release(id, self.id);
            return Err(connect_rejection(
                ReasonCode::QUOTA_EXCEEDED,
                "the store accepts no new sessions now",
            ));
        }
        if !NodeDirectory::reserve_slot(&self.node.directory.sessions, self.limits.max_sessions) {
            self.node.directory.release(id, self.id);
            return Err(connect_rejection(
                ReasonCode::QUOTA_EXCEEDED,
                "the node has reached limits.max_sessions",
            ));
        }
        let now_ms = self.now_ms();
        let session = self
            .delivery
            .sessions
            .insert(Session::new(id.clone(), now_ms));
        self.by_client_id.insert(id.clone(), session);
        self.metrics().inc(Metric::Sessions);
        if self.delivery.interest.contains(Interest::SESSION) {
            self.delivery.hooks.session_created(id);
        }
        Ok(session)
    }

    /// Generates a client id that cannot be guessed, since a client that knows it can take the session over.
    fn assign_client_id(&self) -> Result<String, CloseReason> {
        let mut random = [0_u8; 12];
        ring::rand::SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| {
                connect_rejection(
                    ReasonCode::UNSPECIFIED_ERROR,
                    "the system provides no random bytes",
                )
            })?;
        Ok(format!("tg-{}", HEXLOWER.encode(&random)))
    }

    /// Attaches a connection to a session.
    fn attach_session(&mut self, at: ConnectionIx, session_at: SessionIx, connect: &Connect<'_>) {
        let will = connect
            .will
            .as_ref()
            .map(|will| self.build_will(session_at, will));
        let limits = self.limits.clone();
        let now_ms = self.now_ms();
        let session = &mut self.delivery.sessions[session_at];
        self.timers.stop_session(&mut session.timers);
        let connection = &mut self.delivery.connections[at];
        connection.session = session_at;
        connection.phase = ConnectionPhase::Connected;
        connection.deadlines.record_input(now_ms);
        let (window, aliases) = match connect.version {
            Version::V5 => {
                let receive_maximum = connect.properties.receive_maximum().unwrap_or(u16::MAX);
                let aliases = connect.properties.topic_alias_maximum().unwrap_or(0);
                (
                    receive_maximum,
                    aliases.min(limits.max_outgoing_topic_aliases),
                )
            }
            _ => (u16::MAX, 0),
        };
        connection.window = window.min(limits.max_inflight).max(1);
        session.connection = Some(at);
        session.last_address = None;
        session.version = connect.version;
        session.is_clean_start = connect.clean_start;
        session.is_bridge = connect.is_bridge && connect.version != Version::V5;
        session.connected_ms = now_ms;
        session.disconnected_ms = 0;
        session.disconnect_reason = None;
        session.expiry_s = session_expiry_s(connect, limits.max_session_expiry_s);
        session.will = will.map(Box::new);
        let grant = connection
            .extra
            .as_ref()
            .and_then(|extra| extra.grant.as_ref());
        session.username = grant.and_then(|grant| grant.username.clone());
        session.permissions = grant.and_then(|grant| grant.permissions.clone());
        if let Some(expires_at_ms) = grant.and_then(|grant| grant.expires_at_ms) {
            let end = Timer::GrantExpiry(at, connection.serial);
            connection.extra().expiry_timer = Some(self.timers.schedule(expires_at_ms, end));
        }
        if aliases > 0 {
            connection.extra().aliases_out_max = aliases;
        }
        self.metrics().inc(Metric::ClientsConnected);
        self.set_group_presence(session_at, true);
        self.set_publisher(at, session_at, connect);
        self.persist_session(session_at);
    }

    fn build_will(&mut self, session: SessionIx, will: &mqtt::Will<'_>) -> SessionWill {
        let mut properties = Vec::new();
        for (span, property) in will.properties.spans() {
            if !matches!(property, Property::WillDelayInterval(_)) {
                properties.extend_from_slice(&will.properties.as_bytes()[span]);
            }
        }
        let session = &self.delivery.sessions[session];
        let view = MessageView {
            topic: will.topic,
            properties: Properties::from_validated(&properties),
            payload: will.payload,
            shared_payload: None,
            qos: will.qos,
            retain: will.retain,
            received_ms: self.delivery.now_ms,
            // Its expiry counts from the moment of publication.
            expires_ms: NEVER_MS,
            from_client_id: &session.client_id,
            from_username: session.username.as_deref().unwrap_or(""),
            is_derived: false,
            number: 0,
        };
        SessionWill {
            message: Message::new(&view),
            delay_s: will.properties.will_delay_interval().unwrap_or(0),
        }
    }

    /// Handles DISCONNECT from the client.
    pub(crate) fn handle_disconnect(
        &mut self,
        at: ConnectionIx,
        disconnect: &Disconnect<'_>,
    ) -> Result<ConnectionAction, CloseReason> {
        let session_at = self.session_of_connection(at);
        let max_expiry_s = self.limits().max_session_expiry_s;
        let session = &mut self.delivery.sessions[session_at];
        if let Some(expiry_s) = disconnect.properties.session_expiry_interval() {
            if session.expiry_s == 0 && expiry_s > 0 {
                // [MQTT-3.14.2-2]
                return Err(
                    CloseReason::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                        .with_detail("DISCONNECT: a session expiry of 0 cannot be raised"),
                );
            }
            session.expiry_s = expiry_s.min(max_expiry_s);
        }
        let will = disconnect.reason != ReasonCode::SUCCESS;
        self.close(
            at,
            CloseReason {
                code: None,
                reason: "normal",
                detail: None,
                publishes_will: will,
                relay: None,
            },
        );
        Ok(ConnectionAction::Close)
    }
}

/// Session expiry in seconds. Before version 5 a session that is not clean lasts as long as the node allows.
fn session_expiry_s(connect: &Connect<'_>, max_s: u32) -> u32 {
    match connect.version {
        Version::V5 => connect
            .properties
            .session_expiry_interval()
            .unwrap_or(0)
            .min(max_s),
        _ if connect.clean_start => 0,
        _ => max_s,
    }
}

pub(crate) fn decode_connect(raw: &[u8]) -> Option<Connect<'_>> {
    let frame = mqtt::split_frame(raw, u32::MAX).ok()??;
    match Packet::decode(frame, Version::V311, Direction::FromClient) {
        Ok(Packet::Connect(connect)) => Some(connect),
        _ => None,
    }
}
