//! The WebSocket layer: the opening handshake, then MQTT bytes in and out of binary frames.

use std::fmt;

use ws::{
    ClientHandshake, ClientRequest, Decoder, DecoderEvent, DecoderOptions, MaskKeys, Opcode, Role,
    encode_frame,
};

use super::error::TransportError;

/// State of one WebSocket connection.
pub(super) struct WebSocketLayer {
    handshake: Option<ClientHandshake>,
    decoder: Decoder,
    keys: MaskKeys,
    /// Bytes of a response or a frame header that is not whole yet: at most a response's head.
    held: Vec<u8>,
    /// MQTT bytes that wait for the handshake to end.
    waiting: Vec<u8>,
    /// Frames to send as soon as the read is done.
    replies: Vec<u8>,
    /// Room for the frame being sent.
    frame: Vec<u8>,
}

impl fmt::Debug for WebSocketLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket").finish_non_exhaustive()
    }
}

fn failed(reason: impl fmt::Display) -> TransportError {
    TransportError::WebSocket(reason.to_string())
}

impl WebSocketLayer {
    /// A connection to be, and the request that opens it.
    pub(super) fn start(host: &str, path: &str) -> Result<(Self, Vec<u8>), TransportError> {
        let (handshake, request) = ClientHandshake::start(&ClientRequest {
            host,
            path,
            subprotocols: &["mqtt"],
            headers: &[],
        })
        .map_err(failed)?;
        let websocket = Self {
            handshake: Some(handshake),
            decoder: Decoder::new(DecoderOptions::byte_stream(Role::Client)),
            keys: MaskKeys::new(),
            held: Vec::new(),
            waiting: Vec::new(),
            replies: Vec::new(),
            frame: Vec::new(),
        };
        Ok((websocket, request))
    }

    /// Makes a frame of `bytes`, or keeps them while the handshake goes on.
    pub(super) fn encode_frame(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.handshake.is_some() {
            self.waiting.extend_from_slice(bytes);
            return None;
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        encode_frame(
            Opcode::Binary,
            bytes,
            Some(self.keys.next_key()),
            &mut frame,
        );
        Some(frame)
    }

    /// Takes back the buffer that [`WebSocketLayer::encode_frame`] handed out.
    pub(super) fn recycle_buffer(&mut self, frame: Vec<u8>) {
        self.frame = frame;
    }

    /// Frames that became due while reading.
    pub(super) fn take_replies(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.replies)
    }

    /// Puts the bytes held back from the last read in front of `buf`; returns how many.
    pub(super) fn restore_unread(&mut self, buf: &mut [u8]) -> usize {
        let held = self.held.len();
        buf[..held].copy_from_slice(&self.held);
        self.held.clear();
        held
    }

    /// Turns the WebSocket bytes in `buf` into MQTT bytes at its front; returns how many.
    pub(super) fn decode(&mut self, buf: &mut [u8]) -> Result<usize, TransportError> {
        let mut at = 0;
        if let Some(handshake) = &mut self.handshake {
            let Some(accepted) = handshake.feed(buf).map_err(failed)? else {
                self.held.extend_from_slice(buf);
                return Ok(0);
            };
            if accepted.subprotocol.as_deref() != Some("mqtt") {
                return Err(failed("the broker did not accept the sub-protocol `mqtt`"));
            }
            at = accepted.consumed;
            self.handshake = None;
            if !self.waiting.is_empty() {
                let waiting = std::mem::take(&mut self.waiting);
                encode_frame(
                    Opcode::Binary,
                    &waiting,
                    Some(self.keys.next_key()),
                    &mut self.replies,
                );
            }
        }
        self.decode_frames(buf, at)
    }

    fn decode_frames(&mut self, buf: &mut [u8], mut at: usize) -> Result<usize, TransportError> {
        let mut filled = 0;
        loop {
            let step = self.decoder.decode(&mut buf[at..]).map_err(failed)?;
            let consumed = step.consumed;
            // A chunk is always the last that was consumed.
            let chunk = match step.event {
                Some(DecoderEvent::Data { chunk, .. }) => chunk.len(),
                Some(DecoderEvent::Ping(payload)) => {
                    let key = self.keys.next_key();
                    encode_frame(Opcode::Pong, payload, Some(key), &mut self.replies);
                    0
                }
                Some(DecoderEvent::Pong(_)) => 0,
                Some(DecoderEvent::Close { code, reason }) => {
                    let code = code.map_or("none".to_owned(), |code| code.to_string());
                    return Err(failed(format!(
                        "the broker closed it with code {code}, reason `{reason}`"
                    )));
                }
                None => {
                    self.held.extend_from_slice(&buf[at + consumed..]);
                    return Ok(filled);
                }
            };
            at += consumed;
            buf.copy_within(at - chunk..at, filled);
            filled += chunk;
        }
    }
}
