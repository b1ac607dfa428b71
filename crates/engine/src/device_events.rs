//! What devices say, shown to the rules that name them: `FROM "$EVENT.DEVICE"`.
//!
//! Events of one shard's clients come on its thread, in the middle of a hook: [`Engine::handle_device_event_on`]. All others come on the
//! control plane: [`Engine::handle_device_event`]. The engine knows no device; who keeps them tells it what happens.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use broker::hooks::{BackpressureCheck, OutgoingMessages};
use rules::{Arena, EventKind, RuleEvent, Value};

use crate::bridge_events::EvaluationContext;
use crate::engine::Engine;
use crate::engine_shared::EngineShared;
use crate::evaluation::{EventEvaluation, index_query};
use crate::hooks::now_ms;
use crate::running_rule::RuleLineage;

/// What happened to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceEventKind {
    Property,
    Event,
    Online,
    Offline,
    Alarm,
    Command,
    /// Attributes have changed: `key` is their scope, `properties` what they are now; `null`: one is gone.
    Attributes,
}

impl DeviceEventKind {
    /// What the field `kind` says.
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

/// An event of a device, as rules see it.
#[derive(Clone, Copy)]
pub struct DeviceEvent<'m> {
    pub kind: DeviceEventKind,
    pub device_id: &'m str,
    pub product_id: &'m str,
    /// When it happened, by the device's clock if it says so; milliseconds since 1970.
    pub timestamp_ms: u64,
    /// Of a property its name, of an event, an alarm or a command its id.
    pub key: Option<&'m str>,
    /// What goes with the key: a value, or a map.
    pub value: Value<'m>,
    /// All properties of a report by name: a map, or the text of a JSON object.
    pub properties: Value<'m>,
    /// The client it came from, if it is one.
    pub client_id: &'m str,
    pub username: Option<&'m str>,
    /// The topic of the message it came with.
    pub topic: Option<&'m str>,
    /// [`Origin::tag`](broker::hooks::MessageOrigin::tag) of the message, or of what a rule has asked for, so that loops of rules end;
    /// else 0.
    pub tag: u64,
}

impl<'m> DeviceEvent<'m> {
    /// An event of which only this is known.
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

/// What came of events of devices on one shard's thread, until its hooks are asked for it. Locked by that thread only, so that
/// nobody ever waits.
#[derive(Default)]
pub(crate) struct ShardDeviceEvents {
    state: Mutex<ShardDeviceEventsState>,
    /// Whether there is anything to ask for, to be looked at without the lock.
    has_results: AtomicBool,
}

#[derive(Default)]
struct ShardDeviceEventsState {
    /// One, or one for each event inside an event: an alarm that a rule has raised is one.
    contexts: Vec<EvaluationContext>,
    outgoing: Vec<OutgoingMessages>,
    depth: u8,
}

/// Events inside events inside events.
const MAX_DEPTH: u8 = 4;

impl ShardDeviceEvents {
    fn lock(&self) -> MutexGuard<'_, ShardDeviceEventsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What rules want published.
    #[inline]
    pub(crate) fn take_outgoing(&self) -> Option<OutgoingMessages> {
        if !self.has_results.load(Relaxed) {
            return None;
        }
        let mut work = self.lock();
        match work.outgoing.is_empty() {
            true => None,
            false => Some(work.outgoing.remove(0)),
        }
    }

    /// Whether answers are to wait for rows.
    #[inline]
    pub(crate) fn take_unsettled(&self) -> bool {
        if !self.has_results.load(Relaxed) {
            return false;
        }
        let mut work = self.lock();
        let mut is_unsettled = false;
        for tools in &mut work.contexts {
            is_unsettled |= tools.stage.take_unsettled();
        }
        is_unsettled
    }

    /// Whether rules have given something to devices.
    pub(crate) fn take_unsettled_devices(&self) -> bool {
        let mut work = self.lock();
        let tools = work.contexts.iter_mut();
        let all = tools.map(|tools| tools.stage.take_unsettled_devices());
        all.fold(false, |any, one| any | one)
    }

