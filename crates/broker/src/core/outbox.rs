//! Output waiting for one socket: encoded bytes in order, small packets copied together, large payloads shared.
//!
//! Invariant: `len` is the number of bytes not yet written, over all segments. An empty outbox owns no memory once
//! `recycle` has run; buffers come from the shard's [`BufferPool`] and return to it.

use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Payloads of at least this size are shared between subscribers instead of copied. Below it, a copy costs less than a
/// reference and an additional entry for `writev`.
pub(crate) const SHARE_FROM_BYTES: usize = 16 * 1024;

/// While an outbox has so much, what waits for its connection stays where it is until the socket drains.
pub(super) const PUMP_HIGH_BYTES: usize = 64 * 1024;

/// Buffers above this capacity are returned to the allocator instead of the pool.
const POOLED_CAPACITY: usize = 256 * 1024;
/// Capacity of all spare buffers together.
const POOLED_BYTES: usize = 16 << 20;

/// Capacity that a spare buffer may always have; trimming smaller buffers is not worthwhile.
const SMALL_CAPACITY: usize = 4 * 1024;

/// Spare buffers of a shard, so that a connection owns one only while it needs it. [`trim`](Self::trim) frees the
/// memory that remains after a burst.
#[derive(Default)]
pub(crate) struct BufferPool {
    /// The last one is taken first, so that those at the front are the unused ones.
    spare: Vec<Vec<u8>>,
    bytes: usize,
    /// Minimum number of spare buffers since the last trim.
    unneeded: usize,
    /// Maximum fill of a buffer since the last trim.
    filled: usize,
}

impl BufferPool {
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let buffer = self.spare.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        self.unneeded = self.unneeded.min(self.spare.len());
        buffer
    }

    /// Frees memory that was not needed since the last call. It frees half of the buffers that were not used, and the
    /// capacity of the others beyond twice the maximum fill.
    pub(crate) fn trim(&mut self) {
        self.spare.drain(..self.unneeded.div_ceil(2));
        let enough = (2 * self.filled).max(SMALL_CAPACITY);
        for buffer in &mut self.spare {
            // Small buffers are left alone, so that they do not shrink and grow in turn.
            if buffer.capacity() > 2 * enough {
                *buffer = Vec::with_capacity(enough);
            }
        }
        self.bytes = self.spare.iter().map(Vec::capacity).sum();
        (self.unneeded, self.filled) = (self.spare.len(), 0);
    }

    pub(crate) fn put_back(&mut self, mut buffer: Vec<u8>) {
        self.filled = self.filled.max(buffer.len());
        if buffer.capacity() > 0
            && buffer.capacity() <= POOLED_CAPACITY
            && self.bytes + buffer.capacity() <= POOLED_BYTES
        {
            buffer.clear();
            self.bytes += buffer.capacity();
            self.spare.push(buffer);
        }
    }
}

enum OutboxSegment {
    Own(Vec<u8>),
    Shared(Bytes),
    /// A large frame of a relay endpoint. Connections of this shard alone share it, and its owner counts it once for all of them.
    Frame(Bytes),
}

impl OutboxSegment {
    fn as_slice(&self) -> &[u8] {
        match self {
            OutboxSegment::Own(bytes) => bytes,
            OutboxSegment::Shared(bytes) | OutboxSegment::Frame(bytes) => bytes,
        }
    }
}

/// Segments in order.
#[derive(Default)]
struct OutboxSegments {
    segments: VecDeque<OutboxSegment>,
    /// Bytes of those that are frames.
    frame_bytes: usize,
}

impl OutboxSegments {
    fn push_back(&mut self, segment: OutboxSegment) {
        if let OutboxSegment::Frame(bytes) = &segment {
            self.frame_bytes += bytes.len();
        }
        self.segments.push_back(segment);
    }

    fn pop_front(&mut self) -> Option<OutboxSegment> {
        let segment = self.segments.pop_front();
        self.record_removed(segment)
    }

    fn pop_back(&mut self) -> Option<OutboxSegment> {
        let segment = self.segments.pop_back();
        self.record_removed(segment)
    }

    fn record_removed(&mut self, segment: Option<OutboxSegment>) -> Option<OutboxSegment> {
        if let Some(OutboxSegment::Frame(bytes)) = &segment {
            self.frame_bytes -= bytes.len();
        }
        segment
    }
}

