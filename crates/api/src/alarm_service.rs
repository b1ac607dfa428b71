//! The alarms of devices and of the node as the routes use them.

use std::collections::BTreeMap;
use std::sync::Arc;

use devices::alarm::{
    Alarm, AlarmError, AlarmEvent, AlarmFilter, AlarmId, AlarmPosition, AlarmState, Alarms,
    MAX_COMMENTS, NODE_ALARM_RULES_ID, NODE_ALARM_RULES_KIND, NODE_NO, NODE_PRODUCT,
    NotificationCounts, Notifications, Severity, check_node_alarm_rules, stored_node_alarm_rules,
};
use devices::{DeviceNo, Registry};
use namespaces::NamespaceSelection;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use store::{ExpectedVersion, Objects};
use tokio::sync::broadcast;
use wall_clock::now_ms;

use crate::objects::{ObjectBackend, ObjectValidationError};

/// Maximum number of changes that a subscriber may lag behind.
const UPDATE_BUFFER: usize = 1024;

/// Why a query or change of an alarm failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AlarmServiceError {
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
pub(crate) struct AlarmQuery {
    /// A device id: the alarms of the device, and those propagated to it.
    pub(crate) device: Option<String>,
    pub(crate) product: Option<String>,
    pub(crate) kind: Option<String>,
    /// Any of these states; empty: all.
    pub(crate) states: Vec<String>,
    pub(crate) severities: Vec<String>,
    /// Range of the time of raising, end exclusive.
    pub(crate) from_ms: Option<u64>,
    pub(crate) to_ms: Option<u64>,
    /// Only alarms behind this place.
    pub(crate) before: Option<AlarmPosition>,
    pub(crate) limit: usize,
    pub(crate) namespaces: NamespaceSelection,
}

/// A page of alarms, newest first, and the place behind which the next page begins.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AlarmRows {
    pub(crate) rows: Vec<Alarm>,
    pub(crate) next: Option<AlarmPosition>,
}

/// Numbers of alarms.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct AlarmCounts {
    alarms: u64,
    /// Number of alarms that are not cleared.
    active: u64,
    unacknowledged: u64,
    by_state: BTreeMap<&'static str, u64>,
    /// Number of alarms that are not cleared, by severity.
    active_by_severity: BTreeMap<&'static str, u64>,
}

/// Counters of a notification since the node started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct NotificationStatus {
    name: String,
    #[serde(flatten)]
    counts: NotificationCounts,
}

/// Rules of the node alarms.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct NodeAlarmRules {
    #[schemars(with = "Vec<Map<String, Value>>")]
    rules: Value,
    /// Whether they are evaluated: the setting `alarms.node_alarms_enabled`.
    enabled: bool,
    /// Whether the rules differ from the defaults.
    is_changed: bool,
}

/// The alarms of devices and of the node. Methods may block. Clones share the same state.
#[derive(Clone)]
pub struct AlarmService {
    alarms: Alarms,
    notifications: Arc<Notifications>,
    registry: Registry,
    objects: Objects,
    has_node_alarms: bool,
    updates: broadcast::Sender<AlarmEvent>,
}

impl AlarmService {
    /// `has_node_alarms`: whether the rules of node alarms are evaluated.
    pub fn new(
        alarms: Alarms,
        notifications: Arc<Notifications>,
        registry: Registry,
        objects: Objects,
        has_node_alarms: bool,
    ) -> Self {
        let updates = broadcast::channel(UPDATE_BUFFER).0;
        let sender = updates.clone();
        alarms.add_observer(Box::new(move |event| {
            if sender.receiver_count() > 0 {
                // The last subscriber may have left just now.
                let _ = sender.send(event.clone());
            }
        }));
        Self {
            alarms,
            notifications,
            registry,
            objects,
            has_node_alarms,
            updates,
        }
    }

    pub(crate) fn list(&self, query: &AlarmQuery) -> Result<AlarmRows, AlarmServiceError> {
        let device = match &query.device {
            None => None,
            Some(id) => match self.device_number(id)? {
                Some(no) => Some(no),
                None => return Ok(AlarmRows::default()),
            },
        };
        let states = query.states.iter();
        let severities = query.severities.iter();
        let filter = AlarmFilter {
            device,
            product: query.product.clone(),
            namespaces: query.namespaces.clone(),
            kind: query.kind.clone(),
            states: states.filter_map(|name| AlarmState::parse(name)).collect(),
            severities: severities
                .filter_map(|name| Severity::parse(name))
                .collect(),
            from_ms: query.from_ms,
            to_ms: query.to_ms,
        };
        let page = self.alarms.list(&filter, query.before, query.limit);
        let page = page.map_err(unavailable_error)?;
        Ok(AlarmRows {
            rows: page.alarms,
            next: page.next,
        })
    }

    pub(crate) fn get(&self, id: u64) -> Result<Option<Alarm>, AlarmServiceError> {
        self.alarms.get(AlarmId(id)).map_err(unavailable_error)
    }

    pub(crate) fn acknowledge(&self, id: u64, who: &str) -> Result<Alarm, AlarmServiceError> {
        let changed = self.alarms.acknowledge(AlarmId(id), who);
        changed.map_err(to_service_error)
    }

    pub(crate) fn clear(&self, id: u64, who: &str) -> Result<Alarm, AlarmServiceError> {
        let changed = self.alarms.clear(AlarmId(id), who);
        changed.map_err(to_service_error)
    }

