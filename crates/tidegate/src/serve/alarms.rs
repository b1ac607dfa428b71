//! The alarm service of the node: connects the origins of alarms, their observers and the API.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::{
    AlarmBackend, AlarmBackendError, AlarmCounts, AlarmPage, AlarmQuery, AlarmUpdate,
    NodeAlarmRules, NotificationStatus,
};
use devices::alarm::{
    Alarm, AlarmError, AlarmEvent, AlarmFilter, AlarmId, AlarmState, Alarms, NOTIFICATION_KIND,
    NodeAlarms, NodeSample, Notifications, Severity, node_alarm_rules,
};
use devices::ingest::DeviceRef;
use devices::{AttributeScope, DeviceChange, DeviceNo, PRODUCT_KIND};
use engine::DeviceEventKind;
use serde_json::{Map, Value, json};
use series::{Point, Series};
use store::{ExpectedVersion, Objects, Store};
use tokio::sync::broadcast;

use super::device_events::{DeviceEventPayload, DeviceEventQueue, QueuedDeviceEvent};
use super::node_devices::{NodeDevices, now_ms};
use super::notification_transport::NodeNotificationTransport;
use super::object_references::{NODE_ALARM_RULES_KIND, ObjectReferences};
use crate::config::AlarmSettings;

const NODE_ALARM_RULES_ID: &str = "rules";
/// Maximum number of updates that a subscriber of the API may lag behind.
const UPDATE_BUFFER: usize = 1024;

/// Clones share the same state.
#[derive(Clone)]
pub(super) struct AlarmService {
    pub(super) alarms: Alarms,
    pub(super) events: DeviceEventQueue,
    notifications: Arc<Notifications>,
    devices: NodeDevices,
    updates: broadcast::Sender<Arc<AlarmUpdate>>,
    node_alarms: Arc<NodeAlarmState>,
    is_stopping: Arc<AtomicBool>,
}

struct NodeAlarmState {
    is_enabled: bool,
    objects: Objects,
    uses: ObjectReferences,
    node_alarms: Mutex<Option<NodeAlarms>>,
}

impl AlarmService {
    /// Reads the stored alarms, and registers with all origins of alarms except telemetry. May
    /// block.
    pub(super) fn open(
        settings: &AlarmSettings,
        store: &Store,
        devices: &NodeDevices,
        series: &Series,
        events: DeviceEventQueue,
        (post, uses): (Arc<NodeNotificationTransport>, ObjectReferences),
    ) -> anyhow::Result<Self> {
        let objects = store.objects();
        let alarms = Alarms::open(
            objects.tables(),
            devices.registry.clone(),
            series.clone(),
            settings.alarms.clone(),
        )?;
        let notifications = Arc::<Notifications>::default();
        notifications.set_transport(post);
        notifications.declare(uses.all_declared(NOTIFICATION_KIND));
        notifications.watch_objects(objects)?;
        let node_alarms = NodeAlarmState {
            is_enabled: settings.node_alarms_enabled,
            objects: objects.clone(),
            uses,
            node_alarms: Mutex::default(),
        };
        let this = Self {
            alarms,
            events,
            notifications,
            devices: devices.clone(),
            updates: broadcast::channel(UPDATE_BUFFER).0,
            node_alarms: Arc::new(node_alarms),
            is_stopping: Arc::default(),
        };
        this.register_observers();
        this.watch_changes(objects);
        this.alarms.set_notifier(this.notifications.clone())?;
        this.start_node_alarms()?;
        Ok(this)
    }

    /// Registers the observers of alarm changes.
    fn register_observers(&self) {
        let news = self.updates.clone();
        let events = self.events.clone();
        self.alarms.add_observer(Box::new(move |event| {
            if news.receiver_count() > 0 {
                // Without subscribers the send fails, which is harmless.
                let _ = news.send(Arc::new(to_alarm_update(event)));
            }
            if events.has_rules() {
                events.push(to_device_event(event));
            }
        }));
    }