#[derive(Default)]
pub(crate) struct Outbox {
    /// Segments before `tail`, used only after a large payload was appended. An idle connection needs eight bytes for it.
    earlier: Option<Box<OutboxSegments>>,
    tail: Vec<u8>,
    /// Bytes of the first segment that are already written.
    written: usize,
    len: usize,
    /// Bytes that may not leave yet: the first byte, and the turn of the shard they wait for. In order.
    #[allow(clippy::box_collection)] // as `earlier`
    holds: Option<Box<VecDeque<OutboxHold>>>,
}

struct OutboxHold {
    turn: u64,
    from: usize,
}

impl Outbox {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes not yet written, without those of frames.
    #[inline]
    pub(crate) fn bytes_without_frames(&self) -> usize {
        let Some(earlier) = &self.earlier else {
            return self.len;
        };
        let written = match earlier.segments.front() {
            Some(OutboxSegment::Frame(_)) => self.written,
            _ => 0,
        };
        self.len - (earlier.frame_bytes - written)
    }

    /// Holds bytes appended from now on until a turn is complete. Returns true if none waited for that turn yet.
    pub(crate) fn hold(&mut self, turn: u64) -> bool {
        let from = self.len;
        let holds = self.holds.get_or_insert_default();
        let is_new = holds.back().is_none_or(|last| last.turn < turn);
        if is_new {
            holds.push_back(OutboxHold { turn, from });
        }
        is_new
    }

    /// Releases the bytes that wait for turns up to `turn`.
    pub(crate) fn release(&mut self, turn: u64) {
        if let Some(holds) = &mut self.holds {
            while holds.front().is_some_and(|hold| hold.turn <= turn) {
                holds.pop_front();
            }
            if holds.is_empty() {
                self.holds = None;
            }
        }
    }

    /// Discards the bytes that wait for a turn, and returns the first of them; `None`: there are none.
    pub(crate) fn discard_held(&mut self, pool: &mut BufferPool) -> Option<u8> {
        self.holds.as_ref()?;
        let mut left = self.len - self.ready_bytes();
        self.holds = None;
        self.len -= left;
        let mut first = None;
        while left > 0 {
            let written = match self.earlier {
                None => self.written,
                Some(_) => 0,
            };
            let cut = left.min(self.tail.len() - written);
            let keep = self.tail.len() - cut;
            first = self.tail.get(keep).copied().or(first);
            self.tail.truncate(keep);
            left -= cut;
            if left == 0 {
                break;
            }
            match self.earlier.as_mut().and_then(|earlier| earlier.pop_back()) {
                None => break,
                Some(OutboxSegment::Own(buffer)) => {
                    pool.put_back(std::mem::replace(&mut self.tail, buffer));
                }
                // A payload is never the start of held bytes: its packet begins before it.
                Some(OutboxSegment::Shared(bytes) | OutboxSegment::Frame(bytes)) => {
                    left = left.saturating_sub(bytes.len());
                }
            }
            if self
                .earlier
                .as_ref()
                .is_some_and(|earlier| earlier.segments.is_empty())
            {
                self.earlier = None;
            }
        }
        self.advance(0, pool);
        first
    }

    /// Bytes that may be written now.
    #[inline]
    pub(crate) fn ready_bytes(&self) -> usize {
        match &self.holds {
            None => self.len,
            Some(holds) => holds.front().map_or(self.len, |hold| hold.from),
        }
    }

    /// Appends the bytes that `write` puts at the end of the buffer it is given.
    #[inline]
    pub(crate) fn append_with<R>(
        &mut self,
        pool: &mut BufferPool,
        write: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> R {
        if self.tail.capacity() == 0 {
            self.tail = pool.take();
        }
        let before = self.tail.len();
        let result = write(&mut self.tail);
        self.len += self.tail.len() - before;
        result
    }

    pub(crate) fn append_shared(&mut self, bytes: Bytes) {
        self.append_segment(OutboxSegment::Shared(bytes));
    }

    pub(crate) fn append_frame(&mut self, bytes: Bytes) {
        self.append_segment(OutboxSegment::Frame(bytes));
    }

    fn append_segment(&mut self, segment: OutboxSegment) {
        self.len += segment.as_slice().len();
        let earlier = self.earlier.get_or_insert_default();
        if !self.tail.is_empty() {
            earlier.push_back(OutboxSegment::Own(std::mem::take(&mut self.tail)));
        }
        earlier.push_back(segment);
    }

    /// The bytes to write next, as many slices as fit into `slices`; returns the number of slices filled.
    pub(crate) fn fill_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.written;
        let mut ready = self.ready_bytes();
        let mut filled = 0;
        let earlier = self
            .earlier
            .iter()
            .flat_map(|earlier| earlier.segments.iter())
            .map(OutboxSegment::as_slice);
        for bytes in earlier.chain(std::iter::once(self.tail.as_slice())) {
            let bytes = &bytes[skip..];
            let bytes = &bytes[..bytes.len().min(ready)];
            ready -= bytes.len();
            skip = 0;
            if !bytes.is_empty() && filled < slices.len() {
                slices[filled] = IoSlice::new(bytes);
                filled += 1;
            }
        }
        filled
    }

