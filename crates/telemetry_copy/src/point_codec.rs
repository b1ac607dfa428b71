//! Values of points as bytes: a tag, then the value.
//!
//! | tag | then |
//! |---|---|
//! | 0, 1 | false, true |
//! | 2 | integer: signed varint |
//! | 3 | float: 8 bytes, little-endian |
//! | 4, 5 | text, JSON: varint of its length, bytes |

use disk::varint::{self, VarintReader};
use series::PointValue;

pub(crate) fn put_value(out: &mut Vec<u8>, value: PointValue<'_>) {
    match value {
        PointValue::Bool(value) => out.push(u8::from(value)),
        PointValue::Int(value) => {
            out.push(2);
            varint::put_signed(out, value);
        }
        PointValue::Float(value) => {
            out.push(3);
            out.extend_from_slice(&value.to_le_bytes());
        }
        PointValue::Text(text) => {
            out.push(4);
            put_text(out, text);
        }
        PointValue::Json(text) => {
            out.push(5);
            put_text(out, text);
        }
    }
}

/// `None`: the bytes are no value.
pub(crate) fn read_value<'a>(reader: &mut VarintReader<'a>) -> Option<PointValue<'a>> {
    Some(match reader.byte()? {
        0 => PointValue::Bool(false),
        1 => PointValue::Bool(true),
        2 => PointValue::Int(reader.signed()?),
        3 => PointValue::Float(f64::from_bits(reader.fixed_u64()?)),
        4 => PointValue::Text(read_text(reader)?),
        5 => PointValue::Json(read_text(reader)?),
        _ => return None,
    })
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    varint::put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn read_text<'a>(reader: &mut VarintReader<'a>) -> Option<&'a str> {
    let len = reader.number_up_to(usize::MAX)?;
    std::str::from_utf8(reader.take(len)?).ok()
}
