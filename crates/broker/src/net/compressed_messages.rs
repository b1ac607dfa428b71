//! Compressed WebSocket messages that carry MQTT. They are decompressed piece by piece, so that a short message that
//! expands to much takes little memory and no long turn.

use ws::{Deflater, Inflater, PermessageDeflate};

/// MQTT bytes decompressed at a time; further input waits until they are processed.
const MAX_INFLATED_BYTES: usize = 256 * 1024;

/// The state of a WebSocket connection whose messages may be compressed.
pub(super) struct CompressedMessages {
    negotiated: PermessageDeflate,
    inflater: Inflater,
    pending: Option<PendingPiece>,
}

/// The rest of a piece of a message whose beginning expanded to [`MAX_INFLATED_BYTES`].
struct PendingPiece {
    rest: Vec<u8>,
    is_end_of_message: bool,
}

impl CompressedMessages {
    pub(super) fn new(negotiated: PermessageDeflate) -> Self {
        Self {
            negotiated,
            inflater: Inflater::default(),
            pending: None,
        }
    }

    /// Decompresses a piece of a message. What exceeds [`MAX_INFLATED_BYTES`] in `mqtt` becomes pending; then no other
    /// piece may follow before [`Self::inflate_pending`].
    pub(super) fn inflate(
        &mut self,
        piece: &[u8],
        is_end_of_message: bool,
        mqtt: &mut Vec<u8>,
    ) -> Result<(), ws::Error> {
        let room = MAX_INFLATED_BYTES.saturating_sub(mqtt.len());
        let (consumed, is_done) = self
            .inflater
            .inflate(piece, is_end_of_message, mqtt, room)?;
        if !is_done {
            self.pending = Some(PendingPiece {
                rest: piece[consumed..].to_vec(),
                is_end_of_message,
            });
        }
        Ok(())
    }

    pub(super) fn inflate_pending(&mut self, mqtt: &mut Vec<u8>) -> Result<(), ws::Error> {
        match self.pending.take() {
            Some(piece) => self.inflate(&piece.rest, piece.is_end_of_message, mqtt),
            None => Ok(()),
        }
    }

    pub(super) fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Memory of an incomplete message.
    pub(super) fn waiting_bytes(&self) -> usize {
        let pending = self.pending.as_ref().map_or(0, |piece| piece.rest.len());
        self.inflater.memory_bytes() + pending
    }

    /// The compressed form of a message, if the client may get it and it is shorter.
    pub(super) fn deflate(&self, mqtt: &[u8], deflater: &mut Deflater) -> Option<Vec<u8>> {
        let mut compressed = Vec::new();
        let is_shorter =
            self.negotiated.permits(mqtt.len()) && deflater.deflate(mqtt, &mut compressed);
        is_shorter.then_some(compressed)
    }
}
