//! Compression of messages (permessage-deflate, RFC 7692): negotiation by the server, and both directions of data.
//!
//! The context is never taken over from one message to the next, in both directions. An idle connection therefore has no
//! window, and one compressed message may go to any number of receivers.

use std::fmt::Write as _;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::handshake::HeaderFields;
use crate::{Error, close_codes};

const EXTENSION: &str = "permessage-deflate";
/// Ends each compressed message; not transferred (section 7.2.1).
const TAIL: [u8; 4] = [0x00, 0x00, 0xff, 0xff];
/// Final blocks that a message may contain (section 7.2.3.4). Each costs a new window.
const MAX_FINAL_BLOCKS: u8 = 8;
/// About what [`Decompress`] takes: a window of 32 KiB, and tables.
const INFLATER_BYTES: usize = 44 * 1024;
/// Bytes decompressed at a time.
const PIECE_BYTES: usize = 8 * 1024;

/// Messages shorter than this are not worth the work of both sides.
const MIN_COMPRESSED_BYTES: usize = 256;
/// Longer messages are sent as they are: compressing them would hold up everything else on the thread.
const MAX_COMPRESSED_BYTES: usize = 1 << 20;

/// What a client and this server have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermessageDeflate {
    /// 8 to 15: the largest distance in what the server sends is a power of two with this exponent.
    server_max_window_bits: u8,
}

impl PermessageDeflate {
    /// Accepts the first valid offer (section 5).
    pub(crate) fn negotiate(fields: &HeaderFields<'_, '_>) -> Option<Self> {
        fields
            .list_values("sec-websocket-extensions")
            .find_map(Self::accept)
    }

    /// Checks one offer. A parameter that is unknown, repeated or out of range declines it (section 7.1).
    fn accept(offer: &str) -> Option<Self> {
        let mut parts = offer.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(EXTENSION) {
            return None;
        }
        let mut seen = Vec::new();
        let mut server_max_window_bits = 15;
        for parameter in parts {
            let (name, value) = match parameter.split_once('=') {
                Some((name, value)) => (name.trim(), Some(unquoted(value.trim()))),
                None => (parameter, None),
            };
            if seen.contains(&name) {
                return None;
            }
            seen.push(name);
            match (name, value) {
                ("server_no_context_takeover" | "client_no_context_takeover", None)
                | ("client_max_window_bits", None) => {}
                ("client_max_window_bits", Some(bits)) => drop(window_bits(bits)?),
                ("server_max_window_bits", Some(bits)) => {
                    server_max_window_bits = window_bits(bits)?;
                }
                _ => return None,
            }
        }
        Some(Self {
            server_max_window_bits,
        })
    }

    /// Appends the header line of the response.
    pub(crate) fn write_response(self, response: &mut String) {
        // Writing to a string cannot fail.
        let _ = write!(
            response,
            "Sec-WebSocket-Extensions: {EXTENSION}; server_no_context_takeover; client_no_context_takeover"
        );
        if self.server_max_window_bits < 15 {
            let _ = write!(
                response,
                "; server_max_window_bits={}",
                self.server_max_window_bits
            );
        }
        response.push_str("\r\n");
    }

    /// Whether a message may be sent compressed. The compressor uses the largest window. Distances in a message cannot
    /// exceed its length, so a receiver with a smaller window gets only messages compressed that fit into it.
    pub fn permits(self, payload_bytes: usize) -> bool {
        let max_bytes = match self.server_max_window_bits {
            15 => MAX_COMPRESSED_BYTES,
            bits => 1 << bits,
        };
        (MIN_COMPRESSED_BYTES..=max_bytes).contains(&payload_bytes)
    }
}

fn unquoted(value: &str) -> &str {
    let inner = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or(value)
}

fn window_bits(value: &str) -> Option<u8> {
    let bits = value.parse().ok()?;
    let is_plain = !value.starts_with(['0', '+']);
    (is_plain && (8..=15).contains(&bits)).then_some(bits)
}

/// The most bytes of a compressed message whose content has `max_message_bytes`: incompressible content becomes longer.
pub(crate) const fn max_compressed_bytes(max_message_bytes: u64) -> u64 {
    max_message_bytes
        .saturating_add(max_message_bytes / 8)
        .saturating_add(1024)
}

/// Decompresses the messages of one connection. It has memory only while a message is incomplete.
#[derive(Debug, Default)]
pub struct Inflater {
    stream: Option<Decompress>,
    /// Bytes of the message so far, before decompression.
    received_bytes: usize,
    final_blocks: u8,
    /// Bytes of [`TAIL`] that are processed.
    tail_bytes: usize,
}

impl Inflater {
    /// Whether a message is incomplete.
    pub fn is_active(&self) -> bool {
        self.stream.is_some()
    }

    /// Bytes that have arrived of an incomplete message, before decompression.
    pub fn received_bytes(&self) -> usize {
        self.received_bytes
    }

