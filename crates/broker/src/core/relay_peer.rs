//! The state of a relay connection, and the frame that goes to all connections of an endpoint.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use hooks::MessageView;
use hooks::relay::{RelayClient, RelayEndpoint, RelayPayloadKind, RelayTraffic};
use ws::{Decoder, FrameHeader, MAX_HEADER_BYTES, Opcode};

/// The state of a relay connection.
pub(crate) struct RelayPeer {
    pub(super) endpoint: Arc<dyn RelayEndpoint>,
    /// `None` while its input is processed.
    pub(super) input: Option<Box<RelayInput>>,
    /// Frames that wait because the socket is slow, oldest first.
    pub(super) backlog: VecDeque<Bytes>,
    pub(super) backlog_bytes: usize,
    /// Messages dropped since the receiver fell behind.
    pub(super) dropped: u64,
    pub(super) unanswered_pings: u8,
    pub(super) is_close_sent: bool,
    /// Messages so far; those that wait in the backlog count as sent.
    pub(super) traffic: RelayTraffic,
}

/// What processing the input of a connection needs.
pub(super) struct RelayInput {
    pub(super) decoder: Decoder,
    /// The beginning of a message.
    pub(super) message: Vec<u8>,
    pub(super) client: Box<dyn RelayClient>,
}

impl RelayPeer {
    /// A frame that was counted as sent is dropped.
    pub(super) fn uncount_sent(&mut self, frame: &[u8]) {
        self.traffic.messages_out -= 1;
        self.traffic.bytes_out -= frame_payload_len(frame);
    }

    /// Bytes of an incomplete message.
    pub(super) fn partial_bytes(&self) -> usize {
        self.input.as_ref().map_or(0, |input| input.message.len())
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

/// The frame that all receivers of a message on this shard get.
#[derive(Default)]
pub(crate) struct RelayFrame {
    /// Header and payload, at the end of the buffer.
    buffer: Vec<u8>,
    start: usize,
    shared: Option<Bytes>,
}

impl RelayFrame {
    pub(super) fn encode(endpoint: &dyn RelayEndpoint, view: &MessageView<'_>) -> Self {
        let mut buffer = Vec::with_capacity(MAX_HEADER_BYTES + view.payload.len() + 64);
        buffer.resize(MAX_HEADER_BYTES, 0);
        let opcode = match endpoint.encode(view, &mut buffer) {
            RelayPayloadKind::Text => Opcode::Text,
            RelayPayloadKind::Binary => Opcode::Binary,
        };
        let header = FrameHeader::new(opcode, buffer.len() - MAX_HEADER_BYTES, None);
        let start = MAX_HEADER_BYTES - header.as_bytes().len();
        buffer[start..MAX_HEADER_BYTES].copy_from_slice(header.as_bytes());
        Self {
            buffer,
            start,
            shared: None,
        }
    }

    pub(super) fn payload_len(&self) -> u64 {
        frame_payload_len(self.as_bytes())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match &self.shared {
            Some(shared) => shared,
            None => &self.buffer[self.start..],
        }
    }

    /// The frame to keep. The first call moves it, later calls only count a reference.
    pub(super) fn shared(&mut self) -> Bytes {
        let shared = self.shared.get_or_insert_with(|| {
            let bytes = Bytes::from(std::mem::take(&mut self.buffer));
            bytes.slice(self.start..)
        });
        shared.clone()
    }
}
