//! From the first packet to CONNACK: what CONNECT may say, who the client is, which session it gets.
//!
//! A client is authenticated on the shard that accepted it. If its session lives on another shard, the connection moves
//! there (the session stays where its state is), and `establish` runs there.

use mqtt::{
    ConnAck, Connect, Direction, Disconnect, Frame, Packet, Properties, PropertiesBuf, Property,
    QoS, ReasonCode, Version,
};
use ring::rand::SecureRandom;
use std::net::SocketAddr;
use std::sync::Arc;

use super::connection::{Closing, Extra, Phase};
use super::directory::{Claim, Directory};
use super::message::{Message, MessageView, NEVER_MS};
use super::session::{Session, Will};
use super::shard::{Flow, Shard};
use super::timers::Timer;
use crate::config::OtherUsersSession;
use crate::hooks::{
    Accepted, Action, Authentication, Authorization, Interest, Peer, RefusedConnect,
};
use crate::metrics::Metric;

/// A connection on its way to the shard that holds its session.
pub(crate) struct Moving {
    listener: u16,
    peer: Peer,
    local: Option<SocketAddr>,
    opened_ms: u64,
    partial: Vec<u8>,
    extra: Box<Extra>,
}

pub(crate) fn refused(code: ReasonCode, detail: impl Into<std::rc::Rc<str>>) -> Closing {
    Closing::new(code, "refused").with_detail(detail)
}

/// The refusal of an authenticator or a check of bans and limits. The detail fits the code, so that a client
/// whose credentials are right is not told that they are wrong.
pub(crate) fn denied(code: ReasonCode) -> Closing {
    let detail = match code {
        ReasonCode::BANNED => "the client, its user or its address is banned",
        ReasonCode::SERVER_UNAVAILABLE => "the credentials cannot be checked now, try again later",
        ReasonCode::SERVER_BUSY | ReasonCode::CONNECTION_RATE_EXCEEDED => {
            "too many attempts to connect, try again later"
        }
        ReasonCode::BAD_USER_NAME_OR_PASSWORD => "the credentials were not accepted",
        _ => "the client is not allowed to connect",
    };
    refused(code, detail)
}

impl Shard {
    /// The first packet of a connection; nothing but CONNECT may come [MQTT-3.1.0-1].
    pub(crate) fn first_packet(
        &mut self,
        at: u32,
        frame: Frame<'_>,
        raw: &[u8],
    ) -> Result<Flow, Closing> {
        if frame.first_byte >> 4 != mqtt::PacketType::Connect as u8 {
            return Err(Closing::silent("protocol_error")
                .with_detail("the first packet was not CONNECT [MQTT-3.1.0-1]"));
        }
        // Known even if the packet turns out not to be valid, so that the refusal keeps to them.
        let wishes = Connect::readable_properties(frame.body);
        self.take_wishes(at, Version::V311, wishes);
        let Packet::Connect(connect) = Packet::decode(frame, Version::V311, Direction::FromClient)?
        else {
            return Err(Closing::silent("protocol_error"));
        };
        self.take_wishes(at, connect.version, connect.properties);
        self.check_connect(&connect)?;
        self.check_name(at, connect.username)?;
        // Looked at again when the answer of the authenticator is there, perhaps on another shard.
        self.delivery.connections[at as usize].extra().connect = raw.to_vec();
        if let Some(method) = connect.properties.authentication_method() {
            let data = connect.properties.authentication_data();
            return self.begin_exchange(at, &connect, method, data);
        }
        match self.authenticate(at, &connect) {
            Authentication::Ignore => {
                let nobody = crate::hooks::Grant {
                    is_anonymous: true,
                    ..crate::hooks::Grant::default()
                };
                self.grant(at, &connect, nobody);
                self.establish(at)
            }
            Authentication::Allow(given) => {
                self.grant(at, &connect, *given);
                self.establish(at)
            }
            Authentication::Deny(code) => Err(denied(code)),
            later @ Authentication::Later(_) => {
                let connection = &mut self.delivery.connections[at as usize];
                connection.phase = Phase::Authenticating;
                self.authentications.push((at, connection.serial, later));
                Ok(Flow::Wait)
            }
        }
    }

