//! Notifications: which alarms are sent to which sink or topic. Notifications are configuration objects.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use foldhash::fast::RandomState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use store::Objects;

use super::definition::{Severity, from_json};
use super::definition_error::AlarmDefinitionError;
use super::details_template::{DetailsTemplate, TemplateRenderer};
use super::event::{AlarmChange, AlarmEvent};
use super::node_subject::NODE_PRODUCT;
use super::pending_notifications::{AlarmNotifier, DurableCallback};
use super::record::{Alarm, AlarmId, AlarmState, DeviceNumbers};

/// The kind of the configuration objects that define notifications.
pub const NOTIFICATION_KIND: &str = "notification";
/// Maximum number of notifications of a node.
pub const MAX_NOTIFICATIONS: usize = 256;
const MAX_LIST: usize = 256;
const MAX_DESCRIPTION_CHARS: usize = 1000;
const MAX_EVERY_S: u32 = 604_800;
/// Maximum number of entries for `min_interval_s`; above it, the older half is dropped.
const MAX_REMEMBERED: usize = 100_000;

/// A notification: selects alarms and defines where to send them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Notification {
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub description: String,
    /// Namespace of the notification; only alarms of this namespace are sent. Cannot change.
    #[serde(default = "namespaces::default_id")]
    #[schemars(length(min = 1, max = 64))]
    pub namespace: String,
    #[serde(default = "default_true")]
    pub enabled: bool,
    /// Whether all matching alarms are sent, or only those whose rule lists this notification.
    #[serde(default = "default_true")]
    pub all: bool,
    /// Changes that are sent.
    #[serde(default = "default_on")]
    pub on: Vec<AlarmChange>,
    /// Severities that are sent; empty: all.
    #[serde(default)]
    pub severities: Vec<Severity>,
    /// Ids of products whose alarms are sent; empty: all.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub products: Vec<String>,
    /// Alarm types that are sent; empty: all.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub types: Vec<String>,
    /// Text of the notification with placeholders for fields of the alarm, such as `${severity}`, `${deviceId}` and
    /// `${details}`.
    #[serde(default = "default_text")]
    #[schemars(length(max = 4096))]
    pub text: String,
    pub to: NotificationChannel,
    /// Minimum interval in seconds between notifications of the same change, alarm type and device; 0: no limit.
    #[serde(default)]
    #[schemars(range(max = 604_800))]
    pub min_interval_s: u32,
}

/// The channel of a notification.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotificationChannel {
    /// Name of a sink, such as an HTTP, mail or database sink, with its queue and retries.
    Sink(String),
    /// An MQTT message.
    Mqtt(MqttNotification),
    /// Id of a relay endpoint, whose connections get an `alert` message.
    Endpoint(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttNotification {
    /// Topic with `${...}` placeholders.
    #[schemars(length(min = 1, max = 4096))]
    pub topic: String,
    #[serde(default)]
    #[schemars(range(max = 2))]
    pub qos: u8,
    #[serde(default)]
    pub retain: bool,
}

/// Sends notifications.
pub trait NotificationTransport: Send + Sync {
    /// Passes a row to a sink; does not block.
    fn write_to_sink(&self, name: &str, row: &Map<String, Json>) -> Result<(), String>;
    fn publish(&self, topic: &str, payload: Vec<u8>, qos: u8, retain: bool) -> Result<(), String>;
    /// Sends an `alert` message to the connections of a relay endpoint. May read from disk.
    fn send_to_endpoint(&self, endpoint: &str, event: &AlarmEvent) -> Result<(), String>;
    /// Calls `done` once everything passed so far survives a crash of the node, as far as the channel is durable.
    /// Drops `done` if that cannot be determined. Does not block.
    fn settle(&self, done: DurableCallback);
}

/// Numbers of sent notifications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NotificationCounts {
    pub sent: u64,
    /// Not sent because of `min_interval_s`.
    pub suppressed: u64,
    pub failed: u64,
}

/// The notifications of a node.
pub struct Notifications {
    compiled: RwLock<Vec<Arc<CompiledNotification>>>,
    /// Notifications declared in the configuration file; a stored notification with the same name is ignored.
    declared: OnceLock<Vec<(String, Json)>>,
    transport: OnceLock<Arc<dyn NotificationTransport>>,
    renderer: Mutex<NotificationRenderer>,
}

