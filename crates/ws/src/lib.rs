//! WebSocket (RFC 6455) without I/O, for both roles: bytes in, events out; no sockets, no clock, no async.
//!
//! A connection starts with [`ServerHandshake`] or [`ClientHandshake`], then goes through a [`Decoder`] in one
//! direction and [`encode_header`], [`encode_frame`] and [`encode_close`] in the other. The decoder hands out the
//! payload as it arrives, so that who reads a stream of bytes (MQTT) never holds a whole frame.
//! Extensions are never negotiated.

pub mod close;
mod decoder;
mod frame;
mod handshake;
mod mask;
mod utf8;

pub use decoder::{Decoder, DecoderOptions, Event, MAX_HELD_BACK_BYTES, Step};
pub use frame::{FrameHeader, MAX_HEADER_BYTES, Opcode, encode_close, encode_frame, encode_header};
pub use handshake::client::{ClientAccepted, ClientError, ClientHandshake, ClientRequest};
pub use handshake::server::{Accepted, Rejected, ServerHandshake, ServerOptions, ServerStep};
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
    /// One of [`close`]'s constants.
    pub code: u16,
    /// What was wrong; short enough to be the reason of a close frame.
    pub detail: &'static str,
}

impl Error {
    pub(crate) const fn protocol(detail: &'static str) -> Self {
        Self {
            code: close::PROTOCOL_ERROR,
            detail,
        }
    }
}
