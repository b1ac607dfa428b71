//! Messages to connections of relay endpoints: frames, and backlogs of slow receivers.

use hooks::relay::{RelayClose, RelayPayloadKind, SlowReceiverPolicy, payload_kind};
use hooks::{DropReason, Interest, MessageView};
use ws::{FrameHeader, Opcode};

use super::connection::CloseReason;
use super::delivery::{Delivery, hook_client, shared_dispatch_message, with_publisher};
use super::dispatch::Dispatch;
use super::outbox::{PUMP_HIGH_BYTES, SHARE_FROM_BYTES};
use super::relay::TEXT_PROPERTIES;
use super::relay_peer::{RelayFrames, RelayPeer, opcode};
use super::subscriber_list::Subscriber;
use super::tables::{ConnectionIx, SessionIx};
use crate::metrics::Metric;

impl Delivery {
    pub(super) fn relay_peer(&mut self, at: ConnectionIx) -> Option<&mut RelayPeer> {
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

    pub(super) fn write_relay_text(&mut self, at: ConnectionIx, text: &str) {
        self.write(at, |out| {
            ws::encode_frame(Opcode::Text, text.as_bytes(), None, out);
        });
    }

    /// Sends a text of the service to a connection. It does not wait for messages; if too much waits for the socket, it is
    /// sent before all messages that are not written yet.
    pub(super) fn send_service_text(&mut self, at: ConnectionIx, text: String) {
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
