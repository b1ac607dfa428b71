//! Bytes of connections: splits them into packets, and passes each to the file that handles it.

use hooks::Interest;
use mqtt::{Ack, Direction, Frame, Packet, PacketType, ReasonCode, Version};

use super::connection::{CloseReason, ConnectionPhase};
use super::delivery::hook_client;
use super::shard::{ConnectionAction, Shard};
use super::tables::ConnectionIx;
use crate::metrics::Metric;

/// Longest single pause of a client. If its rate requires a longer pause, it pauses again.
const MAX_PAUSE_MS: u64 = 10_000;

impl Shard {
    /// Handles bytes received from a connection. Masks of WebSocket frames of relay connections are removed in place.
    pub(crate) fn receive(&mut self, at: ConnectionIx, data: &mut [u8]) -> ConnectionAction {
        let connection = &mut self.delivery.connections[at];
        if connection.phase == ConnectionPhase::Closing {
            return ConnectionAction::Close;
        }
        if connection.is_held || connection.is_relay() {
            // Whether there is a packet in the bytes of a held connection is not known yet. Silence of a relay
            // connection is detected by pings.
            connection.deadlines.record_input(self.delivery.now_ms);
            connection.forget_unanswered_pings();
        }
        self.delivery
            .metrics
            .add(Metric::BytesReceived, data.len() as u64);
        if connection.phase == ConnectionPhase::Authenticating {
            return self.receive_during_authentication(at, data);
        }
        if connection.phase == ConnectionPhase::Tunnelled {
            let flow = self.receive_tunnelled(at, data);
            return self.finish_input(at, data.len(), flow);
        }
        if connection.is_held {
            connection.partial_packets.extend_from_slice(data);
            return match self.count_partial(at) {
                ConnectionAction::Continue => ConnectionAction::AwaitResume,
                close => close,
            };
        }
        if connection.partial_packets.is_empty() {
            let (consumed, flow) = self.process(at, data);
            self.record_packets(at, consumed);
            self.save_partial(at, &data[consumed..], flow);
            self.finish_input(at, data.len(), flow)
        } else {
            connection.partial_packets.extend_from_slice(data);
            let taken = std::mem::take(&mut connection.partial_packets);
            self.process_buffer(at, taken, data.len())
        }
    }

    /// Continues with the input that a pause, an authentication or a move has held back.
    pub(crate) fn resume(&mut self, at: ConnectionIx) -> ConnectionAction {
        let connection = &mut self.delivery.connections[at];
        match connection.phase {
            ConnectionPhase::Closing => return ConnectionAction::Close,
            ConnectionPhase::Authenticating => return ConnectionAction::AwaitResume,
            ConnectionPhase::Tunnelled => return self.resume_tunnelled(at),
            ConnectionPhase::Connected if connection.is_held => {
                return ConnectionAction::AwaitResume;
            }
            ConnectionPhase::AwaitConnect | ConnectionPhase::Connected => {}
        }
        if connection.phase == ConnectionPhase::Connected {
            connection.deadlines.record_input(self.delivery.now_ms);
            connection.forget_unanswered_pings();
        }
        let taken = std::mem::take(&mut connection.partial_packets);
        self.process_buffer(at, taken, 0)
    }

    fn process_buffer(
        &mut self,
        at: ConnectionIx,
        mut buffer: Vec<u8>,
        fresh: usize,
    ) -> ConnectionAction {
        let (consumed, flow) = self.process(at, &mut buffer);
        self.record_packets(at, consumed);
        if consumed == buffer.len() || flow == ConnectionAction::Close {
            self.delivery.pool.put_back(buffer);
        } else {
            self.track_partial_deadline(at, flow == ConnectionAction::Continue, consumed > 0);
            buffer.drain(..consumed);
            let connection = &mut self.delivery.connections[at];
            // Packets added meanwhile (a packet to be examined again) come first.
            if !connection.partial_packets.is_empty() {
                connection.partial_packets.extend_from_slice(&buffer);
            } else {
                connection.partial_packets = buffer;
            }
        }
        self.finish_input(at, fresh, flow)
    }

    /// Records that packets of a connected client have arrived, if any bytes were consumed. Until CONNECT the time stays
    /// that of accept, so that nothing extends the time allowed for CONNECT.
    #[inline]
    fn record_packets(&mut self, at: ConnectionIx, consumed: usize) {
        let connection = &mut self.delivery.connections[at];
        if consumed > 0 && connection.phase == ConnectionPhase::Connected {
            connection.deadlines.record_input(self.delivery.now_ms);
        }
    }

