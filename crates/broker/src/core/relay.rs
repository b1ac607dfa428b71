//! Connections of relay endpoints: WebSocket messages in, publications to the endpoint's topic out, and back. See
//! [`hooks::relay`].
//!
//! Such a connection has a session without expiry and one QoS 0 subscription with "no local". Its bytes are WebSocket
//! frames: no layer below adds or removes framing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use hooks::{DropReason, Interest, MessageOrigin, MessageView, NEVER_MS};
use mqtt::{Properties, QoS, SubscriptionOptions};
use ws::{Decoder, DecoderEvent, DecoderOptions, FrameHeader, Opcode, PermessageDeflate, Role};

use super::connection::{ClientRateLimiter, CloseReason, ConnectionPhase, PANIC};
use super::delivery::{Delivery, hook_client, shared_dispatch_message, with_publisher};
use super::directory::SessionClaim;
use super::dispatch::Dispatch;
use super::outbox::{PUMP_HIGH_BYTES, SHARE_FROM_BYTES};
use super::pending_suback::PendingSubAck;
use super::relay_peer::{RelayFrames, RelayInput, RelayPeer, opcode};
use super::session::Session;
use super::shard::{ConnectionAction, Shard};
use super::subscriber_list::Subscriber;
use super::tables::{ConnectionIx, SessionIx, TableIx as _};
use crate::metrics::Metric;
use hooks::relay::{
    RELAY_TOPIC_PREFIX, RelayAdmission, RelayClient, RelayClose, RelayConnection, RelayPayloadKind,
    RelayRequest, RelayTraffic, RelayVerdict, SlowReceiverPolicy, payload_kind,
};

/// Pings without an answer after which a connection is closed.
const MAX_UNANSWERED_PINGS: u8 = 2;
/// Payload format indicator 1: text. It marks the kind of the message for MQTT subscribers and other shards.
const TEXT_PROPERTIES: [u8; 2] = [0x01, 1];
/// Payload format indicator 0: binary.
const BINARY_PROPERTIES: [u8; 2] = [0x01, 0];

impl Delivery {
    fn relay_peer(&mut self, at: ConnectionIx) -> Option<&mut RelayPeer> {
        self.connections[at].relay.as_deref_mut()
    }

    /// Sends a message on the endpoint's topic to one of its connections.
    #[cold]
    #[inline(never)]
    pub(super) fn send_relay(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        at: ConnectionIx,
        subscriber: &Subscriber,
    ) {
        if !self.connections[at].is_relay() {
            return;
        }
        // Most messages have one receiver. Frames in memory of their own are worth their cost for the second one.
        let is_first = !std::mem::replace(&mut dispatch.has_relay_receiver, true);
        if !(is_first && self.write_relay_payload(dispatch, at)) {
            self.send_relay_frame(dispatch, at, subscriber.session);
        }
        self.metrics.inc(Metric::RelaySent);
        self.sessions[subscriber.session].messages_sent += 1;
        if self.interest.contains(Interest::DELIVER) {
            let view = with_publisher(&self.sessions, dispatch.origin, dispatch.view);
            let client = hook_client(&self.sessions[subscriber.session], &self.connections);
            self.hooks.delivered(&client, &view, 0);
        }
    }

    /// Writes the payload as a frame to the outbox of a connection, if that is all that has to be done.
    fn write_relay_payload(&mut self, dispatch: &Dispatch<'_>, at: ConnectionIx) -> bool {
        let view = dispatch.view;
        let connection = &mut self.connections[at];
        let Some(relay) = connection.relay.as_deref_mut() else {
            return false;
        };
        let max_len = ws::MAX_HEADER_BYTES + view.payload.len();
        if max_len >= SHARE_FROM_BYTES
            || relay.compression.is_some()
            || !relay.endpoint.is_direct()
            || !relay.has_room(&connection.outbox, max_len)
        {
            return false;
        }
        // The decoder of a relay connection has validated its texts.
        let is_validated = (dispatch.origin).is_some_and(|at| self.sessions[at].is_relay);
        let kind = match is_validated {
            true if view.properties.as_bytes() == TEXT_PROPERTIES => RelayPayloadKind::Text,
            true => RelayPayloadKind::Binary,
            false => payload_kind(view),
        };
        let header = FrameHeader::new(opcode(kind), view.payload.len(), None);
        let header = header.as_bytes();
        relay.traffic.messages_out += 1;
        relay.traffic.bytes_out += view.payload.len() as u64;
        connection.outbox.append_with(&mut self.pool, |out| {
            out.reserve(header.len() + view.payload.len());
            out.extend_from_slice(header);
            out.extend_from_slice(view.payload);
        });
        self.buffered_bytes += header.len() + view.payload.len();
        self.account_outbox_growth(at);
        true
    }

