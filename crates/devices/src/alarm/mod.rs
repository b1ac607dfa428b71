//! Alarms: rules with conditions on telemetry, their state per device, storage and notifications.

mod alarm_store;
mod condition;
mod definition;
mod details_template;
mod device_alarms;
mod event;
mod node_alarms;
mod notification;
mod pending_notifications;
mod product_rules;
mod record;
mod schedule;
mod service;
mod watched_devices;

pub use alarm_store::{AlarmFilter, AlarmPage};
pub use condition::Scalar;
pub use definition::{
    AlarmCondition, AlarmRule, AlarmTrigger, AllConditions, AnyCondition, ConditionTest,
    RaiseTrigger, SchedulePeriod, Severity, TestOperator, rules_from_json,
};
pub use device_alarms::{AlarmSet, AlarmTransition, AlarmTransitionKind, DeviceAlarms};
pub use event::{AlarmChange, AlarmEvent, SqlRuleAlarm};
pub use node_alarms::{NodeAlarms, NodeSample, check_node_alarm_rules, node_alarm_rules};
pub use notification::{
    MAX_NOTIFICATIONS, MqttNotification, NOTIFICATION_KIND, Notification, NotificationChannel,
    NotificationCounts, NotificationTransport, Notifications, check_notification,
};
pub use pending_notifications::{AlarmNotifier, DurableCallback};
pub use product_rules::check_rules;
pub use record::{Alarm, AlarmId, AlarmState};
pub use service::{AlarmConfig, AlarmError, AlarmStats, Alarms};

/// The device number that stands for the node itself.
pub const NODE_NO: series::DeviceNo = watched_devices::NODE_NO;
/// The product of the node's own alarms.
pub const NODE_PRODUCT: &str = "$node";

/// An invalid field of a definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct AlarmDefinitionError {
    /// Path of the field, such as `alarms[0].raise[1].when.value`.
    pub field: String,
    pub detail: String,
}

impl AlarmDefinitionError {
    pub(crate) fn new(field: &str, detail: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            detail: detail.into(),
        }
    }
}

impl std::fmt::Display for AlarmDefinitionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.field {
            "" => f.write_str(&self.detail),
            field => write!(f, "{field}: {}", self.detail),
        }
    }
}
