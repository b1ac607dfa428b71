//! Records: rows whose values have the types of their columns, encoded as bytes. Each column is 0 for null, or 1 and the value. A
//! number or a time is 8 bytes little-endian, a bool one byte, anything else a length of 4 bytes and the bytes.

use super::schema::{ColumnSchema, ColumnType};
use crate::row::SinkValue;

pub(crate) const MAX_RECORD_BYTES: usize = 64 << 20;

/// A decoded value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ColumnValue<'r> {
    Bool(bool),
    /// Also for times.
    Int(i64),
    Float(f64),
    Bytes(&'r [u8]),
}

/// Appends a value converted to its column's type, or returns why it cannot be converted.
pub(super) fn put_value(
    of: ColumnType,
    value: SinkValue<'_>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    if value == SinkValue::Null {
        out.push(0);
        return Ok(());
    }
    let wrong = |expected: &str| Err(format!("expected {expected}, found {}", type_name(value)));
    out.push(1);
    match of {
        ColumnType::Bool => match value {
            SinkValue::Bool(value) => out.push(value.into()),
            SinkValue::Text("true") => out.push(1),
            SinkValue::Text("false") => out.push(0),
            _ => return wrong("true or false"),
        },
        ColumnType::Int | ColumnType::TimestampMs => match integer(value) {
            Some(value) => out.extend_from_slice(&value.to_le_bytes()),
            None => return wrong("an integer"),
        },
        ColumnType::Float => match number(value) {
            Some(value) => out.extend_from_slice(&value.to_le_bytes()),
            None => return wrong("a number"),
        },
        ColumnType::Text => match value {
            SinkValue::Bytes(_) => return wrong("a text"),
            value => put_bytes(out, |out| value.write_text(out)),
        },
        ColumnType::Bytes => put_bytes(out, |out| value.write_text(out)),
        ColumnType::Json => match value {
            SinkValue::Bytes(_) => return wrong("JSON"),
            SinkValue::Text(text)
                if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() =>
            {
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
    // A length beyond 4 bytes exceeds the limit on records, which is checked next.
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn integer(value: SinkValue<'_>) -> Option<i64> {
    /// Above this value not every integer is representable as a float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        SinkValue::Int(value) => Some(value),
        SinkValue::Float(value) if value.fract() == 0.0 && value.abs() <= EXACT => {
            Some(value as i64)
        }
        SinkValue::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn number(value: SinkValue<'_>) -> Option<f64> {
    match value {
        SinkValue::Int(value) => Some(value as f64),
        SinkValue::Float(value) => Some(value),
        SinkValue::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Name of a value's type for error texts.
fn type_name(value: SinkValue<'_>) -> &'static str {
    match value {
        SinkValue::Null => "null",
        SinkValue::Bool(_) => "a bool",
        SinkValue::Int(_) => "an integer",
        SinkValue::Float(_) => "a number",
        SinkValue::Text(_) => "a text",
        SinkValue::Bytes(_) => "bytes",
        SinkValue::Json(_) | SinkValue::Array(_) | SinkValue::Map(_) => "JSON",
    }
}

/// Reads a record value by value; `None` if it does not match these columns.
pub(super) fn read_record<'r>(
    shape: &ColumnSchema,
    record: &'r [u8],
) -> Option<Vec<Option<ColumnValue<'r>>>> {
    let mut rest = record;
    let mut cells = Vec::with_capacity(shape.0.len());
    for (_, of) in &shape.0 {
        let (is_there, behind) = rest.split_first()?;
        rest = behind;
        cells.push(match is_there {
            0 => None,
            1 => Some(take_value(*of, &mut rest)?),
            _ => return None,
        });
    }
    rest.is_empty().then_some(cells)
}

fn take_value<'r>(of: ColumnType, rest: &mut &'r [u8]) -> Option<ColumnValue<'r>> {
    match of {
        ColumnType::Bool => {
            let (value, behind) = rest.split_first()?;
            *rest = behind;
            Some(ColumnValue::Bool(*value == 1))
        }
        ColumnType::Int | ColumnType::TimestampMs | ColumnType::Float => {
            let (value, behind) = rest.split_first_chunk::<8>()?;
            *rest = behind;
            Some(match of {
                ColumnType::Float => ColumnValue::Float(f64::from_le_bytes(*value)),
                _ => ColumnValue::Int(i64::from_le_bytes(*value)),
            })
        }
        ColumnType::Text | ColumnType::Json | ColumnType::Bytes => {
            let (length, behind) = rest.split_first_chunk::<4>()?;
            let length = u32::from_le_bytes(*length) as usize;
            let (value, behind) = behind.split_at_checked(length)?;
            *rest = behind;
            Some(ColumnValue::Bytes(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [ColumnType; 7] = [
        ColumnType::Text,
        ColumnType::Bool,
        ColumnType::Int,
        ColumnType::Float,
        ColumnType::TimestampMs,
        ColumnType::Json,
        ColumnType::Bytes,
    ];

    fn made(of: ColumnType, value: SinkValue<'_>) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        put_value(of, value, &mut out).map(|()| out)
    }

    #[test]
    fn values_become_what_their_columns_are() {
        let cell = |of, value| {
            let record = made(of, value).unwrap();
            let shape = ColumnSchema(vec![("a".into(), of)]);
            let cells = read_record(&shape, &record).unwrap();
            format!("{:?}", cells[0])
        };
        assert_eq!(cell(ColumnType::Int, SinkValue::Float(5.0)), "Some(Int(5))");
        assert_eq!(
            cell(ColumnType::Int, SinkValue::Text(" -7 ")),
            "Some(Int(-7))"
        );
        assert_eq!(
            cell(ColumnType::Float, SinkValue::Int(5)),
            "Some(Float(5.0))"
        );
        assert_eq!(
            cell(ColumnType::Bool, SinkValue::Text("true")),
            "Some(Bool(true))"
        );
        let bytes = |text: &str| format!("{:?}", Some(ColumnValue::Bytes(text.as_bytes())));
        assert_eq!(cell(ColumnType::Text, SinkValue::Int(5)), bytes("5"));
        assert_eq!(cell(ColumnType::Json, SinkValue::Text("[1]")), bytes("[1]"));
        assert_eq!(
            cell(ColumnType::Json, SinkValue::Text("a\"")),
            bytes("\"a\\\"\"")
        );
        for of in TYPES {
            assert_eq!(cell(of, SinkValue::Null), "None");
        }
    }

    #[test]
    fn values_that_do_not_fit_are_rejected() {
        let wrong = |of, value| made(of, value).unwrap_err();
        let expected = "expected an integer, found a number";
        assert_eq!(wrong(ColumnType::Int, SinkValue::Float(5.5)), expected);
        assert_eq!(
            wrong(ColumnType::Bool, SinkValue::Int(1)),
            "expected true or false, found an integer"
        );
        assert!(made(ColumnType::TimestampMs, SinkValue::Text("today")).is_err());
        assert!(made(ColumnType::Text, SinkValue::Bytes(b"\xff")).is_err());
        assert!(made(ColumnType::Bytes, SinkValue::Bytes(b"\xff")).is_ok());
    }

    #[test]
    fn bytes_that_are_no_record_are_no_danger() {
        let shape = ColumnSchema(TYPES.iter().map(|of| (format!("{of:?}"), *of)).collect());
        let mut record = Vec::new();
        for of in TYPES {
            let value = match of {
                ColumnType::Bool => SinkValue::Bool(true),
                _ => SinkValue::Text("1"),
            };
            put_value(of, value, &mut record).unwrap();
        }
        for length in 0..record.len() {
            assert!(read_record(&shape, &record[..length]).is_none());
        }
        for at in 0..record.len() {
            let mut broken = record.clone();
            broken[at] ^= 0xff;
            let _ = read_record(&shape, &broken);
        }
    }
}
