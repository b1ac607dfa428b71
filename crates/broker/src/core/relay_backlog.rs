//! What waits for a slow receiver of a relay endpoint, and the memory that all of it needs.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;

use super::message::Message;

/// Memory of a waiting frame beyond its bytes: two allocations, their headers and the counts of references.
const FRAME_OVERHEAD_BYTES: usize = 112;
/// Memory of a receiver's reference to a frame, in a queue that may be half empty.
const REFERENCE_BYTES: usize = 16;
/// Memory of a waiting text beyond its bytes, likewise.
const TEXT_OVERHEAD_BYTES: usize = 48;

/// Memory of the frames and texts that wait for the relay connections of one shard, in backlogs and, if they are large, in
/// outboxes. A frame counts once, however many connections it waits for.
#[derive(Default)]
pub(crate) struct RelayMemory {
    bytes: usize,
    /// Connections with a backlog.
    slow_receivers: usize,
}

impl RelayMemory {
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts the bytes of a frame that begins to wait.
    pub(super) fn add_frame(&mut self, bytes: &Bytes) {
        self.bytes += bytes.len();
    }

    /// These bytes of frames wait for no connection any more.
    #[inline]
    pub(crate) fn release_bytes(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    /// A receiver drops its reference to a frame.
    pub(super) fn release(&mut self, frame: Rc<WaitingFrame>) {
        self.bytes -= REFERENCE_BYTES;
        let Some(frame) = Rc::into_inner(frame) else {
            return;
        };
        self.bytes -= frame.overhead_bytes();
        if frame.bytes.is_unique() {
            self.bytes -= frame.bytes.len();
        }
    }
}

/// A frame in the backlogs of any number of receivers.
pub(super) struct WaitingFrame {
    pub(super) bytes: Bytes,
    /// What was sent, if hooks observe drops.
    pub(super) message: Option<Rc<Message>>,
}

impl WaitingFrame {
    /// Its bytes are counted already.
    pub(super) fn new(
        bytes: Bytes,
        message: Option<Rc<Message>>,
        memory: &mut RelayMemory,
    ) -> Rc<Self> {
        let frame = Self { bytes, message };
        memory.bytes += frame.overhead_bytes();
        Rc::new(frame)
    }

    fn overhead_bytes(&self) -> usize {
        FRAME_OVERHEAD_BYTES + self.message.as_ref().map_or(0, |message| message.size())
    }

    /// What it counts for in a backlog: its memory, as if there were no other receiver.
    fn backlog_bytes(&self) -> usize {
        REFERENCE_BYTES + FRAME_OVERHEAD_BYTES + self.bytes.len()
    }
}

/// Messages and texts of the service that wait for the socket of one connection.
#[derive(Default)]
pub(super) struct RelayBacklog {
    /// Oldest first.
    frames: VecDeque<Rc<WaitingFrame>>,
    frame_bytes: usize,
    /// Texts of the service, such as commands, which are sent before the frames and not dropped in favour of newer ones.
    texts: VecDeque<Box<str>>,
    text_bytes: usize,
    /// Messages dropped since the receiver fell behind.
    pub(super) dropped: u64,
}

impl RelayBacklog {
    pub(super) fn new(memory: &mut RelayMemory) -> Box<Self> {
        memory.slow_receivers += 1;
        Box::default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.texts.is_empty()
    }

    pub(super) fn has_texts(&self) -> bool {
        !self.texts.is_empty()
    }

    pub(super) fn push_frame(&mut self, frame: Rc<WaitingFrame>, memory: &mut RelayMemory) {
        memory.bytes += REFERENCE_BYTES;
        self.frame_bytes += frame.backlog_bytes();
        self.frames.push_back(frame);
    }

    /// The limit that applies when a frame has just been added, if all backlogs of the shard together have the limit
    /// `all_bytes`. While half of that is in use, a receiver with more than an equal part of it drops twice what it
    /// gets. The memory then shrinks gradually, and those that stall cannot take the memory of others.
    pub(super) fn limit_bytes(
        &self,
        own_bytes: usize,
        all_bytes: usize,
        memory: &RelayMemory,
    ) -> usize {
        if memory.bytes <= all_bytes / 2 {
            return own_bytes;
        }
        let equal_part = all_bytes / 2 / memory.slow_receivers.max(1);
        let added = self.frames.back().map_or(0, |frame| frame.backlog_bytes());
        let reduced = self.frame_bytes.saturating_sub(2 * added);
        own_bytes.min(reduced.max(equal_part))
    }

    /// The caller releases it.
    pub(super) fn pop_frame(&mut self) -> Option<Rc<WaitingFrame>> {
        let frame = self.frames.pop_front()?;
        self.frame_bytes -= frame.backlog_bytes();
        Some(frame)
    }

