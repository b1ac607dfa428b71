//! WebSocket (RFC 6455) without I/O, for both roles: bytes in, events out; no sockets, no clock, no async.
//!
//! A connection starts with [`ServerHandshake`] or [`ClientHandshake`]. Then a [`Decoder`] reads frames, and
//! [`encode_header`], [`encode_frame`] and [`encode_close`] write them. The decoder returns payload as it
//! arrives, so that the reader of a byte stream (MQTT) never buffers a whole frame. A server may negotiate the compression
//! of messages: [`Inflater`] reads the compressed messages that a decoder returns, and [`Deflater`] writes them.

pub mod close_codes;
mod decoder;
mod deflate;
mod frame;
mod handshake;
mod mask;
mod utf8_validator;

pub use decoder::{DecodeStep, Decoder, DecoderEvent, DecoderOptions, MAX_UNCONSUMED_BYTES};
pub use deflate::{Deflater, Inflater, PermessageDeflate};
pub use frame::{FrameHeader, MAX_HEADER_BYTES, Opcode, encode_close, encode_frame, encode_header};
pub use handshake::client::{
    ClientHandshake, ClientHandshakeAccepted, ClientHandshakeError, ClientRequest,
};
pub use handshake::server::{
    PrefixPath, ServerHandshake, ServerHandshakeAccepted, ServerHandshakeRejected,
    ServerHandshakeStep, ServerOptions, is_origin,
};
pub use handshake::{DEFAULT_MAX_HEADER_BYTES, accept_key};
pub use mask::{MaskKeys, apply_mask};

/// The role of this end of the connection: a server reads masked frames and writes unmasked ones, a client the
/// reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

/// The peer violated the protocol or a limit: send a close frame with `code` and close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{detail} (close code {code})")]
pub struct Error {
    /// A constant of [`close_codes`].
    pub code: u16,
    /// The violation; short enough for the reason of a close frame.
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
