//! The state of a link, and what the application receives over it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use content::{DigestAlgorithm, RangeSet};

use crate::config::{AckPolicy, LinkConfig};
use crate::core::carrier::Carrier;
use crate::core::chunk_size::ChunkSize;
use crate::core::incoming_lane::IncomingLane;
use crate::core::incoming_stream::{IncomingStream, StreamAnswer, StreamRead};
use crate::core::outgoing_lane::OutgoingLane;
use crate::core::outgoing_stream::{OutgoingStream, StreamError};
use crate::core::scheduler::Scheduler;
use crate::error_code::ErrorCode;
use crate::message::{MessageBatch, MessageId, ReceivedMessage};
use crate::priority::{LANES, Priority};
use crate::size_class::{SizeClass, SizeClassCounters};
use crate::wire::control::{MAX_METADATA_BYTES, StreamKind, TransferId};
use crate::wire::handshake::LinkId;

/// Bytes of larger messages that are kept until the peer has completed them, for each byte of
/// [`max_queued_bytes`](LinkConfig::max_queued_bytes).
const KEPT_PER_QUEUED: u64 = 4;

/// What the application has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The handshake of a carrier is complete. `is_resumed` is false for the first carrier.
    Connected { is_resumed: bool },
    /// The peer has lost its state of this link. Messages that were not acknowledged are sent again, so that those which
    /// the peer had received before are delivered twice.
    PeerStateLost,
    /// The peer opened a stream. The application accepts or rejects it.
    StreamOpened(IncomingStreamInfo),
    /// The peer has acknowledged messages and streams with these numbers.
    Acknowledged {
        priority: Priority,
        numbers: RangeSet,
    },
    /// An outgoing stream is complete or failed, see [`LinkCore::outgoing_stream`].
    StreamEnded(MessageId),
    /// The peer shuts the link down.
    ShutdownRequested { code: ErrorCode, text: String },
    /// The peer ends this carrier because of an error or because it rejects the link. The carrier can be closed.
    CarrierRejected { code: ErrorCode, text: String },
    /// Both ends have shut the link down, and everything has been acknowledged. The carrier can be closed.
    Closed,
}

/// An incoming stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncomingStreamInfo {
    pub id: MessageId,
    pub transfer_id: TransferId,
    pub size: Option<u64>,
    pub digest: Option<DigestAlgorithm>,
    pub metadata: Vec<u8>,
}

/// A stream to open.
#[derive(Debug, Clone)]
pub struct NewStream {
    pub priority: Priority,
    pub transfer_id: TransferId,
    /// `None`: not known in advance.
    pub size: Option<u64>,
    /// The digest that will be passed to [`LinkCore::finish`].
    pub digest: Option<DigestAlgorithm>,
    /// For the receiving application, at most [`MAX_METADATA_BYTES`].
    pub metadata: Vec<u8>,
    /// The transfer may have been interrupted before: ask the receiver what it has before sending anything.
    pub is_resume: bool,
}

/// The state of an outgoing stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutgoingStreamState {
    Active {
        /// What the peer has, which need not be written; `None`: it has not answered on this carrier.
        accepted: Option<RangeSet>,
        acknowledged_bytes: u64,
        /// Whether [`LinkCore::write`] accepts content now.
        is_writable: bool,
    },
    Failed(StreamError),
    /// The peer has confirmed the whole content. Unknown streams are complete, too.
    Complete,
}

/// Why something was not accepted for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too much waits for transmission or acknowledgement. Try again when more has been transmitted, or the peer has
    /// acknowledged more.
    #[error("too many messages or bytes wait for transmission or acknowledgement; try again later")]
    Full,
    #[error("the link is shutting down; open another one")]
    ShuttingDown,
    /// The peer collects messages of several frames up to this size only. It accepts larger content as a stream.
    #[error("a message of {bytes} bytes: the peer accepts at most {limit} bytes; send a stream")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("metadata of a stream: expected at most {MAX_METADATA_BYTES} bytes, not {0}")]
    MetadataTooLong(usize),
    #[error("the stream has been finished, cancelled or rejected")]
    StreamEnded,
    #[error(
        "content of a stream must be written in ascending order: expected offset {expected} or more, not {offset}"
    )]
    Offset { expected: u64, offset: u64 },
}