struct CompiledNotification {
    name: Box<str>,
    definition: Notification,
    text: DetailsTemplate,
    topic: Option<DetailsTemplate>,
    counts: [AtomicU64; 3],
}

struct NotificationRenderer {
    template_renderer: TemplateRenderer,
    /// When each notification was last sent, by change, device and alarm type.
    last_sent: HashMap<(Box<str>, AlarmChange, String, String), u64, RandomState>,
}

impl Default for Notifications {
    fn default() -> Self {
        Self {
            compiled: RwLock::default(),
            declared: OnceLock::new(),
            transport: OnceLock::new(),
            renderer: Mutex::new(NotificationRenderer {
                template_renderer: TemplateRenderer::new(),
                last_sent: HashMap::default(),
            }),
        }
    }
}

/// Parses and validates a notification. Does not check whether the objects that it names exist.
pub fn check_notification(value: &Json) -> Result<Notification, AlarmDefinitionError> {
    let definition: Notification = from_json(value.clone())?;
    for (field, list) in [
        ("products", &definition.products),
        ("types", &definition.types),
    ] {
        if list.len() > MAX_LIST {
            return Err(AlarmDefinitionError::new(
                field,
                format!("expected at most {MAX_LIST} entries"),
            ));
        }
    }
    if definition.description.chars().count() > MAX_DESCRIPTION_CHARS {
        let detail = format!("expected at most {MAX_DESCRIPTION_CHARS} characters");
        return Err(AlarmDefinitionError::new("description", detail));
    }
    if definition.min_interval_s > MAX_EVERY_S {
        let detail = format!("expected at most {MAX_EVERY_S} seconds");
        return Err(AlarmDefinitionError::new("min_interval_s", detail));
    }
    match &definition.to {
        NotificationChannel::Mqtt(message) if message.qos > 2 => {
            return Err(AlarmDefinitionError::new(
                "to.mqtt.qos",
                "expected 0, 1 or 2",
            ));
        }
        NotificationChannel::Mqtt(message) if message.topic.is_empty() => {
            return Err(AlarmDefinitionError::new(
                "to.mqtt.topic",
                "expected a topic",
            ));
        }
        NotificationChannel::Mqtt(message)
            if !message.topic.contains("${") && message.topic.contains(['+', '#']) =>
        {
            let detail = "expected the name of a topic, without wildcards";
            return Err(AlarmDefinitionError::new("to.mqtt.topic", detail));
        }
        _ => {}
    }
    CompiledNotification::new("", definition).map(|ready| ready.definition)
}

impl Notifications {
    pub fn set_transport(&self, transport: Arc<dyn NotificationTransport>) {
        // Set once at start.
        let _ = self.transport.set(transport);
    }

    /// Adds notifications declared in the configuration file; stored ones with the same names are ignored. Call it
    /// once, before [`Notifications::watch_objects`].
    pub fn declare(&self, notifications: Vec<(String, Json)>) {
        // Set once at start.
        let _ = self.declared.set(notifications);
    }

    /// Loads the stored notifications and follows their changes.
    pub fn watch_objects(self: &Arc<Self>, objects: &Objects) -> Result<(), store::StoreError> {
        self.reload(objects)?;
        let (weak, stored) = (Arc::downgrade(self), objects.clone());
        objects.observe_changes(Box::new(move |change| {
            if change.kind == NOTIFICATION_KIND
                && let Some(notifications) = weak.upgrade()
                && let Err(error) = notifications.reload(&stored)
            {
                tracing::error!(%error, "reading notifications failed; the previous ones remain in use");
            }
        }));
        Ok(())
    }

