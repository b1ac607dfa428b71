//! Connections of relay endpoints: WebSocket messages in, publications to the endpoint's topic out, and back. See
//! [`hooks::relay`].
//!
//! Such a connection has a session without expiry and one QoS 0 subscription with "no local". Its bytes are WebSocket
//! frames: no layer below adds or removes framing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use hooks::{MessageOrigin, MessageView, NEVER_MS};
use mqtt::{Properties, QoS, SubscriptionOptions};
use ws::{Decoder, DecoderEvent, DecoderOptions, Opcode, PermessageDeflate, Role};

use super::client_disconnects::REBALANCING;
use super::connection::{ClientRateLimiter, CloseReason, ConnectionPhase, PANIC};
use super::delivery::with_publisher;
use super::directory::SessionClaim;
use super::pending_suback::PendingSubAck;
use super::relay_peer::{RelayInput, RelayPeer};
use super::session::Session;
use super::shard::{ConnectionAction, Shard};
use super::subscriber_list::Subscriber;
use super::tables::{ConnectionIx, SessionIx, TableIx as _};
use crate::metrics::Metric;
use hooks::relay::{
    RELAY_TOPIC_PREFIX, RelayAdmission, RelayClient, RelayClose, RelayConnection, RelayPayloadKind,
    RelayRequest, RelayTraffic, RelayVerdict,
};

/// Pings without an answer after which a connection is closed.
const MAX_UNANSWERED_PINGS: u8 = 2;
/// Payload format indicator 1: text. It marks the kind of the message for MQTT subscribers and other shards.
pub(super) const TEXT_PROPERTIES: [u8; 2] = [0x01, 1];
/// Payload format indicator 0: binary.
const BINARY_PROPERTIES: [u8; 2] = [0x01, 0];

/// Time from the beginning of a connection to its first ping: between a quarter of the interval and the whole, different for
/// each slot. Otherwise thousands of clients that connect together, as after a network failure, would be pinged
/// together from then on. Messages would wait behind these pings.
fn first_ping_ms(at: ConnectionIx, ping_interval_s: u16) -> u64 {
    let interval_ms = u64::from(ping_interval_s) * 1000;
    // Multiples of the golden ratio are spread evenly, whatever their number.
    let fraction = (at.position() as u32).wrapping_mul(0x9e37_79b9);
    interval_ms / 4 + ((interval_ms * 3 / 4 * u64::from(fraction)) >> 32)
}

impl Shard {
    /// A client has completed the handshake for a relay endpoint: it is admitted, or closed with the reason.
    pub(crate) fn open_relay(
        &mut self,
        at: ConnectionIx,
        request: &RelayRequest<'_>,
        compression: Option<PermessageDeflate>,
        handle: Arc<dyn RelayConnection>,
    ) -> ConnectionAction {
        if self.delivery.connections[at].phase != ConnectionPhase::AwaitConnect {
            return ConnectionAction::Close;
        }
        let admitted = match self.node.relay.clone() {
            _ if self.is_draining() => Err(RelayClose {
                code: ws::close_codes::GOING_AWAY,
                reason: "the server is being drained, connect to another one".into(),
                message: None,
            }),
            Some(service) => service.admit(request, handle),
            None => Err(RelayClose {
                code: ws::close_codes::POLICY_VIOLATION,
                reason: "this node has no relay endpoints".into(),
                message: None,
            }),
        };
        let admission = match admitted {
            Ok(admission) => admission,
            Err(close) => {
                self.metrics().inc(Metric::RelayRejected);
                let why = CloseReason::without_code("not_authorized");
                self.close(at, why.with_relay(close));
                return ConnectionAction::Close;
            }
        };
        match self.start_relay_session(at, admission, compression) {
            Ok(action) => action,
            Err((mut client, close)) => {
                self.metrics().inc(Metric::RelayRejected);
                client.closed("not_authorized", RelayTraffic::default());
                let why = CloseReason::without_code("not_authorized");
                self.close(at, why.with_relay(close));
                ConnectionAction::Close
            }
        }
    }

