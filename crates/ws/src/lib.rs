//! WebSocket (RFC 6455) without I/O, for both roles: bytes in, events out; no sockets, no clock, no async.
//!
//! A connection starts with [`ServerHandshake`] or [`ClientHandshake`], then goes through a [`Decoder`] in one
//! direction and [`encode_header`], [`encode_frame`] and [`encode_close`] in the other. The decoder hands out the
//! payload as it arrives, so that who reads a stream of bytes (MQTT) never holds a whole frame.
//! Extensions are never negotiated.

pub mod close_codes;
mod decoder;
mod frame;
mod handshake;
mod mask;
mod utf8_validator;

pub use decoder::{DecodeStep, Decoder, DecoderEvent, DecoderOptions, MAX_UNCONSUMED_BYTES};
pub use frame::{FrameHeader, MAX_HEADER_BYTES, Opcode, encode_close, encode_frame, encode_header};
pub use handshake::client::{
    ClientHandshake, ClientHandshakeAccepted, ClientHandshakeError, ClientRequest,
};
pub use handshake::server::{
    ServerHandshake, ServerHandshakeAccepted, ServerHandshakeRejected, ServerHandshakeStep,
    ServerOptions,
};
pub use handshake::{DEFAULT_MAX_HEADER_BYTES, accept_key};
pub use mask::{MaskKeys, apply_mask};

/// Which end of the connection we are: a server reads masked frames and writes plain ones, a client the reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

/// The peer broke the protocol or a bound: send a close frame with `code` and close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{detail} (close code {code})")]
pub struct Error {
    /// One of [`close_codes`]'s constants.
    pub code: u16,
    /// What was wrong; short enough to be the reason of a close frame.
    pub detail: &'static str,
}

impl Error {
    pub(crate) const fn protocol_error(detail: &'static str) -> Self {
        Self {
            code: close_codes::PROTOCOL_ERROR,
            detail,
        }
    }
}
