//! Payloads of the frames that manage streams: OPEN, ACCEPT, REJECT, CANCEL, DONE, ACK, WINDOW, GOAWAY.

use std::fmt;

use content::{ContentDigest, DigestAlgorithm, RangeSet};
use disk::varint;

use crate::error_code::{ErrorCode, ProtocolError};
use crate::wire::payload::{PayloadReader, put_ranges, put_text};

/// Longest metadata of a stream.
pub const MAX_METADATA_BYTES: usize = 16 * 1024;
/// Longest text of an error; longer ones are cut.
pub const MAX_ERROR_TEXT_BYTES: usize = 512;
/// Largest size of a stream and largest number of a message.
pub const MAX_NUMBER: u64 = 1 << 62;

/// Flag of WINDOW on stream 0: the credit is that of all streams together, not of messages.
pub const WINDOW_FLAG_DATA: u8 = 4;
/// Flag of GOAWAY: the sender has nothing left to send or to receive.
pub const GOAWAY_FLAG_FINAL: u8 = 1;
/// Flag of GOAWAY: only this carrier ends; the link may continue on another one.
pub const GOAWAY_FLAG_CARRIER: u8 = 2;

/// Identifies a transfer over all links and restarts. Chosen at random by the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub [u8; 16]);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// The receiver collects the content in memory and delivers a message.
    Message = 0,
    /// The receiver delivers the content piece by piece.
    Stream = 1,
}

/// OPEN: announces a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    pub kind: StreamKind,
    /// The sender has been interrupted; it waits for ACCEPT before it sends data.
    pub is_resume: bool,
    /// Number of the message in the lane of its priority.
    pub number: u64,
    pub transfer_id: TransferId,
    /// `None`: not known in advance.
    pub size: Option<u64>,
    pub digest: Option<DigestAlgorithm>,
    /// For the application, such as a file name.
    pub metadata: Vec<u8>,
}

impl Open {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8 | u8::from(self.is_resume) << 1);
        varint::put(out, self.number);
        out.extend_from_slice(&self.transfer_id.0);
        varint::put(out, self.size.map_or(0, |size| size + 1));
        out.push(self.digest.map_or(0, |algorithm| algorithm as u8));
        put_text(out, &self.metadata);
    }

    pub fn decode(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = PayloadReader::new(payload, "OPEN has a missing or invalid field");
        let bits = reader.byte()?;
        let open =
            Self {
                kind: if bits & 1 == 0 {
                    StreamKind::Message
                } else {
                    StreamKind::Stream
                },
                is_resume: bits & 2 != 0,
                number: read_message_number(&mut reader)?,
                transfer_id: TransferId(reader.array()?),
                size: match reader.number()? {
                    0 => None,
                    size => Some(checked_number(size - 1)?),
                },
                digest: match reader.byte()? {
                    0 => None,
                    code => Some(DigestAlgorithm::from_code(code).ok_or(
                        ProtocolError::violation("OPEN names an unknown digest algorithm"),
                    )?),
                },
                metadata: reader.bytes(MAX_METADATA_BYTES)?.to_vec(),
            };
        reader.finish();
        Ok(open)
    }
}

/// ACCEPT: the answer to OPEN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accept {
    /// Bytes of DATA that may be sent on this stream and carrier in total.
    pub credit: u64,
    /// What need not be sent.
    pub received: RangeSet,
}

impl Accept {
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.credit);
        put_ranges(out, &self.received);
    }

    pub fn decode(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = PayloadReader::new(payload, "ACCEPT has a missing or invalid field");
        let accept = Self {
            credit: checked_number(reader.number()?)?,
            received: reader.ranges()?,
        };
        reader.finish();
        Ok(accept)
    }
}

/// REJECT and CANCEL: end a stream. The number of the message lets a receiver settle a stream that it does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancel {
    pub number: u64,
    pub code: ErrorCode,
    pub text: String,
}

