//! Messages from other systems, evaluated by the rules that name their bridge: `FROM "$bridges/TYPE:NAME"`.
//!
//! Bridge messages are evaluated on the control plane, one at a time for all sources. A message is finished
//! when everything the rules publish is published and no sink is full. Until then the source, and so the
//! remote system, waits.

use std::sync::Arc;
use std::time::Duration;

use rules::{Arena, EventKind, RuleEvent, Value};
use serde_json::Map;
use wall_clock::now_ms;

use crate::engine::Engine;
use crate::engine_shared::{PUBLISH_TIMEOUT, RuleSnapshot};
use crate::evaluation::EventEvaluation;
use crate::evaluation_context::{EvaluationContext, EventOutcome};
use crate::rule_lineage::RuleLineage;
use crate::running_rule::RunningRule;

/// Interval between two checks whether full sinks have room again.
const BACKPRESSURE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A message from another system.
#[derive(Debug, Clone, Copy)]
pub struct BridgeMessage<'m> {
    pub topic: &'m str,
    pub payload: &'m [u8],
    pub qos: u8,
    pub retain: bool,
    pub key: Option<&'m [u8]>,
    /// Headers or user properties.
    pub properties: &'m [(String, String)],
    /// Additional fields by name.
    pub fields: &'m Map<String, serde_json::Value>,
}

impl Engine {
    /// Evaluates the rules of a bridge (`TYPE:NAME`) on a message. Resolves when the message is finished: its
    /// outputs are published and no sink that it fed is full.
    pub async fn handle_bridge_message(&self, bridge: &str, incoming: BridgeMessage<'_>) {
        if let Some(outcome) = self.evaluate_bridge_message(bridge, &incoming) {
            self.finish_event(bridge, outcome).await;
        }
    }

    /// Waits until the outputs of the rules are published and the sinks they feed have room. Messages with
    /// the same `from` stay in order.
    pub(crate) async fn finish_event(&self, from: &str, outcome: EventOutcome) {
        if let Some(outgoing) = outcome.outgoing {
            let (done, published) = tokio::sync::oneshot::channel();
            // The receiver may be gone already.
            let done = move || _ = done.send(());
            let number = from.bytes().map(u64::from).sum();
            if self.shared.publish_on_shard(number, outgoing, done)
                && tokio::time::timeout(PUBLISH_TIMEOUT, published)
                    .await
                    .is_err()
            {
                tracing::debug!(
                    from,
                    "shard is slow to publish the outputs of rules; not waiting any longer"
                );
            }
        }
        while outcome.backpressure.as_ref().is_some_and(|waits| waits()) {
            tokio::time::sleep(BACKPRESSURE_POLL_INTERVAL).await;
        }
    }

    fn evaluate_bridge_message(
        &self,
        bridge: &str,
        incoming: &BridgeMessage<'_>,
    ) -> Option<EventOutcome> {
        let snapshot = self.shared.snapshot.load_full();
        let rules = snapshot.index.rules_for_bridge(bridge);
        if rules.is_empty() {
            return None;
        }
        Some(self.with_evaluation_context(|context| {
            self.evaluate_with(context, &snapshot, rules, incoming);
            context.take_outcome()
        }))
    }

    fn evaluate_with(
        &self,
        context: &mut EvaluationContext,
        snapshot: &RuleSnapshot,
        rules: &[Arc<RunningRule>],
        incoming: &BridgeMessage<'_>,
    ) {
        context.scratch.reset();
        let (scratch, at_ms) = (&context.scratch, now_ms());
        let event = RuleEvent {
            node: &self.shared.settings.node_name,
            topic: Some(incoming.topic),
            qos: Some(incoming.qos),
            retain: incoming.retain,
            payload: Some(incoming.payload),
            extra: event_fields(incoming, at_ms, scratch.arena()),
            ..RuleEvent::new(EventKind::Publish, at_ms)
        };
        let view = scratch.view(&event, at_ms);
        let mut run = EventEvaluation {
            index: &snapshot.index,
            rows: &self.shared.rows,
            scratch,
            stage: &mut context.stage,
            lineage: RuleLineage::default(),
            now_ms: at_ms,
            chained: 0,
        };
        run.evaluate_all(&view, |at| rules.get(at).map(|rule| &**rule));
    }
}