    fn reload(&self, objects: &Objects) -> Result<(), store::StoreError> {
        let declared = self.declared.get().map_or(&[][..], Vec::as_slice);
        let stored = objects.list(NOTIFICATION_KIND, None, MAX_NOTIFICATIONS)?;
        let stored = stored.into_iter();
        let stored = stored.filter(|object| declared.iter().all(|(name, _)| *name != object.id));
        let found = declared.iter().cloned();
        let found = found.chain(stored.map(|object| (object.id, object.value)));
        let mut all = self
            .compiled
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *all);
        for (name, value) in found {
            let read = from_json(value)
                .and_then(|definition| CompiledNotification::new(&name, definition));
            match read {
                Ok(ready) => {
                    // Keep the counts of the previous version.
                    if let Some(old) = before.iter().find(|old| *old.name == *name) {
                        for (count, old) in ready.counts.iter().zip(&old.counts) {
                            count.store(old.load(Relaxed), Relaxed);
                        }
                    }
                    all.push(Arc::new(ready));
                }
                Err(problem) => {
                    tracing::error!(name, %problem, "a notification is invalid and is skipped");
                }
            }
        }
        Ok(())
    }

    pub fn counts(&self) -> Vec<(String, NotificationCounts)> {
        let all = self.compiled.read().unwrap_or_else(PoisonError::into_inner);
        let counted = all.iter().map(|ready| {
            let [sent, suppressed, failed] = [0, 1, 2].map(|at| ready.counts[at].load(Relaxed));
            let counts = NotificationCounts {
                sent,
                suppressed,
                failed,
            };
            (ready.name.to_string(), counts)
        });
        counted.collect()
    }

    /// Sends the notifications for an event.
    pub fn notify(&self, event: &AlarmEvent, now_ms: u64) {
        let all = self
            .compiled
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for ready in all
            .iter()
            .filter(|ready| ready.wants(event.change, &event.alarm))
        {
            let count = self.send(ready, event, now_ms);
            ready.counts[count].fetch_add(1, Relaxed);
        }
    }

    /// Sends a test notification, whatever its filter. `None`: the notification does not exist.
    pub fn send_test(&self, name: &str, now_ms: u64) -> Option<Result<(), String>> {
        let all = self.compiled.read().unwrap_or_else(PoisonError::into_inner);
        let ready = all.iter().find(|ready| *ready.name == *name)?.clone();
        drop(all);
        let alarm = Alarm {
            id: AlarmId(0),
            kind: "test".to_owned(),
            severity: Severity::Indeterminate,
            state: AlarmState::ActiveUnack,
            device: "$node".to_owned(),
            product: NODE_PRODUCT.to_owned(),
            namespace: ready.definition.namespace.clone(),
            details: format!("This is a test of the notification {name:?}."),
            values: Map::new(),
            rule: String::new(),
            notify: vec![name.to_owned()],
            raised_at_ms: now_ms,
            changed_at_ms: now_ms,
            cleared_at_ms: None,
            cleared_by: None,
            acknowledged_at_ms: None,
            acknowledged_by: None,
            comments: Vec::new(),
            node: None,
            severity_changes: 0,
            device_no: DeviceNumbers::default(),
        };
        let event = AlarmEvent {
            change: AlarmChange::Raised,
            alarm: Arc::new(alarm),
            tag: 0,
            change_no: 0,
        };
        let sent = self.send_to_channel(&ready, &event, now_ms);
        ready.counts[if sent.is_ok() { 0 } else { 2 }].fetch_add(1, Relaxed);
        Some(sent)
    }

    /// Sends a notification and returns the index of the count to increase.
    fn send(&self, ready: &CompiledNotification, event: &AlarmEvent, now_ms: u64) -> usize {
        let mut writing = self.renderer.lock().unwrap_or_else(PoisonError::into_inner);
        if writing.is_throttled(ready, event, now_ms) {
            return 1;
        }
        drop(writing);
        match self.send_to_channel(ready, event, now_ms) {
            Ok(()) => 0,
            Err(error) => {
                tracing::warn!(notification = &*ready.name, alarm = event.alarm.id.0, %error, "sending a notification failed");
                2
            }
        }
    }

    fn send_to_channel(
        &self,
        ready: &CompiledNotification,
        event: &AlarmEvent,
        now_ms: u64,
    ) -> Result<(), String> {
        let mut writing = self.renderer.lock().unwrap_or_else(PoisonError::into_inner);
        let row = row_of(event);
        let values: Vec<_> = row
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .collect();
        let text = writing
            .template_renderer
            .render(&ready.text, now_ms, &values);
        let topic = ready.topic.as_ref();
        let topic = topic.map(|topic| writing.template_renderer.render(topic, now_ms, &values));
        drop(writing);
        let mut row = row;
        row.insert("text".to_owned(), text.into());
        let Some(transport) = self.transport.get() else {
            return Err("the node is still starting".to_owned());
        };
        match &ready.definition.to {
            NotificationChannel::Sink(name) => transport.write_to_sink(name, &row),
            NotificationChannel::Mqtt(message) => {
                let payload = Json::Object(row).to_string().into_bytes();
                let topic = topic.unwrap_or_default();
                transport.publish(&topic, payload, message.qos, message.retain)
            }
            NotificationChannel::Endpoint(id) => transport.send_to_endpoint(id, event),
        }
    }
}

