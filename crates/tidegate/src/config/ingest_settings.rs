//! `[telemetry]`

use std::path::PathBuf;
use std::time::Duration;

use series::PolicyAssignment;

/// Telemetry settings of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct IngestSettings {
    /// Directory of the time series; `None`: `telemetry` in the node's data directory.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) fsync: series::Fsync,
    /// Retention in days; 0: unlimited.
    pub(crate) retention_days: u32,
    pub(crate) memtable_bytes: usize,
    pub(crate) flush_after_s: u32,
    pub(crate) max_wal_bytes: u64,
    pub(crate) min_free_bytes: u64,
    pub(crate) max_keys: u32,
    pub(crate) max_keys_per_product: usize,
    pub(crate) max_future_s: u32,
    pub(crate) latest_cache_bytes: usize,
    pub(crate) verify_bytes_per_s: u64,
    /// Number of mailboxes; 0: one per core.
    pub(crate) mailboxes: usize,
    pub(crate) mailbox_bytes: usize,
    pub(crate) max_mailbox_batch_messages: usize,
    pub(crate) allow_registration_by_gateways: bool,
    pub(crate) max_gateway_products: usize,
    /// User names, separated by commas.
    pub(crate) downlink_topic_publishers: Option<String>,
}

impl Default for IngestSettings {
    fn default() -> Self {
        let series = series::SeriesConfig::default();
        let ingest = devices::ingest::PipelineConfig::default();
        Self {
            directory: None,
            fsync: series.fsync,
            retention_days: 90,
            memtable_bytes: series.memtable_bytes,
            flush_after_s: series.flush_after.as_secs() as u32,
            max_wal_bytes: series.max_wal_bytes,
            min_free_bytes: series.min_free_bytes,
            max_keys: series.max_keys,
            max_keys_per_product: ingest.max_keys_per_product,
            max_future_s: (series.max_future_ms / 1000) as u32,
            latest_cache_bytes: series.latest_cache_bytes,
            verify_bytes_per_s: series.verify_bytes_per_s,
            mailboxes: 0,
            mailbox_bytes: ingest.mailbox_bytes,
            max_mailbox_batch_messages: ingest.max_mailbox_batch_messages,
            allow_registration_by_gateways: true,
            max_gateway_products: 100,
            downlink_topic_publishers: None,
        }
    }
}

impl IngestSettings {
    pub(crate) fn series(&self, assignment: PolicyAssignment) -> series::SeriesConfig {
        series::SeriesConfig {
            fsync: self.fsync,
            memtable_bytes: self.memtable_bytes,
            flush_after: Duration::from_secs(self.flush_after_s.into()),
            max_wal_bytes: self.max_wal_bytes,
            min_free_bytes: self.min_free_bytes,
            max_keys: self.max_keys,
            max_future_ms: i64::from(self.max_future_s) * 1000,
            latest_cache_bytes: self.latest_cache_bytes,
            verify_bytes_per_s: self.verify_bytes_per_s,
            assignment,
            ..series::SeriesConfig::default()
        }
    }

    pub(crate) fn ingest(&self, directory: PathBuf) -> devices::ingest::PipelineConfig {
        let default = devices::ingest::PipelineConfig::default();
        devices::ingest::PipelineConfig {
            directory: Some(directory),
            mailboxes: match self.mailboxes {
                0 => default.mailboxes,
                count => count,
            },
            mailbox_bytes: self.mailbox_bytes,
            max_mailbox_batch_messages: self.max_mailbox_batch_messages,
            max_keys_per_product: self.max_keys_per_product,
        }
    }
}