/// What survives a restart of the process if the application stores it, see [`LinkCore::restore`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkStateRecord {
    pub lanes: [LaneRecord; LANES],
}

/// One lane of a [`LinkStateRecord`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneRecord {
    /// The highest number of a message that was sent or accepted for sending; 0: none.
    pub last_sent: u64,
    /// The numbers that the peer has acknowledged.
    pub sent_acknowledged: RangeSet,
    /// Messages that are not acknowledged, in order.
    pub unacknowledged: Vec<(u64, Bytes)>,
    /// The received numbers that are acknowledged.
    pub received: RangeSet,
}

/// Counters for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoreStatistics {
    /// Messages and streams by class when they are accepted for sending; streams count bytes as they are written.
    pub sent: SizeClassCounters,
    /// Messages and streams by class when they arrive.
    pub received: SizeClassCounters,
    /// Messages that arrived again after an interruption and were ignored.
    pub duplicates: u64,
    /// Bytes of streams and larger messages that arrived again after an interruption and were ignored.
    pub repeated_bytes: u64,
    /// Bytes of content passed to carriers, including repetitions.
    pub transmitted_bytes: u64,
    pub carriers: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shutdown {
    No,
    /// GOAWAY is sent or will be; what was accepted before is completed.
    Requested,
    Closed,
}

/// One end of a link between two peers, which survives its carriers.
///
/// For each carrier the caller
/// 1. calls [`connect`](Self::connect) or [`accept`](Self::accept),
/// 2. writes what [`poll_transmit`](Self::poll_transmit) returns, and reports it to [`transmitted`](Self::transmitted),
/// 3. passes received frames to [`handle_frame`](Self::handle_frame) and takes events from
///    [`next_event`](Self::next_event),
/// 4. calls [`handle_timeout`](Self::handle_timeout) at the time of [`poll_timeout`](Self::poll_timeout),
/// 5. calls [`disconnect`](Self::disconnect) when the carrier is gone.
///
/// Messages may be sent at any time, with or without a carrier. An error of `handle_frame` or `handle_timeout` ends the
/// carrier; what `poll_transmit` then returns should still be written. The state of the link remains usable, and the
/// next carrier continues it.
#[derive(Debug)]
pub struct LinkCore {
    pub(crate) config: LinkConfig,
    pub(crate) id: LinkId,
    pub(crate) lanes_out: [OutgoingLane; LANES],
    pub(crate) lanes_in: [IncomingLane; LANES],
    pub(crate) streams_out: HashMap<MessageId, OutgoingStream>,
    pub(crate) streams_in: HashMap<MessageId, IncomingStream>,
    /// Messages of several frames, one at a time in each priority, and streams, in turn.
    pub(crate) large_messages: [VecDeque<MessageId>; LANES],
    pub(crate) streams: [VecDeque<MessageId>; LANES],
    /// Failed outgoing streams whose end the peer has not acknowledged.
    pub(crate) cancelled: VecDeque<MessageId>,
    pub(crate) failures: HashMap<MessageId, StreamError>,
    /// Messages that the peer has rejected or that were cancelled, and of which the application is not told yet.
    pub(super) rejected_messages: VecDeque<(MessageId, StreamError)>,
    /// Incoming streams with something to announce.
    pub(crate) changed_in: HashSet<MessageId>,
    pub(crate) events: VecDeque<LinkEvent>,
    pub(crate) carrier: Option<Carrier>,
    pub(crate) scheduler: Scheduler,
    pub(crate) chunk_size: ChunkSize,
    pub(crate) shutdown: Shutdown,
    pub(crate) shutdown_reason: (ErrorCode, String),
    pub(crate) peer_shutdown: Shutdown,
    pub(crate) has_connected: bool,
    pub(crate) occupied_message_bytes: u64,
    pub(crate) occupied_data_bytes: u64,
    pub(crate) statistics: CoreStatistics,
    /// A message was rejected because others wait for the carrier.
    pub(super) awaits_transmission: bool,
}

