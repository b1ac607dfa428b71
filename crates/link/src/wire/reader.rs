//! The reading half of a carrier: bytes come in, frames with verified checksums come out.
//!
//! Frames of messages are slices of one buffer, which is filled by one system call for several of them. The payload of a
//! larger frame is read straight into a buffer of its own, together with the header of the next frame. Buffers are used
//! again when the application has dropped their content, the last one first: it is probably still in the cache of the
//! processor.

use std::collections::VecDeque;

use bytes::buf::{BufMut as _, Limit};
use bytes::{Bytes, BytesMut};

use crate::error_code::ProtocolError;
use crate::wire::handshake::MAX_HANDSHAKE_BYTES;
use crate::wire::header::{FrameHeader, FrameType, HEADER_BYTES};

/// Capacity for small frames.
const SHARED_BUFFER_BYTES: usize = 256 * 1024;
/// Frames from this size on get a buffer of their own. Fewer than three such frames would fit into the shared buffer, so
/// that much of them would be copied to its next filling.
const OWN_BUFFER_BYTES: usize = 96 * 1024;
/// Shared buffers whose frames the application has not dropped, and which are used again when it has.
const MAX_OCCUPIED_BUFFERS: usize = 2;
/// After a large frame, this is read with the header of a small one. Usually another large frame follows, and what has
/// been read of it must be copied.
const CAUTIOUS_BYTES: usize = 2 * 1024;
/// After so many small frames, no large one is expected.
const CAUTIOUS_FRAMES: u32 = 8;
/// Buffers of large frames that are used again when the application has dropped their content. While an application does
/// not read, for example because it syncs a file, they are a whole stream window of 8 MiB. Those beyond these limits
/// would be released by the application and allocated anew by the carrier. The allocator then keeps several times what
/// is in use. More than that would only spread the content over more of the processor's cache.
const MAX_RECYCLED_BUFFERS: usize = 96;
const MAX_RECYCLED_BYTES: usize = 9 * 1024 * 1024;

/// A received frame, whose checksum matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub frame_type: FrameType,
    pub flags: u8,
    pub stream: u32,
    pub payload: Bytes,
}

/// A frame whose header has been read.
#[derive(Debug)]
struct PendingFrame {
    header: FrameHeader,
    /// What has been read of the payload; with a buffer of its own also of the next header.
    payload: BytesMut,
    has_own_buffer: bool,
}

