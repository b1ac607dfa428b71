//! Binary encoding of values: group keys, samples sent to the owner of the windows, and snapshots.
//!
//! A value is a tag and its content; lengths take 4 bytes, numbers are little-endian. Equal numbers have the
//! same encoding, and so has text, whether it is a string or bytes. Keys can therefore be compared bytewise.

use crate::value::{Arena, OwnedValue, Value};
use crate::window::WindowSample;

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const FLOAT: u8 = 4;
const STR: u8 = 5;
const BYTES: u8 = 6;
const ARRAY: u8 = 7;
const MAP: u8 = 8;
const JSON: u8 = 9;
const BIG: u8 = 10;
/// Deeper than any value that the JSON parser accepts.
const MAX_DEPTH: u32 = 256;

/// The bytes are not a valid encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the window state is damaged or has another version")]
pub struct DecodeError;

fn put_len(len: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(len as u32).to_le_bytes());
}

pub(crate) fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_len(bytes.len(), out);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_u64(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn put_value(value: &Value<'_>, out: &mut Vec<u8>) {
    match *value {
        Value::Undefined | Value::Null => out.push(NULL),
        Value::Bool(truth) => out.push(if truth { TRUE } else { FALSE }),
        Value::Int(number) => put_int(number, out),
        Value::Float(number) => match float_as_integer(number) {
            Some(number) => put_int(number, out),
            None => {
                out.push(FLOAT);
                out.extend_from_slice(&number.to_le_bytes());
            }
        },
        Value::Big(digits) => put_tagged(BIG, digits.as_bytes(), out),
        Value::Str(text) => put_tagged(STR, text.as_bytes(), out),
        Value::Bytes(bytes) => {
            let is_text = std::str::from_utf8(bytes).is_ok();
            put_tagged(if is_text { STR } else { BYTES }, bytes, out);
        }
        Value::Array(items) => {
            out.push(ARRAY);
            put_len(items.len(), out);
            items.iter().for_each(|item| put_value(item, out));
        }
        Value::Map(fields) => {
            out.push(MAP);
            put_len(fields.len(), out);
            for (name, value) in fields {
                put_bytes(name.as_bytes(), out);
                put_value(value, out);
            }
        }
        Value::Json(text) => put_tagged(JSON, text.as_bytes(), out),
    }
}

fn put_int(number: i64, out: &mut Vec<u8>) {
    out.push(INT);
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_tagged(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    put_bytes(bytes, out);
}

/// Converts a float without a fraction to an integer.
fn float_as_integer(number: f64) -> Option<i64> {
    // 2^63 as a float; the largest integer is one less.
    let is_whole = number.trunc() == number && number.abs() < 9_223_372_036_854_775_808.0;
    is_whole.then_some(number as i64)
}

pub(crate) fn put_owned(value: &OwnedValue, out: &mut Vec<u8>) {
    put_value(&value.to_value(&Arena::new()), out);
}

/// Reads encoded values. Every method returns an error on invalid or missing bytes.
pub(crate) struct WindowReader<'b> {
    remaining: &'b [u8],
}

impl<'b> WindowReader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { remaining: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.remaining.is_empty()
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (chunk, left) = self.remaining.split_first_chunk::<N>().ok_or(DecodeError)?;
        self.remaining = left;
        Ok(*chunk)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.chunk::<1>()?[0])
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.chunk()?))
    }

    pub(super) fn f64(&mut self) -> Result<f64, DecodeError> {
        Ok(f64::from_le_bytes(self.chunk()?))
    }

    /// A number of items, each of which takes at least one byte.
    pub(super) fn len(&mut self) -> Result<usize, DecodeError> {
        let len = u32::from_le_bytes(self.chunk()?) as usize;
        if len > self.remaining.len() {
            return Err(DecodeError);
        }
        Ok(len)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'b [u8], DecodeError> {
        let len = self.len()?;
        let (bytes, left) = self.remaining.split_at(len);
        self.remaining = left;
        Ok(bytes)
    }

    fn text<'a>(&mut self, arena: &'a Arena) -> Result<&'a str, DecodeError> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError)?;
        Ok(arena.alloc_str(text))
    }

    pub(super) fn value<'a>(&mut self, arena: &'a Arena) -> Result<Value<'a>, DecodeError> {
        self.value_at(arena, 0)
    }

    fn value_at<'a>(&mut self, arena: &'a Arena, depth: u32) -> Result<Value<'a>, DecodeError> {
        if depth > MAX_DEPTH {
            return Err(DecodeError);
        }
        Ok(match self.u8()? {
            NULL => Value::Null,
            FALSE => Value::Bool(false),
            TRUE => Value::Bool(true),
            INT => Value::Int(i64::from_le_bytes(self.chunk()?)),
            FLOAT => Value::Float(self.f64()?),
            STR => Value::Str(self.text(arena)?),
            BYTES => Value::Bytes(arena.alloc_slice_copy(self.bytes()?)),
            ARRAY => {
                let mut items = Vec::new();
                for _ in 0..self.len()? {
                    items.push(self.value_at(arena, depth + 1)?);
                }
                Value::Array(arena.alloc_slice_copy(&items))
            }
            MAP => {
                let mut fields = Vec::new();
                for _ in 0..self.len()? {
                    let name = self.text(arena)?;
                    fields.push((name, self.value_at(arena, depth + 1)?));
                }
                Value::Map(arena.alloc_slice_copy(&fields))
            }
            JSON => Value::Json(self.text(arena)?),
            BIG => Value::Big(self.text(arena)?),
            _ => return Err(DecodeError),
        })
    }

    pub(crate) fn owned(&mut self) -> Result<OwnedValue, DecodeError> {
        Ok(self.value(&Arena::new())?.into_owned())
    }

    /// All remaining values.
    pub(super) fn values<'a>(&mut self, arena: &'a Arena) -> Result<&'a [Value<'a>], DecodeError> {
        let mut values = Vec::new();
        while !self.is_empty() {
            values.push(self.value(arena)?);
        }
        Ok(arena.alloc_slice_copy(&values))
    }
}

