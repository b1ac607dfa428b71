//! Messages and streams that the application sends.

use bytes::Bytes;
use content::ContentDigest;

use crate::core::link_core::{
    LinkCore, LinkEvent, NewStream, OutgoingStreamState, SendError, Shutdown,
};
use crate::core::outgoing_lane::OutgoingLane;
use crate::core::outgoing_stream::{OutgoingStream, StreamError};
use crate::core::receiving::max_large_message_bytes;
use crate::error_code::ErrorCode;
use crate::message::MessageId;
use crate::priority::Priority;
use crate::size_class::SizeClass;
use crate::wire::control::{MAX_METADATA_BYTES, Open, StreamKind, TransferId};

/// Bytes of messages of one frame and one priority that wait for a carrier; beyond it, no message is accepted while there
/// is one.
const MAX_UNSENT_BYTES: u64 = 512 * 1024;

/// Rejected messages that are kept until the application asks for them.
const MAX_REJECTIONS: usize = 1024;

/// Streams and larger messages that the peer has not acknowledged. Each may leave a gap in its record of numbers, which is limited.
pub(super) const MAX_OUTGOING_STREAMS: usize = 8 * 1024;

impl LinkCore {
    /// Sends a message. Its size class decides how; the receiver gets a huge one as a stream.
    ///
    /// Messages of one frame (tiny to medium) and one priority arrive in the order of sending; larger ones arrive when
    /// they are complete.
    pub fn send(&mut self, priority: Priority, payload: Bytes) -> Result<MessageId, SendError> {
        self.send_shared(priority, &payload)
    }

    /// Sends a copy of a message. It is made only if the message is accepted, and costs nothing more if it is tiny.
    pub fn send_copy(
        &mut self,
        priority: Priority,
        payload: &[u8],
    ) -> Result<MessageId, SendError> {
        if self.classify(payload.len()) > SizeClass::Tiny {
            return self.send(priority, Bytes::copy_from_slice(payload));
        }
        self.check_unsent(priority)?;
        let id = self.next_id(priority, self.waiting_lane_bytes())?;
        let bytes = payload.len() as u64;
        self.statistics.sent.count(SizeClass::Tiny, 1, bytes);
        self.lanes_out[priority.index()].push_copy(id.number, payload);
        Ok(id)
    }

    /// Like [`send`](Self::send), for callers that keep the payload: it need not be cloned if it is tiny.
    pub(crate) fn send_shared(
        &mut self,
        priority: Priority,
        payload: &Bytes,
    ) -> Result<MessageId, SendError> {
        let class = self.config.size_classes.classify(payload.len());
        if class == SizeClass::Tiny {
            return self.send_copy(priority, payload);
        }
        if class == SizeClass::Huge {
            return self.send_huge(priority, payload.clone());
        }
        // Large messages have a limit of their own, so that they do not keep small ones waiting.
        let queued = if class == SizeClass::Large {
            self.check_large_size(payload.len() as u64)?;
            self.check_stream_count(MAX_OUTGOING_STREAMS)?;
            self.waiting_stream_bytes()
        } else {
            self.check_unsent(priority)?;
            self.waiting_lane_bytes()
        };
        let id = self.next_id(priority, queued)?;
        self.statistics.sent.count(class, 1, payload.len() as u64);
        if class == SizeClass::Large {
            self.queue_large_message(id, payload.clone());
        } else {
            self.lanes_out[priority.index()].push(id.number, payload.clone());
        }
        Ok(id)
    }

    fn send_huge(&mut self, priority: Priority, payload: Bytes) -> Result<MessageId, SendError> {
        self.check_stream_count(MAX_OUTGOING_STREAMS)?;
        let id = self.next_id(priority, self.waiting_stream_bytes())?;
        let size = payload.len() as u64;
        self.statistics.sent.count(SizeClass::Huge, 1, size);
        self.queue_huge_message(id, payload, false);
        Ok(id)
    }

    /// `is_resume`: the peer may have a part of it.
    pub(super) fn queue_huge_message(&mut self, id: MessageId, payload: Bytes, is_resume: bool) {
        let open = Open {
            kind: StreamKind::Stream,
            is_resume,
            number: id.number,
            transfer_id: self.message_transfer_id(id),
            size: Some(payload.len() as u64),
            digest: None,
            metadata: Vec::new(),
        };
        let stream = OutgoingStream::of_message(id, open, payload);
        self.streams_out.insert(id, stream);
        self.streams[id.priority.index()].push_back(id);
    }

