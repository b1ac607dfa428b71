//! Limits and time settings of a rule's windows.

/// Limits and time settings of one rule's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowOptions {
    /// Time after its end during which a window still accepts late events, in milliseconds.
    pub lateness_ms: u64,
    /// Maximum number of groups in all open windows.
    pub max_groups: usize,
    pub max_bytes: usize,
    /// Limits for events with their own timestamps, which then define the rule's time. `None`: the node's
    /// clock.
    pub event_time: Option<EventClockLimits>,
}

/// Limits of a clock driven by event timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventClockLimits {
    /// An event further ahead of the node's clock is not counted and does not move the clock.
    pub max_ahead_ms: u64,
    /// After this time without events the clock advances by itself.
    pub idle_ms: u64,
}

impl Default for WindowOptions {
    fn default() -> Self {
        Self {
            lateness_ms: 250,
            max_groups: 100_000,
            max_bytes: 64 << 20,
            event_time: None,
        }
    }
}
