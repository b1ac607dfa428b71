//! The sinks of the connectors as the rules see them.

use broker::hooks::Settled;
use connect::row::{ItemWriter, RowWriter};
use connect::{Pushed, Service};
use engine::{Outlet, Row, Sent, SinkId};
use rules::Value;

pub(super) struct Sinks(pub(super) Service);

impl Outlet for Sinks {
    fn sink(&self, name: &str) -> Option<SinkId> {
        self.0.sink(name).map(|id| SinkId(id.number()))
    }

    fn send(&self, sink: SinkId, lane: u16, row: Row<'_>) -> Sent {
        let id = connect::SinkId::from_number(sink.0);
        let pushed = self.0.push(id, lane, |out| {
            put_columns(out, row.columns);
            if let Some(origin) = row.origin {
                out.origin(&super::fallbacks::written(row.rule, origin));
            }
        });
        match pushed {
            Pushed::Queued => Sent::Queued,
            Pushed::Blocked => Sent::Full,
            Pushed::Dropped => Sent::Dropped,
            Pushed::Unknown => Sent::Unknown,
        }
    }

    fn is_full(&self, sink: SinkId) -> bool {
        self.0.is_full(connect::SinkId::from_number(sink.0))
    }

    fn is_unsettled(&self, lane: u16) -> bool {
        self.0.is_unsettled(lane)
    }

    fn settle(&self, lane: u16, done: Settled) {
        self.0.settle(lane, done);
    }
}

/// The columns of an output.
pub(super) fn put_columns(out: &mut RowWriter<'_>, columns: Value<'_>) {
    match columns {
        Value::Map(columns) => put_fields(out, columns),
        other => put(out, "value", other),
    }
}

fn put_fields(out: &mut RowWriter<'_>, fields: &[(&str, Value<'_>)]) {
    for (at, (key, value)) in fields.iter().enumerate() {
        // Should a name come twice, the later one counts.
        if !fields[at + 1..].iter().any(|(later, _)| later == key) {
            put(out, key, *value);
        }
    }
}

fn put(out: &mut RowWriter<'_>, key: &str, value: Value<'_>) {
    match value {
        Value::Undefined | Value::Null => out.null(key),
        Value::Bool(value) => out.bool(key, value),
        Value::Int(value) => out.int(key, value),
        Value::Float(value) => out.float(key, value),
        Value::Str(value) => out.text(key, value),
        Value::Bytes(value) => out.bytes(key, value),
        // Its digits, which databases take for a number.
        Value::Big(value) => out.text(key, value),
        Value::Json(value) => out.json(key, value),
        Value::Array(items) => out.array(key, |out| put_items(out, items)),
        Value::Map(fields) => out.map(key, |out| put_fields(out, fields)),
    }
}

fn put_items(out: &mut ItemWriter<'_>, items: &[Value<'_>]) {
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
            Value::Array(items) => out.array(|out| put_items(out, items)),
            Value::Map(fields) => out.map(|out| put_fields(out, fields)),
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
        put_fields(&mut RowWriter::new(&mut bytes), &fields);
        let row = connect::Row::from_bytes(&bytes);
        let expected = serde_json::json!({
            "id": i64::MIN, "ok": true, "t": 0.5, "payload": "\u{fffd}",
            "list": [null, "é", {"x": 2}, [1]], "raw": {"b": 1},
        });
        assert_eq!(row.to_json(), expected);
    }
}
