//! The machine behind all sinks: queue (memory, optionally disk), batches, lanes that preserve an order, retries
//! behind a circuit breaker, dead letters.
//!
//! ```text
//! shards -> MemoryQueue -> [spool -> DiskQueue] -> BatchLanes -> BatchDelivery -> SinkWriter
//!                                                                       | cannot be written: DeadLetters
//! ```

pub(crate) mod batch_lanes;
pub(crate) mod circuit_breaker;
pub(crate) mod dead_letters;
pub(crate) mod delivery;
pub(crate) mod disk_queue;
pub(crate) mod memory_queue;
pub(crate) mod metrics;
pub(crate) mod queue_feed;
pub(crate) mod runner;
#[cfg(test)]
mod tests;

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