impl AlarmNotifier for Notifications {
    fn wants(&self, change: AlarmChange, alarm: &Alarm) -> bool {
        let all = self.compiled.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|ready| ready.wants(change, alarm))
    }

    fn notify(&self, event: &AlarmEvent, now_ms: u64) {
        Self::notify(self, event, now_ms);
    }

    fn settle(&self, done: DurableCallback) {
        if let Some(transport) = self.transport.get() {
            transport.settle(done);
        }
    }
}

impl CompiledNotification {
    fn new(name: &str, definition: Notification) -> Result<Self, AlarmDefinitionError> {
        let topic = match &definition.to {
            NotificationChannel::Sink(_) | NotificationChannel::Endpoint(_) => None,
            NotificationChannel::Mqtt(message) => {
                Some(DetailsTemplate::compile(&message.topic, "to.mqtt.topic")?)
            }
        };
        Ok(Self {
            name: name.into(),
            text: DetailsTemplate::compile(&definition.text, "text")?,
            topic,
            definition,
            counts: Default::default(),
        })
    }

    fn wants(&self, change: AlarmChange, alarm: &Alarm) -> bool {
        let wanted = &self.definition;
        let is_named = alarm.notify.iter().any(|name| **name == *self.name);
        let has = |list: &[String], text: &String| list.is_empty() || list.contains(text);
        wanted.enabled
            && (wanted.all || is_named)
            && wanted.namespace == alarm.namespace
            && wanted.on.contains(&change)
            && (wanted.severities.is_empty() || wanted.severities.contains(&alarm.severity))
            && has(&wanted.products, &alarm.product)
            && has(&wanted.types, &alarm.kind)
    }
}

impl NotificationRenderer {
    /// Whether the same notification was sent within the interval; if not, records it as sent now.
    fn is_throttled(
        &mut self,
        ready: &CompiledNotification,
        event: &AlarmEvent,
        now_ms: u64,
    ) -> bool {
        let every_ms = u64::from(ready.definition.min_interval_s) * 1000;
        if every_ms == 0 {
            return false;
        }
        let Alarm { device, kind, .. } = &*event.alarm;
        let what = (
            ready.name.clone(),
            event.change,
            device.clone(),
            kind.clone(),
        );
        if self
            .last_sent
            .get(&what)
            .is_some_and(|at_ms| now_ms < at_ms + every_ms)
        {
            return true;
        }
        if self.last_sent.len() >= MAX_REMEMBERED {
            let mut times: Vec<_> = self.last_sent.values().copied().collect();
            let middle = times.len() / 2;
            let (_, middle_ms, _) = times.select_nth_unstable(middle);
            let middle_ms = *middle_ms;
            self.last_sent.retain(|_, at_ms| *at_ms > middle_ms);
        }
        self.last_sent.insert(what, now_ms);
        false
    }
}

/// The row for a sink: the alarm and its change.
fn row_of(event: &AlarmEvent) -> Map<String, Json> {
    let Ok(Json::Object(mut row)) = serde_json::to_value(&*event.alarm) else {
        return Map::new();
    };
    // Written for colleagues, and not for the recipients of notifications.
    row.remove("comments");
    row.insert("change".to_owned(), json!(event.change));
    // Identifies duplicates.
    let id = format!("{}-{}", event.alarm.id.0, event.change_no);
    row.insert("notificationId".to_owned(), id.into());
    row
}

fn default_true() -> bool {
    true
}

fn default_on() -> Vec<AlarmChange> {
    vec![
        AlarmChange::Raised,
        AlarmChange::SeverityChanged,
        AlarmChange::Cleared,
    ]
}

fn default_text() -> String {
    "${severity} ${type} of ${deviceId}: ${change} ${details}".to_owned()
}
