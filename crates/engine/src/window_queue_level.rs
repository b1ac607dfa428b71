//! How full the queue of window rows is; read without its lock.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// At this multiple of the limit, rows are dropped. It is reached by events whose publisher cannot be made to
/// wait.
const HARD_LIMIT_FACTOR: usize = 4;

pub(crate) struct WindowQueueLevel {
    waiting_bytes: AtomicUsize,
    max_bytes: usize,
}

impl WindowQueueLevel {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            waiting_bytes: AtomicUsize::new(0),
            max_bytes,
        }
    }

    /// Whether publishers must wait.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.waiting_bytes() > self.max_bytes
    }

    /// Whether rows are dropped.
    pub(crate) fn is_overfull(&self) -> bool {
        self.waiting_bytes() > self.max_bytes * HARD_LIMIT_FACTOR
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Relaxed)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.waiting_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn subtract(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Relaxed);
    }
}
