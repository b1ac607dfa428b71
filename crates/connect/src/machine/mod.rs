//! The one machine behind all sinks: queue (memory, and files where asked), batches, lanes that keep an order, retries
//! behind a circuit, dead letters.
//!
//! ```text
//! shards -> MemoryQueue -> [spool -> DiskQueue] -> lanes (batches) -> deliver -> Writer
//!                                                                        | cannot be written: DeadLetters
//! ```

pub(crate) mod circuit;
pub(crate) mod dead;
pub(crate) mod deliver;
pub(crate) mod disk;
pub(crate) mod feed;
pub(crate) mod lanes;
pub(crate) mod metrics;
pub(crate) mod queue;
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