    fn start_relay_session(
        &mut self,
        at: ConnectionIx,
        admission: RelayAdmission,
        compression: Option<PermessageDeflate>,
    ) -> Result<ConnectionAction, (Box<dyn RelayClient>, RelayClose)> {
        let RelayAdmission {
            endpoint,
            mut client,
            connection_id,
        } = admission;
        let overloaded = |reason: &'static str| RelayClose {
            code: ws::close_codes::TRY_AGAIN_LATER,
            reason: reason.into(),
            message: None,
        };
        let client_id = format!("{}/{connection_id}", endpoint.topic());
        let SessionClaim::ThisShard(id) = self.node.directory.claim(&client_id, self.id) else {
            return Err((client, overloaded("the connection id is in use")));
        };
        if self.by_client_id.contains_key(&*id) {
            return Err((client, overloaded("the connection id is in use")));
        }
        if !super::directory::NodeDirectory::reserve_slot(
            &self.node.directory.sessions,
            self.limits.max_sessions,
        ) {
            self.node.directory.release(&id, self.id);
            return Err((
                client,
                overloaded("the node has reached limits.max_sessions"),
            ));
        }
        client.opened();
        let now_ms = self.now_ms();
        let mut session = Session::new(id.clone(), now_ms);
        session.connection = Some(at);
        session.is_relay = true;
        // It never has another one: there are many idle connections.
        session.subscriptions.reserve_exact(1);
        let session_at = self.delivery.sessions.insert(session);
        self.by_client_id.insert(id, session_at);
        self.metrics().inc(Metric::Sessions);
        self.metrics().inc(Metric::RelayConnections);
        let limits = endpoint.limits();
        let text = endpoint.topic().to_owned();
        let decoder = Decoder::new(DecoderOptions {
            role: Role::Server,
            refuse_text: false,
            max_message_bytes: u64::from(limits.max_message_bytes),
            has_compression: compression.is_some(),
        });
        let connection = &mut self.delivery.connections[at];
        connection.session = session_at;
        connection.phase = ConnectionPhase::Connected;
        connection.deadlines.record_input(now_ms);
        connection.relay = Some(Box::new(RelayPeer {
            compression,
            input: Some(Box::new(RelayInput {
                endpoint: endpoint.clone(),
                decoder,
                inflater: None,
                message: Vec::new(),
                client,
            })),
            backlog: None,
            unanswered_pings: 0,
            is_close_sent: false,
            traffic: RelayTraffic::default(),
            endpoint,
        }));
        if let Some(rate) =
            ClientRateLimiter::new(limits.max_messages_per_s, limits.max_bytes_per_s, now_ms)
        {
            connection.extra().rate = Some(rate);
        }
        self.schedule_check(at, now_ms + first_ping_ms(at, limits.ping_interval_s));
        let options = SubscriptionOptions {
            qos: QoS::AtMostOnce,
            no_local: true,
            retain_as_published: false,
            retain_handling: 2,
        };
        let subscriber = Subscriber {
            session: session_at,
            identifier: 0,
            options,
        };
        let sequence = self.insert_subscription(&text, None, subscriber).sequence();
        if self.shard_queues.is_applied_by_all(sequence) {
            return Ok(ConnectionAction::Continue);
        }
        // As after SUBSCRIBE: what the client sends waits until answers from other shards can reach it.
        let connection = &mut self.delivery.connections[at];
        connection.is_held = true;
        self.pending_subacks.push(PendingSubAck {
            sequence,
            connection: at,
            serial: connection.serial,
            packet: Vec::new(),
            retained: Vec::new(),
            is_durable: false,
        });
        Ok(ConnectionAction::AwaitResume)
    }

    /// Processes the frames at the front of `data`, removes their masks, and returns the number of bytes consumed. Not part
    /// of the caller, which handles MQTT packets.
    #[inline(never)]
    pub(super) fn process_relay(
        &mut self,
        at: ConnectionIx,
        data: &mut [u8],
    ) -> (usize, ConnectionAction) {
        let input = self.delivery.relay_peer(at).and_then(|it| it.input.take());
        let Some(mut input) = input else {
            return (data.len(), ConnectionAction::Close);
        };
        let was_partial = input.partial_bytes() > 0;
        // After a panic, the caller closes the connection, which has to tell the client and the service.
        let processed = catch_unwind(AssertUnwindSafe(|| {
            self.process_frames(at, &mut input, data)
        }));
        input.client.finish_input();
        let is_partial = input.partial_bytes() > 0;
        if let Some(relay) = self.delivery.relay_peer(at) {
            relay.input = Some(input);
        }
        let (consumed, result) = processed.unwrap_or_else(|panic| resume_unwind(panic));
        match result {
            Ok(action) => {
                if is_partial || was_partial {
                    let is_fragment = is_partial && action == ConnectionAction::Continue;
                    self.track_partial_deadline(at, is_fragment, !was_partial);
                }
                (consumed, action)
            }
            Err(closing) => {
                self.close(at, closing);
                (data.len(), ConnectionAction::Close)
            }
        }
    }

    fn process_frames(
        &mut self,
        at: ConnectionIx,
        input: &mut RelayInput,
        buffer: &mut [u8],
    ) -> (usize, Result<ConnectionAction, CloseReason>) {
        let mut consumed = 0;
        loop {
            let step = match input.decoder.decode(&mut buffer[consumed..]) {
                Ok(step) => step,
                Err(error) => return (consumed, Err(self.relay_protocol_error(error))),
            };
            consumed += step.consumed;
            let result = match step.event {
                None => return (consumed, Ok(ConnectionAction::Continue)),
                Some(DecoderEvent::Data {
                    chunk,
                    is_binary,
                    is_compressed,
                    is_end_of_message,
                }) => {
                    let kind = match is_binary {
                        true => RelayPayloadKind::Binary,
                        false => RelayPayloadKind::Text,
                    };
                    if is_compressed {
                        let max_bytes = self.max_relay_message_bytes(at);
                        if let Err(error) = input.inflate(chunk, kind, is_end_of_message, max_bytes)
                        {
                            return (consumed, Err(self.relay_protocol_error(error)));
                        }
                        if !is_end_of_message {
                            continue;
                        }
                        let message = std::mem::take(&mut input.message);
                        self.charge_inflated(at, message.len());
                        self.relay_message(at, input, kind, &message)
                    } else if !is_end_of_message {
                        input.message.extend_from_slice(chunk);
                        continue;
                    } else if input.message.is_empty() {
                        self.relay_message(at, input, kind, chunk)
                    } else {
                        let mut message = std::mem::take(&mut input.message);
                        message.extend_from_slice(chunk);
                        self.relay_message(at, input, kind, &message)
                    }
                }
                Some(DecoderEvent::Ping(payload)) => {
                    self.delivery
                        .write(at, |out| ws::encode_frame(Opcode::Pong, payload, None, out));
                    Ok(ConnectionAction::Continue)
                }
                // Like all bytes of the client, it shows that the client is there.
                Some(DecoderEvent::Pong(_)) => Ok(ConnectionAction::Continue),
                Some(DecoderEvent::Close { code, .. }) => {
                    // RFC 6455 section 5.5.1: the answer repeats the code.
                    let close = RelayClose {
                        code: code.unwrap_or(ws::close_codes::NORMAL),
                        reason: "".into(),
                        message: None,
                    };
                    Err(CloseReason::without_code("normal").with_relay(close))
                }
            };
            match result {
                Ok(ConnectionAction::Continue) => {}
                other => return (consumed, other),
            }
        }
    }

    fn relay_protocol_error(&self, error: ws::Error) -> CloseReason {
        self.metrics().inc(Metric::ProtocolErrors);
        let close = RelayClose {
            code: error.code,
            reason: error.detail.into(),
            message: None,
        };
        CloseReason::without_code("protocol_error").with_relay(close)
    }

    fn max_relay_message_bytes(&mut self, at: ConnectionIx) -> usize {
        let relay = self.delivery.relay_peer(at);
        relay.map_or(0, |relay| {
            relay.endpoint.limits().max_message_bytes as usize
        })
    }

    /// Charges a decompressed message to the rate of its client, whose compressed bytes hardly count.
    fn charge_inflated(&mut self, at: ConnectionIx, bytes: usize) {
        let now_ms = self.now_ms();
        let extra = self.delivery.connections[at].extra.as_mut();
        if let Some(rate) = extra.and_then(|extra| extra.rate.as_mut()) {
            rate.charge_bytes(bytes, now_ms);
        }
    }

    fn relay_message(
        &mut self,
        at: ConnectionIx,
        input: &mut RelayInput,
        kind: RelayPayloadKind,
        payload: &[u8],
    ) -> Result<ConnectionAction, CloseReason> {
        self.metrics().inc(Metric::RelayReceived);
        let now_ms = self.now_ms();
        let connection = &mut self.delivery.connections[at];
        let session = connection.session;
        if let Some(rate) = connection
            .extra
            .as_mut()
            .and_then(|extra| extra.rate.as_mut())
        {
            rate.count_message();
        }
        let Some(relay) = &mut connection.relay else {
            return Ok(ConnectionAction::Close);
        };
        relay.traffic.messages_in += 1;
        relay.traffic.bytes_in += payload.len() as u64;
        self.delivery.sessions[session].messages_received += 1;
        let mut replies = Vec::new();
        let client = &mut input.client;
        let verdict = client.received(kind, payload, now_ms, &mut replies);
        for reply in &replies {
            self.delivery.write_relay_text(at, reply);
        }
        let pause_ms = client.take_pause_ms();
        let action = match verdict {
            RelayVerdict::Consume => self.action_after_publish(at),
            RelayVerdict::Close(close) => {
                return Err(CloseReason::without_code("protocol_error").with_relay(close));
            }
            RelayVerdict::Publish => {
                let properties = match kind {
                    RelayPayloadKind::Text => &TEXT_PROPERTIES,
                    RelayPayloadKind::Binary => &BINARY_PROPERTIES,
                };
                let view = MessageView {
                    topic: input.endpoint.topic(),
                    properties: Properties::from_validated(properties),
                    payload,
                    shared_payload: None,
                    qos: QoS::AtMostOnce,
                    retain: false,
                    received_ms: now_ms,
                    expires_ms: NEVER_MS,
                    from_client_id: "",
                    from_username: "",
                    is_derived: false,
                    number: self.delivery.next_message_number(),
                };
                self.derived_messages.begin_publisher();
                self.publish_from(&view, Some(session), &MessageOrigin::default());
                self.wait_for_derived(at);
                self.action_after_relay_message(at)
            }
        };
        Ok(match action {
            ConnectionAction::Continue if pause_ms > 0 => self.pause(at, pause_ms),
            action => action,
        })
    }

    /// Like [`Self::action_after_publish`]. What waits for slow receivers pauses the clients of relay endpoints only.
    fn action_after_relay_message(&mut self, at: ConnectionIx) -> ConnectionAction {
        let waiting = self.delivery.relay_memory.bytes();
        if waiting > self.limits.max_relay_backlog_bytes_per_shard as usize {
            return self.pause(at, 1);
        }
        self.action_after_publish(at)
    }

    /// The timer of a relay connection: closes one that is gone, pings all others. Returns when the next check is due.
    pub(super) fn check_relay(&mut self, at: ConnectionIx) -> Option<u64> {
        let now_ms = self.now_ms();
        let connection = &mut self.delivery.connections[at];
        let is_paused = connection.deadlines.last_seen_ms() > now_ms;
        let relay = connection.relay.as_deref_mut()?;
        let interval_ms = u64::from(relay.endpoint.limits().ping_interval_s) * 1000;
        if is_paused {
            // Its pongs are not read either.
            relay.forget_unanswered_pings();
        }
        if relay.unanswered_pings >= MAX_UNANSWERED_PINGS {
            self.metrics().inc(Metric::KeepAliveTimeouts);
            let close = RelayClose {
                code: ws::close_codes::POLICY_VIOLATION,
                reason: "no pong".into(),
                message: None,
            };
            let why = CloseReason::without_code("keep_alive_timeout").with_relay(close);
            self.close(at, why);
            return None;
        }
        relay.unanswered_pings += 1;
        self.delivery
            .write(at, |out| ws::encode_frame(Opcode::Ping, b"", None, out));
        Some(now_ms + interval_ms)
    }

    /// Writes the last frames of a relay connection that is closing.
    pub(super) fn write_relay_close(&mut self, at: ConnectionIx, closing: &CloseReason) {
        if let Some(relay) = self.delivery.relay_peer(at)
            && std::mem::replace(&mut relay.is_close_sent, true)
        {
            return;
        }
        let now_ms = self.now_ms();
        let input = (self.delivery.relay_peer(at)).and_then(|relay| relay.input.as_ref());
        let close = match (&closing.relay, input) {
            (Some(close), _) => (**close).clone(),
            (None, Some(input)) if closing.reason == PANIC => input.client.internal_error(now_ms),
            (None, _) => RelayClose {
                code: match closing.reason {
                    "server_shutting_down" | REBALANCING => ws::close_codes::GOING_AWAY,
                    PANIC => ws::close_codes::INTERNAL_ERROR,
                    _ => ws::close_codes::POLICY_VIOLATION,
                },
                reason: closing.reason.into(),
                message: None,
            },
        };
        if let Some(text) = &close.message {
            self.delivery.write_relay_text(at, text);
        }
        self.delivery.write(at, |out| {
            ws::encode_close(Some(close.code), &close.reason, None, out);
        });
    }

    /// The end of a relay connection: its session ends with it.
    pub(super) fn end_relay(
        &mut self,
        at: ConnectionIx,
        session: SessionIx,
        closing: &CloseReason,
    ) {
        self.metrics().sub(Metric::RelayConnections, 1);
        self.delivery.clear_relay_backlog(at);
        if let Some(relay) = self.delivery.relay_peer(at)
            && let Some(input) = &mut relay.input
        {
            input.client.closed(closing.reason, relay.traffic);
        }
        self.delivery.sessions[session].connection = None;
        self.end_session(session);
    }

    /// Runs on the shard for a [`RelayConnection`].
    pub(crate) fn send_relay_text(&mut self, at: ConnectionIx, serial: u32, text: String) {
        if self.is_open_relay(at, serial) {
            self.delivery.send_service_text(at, text);
        }
    }

    /// Runs on the shard for a [`RelayConnection`].
    pub(crate) fn close_relay(&mut self, at: ConnectionIx, serial: u32, close: RelayClose) {
        if self.is_open_relay(at, serial) {
            let why = CloseReason::without_code("closed_by_server").with_relay(close);
            self.close(at, why);
            self.close_pending_connections();
        }
    }

    fn is_open_relay(&self, at: ConnectionIx, serial: u32) -> bool {
        self.delivery
            .connections
            .get(at)
            .is_some_and(|it| it.serial == serial && it.is_relay())
    }

    /// Called for each message on a topic of a relay endpoint; false if it may not be published.
    pub(super) fn admit_relay_message(
        &mut self,
        view: &MessageView<'_>,
        origin: Option<SessionIx>,
    ) -> bool {
        if view.retain {
            return false;
        }
        let is_relay = origin.is_some_and(|at| self.delivery.sessions[at].is_relay);
        if !is_relay && let Some(service) = &self.node.relay {
            let named = with_publisher(&self.delivery.sessions, origin, view);
            service.published(&view.topic[RELAY_TOPIC_PREFIX.len()..], &named);
        }
        true
    }
}