    /// Memory for an incomplete message, beside what is decompressed.
    pub fn memory_bytes(&self) -> usize {
        match self.is_active() {
            true => INFLATER_BYTES,
            false => 0,
        }
    }

    /// Decompresses the next bytes of a message and appends at most `max_bytes` to `out`. Returns the number of bytes of
    /// `chunk` processed, and whether nothing more follows from them. Otherwise call again with the rest, even if it is
    /// empty. `is_end_of_message`: `chunk` is the end of the message.
    pub fn inflate(
        &mut self,
        chunk: &[u8],
        is_end_of_message: bool,
        out: &mut Vec<u8>,
        max_bytes: usize,
    ) -> Result<(usize, bool), Error> {
        let stream = self.stream.get_or_insert_with(|| Decompress::new(false));
        let limit = out.len().saturating_add(max_bytes);
        let mut consumed = 0;
        loop {
            let is_tail = consumed == chunk.len() && is_end_of_message;
            let input = match is_tail {
                true => &TAIL[self.tail_bytes..],
                false => &chunk[consumed..],
            };
            let start = out.len();
            if start == limit {
                return Ok((consumed, false));
            }
            out.resize(start + PIECE_BYTES.min(limit - start), 0);
            let (total_in, total_out) = (stream.total_in(), stream.total_out());
            let result = stream.decompress(input, &mut out[start..], FlushDecompress::None);
            let taken = (stream.total_in() - total_in) as usize;
            let written = (stream.total_out() - total_out) as usize;
            let is_full = start + written == out.len();
            out.truncate(start + written);
            match is_tail {
                true => self.tail_bytes += taken,
                false => {
                    consumed += taken;
                    self.received_bytes += taken;
                }
            }
            match result {
                Ok(Status::StreamEnd) => {
                    self.final_blocks += 1;
                    if self.final_blocks > MAX_FINAL_BLOCKS {
                        return Err(invalid("compressed message with too many final blocks"));
                    }
                    stream.reset(false);
                    continue;
                }
                Ok(_) => {}
                Err(_) => return Err(invalid("message is not valid compressed data")),
            }
            if is_full {
                continue;
            }
            if taken < input.len() {
                if taken == 0 && written == 0 {
                    return Err(invalid("message is not valid compressed data"));
                }
                continue;
            }
            if is_tail {
                *self = Self::default();
                return Ok((consumed, true));
            }
            if !is_end_of_message {
                return Ok((consumed, true));
            }
        }
    }
}

const fn invalid(detail: &'static str) -> Error {
    Error {
        code: close_codes::INVALID_PAYLOAD,
        detail,
    }
}

/// Compresses messages, each by itself; for any number of connections. It takes about 300 KiB once it is used.
#[derive(Debug, Default)]
pub struct Deflater {
    stream: Option<Compress>,
}

