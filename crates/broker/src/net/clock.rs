//! The clock of a node.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock that does not jump: the wall clock at start, advanced by a monotonic clock.
#[derive(Clone, Copy)]
pub(crate) struct NodeClock {
    started: Instant,
    started_ms: u64,
}

impl NodeClock {
    pub(crate) fn new() -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            started: Instant::now(),
            started_ms: now.as_millis() as u64,
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
