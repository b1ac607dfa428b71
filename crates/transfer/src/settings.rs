//! Limits of files and transfers.

use disk::Fsync;

/// Settings of the section `[files]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferSettings {
    /// Whether devices and people can transfer files.
    pub enabled: bool,
    pub max_file_bytes: u64,
    /// Limits of the node, complete files and transfers together.
    pub max_files: u64,
    pub max_bytes: u64,
    /// Transfers that are not complete.
    pub max_transfers: u64,
    /// Bytes received per second; 0: no limit.
    pub max_bytes_per_s: u64,
    /// Limits of one sender.
    pub max_files_per_owner: u64,
    pub max_bytes_per_owner: u64,
    pub max_transfers_per_owner: u64,
    pub max_bytes_per_s_per_owner: u64,
    /// Limits of all devices of one product.
    pub max_files_per_product: u64,
    pub max_bytes_per_product: u64,
    pub max_transfers_per_product: u64,
    pub max_bytes_per_s_per_product: u64,
    /// Limits of all senders of one namespace. Its files and bytes are quotas of the namespace.
    pub max_transfers_per_namespace: u64,
    pub max_bytes_per_s_per_namespace: u64,
    /// Free space on the file system that files leave to others.
    pub min_free_bytes: u64,
    /// How long a transfer may stay incomplete after its last segment; a sender may ask for less, but not for less than
    /// the minimum.
    pub min_segments_ttl_s: u32,
    pub max_segments_ttl_s: u32,
    /// How long complete files are kept whose sender gave no expiry; 0: until they are deleted.
    pub retention_s: u32,
    /// Memory of segments that wait to be written.
    pub max_queued_bytes: u64,
    /// Threads that write segments of MQTT clients.
    pub threads: u32,
    /// Of the store.
    pub fsync: Fsync,
}

impl Default for TransferSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            max_file_bytes: 16 << 30,
            max_files: 100_000,
            max_bytes: 1 << 40,
            max_transfers: 1000,
            max_bytes_per_s: 0,
            max_files_per_owner: 1000,
            max_bytes_per_owner: 32 << 30,
            max_transfers_per_owner: 8,
            max_bytes_per_s_per_owner: 0,
            max_files_per_product: 100_000,
            max_bytes_per_product: 1 << 40,
            max_transfers_per_product: 1000,
            max_bytes_per_s_per_product: 0,
            max_transfers_per_namespace: 1000,
            max_bytes_per_s_per_namespace: 0,
            min_free_bytes: 512 << 20,
            min_segments_ttl_s: 300,
            max_segments_ttl_s: 86_400,
            retention_s: 0,
            max_queued_bytes: 64 << 20,
            threads: 2,
            fsync: Fsync::default(),
        }
    }
}
