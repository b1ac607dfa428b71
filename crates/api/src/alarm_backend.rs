//! The interface between the API and the alarms of devices. Alarms are opaque JSON here.

use std::sync::Arc;

use serde_json::{Value, json};
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

/// Access to alarms. Methods are called on threads that may block.
pub trait AlarmBackend: Send + Sync + 'static {
    fn list(&self, query: &AlarmQuery) -> Result<AlarmPage, AlarmBackendError>;
    fn get(&self, id: u64) -> Result<Option<Value>, AlarmBackendError>;
    fn acknowledge(&self, id: u64, who: &str) -> Result<Value, AlarmBackendError>;
    fn clear(&self, id: u64, who: &str) -> Result<Value, AlarmBackendError>;
    fn remove(&self, id: u64) -> Result<(), AlarmBackendError>;
    /// The number of alarms by state and severity.
    fn counts(&self) -> Value;
    fn subscribe(&self) -> broadcast::Receiver<Arc<AlarmUpdate>>;
    /// The number of a device, as in [`AlarmUpdate::devices`].
    fn device_number(&self, id: &str) -> Result<Option<u32>, AlarmBackendError>;

    /// Counters of each notification.
    fn notification_status(&self) -> Vec<Value>;
    /// Sends a notification about a test alarm.
    fn test_notification(&self, name: &str) -> Result<(), AlarmBackendError>;

    /// The rules of the platform alarms, and whether they were changed.
    fn platform_rules(&self) -> Result<Value, AlarmBackendError>;
    /// Replaces the rules of the platform alarms; `None`: restores the default rules.
    fn set_platform_rules(&self, rules: Option<Vec<Value>>) -> Result<Value, AlarmBackendError>;
}

/// The backend of a node without alarms.
pub struct NoAlarmBackend;

fn no_alarms_error<T>() -> Result<T, AlarmBackendError> {
    Err(AlarmBackendError::Unavailable(
        "This node has no alarms.".to_owned(),
    ))
}

fn alarm_not_found<T>(id: u64) -> Result<T, AlarmBackendError> {
    Err(AlarmBackendError::NotFound(format!(
        "There is no alarm {id}."
    )))
}

impl AlarmBackend for NoAlarmBackend {
    fn list(&self, _: &AlarmQuery) -> Result<AlarmPage, AlarmBackendError> {
        Ok(AlarmPage::default())
    }

    fn get(&self, _: u64) -> Result<Option<Value>, AlarmBackendError> {
        Ok(None)
    }

    fn acknowledge(&self, id: u64, _: &str) -> Result<Value, AlarmBackendError> {
        alarm_not_found(id)
    }

    fn clear(&self, id: u64, _: &str) -> Result<Value, AlarmBackendError> {
        alarm_not_found(id)
    }

    fn remove(&self, id: u64) -> Result<(), AlarmBackendError> {
        alarm_not_found(id)
    }

    fn counts(&self) -> Value {
        json!({"alarms": 0, "active": 0, "unacknowledged": 0, "by_state": {}, "active_by_severity": {}})
    }

    fn subscribe(&self) -> broadcast::Receiver<Arc<AlarmUpdate>> {
        broadcast::channel(1).1
    }

    fn device_number(&self, _: &str) -> Result<Option<u32>, AlarmBackendError> {
        Ok(None)
    }

    fn notification_status(&self) -> Vec<Value> {
        Vec::new()
    }

    fn test_notification(&self, name: &str) -> Result<(), AlarmBackendError> {
        let detail = format!("There is no notification {name:?}.");
        Err(AlarmBackendError::NotFound(detail))
    }

    fn platform_rules(&self) -> Result<Value, AlarmBackendError> {
        no_alarms_error()
    }

    fn set_platform_rules(&self, _: Option<Vec<Value>>) -> Result<Value, AlarmBackendError> {
        no_alarms_error()
    }
}
