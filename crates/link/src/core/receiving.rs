//! Frames from the peer.

use std::time::Instant;

use bytes::{Buf as _, Bytes};

use crate::config::AckPolicy;
use crate::core::incoming_stream::{IncomingStream, StreamAnswer};
use crate::core::link_core::{IncomingStreamInfo, LinkCore, LinkEvent, Shutdown};
use crate::core::outgoing_stream::StreamError;
use crate::error_code::{ErrorCode, ProtocolError};
use crate::message::{MESSAGE_OVERHEAD_BYTES, MessageBatch, MessageId, Payload};
use crate::priority::Priority;
use crate::size_class::SizeClass;
use crate::wire::control::{
    Accept, Cancel, Done, GOAWAY_FLAG_CARRIER, GOAWAY_FLAG_FINAL, GoAway, MAX_NUMBER, Open,
    StreamKind, WINDOW_FLAG_DATA, decode_ack, decode_ping, decode_window,
};
use crate::wire::entries::take_entry;
use crate::wire::handshake::{Limits, Welcome};
use crate::wire::header::FrameType;
use crate::wire::reader::Frame;

/// Acknowledgements are sent without delay after this many bytes, so that the peer's queue stays short.
const ACK_AFTER_BYTES: u64 = 256 * 1024;
/// A message of several frames has at most this share of the message window: those of four priorities fit at a time.
const LARGE_MESSAGE_SHARE: u64 = 8;

/// The longest message of several frames that an end with these limits accepts.
pub(super) fn max_large_message_bytes(limits: &Limits) -> u64 {
    limits.message_window_bytes / LARGE_MESSAGE_SHARE
}

impl LinkCore {
    /// Handles a frame of the current carrier, except HELLO, which chooses the link.
    ///
    /// # Errors
    /// If the peer violates the protocol. GOAWAY is then ready to be transmitted, and the carrier must be closed.
    pub fn handle_frame(&mut self, frame: Frame, now: Instant) -> Result<(), ProtocolError> {
        self.try_handle_frame(frame, now)
            .inspect_err(|error| self.report_violation(*error))
    }

    /// Tells the peer why this end closes the carrier.
    pub fn report_violation(&mut self, error: ProtocolError) {
        let Some(carrier) = &mut self.carrier else {
            return;
        };
        let mut payload = Vec::new();
        let goaway = GoAway {
            code: error.code,
            text: error.detail.to_owned(),
        };
        goaway.encode(&mut payload);
        let control = &mut carrier.control;
        control.push(
            FrameType::GoAway,
            GOAWAY_FLAG_CARRIER,
            0,
            &payload,
            Bytes::new(),
        );
    }

