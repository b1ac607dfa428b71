//! Device events, evaluated by the rules that name them: `FROM "$EVENT.DEVICE"`.
//!
//! They are evaluated on the control plane, outside the shards. The engine does not know devices; the device
//! platform calls it.

use std::sync::atomic::Ordering::Relaxed;

use rules::{Arena, EventKind, RuleEvent, Value};
use wall_clock::now_ms;

use crate::engine::Engine;
use crate::engine_shared::EngineShared;
use crate::evaluation::{EventEvaluation, index_query};
use crate::evaluation_context::EvaluationContext;
use crate::rule_lineage::RuleLineage;

/// The kind of a device event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceEventKind {
    Property,
    Event,
    Online,
    Offline,
    Alarm,
    Command,
    /// Attributes changed: `key` is their scope, `properties` contains the new values; `null` means that the
    /// attribute was deleted.
    Attributes,
}

impl DeviceEventKind {
    /// The value of the field `kind`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Property => "property",
            Self::Event => "event",
            Self::Online => "online",
            Self::Offline => "offline",
            Self::Alarm => "alarm",
            Self::Command => "command",
            Self::Attributes => "attributes",
        }
    }
}

/// A device event as rules see it.
#[derive(Clone, Copy)]
pub struct DeviceEvent<'m> {
    pub kind: DeviceEventKind,
    pub device_id: &'m str,
    pub product_id: &'m str,
    /// Time of the event in milliseconds since 1970, by the device's clock if the device sends a timestamp.
    pub timestamp_ms: u64,
    /// The name of a property, or the id of an event, alarm or command.
    pub key: Option<&'m str>,
    /// The value that belongs to the key: a single value or a map.
    pub value: Value<'m>,
    /// All properties of a report by name: a map, or the text of a JSON object.
    pub properties: Value<'m>,
    /// The client that sent the message, if the device is a client.
    pub client_id: &'m str,
    pub username: Option<&'m str>,
    /// The topic of the message that caused the event.
    pub topic: Option<&'m str>,
    /// [`MessageOrigin::tag`](hooks::MessageOrigin::tag) of the message, or of the rule action that
    /// caused the event, so that loops of rules end; otherwise 0.
    pub tag: u64,
}

impl<'m> DeviceEvent<'m> {
    /// An event with nothing but these fields set.
    pub fn new(kind: DeviceEventKind, device_id: &'m str, timestamp_ms: u64) -> Self {
        Self {
            kind,
            device_id,
            product_id: "",
            timestamp_ms,
            key: None,
            value: Value::Null,
            properties: Value::Null,
            client_id: "",
            username: None,
            topic: None,
            tag: 0,
        }
    }
}

impl Engine {
    /// Whether any rule selects device events. Cheap enough to call before an event is built.
    #[inline]
    pub fn wants_device_events(&self) -> bool {
        self.shared.wants_devices.load(Relaxed)
    }

    /// Evaluates the rules FROM `"$EVENT.DEVICE"` on an event. Resolves when their outputs are published and no
    /// sink is full, so that the caller waits for backpressure.
    pub async fn handle_device_event(&self, event: DeviceEvent<'_>) {
        if !self.wants_device_events() {
            return;
        }
        let outcome = self.with_evaluation_context(|context| {
            evaluate_device_event(&self.shared, context, &event);
            context.take_outcome()
        });
        self.finish_event(event.device_id, outcome).await;
    }
}

/// Evaluates the rules that want the event.
fn evaluate_device_event(
    shared: &EngineShared,
    context: &mut EvaluationContext,
    device: &DeviceEvent<'_>,
) {
    let snapshot = shared.snapshot.load();
    let index = &snapshot.index;
    let mut matched_rules = Vec::new();
    let query = index_query(EventKind::Device, device.topic, device.client_id, None);
    index.matches(&query, |bound| matched_rules.push(bound));
    if matched_rules.is_empty() {
        return;
    }
    context.scratch.reset();
    let (scratch, at_ms) = (&context.scratch, now_ms());
    let event = RuleEvent {
        node: &shared.settings.node_name,
        client_id: device.client_id,
        username: device.username,
        topic: device.topic,
        extra: event_fields(device, scratch.arena()),
        ..RuleEvent::new(EventKind::Device, device.timestamp_ms)
    };
    let view = scratch.view(&event, at_ms);
    let mut run = EventEvaluation {
        index,
        rows: &shared.rows,
        scratch,
        stage: &mut context.stage,
        lineage: RuleLineage(device.tag),
        now_ms: at_ms,
        chained: 0,
    };
    run.evaluate_all(&view, |at| matched_rules.get(at).map(|bound| &***bound));
}

fn event_fields<'a>(device: &DeviceEvent<'a>, arena: &'a Arena) -> Value<'a> {
    Value::Map(arena.alloc_slice_copy(&[
        ("deviceId", Value::Str(device.device_id)),
        ("productId", Value::Str(device.product_id)),
        ("kind", Value::Str(device.kind.name())),
        ("key", device.key.map_or(Value::Null, Value::Str)),
        ("value", device.value),
        ("properties", device.properties),
    ]))
}

#[cfg(test)]
mod tests;
