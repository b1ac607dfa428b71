//! Events of relay endpoints, evaluated by the rules that name them: `FROM "$events/relay/connected"`.
//!
//! They are evaluated on the control plane, one after the other, so that those of a connection keep their order.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use hooks::PeerAddress;
use hooks::relay::{RelayEvent, RelayEventKind};
use rules::{Arena, EventKind, RuleEvent, Value};
use wall_clock::now_ms;

use crate::engine::Engine;
use crate::engine_shared::EngineShared;
use crate::evaluation::{EventEvaluation, index_query};
use crate::evaluation_context::EvaluationContext;
use crate::rule_lineage::RuleLineage;

impl Engine {
    /// Whether any rule selects events of relay endpoints. Cheap enough to call before an event is built.
    #[inline]
    pub fn wants_relay_events(&self) -> bool {
        self.shared.wants_relay.load(Relaxed)
    }

    /// Evaluates the rules on an event. Resolves when their outputs are published and no sink is full, so that the
    /// caller waits for backpressure.
    pub async fn handle_relay_event(&self, event: &RelayEvent) {
        if !self.wants_relay_events() {
            return;
        }
        let outcome = self.with_evaluation_context(|context| {
            evaluate_relay_event(&self.shared, context, event);
            context.take_outcome()
        });
        self.finish_event(&event.endpoint_id, outcome).await;
    }
}

fn evaluate_relay_event(
    shared: &EngineShared,
    context: &mut EvaluationContext,
    relay: &RelayEvent,
) {
    let snapshot = shared.snapshot.load();
    let index = &snapshot.index;
    let (kind, reason) = match &relay.kind {
        RelayEventKind::Connected => (EventKind::RelayConnected, None),
        RelayEventKind::Identified => (EventKind::RelayIdentified, None),
        RelayEventKind::Disconnected { reason, .. } => {
            (EventKind::RelayDisconnected, Some(*reason))
        }
    };
    let mut matched_rules = Vec::new();
    let query = index_query(kind, Some(&relay.topic), &relay.client_id, None);
    index.matches(&query, |bound| matched_rules.push(bound));
    if matched_rules.is_empty() {
        return;
    }
    context.scratch.reset();
    let (scratch, at_ms) = (&context.scratch, now_ms());
    let event = RuleEvent {
        node: &shared.settings.node_name,
        node_ip: &shared.node_ip,
        protocol: "WebSocket",
        client_id: &relay.client_id,
        topic: Some(&relay.topic),
        peer: tcp_address(relay.peer),
        reason,
        extra: event_fields(relay, reason, scratch.arena()),
        ..RuleEvent::new(kind, relay.at_ms)
    };
    let view = scratch.view(&event, at_ms);
    let mut run = EventEvaluation {
        index,
        rows: &shared.rows,
        scratch,
        stage: &mut context.stage,
        lineage: RuleLineage::default(),
        now_ms: at_ms,
        chained: 0,
    };
    run.evaluate_all(&view, |at| matched_rules.get(at).map(|bound| &***bound));
}

fn tcp_address(peer: PeerAddress) -> Option<SocketAddr> {
    match peer {
        PeerAddress::Tcp(address) => Some(address),
        PeerAddress::Unix | PeerAddress::Memory => None,
    }
}

/// The fields that only these events have, see [`EventKind::own_fields`].
fn event_fields<'a>(relay: &'a RelayEvent, reason: Option<&'a str>, arena: &'a Arena) -> Value<'a> {
    let number = |number: u64| Value::Int(number.min(i64::MAX as u64).cast_signed());
    let mut fields = vec![
        ("endpoint_id", Value::Str(&relay.endpoint_id)),
        ("namespace", Value::Str(&relay.namespace)),
        ("connection_id", Value::Str(&relay.connection_id)),
        (
            "peer_address",
            Value::Str(arena.alloc_str(&relay.peer.to_string())),
        ),
        ("connected_at", number(relay.connected_ms)),
    ];
    if let Some(device) = &relay.device {
        fields.push(("device_id", Value::Str(&device.device_id)));
        fields.push(("db_device_id", Value::Str(&device.registry_id)));
    }
    if let RelayEventKind::Disconnected { traffic, .. } = &relay.kind {
        fields.extend([
            ("reason", reason.map_or(Value::Null, Value::Str)),
            (
                "duration_ms",
                number(relay.at_ms.saturating_sub(relay.connected_ms)),
            ),
            ("messages_in", number(traffic.messages_in)),
            ("bytes_in", number(traffic.bytes_in)),
            ("messages_out", number(traffic.messages_out)),
            ("bytes_out", number(traffic.bytes_out)),
        ]);
    }
    Value::Map(arena.alloc_slice_copy(&fields))
}