    /// The bytes to write next if they are contiguous, which is the usual case.
    pub(crate) fn contiguous(&self) -> Option<&[u8]> {
        match &self.earlier {
            None => Some(&self.tail[self.written..][..self.ready_bytes()]),
            Some(_) => None,
        }
    }

    /// Marks `count` bytes as written. Returns the bytes of frames that nothing else keeps any more.
    pub(crate) fn advance(&mut self, mut count: usize, pool: &mut BufferPool) -> usize {
        let mut released = 0;
        self.len -= count;
        for hold in self.holds.iter_mut().flat_map(|holds| holds.iter_mut()) {
            hold.from -= count;
        }
        count += self.written;
        while let Some(earlier) = &mut self.earlier {
            match earlier.segments.front() {
                Some(segment) if count >= segment.as_slice().len() => {
                    count -= segment.as_slice().len();
                    match earlier.pop_front() {
                        Some(OutboxSegment::Own(buffer)) => pool.put_back(buffer),
                        Some(OutboxSegment::Frame(bytes)) if bytes.is_unique() => {
                            released += bytes.len();
                        }
                        _ => {}
                    }
                }
                Some(_) => break,
                None => self.earlier = None,
            }
        }
        self.written = count;
        if self.len == 0 {
            self.written = 0;
            pool.put_back(std::mem::take(&mut self.tail));
        } else if self.earlier.is_none() && self.written >= 64 * 1024 {
            // Otherwise the written part would grow with a slow reader that never catches up.
            self.tail.drain(..self.written);
            self.written = 0;
        }
        released
    }

