//! Conversion of rows from and to JSON.

use std::io::Write as _;

use serde_json::{Map, Value as Json};

use super::writer::SinkRowWriter;
use super::{MAX_DEPTH, SinkRow, SinkValue};

impl SinkValue<'_> {
    /// Appends the value as JSON. Invalid UTF-8 becomes text with replacement characters; a float that JSON cannot represent
    /// becomes null.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        write_value(*self, out, 0);
    }

    /// Appends the value as text in a template: texts without quotes, null as nothing, other values as JSON.
    pub fn write_text(&self, out: &mut Vec<u8>) {
        match self {
            SinkValue::Null => {}
            SinkValue::Text(text) => out.extend_from_slice(text.as_bytes()),
            SinkValue::Bytes(bytes) => out.extend_from_slice(bytes),
            other => other.write_json(out),
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, SinkValue::Null)
    }
}

impl SinkRow<'_> {
    /// Appends the row as a JSON object.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        write_map(*self, out, 0);
    }

    /// The row as a JSON object, for display and tests.
    pub fn to_json(&self) -> Json {
        let mut text = Vec::new();
        self.write_json(&mut text);
        serde_json::from_slice(&text).unwrap_or(Json::Null)
    }
}

impl SinkRowWriter<'_> {
    /// Appends the fields of a JSON object.
    pub fn json_fields(&mut self, fields: &Map<String, Json>) {
        for (key, value) in fields {
            self.json_value(key, value);
        }
    }

    /// Appends a JSON value.
    pub fn json_value(&mut self, key: &str, value: &Json) {
        match value {
            Json::Null => self.null(key),
            Json::Bool(value) => self.bool(key, *value),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(int), _) => self.int(key, int),
                (None, Some(float)) => self.float(key, float),
                (None, None) => self.null(key),
            },
            Json::String(text) => self.text(key, text),
            Json::Object(fields) => self.map(key, |map| map.json_fields(fields)),
            // Its JSON text is equivalent to its items and faster to create.
            array @ Json::Array(_) => self.json(key, &array.to_string()),
        }
    }
}

fn write_value(value: SinkValue<'_>, out: &mut Vec<u8>, depth: usize) {
    match value {
        SinkValue::Null => out.extend_from_slice(b"null"),
        SinkValue::Bool(true) => out.extend_from_slice(b"true"),
        SinkValue::Bool(false) => out.extend_from_slice(b"false"),
        SinkValue::Int(number) => {
            let _ = write!(out, "{number}");
        }
        SinkValue::Float(number) if number.is_finite() => {
            let _ = serde_json::to_writer(out, &number);
        }
        SinkValue::Float(_) => out.extend_from_slice(b"null"),
        SinkValue::Text(text) => write_string(text, out),
        SinkValue::Bytes(bytes) => write_string(&String::from_utf8_lossy(bytes), out),
        SinkValue::Json(text) => write_json_text(text, out),
        SinkValue::Array(_) | SinkValue::Map(_) if depth >= MAX_DEPTH => {
            out.extend_from_slice(b"null")
        }
        SinkValue::Array(items) => {
            out.push(b'[');
            for (at, item) in items.enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_value(item, out, depth + 1);
            }
            out.push(b']');
        }
        SinkValue::Map(map) => write_map(map, out, depth + 1),
    }
}

fn write_map(map: SinkRow<'_>, out: &mut Vec<u8>, depth: usize) {
    out.push(b'{');
    for (at, (key, value)) in map.fields().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_string(key, out);
        out.push(b':');
        write_value(value, out, depth);
    }
    out.push(b'}');
}

/// Appends JSON on one line: a line break in JSON is white space, because strings escape it.
fn write_json_text(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(text.as_bytes());
    for byte in &mut out[start..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    // Writing to memory cannot fail.
    let _ = serde_json::to_writer(out, text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_go_through_json() {
        let value = json!({
            "i": i64::MIN, "f": 0.1, "t": "a\"b\n", "n": null, "b": false,
            "m": {"x": [1, {"y": "z"}], "e": {}}, "a": []
        });
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).json_fields(value.as_object().unwrap());
        assert_eq!(SinkRow::from_bytes(&bytes).to_json(), value);
    }

    #[test]
    fn what_json_does_not_know_is_still_json() {
        let mut bytes = Vec::new();
        let mut row = SinkRowWriter::new(&mut bytes);
        row.float("nan", f64::NAN);
        row.bytes("raw", &[b'a', 0xff]);
        row.json("lines", "[\n1\n]");
        let mut text = Vec::new();
        SinkRow::from_bytes(&bytes).write_json(&mut text);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "{\"nan\":null,\"raw\":\"a\u{fffd}\",\"lines\":[ 1 ]}");
    }
}