/// Encodes the key of a group.
pub(super) fn encode_key(values: &[Value<'_>]) -> Vec<u8> {
    let mut key = Vec::with_capacity(16 * values.len());
    values.iter().for_each(|value| put_value(value, &mut key));
    key
}

/// Appends an encoded sample, which another thread reads with [`read_sample`].
pub fn put_sample(sample: &WindowSample<'_>, out: &mut Vec<u8>) {
    put_u64(sample.timestamp_ms, out);
    for values in [sample.key, sample.arguments] {
        let at = out.len();
        put_len(0, out);
        values.iter().for_each(|value| put_value(value, out));
        let len = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
}

/// Reads a sample from the front of `bytes` and advances `bytes` past it.
pub fn read_sample<'a>(
    bytes: &mut &[u8],
    arena: &'a Arena,
) -> Result<WindowSample<'a>, DecodeError> {
    let mut reader = WindowReader::new(bytes);
    let timestamp_ms = reader.u64()?;
    let key = WindowReader::new(reader.bytes()?).values(arena)?;
    let arguments = WindowReader::new(reader.bytes()?).values(arena)?;
    *bytes = reader.remaining;
    Ok(WindowSample {
        timestamp_ms,
        key,
        arguments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_round_trip() {
        let arena = Arena::new();
        let fields = [
            ("a", Value::Int(1)),
            ("b", Value::Array(&[Value::Null, Value::Float(1.5)])),
        ];
        let key = [Value::Str("device"), Value::Bytes(&[0xff])];
        let arguments = [
            Value::Map(&fields),
            Value::Json("{\"x\":1}"),
            Value::Bool(true),
        ];
        let sample = WindowSample {
            timestamp_ms: 7,
            key: &key,
            arguments: &arguments,
        };
        let mut bytes = Vec::new();
        put_sample(&sample, &mut bytes);
        put_sample(&sample, &mut bytes);
        let mut left = &bytes[..];
        for _ in 0..2 {
            let read = read_sample(&mut left, &arena).expect("the sample is valid");
            assert_eq!(read.timestamp_ms, 7);
            assert!(read.key.iter().zip(&key).all(|(a, b)| a.is_not_distinct(b)));
            assert!(
                read.arguments
                    .iter()
                    .zip(&arguments)
                    .all(|(a, b)| a.is_not_distinct(b))
            );
        }
        assert!(left.is_empty());
        for end in 0..bytes.len() / 2 {
            assert!(read_sample(&mut &bytes[..end], &arena).is_err(), "{end}");
        }
    }

    #[test]
    fn equal_values_have_equal_keys() {
        assert_eq!(
            encode_key(&[Value::Int(2)]),
            encode_key(&[Value::Float(2.0)])
        );
        assert_eq!(
            encode_key(&[Value::Str("x")]),
            encode_key(&[Value::Bytes(b"x")])
        );
        assert_ne!(encode_key(&[Value::Str("2")]), encode_key(&[Value::Int(2)]));
        assert_ne!(encode_key(&[Value::Null]), encode_key(&[Value::Str("")]));
    }
}
