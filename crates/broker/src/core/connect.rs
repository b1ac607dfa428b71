//! From the first packet to CONNACK: validation of CONNECT, authentication of the client, selection of its session.
//!
//! A client is authenticated on the shard that accepted it. If its session is on another shard, the connection moves
//! there (the session stays where its state is), and `establish_session` runs there.
//!
//! It orchestrates: who owns a client id is in `directory.rs`, the session and the connection are in `Delivery`.

use data_encoding::HEXLOWER;
use hooks::{
    AcceptedConnect, Authentication, Authorization, ClientAction, Interest, MessageView, NEVER_MS,
    PeerAddress, RefusedConnect,
};
use mqtt::{
    ConnAck, Connect, Direction, Disconnect, Frame, Packet, Properties, PropertiesBuf, Property,
    QoS, ReasonCode, Version,
};
use ring::rand::SecureRandom;
use std::net::SocketAddr;
use std::sync::Arc;

use super::connection::{CloseReason, ConnectionExtra, ConnectionPhase};
use super::directory::{NodeDirectory, SessionClaim};
use super::message::Message;
use super::session::{Session, SessionWill};
use super::shard::{ConnectionAction, Shard};
use super::tables::{ConnectionIx, SessionIx};
use super::timers::Timer;
use crate::config::SessionOwnerConflict;
use crate::metrics::Metric;
use hooks::relay::{RELAY_TOPIC_PREFIX, concerns_relay};

/// A connection on its way to the shard of its session.
pub(crate) struct ConnectionHandover {
    listener: u16,
    peer: PeerAddress,
    local: Option<SocketAddr>,
    opened_ms: u64,
    partial: Vec<u8>,
    extra: Box<ConnectionExtra>,
}

pub(crate) fn connect_refusal(
    code: ReasonCode,
    detail: impl Into<std::rc::Rc<str>>,
) -> CloseReason {
    CloseReason::new(code, "refused").with_detail(detail)
}