    pub(super) fn queue_lost_stream(&mut self, id: MessageId) {
        let open = Open {
            kind: StreamKind::Stream,
            is_resume: true,
            number: id.number,
            transfer_id: self.message_transfer_id(id),
            size: None,
            digest: None,
            metadata: Vec::new(),
        };
        let mut stream = OutgoingStream::new(id, open);
        stream.fail(StreamError {
            code: ErrorCode::CANCELLED,
            text: "the sender was restarted".to_owned(),
        });
        self.streams_out.insert(id, stream);
    }

    pub(super) fn queue_large_message(&mut self, id: MessageId, payload: Bytes) {
        let size = payload.len() as u64;
        let open = Open {
            kind: StreamKind::Message,
            is_resume: false,
            number: id.number,
            transfer_id: self.message_transfer_id(id),
            size: Some(size),
            digest: None,
            metadata: Vec::new(),
        };
        let stream = OutgoingStream::of_message(id, open, payload);
        self.streams_out.insert(id, stream);
        self.large_messages[id.priority.index()].push_back(id);
    }

    /// Messages need no name that outlives the link: the half of the link's id and the number suffice.
    fn message_transfer_id(&self, id: MessageId) -> TransferId {
        let mut bytes = self.id.0;
        let number = id.number << 2 | id.priority as u64;
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        TransferId(bytes)
    }

    fn next_id(&mut self, priority: Priority, queued: u64) -> Result<MessageId, SendError> {
        if self.shutdown != Shutdown::No || self.peer_shutdown != Shutdown::No {
            return Err(SendError::ShuttingDown);
        }
        if queued >= self.config.max_queued_bytes {
            return Err(SendError::Full);
        }
        let peer = self.carrier.as_ref().and_then(|carrier| carrier.peer);
        let horizon = peer.map_or(self.config.limits.horizon, |peer| peer.horizon);
        let lane = &mut self.lanes_out[priority.index()];
        let number = lane.next_number(horizon).ok_or(SendError::Full)?;
        Ok(MessageId { priority, number })
    }

    /// Rejects messages of one frame while enough of them wait for the carrier: longer queues would only take more memory,
    /// and leave the cache of the processor before they are sent.
    fn check_unsent(&mut self, priority: Priority) -> Result<(), SendError> {
        let unsent = self.lanes_out[priority.index()].unsent_bytes();
        if unsent >= MAX_UNSENT_BYTES && self.is_connected() {
            self.awaits_transmission = true;
            return Err(SendError::Full);
        }
        Ok(())
    }

    /// Rejects what the peer would reject, if it is known. Otherwise it is [told](Self::take_rejection) later.
    fn check_large_size(&self, bytes: u64) -> Result<(), SendError> {
        let peer = self.carrier.as_ref().and_then(|carrier| carrier.peer);
        match peer.map(|peer| max_large_message_bytes(&peer)) {
            Some(limit) if bytes > limit => Err(SendError::TooLarge { bytes, limit }),
            _ => Ok(()),
        }
    }

    fn check_stream_count(&self, limit: usize) -> Result<(), SendError> {
        if self.streams_out.len() >= limit.min(MAX_OUTGOING_STREAMS) {
            return Err(SendError::Full);
        }
        Ok(())
    }

    /// Whether messages were rejected because others waited for the carrier, and can now be accepted.
    pub(crate) fn take_transmission_notice(&mut self) -> bool {
        let has_room = |lane: &OutgoingLane| lane.unsent_bytes() < MAX_UNSENT_BYTES / 2;
        let is_due = self.awaits_transmission && self.lanes_out.iter().any(has_room);
        self.awaits_transmission &= !is_due;
        is_due
    }

