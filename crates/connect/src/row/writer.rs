//! Packs a row field by field.

use super::{
    ARRAY, BYTES, FALSE, FLOAT, INT, JSON, MAP, MAX_ORIGIN_BYTES, NULL, ORIGIN, SinkRow, SinkValue,
    TEXT, TRUE,
};

/// Appends a row, or a map within one, to a buffer.
pub struct SinkRowWriter<'b>(&'b mut Vec<u8>);

/// Appends the items of an array.
pub struct ItemWriter<'b>(&'b mut Vec<u8>);

impl<'b> SinkRowWriter<'b> {
    pub fn new(out: &'b mut Vec<u8>) -> Self {
        Self(out)
    }

    pub fn null(&mut self, key: &str) {
        put_key(self.0, key);
        self.0.push(NULL);
    }

    pub fn bool(&mut self, key: &str, value: bool) {
        put_key(self.0, key);
        put_bool(self.0, value);
    }

    pub fn int(&mut self, key: &str, value: i64) {
        put_key(self.0, key);
        put_int(self.0, value);
    }

    pub fn float(&mut self, key: &str, value: f64) {
        put_key(self.0, key);
        put_float(self.0, value);
    }

    pub fn text(&mut self, key: &str, value: &str) {
        put_key(self.0, key);
        put_sized(self.0, TEXT, value.as_bytes());
    }

    /// Appends bytes; if they are valid UTF-8, readers see a text.
    pub fn bytes(&mut self, key: &str, value: &[u8]) {
        put_key(self.0, key);
        put_bytes(self.0, value);
    }

    /// Appends the text of a JSON array or object unchanged.
    pub fn json(&mut self, key: &str, value: &str) {
        put_key(self.0, key);
        put_sized(self.0, JSON, value.as_bytes());
    }

    pub fn map(&mut self, key: &str, fill: impl FnOnce(&mut SinkRowWriter<'_>)) {
        put_key(self.0, key);
        put_map(self.0, fill);
    }

    pub fn array(&mut self, key: &str, fill: impl FnOnce(&mut ItemWriter<'_>)) {
        put_key(self.0, key);
        put_array(self.0, fill);
    }

    /// Appends all fields of another row.
    pub fn fields_of(&mut self, row: SinkRow<'_>) {
        self.0.extend_from_slice(row.without_origin());
    }

    /// Appends the origin of the row, for observers of its failure. Must be written last. An origin that is too long is left out.
    pub fn origin(&mut self, origin: &str) {
        if origin.len() <= MAX_ORIGIN_BYTES {
            self.0.extend_from_slice(&ORIGIN.to_le_bytes());
            self.0.extend_from_slice(origin.as_bytes());
        }
    }

    /// Appends a value of another row.
    pub fn value(&mut self, key: &str, value: SinkValue<'_>) {
        put_key(self.0, key);
        put_value(self.0, value);
    }
}

impl ItemWriter<'_> {
    pub fn null(&mut self) {
        self.0.push(NULL);
    }

    pub fn bool(&mut self, value: bool) {
        put_bool(self.0, value);
    }

    pub fn int(&mut self, value: i64) {
        put_int(self.0, value);
    }

    pub fn float(&mut self, value: f64) {
        put_float(self.0, value);
    }

    pub fn text(&mut self, value: &str) {
        put_sized(self.0, TEXT, value.as_bytes());
    }

    pub fn bytes(&mut self, value: &[u8]) {
        put_bytes(self.0, value);
    }

    pub fn json(&mut self, value: &str) {
        put_sized(self.0, JSON, value.as_bytes());
    }

    pub fn map(&mut self, fill: impl FnOnce(&mut SinkRowWriter<'_>)) {
        put_map(self.0, fill);
    }

    pub fn array(&mut self, fill: impl FnOnce(&mut ItemWriter<'_>)) {
        put_array(self.0, fill);
    }

    pub fn value(&mut self, value: SinkValue<'_>) {
        put_value(self.0, value);
    }
}

/// A key beyond the maximum length is cut at a character boundary.
fn put_key(out: &mut Vec<u8>, key: &str) {
    let key = &key[..key.floor_char_boundary(usize::from(u16::MAX))];
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(key.as_bytes());
}

fn put_bool(out: &mut Vec<u8>, value: bool) {
    out.push(if value { TRUE } else { FALSE });
}

fn put_int(out: &mut Vec<u8>, value: i64) {
    out.push(INT);
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_float(out: &mut Vec<u8>, value: f64) {
    out.push(FLOAT);
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, value: &[u8]) {
    // Readers check whether it is UTF-8, so the shard does not have to.
    put_sized(out, TEXT, value);
}

/// A body too long for a length of 4 bytes would not fit a queue either; it becomes null.
fn put_sized(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    match u32::try_from(value.len()) {
        Ok(length) => {
            out.push(tag);
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(value);
        }
        Err(_) => out.push(NULL),
    }
}

fn put_map(out: &mut Vec<u8>, fill: impl FnOnce(&mut SinkRowWriter<'_>)) {
    put_nested(out, MAP, |out| fill(&mut SinkRowWriter(out)));
}

fn put_array(out: &mut Vec<u8>, fill: impl FnOnce(&mut ItemWriter<'_>)) {
    put_nested(out, ARRAY, |out| fill(&mut ItemWriter(out)));
}

fn put_nested(out: &mut Vec<u8>, tag: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.push(tag);
    out.extend_from_slice(&[0; 4]);
    fill(out);
    match u32::try_from(out.len() - start - 5) {
        Ok(length) => out[start + 1..start + 5].copy_from_slice(&length.to_le_bytes()),
        Err(_) => {
            out.truncate(start);
            out.push(NULL);
        }
    }
}

fn put_value(out: &mut Vec<u8>, value: SinkValue<'_>) {
    match value {
        SinkValue::Null => out.push(NULL),
        SinkValue::Bool(value) => put_bool(out, value),
        SinkValue::Int(value) => put_int(out, value),
        SinkValue::Float(value) => put_float(out, value),
        SinkValue::Text(value) => put_sized(out, TEXT, value.as_bytes()),
        SinkValue::Bytes(value) => put_sized(out, BYTES, value),
        SinkValue::Json(value) => put_sized(out, JSON, value.as_bytes()),
        SinkValue::Array(items) => put_sized(out, ARRAY, items.0),
        SinkValue::Map(map) => put_sized(out, MAP, map.0),
    }
}