    /// Observes products, devices, their states and attributes.
    fn watch_changes(&self, objects: &Objects) {
        let alarms = self.alarms.clone();
        // Registered after the registry, so that the registry already has the new product.
        objects.observe_changes(Box::new(move |change| {
            if change.kind == PRODUCT_KIND {
                alarms.refresh_products();
            }
        }));
        let this = self.clone();
        objects.observe_changes(Box::new(move |change| {
            if change.kind == NODE_ALARM_RULES_KIND
                && let Err(error) = this.start_node_alarms()
            {
                tracing::error!(%error, "node alarm rules are invalid; keeping the previous rules");
            }
        }));
        let alarms = self.alarms.clone();
        self.devices
            .registry
            .add_device_observer(Box::new(move |change| match change {
                DeviceChange::Created(_) => {}
                DeviceChange::Updated(device) => alarms.update_device(device),
                DeviceChange::Removed(device) => alarms.remove_device(device.no),
            }));
        let (alarms, events) = (self.alarms.clone(), self.events.clone());
        self.devices
            .registry
            .add_attribute_observer(Box::new(move |change| {
                if change.scope == AttributeScope::Server {
                    alarms.invalidate_attributes(change.device.no);
                }
                if events.has_rules() {
                    let mut values: Map<_, _> = change.changed.iter().cloned().collect();
                    values.extend(change.removed.iter().map(|key| (key.clone(), Value::Null)));
                    events.push(QueuedDeviceEvent {
                        kind: DeviceEventKind::Attributes,
                        device: change.device.id.as_str().into(),
                        product: change.device.product.id().as_str().into(),
                        at_ms: now_ms(),
                        key: Some(change.scope.as_str().into()),
                        payload: DeviceEventPayload::Properties(Value::Object(values).to_string()),
                        tag: 0,
                    });
                }
            }));
        let (alarms, events) = (self.alarms.clone(), self.events.clone());
        let is_stopping = Arc::clone(&self.is_stopping);
        self.devices.states.add_observer(Box::new(move |change| {
            // A shutdown emits no offline events.
            if is_stopping.load(Relaxed) {
                return;
            }
            alarms.observe_presence(change.device, change.now_ms, change.is_online);
            if events.has_rules() {
                let kind = match change.is_online {
                    true => DeviceEventKind::Online,
                    false => DeviceEventKind::Offline,
                };
                events.push(QueuedDeviceEvent {
                    kind,
                    device: change.device.id.as_str().into(),
                    product: change.device.product.id().as_str().into(),
                    at_ms: change.now_ms,
                    key: None,
                    payload: DeviceEventPayload::Value(json!(change.reason).to_string()),
                    tag: 0,
                });
            }
        }));
    }

