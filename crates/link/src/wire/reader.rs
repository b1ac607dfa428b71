//! The reading half of a carrier: bytes come in, frames with verified checksums come out.
//!
//! Small frames are slices of one buffer. The payload of a large frame is read straight into a buffer of its own,
//! which is used again when the application has dropped it.

use std::collections::VecDeque;

use bytes::buf::{BufMut as _, Limit};
use bytes::{Bytes, BytesMut};

use crate::error_code::ProtocolError;
use crate::wire::handshake::MAX_HANDSHAKE_BYTES;
use crate::wire::header::{FrameHeader, FrameType, HEADER_BYTES};

/// Capacity for small frames.
const SHARED_BUFFER_BYTES: usize = 128 * 1024;
/// Frames from this size on get a buffer of their own.
const OWN_BUFFER_BYTES: usize = 16 * 1024;
/// Buffers of large frames that are kept for the next ones.
const MAX_RECYCLED_BUFFERS: usize = 16;
const MAX_RECYCLED_BYTES: usize = 8 * 1024 * 1024;

/// A received frame, whose checksum matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub frame_type: FrameType,
    pub flags: u8,
    pub stream: u32,
    pub payload: Bytes,
}

/// Splits the bytes of a carrier into frames.
///
/// The caller reads into [`buffer`](Self::buffer), then takes frames from [`next_frame`](Self::next_frame) until there
/// is none. After an error the reader must not be used any more. At most one frame is buffered.
#[derive(Debug)]
pub struct FrameReader {
    shared: BytesMut,
    /// The large frame whose payload is being read, and what has been read of it.
    large: Option<(FrameHeader, BytesMut)>,
    /// The last frame was large, so that the next one probably is.
    expects_large: bool,
    max_payload_bytes: u32,
    recycled: VecDeque<Bytes>,
    recycled_bytes: usize,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameReader {
    /// A reader for the begin of a carrier, which accepts frames of the size of HELLO.
    pub fn new() -> Self {
        Self {
            shared: BytesMut::new(),
            large: None,
            expects_large: false,
            max_payload_bytes: MAX_HANDSHAKE_BYTES,
            recycled: VecDeque::new(),
            recycled_bytes: 0,
        }
    }

    /// Sets the longest payload that is accepted from now on.
    pub fn set_max_payload_bytes(&mut self, max: u32) {
        self.max_payload_bytes = max;
    }

    /// The buffer for the next bytes of the carrier; it is not empty.
    pub fn buffer(&mut self) -> Limit<&mut BytesMut> {
        if let Some((header, payload)) = &mut self.large {
            let missing = header.payload_bytes as usize - payload.len();
            return payload.limit(missing);
        }
        let room = SHARED_BUFFER_BYTES - self.shared.len().min(SHARED_BUFFER_BYTES / 2);
        // What is read beyond the header of a large frame must be copied.
        let wanted = if self.expects_large && self.shared.len() < HEADER_BYTES {
            HEADER_BYTES - self.shared.len()
        } else {
            room
        };
        if self.shared.capacity() - self.shared.len() < wanted {
            self.shared.reserve(room);
        }
        (&mut self.shared).limit(wanted)
    }

    /// Adds bytes to the input, for callers that have them elsewhere.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if let Some((header, payload)) = &mut self.large {
            let missing = header.payload_bytes as usize - payload.len();
            let (now, rest) = bytes.split_at(missing.min(bytes.len()));
            payload.extend_from_slice(now);
            bytes = rest;
        }
        self.shared.extend_from_slice(bytes);
    }

    /// The next complete frame; `None`: more bytes are needed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ProtocolError> {
        if self.large.is_none() && !self.begin_frame()? {
            return Ok(None);
        }
        let Some((header, payload)) = self.large.take() else {
            return Ok(None);
        };
        if payload.len() < header.payload_bytes as usize {
            self.large = Some((header, payload));
            return Ok(None);
        }
        let is_large = payload.len() >= OWN_BUFFER_BYTES;
        let payload = payload.freeze();
        if !header.matches(&payload) {
            return Err(ProtocolError::corrupted(
                "the checksum of a frame does not match",
            ));
        }
        if is_large {
            self.recycle(payload.clone());
        }
        self.expects_large = is_large;
        Ok(Some(Frame {
            frame_type: header.frame_type,
            flags: header.flags,
            stream: header.stream,
            payload,
        }))
    }

    /// Parses the next header. Returns whether a payload, perhaps incomplete, is in `large`.
    fn begin_frame(&mut self) -> Result<bool, ProtocolError> {
        let Some(bytes) = self.shared.first_chunk::<HEADER_BYTES>() else {
            return Ok(false);
        };
        let header = FrameHeader::parse(bytes, self.max_payload_bytes)?;
        let payload_bytes = header.payload_bytes as usize;
        let available = self.shared.len() - HEADER_BYTES;
        if payload_bytes <= available {
            let _ = self.shared.split_to(HEADER_BYTES);
            self.large = Some((header, self.shared.split_to(payload_bytes)));
            return Ok(true);
        }
        if payload_bytes < OWN_BUFFER_BYTES {
            self.expects_large = false;
            return Ok(false);
        }
        let mut payload = self.take_buffer(payload_bytes);
        payload.extend_from_slice(&self.shared[HEADER_BYTES..]);
        self.shared.clear();
        self.large = Some((header, payload));
        Ok(true)
    }

    /// A buffer that the application has dropped, or a new one.
    fn take_buffer(&mut self, len: usize) -> BytesMut {
        for _ in 0..self.recycled.len() {
            let Some(bytes) = self.recycled.pop_front() else {
                break;
            };
            self.recycled_bytes -= bytes.len();
            // One that is much larger would be kept from large frames by small ones.
            let fits = (len..=2 * len).contains(&bytes.len());
            if !fits && bytes.is_unique() {
                continue;
            }
            match bytes.try_into_mut() {
                Ok(mut buffer) if buffer.capacity() >= len => {
                    buffer.clear();
                    return buffer;
                }
                Ok(_) => {}
                Err(in_use) => {
                    self.recycled_bytes += in_use.len();
                    self.recycled.push_back(in_use);
                }
            }
        }
        BytesMut::with_capacity(len)
    }

    fn recycle(&mut self, payload: Bytes) {
        self.recycled_bytes += payload.len();
        self.recycled.push_back(payload);
        while self.recycled.len() > MAX_RECYCLED_BUFFERS || self.recycled_bytes > MAX_RECYCLED_BYTES
        {
            let Some(oldest) = self.recycled.pop_front() else {
                break;
            };
            self.recycled_bytes -= oldest.len();
        }
    }
}