/// Splits the bytes of a carrier into frames.
///
/// The caller reads into [`buffer`](Self::buffer), then takes frames from [`next_frame`](Self::next_frame) until there
/// is none. After an error the reader must not be used any more. At most one frame is buffered.
#[derive(Debug)]
pub struct FrameReader {
    shared: BytesMut,
    /// Former shared buffers: empty handles, from which the whole buffers can be reclaimed.
    occupied: VecDeque<BytesMut>,
    /// The frame whose payload is being read.
    pending: Option<PendingFrame>,
    max_payload_bytes: u32,
    recycled: VecDeque<Bytes>,
    recycled_bytes: usize,
    /// Small frames since the last large one.
    small_frames: u32,
    /// What is missing of the small frame whose header is in `shared`.
    missing_bytes: usize,
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
            occupied: VecDeque::new(),
            pending: None,
            max_payload_bytes: MAX_HANDSHAKE_BYTES,
            recycled: VecDeque::new(),
            recycled_bytes: 0,
            small_frames: CAUTIOUS_FRAMES,
            missing_bytes: 0,
        }
    }

    /// Sets the longest payload that is accepted from now on.
    pub fn set_max_payload_bytes(&mut self, max: u32) {
        self.max_payload_bytes = max;
    }

    /// The buffer for the next bytes of the carrier; it is not empty.
    pub fn buffer(&mut self) -> Limit<&mut BytesMut> {
        if let Some(mut pending) = self.pending.take() {
            let end = pending.header.payload_bytes as usize + HEADER_BYTES;
            if pending.payload.capacity() == 0 {
                pending.payload = self.take_buffer(end);
            }
            let missing = end - pending.payload.len();
            let pending = self.pending.insert(pending);
            return (&mut pending.payload).limit(missing);
        }
        let room = match self.missing_bytes {
            _ if self.small_frames >= CAUTIOUS_FRAMES => {
                SHARED_BUFFER_BYTES - self.shared.len().min(SHARED_BUFFER_BYTES / 2)
            }
            0 => CAUTIOUS_BYTES,
            // With the next header: the buffer of a large frame is chosen when the application has handled this one.
            missing => missing + HEADER_BYTES,
        };
        if self.shared.capacity() - self.shared.len() < room && !self.shared.try_reclaim(room) {
            self.replace_shared(room);
        }
        (&mut self.shared).limit(room)
    }

    /// Continues in another buffer, because the application still has frames of this one.
    fn replace_shared(&mut self, room: usize) {
        let len = (self.shared.len() + room).max(SHARED_BUFFER_BYTES);
        let is_free = |buffer: &mut BytesMut| buffer.try_reclaim(len);
        let index = self.occupied.iter_mut().rposition(is_free);
        let free = index.and_then(|index| self.occupied.remove(index));
        let mut buffer = free.unwrap_or_else(|| BytesMut::with_capacity(len));
        buffer.extend_from_slice(&self.shared);
        let mut former = std::mem::replace(&mut self.shared, buffer);
        if former.capacity() > 0 {
            former.clear();
            self.occupied.push_back(former);
            if self.occupied.len() > MAX_OCCUPIED_BUFFERS {
                self.occupied.pop_front();
            }
        }
    }

    /// Adds bytes to the input, for callers that have them elsewhere.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if let Some(pending) = &mut self.pending {
            let end = pending.header.payload_bytes as usize;
            let missing = end.saturating_sub(pending.payload.len());
            let (now, rest) = bytes.split_at(missing.min(bytes.len()));
            pending.payload.extend_from_slice(now);
            bytes = rest;
        }
        self.shared.extend_from_slice(bytes);
    }

    /// Whether [`next_frame`](Self::next_frame) may have something. If not, more bytes are needed.
    pub(crate) fn has_frame(&self) -> bool {
        self.pending
            .as_ref()
            .is_none_or(|pending| pending.payload.len() >= pending.header.payload_bytes as usize)
    }

    /// The next complete frame; `None`: more bytes are needed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, ProtocolError> {
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => match self.begin_frame()? {
                Some(pending) => pending,
                None => return Ok(None),
            },
        };
        let payload_bytes = pending.header.payload_bytes as usize;
        if pending.payload.len() < payload_bytes {
            self.pending = Some(pending);
            return Ok(None);
        }
        let PendingFrame {
            header,
            mut payload,
            has_own_buffer,
        } = pending;
        if has_own_buffer {
            // `shared` is empty while such a frame is read.
            self.shared.extend_from_slice(&payload[payload_bytes..]);
            payload.truncate(payload_bytes);
        }
        let payload = payload.freeze();
        if !header.matches(&payload) {
            return Err(ProtocolError::corrupted(
                "the checksum of a frame does not match",
            ));
        }
        if has_own_buffer {
            self.recycle(payload.clone());
            self.small_frames = 0;
        } else {
            self.small_frames = self.small_frames.saturating_add(1);
        }
        Ok(Some(Frame {
            frame_type: header.frame_type,
            flags: header.flags,
            stream: header.stream,
            payload,
        }))
    }

    /// Parses the next header. Returns the frame, whose payload may be incomplete.
    fn begin_frame(&mut self) -> Result<Option<PendingFrame>, ProtocolError> {
        let Some(bytes) = self.shared.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = FrameHeader::parse(bytes, self.max_payload_bytes)?;
        let payload_bytes = header.payload_bytes as usize;
        let available = self.shared.len() - HEADER_BYTES;
        self.missing_bytes = 0;
        if payload_bytes <= available {
            let _ = self.shared.split_to(HEADER_BYTES);
            return Ok(Some(PendingFrame {
                header,
                payload: self.shared.split_to(payload_bytes),
                has_own_buffer: false,
            }));
        }
        if payload_bytes < OWN_BUFFER_BYTES {
            self.missing_bytes = payload_bytes - available;
            return Ok(None);
        }
        // Without content, a buffer is chosen when it is needed: the application may have dropped the last one until then.
        let mut payload = BytesMut::new();
        if available > 0 {
            payload = self.take_buffer(payload_bytes + HEADER_BYTES);
            payload.extend_from_slice(&self.shared[HEADER_BYTES..]);
        }
        self.shared.clear();
        Ok(Some(PendingFrame {
            header,
            payload,
            has_own_buffer: true,
        }))
    }

    /// A buffer that the application has dropped, or a new one.
    fn take_buffer(&mut self, len: usize) -> BytesMut {
        for index in (0..self.recycled.len()).rev() {
            if !self.recycled[index].is_unique() {
                continue;
            }
            let Some(bytes) = self.recycled.remove(index) else {
                break;
            };
            self.recycled_bytes -= bytes.len();
            // One that is much larger would be kept from large frames by small ones.
            if bytes.len() > 2 * len {
                continue;
            }
            if let Ok(mut buffer) = bytes.try_into_mut()
                && buffer.capacity() >= len
            {
                buffer.clear();
                return buffer;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::header::encode_header;

    const CHUNK_BYTES: usize = 256 * 1024;

    fn data_frame(bytes: usize) -> Vec<u8> {
        let payload = vec![7; bytes];
        let header = encode_header(FrameType::Data, 0, 5, &[&payload]);
        [&header[..], &payload].concat()
    }

    /// Reads as a carrier does, with one system call for each buffer.
    fn read_frame(reader: &mut FrameReader, input: &[u8], at: &mut usize) -> Frame {
        loop {
            if let Some(frame) = reader.next_frame().unwrap() {
                return frame;
            }
            let mut buffer = reader.buffer();
            let len = buffer.remaining_mut().min(input.len() - *at % input.len());
            let from = *at % input.len();
            buffer.put_slice(&input[from..from + len]);
            *at += len;
        }
    }

    #[test]
    fn a_full_window_of_an_application_that_reads_in_bursts_is_kept_in_the_same_buffers() {
        let input = data_frame(CHUNK_BYTES + 8);
        let mut reader = FrameReader::new();
        reader.set_max_payload_bytes(1 << 20);
        let mut at = 0;
        let mut window = VecDeque::new();
        for _ in 0..20 {
            // The window is full while the application syncs; then it takes half of it.
            while window.len() < 33 {
                let frame = read_frame(&mut reader, &input, &mut at);
                assert!(frame.payload.iter().all(|byte| *byte == 7));
                window.push_back(frame);
            }
            window.drain(..16);
            let unused = reader.recycled.iter().filter(|buffer| buffer.is_unique());
            assert_eq!(unused.count(), 16, "they wait for the next frames");
        }
    }

    #[test]
    fn the_buffers_that_are_kept_are_limited() {
        let input = data_frame(CHUNK_BYTES + 8);
        let mut reader = FrameReader::new();
        reader.set_max_payload_bytes(1 << 20);
        let mut at = 0;
        let frames: Vec<_> = (0..200)
            .map(|_| read_frame(&mut reader, &input, &mut at))
            .collect();
        drop(frames);
        assert!(reader.recycled_bytes <= MAX_RECYCLED_BYTES);
        let kept: usize = reader.recycled.iter().map(Bytes::len).sum();
        assert_eq!(kept, reader.recycled_bytes);
    }
}
