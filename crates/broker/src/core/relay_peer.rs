//! The state of a relay connection, and the frame that goes to all connections of an endpoint.

use std::rc::Rc;
use std::sync::Arc;

use super::message::Message;
use super::outbox::{Outbox, PUMP_HIGH_BYTES, SHARE_FROM_BYTES};
use super::relay_backlog::{RelayBacklog, RelayMemory, WaitingFrame};
use bytes::Bytes;
use hooks::MessageView;
use hooks::relay::{RelayClient, RelayEndpoint, RelayPayloadKind, RelayTraffic};
use ws::{Decoder, Deflater, FrameHeader, Inflater, MAX_HEADER_BYTES, Opcode, PermessageDeflate};

/// The state of a relay connection.
pub(crate) struct RelayPeer {
    pub(super) endpoint: Arc<dyn RelayEndpoint>,
    /// Set if messages may be compressed.
    pub(super) compression: Option<PermessageDeflate>,
    /// `None` while its input is processed.
    pub(super) input: Option<Box<RelayInput>>,
    /// Set while the socket is slow. Most connections are idle, and have none.
    pub(super) backlog: Option<Box<RelayBacklog>>,
    /// Pings since the client was last heard, or not read.
    pub(super) unanswered_pings: u8,
    pub(super) is_close_sent: bool,
    /// Messages so far; those that wait in the backlog count as sent.
    pub(super) traffic: RelayTraffic,
}

/// What processing the input of a connection needs.
pub(super) struct RelayInput {
    /// Also here, so that a message takes no reference of its own.
    pub(super) endpoint: Arc<dyn RelayEndpoint>,
    pub(super) decoder: Decoder,
    /// Created by the first compressed message.
    pub(super) inflater: Option<Box<Inflater>>,
    /// The beginning of a message, decompressed.
    pub(super) message: Vec<u8>,
    pub(super) client: Box<dyn RelayClient>,
}

impl RelayInput {
    /// Appends the next piece of a compressed message to `message`.
    pub(super) fn inflate(
        &mut self,
        piece: &[u8],
        kind: RelayPayloadKind,
        is_end_of_message: bool,
        max_message_bytes: usize,
    ) -> Result<(), ws::Error> {
        // One byte more shows that the message is too long.
        let room = (max_message_bytes + 1).saturating_sub(self.message.len());
        let inflater = self.inflater.get_or_insert_default();
        inflater.inflate(piece, is_end_of_message, &mut self.message, room)?;
        if self.message.len() > max_message_bytes {
            return Err(ws::Error {
                code: ws::close_codes::MESSAGE_TOO_BIG,
                detail: "message longer than accepted",
            });
        }
        let is_text = kind == RelayPayloadKind::Text;
        if is_end_of_message && is_text && std::str::from_utf8(&self.message).is_err() {
            return Err(ws::Error {
                code: ws::close_codes::INVALID_PAYLOAD,
                detail: "text message is not UTF-8",
            });
        }
        Ok(())
    }

    /// Memory of an incomplete message.
    pub(super) fn partial_bytes(&self) -> usize {
        let of_inflater = self.inflater.as_ref().map_or(0, |it| it.memory_bytes());
        of_inflater + self.message.len()
    }
}

impl RelayPeer {
    /// Whether a frame can be passed to the outbox now, instead of waiting in the backlog.
    pub(super) fn has_room(&self, outbox: &Outbox, frame_bytes: usize) -> bool {
        self.backlog.is_none()
            && (outbox.is_empty() || outbox.len() + frame_bytes <= PUMP_HIGH_BYTES)
    }

    pub(super) fn forget_unanswered_pings(&mut self) {
        self.unanswered_pings = 0;
    }

    /// The backlog of a receiver that is slow from now on, if it was not yet.
    pub(super) fn backlog(&mut self, memory: &mut RelayMemory) -> &mut RelayBacklog {
        self.backlog
            .get_or_insert_with(|| RelayBacklog::new(memory))
    }

    /// A frame that was counted as sent is dropped.
    pub(super) fn uncount_sent(&mut self, frame: &[u8]) {
        self.traffic.messages_out -= 1;
        self.traffic.bytes_out -= frame_payload_len(frame);
    }

    /// Bytes that have arrived of an incomplete message; 0: there is none.
    pub(super) fn fragment_bytes(&self) -> usize {
        self.input
            .as_ref()
            .map_or(0, |input| match &input.inflater {
                Some(inflater) if inflater.is_active() => inflater.received_bytes().max(1),
                _ => input.message.len(),
            })
    }

    /// Memory of an incomplete message.
    pub(super) fn partial_bytes(&self) -> usize {
        self.input.as_ref().map_or(0, |input| input.partial_bytes())
    }
}

/// Length of the payload of an encoded frame without mask, RFC 6455 section 5.2.
fn frame_payload_len(frame: &[u8]) -> u64 {
    let header_len = match frame.get(1) {
        Some(126) => 4,
        Some(127) => 10,
        _ => 2,
    };
    frame.len().saturating_sub(header_len) as u64
}

/// The opcode of the frame of a message, RFC 6455 section 5.6.
pub(super) fn opcode(kind: RelayPayloadKind) -> Opcode {
    match kind {
        RelayPayloadKind::Text => Opcode::Text,
        RelayPayloadKind::Binary => Opcode::Binary,
    }
}

