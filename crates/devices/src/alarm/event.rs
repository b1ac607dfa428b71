//! What becomes of alarms, as others are told of it, and what others tell alarms.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::Severity;
use super::record::Alarm;

/// What became of an alarm.
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
    /// In the order of their numbers.
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

/// Something became of an alarm; told when it is in the store.
#[derive(Debug, Clone)]
pub struct AlarmEvent {
    pub change: AlarmChange,
    pub alarm: Arc<Alarm>,
    /// Of [`SqlRuleAlarm::tag`], if it came of one; else 0.
    pub tag: u64,
    /// The number of the change, the same whenever it is told; 0: nobody is to be told of it by a notification.
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
    /// To be told with what comes of it, so that loops of rules end.
    pub tag: u64,
}