    /// Sends the frame that all receivers of this shard share.
    fn send_relay_frame(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        at: ConnectionIx,
        session: SessionIx,
    ) {
        let connection = &mut self.connections[at];
        let Some(relay) = connection.relay.as_deref_mut() else {
            return;
        };
        if dispatch.relay_frames.is_none() {
            let scratch = dispatch.take_scratch();
            let frames = RelayFrames::encode(&*relay.endpoint, dispatch.view, scratch);
            dispatch.relay_frames = Some(frames);
        }
        let Some(frames) = &mut dispatch.relay_frames else {
            return;
        };
        let frame = frames.frame_for(relay.compression, &mut self.deflater);
        let len = frame.as_bytes().len();
        relay.traffic.messages_out += 1;
        relay.traffic.bytes_out += frame.payload_len();
        if !relay.has_room(&connection.outbox, len) {
            self.queue_for_slow_receiver(dispatch, at, session);
        } else if len < SHARE_FROM_BYTES {
            self.append_encoded(at, frame.as_bytes());
        } else {
            connection
                .outbox
                .append_frame(frame.shared(&mut self.relay_memory));
            self.account_outbox_growth(at);
        }
    }

    /// Adds the encoded frame to the backlog of a connection.
    fn queue_for_slow_receiver(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        at: ConnectionIx,
        session: SessionIx,
    ) {
        let observes_drops = self.interest.contains(Interest::DROP);
        let message = observes_drops.then(|| shared_dispatch_message(dispatch, &self.sessions));
        let connection = &mut self.connections[at];
        connection.wants_pump = true;
        let memory = &mut self.relay_memory;
        let (Some(relay), Some(frames)) = (&mut connection.relay, &mut dispatch.relay_frames)
        else {
            return;
        };
        let frame = frames.frame_for(relay.compression, &mut self.deflater);
        let frame = frame.waiting(message, memory);
        let limits = relay.endpoint.limits();
        let backlog = relay.backlog(memory);
        backlog.push_frame(frame, memory);
        let own_bytes = limits.max_backlog_bytes as usize;
        let all_bytes = self.limits.max_relay_backlog_bytes_per_shard as usize;
        let limit_bytes = backlog.limit_bytes(own_bytes, all_bytes, memory);
        let dropped = self.drop_oldest_frames(at, session, limit_bytes);
        if dropped > 0 && limits.slow_receiver == SlowReceiverPolicy::Disconnect {
            let close = RelayClose {
                code: ws::close_codes::TRY_AGAIN_LATER,
                reason: "too many messages wait for this client".into(),
                message: None,
            };
            let why = CloseReason::without_code("slow_receiver");
            self.pending_closes.push((at, why.with_relay(close)));
        }
    }

    /// Drops what exceeds the limit of a backlog, and returns the number of messages.
    fn drop_oldest_frames(
        &mut self,
        at: ConnectionIx,
        session: SessionIx,
        limit_bytes: usize,
    ) -> u64 {
        let mut dropped = 0;
        while let Some(relay) = self.connections[at].relay.as_deref_mut()
            && let Some(backlog) = &mut relay.backlog
            && let Some(oldest) = backlog.pop_excess(limit_bytes)
        {
            dropped += 1;
            backlog.dropped += 1;
            relay.uncount_sent(&oldest.bytes);
            let message = oldest.message.clone();
            self.relay_memory.release(oldest);
            // Hooks that observe drops only since then do not learn which message it was.
            let unknown = MessageView::unknown();
            let view = message.as_ref().map_or(unknown, |message| message.view());
            self.record_drop(Some(session), &view, DropReason::QueueFull);
        }
        if dropped > 0
            && let Some(relay) = self.relay_peer(at)
        {
            relay.endpoint.record_dropped(dropped);
        }
        dropped
    }

