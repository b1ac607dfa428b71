//! Interfaces to the telemetry pipeline, which stores readings, and to the nodes of a cluster, of which one polls.

use super::readings::Reading;

/// Result of storing readings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntakeOutcome {
    pub rows: u64,
    pub values: u64,
    /// Number of rows of unregistered devices, and the id of one such device.
    pub unknown: u64,
    pub unknown_device: Option<String>,
}

/// Stores rows on behalf of devices. Called on threads that may block.
pub trait ReadingIntake: Send + Sync + 'static {
    /// Stores valid rows. The thing model, the rule chain and the alarms of the product apply as if the device had
    /// sent the rows.
    fn store_readings(&self, readings: &[Reading], now_ms: i64) -> IntakeOutcome;

    /// Whether there is no room at the moment.
    fn is_full(&self) -> bool {
        false
    }
}

/// Decides which node of a cluster polls. Without it, the node polls.
pub trait PollingTurn: Send + Sync + 'static {
    /// # Errors
    /// If this node is not to poll now; contains the reason.
    fn check(&self) -> Result<(), String>;
}