    fn check_connect(&self, connect: &Connect<'_>) -> Result<(), Closing> {
        let limits = self.limits();
        if connect.client_id.len() > usize::from(limits.max_client_id_bytes) {
            return Err(refused(
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
            return Err(refused(
                ReasonCode::BAD_USER_NAME_OR_PASSWORD,
                format!(
                    "the user name is longer than {} bytes",
                    limits.max_username_bytes
                ),
            ));
        }
        if connect.client_id.is_empty() && !may_be_empty {
            // [MQTT-3.1.3-8]
            return Err(refused(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                "an empty client id needs version 3.1.1 and a clean session, or version 5",
            ));
        }
        if let Some(will) = &connect.will {
            if will.qos as u8 > limits.max_qos {
                return Err(refused(
                    ReasonCode::QOS_NOT_SUPPORTED,
                    "the will's QoS is too high",
                ));
            }
            if will.retain && !limits.retain_available {
                return Err(refused(
                    ReasonCode::RETAIN_NOT_SUPPORTED,
                    "the will is retained",
                ));
            }
            mqtt::validate_topic_name(will.topic, &self.topic_limits())
                .map_err(|e| refused(ReasonCode::TOPIC_NAME_INVALID, format!("will topic: {e}")))?;
            if limits.validate_payload_format
                && will.properties.payload_format_indicator() == Some(1)
                && std::str::from_utf8(will.payload).is_err()
            {
                return Err(refused(
                    ReasonCode::PAYLOAD_FORMAT_INVALID,
                    "the will's payload is marked as UTF-8 and is not",
                ));
            }
        }
        if self.stopping {
            return Err(refused(
                ReasonCode::SERVER_UNAVAILABLE,
                "the server is stopping",
            ));
        }
        Ok(())
    }

    /// What the client wants of every packet that is sent to it, a refusal included.
    fn take_wishes(&mut self, at: u32, version: Version, properties: Properties<'_>) {
        let connection = &mut self.delivery.connections[at as usize];
        connection.version = version;
        connection.problem_information = properties.request_problem_information().unwrap_or(true);
        connection.max_packet_out = properties.maximum_packet_size().unwrap_or(u32::MAX);
    }

    pub(crate) fn topic_limits(&self) -> mqtt::TopicLimits {
        let limits = self.limits();
        mqtt::TopicLimits {
            max_bytes: limits.max_topic_bytes,
            max_levels: limits.max_topic_levels,
        }
    }

    /// The client is who it says: find or make its session, answer CONNACK.
    pub(crate) fn establish(&mut self, at: u32) -> Result<Flow, Closing> {
        let raw = std::mem::take(&mut self.delivery.connections[at as usize].extra().connect);
        let connect = decode_connect(&raw)
            .ok_or_else(|| refused(ReasonCode::UNSPECIFIED_ERROR, "CONNECT was lost"))?;
        let extra = self.delivery.connections[at as usize].extra();
        let granted = extra
            .grant
            .as_ref()
            .and_then(|grant| grant.client_id.clone());
        let prefix = match &granted {
            Some(_) => String::new(),
            None => self.client_id_prefix(at),
        };
        let assigned = match (granted, connect.client_id) {
            (Some(granted), said) => (*granted != *said).then(|| granted.into()),
            (None, "") => Some(format!("{prefix}{}", self.assign_client_id()?)),
            (None, _) => None,
        };
        let client_id = assigned.as_deref().unwrap_or(connect.client_id);
        if !client_id.starts_with(&prefix) {
            return Err(refused(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                format!("the client id has to begin with {prefix:?}"),
            ));
        }
        let id = match self.node.directory.claim(client_id, self.id) {
            Claim::Other(shard) => {
                self.delivery.connections[at as usize].extra().connect = raw;
                return Ok(Flow::HandOver(shard));
            }
            Claim::Mine(id) => id,
        };
        let existing = self.by_client_id.get(&*id).copied();
        let is_own = existing.is_none_or(|session| self.owns(at, session));
        if let Some(session) = existing
            && !is_own
            && self.delivery.sessions[session as usize].username.is_some()
            && self.limits.other_users_session == OtherUsersSession::Refuse
        {
            return Err(refused(
                ReasonCode::CLIENT_IDENTIFIER_NOT_VALID,
                "the session with this client id belongs to another user",
            ));
        }
        if let Some(session) = existing
            && let Some(other) = self.delivery.sessions[session as usize].connection
        {
            self.metrics().inc(Metric::TakenOver);
            let why = match connect.clean_start {
                true => "discarded",
                false => "taken_over",
            };
            self.close(other, Closing::new(ReasonCode::SESSION_TAKEN_OVER, why));
        }
        // Closing the other connection may have ended the session, and with it the claim.
        let existing = self.by_client_id.get(&*id).copied();
        // A session of nobody in particular is not handed to somebody: it ends.
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
        self.attach(at, session, &connect);
        if session_present {
            self.recheck_subscriptions(session);
        }
        self.accept(at, session, &connect, session_present, assigned.as_deref());
        match self.delivery.connections[at as usize].held {
            true => Ok(Flow::Wait),
            false => Ok(Flow::Continue),
        }
    }

    fn granted_username(&self, at: u32) -> Option<&str> {
        let extra = self.delivery.connections[at as usize].extra.as_ref()?;
        extra.grant.as_ref()?.username.as_deref()
    }

    /// Whether the session was made by the user of this connection. Those without a name are one user.
    fn owns(&self, at: u32, session: u32) -> bool {
        let session = &self.delivery.sessions[session as usize];
        session.username.as_deref() == self.granted_username(at)
    }

    /// What the client id of this client has to begin with.
    fn client_id_prefix(&self, at: u32) -> String {
        let wanted = &self.limits.client_id_prefix;
        match self.granted_username(at) {
            Some(username) if !wanted.is_empty() => wanted.replace("${username}", username),
            _ => String::new(),
        }
    }

    fn new_session(&mut self, id: &Arc<str>, expiry_s: u32) -> Result<u32, Closing> {
        // Ending an earlier session has released the name.
        if let Claim::Other(_) = self.node.directory.claim(id, self.id) {
            return Err(refused(
                ReasonCode::SERVER_BUSY,
                "the client id connected elsewhere just now",
            ));
        }
        if self.delivery.refuses() && expiry_s > 0 {
            self.node.directory.release(id, self.id);
            return Err(refused(
                ReasonCode::QUOTA_EXCEEDED,
                "the store takes no new session now",
            ));
        }
        if !Directory::take_place(&self.node.directory.sessions, self.limits.max_sessions) {
            self.node.directory.release(id, self.id);
            return Err(refused(
                ReasonCode::QUOTA_EXCEEDED,
                "the node holds as many sessions as it may",
            ));
        }
        let now_ms = self.now_ms();
        let session = self
            .delivery
            .sessions
            .insert(Session::new(id.clone(), now_ms)) as u32;
        self.by_client_id.insert(id.clone(), session);
        self.metrics().inc(Metric::Sessions);
        if self.delivery.interest.contains(Interest::SESSION) {
            self.delivery.hooks.session_created(id);
        }
        Ok(session)
    }

    /// A client id nobody can guess, since who knows it can take the session over.
    fn assign_client_id(&self) -> Result<String, Closing> {
        let mut random = [0_u8; 12];
        ring::rand::SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| {
                refused(
                    ReasonCode::UNSPECIFIED_ERROR,
                    "the system has no randomness",
                )
            })?;
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("tg-{hex}"))
    }

