//! JSON writer.

use base64::Engine as _;

use super::skipping::unescaped_prefix_length;
use crate::value::{Arena, Value, float_text};

/// A destination of bytes: a vector on the heap or in the arena.
pub trait JsonOutput {
    fn put(&mut self, bytes: &[u8]);
}

impl JsonOutput for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl JsonOutput for bumpalo::collections::Vec<'_, u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice_copy(bytes);
    }
}

/// Writes a value as JSON, see [`Value::write_json`].
pub fn write(value: &Value<'_>, out: &mut impl JsonOutput) {
    match value {
        Value::Undefined | Value::Null => out.put(b"null"),
        Value::Bool(true) => out.put(b"true"),
        Value::Bool(false) => out.put(b"false"),
        Value::Int(number) => out.put(itoa::Buffer::new().format(*number).as_bytes()),
        Value::Float(number) => out.put(float_text(*number, &mut zmij::Buffer::new()).as_bytes()),
        Value::Str(text) => write_string(text, out),
        Value::Bytes(bytes) => match str::from_utf8(bytes) {
            Ok(text) => write_string(text, out),
            Err(_) => {
                let text = base64::engine::general_purpose::STANDARD.encode(bytes);
                write_string(&text, out);
            }
        },
        Value::Array(items) => {
            out.put(b"[");
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.put(b",");
                }
                write(item, out);
            }
            out.put(b"]");
        }
        Value::Map(fields) => {
            out.put(b"{");
            for (at, (name, value)) in fields.iter().enumerate() {
                if at > 0 {
                    out.put(b",");
                }
                write_string(name, out);
                out.put(b":");
                write(value, out);
            }
            out.put(b"}");
        }
        Value::Json(text) | Value::Big(text) => out.put(text.as_bytes()),
    }
}

/// Writes text in quotes.
pub fn write_string(text: &str, out: &mut impl JsonOutput) {
    out.put(b"\"");
    let mut rest = text.as_bytes();
    loop {
        let (plain, special) = rest.split_at(unescaped_prefix_length(rest));
        out.put(plain);
        let Some((byte, after)) = special.split_first() else {
            break;
        };
        rest = after;
        match byte {
            b'"' => out.put(b"\\\""),
            b'\\' => out.put(b"\\\\"),
            b'\n' => out.put(b"\\n"),
            b'\r' => out.put(b"\\r"),
            b'\t' => out.put(b"\\t"),
            0x8 => out.put(b"\\b"),
            0xc => out.put(b"\\f"),
            control => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                let high = DIGITS[usize::from(control >> 4)];
                let low = DIGITS[usize::from(control & 15)];
                out.put(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
    }
    out.put(b"\"");
}

/// The JSON text of a value, in the arena.
#[must_use]
pub fn text<'a>(value: &Value<'_>, arena: &'a Arena) -> &'a str {
    let mut out = bumpalo::collections::Vec::with_capacity_in(64, arena);
    write(value, &mut out);
    str::from_utf8(out.into_bump_slice()).expect("JSON is written from text and base64 only")
}