    fn save_partial(&mut self, at: ConnectionIx, rest: &[u8], flow: ConnectionAction) {
        if rest.is_empty() || flow == ConnectionAction::Close {
            return;
        }
        let connection = &mut self.delivery.connections[at];
        if connection.partial_packets.capacity() == 0 {
            connection.partial_packets = self.delivery.pool.take();
        }
        connection.partial_packets.extend_from_slice(rest);
        self.track_partial_deadline(at, flow == ConnectionAction::Continue, true);
    }

    /// Processes whole packets at the front of `data` and returns the number of bytes consumed.
    pub(super) fn process(
        &mut self,
        at: ConnectionIx,
        data: &mut [u8],
    ) -> (usize, ConnectionAction) {
        let mut consumed = 0;
        let connection = &self.delivery.connections[at];
        if connection.is_relay() {
            return self.process_relay(at, data);
        }
        let data = &*data;
        let mut max = connection.max_packet_in;
        if connection.phase == ConnectionPhase::AwaitConnect {
            if let Some(closing) = self.check_first_bytes(at, data) {
                self.close_on_error(at, closing, data);
                return (data.len(), ConnectionAction::Close);
            }
            max = max.min(self.limits.max_connect_bytes);
        }
        loop {
            let frame = match mqtt::split_frame(&data[consumed..], max) {
                Ok(Some(frame)) => frame,
                Ok(None) if self.is_not_connect(at, &data[consumed..]) => {
                    // The complete packet would be rejected, too.
                    let closing = CloseReason::without_code("protocol_error")
                        .with_detail("the first packet was not CONNECT [MQTT-3.1.0-1]");
                    self.close_on_error(at, closing, data);
                    return (data.len(), ConnectionAction::Close);
                }
                Ok(None) => return (consumed, ConnectionAction::Continue),
                Err(error) => {
                    let closing = self.close_reason_for(at, error);
                    self.close_on_error(at, closing, &data[consumed..]);
                    return (data.len(), ConnectionAction::Close);
                }
            };
            let len = frame.len;
            self.delivery.metrics.inc(Metric::PacketsReceived);
            let result = match self.delivery.connections[at].phase {
                ConnectionPhase::Connected => self.handle_packet(at, frame),
                ConnectionPhase::AwaitConnect => {
                    let result =
                        self.handle_first_packet(at, frame, &data[consumed..consumed + len]);
                    max = self.delivery.connections[at].max_packet_in;
                    result
                }
                ConnectionPhase::Authenticating
                | ConnectionPhase::Tunnelled
                | ConnectionPhase::Closing => {
                    return (consumed, ConnectionAction::AwaitResume);
                }
            };
            match result {
                Ok(ConnectionAction::Continue) => consumed += len,
                // A pause takes effect after the packet.
                Ok(
                    flow @ (ConnectionAction::Pause(_)
                    | ConnectionAction::AwaitResume
                    | ConnectionAction::HandOver(_)
                    | ConnectionAction::Close),
                ) => {
                    return (consumed + len, flow);
                }
                Err(closing) => {
                    self.close_on_error(at, closing, &data[consumed..]);
                    return (data.len(), ConnectionAction::Close);
                }
            }
        }
    }

    fn is_not_connect(&self, at: ConnectionIx, data: &[u8]) -> bool {
        self.delivery.connections[at].phase == ConnectionPhase::AwaitConnect
            && data
                .first()
                .is_some_and(|first| first >> 4 != PacketType::Connect as u8)
    }

    /// Closes a connection because of an error in what its client sent.
    pub(super) fn close_on_error(&mut self, at: ConnectionIx, closing: CloseReason, packet: &[u8]) {
        if closing.reason == "protocol_error" {
            self.metrics().inc(Metric::ProtocolErrors);
        }
        if self.delivery.connections[at].phase == ConnectionPhase::AwaitConnect {
            self.reject_connect(at, closing, packet);
        } else {
            self.close(at, closing);
        }
    }

    /// Completes each call that may have changed other connections.
    pub(super) fn finish_input(
        &mut self,
        at: ConnectionIx,
        bytes: usize,
        flow: ConnectionAction,
    ) -> ConnectionAction {
        self.close_pending_connections();
        self.count_partial(at);
        if self.delivery.connections[at].phase == ConnectionPhase::Closing {
            return ConnectionAction::Close;
        }
        let now_ms = self.now_ms();
        let connection = &mut self.delivery.connections[at];
        let mut wait_ms = 0;
        if let Some(extra) = &mut connection.extra
            && let Some(rate) = &mut extra.rate
        {
            wait_ms = rate.charge_bytes(bytes, now_ms);
        }
        match flow {
            ConnectionAction::Continue if wait_ms > 0 => self.pause(at, wait_ms),
            ConnectionAction::Pause(ms) if wait_ms > ms => self.pause(at, wait_ms),
            flow => flow,
        }
    }

