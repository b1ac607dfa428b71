//! Buffers of content that is sent in pieces of one size, such as a file. They are used again when the peer has acknowledged what they
//! contained. Otherwise each piece is allocated by the thread that reads it and released by the one that receives the
//! acknowledgement. The allocator then keeps several times what is in use.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// More than a stream retains by default ([`LinkConfig::max_retained_bytes`](crate::config::LinkConfig::max_retained_bytes)) in
/// pieces of 256 KiB.
const MAX_BUFFERS: usize = 80;

/// The buffers of one sender. Call [`take`](Self::take), fill the buffer, pass it to [`sent`](Self::sent), and send what that returns.
#[derive(Debug, Default)]
pub struct PieceBuffers {
    /// What was sent, the oldest first, which is acknowledged first.
    in_use: VecDeque<Bytes>,
}

impl PieceBuffers {
    /// A buffer of this length, with any content.
    pub fn take(&mut self, len: usize) -> BytesMut {
        if self.in_use.front().is_some_and(Bytes::is_unique)
            && let Some(oldest) = self.in_use.pop_front()
            && let Ok(mut buffer) = oldest.try_into_mut()
            && buffer.capacity() >= len
        {
            buffer.resize(len, 0);
            return buffer;
        }
        BytesMut::zeroed(len)
    }

    /// The content of a buffer that is sent now.
    pub fn sent(&mut self, buffer: BytesMut) -> Bytes {
        let content = buffer.freeze();
        if self.in_use.len() < MAX_BUFFERS {
            self.in_use.push_back(content.clone());
        }
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_when_all_parts_of_its_content_are_dropped() {
        let mut buffers = PieceBuffers::default();
        let buffer = buffers.take(1000);
        let address = buffer.as_ptr();
        let mut first = buffers.sent(buffer);
        let part = first.split_to(100);
        drop(first);
        let second = buffers.take(1000);
        assert_ne!(second.as_ptr(), address, "a part is in use");
        let second = buffers.sent(second);
        drop(part);
        let third = buffers.take(500);
        assert_eq!((third.as_ptr(), third.len()), (address, 500));
        drop(second);
        // The next one is too small for more.
        assert_eq!(buffers.take(2000).len(), 2000);
        assert!(buffers.in_use.is_empty());
    }
}