    pub(crate) fn comment(
        &self,
        id: u64,
        who: &str,
        text: &str,
    ) -> Result<Alarm, AlarmServiceError> {
        let changed = self.alarms.comment(AlarmId(id), who, text);
        changed.map_err(to_service_error)
    }

    pub(crate) fn remove(&self, id: u64) -> Result<(), AlarmServiceError> {
        self.alarms.remove(AlarmId(id)).map_err(to_service_error)
    }

    /// The number of alarms by state and severity, or of those of the node itself.
    pub(crate) fn counts(&self, only_of_node: bool) -> AlarmCounts {
        let counts = match only_of_node {
            true => self.alarms.counts_of_node(),
            false => self.alarms.counts(),
        };
        let sum = |is_wanted: &dyn Fn(AlarmState, Severity) -> bool| -> u64 {
            let wanted = counts
                .iter()
                .filter(|(state, severity, _)| is_wanted(*state, *severity));
            wanted.map(|(_, _, count)| count).sum()
        };
        let by_state = AlarmState::ALL.map(|wanted| {
            let count = sum(&|state, _| state == wanted);
            (wanted.as_str(), count)
        });
        let by_severity = Severity::ALL.map(|wanted| {
            let count = sum(&|state, severity| !state.is_cleared() && severity == wanted);
            (wanted.as_str(), count)
        });
        let is_unseen = |state| matches!(state, AlarmState::ActiveUnack | AlarmState::ClearedUnack);
        AlarmCounts {
            alarms: sum(&|_, _| true),
            active: sum(&|state, _| !state.is_cleared()),
            unacknowledged: sum(&|state, _| is_unseen(state)),
            by_state: BTreeMap::from(by_state),
            active_by_severity: BTreeMap::from(by_severity),
        }
    }

    /// The changes of alarms from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<AlarmEvent> {
        self.updates.subscribe()
    }

    /// The number of a device, or of the node itself.
    pub(crate) fn device_number(&self, id: &str) -> Result<Option<DeviceNo>, AlarmServiceError> {
        if id == NODE_PRODUCT {
            return Ok(Some(NODE_NO));
        }
        let device = self.registry.device(id).map_err(unavailable_error)?;
        Ok(device.map(|device| device.no))
    }

    /// Counters of each notification.
    pub(crate) fn notification_status(&self) -> Vec<NotificationStatus> {
        let counts = self.notifications.counts().into_iter();
        counts
            .map(|(name, counts)| NotificationStatus { name, counts })
            .collect()
    }

    /// Sends a notification about a test alarm.
    pub(crate) fn test_notification(&self, name: &str) -> Result<(), AlarmServiceError> {
        match self.notifications.send_test(name, now_ms()) {
            None => {
                let detail = format!("There is no notification {name:?}.");
                Err(AlarmServiceError::NotFound(detail))
            }
            Some(Err(why)) => Err(AlarmServiceError::Conflict(format!(
                "The notification cannot be sent: {why}."
            ))),
            Some(Ok(())) => Ok(()),
        }
    }

    /// The rules of the node alarms, and whether they were changed.
    pub(crate) fn node_alarm_rules(&self) -> Result<NodeAlarmRules, AlarmServiceError> {
        let (rules, is_changed) =
            stored_node_alarm_rules(&self.objects).map_err(unavailable_error)?;
        Ok(NodeAlarmRules {
            rules,
            enabled: self.has_node_alarms,
            is_changed,
        })
    }

    /// Replaces the rules of the node alarms, unless they name objects that do not exist.
    pub(crate) fn set_node_alarm_rules(
        &self,
        rules: Vec<Value>,
        references: &dyn ObjectBackend,
    ) -> Result<NodeAlarmRules, AlarmServiceError> {
        let rules = Value::Array(rules);
        check_node_alarm_rules(&rules).map_err(|problem| AlarmServiceError::Field {
            field: problem.field.replacen("alarms", "rules", 1),
            detail: problem.detail,
        })?;
        let object = serde_json::json!({"rules": rules});
        let checked = references.check_references_exist(NODE_ALARM_RULES_KIND, &object);
        checked.map_err(|invalid: ObjectValidationError| AlarmServiceError::Field {
            field: invalid.field,
            detail: invalid.detail.trim_end_matches('.').to_owned(),
        })?;
        let put = self.objects.put(
            NODE_ALARM_RULES_KIND,
            NODE_ALARM_RULES_ID,
            object,
            ExpectedVersion::Any,
        );
        put.map_err(unavailable_error)?;
        self.node_alarm_rules()
    }

    /// Restores the default rules of the node alarms.
    pub(crate) fn reset_node_alarm_rules(&self) -> Result<NodeAlarmRules, AlarmServiceError> {
        let deleted = self.objects.delete(
            NODE_ALARM_RULES_KIND,
            NODE_ALARM_RULES_ID,
            ExpectedVersion::Any,
        );
        deleted.map_err(unavailable_error)?;
        self.node_alarm_rules()
    }
}

fn unavailable_error(error: impl std::fmt::Display) -> AlarmServiceError {
    AlarmServiceError::Unavailable(format!("{error}."))
}

fn to_service_error(error: AlarmError) -> AlarmServiceError {
    match error {
        AlarmError::NotFound(id) => {
            AlarmServiceError::NotFound(format!("There is no alarm {}.", id.0))
        }
        AlarmError::AlreadyInState(what) => {
            AlarmServiceError::Conflict(format!("The alarm is already {what}."))
        }
        AlarmError::TooManyComments => AlarmServiceError::Conflict(format!(
            "The alarm has {MAX_COMMENTS} comments, and cannot have more."
        )),
        AlarmError::Store(error) => unavailable_error(error),
    }
}