    fn try_handle_frame(&mut self, frame: Frame, now: Instant) -> Result<(), ProtocolError> {
        let Some(carrier) = &mut self.carrier else {
            return Ok(());
        };
        carrier.last_received = now;
        let is_begun = carrier.peer.is_some();
        let priority = Priority::from_flags(frame.flags);
        match frame.frame_type {
            FrameType::Welcome => {
                return self.handle_welcome(&Welcome::decode(&frame.payload)?, now);
            }
            FrameType::GoAway => return self.receive_goaway(&frame),
            FrameType::Optional => return Ok(()),
            FrameType::Hello => return Err(ProtocolError::violation("a second HELLO")),
            _ if !is_begun => {
                return Err(ProtocolError::violation("a frame before WELCOME"));
            }
            FrameType::Messages => self.receive_messages(priority, frame.payload, now)?,
            FrameType::Open => {
                self.receive_open(priority, frame.stream, Open::decode(&frame.payload)?, now)?;
            }
            FrameType::Data => self.receive_data(frame.stream, frame.payload)?,
            FrameType::Done => {
                self.receive_done(frame.stream, Done::decode(&frame.payload)?, now)?;
            }
            FrameType::Cancel => {
                let cancel = Cancel::decode(&frame.payload)?;
                self.receive_cancel(priority, frame.stream, cancel, now)?;
            }
            FrameType::Accept => {
                let accept = Accept::decode(&frame.payload)?;
                if let Some(id) = self.outgoing_id(frame.stream)?
                    && let Some(stream) = self.streams_out.get_mut(&id)
                    && !stream.accept(accept.credit, &accept.received)
                {
                    let failure = StreamError {
                        code: ErrorCode::CONTENT_LOST,
                        text: "the receiver has lost content that it had acknowledged".to_owned(),
                    };
                    self.fail_outgoing(id, failure);
                }
            }
            FrameType::Reject => {
                let Cancel { code, text, .. } = Cancel::decode(&frame.payload)?;
                if let Some(id) = self.outgoing_id(frame.stream)? {
                    self.fail_outgoing(id, StreamError { code, text });
                }
            }
            FrameType::Ack => self.receive_ack(priority, frame.stream, &frame.payload)?,
            FrameType::Window => {
                let credit = decode_window(&frame.payload)?;
                self.receive_window(frame.stream, frame.flags, credit)?;
            }
            FrameType::Ping => {
                decode_ping(&frame.payload)?;
                let control = &mut carrier.control;
                // One answer is enough for a peer that asks faster than it reads.
                if control.len() < 4096 {
                    control.push(FrameType::Pong, 0, 0, &frame.payload, Bytes::new());
                }
            }
            FrameType::Pong => {
                let nonce = decode_ping(&frame.payload)?;
                carrier.backlog.answer(nonce, now);
                if let Some((_, sent)) = carrier.ping.take_if(|(pending, _)| *pending == nonce) {
                    let round_trip = now.saturating_duration_since(sent);
                    self.chunk_size.record_round_trip(round_trip);
                }
            }
        }
        Ok(())
    }

    fn receive_messages(
        &mut self,
        priority: Priority,
        payload: Bytes,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        const INVALID: ProtocolError =
            ProtocolError::violation("MESSAGES has a missing or invalid field");
        let mut rest = &payload[..];
        let first = disk::varint::take(&mut rest).ok_or(INVALID)?;
        if first == 0 || first > MAX_NUMBER {
            return Err(INVALID);
        }
        let entries = payload.slice_ref(rest);
        let EntriesMeasure {
            count,
            cost: total_cost,
            longest,
        } = measure_entries(&entries).ok_or(INVALID)?;
        let numbers = first..first + count;
        let lane = &mut self.lanes_in[priority.index()];
        lane.check_numbers(&numbers, self.config.limits.horizon)?;
        // Nothing fails after the first message is queued: what is queued occupies the window.
        if let Some(carrier) = &mut self.carrier {
            carrier.receive_messages.receive(total_cost)?;
        }
        let table = self.config.size_classes;
        let received = &mut self.statistics.received;
        let mut duplicate_cost = 0;
        // Usually numbers come without a gap, and the messages stay together.
        if lane.is_next(first) {
            if table.classify(longest) == SizeClass::Tiny {
                let bytes = total_cost - count * MESSAGE_OVERHEAD_BYTES;
                received.count(SizeClass::Tiny, count, bytes);
            } else {
                while let Some(message) = take_entry(&mut rest) {
                    received.count(table.classify(message.len()), 1, message.len() as u64);
                }
            }
            lane.record_received(numbers.clone());
            let id = MessageId {
                priority,
                number: first,
            };
            lane.queue
                .push_back(MessageBatch::new(id, count, entries, total_cost));
        } else {
            for number in numbers.clone() {
                let message = take_entry(&mut rest).ok_or(INVALID)?;
                let len = message.len() as u64;
                if lane.is_received(number) {
                    lane.repeat_acknowledgement(number);
                    self.statistics.duplicates += 1;
                    duplicate_cost += len + MESSAGE_OVERHEAD_BYTES;
                    continue;
                }
                received.count(table.classify(message.len()), 1, len);
                lane.record_received(number..number + 1);
                let id = MessageId { priority, number };
                let message = payload.slice_ref(message).into();
                lane.queue.push_back(MessageBatch::one(id, message));
            }
        }
        if self.config.ack_policy == AckPolicy::OnReceipt {
            lane.acknowledge(numbers);
        }
        self.occupied_message_bytes += total_cost - duplicate_cost;
        if let Some(carrier) = &mut self.carrier {
            carrier.receive_messages.release(duplicate_cost);
            carrier.unannounced_bytes += total_cost;
            let is_urgent = carrier.unannounced_bytes >= ACK_AFTER_BYTES;
            if is_urgent {
                carrier.ack_deadline = Some(now);
            }
            carrier.schedule_ack(now + self.config.ack_delay);
        }
        Ok(())
    }