/// The frames that the receivers of a message on this shard get: each form is encoded once, for the first that needs it.
pub(crate) struct RelayFrames {
    opcode: Opcode,
    plain: RelayFrame,
    compressed: CompressedForm,
}

enum CompressedForm {
    NotTried,
    NotShorter,
    Encoded(RelayFrame),
}

impl RelayFrames {
    /// Encodes a message for an endpoint, in the memory of `buffer`.
    pub(super) fn encode(
        endpoint: &dyn RelayEndpoint,
        view: &MessageView<'_>,
        mut buffer: Vec<u8>,
    ) -> Self {
        buffer.clear();
        buffer.reserve(MAX_HEADER_BYTES + view.payload.len() + 64);
        buffer.resize(MAX_HEADER_BYTES, 0);
        let opcode = opcode(endpoint.encode(view, &mut buffer));
        let header = FrameHeader::new(opcode, buffer.len() - MAX_HEADER_BYTES, None);
        Self {
            opcode,
            plain: RelayFrame::new(buffer, &header),
            compressed: CompressedForm::NotTried,
        }
    }

    /// Memory for the next message, unless receivers keep it or it is large.
    pub(super) fn into_scratch(self) -> Vec<u8> {
        match self.plain.buffer.capacity() {
            0..=SHARE_FROM_BYTES => self.plain.buffer,
            _ => Vec::new(),
        }
    }

    /// The frame for a receiver with this agreement on compression.
    pub(super) fn frame_for(
        &mut self,
        compression: Option<PermessageDeflate>,
        deflater: &mut Deflater,
    ) -> &mut RelayFrame {
        if !compression.is_some_and(|it| it.permits(self.plain.payload().len())) {
            return &mut self.plain;
        }
        if let CompressedForm::NotTried = self.compressed {
            self.compressed = self.compress(deflater);
        }
        match &mut self.compressed {
            CompressedForm::Encoded(frame) => frame,
            CompressedForm::NotTried | CompressedForm::NotShorter => &mut self.plain,
        }
    }

    fn compress(&self, deflater: &mut Deflater) -> CompressedForm {
        let mut buffer = vec![0; MAX_HEADER_BYTES];
        if !deflater.deflate(self.plain.payload(), &mut buffer) {
            return CompressedForm::NotShorter;
        }
        let payload_bytes = buffer.len() - MAX_HEADER_BYTES;
        let header = FrameHeader::new(self.opcode, payload_bytes, None).with_compressed_flag();
        CompressedForm::Encoded(RelayFrame::new(buffer, &header))
    }
}

/// One form of a message.
pub(super) struct RelayFrame {
    /// Header and payload, at the end of the buffer.
    buffer: Vec<u8>,
    start: usize,
    header_bytes: usize,
    shared: Option<Bytes>,
    waiting: Option<Rc<WaitingFrame>>,
}

impl RelayFrame {
    /// `buffer` has [`MAX_HEADER_BYTES`] for the header, and the payload.
    fn new(mut buffer: Vec<u8>, header: &FrameHeader) -> Self {
        let header_bytes = header.as_bytes().len();
        let start = MAX_HEADER_BYTES - header_bytes;
        buffer[start..MAX_HEADER_BYTES].copy_from_slice(header.as_bytes());
        Self {
            buffer,
            start,
            header_bytes,
            shared: None,
            waiting: None,
        }
    }

    fn payload(&self) -> &[u8] {
        &self.as_bytes()[self.header_bytes..]
    }

    pub(super) fn payload_len(&self) -> u64 {
        self.payload().len() as u64
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match &self.shared {
            Some(shared) => shared,
            None => &self.buffer[self.start..],
        }
    }

    /// The frame to keep. The first call moves or copies it, later calls only count a reference.
    pub(super) fn shared(&mut self, memory: &mut RelayMemory) -> Bytes {
        if let Some(shared) = &self.shared {
            return shared.clone();
        }
        let frame = &self.buffer[self.start..];
        // A frame that waits does not keep the memory of longer ones.
        let shared = if self.buffer.capacity() > frame.len() + frame.len() / 4 + 64 {
            Bytes::copy_from_slice(frame)
        } else {
            Bytes::from(std::mem::take(&mut self.buffer)).slice(self.start..)
        };
        memory.add_frame(&shared);
        self.shared.insert(shared).clone()
    }

    /// The frame for a backlog.
    pub(super) fn waiting(
        &mut self,
        message: Option<Rc<Message>>,
        memory: &mut RelayMemory,
    ) -> Rc<WaitingFrame> {
        if let Some(waiting) = &self.waiting {
            return waiting.clone();
        }
        let waiting = WaitingFrame::new(self.shared(memory), message, memory);
        self.waiting.insert(waiting).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most of the connections are idle, and there are many.
    #[test]
    fn the_state_of_a_connection_stays_small() {
        assert!(size_of::<RelayPeer>() <= 72, "{}", size_of::<RelayPeer>());
        assert!(
            size_of::<RelayInput>() <= 112,
            "{}",
            size_of::<RelayInput>()
        );
    }
}
