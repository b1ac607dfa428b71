//! Health of a store, and what impairs it.

/// Whether the store accepts new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StoreHealth {
    Ok = 0,
    /// No space: refuse new messages. Submitted batches are still written, and acknowledgements free space.
    Full = 1,
    /// Writes fail. Submitted batches are kept and written after recovery.
    Failed = 2,
}

/// Causes of impaired health.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum HealthFlag {
    /// The log has reached its limit, or there is no space for the next segment.
    LogFull = 1,
    /// The file system has too little free space.
    DiskFull = 2,
    /// Writes to the log fail.
    Log = 4,
    /// Writes to the keyed state fail.
    Keyed = 8,
    /// Syncs fail.
    Sync = 16,
    /// The server that stores the queues has been unavailable for too long.
    Queues = 32,
}