    /// What the publisher is to wait for; asked last.
    #[inline]
    pub(crate) fn take_backpressure(&self) -> Option<BackpressureCheck> {
        if !self.has_results.load(Relaxed) {
            return None;
        }
        let mut work = self.lock();
        let tools = work.contexts.iter_mut();
        let all: Vec<_> = tools
            .filter_map(|tools| tools.stage.take_backpressure())
            .collect();
        if work.outgoing.is_empty() {
            self.has_results.store(false, Relaxed);
        }
        (!all.is_empty())
            .then(|| Box::new(move || all.iter().any(|waits| waits())) as BackpressureCheck)
    }
}

impl Engine {
    /// Whether any rule wants events of devices: so cheap that it may be asked before anything is made ready for one.
    #[inline]
    pub fn wants_device_events(&self) -> bool {
        self.shared.wants_devices.load(Relaxed)
    }

    /// Shows an event to the rules FROM `"$EVENT.DEFAULT_DEVICE_TEMPLATE"`, on the thread of this shard. True: whoever is in
    /// [`Hooks::publish`](broker::hooks::Hooks::publish) returns [`Verdict::ContinueAndCollect`](broker::hooks::PublishVerdict::ContinueAndCollect), so that
    /// what rules publish goes out with the message; elsewhere it goes out by itself when the shard is done with the client.
    pub fn handle_device_event_on(&self, shard: u16, event: &DeviceEvent<'_>) -> bool {
        if !self.wants_device_events() {
            return false;
        }
        let lane = &self.shared.device_lanes[usize::from(shard)];
        let mut work = lane.lock();
        if work.depth == MAX_DEPTH {
            tracing::debug!(
                device = event.device_id,
                "an event of a device came of too many others; rules do not see it"
            );
            return false;
        }
        work.depth += 1;
        let mut tools = (work.contexts.pop())
            .unwrap_or_else(|| EvaluationContext::new(&self.shared, usize::from(shard)));
        // An action may tell of the next event.
        drop(work);
        evaluate_device_event(&self.shared, &mut tools, event);
        let outgoing = tools.stage.take_outgoing();
        let mut work = lane.lock();
        work.depth -= 1;
        let has_followers = outgoing.is_some() || tools.stage.has_pending_effects();
        work.outgoing.extend(outgoing);
        work.contexts.push(tools);
        if has_followers {
            lane.has_results.store(true, Relaxed);
        }
        has_followers
    }

    /// The same anywhere else than on a shard. Resolves when what rules publish is published and no sink is full, so that whoever
    /// sends it waits so long.
    pub async fn handle_device_event(&self, event: DeviceEvent<'_>) {
        if !self.wants_device_events() {
            return;
        }
        let outcome = (self.bridges).with_context(&self.shared, |tools| {
            evaluate_device_event(&self.shared, tools, &event);
            tools.take_outcome()
        });
        self.finish_event(event.device_id, outcome).await;
    }
}

/// Shows the event to the rules that want it.
fn evaluate_device_event(
    shared: &EngineShared,
    tools: &mut EvaluationContext,
    device: &DeviceEvent<'_>,
) {
    let snapshot = shared.snapshot.load();
    let index = &snapshot.index;
    let mut met = Vec::new();
    let looked = index_query(EventKind::Device, device.topic, device.client_id, None);
    index.matches(&looked, |bound| met.push(bound));
    if met.is_empty() {
        return;
    }
    tools.scratch.reset();
    let (scratch, at_ms) = (&tools.scratch, now_ms());
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
        stage: &mut tools.stage,
        lineage: RuleLineage(device.tag),
        now_ms: at_ms,
        chained: 0,
    };
    run.evaluate_all(&view, |at| met.get(at).map(|bound| &***bound));
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
