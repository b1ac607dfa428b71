//! The clock of a node.

use std::time::Instant;

/// A clock that does not jump: the wall clock at start, advanced by a monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct NodeClock {
    started: Instant,
    started_ms: u64,
}

impl NodeClock {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            started_ms: wall_clock::now_ms(),
        }
    }

    /// Milliseconds since the Unix epoch, and microseconds since start.
    #[inline]
    pub(crate) fn now(&self) -> (u64, u64) {
        let us = self.started.elapsed().as_micros() as u64;
        (self.started_ms + us / 1000, us)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now().0
    }
}
