//! Decodes CBOR (RFC 8949) from devices: maps of texts to values, read in place; nested values become JSON
//! text.

use bumpalo::Bump;

use super::message::{MessageVisitor, NO_KEY_POSITION, RowInfo};
use crate::json_scanner::{MAX_DEPTH, PayloadError, RawValue, ScanResult};

/// Whether a payload is CBOR and not JSON: it begins with an array, a map, or a tag.
pub(super) fn is_cbor(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| *first >= 0x80)
}

/// One record, or an array of them, as in JSON.
pub(super) fn decode_records<'a>(
    payload: &'a [u8],
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    let mut reader = CborReader {
        bytes: payload,
        at: 0,
    };
    match reader.peek_major()? {
        CborMajorType::Array => {
            let mut left = reader.enter_container(CborMajorType::Array)?;
            while reader.has_next(&mut left)? {
                decode_record(&mut reader, arena, visitor)?;
            }
        }
        _ => decode_record(&mut reader, arena, visitor)?,
    }
    reader.expect_end()
}

fn decode_record<'a>(
    reader: &mut CborReader<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    let start = reader.at;
    if is_timed(reader, arena)? {
        reader.at = start;
        let mut info = RowInfo::with_timestamp(None);
        let mut left = reader.enter_container(CborMajorType::Map)?;
        while reader.has_next(&mut left)? {
            match reader.text(arena)? {
                "ts" => match reader.value(arena)? {
                    RawValue::Int(ts_ms) => info.ts_ms = Some(ts_ms),
                    _ => return reader.error("a time in milliseconds since 1970"),
                },
                "values" => decode_values(reader, arena, visitor)?,
                _ => reader.skip(MAX_DEPTH, arena)?,
            }
        }
        visitor.finish_row(info);
        return Ok(());
    }
    reader.at = start;
    decode_values(reader, arena, visitor)?;
    visitor.finish_row(RowInfo::with_timestamp(None));
    Ok(())
}

fn is_timed<'a>(reader: &CborReader<'a>, arena: &'a Bump) -> ScanResult<bool> {
    let mut look = CborReader {
        bytes: reader.bytes,
        at: reader.at,
    };
    let (mut has_ts, mut has_values) = (false, false);
    let mut left = look.enter_container(CborMajorType::Map)?;
    while look.has_next(&mut left)? {
        match look.text(arena)? {
            "ts" => has_ts = true,
            "values" => has_values = look.peek_major()? == CborMajorType::Map,
            _ => {}
        }
        if has_ts && has_values {
            return Ok(true);
        }
        look.skip(MAX_DEPTH, arena)?;
    }
    Ok(false)
}

fn decode_values<'a>(
    reader: &mut CborReader<'a>,
    arena: &'a Bump,
    visitor: &mut impl MessageVisitor<'a>,
) -> ScanResult<()> {
    let mut left = reader.enter_container(CborMajorType::Map)?;
    let mut place = 0;
    while reader.has_next(&mut left)? {
        let slot = match visitor.predict_key(place, &reader.bytes[reader.at..]) {
            Some((length, slot)) => {
                reader.at += length;
                slot
            }
            None => {
                let from = reader.at;
                let name = reader.text(arena)?;
                let place = if matches!(name, "ts" | "values") {
                    NO_KEY_POSITION
                } else {
                    place
                };
                visitor.resolve_key(place, &reader.bytes[from..reader.at], name)
            }
        };
        visitor.visit_value(slot, reader.value(arena)?);
        place += 1;
    }
    Ok(())
}

