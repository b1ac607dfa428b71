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

    /// Appends a MESSAGES frame. `entries` are as [`put_entry`](crate::wire::entries::put_entry) writes them.
    pub fn push_messages(&mut self, flags: u8, first_number: u64, entries: Bytes) {
        let mut number = [0; 10];
        let end = varint::write(&mut number, 0, first_number);
        self.push(FrameType::Messages, flags, 0, &number[..end], entries);
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