    fn receive_open(
        &mut self,
        priority: Priority,
        wire_id: u32,
        open: Open,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let id = MessageId {
            priority,
            number: open.number,
        };
        let limits = self.config.limits;
        let lane = &mut self.lanes_in[priority.index()];
        let Some(carrier) = &mut self.carrier else {
            return Ok(());
        };
        if wire_id == 0 || carrier.incoming.contains_key(&wire_id) {
            return Err(ProtocolError::violation(
                "OPEN with the number of an open stream, or with 0",
            ));
        }
        // Streams that were complete before the interruption are open until the peer knows it.
        if carrier.incoming.len() >= 2 * limits.max_streams as usize {
            return Err(ProtocolError {
                code: ErrorCode::LIMIT_EXCEEDED,
                detail: "more streams than this end accepts",
            });
        }
        let known = self.streams_in.get(&id);
        if known.is_some_and(|stream| stream.open.kind != open.kind) {
            return Err(ProtocolError::violation(
                "OPEN changes the kind of a stream",
            ));
        }
        let is_known = known.is_some();
        if lane.is_received(id.number) {
            // It was complete before the interruption; data that is under way is ignored.
            lane.repeat_acknowledgement(id.number);
            self.statistics.duplicates += 1;
            carrier.incoming.insert(wire_id, (id, open.kind));
            self.schedule_ack(now);
            return Ok(());
        }
        lane.check_numbers(&(id.number..id.number + 1), limits.horizon)?;
        if !is_known && self.streams_in.len() >= limits.max_streams as usize {
            return Err(ProtocolError {
                code: ErrorCode::LIMIT_EXCEEDED,
                detail: "more streams than this end accepts",
            });
        }
        carrier.incoming.insert(wire_id, (id, open.kind));
        let (kind, size) = (open.kind, open.size);
        let is_too_large = kind == StreamKind::Message
            && size.is_none_or(|size| size > max_large_message_bytes(&limits));
        let info = IncomingStreamInfo {
            id,
            transfer_id: open.transfer_id,
            size,
            digest: open.digest,
            metadata: open.metadata.clone(),
        };
        let stream = self
            .streams_in
            .entry(id)
            .or_insert_with(|| IncomingStream::new(open.clone()));
        stream.begin_carrier(wire_id, open, limits.stream_window_bytes);
        self.changed_in.insert(id);
        if is_known {
            return Ok(());
        }
        if is_too_large {
            let text = format!(
                "a message of several frames has at most {} bytes here; send a stream",
                max_large_message_bytes(&limits)
            );
            stream.reject(StreamError {
                code: ErrorCode::TOO_LARGE,
                text,
            });
        } else if kind == StreamKind::Message {
            stream.accept(&Default::default());
        } else {
            self.statistics.received.count(SizeClass::Huge, 1, 0);
            self.events.push_back(LinkEvent::StreamOpened(info));
        }
        Ok(())
    }

    /// The stream of a frame.
    fn incoming_id(&self, wire_id: u32) -> Result<(MessageId, StreamKind), ProtocolError> {
        let carrier = self.carrier.as_ref();
        let id = carrier.and_then(|carrier| carrier.incoming.get(&wire_id));
        id.copied().ok_or(ProtocolError::violation(
            "a frame of a stream that is not open",
        ))
    }