    /// The oldest frame, if there are more bytes than the limit. The newest one is kept even if it alone is larger: its receiver may be
    /// as fast as any. The caller releases it.
    pub(super) fn pop_excess(&mut self, limit_bytes: usize) -> Option<Rc<WaitingFrame>> {
        if self.frames.len() < 2 || self.frame_bytes <= limit_bytes {
            return None;
        }
        self.pop_frame()
    }

    /// Adds a text, unless more than the limit would wait.
    pub(super) fn push_text(
        &mut self,
        text: Box<str>,
        limit_bytes: usize,
        memory: &mut RelayMemory,
    ) -> bool {
        let bytes = TEXT_OVERHEAD_BYTES + text.len();
        if self.has_texts() && self.text_bytes + bytes > limit_bytes {
            return false;
        }
        memory.bytes += bytes;
        self.text_bytes += bytes;
        self.texts.push_back(text);
        true
    }

    pub(super) fn pop_text(&mut self, memory: &mut RelayMemory) -> Option<Box<str>> {
        let text = self.texts.pop_front()?;
        let bytes = TEXT_OVERHEAD_BYTES + text.len();
        self.text_bytes -= bytes;
        memory.bytes -= bytes;
        Some(text)
    }

    /// Releases all of it. `each` is called for each frame.
    pub(super) fn close(&mut self, memory: &mut RelayMemory, mut each: impl FnMut(&WaitingFrame)) {
        while let Some(frame) = self.pop_frame() {
            each(&frame);
            memory.release(frame);
        }
        while self.pop_text(memory).is_some() {}
        memory.slow_receivers -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize, memory: &mut RelayMemory) -> Rc<WaitingFrame> {
        let bytes = Bytes::from(vec![7; bytes]);
        memory.add_frame(&bytes);
        WaitingFrame::new(bytes, None, memory)
    }

    #[test]
    fn a_shared_frame_counts_once_until_its_last_receiver_has_it() {
        let mut memory = RelayMemory::default();
        let shared = frame(10_000, &mut memory);
        let mut backlogs: Vec<_> = (0..50).map(|_| RelayBacklog::new(&mut memory)).collect();
        for backlog in &mut backlogs {
            backlog.push_frame(shared.clone(), &mut memory);
        }
        // An outbox keeps the bytes, too.
        let written = shared.bytes.clone();
        drop(shared);
        assert!(
            (10_000..12_000).contains(&memory.bytes()),
            "{}",
            memory.bytes()
        );
        for backlog in &mut backlogs {
            assert!(memory.bytes() > 10_000);
            backlog.close(&mut memory, |_| ());
        }
        assert_eq!((memory.bytes(), memory.slow_receivers), (10_000, 0));
        assert!(written.is_unique());
        memory.release_bytes(written.len());
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn small_frames_count_with_the_memory_that_they_need() {
        let mut memory = RelayMemory::default();
        let mut backlog = RelayBacklog::new(&mut memory);
        let mut dropped = 0;
        for _ in 0..10_000 {
            let empty = frame(2, &mut memory);
            backlog.push_frame(empty, &mut memory);
            while let Some(oldest) = backlog.pop_excess(100_000) {
                memory.release(oldest);
                dropped += 1;
            }
        }
        let kept = 10_000 - dropped;
        assert!((700..1000).contains(&kept), "{kept}");
        assert!(memory.bytes() <= 100_000, "{}", memory.bytes());
    }

    #[test]
    fn a_receiver_with_more_than_its_part_of_scarce_memory_shrinks_gradually() {
        let mut memory = RelayMemory::default();
        let mut backlog = RelayBacklog::new(&mut memory);
        for _ in 0..60 {
            let added = frame(1000, &mut memory);
            backlog.push_frame(added, &mut memory);
        }
        assert_eq!(backlog.limit_bytes(80_000, 200_000, &memory), 80_000);
        let one = 1000 + FRAME_OVERHEAD_BYTES + REFERENCE_BYTES;
        let others: Vec<_> = (0..3).map(|_| RelayBacklog::new(&mut memory)).collect();
        assert_eq!(backlog.limit_bytes(80_000, 100_000, &memory), 58 * one);
        assert_eq!(backlog.limit_bytes(1000, 100_000, &memory), 1000);
        while backlog.frame_bytes > 12_500 {
            let _ = backlog.pop_frame();
        }
        // The frames that were not released still use the memory.
        assert_eq!(backlog.limit_bytes(80_000, 100_000, &memory), 12_500);
        assert_eq!(others.len() + 1, memory.slow_receivers);
    }

    #[test]
    fn texts_wait_within_their_limit() {
        let mut memory = RelayMemory::default();
        let mut backlog = RelayBacklog::new(&mut memory);
        assert!(backlog.push_text("x".repeat(2000).into(), 1000, &mut memory));
        assert!(!backlog.push_text("y".into(), 1000, &mut memory));
        assert!(backlog.pop_text(&mut memory).is_some());
        assert!(backlog.push_text("y".into(), 1000, &mut memory));
        backlog.close(&mut memory, |_| ());
        assert_eq!(memory.bytes(), 0);
    }
}
