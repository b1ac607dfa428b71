//! The interface between the API and the alarms of devices. Alarms are opaque JSON here.

use std::collections::BTreeMap;
use std::sync::Arc;

use devices::alarm::NotificationCounts;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::broadcast;

/// Why a query or change of an alarm failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlarmBackendError {
    NotFound(String),
    /// The state of the alarm does not allow the change.
    Conflict(String),
    /// A field is invalid.
    Field {
        field: String,
        detail: String,
    },
    Unavailable(String),
}

/// Selects alarms of a list.
#[derive(Debug, Clone, Default)]
pub struct AlarmQuery {
    /// A device id: the alarms of the device, and those propagated to it.
    pub device: Option<String>,
    pub product: Option<String>,
    pub kind: Option<String>,
    /// Any of these states; empty: all.
    pub states: Vec<String>,
    pub severities: Vec<String>,
    /// Range of the time of raising, end exclusive.
    pub from_ms: Option<u64>,
    pub to_ms: Option<u64>,
    /// Only alarms with a smaller number.
    pub before: Option<u64>,
    pub limit: usize,
}

/// A page of alarms, newest first, and the cursor of the next page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AlarmPage {
    pub rows: Vec<Value>,
    pub next: Option<u64>,
}

/// A change of an alarm.
#[derive(Debug, Clone, PartialEq)]
pub struct AlarmUpdate {
    /// `raised`, `severity_changed`, `acknowledged`, `cleared` or `removed`.
    pub change: &'static str,
    pub alarm: Value,
    /// Numbers of the devices the alarm belongs to or is propagated to.
    pub devices: Vec<u32>,
}

/// Numbers of alarms.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AlarmCounts {
    pub alarms: u64,
    /// Number of alarms that are not cleared.
    pub active: u64,
    pub unacknowledged: u64,
    pub by_state: BTreeMap<&'static str, u64>,
    /// Number of alarms that are not cleared, by severity.
    pub active_by_severity: BTreeMap<&'static str, u64>,
}

/// Counters of a notification since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotificationStatus {
    pub name: String,
    #[serde(flatten)]
    pub counts: NotificationCounts,
}

/// Rules of the node alarms.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct NodeAlarmRules {
    #[schemars(with = "Vec<Map<String, Value>>")]
    pub rules: Value,
    /// Whether they are evaluated: the setting `alarms.node_alarms_enabled`.
    pub enabled: bool,
    /// Whether the rules differ from the defaults.
    pub is_changed: bool,
}

/// Access to alarms. Methods are called on threads that may block.
pub trait AlarmBackend: Send + Sync + 'static {
    fn list(&self, query: &AlarmQuery) -> Result<AlarmPage, AlarmBackendError>;
    fn get(&self, id: u64) -> Result<Option<Value>, AlarmBackendError>;
    fn acknowledge(&self, id: u64, who: &str) -> Result<Value, AlarmBackendError>;
    fn clear(&self, id: u64, who: &str) -> Result<Value, AlarmBackendError>;
    fn remove(&self, id: u64) -> Result<(), AlarmBackendError>;
    /// The number of alarms by state and severity.
    fn counts(&self) -> AlarmCounts;
    fn subscribe(&self) -> broadcast::Receiver<Arc<AlarmUpdate>>;
    /// The number of a device, as in [`AlarmUpdate::devices`].
    fn device_number(&self, id: &str) -> Result<Option<u32>, AlarmBackendError>;

    /// Counters of each notification.
    fn notification_status(&self) -> Vec<NotificationStatus>;
    /// Sends a notification about a test alarm.
    fn test_notification(&self, name: &str) -> Result<(), AlarmBackendError>;

    /// The rules of the node alarms, and whether they were changed.
    fn node_alarm_rules(&self) -> Result<NodeAlarmRules, AlarmBackendError>;
    /// Replaces the rules of the node alarms; `None`: restores the default rules.
    fn set_node_alarm_rules(
        &self,
        rules: Option<Vec<Value>>,
    ) -> Result<NodeAlarmRules, AlarmBackendError>;
}