impl LinkCore {
    /// `id` must not have been used before, except with the state that [`restore`](Self::restore) takes.
    pub fn new(id: LinkId, config: LinkConfig) -> Self {
        Self {
            chunk_size: ChunkSize::new(config.min_chunk_bytes, config.max_chunk_bytes),
            config,
            id,
            lanes_out: Priority::ALL.map(OutgoingLane::new),
            lanes_in: Priority::ALL.map(|_| IncomingLane::new()),
            streams_out: HashMap::new(),
            streams_in: HashMap::new(),
            large_messages: Default::default(),
            streams: Default::default(),
            cancelled: VecDeque::new(),
            failures: HashMap::new(),
            rejected_messages: VecDeque::new(),
            changed_in: HashSet::new(),
            events: VecDeque::new(),
            carrier: None,
            scheduler: Scheduler::default(),
            shutdown: Shutdown::No,
            shutdown_reason: (ErrorCode::NONE, String::new()),
            peer_shutdown: Shutdown::No,
            has_connected: false,
            occupied_message_bytes: 0,
            occupied_data_bytes: 0,
            statistics: CoreStatistics::default(),
            awaits_transmission: false,
        }
    }

    /// Continues a link after a restart of the process. Call it before the first carrier.
    pub fn restore(&mut self, record: LinkStateRecord) {
        for (priority, lane) in Priority::ALL.into_iter().zip(record.lanes) {
            let (out, unsent) = (&mut self.lanes_out[priority.index()], lane.unacknowledged);
            let table = self.config.size_classes;
            let (single, multiple): (Vec<_>, Vec<_>) = unsent
                .into_iter()
                .partition(|(_, payload)| table.classify(payload.len()) < SizeClass::Large);
            let is_huge = |payload: &Bytes| table.classify(payload.len()) == SizeClass::Huge;
            let mut known = lane.sent_acknowledged.clone();
            known.insert(0..1);
            for (number, _) in single.iter().chain(&multiple) {
                known.insert(*number..number + 1);
            }
            let acknowledged = lane.sent_acknowledged;
            let tiny_limit_bytes = table.tiny_limit_bytes;
            out.restore(lane.last_sent + 1, acknowledged, single, tiny_limit_bytes);
            // Streams whose content is gone: their numbers have to be settled.
            for number in known.missing(0..lane.last_sent + 1).iter().flatten() {
                self.queue_lost_stream(MessageId { priority, number });
            }
            self.lanes_in[priority.index()].restore(lane.received);
            for (number, payload) in multiple {
                let id = MessageId { priority, number };
                match is_huge(&payload) {
                    true => self.queue_huge_message(id, payload, true),
                    false => self.queue_large_message(id, payload),
                }
            }
        }
        // Otherwise the peer may not have heard of the link.
        self.has_connected = self
            .lanes_in
            .iter()
            .any(|lane| lane.acknowledged().end() > 1)
            || self.lanes_out.iter().any(|lane| lane.first() > 1);
    }

    pub fn id(&self) -> LinkId {
        self.id
    }

    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Whether the handshake of the current carrier is complete.
    pub fn is_connected(&self) -> bool {
        self.carrier
            .as_ref()
            .is_some_and(|carrier| carrier.peer.is_some())
    }

    pub fn statistics(&self) -> CoreStatistics {
        self.statistics
    }

