//! The machine behind all sinks: queue (memory, optionally disk), batches, partitions that preserve an order, retries
//! behind a circuit breaker, dead letters.
//!
//! ```text
//! shards -> MemoryQueue -> [spool -> DiskQueue] -> BatchPartitions -> BatchDelivery -> SinkWriter
//!                                                                       | cannot be written: DeadLetters
//! ```

pub(crate) mod batch_partitions;
pub(crate) mod circuit_breaker;
mod content_delivery;
pub(crate) mod dead_letters;
pub(crate) mod delivery;
pub(crate) mod disk_queue;
pub(crate) mod memory_queue;
pub(crate) mod metrics;
pub(crate) mod queue_feed;
pub(crate) mod runner;
pub(crate) mod sink_files;
pub(crate) mod stop_signal;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom as _, SystemRandom};

/// A random number that fits into a high-water mark.
fn random_mark() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let drawn = SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(u64::from_le_bytes(bytes) & disk::MAX_HIGH_WATER_MARK)
}

/// Copies a damaged file to `NAME.damaged` beside it, for later examination.
fn copy_damaged_file(path: &Path) -> io::Result<()> {
    if path.is_file() {
        let mut copy = path.as_os_str().to_owned();
        copy.push(".damaged");
        fs::copy(path, PathBuf::from(copy))?;
    }
    Ok(())
}