    /// Processes telemetry of a device. Blocks at most for reading the device.
    pub(super) fn observe_telemetry(&self, device: DeviceNo, ts_ms: i64, points: &[Point<'_>]) {
        self.alarms.observe_row(device, now_ms(), ts_ms, points);
    }

    /// Processes an event of the device's thing model.
    pub(super) fn handle_device_event(
        &self,
        device: DeviceRef<'_>,
        id: &str,
        ts_ms: i64,
        data_json: &str,
    ) {
        let product = self.devices.registry.cached_by_no(device.no);
        let product = product.map(|device| device.product.id().as_str().into());
        self.events.push(QueuedDeviceEvent {
            kind: DeviceEventKind::Event,
            device: device.id.into(),
            product: product.unwrap_or_default(),
            at_ms: ts_ms.max(0).cast_unsigned(),
            key: Some(id.into()),
            payload: DeviceEventPayload::Value(data_json.to_owned()),
            tag: 0,
        });
    }

    /// Begins the shutdown: from now on disconnects of devices are not events.
    pub(super) fn begin_shutdown(&self) {
        self.is_stopping.store(true, Relaxed);
    }

    /// Writes pending changes and stops. May block.
    pub(super) fn stop(&self) {
        self.alarms.close();
    }

    /// Activates the stored rules of the node alarms, or the default rules.
    fn start_node_alarms(&self) -> anyhow::Result<()> {
        let (rules, _) = self.stored_rules()?;
        let rules = match self.node_alarms.is_enabled {
            true => rules,
            // Alarms that are still active are cleared.
            false => json!([]),
        };
        let judge = NodeAlarms::new(self.alarms.clone(), &rules)
            .map_err(|problem| anyhow::anyhow!("{problem}"))?;
        *self.node_alarms.lock_node_alarms() = Some(judge);
        Ok(())
    }

    /// The active rules, and whether they were changed.
    fn stored_rules(&self) -> Result<(Value, bool), store::StoreError> {
        let stored = self
            .node_alarms
            .objects
            .get(NODE_ALARM_RULES_KIND, NODE_ALARM_RULES_ID)?;
        Ok(match stored {
            Some(mut object) => (object.value["rules"].take(), true),
            None => (node_alarm_rules(), false),
        })
    }

    pub(super) fn are_node_alarms_enabled(&self) -> bool {
        self.node_alarms.is_enabled
    }

    /// Evaluates the node alarm rules on a sample of the node's metrics.
    pub(super) fn evaluate_node_alarms(&self, sample: &NodeSample) {
        if let Some(judge) = self.node_alarms.lock_node_alarms().as_mut() {
            judge.observe(now_ms(), sample);
        }
    }

    pub(super) fn notifications(&self) -> &Notifications {
        &self.notifications
    }

    fn rules_view(&self) -> Result<NodeAlarmRules, AlarmBackendError> {
        let (rules, is_changed) = self.stored_rules().map_err(unavailable_error)?;
        Ok(NodeAlarmRules {
            rules,
            enabled: self.node_alarms.is_enabled,
            is_changed,
        })
    }
}

impl NodeAlarmState {
    fn lock_node_alarms(&self) -> MutexGuard<'_, Option<NodeAlarms>> {
        self.node_alarms
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn to_alarm_update(event: &AlarmEvent) -> AlarmUpdate {
    AlarmUpdate {
        change: event.change.as_str(),
        alarm: json!(*event.alarm),
        devices: event.alarm.devices().iter().map(|no| no.0).collect(),
    }
}

fn to_device_event(event: &AlarmEvent) -> QueuedDeviceEvent {
    let alarm = &*event.alarm;
    let mut value = json!(alarm);
    value["change"] = event.change.as_str().into();
    QueuedDeviceEvent {
        kind: DeviceEventKind::Alarm,
        device: alarm.device.as_str().into(),
        product: alarm.product.as_str().into(),
        at_ms: now_ms(),
        key: Some(alarm.kind.as_str().into()),
        payload: DeviceEventPayload::Value(value.to_string()),
        tag: event.tag,
    }
}

fn unavailable_error(error: impl std::fmt::Display) -> AlarmBackendError {
    AlarmBackendError::Unavailable(format!("{error}."))
}

fn to_backend_error(error: AlarmError) -> AlarmBackendError {
    match error {
        AlarmError::NotFound(id) => {
            AlarmBackendError::NotFound(format!("There is no alarm {}.", id.0))
        }
        AlarmError::AlreadyInState(what) => {
            AlarmBackendError::Conflict(format!("The alarm is already {what}."))
        }
        AlarmError::Store(error) => unavailable_error(error),
    }
}

impl AlarmBackend for AlarmService {
    fn list(&self, query: &AlarmQuery) -> Result<AlarmPage, AlarmBackendError> {
        let device = match &query.device {
            None => None,
            Some(id) => match self.device_number(id)? {
                Some(no) => Some(DeviceNo(no)),
                None => return Ok(AlarmPage::default()),
            },
        };
        let states = query.states.iter();
        let severities = query.severities.iter();
        let filter = AlarmFilter {
            device,
            product: query.product.clone(),
            kind: query.kind.clone(),
            states: states.filter_map(|name| AlarmState::parse(name)).collect(),
            severities: severities
                .filter_map(|name| Severity::parse(name))
                .collect(),
            from_ms: query.from_ms,
            to_ms: query.to_ms,
        };
        let page = self
            .alarms
            .list(&filter, query.before.map(AlarmId), query.limit);
        let page = page.map_err(unavailable_error)?;
        Ok(AlarmPage {
            rows: page.alarms.iter().map(|alarm| json!(alarm)).collect(),
            next: page.next.map(|id| id.0),
        })
    }