/// The equivalent JSON. Byte strings become Base64, as the RFC suggests.
pub(super) fn to_json<'a>(payload: &'a [u8], arena: &'a Bump) -> ScanResult<&'a str> {
    let mut reader = CborReader {
        bytes: payload,
        at: 0,
    };
    let mut out = String::new();
    reader.write_json(&mut out, MAX_DEPTH, arena)?;
    reader.expect_end()?;
    Ok(arena.alloc_str(&out))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CborMajorType {
    Unsigned,
    Negative,
    Bytes,
    Text,
    Array,
    Map,
    Tag,
    Simple,
}

/// The argument of a head; `None`: indefinite length, ended by a break.
type HeadArgument = Option<u64>;

struct CborReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

const BREAK: u8 = 0xff;

impl<'a> CborReader<'a> {
    fn error<T>(&self, expected: &'static str) -> ScanResult<T> {
        Err(PayloadError {
            offset: self.at,
            expected,
        })
    }

    fn expect_end(&self) -> ScanResult<()> {
        match self.at == self.bytes.len() {
            true => Ok(()),
            false => self.error("the end"),
        }
    }

    fn peek_major(&mut self) -> ScanResult<CborMajorType> {
        // Tags carry no information that is needed here.
        while self.bytes.get(self.at).is_some_and(|byte| byte >> 5 == 6) {
            self.read_head()?;
        }
        let Some(byte) = self.bytes.get(self.at) else {
            return self.error("more bytes");
        };
        Ok(match byte >> 5 {
            0 => CborMajorType::Unsigned,
            1 => CborMajorType::Negative,
            2 => CborMajorType::Bytes,
            3 => CborMajorType::Text,
            4 => CborMajorType::Array,
            5 => CborMajorType::Map,
            6 => CborMajorType::Tag,
            _ => CborMajorType::Simple,
        })
    }

    /// Reads a head; returns its argument, which contains the bits of floating-point numbers.
    fn read_head(&mut self) -> ScanResult<HeadArgument> {
        let Some(first) = self.bytes.get(self.at) else {
            return self.error("more bytes");
        };
        let short = first & 0x1f;
        let length = match short {
            0..=23 => 0,
            24 => 1,
            25 => 2,
            26 => 4,
            27 => 8,
            31 => {
                self.at += 1;
                return Ok(None);
            }
            _ => return self.error("a CBOR head"),
        };
        let Some(bytes) = self.bytes.get(self.at + 1..self.at + 1 + length) else {
            return self.error("more bytes");
        };
        let argument = match length {
            0 => u64::from(short),
            _ => bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        };
        self.at += 1 + length;
        Ok(Some(argument))
    }

    /// Enters an array or a map; returns its number of members.
    fn enter_container(&mut self, major: CborMajorType) -> ScanResult<HeadArgument> {
        if self.peek_major()? != major {
            return match major {
                CborMajorType::Array => self.error("an array"),
                _ => self.error("a map of keys and values, or an array of them"),
            };
        }
        self.read_head()
    }

    fn has_next(&mut self, left: &mut HeadArgument) -> ScanResult<bool> {
        match left {
            Some(0) => Ok(false),
            Some(count) => {
                *count -= 1;
                Ok(true)
            }
            None if self.bytes.get(self.at) == Some(&BREAK) => {
                self.at += 1;
                Ok(false)
            }
            None => Ok(true),
        }
    }

    fn chunk(&mut self, length: u64) -> ScanResult<&'a [u8]> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let end = self.at.saturating_add(length);
        let Some(bytes) = self.bytes.get(self.at..end) else {
            return self.error("more bytes");
        };
        self.at = end;
        Ok(bytes)
    }

    /// Byte or text string, in one chunk or in several.
    fn string(&mut self, major: CborMajorType, arena: &'a Bump) -> ScanResult<&'a [u8]> {
        if let Some(length) = self.read_head()? {
            return self.chunk(length);
        }
        let mut all = Vec::new();
        let mut left = None;
        while self.has_next(&mut left)? {
            if self.peek_major()? != major {
                return self.error("a piece of the same kind");
            }
            match self.read_head()? {
                Some(length) => all.extend_from_slice(self.chunk(length)?),
                None => return self.error("a piece with a length"),
            }
        }
        Ok(arena.alloc_slice_copy(&all))
    }

    fn text(&mut self, arena: &'a Bump) -> ScanResult<&'a str> {
        if self.peek_major()? != CborMajorType::Text {
            return self.error("a text");
        }
        let bytes = self.string(CborMajorType::Text, arena)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(_) => self.error("text in UTF-8"),
        }
    }

    fn value(&mut self, arena: &'a Bump) -> ScanResult<RawValue<'a>> {
        match self.peek_major()? {
            CborMajorType::Array | CborMajorType::Map | CborMajorType::Bytes => {
                let mut out = String::new();
                let is_bytes = self.peek_major()? == CborMajorType::Bytes;
                self.write_json(&mut out, MAX_DEPTH, arena)?;
                let json = arena.alloc_str(&out);
                Ok(match is_bytes {
                    true => RawValue::Text(&json[1..json.len() - 1]),
                    false => RawValue::Json(json),
                })
            }
            CborMajorType::Text => self.text(arena).map(RawValue::Text),
            _ => self.scalar(),
        }
    }

    fn scalar(&mut self) -> ScanResult<RawValue<'a>> {
        let major = self.peek_major()?;
        let first = self.bytes[self.at];
        let Some(argument) = self.read_head()? else {
            return self.error("a value");
        };
        match (major, first & 0x1f) {
            (CborMajorType::Unsigned, _) => Ok(match i64::try_from(argument) {
                Ok(whole) => RawValue::Int(whole),
                Err(_) => RawValue::Float(argument as f64),
            }),
            (CborMajorType::Negative, _) => Ok(match i64::try_from(argument) {
                Ok(whole) => RawValue::Int(-1 - whole),
                Err(_) => RawValue::Float(-1.0 - argument as f64),
            }),
            (CborMajorType::Simple, 20) => Ok(RawValue::Bool(false)),
            (CborMajorType::Simple, 21) => Ok(RawValue::Bool(true)),
            (CborMajorType::Simple, 22 | 23) => Ok(RawValue::Null),
            (CborMajorType::Simple, 25) => self.float(half(argument as u16)),
            (CborMajorType::Simple, 26) => self.float(f32::from_bits(argument as u32).into()),
            (CborMajorType::Simple, 27) => self.float(f64::from_bits(argument)),
            _ => self.error("a value"),
        }
    }

    fn float(&self, float: f64) -> ScanResult<RawValue<'a>> {
        match float.is_finite() {
            true => Ok(RawValue::Float(float)),
            false => self.error("a finite number"),
        }
    }

    fn skip(&mut self, depth: u32, arena: &'a Bump) -> ScanResult<()> {
        let Some(depth) = depth.checked_sub(1) else {
            return self.error("at most 64 levels");
        };
        let major = self.peek_major()?;
        match major {
            CborMajorType::Array | CborMajorType::Map => {
                let mut left = self.read_head()?;
                while self.has_next(&mut left)? {
                    self.skip(depth, arena)?;
                    if major == CborMajorType::Map {
                        self.skip(depth, arena)?;
                    }
                }
                Ok(())
            }
            CborMajorType::Bytes | CborMajorType::Text => self.string(major, arena).map(|_| ()),
            _ => self.scalar().map(|_| ()),
        }
    }

    fn write_json(&mut self, out: &mut String, depth: u32, arena: &'a Bump) -> ScanResult<()> {
        let Some(depth) = depth.checked_sub(1) else {
            return self.error("at most 64 levels");
        };
        match self.peek_major()? {
            CborMajorType::Array => {
                out.push('[');
                let mut left = self.read_head()?;
                let mut is_first = true;
                while self.has_next(&mut left)? {
                    if !std::mem::take(&mut is_first) {
                        out.push(',');
                    }
                    self.write_json(out, depth, arena)?;
                }
                out.push(']');
            }
            CborMajorType::Map => {
                out.push('{');
                let mut left = self.read_head()?;
                let mut is_first = true;
                while self.has_next(&mut left)? {
                    if !std::mem::take(&mut is_first) {
                        out.push(',');
                    }
                    push_string(out, self.text(arena)?);
                    out.push(':');
                    self.write_json(out, depth, arena)?;
                }
                out.push('}');
            }
            CborMajorType::Bytes => {
                let bytes = self.string(CborMajorType::Bytes, arena)?;
                out.push('"');
                push_base64(out, bytes);
                out.push('"');
            }
            CborMajorType::Text => push_string(out, self.text(arena)?),
            _ => match self.scalar()? {
                RawValue::Bool(value) => out.push_str(if value { "true" } else { "false" }),
                RawValue::Int(whole) => out.push_str(itoa::Buffer::new().format(whole)),
                RawValue::Float(float) => out.push_str(zmij::Buffer::new().format_finite(float)),
                RawValue::Null | RawValue::Text(_) | RawValue::Json(_) => out.push_str("null"),
            },
        }
        Ok(())
    }
}

