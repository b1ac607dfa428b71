//! Alarm events for observers, and alarms that SQL rules raise or clear.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::Severity;
use super::record::Alarm;

/// The kind of a change of an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlarmChange {
    Raised,
    SeverityChanged,
    Acknowledged,
    Cleared,
    Removed,
}

impl AlarmChange {
    /// In the order of their codes.
    pub const ALL: [Self; 5] = [
        Self::Raised,
        Self::SeverityChanged,
        Self::Acknowledged,
        Self::Cleared,
        Self::Removed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raised => "raised",
            Self::SeverityChanged => "severity_changed",
            Self::Acknowledged => "acknowledged",
            Self::Cleared => "cleared",
            Self::Removed => "removed",
        }
    }
}

/// A change of an alarm; emitted once it is in the store.
#[derive(Debug, Clone)]
pub struct AlarmEvent {
    pub change: AlarmChange,
    pub alarm: Arc<Alarm>,
    /// [`SqlRuleAlarm::tag`] of the SQL rule that caused the change; otherwise 0.
    pub tag: u64,
    /// Number of the change, identical in repeated events; 0: no notification is sent.
    pub change_no: u64,
}

/// An alarm that an SQL rule raises or clears.
#[derive(Debug, Clone)]
pub struct SqlRuleAlarm {
    pub kind: String,
    pub severity: Severity,
    pub is_cleared: bool,
    pub at_ms: u64,
    pub details: String,
    pub rule: String,
    /// Copied to the resulting event, so that loops of rules end.
    pub tag: u64,
}
