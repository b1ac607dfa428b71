//! Alarms: conditions on what devices say, and what becomes of them.

mod book;
mod compiled;
mod condition;
mod definition;
mod details;
mod event;
mod machine;
mod notify;
mod platform;
mod record;
mod schedule;
mod service;
mod untold;
mod watch;

pub use book::{AlarmFilter, AlarmPage};
pub use compiled::check_rules;
pub use condition::Scalar;
pub use definition::{
    AlarmRule, All, Any, Condition, Operator, Period, Raise, Severity, Test, When, rules_from_json,
};
pub use event::{AlarmChange, AlarmEvent, NamedAlarm};
pub use machine::{AlarmSet, DeviceAlarms, Happened, Turn};
pub use notify::{
    Channel, Courier, MAX_NOTIFICATIONS, Message, NOTIFICATION_KIND, Notification,
    NotificationCounts, Notifications, check_notification,
};
pub use platform::{PlatformAlarms, PlatformSample, check_platform_rules, platform_rules};
pub use record::{Alarm, AlarmId, AlarmState};
pub use service::{AlarmConfig, AlarmError, AlarmStats, Alarms};
pub use untold::{Handover, Safe};

/// The number of the node itself among those of devices.
pub const NODE_NO: series::DeviceNo = watch::NODE;
/// What the node's own alarms have in place of a product.
pub const NODE_PRODUCT: &str = "$platform";

/// A field of a definition cannot be what it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// Where it stands: `alarms[0].raise[1].when.value`.
    pub field: String,
    pub detail: String,
}

impl Invalid {
    pub(crate) fn new(field: &str, detail: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            detail: detail.into(),
        }
    }
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.field {
            "" => f.write_str(&self.detail),
            field => write!(f, "{field}: {}", self.detail),
        }
    }
}