    /// Returns whether a publisher pauses, because the node is saturated or the publisher exceeds its own rate. Called
    /// after each PUBLISH.
    #[inline]
    pub(crate) fn action_after_publish(&mut self, at: ConnectionIx) -> ConnectionAction {
        let limit = self.limits.max_buffered_bytes_per_shard as usize;
        let crossing = self.limits.max_cross_shard_bytes as usize;
        if self.is_congested
            || self.delivery.buffered_bytes > limit
            || self.shard_queues.waiting_bytes > crossing
        {
            return self.pause(at, 1);
        }
        match self.delivery.connections[at].extra {
            // Nearly all publishers.
            None => ConnectionAction::Continue,
            Some(_) => self.action_after_limited_publish(at),
        }
    }

    #[inline(never)]
    fn action_after_limited_publish(&mut self, at: ConnectionIx) -> ConnectionAction {
        let now_ms = self.delivery.now_ms;
        if self.poll_publisher_wait(at) {
            return self.pause(at, 1);
        }
        let connection = &mut self.delivery.connections[at];
        if let Some(extra) = &mut connection.extra
            && let Some(rate) = &mut extra.rate
        {
            let wait_ms = rate.charge_bytes(0, now_ms);
            if wait_ms > 0 {
                return self.pause(at, wait_ms);
            }
        }
        ConnectionAction::Continue
    }

    /// Stops reading for a while; the keep-alive timer does not count that time against the client.
    #[cold]
    pub(super) fn pause(&mut self, at: ConnectionIx, wait_ms: u64) -> ConnectionAction {
        let wait_ms = wait_ms.min(MAX_PAUSE_MS);
        self.delivery.metrics.inc(Metric::PausedPublishers);
        let connection = &mut self.delivery.connections[at];
        let is_connected = connection.phase == ConnectionPhase::Connected;
        let now_ms = self.delivery.now_ms;
        (connection.deadlines).record_pause(now_ms, wait_ms, is_connected);
        ConnectionAction::Pause(wait_ms)
    }

    #[inline]
    fn handle_packet(
        &mut self,
        at: ConnectionIx,
        frame: Frame<'_>,
    ) -> Result<ConnectionAction, CloseReason> {
        let version = self.delivery.connections[at].version;
        frame.check_version(version)?;
        // The packets of each message are decoded without the checks for all other packets.
        match PacketType::from_first_byte(frame.first_byte) {
            Some(PacketType::Publish) => {
                return self.handle_publish(at, frame.first_byte, frame.body);
            }
            Some(
                kind @ (PacketType::PubAck
                | PacketType::PubRec
                | PacketType::PubRel
                | PacketType::PubComp),
            ) => {
                let ack = Ack::decode(kind, frame.body, version)?;
                self.handle_acknowledgement(at, kind, &ack);
                return Ok(ConnectionAction::Continue);
            }
            _ => {}
        }
        match Packet::decode(frame, version, Direction::FromClient)? {
            Packet::Subscribe(subscribe) => return self.handle_subscribe(at, &subscribe),
            Packet::Unsubscribe(unsubscribe) => self.handle_unsubscribe(at, &unsubscribe)?,
            Packet::PingReq => self.handle_ping(at),
            Packet::Disconnect(disconnect) => return self.handle_disconnect(at, &disconnect),
            Packet::Auth(auth) => self.handle_reauthentication(at, &auth)?,
            Packet::Connect(_) => {
                // A second CONNECT is a protocol error [MQTT-3.1.0-2].
                return Err(
                    CloseReason::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                        .with_detail("CONNECT was sent a second time"),
                );
            }
            _ => {
                return Err(
                    CloseReason::new(ReasonCode::PROTOCOL_ERROR, "protocol_error")
                        .with_detail("only servers may send this packet"),
                );
            }
        }
        Ok(ConnectionAction::Continue)
    }

    fn handle_ping(&mut self, at: ConnectionIx) {
        self.delivery
            .write(at, |out| Packet::PingResp.encode(Version::V311, out));
        if self.delivery.interest.contains(Interest::PING) {
            let session = &self.delivery.sessions[self.session_of_connection(at)];
            let client = hook_client(session, &self.delivery.connections);
            self.delivery.hooks.ping(&client);
        }
    }
}