    /// Opens a stream, which is [written](Self::write) and [finished](Self::finish) afterwards.
    pub fn open_stream(&mut self, new: NewStream) -> Result<MessageId, SendError> {
        if new.metadata.len() > MAX_METADATA_BYTES {
            return Err(SendError::MetadataTooLong(new.metadata.len()));
        }
        self.check_stream_count(self.config.limits.max_streams as usize)?;
        let id = self.next_id(new.priority, 0)?;
        self.statistics.sent.count(SizeClass::Huge, 1, 0);
        let open = Open {
            kind: StreamKind::Stream,
            is_resume: new.is_resume,
            number: id.number,
            transfer_id: new.transfer_id,
            size: new.size,
            digest: new.digest,
            metadata: new.metadata,
        };
        self.streams_out.insert(id, OutgoingStream::new(id, open));
        self.streams[id.priority.index()].push_back(id);
        Ok(id)
    }

    /// Adds content of a stream. Offsets ascend; parts that the peer has may be left out.
    pub fn write(&mut self, id: MessageId, offset: u64, bytes: Bytes) -> Result<(), SendError> {
        let limit = self.config.max_retained_bytes;
        let stream = self.writable_stream(id)?;
        if stream.unacknowledged_bytes() >= limit {
            return Err(SendError::Full);
        }
        let expected = stream.written_end();
        if offset < expected {
            return Err(SendError::Offset { expected, offset });
        }
        let len = bytes.len() as u64;
        if len > 0 {
            stream.write(offset, bytes);
        }
        self.statistics.sent.count(SizeClass::Huge, 0, len);
        Ok(())
    }

    /// Ends a stream after its last content. `size` is that of the whole content.
    pub fn finish(
        &mut self,
        id: MessageId,
        size: u64,
        digest: Option<ContentDigest>,
    ) -> Result<(), SendError> {
        self.writable_stream(id)?.finish(size, digest);
        Ok(())
    }

    fn writable_stream(&mut self, id: MessageId) -> Result<&mut OutgoingStream, SendError> {
        match self.streams_out.get_mut(&id) {
            Some(stream) if stream.failure().is_none() && !stream.is_finished() => Ok(stream),
            _ => Err(SendError::StreamEnded),
        }
    }

    /// Cancels an outgoing stream or message of several frames; others are ignored.
    pub fn cancel_sending(&mut self, id: MessageId, code: ErrorCode, text: impl Into<String>) {
        let text = text.into();
        self.fail_outgoing(id, StreamError { code, text });
    }

    pub(crate) fn fail_outgoing(&mut self, id: MessageId, failure: StreamError) {
        let Some(stream) = self.streams_out.get_mut(&id) else {
            return;
        };
        if stream.failure().is_some() {
            return;
        }
        stream.fail(failure.clone());
        if stream.is_message() {
            if self.rejected_messages.len() >= MAX_REJECTIONS {
                self.rejected_messages.pop_front();
            }
            self.rejected_messages.push_back((id, failure));
        } else {
            self.failures.insert(id, failure);
        }
        self.large_messages[id.priority.index()].retain(|other| *other != id);
        self.streams[id.priority.index()].retain(|other| *other != id);
        self.cancelled.push_back(id);
        self.events.push_back(LinkEvent::StreamEnded(id));
    }

    /// The state of an outgoing stream. A failure is reported until [`forget_failure`](Self::forget_failure).
    pub fn outgoing_stream(&self, id: MessageId) -> OutgoingStreamState {
        if let Some(failure) = self.failures.get(&id) {
            return OutgoingStreamState::Failed(failure.clone());
        }
        match self.streams_out.get(&id) {
            None => OutgoingStreamState::Complete,
            Some(stream) => OutgoingStreamState::Active {
                accepted: stream.accepted().cloned(),
                acknowledged_bytes: stream.acknowledged().count(),
                is_writable: !stream.is_finished()
                    && stream.unacknowledged_bytes() < self.config.max_retained_bytes,
            },
        }
    }

    /// Why the peer has rejected a message, if it has; the next call returns nothing. The last 1024 rejections are kept.
    pub fn take_rejection(&mut self, id: MessageId) -> Option<StreamError> {
        let mut rejected = self.rejected_messages.iter();
        let position = rejected.position(|(other, _)| *other == id)?;
        self.rejected_messages
            .remove(position)
            .map(|(_, failure)| failure)
    }

    /// As [`take_rejection`](Self::take_rejection), for the first of all messages.
    pub fn take_first_rejection(&mut self) -> Option<(MessageId, StreamError)> {
        self.rejected_messages.pop_front()
    }

    /// The application has noticed that a stream failed.
    pub fn forget_failure(&mut self, id: MessageId) {
        self.failures.remove(&id);
    }
}