    fn get(&self, id: u64) -> Result<Option<Value>, AlarmBackendError> {
        let alarm = self.alarms.get(AlarmId(id)).map_err(unavailable_error)?;
        Ok(alarm.map(|alarm| json!(alarm)))
    }

    fn acknowledge(&self, id: u64, who: &str) -> Result<Value, AlarmBackendError> {
        let alarm: Alarm = self
            .alarms
            .acknowledge(AlarmId(id), who)
            .map_err(to_backend_error)?;
        Ok(json!(alarm))
    }

    fn clear(&self, id: u64, who: &str) -> Result<Value, AlarmBackendError> {
        let alarm: Alarm = self
            .alarms
            .clear(AlarmId(id), who)
            .map_err(to_backend_error)?;
        Ok(json!(alarm))
    }

    fn remove(&self, id: u64) -> Result<(), AlarmBackendError> {
        self.alarms.remove(AlarmId(id)).map_err(to_backend_error)
    }

    fn counts(&self) -> AlarmCounts {
        let counts = self.alarms.counts();
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

    fn subscribe(&self) -> broadcast::Receiver<Arc<AlarmUpdate>> {
        self.updates.subscribe()
    }

    fn device_number(&self, id: &str) -> Result<Option<u32>, AlarmBackendError> {
        if id == "$node" {
            return Ok(Some(devices::alarm::NODE_NO.0));
        }
        let device = self
            .devices
            .registry
            .device(id)
            .map_err(unavailable_error)?;
        Ok(device.map(|device| device.no.0))
    }

    fn notification_status(&self) -> Vec<NotificationStatus> {
        let counts = self.notifications.counts().into_iter();
        counts
            .map(|(name, counts)| NotificationStatus { name, counts })
            .collect()
    }

    fn test_notification(&self, name: &str) -> Result<(), AlarmBackendError> {
        match self.notifications.send_test(name, now_ms()) {
            None => {
                let detail = format!("There is no notification {name:?}.");
                Err(AlarmBackendError::NotFound(detail))
            }
            Some(Err(why)) => Err(AlarmBackendError::Conflict(format!(
                "The notification cannot be sent: {why}."
            ))),
            Some(Ok(())) => Ok(()),
        }
    }

    fn node_alarm_rules(&self) -> Result<NodeAlarmRules, AlarmBackendError> {
        self.rules_view()
    }

    fn set_node_alarm_rules(
        &self,
        rules: Option<Vec<Value>>,
    ) -> Result<NodeAlarmRules, AlarmBackendError> {
        let objects = &self.node_alarms.objects;
        match rules {
            Some(rules) => {
                let rules = Value::Array(rules);
                devices::alarm::check_node_alarm_rules(&rules).map_err(|problem| {
                    AlarmBackendError::Field {
                        field: problem.field.replacen("alarms", "rules", 1),
                        detail: problem.detail,
                    }
                })?;
                let object = json!({"rules": rules});
                let checked = self
                    .node_alarms
                    .uses
                    .check_references_exist(NODE_ALARM_RULES_KIND, &object);
                checked.map_err(|invalid| AlarmBackendError::Field {
                    field: invalid.field,
                    detail: invalid.detail.trim_end_matches('.').to_owned(),
                })?;
                let put = objects.put(
                    NODE_ALARM_RULES_KIND,
                    NODE_ALARM_RULES_ID,
                    object,
                    ExpectedVersion::Any,
                );
                put.map_err(unavailable_error)?;
            }
            None => {
                let deleted = objects.delete(
                    NODE_ALARM_RULES_KIND,
                    NODE_ALARM_RULES_ID,
                    ExpectedVersion::Any,
                );
                deleted.map_err(unavailable_error)?;
            }
        }
        self.rules_view()
    }
}