    /// The current size of chunks of streams.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_size.bytes()
    }

    pub fn next_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    /// The class of a message, as the table of this end has it.
    pub fn classify(&self, bytes: usize) -> SizeClass {
        self.config.size_classes.classify(bytes)
    }

    /// Bytes of messages and streams that the peer has not acknowledged.
    pub fn queued_bytes(&self) -> u64 {
        let streams = self.streams_out.values();
        let streams: u64 = streams.map(OutgoingStream::unacknowledged_bytes).sum();
        self.waiting_lane_bytes() + streams
    }

    /// Whether the peer has acknowledged everything.
    pub fn is_idle(&self) -> bool {
        self.lanes_out.iter().all(OutgoingLane::is_empty)
    }

    /// Whether the peer has acknowledged a message or the end of a stream.
    ///
    /// That includes a message that was rejected, see [`take_rejection`](Self::take_rejection).
    pub fn is_settled(&self, id: MessageId) -> bool {
        self.lanes_out[id.priority.index()].is_settled(id.number)
    }

    /// The number of the last message or stream of a lane that was accepted for sending; 0: none. An application that
    /// continues a link after a restart learns from it what it had sent.
    pub fn last_sent(&self, priority: Priority) -> u64 {
        self.lanes_out[priority.index()].last_number()
    }

    /// Whether an incoming stream has been read to its end.
    pub(crate) fn is_stream_read(&self, id: MessageId) -> bool {
        let stream = self.streams_in.get(&id);
        stream.is_some_and(IncomingStream::is_complete)
    }

    /// Bytes of messages of one frame that are not acknowledged.
    pub(super) fn waiting_lane_bytes(&self) -> u64 {
        self.lanes_out.iter().map(OutgoingLane::queued_bytes).sum()
    }

    /// Bytes of larger messages that are not acknowledged. Streams that the application writes have their own limit.
    pub(super) fn waiting_stream_bytes(&self) -> u64 {
        let streams = self.streams_out.values();
        let finished = streams.filter(|stream| stream.is_finished());
        let (mut waiting, mut kept) = (0, 0);
        for stream in finished {
            waiting += stream.unacknowledged_bytes();
            kept += stream.kept_message_bytes();
        }
        // The next message need not wait until the peer has completed the last one, which it has received.
        waiting.max(kept / KEPT_PER_QUEUED)
    }

    /// The next received message, of the highest priority that has one.
    pub fn next_message(&mut self) -> Option<ReceivedMessage> {
        let table = self.config.size_classes;
        let message = self
            .lanes_in
            .iter_mut()
            .find_map(|lane| lane.next_message(&table))?;
        self.release_messages(message.cost());
        Some(message)
    }

    /// Adds all received messages to `batches`, those of higher priorities first.
    pub fn take_batches(&mut self, batches: &mut Vec<MessageBatch>) {
        let mut cost = 0;
        for lane in &mut self.lanes_in {
            cost += lane.queue.iter().map(MessageBatch::cost).sum::<u64>();
            batches.extend(lane.queue.drain(..));
        }
        self.release_messages(cost);
    }

    pub(crate) fn release_messages(&mut self, cost: u64) {
        self.occupied_message_bytes -= cost;
        if let Some(carrier) = &mut self.carrier {
            carrier.receive_messages.release(cost);
        }
    }

    /// Confirms that a message is durable, in [`AckPolicy::OnConfirmation`].
    pub fn acknowledge(&mut self, id: MessageId, now: Instant) {
        let lane = &mut self.lanes_in[id.priority.index()];
        if self.config.ack_policy == AckPolicy::OnConfirmation && lane.is_received(id.number) {
            lane.acknowledge(id.number..id.number + 1);
            self.schedule_ack(now);
        }
    }

    /// The received numbers of a lane that are acknowledged: the record that excludes duplicates.
    pub fn acknowledged_messages(&self, priority: Priority) -> &RangeSet {
        self.lanes_in[priority.index()].acknowledged()
    }

    /// Accepts an incoming stream. `received` is what is already stored of this transfer.
    pub fn accept_stream(&mut self, id: MessageId, received: &RangeSet) {
        if let Some(stream) = self.streams_in.get_mut(&id)
            && stream.answer == StreamAnswer::Undecided
        {
            stream.accept(received);
            self.changed_in.insert(id);
        }
    }

    /// Reads an incoming stream.
    pub fn read(&mut self, id: MessageId) -> StreamRead {
        let Some(stream) = self.streams_in.get_mut(&id) else {
            return StreamRead::Cancelled(StreamError {
                code: ErrorCode::CANCELLED,
                text: "the stream has ended".to_owned(),
            });
        };
        let read = stream.read();
        if let StreamRead::Cancelled(_) = read {
            self.streams_in.remove(&id);
            self.changed_in.remove(&id);
        }
        if let StreamRead::Chunk(chunk) = &read {
            self.release_data(chunk.bytes.len() as u64);
            self.changed_in.insert(id);
        }
        read
    }

    pub(crate) fn release_data(&mut self, bytes: u64) {
        self.occupied_data_bytes -= bytes;
        if let Some(carrier) = &mut self.carrier {
            carrier.receive_data.release(bytes);
        }
    }

    /// Confirms content of a stream that need not be sent again, also not to a later process if it is durable.
    pub fn acknowledge_data(&mut self, id: MessageId, range: std::ops::Range<u64>, now: Instant) {
        if let Some(stream) = self.streams_in.get_mut(&id) {
            stream.acknowledge(range);
            self.changed_in.insert(id);
            self.schedule_ack(now);
        }
    }

    /// Confirms that the whole content of a stream has been processed, after [`StreamRead::End`]. Before it, the stream
    /// is rejected.
    pub fn complete_stream(&mut self, id: MessageId, now: Instant) {
        let Some(stream) = self.streams_in.get(&id) else {
            return;
        };
        if stream.is_complete() {
            self.settle_incoming(id);
            self.schedule_ack(now);
        } else {
            let text = "the receiver ended the stream early";
            self.reject_stream(id, ErrorCode::CANCELLED, text);
        }
    }

    /// Rejects an incoming stream, also while it is being received.
    pub fn reject_stream(&mut self, id: MessageId, code: ErrorCode, text: impl Into<String>) {
        let Some(stream) = self.streams_in.get_mut(&id) else {
            return;
        };
        if stream.is_cancelled() {
            return;
        }
        let buffered = stream.buffered_bytes();
        let kind = stream.open.kind;
        let text = text.into();
        stream.reject(StreamError { code, text });
        self.changed_in.insert(id);
        self.release_buffered(kind, buffered);
    }

    pub(crate) fn release_buffered(&mut self, kind: StreamKind, bytes: u64) {
        match kind {
            StreamKind::Stream => self.release_data(bytes),
            StreamKind::Message => self.release_messages(bytes),
        }
    }

    /// A received stream is complete, or its end is known to both peers.
    pub(crate) fn settle_incoming(&mut self, id: MessageId) {
        if let Some(stream) = self.streams_in.remove(&id) {
            self.release_buffered(stream.open.kind, stream.buffered_bytes());
            if let (Some(wire_id), Some(carrier)) = (stream.wire_id, &mut self.carrier) {
                carrier.incoming.remove(&wire_id);
            }
        }
        self.changed_in.remove(&id);
        let lane = &mut self.lanes_in[id.priority.index()];
        lane.record_received(id.number..id.number + 1);
        lane.acknowledge(id.number..id.number + 1);
    }

    pub(crate) fn schedule_ack(&mut self, now: Instant) {
        let deadline = now + self.config.ack_delay;
        if let Some(carrier) = &mut self.carrier {
            carrier.schedule_ack(deadline);
        }
    }

    /// Shuts the link down: nothing new is accepted; what was accepted is sent and acknowledged, then both ends report
    /// [`LinkEvent::Closed`].
    pub fn shut_down(&mut self, code: ErrorCode, text: impl Into<String>) {
        if self.shutdown == Shutdown::No {
            self.shutdown = Shutdown::Requested;
            self.shutdown_reason = (code, text.into());
        }
    }

    pub fn is_closed(&self) -> bool {
        self.shutdown == Shutdown::Closed && self.peer_shutdown == Shutdown::Closed
    }
}