/// Closes a connection that an authenticator, a ban or a limit refused. The detail matches the code, so that a client
/// with valid credentials is not told that they are wrong.
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
    connect_refusal(code, detail)
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
        // The properties are read even if the packet turns out to be invalid, so that the refusal respects them.
        let properties = Connect::readable_properties(frame.body);
        self.apply_response_limits(at, Version::V311, properties);
        let Packet::Connect(connect) = Packet::decode(frame, Version::V311, Direction::FromClient)?
        else {
            return Err(CloseReason::without_code("protocol_error"));
        };
        self.apply_response_limits(at, connect.version, connect.properties);
        self.check_connect(&connect)?;
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

    fn check_connect(&self, connect: &Connect<'_>) -> Result<(), CloseReason> {
        let limits = self.limits();
        if connect.client_id.len() > usize::from(limits.max_client_id_bytes) {
            return Err(connect_refusal(
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
            return Err(connect_refusal(
                ReasonCode::BAD_USER_NAME_OR_PASSWORD,
                format!(
                    "the user name is longer than {} bytes",
                    limits.max_username_bytes
                ),
            ));
        }
        if connect.client_id.starts_with(RELAY_TOPIC_PREFIX) {
            return Err(connect_refusal(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                "client ids that begin with $relay/ are those of relay connections",
            ));
        }
        if connect.client_id.is_empty() && !may_be_empty {
            // [MQTT-3.1.3-8]
            return Err(connect_refusal(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                "an empty client id needs version 3.1.1 and a clean session, or version 5",
            ));
        }
        if let Some(will) = &connect.will {
            if will.qos as u8 > limits.max_qos {
                return Err(connect_refusal(
                    ReasonCode::QOS_NOT_SUPPORTED,
                    "the will's QoS is too high",
                ));
            }
            if will.retain && !limits.retain_available {
                return Err(connect_refusal(
                    ReasonCode::RETAIN_NOT_SUPPORTED,
                    "retained messages are disabled, and the will is retained",
                ));
            }
            mqtt::validate_topic_name(will.topic, &self.topic_limits()).map_err(|e| {
                connect_refusal(ReasonCode::TOPIC_NAME_INVALID, format!("will topic: {e}"))
            })?;
            if limits.validate_payload_format
                && will.properties.payload_format_indicator() == Some(1)
                && std::str::from_utf8(will.payload).is_err()
            {
                return Err(connect_refusal(
                    ReasonCode::PAYLOAD_FORMAT_INVALID,
                    "the will's payload is marked as UTF-8 but is not valid UTF-8",
                ));
            }
        }
        if self.is_stopping {
            return Err(connect_refusal(
                ReasonCode::SERVER_UNAVAILABLE,
                "the server is stopping",
            ));
        }
        Ok(())
    }

    /// Applies the client's limits on packets sent to it, refusals included.
    fn apply_response_limits(
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
        let raw = std::mem::take(&mut self.delivery.connections[at].extra().connect);
        let connect = decode_connect(&raw)
            .ok_or_else(|| connect_refusal(ReasonCode::UNSPECIFIED_ERROR, "CONNECT was lost"))?;
        let extra = self.delivery.connections[at].extra();
        let granted = extra
            .grant
            .as_ref()
            .and_then(|grant| grant.client_id.clone());
        let prefix = match &granted {
            Some(_) => String::new(),
            None => self.client_id_prefix(at),
        };
        let assigned = match (granted, connect.client_id) {
            (Some(granted), requested) => (*granted != *requested).then(|| granted.into()),
            (None, "") => Some(format!("{prefix}{}", self.assign_client_id()?)),
            (None, _) => None,
        };
        let client_id = assigned.as_deref().unwrap_or(connect.client_id);
        if !client_id.starts_with(&prefix) {
            return Err(connect_refusal(
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
        let is_own = existing.is_none_or(|session| self.is_session_owner(at, session));
        if let Some(session) = existing
            && !is_own
            && self.delivery.sessions[session].username.is_some()
            && self.limits.session_owner_conflict == SessionOwnerConflict::RejectClient
        {
            return Err(connect_refusal(
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
            Some(session) if session_present => session,
            existing => {
                if let Some(session) = existing {
                    self.end_session(session);
                }
                let most_s = self.limits().max_session_expiry_s;
                self.new_session(&id, session_expiry_s(&connect, most_s))?
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
            return Err(connect_refusal(
                ReasonCode::SERVER_BUSY,
                "another connection with this client id was accepted at the same time",
            ));
        }
        if self.delivery.refuses_new_messages() && expiry_s > 0 {
            self.node.directory.release(id, self.id);
            return Err(connect_refusal(
                ReasonCode::QUOTA_EXCEEDED,
                "the store accepts no new sessions now",
            ));
        }
        if !NodeDirectory::reserve_slot(&self.node.directory.sessions, self.limits.max_sessions) {
            self.node.directory.release(id, self.id);
            return Err(connect_refusal(
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
                connect_refusal(
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

    fn accept_connect(
        &mut self,
        at: ConnectionIx,
        session: SessionIx,
        connect: &Connect<'_>,
        session_present: bool,
        assigned: Option<&str>,
    ) {
        let keep_alive = self.effective_keep_alive_s(at, connect.keep_alive_s);
        self.delivery.connections[at].keep_alive_s = keep_alive;
        let mut properties = PropertiesBuf::new();
        if connect.version == Version::V5 {
            self.connack_properties(at, session, connect, assigned, &mut properties);
        }
        let connack = ConnAck {
            session_present: session_present && connect.version != Version::V31,
            code: ReasonCode::SUCCESS,
            properties: properties.as_properties(),
        };
        self.delivery.hold_outbox(at);
        self.delivery.write(at, |out| {
            Packet::ConnAck(connack).encode(connect.version, out)
        });
        self.metrics().inc(Metric::ConnectAccepted);
        let deadlines = &self.delivery.connections[at].deadlines;
        if let Some(deadline) = deadlines.keep_alive_deadline_ms(keep_alive, 0) {
            self.schedule_check(at, deadline);
        }
        self.release_connect_state(at);
        if self.delivery.interest.contains(Interest::CONNECT) {
            let node = self.node.clone();
            let listener = self.delivery.connections[at].listener;
            let accepted = AcceptedConnect {
                session_present,
                connect,
                keep_alive_s: keep_alive,
                session_expiry_s: self.delivery.sessions[session].expiry_s,
                listener: &node.listeners[usize::from(listener)].config.name,
                is_superuser: (self.delivery.sessions[session].permissions.as_ref())
                    .is_some_and(|permissions| permissions.is_superuser()),
            };
            self.call_hook(session, |hooks, client| hooks.connected(client, &accepted));
        }
        if session_present {
            self.delivery.pump(session);
            // Messages to be sent again come before the answers to the client's next packets.
            let outbound = self.delivery.sessions[session].outbound.as_ref();
            if outbound.is_some_and(|outbound| outbound.is_loading()) {
                self.delivery.connections[at].is_held = true;
            }
        }
    }

    /// Frees the state that was needed only until CONNACK.
    fn release_connect_state(&mut self, at: ConnectionIx) {
        let connection = &mut self.delivery.connections[at];
        if let Some(extra) = &mut connection.extra {
            extra.connect = Vec::new();
            let method = extra.grant.as_ref().and_then(|grant| grant.method.as_ref());
            let is_idle = extra.rate.is_none() && extra.expiry_timer.is_none();
            if method.is_none() && is_idle && extra.aliases_out_max == 0 {
                connection.extra = None;
            }
        }
    }

    fn effective_keep_alive_s(&self, at: ConnectionIx, requested: u16) -> u16 {
        let connection = &self.delivery.connections[at];
        let listener = &self.node.listeners[usize::from(connection.listener)].config;
        let most = [self.limits().max_keep_alive_s, listener.max_keep_alive_s];
        let most = most.into_iter().filter(|&bound| bound > 0).min();
        match most {
            Some(most) if requested == 0 || requested > most => most,
            _ if requested > 0 => requested.max(listener.min_keep_alive_s),
            _ => 0,
        }
    }

    fn connack_properties(
        &self,
        at: ConnectionIx,
        session: SessionIx,
        connect: &Connect<'_>,
        assigned: Option<&str>,
        out: &mut PropertiesBuf,
    ) {
        let limits = self.limits();
        let connection = &self.delivery.connections[at];
        let expiry_s = self.delivery.sessions[session].expiry_s;
        let asked_s = connect.properties.session_expiry_interval().unwrap_or(0);
        if expiry_s != asked_s {
            out.push(Property::SessionExpiryInterval(expiry_s));
        }
        out.push(Property::ReceiveMaximum(limits.receive_maximum));
        if limits.max_qos < QoS::ExactlyOnce as u8 {
            out.push(Property::MaximumQos(limits.max_qos));
        }
        if !limits.retain_available {
            out.push(Property::RetainAvailable(false));
        }
        out.push(Property::MaximumPacketSize(connection.max_packet_in));
        if let Some(client_id) = assigned {
            out.push(Property::AssignedClientIdentifier(client_id));
        }
        out.push(Property::TopicAliasMaximum(limits.topic_alias_maximum));
        if !limits.wildcard_subscription_available {
            out.push(Property::WildcardSubscriptionAvailable(false));
        }
        if !limits.shared_subscription_available {
            out.push(Property::SharedSubscriptionAvailable(false));
        }
        if connection.keep_alive_s != connect.keep_alive_s {
            out.push(Property::ServerKeepAlive(connection.keep_alive_s));
        }
        if connect.properties.request_response_information() == Some(true) {
            // The client may receive responses on topics below its own client id.
            let client_id = &self.delivery.sessions[session].client_id;
            out.push(Property::ResponseInformation(&format!(
                "$response/{client_id}/"
            )));
        }
        if let Some(grant) = connection
            .extra
            .as_ref()
            .and_then(|extra| extra.grant.as_ref())
            && let Some(method) = &grant.method
        {
            out.push(Property::AuthenticationMethod(method));
            out.push(Property::AuthenticationData(&grant.data));
        }
    }

    /// Refuses a CONNECT with the answer that its version allows, and closes the connection.
    pub(crate) fn refuse_connect(&mut self, at: ConnectionIx, closing: CloseReason, raw: &[u8]) {
        let unauthorized = [
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        ];
        self.metrics().inc(match closing.code {
            Some(code) if unauthorized.contains(&code) => Metric::ConnectUnauthorized,
            _ => Metric::ConnectRefused,
        });
        if self.delivery.interest.contains(Interest::CONNECT_REFUSED)
            && let Some(code) = closing.code
        {
            self.notify_connect_refused(at, code, raw);
        }
        let connection = &self.delivery.connections[at];
        let version = match connection.phase {
            ConnectionPhase::Authenticating => connection.version,
            _ => claimed_version(raw).unwrap_or(connection.version),
        };
        if let Some(code) = closing.code {
            self.send_connack_refusal(at, version, code, &closing);
        }
        let why = CloseReason {
            code: None,
            ..closing
        };
        self.close(at, why);
    }

    fn notify_connect_refused(&mut self, at: ConnectionIx, code: ReasonCode, raw: &[u8]) {
        let connection = &self.delivery.connections[at];
        let stored = connection.extra.as_ref().map(|extra| &extra.connect[..]);
        let stored = stored.filter(|stored| !stored.is_empty()).unwrap_or(raw);
        let connect = decode_connect(stored);
        let refused = RefusedConnect {
            client_id: connect.as_ref().map(|connect| connect.client_id),
            // Without a password the user name may be the token of a device, or almost one.
            username: connect
                .as_ref()
                .filter(|connect| connect.password.is_some())
                .and_then(|connect| connect.username),
            peer: connection.peer,
            local_address: connection.local_address,
            listener: &self.node.listeners[usize::from(connection.listener)]
                .config
                .name,
            code,
            connect: connect.as_ref(),
        };
        self.delivery.hooks.connect_refused(&refused);
    }

    fn send_connack_refusal(
        &mut self,
        at: ConnectionIx,
        version: Version,
        code: ReasonCode,
        closing: &CloseReason,
    ) {
        let answer_3 = mqtt::v3_return_code(code);
        if version != Version::V5 && answer_3 == 0 {
            // 3.1.1 has five return codes; for any other reason the connection is closed without CONNACK.
            return;
        }
        let connection = &self.delivery.connections[at];
        let (session_present, max) = (false, connection.max_packet_out as usize);
        let mut properties = PropertiesBuf::new();
        if let Some(detail) = &closing.detail
            && self.limits().send_reason_strings
            && connection.wants_problem_information
        {
            properties.push(Property::ReasonString(detail));
        }
        let mut packet = Vec::new();
        let connack = ConnAck {
            session_present,
            code,
            properties: properties.as_properties(),
        };
        Packet::ConnAck(connack).encode(version, &mut packet);
        if packet.len() > max {
            // The reason string is omitted if the packet would be too large with it [MQTT-3.2.2-19].
            packet.clear();
            let properties = Properties::EMPTY;
            let connack = ConnAck {
                session_present,
                code,
                properties,
            };
            Packet::ConnAck(connack).encode(version, &mut packet);
        }
        self.delivery
            .write(at, |out| out.extend_from_slice(&packet));
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

    /// Removes a connection that is moving to the shard of its session from this shard.
    pub(crate) fn hand_over(&mut self, at: ConnectionIx) -> ConnectionHandover {
        let connection = &mut self.delivery.connections[at];
        let moving = ConnectionHandover {
            listener: connection.listener,
            peer: connection.peer,
            local: connection.local_address,
            opened_ms: connection.deadlines.last_seen_ms(),
            partial: std::mem::take(&mut connection.partial_packets),
            extra: connection.extra.take().unwrap_or_default(),
        };
        connection.phase = ConnectionPhase::Closing;
        self.remove_connection(at);
        moving
    }

    /// Adds a connection that comes from another shard.
    pub(crate) fn accept_handover(
        &mut self,
        moving: ConnectionHandover,
    ) -> (ConnectionIx, ConnectionAction) {
        let at = self.open_connection(moving.listener, moving.peer);
        let connection = &mut self.delivery.connections[at];
        connection.local_address = moving.local;
        connection.deadlines.set_opened(moving.opened_ms);
        connection.partial_packets = moving.partial;
        let raw = moving.extra.connect.clone();
        connection.extra = Some(moving.extra);
        let Some(connect) = decode_connect(&raw) else {
            self.close(at, CloseReason::without_code("protocol_error"));
            return (at, ConnectionAction::Close);
        };
        self.apply_response_limits(at, connect.version, connect.properties);
        let result = self
            .check_connect(&connect)
            .and_then(|()| self.establish_session(at));
        let flow = match result {
            Ok(ConnectionAction::Continue) => self.resume(at),
            Ok(flow) => flow,
            Err(closing) => {
                self.refuse_connect(at, closing, &raw);
                ConnectionAction::Close
            }
        };
        self.close_pending_connections();
        (at, flow)
    }

    /// Decides whether a client may do something.
    pub(crate) fn authorize(
        &mut self,
        session: SessionIx,
        action: &ClientAction<'_>,
    ) -> Authorization {
        let state = &self.delivery.sessions[session];
        let answer = match &state.permissions {
            Some(permissions) => {
                let client = super::delivery::hook_client(state, &self.delivery.connections);
                permissions.check(&client, action)
            }
            None => self.authorize_with_hooks(session, action),
        };
        let points = self.delivery.interest;
        if points.contains(Interest::AUTHORIZATION_DECIDED) {
            self.report_authorization(session, action, answer);
        }
        answer
    }

    #[inline(never)]
    fn report_authorization(
        &mut self,
        session: SessionIx,
        action: &ClientAction<'_>,
        answer: Authorization,
    ) {
        let state = &self.delivery.sessions[session];
        let source = state.permissions.as_ref().and_then(|permissions| {
            let client = super::delivery::hook_client(state, &self.delivery.connections);
            permissions.decision_source(&client, action)
        });
        self.call_hook(session, |hooks, client| {
            hooks.authorized(client, action, answer, source);
        });
    }

    /// Decides for a client whose permissions are not known.
    #[inline(never)]
    fn authorize_with_hooks(
        &mut self,
        session: SessionIx,
        action: &ClientAction<'_>,
    ) -> Authorization {
        if !self.delivery.interest.contains(Interest::AUTHORIZE) {
            return match concerns_relay(action) {
                true => Authorization::Deny,
                false => Authorization::Allow,
            };
        }
        self.call_hook(session, |hooks, client| hooks.authorize(client, action))
    }

    /// Whether permissions have to be checked, or decisions reported, for the client of a session.
    #[inline]
    pub(crate) fn needs_authorization(&self, session: SessionIx) -> bool {
        let points = Interest::AUTHORIZE | Interest::AUTHORIZATION_DECIDED;
        self.delivery.interest.intersects(points)
            || self.delivery.sessions[session].permissions.is_some()
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

/// The version claimed by a CONNECT that could not be decoded: byte 7 or 9, after the protocol's name. Levels above 5
/// are answered in the form of version 5, the newest one.
fn claimed_version(raw: &[u8]) -> Option<Version> {
    if raw.first()? >> 4 != mqtt::PacketType::Connect as u8 {
        return None;
    }
    let body_at = 1 + raw[1..].iter().take(4).position(|byte| byte & 0x80 == 0)? + 1;
    let body = raw.get(body_at..)?;
    let name_len = usize::from(u16::from_be_bytes([*body.first()?, *body.get(1)?]));
    match (body.get(2..2 + name_len)?, body.get(2 + name_len)? & 0x7f) {
        (b"MQTT", 5..) => Some(Version::V5),
        _ => Some(Version::V311),
    }
}
