//! Limits of a store and its durability policy.

use std::time::Duration;

pub use disk::{Fsync, ParseFsyncError};

use crate::error::StoreOpenError;

/// Limits of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// When the log is synced to disk.
    pub fsync: Fsync,
    /// Size of one segment of the message log in bytes. A larger batch gets a segment of its own size.
    pub segment_bytes: u32,
    /// The store is [`Full`](crate::StoreHealth::Full) while the file system has less free space than this.
    pub min_free_bytes: u64,
    /// The store is [`Full`](crate::StoreHealth::Full) while the message log is larger than this.
    pub max_log_bytes: u64,
    /// Shards should accept nothing more from clients while [`pending_bytes`](crate::Store::pending_bytes) is above this.
    pub max_pending_bytes: usize,
    /// Cache for blocks of the keyed state and objects.
    pub cache_bytes: u64,
    /// How long a closing store retries writing pending batches.
    pub max_stopping: Duration,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            fsync: Fsync::default(),
            segment_bytes: 64 << 20,
            min_free_bytes: 256 << 20,
            max_log_bytes: 64 << 30,
            max_pending_bytes: 32 << 20,
            cache_bytes: 32 << 20,
            max_stopping: Duration::from_secs(10),
        }
    }
}

impl StoreConfig {
    /// Checks that the limits are consistent.
    pub(crate) fn check(&self) -> Result<(), StoreOpenError> {
        let refuse = |field, found: String, expected: &str| {
            Err(StoreOpenError::Setting {
                field,
                found,
                expected: expected.to_owned(),
            })
        };
        if !(64 << 10..=2 << 30).contains(&self.segment_bytes) {
            return refuse(
                "segment_bytes",
                self.segment_bytes.to_string(),
                "64 KiB to 2 GiB",
            );
        }
        if self.max_log_bytes < 4 * u64::from(self.segment_bytes) {
            let found = self.max_log_bytes.to_string();
            return refuse("max_log_bytes", found, "at least four segments");
        }
        Ok(())
    }
}