/// A half-precision number, RFC 8949 appendix D.
fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let value = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (mantissa + 1024.0) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { value } else { -value }
}

fn push_string(out: &mut String, text: &str) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// Without padding, in the URL-safe alphabet.
fn push_base64(out: &mut String, bytes: &[u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for chunk in bytes.chunks(3) {
        let bits = chunk
            .iter()
            .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            let index = bits >> (18 - 6 * digit) & 0x3f;
            out.push(char::from(ALPHABET[index as usize]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cbor_becomes_equivalent_json() {
        // Examples of RFC 8949, appendix A.
        for (bytes, expected) in [
            (&[0x83, 0x01, 0x02, 0x03][..], "[1,2,3]"),
            (&[0xa1, 0x61, b'a', 0xf9, 0x3e, 0x00], r#"{"a":1.5}"#),
            (&[0xbf, 0x61, b'a', 0x20, 0xff], r#"{"a":-1}"#),
            (
                &[0x81, 0xfb, 0x3f, 0xf1, 0x99, 0x99, 0x99, 0x99, 0x99, 0x9a],
                "[1.1]",
            ),
            (&[0x81, 0x43, 1, 2, 3], r#"["AQID"]"#),
            (&[0x81, 0x42, 1, 2], r#"["AQI"]"#),
            (
                &[0x81, 0x7f, 0x62, b'a', b'b', 0x61, b'c', 0xff],
                r#"["abc"]"#,
            ),
            (&[0x83, 0xf4, 0xf5, 0xf6], "[false,true,null]"),
            (&[0x81, 0xc1, 0x1a, 0x51, 0x4b, 0x67, 0xb0], "[1363896240]"),
            (&[0x81, 0x39, 0x03, 0xe7], "[-1000]"),
        ] {
            let arena = Bump::new();
            assert_eq!(to_json(bytes, &arena), Ok(expected), "{bytes:x?}");
        }
    }

    #[test]
    fn truncated_and_endless_input_is_rejected() {
        for bytes in [
            &[0x83, 0x01][..],
            &[0x9f, 0x01],
            &[0xa1, 0x01, 0x02],
            &[0x81, 0x1c],
            &[0x81, 0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x81, 0xf9, 0x7c, 0x00],
            &[0x80, 0x00],
        ] {
            assert!(to_json(bytes, &Bump::new()).is_err(), "{bytes:x?}");
        }
        assert!(to_json(&[0x81; 200], &Bump::new()).is_err());
        // The stated number of members exceeds the payload.
        assert!(
            to_json(
                &[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                &Bump::new()
            )
            .is_err()
        );
    }
}
