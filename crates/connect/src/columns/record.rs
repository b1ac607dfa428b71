//! A row whose values have the types of their columns, as bytes: for each column 0 for null, or 1 and the value. A number
//! or a time is 8 bytes little-endian, a bool one byte, anything else a length of 4 bytes and so many bytes.

use super::{Shape, Type, kind_of};
use crate::row::Value;

pub(crate) const MAX_RECORD_BYTES: usize = 64 << 20;

/// A value that is read again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cell<'r> {
    Bool(bool),
    /// Also of a time.
    Int(i64),
    Float(f64),
    Bytes(&'r [u8]),
}

/// Appends a value as its column's type, or says why it cannot be made it.
pub(super) fn put(of: Type, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    if value == Value::Null {
        out.push(0);
        return Ok(());
    }
    let wrong = |expected: &str| Err(format!("expected {expected}, found {}", kind_of(value)));
    out.push(1);
    match of {
        Type::Bool => match value {
            Value::Bool(value) => out.push(value.into()),
            Value::Text("true") => out.push(1),
            Value::Text("false") => out.push(0),
            _ => return wrong("true or false"),
        },
        Type::Int | Type::TimestampMs => match integer(value) {
            Some(value) => out.extend_from_slice(&value.to_le_bytes()),
            None => return wrong("an integer"),
        },
        Type::Float => match number(value) {
            Some(value) => out.extend_from_slice(&value.to_le_bytes()),
            None => return wrong("a number"),
        },
        Type::Text => match value {
            Value::Bytes(_) => return wrong("a text"),
            value => put_bytes(out, |out| value.write_text(out)),
        },
        Type::Bytes => put_bytes(out, |out| value.write_text(out)),
        Type::Json => match value {
            Value::Bytes(_) => return wrong("JSON"),
            Value::Text(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
                put_bytes(out, |out| out.extend_from_slice(text.as_bytes()));
            }
            value => put_bytes(out, |out| value.write_json(out)),
        },
    }
    Ok(())
}

fn put_bytes(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    // One that is longer than 4 bytes can say is far beyond what a record may have, which is looked at next.
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn integer(value: Value<'_>) -> Option<i64> {
    /// From here on not every integer is a float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Int(value) => Some(value),
        Value::Float(value) if value.fract() == 0.0 && value.abs() <= EXACT => Some(value as i64),
        Value::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn number(value: Value<'_>) -> Option<f64> {
    match value {
        Value::Int(value) => Some(value as f64),
        Value::Float(value) => Some(value),
        Value::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Reads a record, value by value; `None` if it is not one of this shape.
pub(super) fn read<'r>(shape: &Shape, record: &'r [u8]) -> Option<Vec<Option<Cell<'r>>>> {
    let mut rest = record;
    let mut cells = Vec::with_capacity(shape.0.len());
    for (_, of) in &shape.0 {
        let (is_there, behind) = rest.split_first()?;
        rest = behind;
        cells.push(match is_there {
            0 => None,
            1 => Some(take(*of, &mut rest)?),
            _ => return None,
        });
    }
    rest.is_empty().then_some(cells)
}

fn take<'r>(of: Type, rest: &mut &'r [u8]) -> Option<Cell<'r>> {
    match of {
        Type::Bool => {
            let (value, behind) = rest.split_first()?;
            *rest = behind;
            Some(Cell::Bool(*value == 1))
        }
        Type::Int | Type::TimestampMs | Type::Float => {
            let (value, behind) = rest.split_first_chunk::<8>()?;
            *rest = behind;
            Some(match of {
                Type::Float => Cell::Float(f64::from_le_bytes(*value)),
                _ => Cell::Int(i64::from_le_bytes(*value)),
            })
        }
        Type::Text | Type::Json | Type::Bytes => {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let length = u32::from_le_bytes(*length) as usize;
            let (value, behind) = behind.split_at_checked(length)?;
            *rest = behind;
            Some(Cell::Bytes(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [Type; 7] = [
        Type::Text,
        Type::Bool,
        Type::Int,
        Type::Float,
        Type::TimestampMs,
        Type::Json,
        Type::Bytes,
    ];

    fn made(of: Type, value: Value<'_>) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        put(of, value, &mut out).map(|()| out)
    }

    #[test]
    fn values_become_what_their_columns_are() {
        let cell = |of, value| {
            let record = made(of, value).unwrap();
            let shape = Shape(vec![("a".into(), of)]);
            let cells = read(&shape, &record).unwrap();
            format!("{:?}", cells[0])
        };
        assert_eq!(cell(Type::Int, Value::Float(5.0)), "Some(Int(5))");
        assert_eq!(cell(Type::Int, Value::Text(" -7 ")), "Some(Int(-7))");
        assert_eq!(cell(Type::Float, Value::Int(5)), "Some(Float(5.0))");
        assert_eq!(cell(Type::Bool, Value::Text("true")), "Some(Bool(true))");
        let bytes = |text: &str| format!("{:?}", Some(Cell::Bytes(text.as_bytes())));
        assert_eq!(cell(Type::Text, Value::Int(5)), bytes("5"));
        assert_eq!(cell(Type::Json, Value::Text("[1]")), bytes("[1]"));
        assert_eq!(cell(Type::Json, Value::Text("a\"")), bytes("\"a\\\"\""));
        for of in TYPES {
            assert_eq!(cell(of, Value::Null), "None");
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let wrong = |of, value| made(of, value).unwrap_err();
        let expected = "expected an integer, found a number";
        assert_eq!(wrong(Type::Int, Value::Float(5.5)), expected);
        assert_eq!(
            wrong(Type::Bool, Value::Int(1)),
            "expected true or false, found an integer"
        );
        assert!(made(Type::TimestampMs, Value::Text("today")).is_err());
        assert!(made(Type::Text, Value::Bytes(b"\xff")).is_err());
        assert!(made(Type::Bytes, Value::Bytes(b"\xff")).is_ok());
    }

    #[test]
    fn bytes_that_are_no_record_are_no_danger() {
        let shape = Shape(TYPES.iter().map(|of| (format!("{of:?}"), *of)).collect());
        let mut record = Vec::new();
        for of in TYPES {
            let value = match of {
                Type::Bool => Value::Bool(true),
                _ => Value::Text("1"),
            };
            put(of, value, &mut record).unwrap();
        }
        for length in 0..record.len() {
            assert!(read(&shape, &record[..length]).is_none());
        }
        for at in 0..record.len() {
            let mut broken = record.clone();
            broken[at] ^= 0xff;
            let _ = read(&shape, &broken);
        }
    }
}