impl Cancel {
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.number);
        put_error(out, self.code, &self.text);
    }

    pub fn decode(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader =
            PayloadReader::new(payload, "REJECT or CANCEL has a missing or invalid field");
        let number = read_message_number(&mut reader)?;
        let (code, text) = read_error(&mut reader)?;
        reader.finish();
        Ok(Self { number, code, text })
    }
}

/// DONE: all data of a stream has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    pub size: u64,
    pub digest: Option<ContentDigest>,
}

impl Done {
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.size);
        match self.digest {
            None => out.push(0),
            Some(digest) => {
                out.push(digest.algorithm as u8);
                out.extend_from_slice(&digest.bytes);
            }
        }
    }

    pub fn decode(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = PayloadReader::new(payload, "DONE has a missing or invalid field");
        let done = Self {
            size: checked_number(reader.number()?)?,
            digest: match reader.byte()? {
                0 => None,
                code => Some(ContentDigest {
                    algorithm: DigestAlgorithm::from_code(code).ok_or(ProtocolError::violation(
                        "DONE names an unknown digest algorithm",
                    ))?,
                    bytes: reader.array()?,
                }),
            },
        };
        reader.finish();
        Ok(done)
    }
}

/// GOAWAY: the link ends, or with [`GOAWAY_FLAG_CARRIER`] this carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoAway {
    pub code: ErrorCode,
    pub text: String,
}

impl GoAway {
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_error(out, self.code, &self.text);
    }

    pub fn decode(payload: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = PayloadReader::new(payload, "GOAWAY has a missing or invalid field");
        let (code, text) = read_error(&mut reader)?;
        reader.finish();
        Ok(Self { code, text })
    }
}

/// Encodes the ranges of an ACK.
pub fn encode_ack(ranges: &RangeSet, out: &mut Vec<u8>) {
    put_ranges(out, ranges);
}

pub fn decode_ack(payload: &[u8]) -> Result<RangeSet, ProtocolError> {
    let mut reader = PayloadReader::new(payload, "ACK has a missing or invalid field");
    let ranges = reader.ranges()?;
    reader.finish();
    Ok(ranges)
}

/// Encodes the credit of a WINDOW.
pub fn encode_window(credit: u64, out: &mut Vec<u8>) {
    varint::put(out, credit);
}

pub fn decode_window(payload: &[u8]) -> Result<u64, ProtocolError> {
    let mut reader = PayloadReader::new(payload, "WINDOW has a missing or invalid field");
    let credit = checked_number(reader.number()?)?;
    reader.finish();
    Ok(credit)
}

/// The eight bytes of PING, which PONG repeats.
pub fn decode_ping(payload: &[u8]) -> Result<u64, ProtocolError> {
    let mut reader = PayloadReader::new(payload, "PING or PONG does not have eight bytes");
    let nonce = u64::from_le_bytes(reader.array()?);
    reader.finish();
    Ok(nonce)
}

fn put_error(out: &mut Vec<u8>, code: ErrorCode, text: &str) {
    out.extend_from_slice(&code.0.to_le_bytes());
    let cut = text.floor_char_boundary(MAX_ERROR_TEXT_BYTES);
    put_text(out, &text.as_bytes()[..cut]);
}

fn read_error(reader: &mut PayloadReader<'_>) -> Result<(ErrorCode, String), ProtocolError> {
    let code = ErrorCode(u16::from_le_bytes(reader.array()?));
    Ok((code, reader.text(MAX_ERROR_TEXT_BYTES)?.to_owned()))
}

/// Sums of numbers below [`MAX_NUMBER`] do not overflow.
fn checked_number(number: u64) -> Result<u64, ProtocolError> {
    if number <= MAX_NUMBER {
        Ok(number)
    } else {
        Err(ProtocolError::violation("a number is larger than 2^62"))
    }
}

fn read_message_number(reader: &mut PayloadReader<'_>) -> Result<u64, ProtocolError> {
    let number = checked_number(reader.number()?)?;
    if number == 0 {
        return Err(ProtocolError::violation(
            "messages are numbered from 1, not from 0",
        ));
    }
    Ok(number)
}
