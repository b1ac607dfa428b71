//! The section `backup`.

use std::path::PathBuf;

/// Where the node writes backups, and how fast.
#[derive(Debug, Clone)]
pub(crate) struct BackupSettings {
    pub(crate) directory: Option<PathBuf>,
    /// 0: no limit.
    pub(crate) max_bytes_per_s: u64,
}

impl Default for BackupSettings {
    fn default() -> Self {
        Self {
            directory: None,
            max_bytes_per_s: 64 << 20,
        }
    }
}
