//! The reading half of a connection: frames come in, payload is returned as soon as its bytes arrive.
//!
//! The state covers one frame and takes less than 64 bytes: the rest of the data frame in progress, its
//! message, the mask. Headers and control frames are not copied; until they are complete they stay in the
//! caller's buffer, at most [`MAX_UNCONSUMED_BYTES`].

use crate::deflate::max_compressed_bytes;
use crate::frame::{IncomingHeader, MAX_CONTROL_PAYLOAD_BYTES, Opcode};
use crate::mask::apply_mask;
use crate::utf8_validator::Utf8Validator;
use crate::{Error, Role, close_codes};

/// The most bytes that a caller has to retain when [`Decoder::decode`] needs more: a masked control frame
/// without its last byte.
pub const MAX_UNCONSUMED_BYTES: usize = 2 + 4 + MAX_CONTROL_PAYLOAD_BYTES - 1;

#[derive(Debug, Clone, Copy)]
pub struct DecoderOptions {
    /// The local role.
    pub role: Role,
    /// Reject text messages with close code 1003, as MQTT requires. Otherwise text is validated as UTF-8.
    pub refuse_text: bool,
    /// Maximum length of a message over all its fragments; a compressed one may be slightly longer. The decoder's memory does not depend on it; it
    /// protects callers that collect messages.
    pub max_message_bytes: u64,
    /// Whether compression was negotiated ([`PermessageDeflate`](crate::PermessageDeflate)).
    pub has_compression: bool,
}

impl DecoderOptions {
    /// Options for a byte stream in binary frames, such as MQTT: no text, messages of any length.
    pub const fn byte_stream(role: Role) -> Self {
        Self {
            role,
            refuse_text: true,
            max_message_bytes: u64::MAX,
            has_compression: false,
        }
    }
}

