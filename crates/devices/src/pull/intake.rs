//! Where readings go.

use super::Reading;

/// What became of readings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntakeOutcome {
    pub rows: u64,
    pub values: u64,
    /// Rows of devices that are not registered, and one of these.
    pub unknown: u64,
    pub unknown_device: Option<String>,
}

/// Takes rows on behalf of devices. Called on threads that may wait.
pub trait ReadingIntake: Send + Sync + 'static {
    /// Stores what fits; the thing model, the rule chain and the alarms of the device's product see it as if the device had said it.
    fn store_readings(&self, readings: &[Reading], now_ms: i64) -> IntakeOutcome;

    /// Whether there is no room at the moment.
    fn is_full(&self) -> bool {
        false
    }
}
