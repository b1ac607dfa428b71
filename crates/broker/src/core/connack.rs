//! CONNACK: accepts a CONNECT, or rejects it with the answer that its version allows.

use hooks::{AcceptedConnect, Interest, RejectedConnect};
use mqtt::{
    ConnAck, Connect, Packet, Properties, PropertiesBuf, Property, QoS, ReasonCode, Version,
};

use super::connect::decode_connect;
use super::connection::{CloseReason, ConnectionPhase};
use super::shard::Shard;
use super::tables::{ConnectionIx, SessionIx};
use crate::metrics::Metric;

impl Shard {
    pub(super) fn accept_connect(
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
            let listener = node.listeners[usize::from(listener)].config();
            let accepted = AcceptedConnect {
                session_present,
                connect,
                keep_alive_s: keep_alive,
                session_expiry_s: self.delivery.sessions[session].expiry_s,
                listener: &listener.name,
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
            let is_idle = extra.rate.is_none()
                && extra.expiry_timer.is_none()
                && extra.address_source.is_none();
            let is_needed = extra.aliases_out_max > 0 || extra.is_tunnel_exit;
            if method.is_none() && is_idle && !is_needed {
                connection.extra = None;
            }
        }
    }

    fn effective_keep_alive_s(&self, at: ConnectionIx, requested: u16) -> u16 {
        let connection = &self.delivery.connections[at];
        let listener = self.node.listeners[usize::from(connection.listener)].config();
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

    /// Rejects a CONNECT with the answer that its version allows, and closes the connection.
    pub(crate) fn reject_connect(&mut self, at: ConnectionIx, closing: CloseReason, raw: &[u8]) {
        let unauthorized = [
            ReasonCode::NOT_AUTHORIZED,
            ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        ];
        self.metrics().inc(match closing.code {
            Some(code) if unauthorized.contains(&code) => Metric::ConnectUnauthorized,
            _ => Metric::ConnectRejected,
        });
        if self.delivery.interest.contains(Interest::CONNECT_REJECTED)
            && let Some(code) = closing.code
        {
            self.notify_connect_rejected(at, code, closing.detail.as_deref(), raw);
        }
        let connection = &self.delivery.connections[at];
        let version = match connection.phase {
            ConnectionPhase::Authenticating => connection.version,
            _ => claimed_version(raw).unwrap_or(connection.version),
        };
        if let Some(code) = closing.code {
            self.send_connack_rejection(at, version, code, &closing);
        }
        let why = CloseReason {
            code: None,
            ..closing
        };
        self.close(at, why);
    }

    fn notify_connect_rejected(
        &mut self,
        at: ConnectionIx,
        code: ReasonCode,
        detail: Option<&str>,
        raw: &[u8],
    ) {
        let connection = &self.delivery.connections[at];
        let stored = connection.extra.as_ref().map(|extra| &extra.connect[..]);
        let stored = stored.filter(|stored| !stored.is_empty()).unwrap_or(raw);
        let connect = decode_connect(stored);
        let listener = self.node.listeners[usize::from(connection.listener)].config();
        let rejected = RejectedConnect {
            client_id: connect.as_ref().map(|connect| connect.client_id),
            // Without a password the user name may be the token of a device, or almost one.
            username: connect
                .as_ref()
                .filter(|connect| connect.password.is_some())
                .and_then(|connect| connect.username),
            peer: connection.peer,
            local_address: connection.local_address,
            listener: &listener.name,
            code,
            detail,
            connect: connect.as_ref(),
        };
        self.delivery.hooks.connect_rejected(&rejected);
    }

    fn send_connack_rejection(
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
        if code == ReasonCode::USE_ANOTHER_SERVER
            && self.is_draining()
            && let Some(reference) = &self.node.server_reference
        {
            properties.push(Property::ServerReference(reference));
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