    /// The stream of an answer; `None`: it has ended, which the peer did not know when it sent the frame.
    fn outgoing_id(&self, wire_id: u32) -> Result<Option<MessageId>, ProtocolError> {
        let Some(carrier) = &self.carrier else {
            return Ok(None);
        };
        if wire_id == 0 {
            return Err(ProtocolError::violation("an answer to stream 0"));
        }
        Ok(carrier.outgoing.get(&wire_id).copied())
    }

    fn receive_data(&mut self, wire_id: u32, mut payload: Bytes) -> Result<(), ProtocolError> {
        let (id, kind) = self.incoming_id(wire_id)?;
        let Some(carrier) = &mut self.carrier else {
            return Ok(());
        };
        if payload.len() < 8 {
            return Err(ProtocolError::violation("DATA has no offset"));
        }
        let offset = payload.get_u64_le();
        let len = payload.len() as u64;
        let (credit, occupied) = match kind {
            StreamKind::Message => (
                &mut carrier.receive_messages,
                &mut self.occupied_message_bytes,
            ),
            StreamKind::Stream => (&mut carrier.receive_data, &mut self.occupied_data_bytes),
        };
        // Nothing fails after content is buffered: it occupies the window.
        credit.receive(len)?;
        let new = match self.streams_in.get_mut(&id) {
            Some(stream) => stream.receive(offset, payload)?,
            // It was complete before the interruption.
            None => 0,
        };
        credit.release(len - new);
        *occupied += new;
        if kind == StreamKind::Stream {
            self.statistics.received.count(SizeClass::Huge, 0, new);
        }
        self.statistics.repeated_bytes += len - new;
        Ok(())
    }

    fn receive_done(
        &mut self,
        wire_id: u32,
        done: Done,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let (id, _) = self.incoming_id(wire_id)?;
        let Some(stream) = self.streams_in.get_mut(&id) else {
            return Ok(());
        };
        stream.receive_done(done)?;
        if stream.open.kind == StreamKind::Stream || stream.answer != StreamAnswer::Accepted {
            return Ok(());
        }
        let Some(pieces) = stream.take_message() else {
            return Ok(());
        };
        self.streams_in.remove(&id);
        let class = self.config.size_classes.classify(done.size as usize);
        self.statistics.received.count(class, 1, done.size);
        let lane = &mut self.lanes_in[id.priority.index()];
        lane.record_received(id.number..id.number + 1);
        let payload = Payload::from_pieces(pieces);
        lane.queue.push_back(MessageBatch::large(id, payload));
        if self.config.ack_policy == AckPolicy::OnReceipt {
            lane.acknowledge(id.number..id.number + 1);
        }
        if let Some(carrier) = &mut self.carrier {
            carrier.incoming.remove(&wire_id);
            carrier.ack_deadline = Some(now);
        }
        Ok(())
    }

    /// The peer ends a stream, or confirms that this end rejected it.
    fn receive_cancel(
        &mut self,
        priority: Priority,
        wire_id: u32,
        cancel: Cancel,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let id = MessageId {
            priority,
            number: cancel.number,
        };
        let horizon = self.config.limits.horizon;
        let lane = &mut self.lanes_in[priority.index()];
        if lane.is_received(id.number) {
            lane.repeat_acknowledgement(id.number);
        } else {
            lane.check_numbers(&(id.number..id.number + 1), horizon)?;
            let Cancel { code, text, .. } = cancel;
            self.cancel_incoming(id, StreamError { code, text });
            let lane = &mut self.lanes_in[priority.index()];
            lane.record_received(id.number..id.number + 1);
            lane.acknowledge(id.number..id.number + 1);
        }
        if let Some(carrier) = &mut self.carrier {
            carrier.incoming.remove(&wire_id);
        }
        self.schedule_ack(now);
        Ok(())
    }

    fn cancel_incoming(&mut self, id: MessageId, failure: StreamError) {
        let Some(stream) = self.streams_in.get_mut(&id) else {
            return;
        };
        let (kind, buffered) = (stream.open.kind, stream.buffered_bytes());
        let is_read =
            kind == StreamKind::Stream && !matches!(stream.answer, StreamAnswer::Rejected(_));
        stream.cancel(failure);
        if !is_read {
            self.streams_in.remove(&id);
        }
        self.release_buffered(kind, buffered);
    }

