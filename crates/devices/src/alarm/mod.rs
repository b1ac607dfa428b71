//! Alarms: rules with conditions on telemetry, their state per device, storage and notifications.

mod alarm_index;
mod alarm_store;
mod announcements;
mod condition;
mod definition;
mod definition_error;
mod details_template;
mod device_alarms;
mod device_checks;
mod endpoint_alert;
mod event;
mod node_alarms;
mod node_subject;
mod notification;
mod pending_notifications;
mod product_rules;
mod record;
mod record_exchange;
mod schedule;
mod service;
mod shared_alarm;
mod sharing;
mod store_sharing;
mod watched_devices;

pub use alarm_index::AlarmPosition;
pub use alarm_store::{AlarmFilter, AlarmPage};
pub use condition::Scalar;
pub use definition::{
    AlarmCondition, AlarmRule, AlarmTrigger, AllConditions, AnyCondition, ConditionTest,
    RaiseTrigger, SchedulePeriod, Severity, TestOperator, rules_from_json,
};
pub use definition_error::AlarmDefinitionError;
pub use device_alarms::{AlarmSet, AlarmTransition, AlarmTransitionKind, DeviceAlarms};
pub use device_checks::{DevicePlaces, FoundElsewhere};
pub use endpoint_alert::endpoint_alert;
pub use event::{AlarmChange, AlarmEvent, SqlRuleAlarm};
pub use node_alarms::{
    NODE_ALARM_RULES_ID, NODE_ALARM_RULES_KIND, NodeAlarms, NodeSample, check_node_alarm_rules,
    stored_node_alarm_rules,
};
pub use node_subject::{NODE_NO, NODE_PRODUCT};
pub use notification::{
    MAX_NOTIFICATIONS, MqttNotification, NOTIFICATION_KIND, Notification, NotificationChannel,
    NotificationCounts, NotificationTransport, Notifications, check_notification,
};
pub use pending_notifications::{AlarmNotifier, DurableCallback};
pub use product_rules::check_rules;
pub use record::{Alarm, AlarmComment, AlarmId, AlarmState, MAX_COMMENT_CHARS, MAX_COMMENTS};
pub use service::{AlarmChanges, AlarmConfig, AlarmError, AlarmStats, Alarms, SharedAlarms};
pub use store_sharing::AlarmSharingError;