/// The event's fields by name, as a rule sees them.
fn event_fields<'a>(incoming: &BridgeMessage<'a>, at_ms: u64, arena: &'a Arena) -> Value<'a> {
    let text = |bytes: &'a [u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::Str(text),
        Err(_) => Value::Bytes(bytes),
    };
    let properties = incoming.properties.iter();
    let properties: Vec<_> = properties
        .map(|(name, value)| (&*arena.alloc_str(name), Value::Str(arena.alloc_str(value))))
        .collect();
    let mut fields = vec![
        ("topic", Value::Str(incoming.topic)),
        ("payload", text(incoming.payload)),
        ("qos", Value::Int(incoming.qos.into())),
        ("retain", Value::Bool(incoming.retain)),
        ("key", incoming.key.map_or(Value::Null, text)),
        ("headers", Value::Map(arena.alloc_slice_copy(&properties))),
        ("timestamp", Value::Int(at_ms as i64)),
    ];
    for (name, value) in incoming.fields {
        fields.push((&*arena.alloc_str(name), to_rule_value(value, arena)));
    }
    Value::Map(arena.alloc_slice_copy(&fields))
}

pub(crate) fn to_rule_value<'a>(value: &serde_json::Value, arena: &'a Arena) -> Value<'a> {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Int(number),
            None if number.is_u64() => Value::Big(arena.alloc_str(&number.to_string())),
            None => number.as_f64().map_or(Value::Null, Value::Float),
        },
        Json::String(text) => Value::Str(arena.alloc_str(text)),
        Json::Array(_) | Json::Object(_) => Value::Json(arena.alloc_str(&value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::ports::{OutputRow, SinkId, SinkPort, SinkPortOutcome};
    use crate::settings::RuleEngineSettings;
    use serde_json::json;

    /// Records rows; has room for a limited number of rows at a time.
    #[derive(Default)]
    struct RecordingSink {
        rows: Mutex<Vec<String>>,
        looks_until_room: Mutex<u32>,
    }

    impl SinkPort for RecordingSink {
        fn find_sink(&self, name: &str) -> Option<SinkId> {
            (name == "db").then_some(SinkId(1))
        }

        fn send_row(&self, _sink: SinkId, producer: u16, row: OutputRow<'_>) -> SinkPortOutcome {
            assert_eq!(producer, 3, "of two shards, windows, bridges");
            let mut json = Vec::new();
            row.columns.write_json(&mut json);
            let row = String::from_utf8(json).unwrap();
            self.rows.lock().unwrap().push(row);
            *self.looks_until_room.lock().unwrap() = 2;
            SinkPortOutcome::Full
        }

        fn is_full(&self, _sink: SinkId) -> bool {
            let mut left = self.looks_until_room.lock().unwrap();
            *left = left.saturating_sub(1);
            *left > 0
        }
    }

    #[tokio::test]
    async fn a_rule_receives_bridge_messages_and_their_source_waits_for_a_full_sink() {
        let sink = Arc::new(RecordingSink::default());
        let engine = Engine::new(RuleEngineSettings::default(), 2);
        engine.set_sink_port(sink.clone());
        let rule = |sql: &str| json!({"sql": sql, "actions": [{"kind": "sink", "sink": "db"}]});
        let sql = "SELECT topic, payload.t AS t, qos, key, headers.h AS h, partition FROM \"$bridges/mqtt:in\" WHERE payload.t > 1";
        engine.put_rule("r", Some(&rule(sql)));
        engine.put_rule("other", Some(&rule("SELECT * FROM \"$bridges/mqtt:out\"")));
        let fields = json!({"partition": 3});
        let mut incoming = BridgeMessage {
            topic: "a/b",
            payload: br#"{"t": 1}"#,
            qos: 1,
            retain: false,
            key: Some(b"k"),
            properties: &[("h".to_owned(), "v".to_owned())],
            fields: fields.as_object().unwrap(),
        };
        engine.handle_bridge_message("mqtt:in", incoming).await;
        incoming.payload = br#"{"t": 2}"#;
        engine.handle_bridge_message("mqtt:in", incoming).await;
        let expected = r#"{"topic":"a/b","t":2,"qos":1,"key":"k","h":"v","partition":3}"#;
        assert_eq!(*sink.rows.lock().unwrap(), [expected]);
        assert_eq!(
            *sink.looks_until_room.lock().unwrap(),
            0,
            "the call waits for the sink"
        );
    }
}
