//! Messages that come in from other systems, shown to the rules that name them: `FROM "$bridges/TYPE:NAME"`.
//!
//! They come on the control plane, one at a time for all sources, and are done with when what the rules want published is
//! published and no sink is full: whoever sends them waits so long, and so does the system they come from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use broker::hooks::{Backpressure, Outgoing};
use rules::{Arena, Event, EventKind, Scratch, Value};
use serde_json::Map;

use crate::bound::{Bound, Lineage};
use crate::engine::Engine;
use crate::hooks::{now_ms, scratch};
use crate::run::Run;
use crate::shared::{PUBLISHED_WITHIN, Shared, Snapshot};
use crate::stage::Stage;

/// Between two looks at whether sinks have room again.
const FULL_PAUSE: Duration = Duration::from_millis(5);

/// A message from outside.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'m> {
    pub topic: &'m str,
    pub payload: &'m [u8],
    pub qos: u8,
    pub retain: bool,
    pub key: Option<&'m [u8]>,
    /// Headers, user properties.
    pub properties: &'m [(String, String)],
    /// Further fields by name.
    pub fields: &'m Map<String, serde_json::Value>,
}

/// What evaluating them needs; made with the first.
#[derive(Default)]
pub(crate) struct Bridges(Mutex<Option<Tools>>);

pub(crate) struct Tools {
    pub(crate) scratch: Scratch,
    pub(crate) stage: Stage,
}

impl Bridges {
    fn lock(&self) -> MutexGuard<'_, Option<Tools>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For one event outside of shards at a time.
    pub(crate) fn with_tools<R>(
        &self,
        shared: &Arc<Shared>,
        work: impl FnOnce(&mut Tools) -> R,
    ) -> R {
        let mut tools = self.lock();
        work(tools.get_or_insert_with(|| Tools::new(shared, shared.bridge_lane())))
    }
}

/// What rules have made of an event outside of shards.
pub(crate) struct Outcome {
    pub(crate) outgoing: Option<Outgoing>,
    /// What its source waits for.
    backpressure: Option<Backpressure>,
}

impl Engine {
    /// Shows a message to the rules that take what comes in through a bridge, `TYPE:NAME`; resolves when it has been taken.
    pub async fn take_bridged(&self, bridge: &str, incoming: Incoming<'_>) {
        if let Some(outcome) = self.meet_bridged(bridge, &incoming) {
            self.finish_outside(bridge, outcome).await;
        }
    }

    /// Waits until what rules want published is, and what they have fed has room. `from`: what comes from one place stays in order.
    pub(crate) async fn finish_outside(&self, from: &str, outcome: Outcome) {
        if let Some(outgoing) = outcome.outgoing {
            let (done, published) = tokio::sync::oneshot::channel();
            // Nobody may be waiting any more.
            let done = move || _ = done.send(());
            let number = from.bytes().map(u64::from).sum();
            if self.shared.publish_on(number, outgoing, done)
                && tokio::time::timeout(PUBLISHED_WITHIN, published)
                    .await
                    .is_err()
            {
                tracing::debug!(
                    from,
                    "a shard takes long to publish what came of an event outside"
                );
            }
        }
        while outcome.backpressure.as_ref().is_some_and(|waits| waits()) {
            tokio::time::sleep(FULL_PAUSE).await;
        }
    }

    fn meet_bridged(&self, bridge: &str, incoming: &Incoming<'_>) -> Option<Outcome> {
        let snapshot = self.shared.snapshot.load_full();
        let rules = snapshot.index.from_bridge(bridge);
        if rules.is_empty() {
            return None;
        }
        Some((self.bridges).with_tools(&self.shared, |tools| {
            self.meet_with(tools, &snapshot, rules, incoming);
            tools.take_outcome()
        }))
    }

