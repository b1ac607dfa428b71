//! The writing half of a carrier: frames as a list of byte slices for vectored writes. Large payloads are not copied.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use disk::varint;

use crate::wire::header::{FrameType, HEADER_BYTES, encode_header};

/// Payloads below this size are copied next to their header; a slice of their own costs more.
const COPY_LIMIT_BYTES: usize = 2 * 1024;
const SHARED_BUFFER_BYTES: usize = 64 * 1024;

/// Encoded frames in the order of sending.
#[derive(Debug, Default)]
pub struct FrameWriter {
    slices: VecDeque<Bytes>,
    /// Bytes after the last slice.
    tail: BytesMut,
    len: usize,
}

impl FrameWriter {
    /// Appends a frame whose payload is `fields` followed by `content`.
    pub fn push(
        &mut self,
        frame_type: FrameType,
        flags: u8,
        stream: u32,
        fields: &[u8],
        content: Bytes,
    ) {
        let header = encode_header(frame_type, flags, stream, &[fields, &content]);
        self.reserve(HEADER_BYTES + fields.len() + COPY_LIMIT_BYTES);
        self.tail.extend_from_slice(&header);
        self.tail.extend_from_slice(fields);
        self.len += HEADER_BYTES + fields.len() + content.len();
        if content.len() <= COPY_LIMIT_BYTES {
            self.tail.extend_from_slice(&content);
        } else {
            self.end_slice();
            self.slices.push_back(content);
        }
    }

    /// Appends one MESSAGES frame with as many of `messages` as fit into `max_payload_bytes`; their contents are copied.
    /// Returns how many those are.
    pub fn push_batch<'a>(
        &mut self,
        flags: u8,
        first_number: u64,
        messages: impl Iterator<Item = &'a Bytes>,
        max_payload_bytes: usize,
    ) -> usize {
        self.reserve(HEADER_BYTES + max_payload_bytes);
        let start = self.tail.len();
        let mut number = [0; 10];
        let end = varint::write(&mut number, 0, first_number);
        self.tail.extend_from_slice(&[0; HEADER_BYTES]);
        self.tail.extend_from_slice(&number[..end]);
        let limit = start + HEADER_BYTES + max_payload_bytes;
        let mut count = 0;
        for message in messages {
            let end = varint::write(&mut number, 0, message.len() as u64);
            if self.tail.len() + end + message.len() > limit {
                break;
            }
            self.tail.extend_from_slice(&number[..end]);
            self.tail.extend_from_slice(message);
            count += 1;
        }
        if count == 0 {
            self.tail.truncate(start);
            return 0;
        }
        let (header, payload) = self.tail[start..].split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&encode_header(FrameType::Messages, flags, 0, &[payload]));
        self.len += self.tail.len() - start;
        count
    }

    /// Bytes of all frames.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Moves the slices of all frames to the end of `out`.
    pub fn take(&mut self, out: &mut VecDeque<Bytes>) {
        self.end_slice();
        out.append(&mut self.slices);
        self.len = 0;
    }

    fn reserve(&mut self, len: usize) {
        if self.tail.capacity() - self.tail.len() < len {
            self.tail.reserve(len.max(SHARED_BUFFER_BYTES));
        }
    }

    fn end_slice(&mut self) {
        if !self.tail.is_empty() {
            self.slices.push_back(self.tail.split().freeze());
        }
    }
}