impl Deflater {
    /// Appends the compressed form of a message to `out`, for a frame with
    /// [`FrameHeader::with_compressed_flag`](crate::FrameHeader::with_compressed_flag). Returns false, and appends
    /// nothing, if it is not shorter than the message.
    pub fn deflate(&mut self, payload: &[u8], out: &mut Vec<u8>) -> bool {
        // The fastest level: shards do this work beside their messages.
        let stream = self
            .stream
            .get_or_insert_with(|| Compress::new(Compression::fast(), false));
        stream.reset();
        let start = out.len();
        out.resize(start + payload.len(), 0);
        let result = stream.compress(payload, &mut out[start..], FlushCompress::Sync);
        let written = stream.total_out() as usize;
        out.truncate(start + written);
        // Only output that has filled its buffer may be incomplete.
        let is_complete = result.is_ok()
            && stream.total_in() == payload.len() as u64
            && written < payload.len()
            && out.ends_with(&TAIL);
        out.truncate(match is_complete {
            true => out.len() - TAIL.len(),
            false => start,
        });
        is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(value: &str) -> Option<String> {
        let headers = [httparse::Header {
            name: "Sec-WebSocket-Extensions",
            value: value.as_bytes(),
        }];
        let chosen = PermessageDeflate::negotiate(&HeaderFields(&headers))?;
        let mut response = String::new();
        chosen.write_response(&mut response);
        let parameters = response.strip_prefix("Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover");
        Some(parameters.unwrap().trim_end().to_owned())
    }

    #[test]
    fn the_first_valid_offer_is_accepted() {
        for (offered, expected) in [
            ("permessage-deflate", Some("")),
            ("permessage-deflate; client_max_window_bits", Some("")),
            (
                "permessage-deflate; client_no_context_takeover; server_no_context_takeover",
                Some(""),
            ),
            (
                "permessage-deflate; server_max_window_bits=10; client_max_window_bits=8",
                Some("; server_max_window_bits=10"),
            ),
            (
                "permessage-deflate; server_max_window_bits=\"9\"",
                Some("; server_max_window_bits=9"),
            ),
            ("permessage-deflate;server_max_window_bits=15", Some("")),
            (
                "x-other, permessage-deflate; unknown, Permessage-Deflate; server_max_window_bits=8",
                Some("; server_max_window_bits=8"),
            ),
            ("x-webkit-deflate-frame", None),
            ("permessage-deflate; unknown", None),
            ("permessage-deflate; server_max_window_bits", None),
            ("permessage-deflate; server_max_window_bits=7", None),
            ("permessage-deflate; server_max_window_bits=16", None),
            ("permessage-deflate; server_max_window_bits=010", None),
            ("permessage-deflate; client_max_window_bits=16", None),
            ("permessage-deflate; client_max_window_bits=", None),
            ("permessage-deflate; server_no_context_takeover=1", None),
            (
                "permessage-deflate; server_max_window_bits=9; server_max_window_bits=9",
                None,
            ),
        ] {
            assert_eq!(offer(offered).as_deref(), expected, "{offered}");
        }
    }

    #[test]
    fn a_small_window_limits_which_messages_are_compressed() {
        let small = PermessageDeflate {
            server_max_window_bits: 9,
        };
        for (payload_bytes, expected) in [(255, false), (256, true), (512, true), (513, false)] {
            assert_eq!(small.permits(payload_bytes), expected, "{payload_bytes}");
        }
        let full = PermessageDeflate {
            server_max_window_bits: 15,
        };
        for (payload_bytes, expected) in [(255, false), (1 << 20, true), ((1 << 20) + 1, false)] {
            assert_eq!(full.permits(payload_bytes), expected, "{payload_bytes}");
        }
    }

    /// Decompresses a message that arrives in `pieces`, at most `max_bytes` at a time.
    fn inflate(pieces: &[&[u8]], max_bytes: usize) -> Result<Vec<u8>, Error> {
        let mut inflater = Inflater::default();
        let mut out = Vec::new();
        for (n, piece) in pieces.iter().enumerate() {
            let mut rest = *piece;
            loop {
                let before = out.len();
                let is_end = n + 1 == pieces.len();
                let (consumed, is_done) = inflater.inflate(rest, is_end, &mut out, max_bytes)?;
                assert!(out.len() - before <= max_bytes);
                rest = &rest[consumed..];
                if is_done {
                    assert!(rest.is_empty());
                    break;
                }
            }
        }
        assert!(!inflater.is_active());
        Ok(out)
    }

    #[test]
    fn the_examples_of_section_7_2_3() {
        let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
        let without_compression = [
            0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00,
        ];
        let final_block = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
        let two_blocks = [
            0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00,
        ];
        for message in [&hello[..], &without_compression, &final_block, &two_blocks] {
            for cut in 0..=message.len() {
                let (left, right) = message.split_at(cut);
                for max_bytes in [1, 5, 100] {
                    let result = inflate(&[left, right], max_bytes);
                    assert_eq!(result.unwrap(), b"Hello", "{message:?} cut at {cut}");
                }
            }
        }
        assert_eq!(inflate(&[&[0x00]], 100).unwrap(), b"");
    }

    #[test]
    fn invalid_data_is_an_error() {
        for message in [
            &[0xff; 20][..],
            &[0x07],
            &[0x00, 0x05, 0x00, 0x00, 0x00, 0x48],
            &[0x03, 0x00].repeat(1000),
        ] {
            let error = inflate(&[message], 100).unwrap_err();
            assert_eq!(error.code, close_codes::INVALID_PAYLOAD, "{message:?}");
        }
    }

    #[test]
    fn incompressible_messages_are_left_as_they_are() {
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..100_000)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let mut out = b"before".to_vec();
        assert!(!Deflater::default().deflate(&noise, &mut out));
        assert_eq!(out, b"before");
        assert!(!Deflater::default().deflate(b"", &mut out));
    }

    proptest! {
        #[test]
        fn compressed_messages_are_read_back(
            words in proptest::collection::vec(0usize..40, 0..3000),
            repeat in 1usize..40,
            cut in 0usize..3000,
            max_bytes in 1usize..5000,
        ) {
            let payload: Vec<u8> = words
                .iter()
                .flat_map(|word| format!("{{\"key{word}\":{}}}", word * 7919).into_bytes())
                .collect::<Vec<u8>>()
                .repeat(repeat);
            let mut deflater = Deflater::default();
            // The context of an earlier message is not used.
            deflater.deflate(&payload, &mut Vec::new());
            let mut out = Vec::new();
            if deflater.deflate(&payload, &mut out) {
                let (left, right) = out.split_at(cut.min(out.len()));
                prop_assert_eq!(inflate(&[left, right], max_bytes).unwrap(), payload);
            } else {
                prop_assert!(payload.len() < 200);
            }
        }

        #[test]
        fn arbitrary_data_never_panics(data: Vec<u8>, max_bytes in 1usize..500) {
            let _ = inflate(&[&data], max_bytes);
        }
    }
}