    /// Returns the bytes of frames that nothing else keeps any more.
    pub(crate) fn clear(&mut self, pool: &mut BufferPool) -> usize {
        self.holds = None;
        self.advance(self.len, pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(outbox: &Outbox) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = outbox.fill_slices(&mut slices);
        slices[..filled].iter().flat_map(|s| s.to_vec()).collect()
    }

    #[test]
    fn bytes_that_wait_can_be_discarded() {
        let mut pool = BufferPool::default();
        for written in [0, 2] {
            let mut outbox = Outbox::default();
            outbox.append_with(&mut pool, |out| out.extend_from_slice(b"abc"));
            assert_eq!(outbox.discard_held(&mut pool), None);
            outbox.advance(written, &mut pool);
            outbox.hold(1);
            outbox.append_with(&mut pool, |out| out.extend_from_slice(b"Xyz"));
            outbox.append_shared(Bytes::from_static(b"DEFG"));
            outbox.append_shared(Bytes::from_static(b"HI"));
            outbox.hold(2);
            outbox.append_with(&mut pool, |out| out.extend_from_slice(b"jk"));
            assert_eq!(outbox.discard_held(&mut pool), Some(b'X'));
            assert_eq!(content(&outbox), &b"abc"[written..]);
            outbox.append_with(&mut pool, |out| out.extend_from_slice(b"l"));
            assert_eq!(content(&outbox), [&b"abc"[written..], b"l"].concat());
            assert_eq!(outbox.len(), 4 - written);
            outbox.advance(4 - written, &mut pool);
            assert!(outbox.is_empty());
            outbox.hold(3);
            outbox.append_with(&mut pool, |out| out.extend_from_slice(b"M"));
            assert_eq!(outbox.discard_held(&mut pool), Some(b'M'));
            assert!(outbox.is_empty());
        }
    }

    #[test]
    fn keeps_the_order_of_small_and_shared_pieces_over_partial_writes() {
        let mut pool = BufferPool::default();
        let mut outbox = Outbox::default();
        outbox.append_with(&mut pool, |out| out.extend_from_slice(b"abc"));
        outbox.append_shared(Bytes::from_static(b"DEFG"));
        outbox.append_with(&mut pool, |out| out.extend_from_slice(b"hi"));
        assert_eq!(content(&outbox), b"abcDEFGhi");
        let mut seen = Vec::new();
        while !outbox.is_empty() {
            let bytes = content(&outbox);
            assert_eq!(bytes.len(), outbox.len());
            seen.push(bytes[0]);
            outbox.advance(1, &mut pool);
        }
        assert_eq!(seen, b"abcDEFGhi");
        assert!(outbox.contiguous().is_some_and(|s| s.is_empty()));
    }

    #[test]
    fn frames_are_counted_by_their_owner_and_released_by_the_last_connection() {
        let mut pool = BufferPool::default();
        let frame = Bytes::from(vec![b'f'; 100]);
        let mut outboxes = [Outbox::default(), Outbox::default()];
        for outbox in &mut outboxes {
            outbox.append_with(&mut pool, |out| out.extend_from_slice(b"abc"));
            outbox.append_frame(frame.clone());
            outbox.append_with(&mut pool, |out| out.extend_from_slice(b"de"));
            assert_eq!((outbox.len(), outbox.bytes_without_frames()), (105, 5));
        }
        drop(frame);
        let [first, second] = &mut outboxes;
        assert_eq!(first.advance(50, &mut pool), 0);
        assert_eq!((first.len(), first.bytes_without_frames()), (55, 2));
        assert_eq!(first.advance(54, &mut pool), 0, "the other one keeps it");
        assert_eq!((first.len(), first.bytes_without_frames()), (1, 1));
        assert_eq!(second.clear(&mut pool), 100);
    }

    #[test]
    fn held_bytes_are_released_turn_by_turn_in_order() {
        let mut pool = BufferPool::default();
        let mut outbox = Outbox::default();
        let add = |outbox: &mut Outbox, pool: &mut BufferPool, bytes: &[u8]| {
            outbox.append_with(pool, |out| out.extend_from_slice(bytes));
        };
        add(&mut outbox, &mut pool, b"ab");
        assert!(outbox.hold(3));
        assert!(!outbox.hold(3));
        add(&mut outbox, &mut pool, b"cd");
        outbox.append_shared(Bytes::from_static(b"EF"));
        assert!(outbox.hold(5));
        add(&mut outbox, &mut pool, b"gh");
        assert_eq!(content(&outbox), b"ab");
        outbox.advance(1, &mut pool);
        outbox.release(2);
        assert_eq!(content(&outbox), b"b");
        outbox.release(4);
        assert_eq!(content(&outbox), b"bcdEF");
        outbox.advance(5, &mut pool);
        assert_eq!((outbox.ready_bytes(), outbox.len()), (0, 2));
        outbox.release(5);
        assert_eq!(content(&outbox), b"gh");
    }

    #[test]
    fn the_pool_frees_memory_after_a_burst_and_keeps_used_buffers() {
        let mut pool = BufferPool::default();
        let mut taken: Vec<_> = (0..20).map(|_| pool.take()).collect();
        for mut buffer in taken.drain(..) {
            buffer.resize(200 * 1024, 7);
            pool.put_back(buffer);
        }
        pool.trim();
        assert!(pool.bytes >= 10 * 200 * 1024);
        for _ in 0..10 {
            // From now on two buffers are enough, and little is put into them.
            let mut two = [pool.take(), pool.take()];
            two[0].extend_from_slice(&[7; 3000]);
            two.into_iter().for_each(|buffer| pool.put_back(buffer));
            pool.trim();
        }
        let capacities: Vec<_> = pool.spare.iter().map(Vec::capacity).collect();
        assert_eq!(capacities.len(), 2, "{capacities:?}");
        assert!(pool.bytes <= 2 * 12_000, "{capacities:?}");
        pool.trim();
        pool.trim();
        assert_eq!((pool.spare.len(), pool.bytes), (0, 0));
    }

    #[test]
    fn an_empty_outbox_owns_no_buffer() {
        let mut pool = BufferPool::default();
        let mut outbox = Outbox::default();
        outbox.append_with(&mut pool, |out| out.extend_from_slice(&[7; 100]));
        outbox.advance(100, &mut pool);
        assert_eq!(outbox.tail.capacity(), 0);
        assert!(pool.take().capacity() >= 100);
    }
}
