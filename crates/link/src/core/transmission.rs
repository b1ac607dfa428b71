//! Frames to the peer: what is due, and in which order.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::core::carrier::Carrier;
use crate::core::incoming_stream::StreamAnswer;
use crate::core::link_core::{LinkCore, LinkEvent, Shutdown};
use crate::core::scheduler::{Flow, FlowKind};
use crate::error_code::{ErrorCode, ProtocolError};
use crate::message::MessageId;
use crate::priority::Priority;
use crate::wire::control::{
    Accept, Cancel, GOAWAY_FLAG_FINAL, GoAway, StreamKind, WINDOW_FLAG_DATA, encode_ack,
    encode_window,
};
use crate::wire::handshake::Limits;
use crate::wire::header::FrameType;
use crate::wire::writer::FrameWriter;

/// Fields of DATA beside the content.
const DATA_OVERHEAD_BYTES: usize = 8;

impl LinkCore {
    /// Appends the next bytes for the carrier to `out`: what is due, and then messages, or at most one chunk of a stream.
    /// Returns their number; 0: nothing can be sent now. Call it again when they are written.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<Bytes>) -> usize {
        let Some(mut carrier) = self.carrier.take() else {
            return 0;
        };
        let mut writer = std::mem::take(&mut carrier.control);
        if let Some(peer) = carrier.peer {
            let is_ack_due = carrier.ack_deadline.is_some_and(|deadline| deadline <= now);
            self.write_shutdown(&mut carrier, &mut writer);
            self.write_answers(&mut carrier, &mut writer, is_ack_due);
            let content = self.write_content(&mut carrier, peer, &mut writer, now);
            self.statistics.transmitted_bytes += content as u64;
            if content > 0 && !is_ack_due {
                self.write_answers(&mut carrier, &mut writer, true);
            }
        }
        let len = writer.len();
        writer.take(out);
        carrier.control = writer;
        if len > 0 {
            carrier.transmission_start.get_or_insert(now);
        }
        self.carrier = Some(carrier);
        len
    }

    /// The carrier has taken bytes of [`poll_transmit`](Self::poll_transmit).
    pub fn transmitted(&mut self, bytes: usize, now: Instant) {
        if let Some(carrier) = &mut self.carrier
            && let Some(start) = carrier.transmission_start.take()
        {
            self.chunk_size.record_transmission(bytes, start, now);
        }
    }

    fn write_shutdown(&mut self, carrier: &mut Carrier, writer: &mut FrameWriter) {
        if self.shutdown == Shutdown::No || carrier.is_final_sent {
            return;
        }
        let is_final = self.peer_shutdown != Shutdown::No && self.is_idle();
        if is_final || !carrier.is_goaway_sent {
            let (code, text) = self.shutdown_reason.clone();
            let mut payload = Vec::new();
            GoAway { code, text }.encode(&mut payload);
            let flags = if is_final { GOAWAY_FLAG_FINAL } else { 0 };
            writer.push(FrameType::GoAway, flags, 0, &payload, Bytes::new());
            carrier.is_goaway_sent = true;
            carrier.is_final_sent = is_final;
        }
        if is_final {
            self.shutdown = Shutdown::Closed;
            self.report_closed();
        }
    }

    /// Both ends have said that they have finished.
    pub(crate) fn report_closed(&mut self) {
        if self.is_closed() {
            self.events.push_back(LinkEvent::Closed);
        }
    }

    /// Writes answers to streams, credit, and with `with_acks` acknowledgements.
    fn write_answers(&mut self, carrier: &mut Carrier, writer: &mut FrameWriter, with_acks: bool) {
        self.write_stream_answers(writer, with_acks);
        self.write_windows(carrier, writer);
        if !with_acks {
            return;
        }
        self.write_lane_acknowledgements(writer);
        carrier.unannounced_bytes = 0;
        // Some streams have more ranges than fit into one frame.
        let has_more = !self.changed_in.is_empty();
        carrier.ack_deadline = carrier.ack_deadline.filter(|_| has_more);
    }

    fn write_stream_answers(&mut self, writer: &mut FrameWriter, with_acks: bool) {
        let streams = &mut self.streams_in;
        self.changed_in.retain(|id| {
            let Some(stream) = streams.get_mut(id) else {
                return false;
            };
            let Some(wire_id) = stream.wire_id else {
                return false;
            };
            let flags = id.priority as u8;
            let mut payload = Vec::new();
            match &stream.answer {
                StreamAnswer::Undecided => return false,
                StreamAnswer::Rejected(failure) => {
                    if !stream.is_answer_sent {
                        let cancel = Cancel {
                            number: id.number,
                            code: failure.code,
                            text: failure.text.clone(),
                        };
                        cancel.encode(&mut payload);
                        writer.push(FrameType::Reject, flags, wire_id, &payload, Bytes::new());
                        stream.is_answer_sent = true;
                    }
                    return false;
                }
                StreamAnswer::Accepted => {}
            }
            if !stream.is_answer_sent {
                let accept = Accept {
                    credit: stream.granted(),
                    received: stream.received().clone(),
                };
                accept.encode(&mut payload);
                writer.push(FrameType::Accept, flags, wire_id, &payload, Bytes::new());
                stream.is_answer_sent = true;
            }
            if stream.open.kind == StreamKind::Stream
                && let Some(credit) = stream.window_announcement()
            {
                payload.clear();
                encode_window(credit, &mut payload);
                writer.push(FrameType::Window, flags, wire_id, &payload, Bytes::new());
            }
            if with_acks && stream.has_acknowledgement() {
                payload.clear();
                encode_ack(&stream.take_acknowledgement(), &mut payload);
                writer.push(FrameType::Ack, flags, wire_id, &payload, Bytes::new());
            }
            stream.has_acknowledgement()
        });
    }

    fn write_windows(&self, carrier: &mut Carrier, writer: &mut FrameWriter) {
        let windows = [
            (0, &mut carrier.receive_messages),
            (WINDOW_FLAG_DATA, &mut carrier.receive_data),
        ];
        for (flags, credit) in windows {
            if let Some(total) = credit.announcement() {
                let mut payload = Vec::new();
                encode_window(total, &mut payload);
                writer.push(FrameType::Window, flags, 0, &payload, Bytes::new());
            }
        }
    }

    fn write_lane_acknowledgements(&mut self, writer: &mut FrameWriter) {
        for priority in Priority::ALL {
            let lane = &mut self.lanes_in[priority.index()];
            while lane.has_announcement() {
                let mut payload = Vec::new();
                encode_ack(&lane.take_announcement(), &mut payload);
                writer.push(FrameType::Ack, priority as u8, 0, &payload, Bytes::new());
            }
        }
    }

    /// Writes messages, or one chunk. Returns the bytes of their content.
    fn write_content(
        &mut self,
        carrier: &mut Carrier,
        peer: Limits,
        writer: &mut FrameWriter,
        now: Instant,
    ) -> usize {
        let mut content = 0;
        while let Some(id) = self.cancelled.pop_front() {
            self.send_stream_frame(id, carrier, peer, writer);
        }
        // More would keep urgent messages waiting, less would cost more system calls.
        let transmission_bytes = self.chunk_size.bytes();
        while writer.len() < transmission_bytes {
            let Some(flow) = self.choose_flow(carrier, peer) else {
                break;
            };
            let before = writer.len();
            let chunk_bytes = match flow.kind {
                FlowKind::Messages => {
                    let lane = &mut self.lanes_out[flow.priority.index()];
                    content += lane.send(&mut carrier.send_messages, writer) as usize;
                    0
                }
                FlowKind::LargeMessages | FlowKind::Streams => {
                    self.send_next_stream(flow, carrier, peer, writer)
                }
            };
            content += chunk_bytes;
            let written = writer.len() - before;
            self.scheduler.record(flow, written);
            if chunk_bytes > 0 {
                if carrier.backlog.record(chunk_bytes, now) {
                    carrier.write_probe(writer, now);
                }
                break;
            }
        }
        content
    }

    fn choose_flow(&mut self, carrier: &Carrier, peer: Limits) -> Option<Flow> {
        let Self {
            scheduler,
            lanes_out,
            large_messages,
            streams,
            streams_out,
            ..
        } = self;
        let is_slot_free = carrier.outgoing.len() < peer.max_streams as usize;
        let has_room = carrier.backlog.has_room();
        scheduler.choose(|flow| {
            let lane = flow.priority.index();
            match flow.kind {
                FlowKind::Messages => lanes_out[lane].is_ready(&carrier.send_messages),
                FlowKind::LargeMessages | FlowKind::Streams if !has_room => false,
                FlowKind::LargeMessages => large_messages[lane].front().is_some_and(|id| {
                    streams_out
                        .get(id)
                        .is_some_and(|stream| stream.is_ready(&carrier.send_messages, is_slot_free))
                }),
                FlowKind::Streams => streams[lane].iter().any(|id| {
                    streams_out
                        .get(id)
                        .is_some_and(|stream| stream.is_ready(&carrier.send_data, is_slot_free))
                }),
            }
        })
    }

    /// Writes a frame of the next large message, or of the next stream in turn.
    fn send_next_stream(
        &mut self,
        flow: Flow,
        carrier: &mut Carrier,
        peer: Limits,
        writer: &mut FrameWriter,
    ) -> usize {
        let lane = flow.priority.index();
        if flow.kind == FlowKind::LargeMessages {
            let Some(id) = self.large_messages[lane].front().copied() else {
                return 0;
            };
            let bytes = self.send_stream_frame(id, carrier, peer, writer);
            if self
                .streams_out
                .get(&id)
                .is_none_or(|stream| stream.is_sent())
            {
                self.large_messages[lane].pop_front();
            }
            return bytes;
        }
        let is_slot_free = carrier.outgoing.len() < peer.max_streams as usize;
        let first_message = self.first_unsent_message(lane);
        // A later message is only sent if nothing else can be.
        for is_any_message in [false, true] {
            for _ in 0..self.streams[lane].len() {
                let Some(id) = self.streams[lane].pop_front() else {
                    break;
                };
                self.streams[lane].push_back(id);
                let is_next = self.streams_out.get(&id).is_some_and(|stream| {
                    let is_in_order = !stream.is_message() || first_message == Some(id);
                    (is_in_order || is_any_message)
                        && stream.is_ready(&carrier.send_data, is_slot_free)
                });
                if is_next {
                    return self.send_stream_frame(id, carrier, peer, writer);
                }
            }
        }
        0
    }

    /// The message among the streams of a lane that was accepted first and has not been sent. Messages are sent one after the
    /// other: the receiver reads them so, and would have to keep parts of several.
    fn first_unsent_message(&self, lane: usize) -> Option<MessageId> {
        let unsent = self.streams[lane].iter().filter(|id| {
            let stream = self.streams_out.get(id);
            stream.is_some_and(|stream| stream.is_message() && !stream.is_sent())
        });
        unsent.min().copied()
    }

    fn send_stream_frame(
        &mut self,
        id: MessageId,
        carrier: &mut Carrier,
        peer: Limits,
        writer: &mut FrameWriter,
    ) -> usize {
        let chunk_bytes = self
            .chunk_size
            .bytes()
            .min(peer.max_frame_bytes as usize - DATA_OVERHEAD_BYTES);
        let Some(stream) = self.streams_out.get_mut(&id) else {
            return 0;
        };
        let wire_id = match stream.wire_id() {
            Some(wire_id) => wire_id,
            None if stream.failure().is_some() => 0,
            None => carrier.allocate_wire_id(id),
        };
        let credit = match stream.kind() {
            StreamKind::Message => &mut carrier.send_messages,
            StreamKind::Stream => &mut carrier.send_data,
        };
        stream.send(
            || wire_id,
            peer.stream_window_bytes,
            chunk_bytes,
            credit,
            writer,
        )
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let carrier = self.carrier.as_ref()?;
        let mut deadline = carrier.last_received + self.idle_timeout();
        if carrier.peer.is_some() {
            deadline = deadline.min(carrier.next_ping);
        }
        Some(
            carrier
                .ack_deadline
                .map_or(deadline, |ack| ack.min(deadline)),
        )
    }

    fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.config.limits.idle_timeout_ms.into())
    }

    /// Handles the passage of time. [`poll_transmit`](Self::poll_transmit) may have frames afterwards.
    ///
    /// # Errors
    /// If the peer has been silent for too long: the carrier must be closed.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), ProtocolError> {
        let idle_timeout = self.idle_timeout();
        let Some(carrier) = &mut self.carrier else {
            return Ok(());
        };
        if now >= carrier.last_received + idle_timeout {
            let error = ProtocolError {
                code: ErrorCode::TIMEOUT,
                detail: "nothing was received within the idle timeout",
            };
            self.report_violation(error);
            return Err(error);
        }
        if let Some(peer) = carrier.peer
            && now >= carrier.next_ping
        {
            carrier.last_nonce += 1;
            let payload = carrier.last_nonce.to_le_bytes();
            let control = &mut carrier.control;
            control.push(FrameType::Ping, 0, 0, &payload, Bytes::new());
            carrier.ping.get_or_insert((carrier.last_nonce, now));
            let longest = Duration::from_millis(u64::from(peer.idle_timeout_ms) / 3);
            carrier.next_ping = now + self.config.ping_interval.min(longest);
        }
        Ok(())
    }
}