    fn receive_ack(
        &mut self,
        priority: Priority,
        wire_id: u32,
        payload: &[u8],
    ) -> Result<(), ProtocolError> {
        let ranges = decode_ack(payload)?;
        if wire_id != 0 {
            if let Some(id) = self.outgoing_id(wire_id)?
                && let Some(stream) = self.streams_out.get_mut(&id)
            {
                stream.acknowledge(&ranges);
            }
            return Ok(());
        }
        self.lanes_out[priority.index()].acknowledge(&ranges)?;
        let settled: Vec<MessageId> = self
            .streams_out
            .keys()
            .filter(|id| id.priority == priority && ranges.contains(id.number))
            .copied()
            .collect();
        for id in settled {
            self.settle_outgoing(id);
        }
        self.events.push_back(LinkEvent::Acknowledged {
            priority,
            numbers: ranges,
        });
        Ok(())
    }

    fn settle_outgoing(&mut self, id: MessageId) {
        let Some(stream) = self.streams_out.remove(&id) else {
            return;
        };
        self.large_messages[id.priority.index()].retain(|other| *other != id);
        self.streams[id.priority.index()].retain(|other| *other != id);
        self.cancelled.retain(|other| *other != id);
        if let (Some(wire_id), Some(carrier)) = (stream.wire_id(), &mut self.carrier) {
            carrier.outgoing.remove(&wire_id);
        }
        if stream.failure().is_none() {
            self.events.push_back(LinkEvent::StreamEnded(id));
        }
    }

    fn receive_window(
        &mut self,
        wire_id: u32,
        flags: u8,
        credit: u64,
    ) -> Result<(), ProtocolError> {
        if wire_id != 0 {
            if let Some(id) = self.outgoing_id(wire_id)?
                && let Some(stream) = self.streams_out.get_mut(&id)
            {
                stream.raise_credit(credit);
            }
            return Ok(());
        }
        if let Some(carrier) = &mut self.carrier {
            if flags & WINDOW_FLAG_DATA != 0 {
                carrier.send_data.raise(credit);
            } else {
                carrier.send_messages.raise(credit);
            }
        }
        Ok(())
    }

    fn receive_goaway(&mut self, frame: &Frame) -> Result<(), ProtocolError> {
        let GoAway { code, text } = GoAway::decode(&frame.payload)?;
        if frame.flags & GOAWAY_FLAG_CARRIER != 0 {
            self.events
                .push_back(LinkEvent::CarrierRejected { code, text });
            return Ok(());
        }
        if self.peer_shutdown == Shutdown::No {
            self.peer_shutdown = Shutdown::Requested;
            if self.shutdown == Shutdown::No {
                self.shutdown = Shutdown::Requested;
                self.shutdown_reason = (code, String::new());
            }
            self.events
                .push_back(LinkEvent::ShutdownRequested { code, text });
        }
        if frame.flags & GOAWAY_FLAG_FINAL != 0 {
            self.peer_shutdown = Shutdown::Closed;
            self.report_closed();
        }
        Ok(())
    }
}

/// The messages of a MESSAGES frame.
struct EntriesMeasure {
    count: u64,
    /// Credit that they take.
    cost: u64,
    /// Length of the longest one.
    longest: usize,
}

/// Checks the messages of a MESSAGES frame; `None`: they are invalid, or there are none. Without messages, a frame would take
/// no credit, and a peer could send any number of them.
fn measure_entries(mut entries: &[u8]) -> Option<EntriesMeasure> {
    let mut measure = EntriesMeasure {
        count: 0,
        cost: 0,
        longest: 0,
    };
    while !entries.is_empty() {
        let len = take_entry(&mut entries)?.len();
        measure.count += 1;
        measure.cost += len as u64 + MESSAGE_OVERHEAD_BYTES;
        measure.longest = measure.longest.max(len);
    }
    (measure.count > 0).then_some(measure)
}