    /// Joins a connection and a session.
    fn attach(&mut self, at: u32, session_at: u32, connect: &Connect<'_>) {
        let will = connect
            .will
            .as_ref()
            .map(|will| self.will_of(session_at, will));
        let limits = self.limits.clone();
        let now_ms = self.now_ms();
        let session = &mut self.delivery.sessions[session_at as usize];
        for timer in [session.expiry_timer.take(), session.will_timer.take()]
            .into_iter()
            .flatten()
        {
            self.timers.cancel(timer);
        }
        let connection = &mut self.delivery.connections[at as usize];
        connection.session = session_at;
        connection.phase = Phase::Connected;
        connection.last_seen_ms = now_ms;
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
        session.clean_start = connect.clean_start;
        session.bridge = connect.bridge && connect.version != Version::V5;
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
            let end = Timer::Grant(at, connection.serial);
            connection.extra().expiry_timer = Some(self.timers.add(expires_at_ms, end));
        }
        if aliases > 0 {
            connection.extra().aliases_out_max = aliases;
        }
        self.metrics().inc(Metric::ClientsConnected);
        self.set_group_presence(session_at, true);
        self.record_session(session_at);
    }

    fn will_of(&mut self, session: u32, will: &mqtt::Will<'_>) -> Will {
        let mut properties = Vec::new();
        for (span, property) in will.properties.spans() {
            if !matches!(property, Property::WillDelayInterval(_)) {
                properties.extend_from_slice(&will.properties.as_bytes()[span]);
            }
        }
        let session = &self.delivery.sessions[session as usize];
        let view = MessageView {
            topic: will.topic,
            properties: Properties::from_validated(&properties),
            payload: will.payload,
            shared_payload: None,
            qos: will.qos,
            retain: will.retain,
            received_ms: self.delivery.now_ms,
            // Its expiry runs from the moment it is published.
            expires_ms: NEVER_MS,
            from_client_id: &session.client_id,
            from_username: session.username.as_deref().unwrap_or(""),
            is_derived: false,
            number: 0,
        };
        Will {
            message: Message::new(&view),
            delay_s: will.properties.will_delay_interval().unwrap_or(0),
        }
    }

    fn accept(
        &mut self,
        at: u32,
        session: u32,
        connect: &Connect<'_>,
        session_present: bool,
        assigned: Option<&str>,
    ) {
        let keep_alive = self.keep_alive_for(at, connect.keep_alive);
        self.delivery.connections[at as usize].keep_alive_s = keep_alive;
        let mut properties = PropertiesBuf::new();
        if connect.version == Version::V5 {
            self.connack_properties(at, session, connect, assigned, &mut properties);
        }
        let connack = ConnAck {
            session_present: session_present && connect.version != Version::V31,
            code: ReasonCode::SUCCESS,
            properties: properties.as_properties(),
        };
        self.delivery.hold(at);
        self.delivery.write(at, |out| {
            Packet::ConnAck(connack).encode(connect.version, out)
        });
        self.metrics().inc(Metric::ConnectAccepted);
        if let Some(deadline) = self.delivery.connections[at as usize].keep_alive_deadline_ms() {
            self.look_at(at, deadline);
        }
        self.forget_connect(at);
        if self.delivery.interest.contains(Interest::CONNECT) {
            let node = self.node.clone();
            let listener = self.delivery.connections[at as usize].listener;
            let accepted = Accepted {
                session_present,
                connect,
                keep_alive_s: keep_alive,
                session_expiry_s: self.delivery.sessions[session as usize].expiry_s,
                listener: &node.listeners[usize::from(listener)].config.name,
                is_superuser: (self.delivery.sessions[session as usize]
                    .permissions
                    .as_ref())
                .is_some_and(|permissions| permissions.is_superuser()),
            };
            self.with_client(session, |hooks, client| hooks.connected(client, &accepted));
        }
        if session_present {
            self.delivery.pump(session);
            // What is to be sent again comes before the answers to whatever the client sends next.
            let outbound = self.delivery.sessions[session as usize].outbound.as_ref();
            if outbound.is_some_and(|outbound| outbound.is_loading()) {
                self.delivery.connections[at as usize].held = true;
            }
        }
    }

    /// Gives back what only the way to CONNACK needed.
    fn forget_connect(&mut self, at: u32) {
        let connection = &mut self.delivery.connections[at as usize];
        if let Some(extra) = &mut connection.extra {
            extra.connect = Vec::new();
            let method = extra.grant.as_ref().and_then(|grant| grant.method.as_ref());
            let is_idle = extra.rate.is_none() && extra.expiry_timer.is_none();
            if method.is_none() && is_idle && extra.aliases_out_max == 0 {
                connection.extra = None;
            }
        }
    }

    fn keep_alive_for(&self, at: u32, asked: u16) -> u16 {
        let connection = &self.delivery.connections[at as usize];
        let listener = &self.node.listeners[usize::from(connection.listener)].config;
        let most = [self.limits().max_keep_alive_s, listener.max_keep_alive_s];
        let most = most.into_iter().filter(|&bound| bound > 0).min();
        match most {
            Some(most) if asked == 0 || asked > most => most,
            _ if asked > 0 => asked.max(listener.min_keep_alive_s),
            _ => 0,
        }
    }

    fn connack_properties(
        &self,
        at: u32,
        session: u32,
        connect: &Connect<'_>,
        assigned: Option<&str>,
        out: &mut PropertiesBuf,
    ) {
        let limits = self.limits();
        let connection = &self.delivery.connections[at as usize];
        let expiry_s = self.delivery.sessions[session as usize].expiry_s;
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
        if !limits.wildcard_available {
            out.push(Property::WildcardSubscriptionAvailable(false));
        }
        if !limits.shared_available {
            out.push(Property::SharedSubscriptionAvailable(false));
        }
        if connection.keep_alive_s != connect.keep_alive {
            out.push(Property::ServerKeepAlive(connection.keep_alive_s));
        }
        if connect.properties.request_response_information() == Some(true) {
            // Where this client may let others answer it: below its own client id.
            let client_id = &self.delivery.sessions[session as usize].client_id;
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

    /// Answers a CONNECT that is not accepted, as far as its version allows, and closes.
    pub(crate) fn refuse_connect(&mut self, at: u32, closing: Closing, raw: &[u8]) {
        let unauthorized = [
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        ];
        self.metrics().inc(match closing.code {
            Some(code) if unauthorized.contains(&code) => Metric::ConnectUnauthorized,
            _ => Metric::ConnectRefused,
        });
        if self.delivery.interest.contains(Interest::REFUSE)
            && let Some(code) = closing.code
        {
            self.tell_refusal(at, code, raw);
        }
        let connection = &self.delivery.connections[at as usize];
        let version = match connection.phase {
            Phase::Authenticating => connection.version,
            _ => claimed_version(raw).unwrap_or(connection.version),
        };
        if let Some(code) = closing.code {
            self.send_refusal(at, version, code, &closing);
        }
        let why = Closing {
            code: None,
            ..closing
        };
        self.close(at, why);
    }

    fn tell_refusal(&mut self, at: u32, code: ReasonCode, raw: &[u8]) {
        let connection = &self.delivery.connections[at as usize];
        let kept = connection.extra.as_ref().map(|extra| &extra.connect[..]);
        let kept = kept.filter(|kept| !kept.is_empty()).unwrap_or(raw);
        let connect = decode_connect(kept);
        let refused = RefusedConnect {
            client_id: connect.as_ref().map(|connect| connect.client_id),
            // Without a password it may be the token of a device, or nearly one.
            username: connect
                .as_ref()
                .filter(|connect| connect.password.is_some())
                .and_then(|connect| connect.username),
            peer: connection.peer,
            local: connection.local,
            listener: &self.node.listeners[usize::from(connection.listener)]
                .config
                .name,
            code,
            connect: connect.as_ref(),
        };
        self.delivery.hooks.refused(&refused);
    }

    fn send_refusal(&mut self, at: u32, version: Version, code: ReasonCode, closing: &Closing) {
        let answer_3 = mqtt::v3_return_code(code);
        if version != Version::V5 && answer_3 == 0 {
            // 3.1.1 has five return codes; what none of them says is said by closing.
            return;
        }
        let connection = &self.delivery.connections[at as usize];
        let (session_present, max) = (false, connection.max_packet_out as usize);
        let mut properties = PropertiesBuf::new();
        if let Some(detail) = &closing.detail
            && self.limits().reason_strings
            && connection.problem_information
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
            // The reason string is left out if the packet would be too large with it [MQTT-3.2.2-19].
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

    /// DISCONNECT from the client.
    pub(crate) fn disconnect(
        &mut self,
        at: u32,
        disconnect: &Disconnect<'_>,
    ) -> Result<Flow, Closing> {
        let session_at = self.session_of(at);
        let max_expiry_s = self.limits().max_session_expiry_s;
        let session = &mut self.delivery.sessions[session_at as usize];
        if let Some(expiry_s) = disconnect.properties.session_expiry_interval() {
            if session.expiry_s == 0 && expiry_s > 0 {
                // [MQTT-3.14.2-2]
                return Err(Closing::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                    .with_detail("DISCONNECT: a session expiry of 0 cannot be raised"));
            }
            session.expiry_s = expiry_s.min(max_expiry_s);
        }
        let will = disconnect.reason != ReasonCode::SUCCESS;
        self.close(
            at,
            Closing {
                code: None,
                why: "normal",
                detail: None,
                will,
            },
        );
        Ok(Flow::Close)
    }

    /// Takes a connection that is moving to the shard of its session off this one.
    pub(crate) fn hand_over(&mut self, at: u32) -> Moving {
        let connection = &mut self.delivery.connections[at as usize];
        let moving = Moving {
            listener: connection.listener,
            peer: connection.peer,
            local: connection.local,
            opened_ms: connection.last_seen_ms,
            partial: std::mem::take(&mut connection.partial),
            extra: connection.extra.take().unwrap_or_default(),
        };
        connection.phase = Phase::Closing;
        self.remove(at);
        moving
    }

    /// Takes a connection that comes from another shard.
    pub(crate) fn take_over(&mut self, moving: Moving) -> (u32, Flow) {
        let at = self.open(moving.listener, moving.peer);
        let connection = &mut self.delivery.connections[at as usize];
        connection.local = moving.local;
        connection.last_seen_ms = moving.opened_ms;
        connection.partial = moving.partial;
        let raw = moving.extra.connect.clone();
        connection.extra = Some(moving.extra);
        let Some(connect) = decode_connect(&raw) else {
            self.close(at, Closing::silent("protocol_error"));
            return (at, Flow::Close);
        };
        self.take_wishes(at, connect.version, connect.properties);
        let result = self
            .check_connect(&connect)
            .and_then(|()| self.establish(at));
        let flow = match result {
            Ok(Flow::Continue) => self.resume(at),
            Ok(flow) => flow,
            Err(closing) => {
                self.refuse_connect(at, closing, &raw);
                Flow::Close
            }
        };
        self.close_doomed();
        (at, flow)
    }

    /// Whether a client may do something.
    pub(crate) fn is_allowed(&mut self, session: u32, action: &Action<'_>) -> Authorization {
        let answer = self.ask_permission(session, action);
        if self.delivery.interest.contains(Interest::AUTHORIZED) {
            let state = &self.delivery.sessions[session as usize];
            let source = state.permissions.as_ref().and_then(|permissions| {
                let client = super::deliver::client_of(state, &self.delivery.connections);
                permissions.source(&client, action)
            });
            self.with_client(session, |hooks, client| {
                hooks.authorized(client, action, answer, source);
            });
        }
        answer
    }

    fn ask_permission(&mut self, session: u32, action: &Action<'_>) -> Authorization {
        let state = &self.delivery.sessions[session as usize];
        if let Some(permissions) = &state.permissions {
            let client = super::deliver::client_of(state, &self.delivery.connections);
            return permissions.check(&client, action);
        }
        if !self.delivery.interest.contains(Interest::AUTHORIZE) {
            return Authorization::Allow;
        }
        self.with_client(session, |hooks, client| hooks.authorize(client, action))
    }

    /// Whether anybody has to be asked, or told, what the client of a session may do.
    #[inline]
    pub(crate) fn is_restricted(&self, session: u32) -> bool {
        let asked = Interest::AUTHORIZE | Interest::AUTHORIZED;
        self.delivery.interest.intersects(asked)
            || self.delivery.sessions[session as usize]
                .permissions
                .is_some()
    }
}

/// How long the session outlives its connection. Before version 5 a session that is not clean lasts as long as the
/// node allows.
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

/// The version a CONNECT claims that could not be decoded: byte 7 or 9 behind the protocol's name. Levels above 5 are
/// answered in the form of 5, the newest there is.
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
