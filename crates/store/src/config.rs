//! How much a store may take and how soon it is on disk.

use std::time::Duration;

pub use disk::{Fsync, ParseFsyncError};

use crate::error::StoreOpenError;

/// Bounds of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// When the log is forced to disk.
    pub fsync: Fsync,
    /// Size of one segment of the message log. A batch that is larger gets a segment of its own size.
    pub segment_bytes: u32,
    /// The store is [`Full`](crate::StoreHealth::Full) while the file system has less room than this.
    pub min_free_bytes: u64,
    /// The store is [`Full`](crate::StoreHealth::Full) while the message log is larger than this.
    pub max_log_bytes: u64,
    /// Shards should take nothing more from clients while [`pending_bytes`](crate::Store::pending_bytes) is above this.
    pub max_pending_bytes: usize,
    /// Memory for blocks of the keyed state and objects that were read.
    pub cache_bytes: u64,
    /// How long a store that is closed goes on trying to write what it has.
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
    /// Whether the bounds fit together.
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
