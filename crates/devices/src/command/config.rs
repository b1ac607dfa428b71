//! Configuration of commands: limits and default times.

/// Limits and default times of commands.
#[derive(Debug, Clone)]
pub struct CommandConfig {
    /// Default time in ms in which a device must reply.
    pub timeout_ms: u64,
    pub max_timeout_ms: u64,
    /// Default time in seconds for which a command waits for its device.
    pub expiry_s: u64,
    pub max_expiry_s: u64,
    /// Maximum number of open commands of one device.
    pub max_open_per_device: usize,
    /// Maximum number of open commands of all devices.
    pub max_open: usize,
    pub max_params_bytes: usize,
    /// Maximum size of a reply as JSON.
    pub max_result_bytes: usize,
    /// Maximum number of finished commands that are stored, and their retention in days.
    pub max_finished: u64,
    pub finished_retention_days: u32,
    /// Maximum number of callers that wait for replies at the same time.
    pub max_waiting_requests: usize,
    /// A reply without an id is matched with the newest command sent within this time.
    pub response_without_id_window_ms: u64,
    /// Number of queued jobs from which devices are slowed down.
    pub max_queued_responses: usize,
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
            finished_retention_days: 30,
            max_waiting_requests: 1_000,
            response_without_id_window_ms: 5_000,
            max_queued_responses: 10_000,
        }
    }
}