    /// Continues with the backlog of a receiver whose socket has drained.
    pub(super) fn pump_relay(&mut self, at: ConnectionIx) {
        loop {
            let connection = &mut self.connections[at];
            let is_full = connection.outbox.len() >= PUMP_HIGH_BYTES;
            let backlog =
                (connection.relay.as_deref_mut()).and_then(|it| it.backlog.as_deref_mut());
            let Some(backlog) = backlog else {
                connection.wants_pump = false;
                return;
            };
            if backlog.is_empty() {
                connection.wants_pump = false;
                self.end_relay_backlog(at);
                return;
            }
            if is_full {
                return;
            }
            if let Some(text) = backlog.pop_text(&mut self.relay_memory) {
                self.write_relay_text(at, &text);
            } else if let Some(frame) = backlog.pop_frame() {
                if frame.bytes.len() < SHARE_FROM_BYTES {
                    self.write(at, |out| out.extend_from_slice(&frame.bytes));
                } else {
                    connection.outbox.append_frame(frame.bytes.clone());
                    self.mark_socket_dirty(at);
                }
                self.relay_memory.release(frame);
            }
        }
    }

    /// The receiver has caught up.
    fn end_relay_backlog(&mut self, at: ConnectionIx) {
        let Some(relay) = self.connections[at].relay.as_deref_mut() else {
            return;
        };
        let Some(mut backlog) = relay.backlog.take() else {
            return;
        };
        backlog.close(&mut self.relay_memory, |_| ());
        let client = relay.input.as_mut().map(|input| &mut input.client);
        let notice = match client {
            Some(client) if backlog.dropped > 0 => client.caught_up(backlog.dropped, self.now_ms),
            _ => None,
        };
        if let Some(text) = notice {
            self.write_relay_text(at, &text);
        }
    }

    fn write_relay_text(&mut self, at: ConnectionIx, text: &str) {
        self.write(at, |out| {
            ws::encode_frame(Opcode::Text, text.as_bytes(), None, out);
        });
    }

    /// Sends a text of the service to a connection. It does not wait for messages; if too much waits for the socket, it is
    /// sent before all messages that are not written yet.
    fn send_service_text(&mut self, at: ConnectionIx, text: String) {
        let max_bytes = self.limits.max_outbox_bytes as usize;
        let connection = &mut self.connections[at];
        let Some(relay) = connection.relay.as_deref_mut() else {
            return;
        };
        let waiting = connection.outbox.len();
        let has_room = waiting == 0 || waiting + text.len() <= max_bytes;
        if has_room && !(relay.backlog.as_ref()).is_some_and(|backlog| backlog.has_texts()) {
            self.write_relay_text(at, &text);
            return;
        }
        connection.wants_pump = true;
        let memory = &mut self.relay_memory;
        let backlog = relay.backlog(memory);
        if !backlog.push_text(text.into(), max_bytes, memory) {
            backlog.dropped += 1;
            relay.endpoint.record_dropped(1);
        }
    }

    /// Drops the backlog of a relay connection that ends.
    pub(super) fn clear_relay_backlog(&mut self, at: ConnectionIx) {
        if let Some(relay) = self.connections[at].relay.as_deref_mut()
            && let Some(mut backlog) = relay.backlog.take()
        {
            backlog.close(&mut self.relay_memory, |frame| {
                relay.uncount_sent(&frame.bytes)
            });
        }
    }
}

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

    /// Processes the frames at the front of `data` and returns the number of bytes consumed. Not part of the caller, which
    /// handles MQTT packets.
    #[inline(never)]
    pub(super) fn process_relay(
        &mut self,
        at: ConnectionIx,
        data: &[u8],
    ) -> (usize, ConnectionAction) {
        let input = self.delivery.relay_peer(at).and_then(|it| it.input.take());
        let Some(mut input) = input else {
            return (data.len(), ConnectionAction::Close);
        };
        // The decoder removes the mask in place.
        let mut buffer = std::mem::take(&mut self.relay_buffer);
        buffer.clear();
        buffer.extend_from_slice(data);
        let was_partial = input.partial_bytes() > 0;
        // After a panic, the caller closes the connection, which has to tell the client and the service.
        let processed = catch_unwind(AssertUnwindSafe(|| {
            self.process_frames(at, &mut input, &mut buffer)
        }));
        input.client.finish_input();
        self.relay_buffer = buffer;
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
                    "server_shutting_down" => ws::close_codes::GOING_AWAY,
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