    fn meet_with(
        &self,
        tools: &mut Tools,
        snapshot: &Snapshot,
        rules: &[Arc<Bound>],
        incoming: &Incoming<'_>,
    ) {
        tools.scratch.reset();
        let (scratch, at_ms) = (&tools.scratch, now_ms());
        let event = Event {
            node: &self.shared.settings.node_name,
            topic: Some(incoming.topic),
            qos: Some(incoming.qos),
            retain: incoming.retain,
            payload: Some(incoming.payload),
            extra: fields_of(incoming, at_ms, scratch.arena()),
            ..Event::new(EventKind::Publish, at_ms)
        };
        let view = scratch.view(&event, at_ms);
        let mut run = Run {
            index: &snapshot.index,
            rows: &self.shared.rows,
            scratch,
            stage: &mut tools.stage,
            lineage: Lineage::default(),
            now_ms: at_ms,
            chained: 0,
        };
        run.meet_all(&view, |at| rules.get(at).map(|rule| &**rule));
    }
}

impl Tools {
    pub(crate) fn new(shared: &Arc<Shared>, lane: usize) -> Self {
        Self {
            scratch: scratch(lane, shared),
            stage: Stage::new(lane, shared.clone()),
        }
    }

    /// What came of the event met last.
    pub(crate) fn take_outcome(&mut self) -> Outcome {
        Outcome {
            outgoing: self.stage.take_outgoing(),
            backpressure: self.stage.take_backpressure(),
        }
    }
}

/// The fields a rule sees, by name.
fn fields_of<'a>(incoming: &Incoming<'a>, at_ms: u64, arena: &'a Arena) -> Value<'a> {
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
        fields.push((&*arena.alloc_str(name), value_of(value, arena)));
    }
    Value::Map(arena.alloc_slice_copy(&fields))
}

pub(crate) fn value_of<'a>(value: &serde_json::Value, arena: &'a Arena) -> Value<'a> {
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
    use super::*;
    use crate::outlet::{Outlet, Row, Sent, SinkId};
    use crate::settings::Settings;
    use serde_json::json;

    /// Keeps rows, and has room for as many at a time as it is asked for.
    #[derive(Default)]
    struct Sink {
        rows: Mutex<Vec<String>>,
        looks_until_room: Mutex<u32>,
    }

    impl Outlet for Sink {
        fn sink(&self, name: &str) -> Option<SinkId> {
            (name == "db").then_some(SinkId(1))
        }

        fn send(&self, _sink: SinkId, lane: u16, row: Row<'_>) -> Sent {
            assert_eq!(lane, 3, "of two shards, windows, bridges");
            let mut json = Vec::new();
            row.columns.write_json(&mut json);
            let row = String::from_utf8(json).unwrap();
            self.rows.lock().unwrap().push(row);
            *self.looks_until_room.lock().unwrap() = 2;
            Sent::Full
        }

        fn is_full(&self, _sink: SinkId) -> bool {
            let mut left = self.looks_until_room.lock().unwrap();
            *left = left.saturating_sub(1);
            *left > 0
        }
    }

    #[tokio::test]
    async fn a_rule_sees_what_comes_in_and_its_source_waits_for_a_full_sink() {
        let sink = Arc::new(Sink::default());
        let engine = Engine::new(Settings::default(), 2);
        engine.set_outlet(sink.clone());
        let rule = |sql: &str| json!({"sql": sql, "actions": [{"kind": "sink", "sink": "db"}]});
        let sql = "SELECT topic, payload.t AS t, qos, key, headers.h AS h, partition FROM \"$bridges/mqtt:in\" WHERE payload.t > 1";
        engine.put("r", Some(&rule(sql)));
        engine.put("other", Some(&rule("SELECT * FROM \"$bridges/mqtt:out\"")));
        let fields = json!({"partition": 3});
        let mut incoming = Incoming {
            topic: "a/b",
            payload: br#"{"t": 1}"#,
            qos: 1,
            retain: false,
            key: Some(b"k"),
            properties: &[("h".to_owned(), "v".to_owned())],
            fields: fields.as_object().unwrap(),
        };
        engine.take_bridged("mqtt:in", incoming).await;
        incoming.payload = br#"{"t": 2}"#;
        engine.take_bridged("mqtt:in", incoming).await;
        let expected = r#"{"topic":"a/b","t":2,"qos":1,"key":"k","h":"v","partition":3}"#;
        assert_eq!(*sink.rows.lock().unwrap(), [expected]);
        assert_eq!(
            *sink.looks_until_room.lock().unwrap(),
            0,
            "it was waited for"
        );
    }
}