/// A decoded event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecoderEvent<'a> {
    /// The next unmasked piece of a message: the rest of a frame, or the part that has arrived. A piece of
    /// text may end within a character. Control frames may arrive between the pieces of a message.
    Data {
        chunk: &'a [u8],
        is_binary: bool,
        /// The message is compressed: pass all its pieces to an [`Inflater`](crate::Inflater), limit the result and check
        /// that text is UTF-8.
        is_compressed: bool,
        is_end_of_message: bool,
    },
    /// A ping with at most 125 bytes. The caller answers with a pong that has the same payload.
    Ping(&'a [u8]),
    Pong(&'a [u8]),
    /// The peer closes the connection. Unless the caller has sent a close frame, it answers with one. No more
    /// events follow.
    Close {
        code: Option<u16>,
        reason: &'a str,
    },
}

/// The result of one decoding step.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodeStep<'a> {
    /// `None`: more bytes are needed.
    pub event: Option<DecoderEvent<'a>>,
    /// Bytes of the buffer that are processed, even if there is no event.
    pub consumed: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageKind {
    None,
    Text,
    Binary,
}

#[derive(Debug)]
pub struct Decoder {
    /// Bytes of the current data frame's payload that have not been returned.
    frame_remaining_bytes: u64,
    /// Length of the current message according to the frame headers so far.
    message_bytes: u64,
    max_message_bytes: u64,
    /// The mask, rotated for the next payload byte.
    mask: [u8; 4],
    utf8: Utf8Validator,
    role: Role,
    refuse_text: bool,
    has_compression: bool,
    message: MessageKind,
    message_is_compressed: bool,
    is_in_frame: bool,
    frame_is_final: bool,
    is_closed: bool,
}

impl Decoder {
    pub fn new(options: DecoderOptions) -> Self {
        Self {
            frame_remaining_bytes: 0,
            message_bytes: 0,
            max_message_bytes: options.max_message_bytes,
            mask: [0; 4],
            utf8: Utf8Validator::default(),
            role: options.role,
            refuse_text: options.refuse_text,
            has_compression: options.has_compression,
            message: MessageKind::None,
            message_is_compressed: false,
            is_in_frame: false,
            frame_is_final: false,
            is_closed: false,
        }
    }

    /// Decodes the next event at the front of `buf`, unmasking it in place. Call again with the bytes after
    /// `consumed` until there is no event; then retain the remaining bytes in front of new ones.
    ///
    /// After an error and after [`DecoderEvent::Close`] all input is consumed and ignored (section 7.1.7).
    #[inline]
    pub fn decode<'a>(&mut self, buf: &'a mut [u8]) -> Result<DecodeStep<'a>, Error> {
        if self.is_closed {
            let consumed = buf.len();
            return Ok(DecodeStep {
                event: None,
                consumed,
            });
        }
        self.next_step(buf).inspect_err(|_| self.is_closed = true)
    }

    /// Ignores further input, as after an error: for callers that reject what a message contains.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether the peer has closed the connection or violated the protocol.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn next_step<'a>(&mut self, buf: &'a mut [u8]) -> Result<DecodeStep<'a>, Error> {
        let mut at = 0;
        while !self.is_in_frame {
            let parsed = IncomingHeader::parse(&buf[at..], self.role, self.has_compression)?;
            let Some(header) = parsed else {
                return Ok(DecodeStep {
                    event: None,
                    consumed: at,
                });
            };
            if header.opcode.is_control() {
                return self.take_control_frame(header, buf, at);
            }
            self.begin_data_frame(&header)?;
            at += header.header_bytes;
        }
        self.take_payload(buf, at)
    }

    /// Checks a data frame's header against the current message. Empty fragments that do not end a message are
    /// skipped.
    #[inline]
    fn begin_data_frame(&mut self, header: &IncomingHeader) -> Result<(), Error> {
        match (header.opcode, self.message) {
            (Opcode::Continuation, MessageKind::None) => {
                return Err(Error::protocol_error(
                    "continuation frame outside a message",
                ));
            }
            (Opcode::Continuation, _) => {}
            (_, MessageKind::Text | MessageKind::Binary) => {
                return Err(Error::protocol_error("new message inside a fragmented one"));
            }
            (Opcode::Text, MessageKind::None) if self.refuse_text => {
                return Err(Error {
                    code: close_codes::UNSUPPORTED_DATA,
                    detail: "text frame where only binary frames are accepted",
                });
            }
            (Opcode::Text, MessageKind::None) => self.begin_message(MessageKind::Text, header),
            (_, MessageKind::None) => self.begin_message(MessageKind::Binary, header),
        }
        self.message_bytes = self.message_bytes.saturating_add(header.payload_bytes);
        let max_bytes = match self.message_is_compressed {
            true => max_compressed_bytes(self.max_message_bytes),
            false => self.max_message_bytes,
        };
        if self.message_bytes > max_bytes {
            return Err(Error {
                code: close_codes::MESSAGE_TOO_BIG,
                detail: "message longer than accepted",
            });
        }
        self.frame_remaining_bytes = header.payload_bytes;
        self.frame_is_final = header.is_final;
        self.mask = header.mask;
        self.is_in_frame = header.is_final || header.payload_bytes > 0;
        Ok(())
    }

    fn begin_message(&mut self, message: MessageKind, header: &IncomingHeader) {
        self.message = message;
        self.message_is_compressed = header.is_compressed;
        self.message_bytes = 0;
        self.utf8 = Utf8Validator::default();
    }

    /// Returns the available part of the payload, which continues at `at`.
    #[inline]
    fn take_payload<'a>(&mut self, buf: &'a mut [u8], at: usize) -> Result<DecodeStep<'a>, Error> {
        let available = buf.len() - at;
        let take = usize::try_from(self.frame_remaining_bytes)
            .map_or(available, |remaining| remaining.min(available));
        if take == 0 && self.frame_remaining_bytes > 0 {
            return Ok(DecodeStep {
                event: None,
                consumed: at,
            });
        }
        let chunk = &mut buf[at..at + take];
        if self.role == Role::Server {
            self.mask = apply_mask(chunk, self.mask);
        }
        self.frame_remaining_bytes -= take as u64;
        self.is_in_frame = self.frame_remaining_bytes > 0;
        let end_of_message = !self.is_in_frame && self.frame_is_final;
        let binary = self.message == MessageKind::Binary;
        let compressed = self.message_is_compressed;
        if !binary
            && !compressed
            && !(self.utf8.accept(chunk) && (!end_of_message || self.utf8.is_complete()))
        {
            return Err(Error {
                code: close_codes::INVALID_PAYLOAD,
                detail: "text message is not UTF-8",
            });
        }
        if end_of_message {
            self.message = MessageKind::None;
        }
        Ok(DecodeStep {
            event: Some(DecoderEvent::Data {
                chunk,
                is_binary: binary,
                is_compressed: compressed,
                is_end_of_message: end_of_message,
            }),
            consumed: at + take,
        })
    }

    fn take_control_frame<'a>(
        &mut self,
        header: IncomingHeader,
        buf: &'a mut [u8],
        at: usize,
    ) -> Result<DecodeStep<'a>, Error> {
        let start = at + header.header_bytes;
        // `IncomingHeader::parse` limits it to 125.
        let end = start + header.payload_bytes as usize;
        let Some(payload) = buf.get_mut(start..end) else {
            return Ok(DecodeStep {
                event: None,
                consumed: at,
            });
        };
        if self.role == Role::Server {
            apply_mask(payload, header.mask);
        }
        let event = match header.opcode {
            Opcode::Ping => DecoderEvent::Ping(payload),
            Opcode::Pong => DecoderEvent::Pong(payload),
            _ => {
                self.is_closed = true;
                parse_close(payload)?
            }
        };
        Ok(DecodeStep {
            event: Some(event),
            consumed: end,
        })
    }
}

fn parse_close(payload: &[u8]) -> Result<DecoderEvent<'_>, Error> {
    if payload.is_empty() {
        return Ok(DecoderEvent::Close {
            code: None,
            reason: "",
        });
    }
    let Some((&code, reason)) = payload.split_first_chunk::<2>() else {
        return Err(Error::protocol_error("close frame with half a close code"));
    };
    let code = u16::from_be_bytes(code);
    if !close_codes::is_valid_on_wire(code) {
        return Err(Error::protocol_error("close code that may not be sent"));
    }
    let Ok(reason) = std::str::from_utf8(reason) else {
        return Err(Error {
            code: close_codes::INVALID_PAYLOAD,
            detail: "close reason is not UTF-8",
        });
    };
    Ok(DecoderEvent::Close {
        code: Some(code),
        reason,
    })
}
