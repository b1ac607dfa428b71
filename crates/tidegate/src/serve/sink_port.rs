//! The sinks of `connect` as a [`SinkPort`] of the rule engine.

use connect::row::{ItemWriter, SinkRowWriter};
use connect::{ConnectorService, PushOutcome};
use engine::{OutputRow, SinkId, SinkPort, SinkPortOutcome};
use hooks::DurableCallback;
use rules::Value;

pub(super) struct NodeSinkPort(pub(super) ConnectorService);

impl SinkPort for NodeSinkPort {
    fn find_sink(&self, name: &str) -> Option<SinkId> {
        self.0.sink(name).map(|id| SinkId(id.number()))
    }

    fn send_row(&self, sink: SinkId, producer: u16, row: OutputRow<'_>) -> SinkPortOutcome {
        let id = connect::SinkId::from_number(sink.0);
        let pushed = self.0.push(id, producer, |out| {
            write_columns(out, row.columns);
            if let Some(origin) = row.origin {
                out.origin(&super::fallback_actions::encode_origin(row.rule, origin));
            }
        });
        match pushed {
            PushOutcome::Queued => SinkPortOutcome::Queued,
            PushOutcome::Blocked => SinkPortOutcome::Full,
            PushOutcome::Dropped => SinkPortOutcome::Dropped,
            PushOutcome::Unknown => SinkPortOutcome::Unknown,
        }
    }

    fn is_full(&self, sink: SinkId) -> bool {
        self.0.is_full(connect::SinkId::from_number(sink.0))
    }

    fn has_unsettled_rows(&self, producer: u16) -> bool {
        self.0.is_unsettled(producer)
    }

    fn notify_when_durable(&self, producer: u16, done: DurableCallback) {
        self.0.settle(producer, done);
    }
}

/// Writes the columns of an output.
pub(super) fn write_columns(out: &mut SinkRowWriter<'_>, columns: Value<'_>) {
    match columns {
        Value::Map(columns) => write_fields(out, columns),
        other => write_value(out, "value", other),
    }
}

fn write_fields(out: &mut SinkRowWriter<'_>, fields: &[(&str, Value<'_>)]) {
    for (at, (key, value)) in fields.iter().enumerate() {
        // If a name occurs twice, the last one counts.
        if !fields[at + 1..].iter().any(|(later, _)| later == key) {
            write_value(out, key, *value);
        }
    }
}

fn write_value(out: &mut SinkRowWriter<'_>, key: &str, value: Value<'_>) {
    match value {
        Value::Undefined | Value::Null => out.null(key),
        Value::Bool(value) => out.bool(key, value),
        Value::Int(value) => out.int(key, value),
        Value::Float(value) => out.float(key, value),
        Value::Str(value) => out.text(key, value),
        Value::Bytes(value) => out.bytes(key, value),
        // Written as digits, which databases accept as a number.
        Value::Big(value) => out.text(key, value),
        Value::Json(value) => out.json(key, value),
        Value::Array(items) => out.array(key, |out| write_items(out, items)),
        Value::Map(fields) => out.map(key, |out| write_fields(out, fields)),
    }
}

fn write_items(out: &mut ItemWriter<'_>, items: &[Value<'_>]) {
    for item in items {
        match *item {
            Value::Undefined | Value::Null => out.null(),
            Value::Bool(value) => out.bool(value),
            Value::Int(value) => out.int(value),
            Value::Float(value) => out.float(value),
            Value::Str(value) => out.text(value),
            Value::Bytes(value) => out.bytes(value),
            Value::Big(value) => out.text(value),
            Value::Json(value) => out.json(value),
            Value::Array(items) => out.array(|out| write_items(out, items)),
            Value::Map(fields) => out.map(|out| write_fields(out, fields)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_of_a_rule_is_the_same_as_a_row() {
        let inner = [("x", Value::Int(1)), ("x", Value::Int(2))];
        let items = [
            Value::Null,
            Value::Str("é"),
            Value::Map(&inner),
            Value::Json("[1]"),
        ];
        let fields = [
            ("id", Value::Int(i64::MIN)),
            ("ok", Value::Bool(true)),
            ("t", Value::Float(0.5)),
            ("payload", Value::Bytes(b"\xff")),
            ("list", Value::Array(&items)),
            ("raw", Value::Json(r#"{"b": 1}"#)),
        ];
        let mut bytes = Vec::new();
        write_fields(&mut SinkRowWriter::new(&mut bytes), &fields);
        let row = connect::SinkRow::from_bytes(&bytes);
        let expected = serde_json::json!({
            "id": i64::MIN, "ok": true, "t": 0.5, "payload": "\u{fffd}",
            "list": [null, "é", {"x": 2}, [1]], "raw": {"b": 1},
        });
        assert_eq!(row.to_json(), expected);
    }
}
