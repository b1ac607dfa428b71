//! What the API asks of the alarms of devices. Alarms are JSON here; what they mean is known elsewhere.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::broadcast;

/// A question or a change that cannot be answered with an alarm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlarmBackendError {
    NotFound(String),
    /// It is not in the state for it.
    Conflict(String),
    /// A field is not as it has to be.
    Field {
        field: String,
        detail: String,
    },
    Unavailable(String),
}

/// Which alarms of a list.
#[derive(Debug, Clone, Default)]
pub struct AlarmQuery {
    /// The id of a device: its alarms, and those that are propagated to it.
    pub device: Option<String>,
    pub product: Option<String>,
    pub kind: Option<String>,
    /// Any of these; empty: all.
    pub states: Vec<String>,
    pub severities: Vec<String>,
    /// When they were raised; the end is not included.
    pub from_ms: Option<u64>,
    pub to_ms: Option<u64>,
    /// Only those with a smaller number.
    pub before: Option<u64>,
    pub limit: usize,
}

/// Alarms of a page, the newest first, and the number where the next one begins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AlarmPage {
    pub rows: Vec<Value>,
    pub next: Option<u64>,
}

/// Something became of an alarm.
#[derive(Debug, Clone, PartialEq)]
pub struct AlarmUpdate {
    /// `raised`, `severity_changed`, `acknowledged`, `cleared` or `removed`.
    pub change: &'static str,
    pub alarm: Value,
    /// The numbers of the devices it counts for.
    pub devices: Vec<u32>,
}

/// The alarms. Called on threads that may block.
pub trait AlarmBackend: Send + Sync + 'static {
    fn list(&self, query: &AlarmQuery) -> Result<AlarmPage, AlarmBackendError>;
    fn get(&self, id: u64) -> Result<Option<Value>, AlarmBackendError>;
    fn acknowledge(&self, id: u64, who: &str) -> Result<Value, AlarmBackendError>;
    fn clear(&self, id: u64, who: &str) -> Result<Value, AlarmBackendError>;
    fn remove(&self, id: u64) -> Result<(), AlarmBackendError>;
    /// How many there are, by state and severity.
    fn counts(&self) -> Value;
    fn subscribe(&self) -> broadcast::Receiver<Arc<AlarmUpdate>>;
    /// The number of a device, as in [`AlarmUpdate::devices`].
    fn device_number(&self, id: &str) -> Result<Option<u32>, AlarmBackendError>;

    /// How often notifications were sent, each with its name.
    fn notification_status(&self) -> Vec<Value>;
    /// Sends one about an alarm that is none.
    fn test_notification(&self, name: &str) -> Result<(), AlarmBackendError>;

    /// The rules of the alarms of the node about itself, and whether anybody has changed them.
    fn platform_rules(&self) -> Result<Value, AlarmBackendError>;
    /// Has other rules hold; `None`: those of the program.
    fn set_platform_rules(&self, rules: Option<Vec<Value>>) -> Result<Value, AlarmBackendError>;
}

/// A node without alarms.
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
