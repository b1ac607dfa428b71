//! The alarms of the node: connects their origins and their observers.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devices::alarm::{
    AlarmEvent, Alarms, NODE_ALARM_RULES_KIND, NOTIFICATION_KIND, NodeAlarms, NodeSample,
    Notifications, stored_node_alarm_rules,
};
use devices::ingest::DeviceRef;
use devices::{AttributeScope, DeviceChange, DeviceNo, PRODUCT_KIND};
use engine::DeviceEventKind;
use serde_json::{Map, Value, json};
use series::{Point, Series};
use store::{Objects, Store};
use wall_clock::now_ms;

use super::device_events::{DeviceEventPayload, DeviceEventQueue, QueuedDeviceEvent};
use super::node_devices::NodeDevices;
use super::notification_transport::NodeNotificationTransport;
use super::object_references::ObjectReferences;
use crate::config::AlarmSettings;

/// Clones share the same state.
#[derive(Clone)]
pub(super) struct AlarmInputs {
    pub(super) alarms: Alarms,
    pub(super) events: DeviceEventQueue,
    notifications: Arc<Notifications>,
    devices: NodeDevices,
    node_alarms: Arc<NodeAlarmState>,
    is_stopping: Arc<AtomicBool>,
}

struct NodeAlarmState {
    is_enabled: bool,
    objects: Objects,
    node_alarms: Mutex<Option<NodeAlarms>>,
}

impl AlarmInputs {
    /// Reads the stored alarms, and registers with all origins of alarms except telemetry. May
    /// block.
    pub(super) fn open(
        settings: &AlarmSettings,
        store: &Store,
        devices: &NodeDevices,
        series: &Series,
        events: DeviceEventQueue,
        (post, references): (Arc<NodeNotificationTransport>, &ObjectReferences),
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
        notifications.declare(references.all_declared(NOTIFICATION_KIND));
        notifications.watch_objects(objects)?;
        let node_alarms = NodeAlarmState {
            is_enabled: settings.node_alarms_enabled,
            objects: objects.clone(),
            node_alarms: Mutex::default(),
        };
        let this = Self {
            alarms,
            events,
            notifications,
            devices: devices.clone(),
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
        let events = self.events.clone();
        self.alarms.add_observer(Box::new(move |event| {
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
                DeviceChange::Created(device) => alarms.add_device(device),
                DeviceChange::Updated(device) => alarms.update_device(device),
                DeviceChange::Removed(device) => alarms.remove_device(device),
            }));
        let (alarms, events) = (self.alarms.clone(), self.events.clone());
        self.devices
            .registry
            .add_attribute_observer(Box::new(move |change| {
                if change.scope == AttributeScope::Server {
                    alarms.invalidate_attributes(change.device.no);
                }
                if events.has_rules() && !change.is_of_other_node {
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
        let (rules, _) = stored_node_alarm_rules(&self.node_alarms.objects)?;
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

    pub(super) fn are_node_alarms_enabled(&self) -> bool {
        self.node_alarms.is_enabled
    }

    /// Evaluates the node alarm rules on a sample of the node's metrics.
    pub(super) fn evaluate_node_alarms(&self, sample: &NodeSample) {
        if let Some(judge) = self.node_alarms.lock_node_alarms().as_mut() {
            judge.observe(now_ms(), sample);
        }
    }

    /// The alarms as the API uses them.
    pub(super) fn api_service(&self) -> api::AlarmService {
        api::AlarmService::new(
            self.alarms.clone(),
            Arc::clone(&self.notifications),
            self.devices.registry.clone(),
            self.node_alarms.objects.clone(),
            self.node_alarms.is_enabled,
        )
    }

    pub(super) fn notifications(&self) -> &Notifications {
        &self.notifications
    }
}

impl NodeAlarmState {
    fn lock_node_alarms(&self) -> MutexGuard<'_, Option<NodeAlarms>> {
        self.node_alarms
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
