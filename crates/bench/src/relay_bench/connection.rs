//! One WebSocket connection of the generator: the handshake, then whole messages in and frames out.

use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use ws::{
    ClientHandshake, ClientRequest, Decoder, DecoderEvent, DecoderOptions, MaskKeys, Opcode, Role,
    encode_frame,
};

use crate::client_error::ClientError;
use crate::host::now_ns;
use crate::transport::{TransportError, read_some, start_connect, write_some};

/// Longest message that is accepted.
const MAX_MESSAGE_BYTES: u64 = 32 << 20;

/// Turns the bytes of a connection into messages: the response to the handshake, then frames.
pub(super) struct MessageDecoder {
    handshake: Option<ClientHandshake>,
    decoder: Decoder,
    /// Beginning of the response, of a frame header or of a control frame.
    incomplete: Vec<u8>,
    /// Beginning of a message.
    message: Vec<u8>,
}

/// A connection that is being made, or open.
pub(super) struct RelayConnection {
    stream: TcpStream,
    decoder: MessageDecoder,
    /// What the socket did not take, from `unsent_at` on.
    unsent: Vec<u8>,
    unsent_at: usize,
}

/// What a read has brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOutcome {
    /// The socket may hold more: read again before waiting for an event.
    pub(super) more: bool,
    /// The handshake has ended with this read.
    pub(super) is_accepted: bool,
}

fn failed(reason: impl std::fmt::Display) -> ClientError {
    TransportError::WebSocket(reason.to_string()).into()
}

impl MessageDecoder {
    /// A connection to be, and the request that opens it.
    pub(super) fn start(host: &str, path: &str) -> Result<(Self, Vec<u8>), ClientError> {
        let (handshake, request) = ClientHandshake::start(&ClientRequest {
            host,
            path,
            subprotocols: &[],
            headers: &[],
        })
        .map_err(failed)?;
        let decoder = Self {
            handshake: Some(handshake),
            decoder: Decoder::new(DecoderOptions {
                role: Role::Client,
                refuse_text: false,
                max_message_bytes: MAX_MESSAGE_BYTES,
                has_compression: false,
            }),
            incomplete: Vec::new(),
            message: Vec::new(),
        };
        Ok((decoder, request))
    }

    /// Copies the bytes that were not complete to the front of `buf`; returns how many. New bytes belong behind them.
    pub(super) fn restore_incomplete(&mut self, buf: &mut [u8]) -> usize {
        let held = self.incomplete.len();
        buf[..held].copy_from_slice(&self.incomplete);
        self.incomplete.clear();
        held
    }

    /// Decodes all of `received` and passes on each message. Answers to pings are appended to `replies`. Returns whether
    /// the handshake has ended.
    #[inline]
    pub(super) fn decode(
        &mut self,
        received: &mut [u8],
        keys: &mut MaskKeys,
        replies: &mut Vec<u8>,
        mut on_message: impl FnMut(&[u8]),
    ) -> Result<bool, ClientError> {
        let mut at = 0;
        let mut is_accepted = false;
        if let Some(handshake) = &mut self.handshake {
            let Some(accepted) = handshake.feed(received).map_err(failed)? else {
                self.incomplete.extend_from_slice(received);
                return Ok(false);
            };
            at = accepted.consumed;
            self.handshake = None;
            is_accepted = true;
        }
        loop {
            let step = self.decoder.decode(&mut received[at..]).map_err(failed)?;
            let consumed = step.consumed;
            match step.event {
                Some(DecoderEvent::Data {
                    chunk,
                    is_end_of_message,
                    ..
                }) => {
                    if is_end_of_message && self.message.is_empty() {
                        on_message(chunk);
                    } else {
                        self.message.extend_from_slice(chunk);
                        if is_end_of_message {
                            on_message(&self.message);
                            self.message = Vec::new();
                        }
                    }
                }
                Some(DecoderEvent::Ping(payload)) => {
                    encode_frame(Opcode::Pong, payload, Some(keys.next_key()), replies);
                }
                Some(DecoderEvent::Pong(_)) => {}
                Some(DecoderEvent::Close { code, reason }) => {
                    let code = code.map_or("no code".to_owned(), |code| format!("code {code}"));
                    return Err(failed(format!(
                        "the relay closed the connection with {code} and reason `{reason}`"
                    )));
                }
                None => {
                    self.incomplete
                        .extend_from_slice(&received[at + consumed..]);
                    return Ok(is_accepted);
                }
            }
            at += consumed;
        }
    }
}

impl RelayConnection {
    /// Starts to connect; the poll reports under `token`.
    pub(super) fn connect(
        target: SocketAddr,
        source: Option<SocketAddr>,
        host: &str,
        path: &str,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, ClientError> {
        let (decoder, request) = MessageDecoder::start(host, path)?;
        let mut stream = start_connect(target, source).map_err(TransportError::from)?;
        registry
            .register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)
            .map_err(TransportError::from)?;
        Ok(Self {
            stream,
            decoder,
            unsent: request,
            unsent_at: 0,
        })
    }

    /// What went wrong, after the poll has reported an error.
    pub(super) fn take_error(&self) -> ClientError {
        match self.stream.take_error() {
            Ok(Some(error)) | Err(error) => TransportError::from(error).into(),
            Ok(None) => TransportError::Closed.into(),
        }
    }

    /// Whether bytes wait for the socket to become writable.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        self.unsent_at < self.unsent.len()
    }

    /// Sends frames, or keeps what the socket does not take.
    #[inline]
    pub(super) fn send(&mut self, frames: &[u8]) -> Result<(), ClientError> {
        if self.has_backlog() {
            self.unsent.extend_from_slice(frames);
            return Ok(());
        }
        let written = write_some(&mut self.stream, frames)?;
        self.unsent.extend_from_slice(&frames[written..]);
        Ok(())
    }

    /// Writes what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), ClientError> {
        if self.has_backlog() {
            self.unsent_at += write_some(&mut self.stream, &self.unsent[self.unsent_at..])?;
            if !self.has_backlog() {
                // Most connections only ever send the request.
                self.unsent = Vec::new();
                self.unsent_at = 0;
            }
        }
        Ok(())
    }

    /// Reads once into `inbox` and passes on each message with the time of the read. Pings are answered.
    #[inline]
    pub(super) fn receive(
        &mut self,
        inbox: &mut [u8],
        keys: &mut MaskKeys,
        mut on_message: impl FnMut(&[u8], u64),
    ) -> Result<ReadOutcome, ClientError> {
        let held = self.decoder.restore_incomplete(inbox);
        let bytes = read_some(&mut self.stream, &mut inbox[held..])?;
        let read_ns = now_ns();
        let mut replies = Vec::new();
        let is_accepted =
            self.decoder
                .decode(&mut inbox[..held + bytes], keys, &mut replies, |message| {
                    on_message(message, read_ns)
                })?;
        if !replies.is_empty() {
            self.send(&replies)?;
        }
        Ok(ReadOutcome {
            more: held + bytes == inbox.len(),
            is_accepted,
        })
    }
}
