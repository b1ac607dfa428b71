//! Bounds of commands.

/// Bounds of commands.
#[derive(Debug, Clone)]
pub struct CommandConfig {
    /// How long an answer may take if the command does not say.
    pub timeout_ms: u64,
    pub max_timeout_ms: u64,
    /// How long a command waits for its device if it does not say.
    pub expiry_s: u64,
    pub max_expiry_s: u64,
    /// Open commands of one device.
    pub max_open_per_device: usize,
    /// Open commands of all devices.
    pub max_open: usize,
    pub max_params_bytes: usize,
    /// Of an answer, as JSON.
    pub max_result_bytes: usize,
    /// Commands that are kept after their end, and for how long.
    pub max_finished: u64,
    pub finished_retention_d: u32,
    /// Callers that may wait for answers at once.
    pub max_waiting: usize,
    /// How old the newest command may be that an answer without an id is taken for.
    pub unnamed_within_ms: u64,
    /// Answers and the like that may wait to be worked off before devices are made to wait.
    pub max_queued: usize,
}

impl Default for CommandConfig {
    fn default() -> Self {
        Self {
            timeout_ms: 5_000,
            max_timeout_ms: 600_000,
            expiry_s: 3_600,
            max_expiry_s: 30 * 24 * 3600,
            max_open_per_device: 100,
            max_open: 100_000,
            max_params_bytes: 64 << 10,
            max_result_bytes: 64 << 10,
            max_finished: 100_000,
            finished_retention_d: 30,
            max_waiting: 1_000,
            unnamed_within_ms: 5_000,
            max_queued: 10_000,
        }
    }
}
