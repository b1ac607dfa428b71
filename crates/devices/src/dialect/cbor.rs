//! CBOR (RFC 8949) as devices send it: maps of texts to values, read in place; what is nested becomes JSON text.

use bumpalo::Bump;

use super::thingsboard::NOWHERE;
use super::{Ears, Malformed, Raw, RowInfo};
use crate::scan::{MAX_DEPTH, Scanned};

/// Whether a payload is CBOR and no JSON: an array, a map, or a tagged one.
pub(super) fn begins(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| *first >= 0x80)
}

/// One record, or an array of them, as in JSON.
pub(super) fn records<'a>(
    payload: &'a [u8],
    arena: &'a Bump,
    ears: &mut impl Ears<'a>,
) -> Scanned<()> {
    let mut reader = Reader {
        bytes: payload,
        at: 0,
    };
    match reader.peek_major()? {
        Major::Array => {
            let mut left = reader.open(Major::Array)?;
            while reader.has_next(&mut left)? {
                record(&mut reader, arena, ears)?;
            }
        }
        _ => record(&mut reader, arena, ears)?,
    }
    reader.end()
}

fn record<'a>(reader: &mut Reader<'a>, arena: &'a Bump, ears: &mut impl Ears<'a>) -> Scanned<()> {
    let start = reader.at;
    if is_timed(reader, arena)? {
        reader.at = start;
        let mut info = RowInfo::at(None);
        let mut left = reader.open(Major::Map)?;
        while reader.has_next(&mut left)? {
            match reader.text(arena)? {
                "ts" => match reader.value(arena)? {
                    Raw::Int(ts_ms) => info.ts_ms = Some(ts_ms),
                    _ => return reader.wrong("a time in milliseconds since 1970"),
                },
                "values" => values(reader, arena, ears)?,
                _ => reader.skip(MAX_DEPTH, arena)?,
            }
        }
        ears.row(info);
        return Ok(());
    }
    reader.at = start;
    values(reader, arena, ears)?;
    ears.row(RowInfo::at(None));
    Ok(())
}

fn is_timed<'a>(reader: &Reader<'a>, arena: &'a Bump) -> Scanned<bool> {
    let mut look = Reader {
        bytes: reader.bytes,
        at: reader.at,
    };
    let (mut has_ts, mut has_values) = (false, false);
    let mut left = look.open(Major::Map)?;
    while look.has_next(&mut left)? {
        match look.text(arena)? {
            "ts" => has_ts = true,
            "values" => has_values = look.peek_major()? == Major::Map,
            _ => {}
        }
        if has_ts && has_values {
            return Ok(true);
        }
        look.skip(MAX_DEPTH, arena)?;
    }
    Ok(false)
}

fn values<'a>(reader: &mut Reader<'a>, arena: &'a Bump, ears: &mut impl Ears<'a>) -> Scanned<()> {
    let mut left = reader.open(Major::Map)?;
    let mut place = 0;
    while reader.has_next(&mut left)? {
        let slot = match ears.guess(place, &reader.bytes[reader.at..]) {
            Some((length, slot)) => {
                reader.at += length;
                slot
            }
            None => {
                let from = reader.at;
                let name = reader.text(arena)?;
                let place = if matches!(name, "ts" | "values") {
                    NOWHERE
                } else {
                    place
                };
                ears.key(place, &reader.bytes[from..reader.at], name)
            }
        };
        ears.value(slot, reader.value(arena)?);
        place += 1;
    }
    Ok(())
}

/// The JSON of the same meaning. Bytes become Base64, as the RFC proposes.
pub(super) fn to_json<'a>(payload: &'a [u8], arena: &'a Bump) -> Scanned<&'a str> {
    let mut reader = Reader {
        bytes: payload,
        at: 0,
    };
    let mut out = String::new();
    reader.write_json(&mut out, MAX_DEPTH, arena)?;
    reader.end()?;
    Ok(arena.alloc_str(&out))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Major {
    Unsigned,
    Negative,
    Bytes,
    Text,
    Array,
    Map,
    Tag,
    Simple,
}

/// The number in a head; `None`: the length is told by a break at the end.
type Argument = Option<u64>;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

const BREAK: u8 = 0xff;

impl<'a> Reader<'a> {
    fn wrong<T>(&self, expected: &'static str) -> Scanned<T> {
        Err(Malformed {
            offset: self.at,
            expected,
        })
    }

    fn end(&self) -> Scanned<()> {
        match self.at == self.bytes.len() {
            true => Ok(()),
            false => self.wrong("the end"),
        }
    }

    fn peek_major(&mut self) -> Scanned<Major> {
        // A tag says of what comes what is not needed here.
        while self.bytes.get(self.at).is_some_and(|byte| byte >> 5 == 6) {
            self.head()?;
        }
        let Some(byte) = self.bytes.get(self.at) else {
            return self.wrong("more bytes");
        };
        Ok(match byte >> 5 {
            0 => Major::Unsigned,
            1 => Major::Negative,
            2 => Major::Bytes,
            3 => Major::Text,
            4 => Major::Array,
            5 => Major::Map,
            6 => Major::Tag,
            _ => Major::Simple,
        })
    }

    /// Over a head; its argument, with the bits of floating-point numbers.
    fn head(&mut self) -> Scanned<Argument> {
        let Some(first) = self.bytes.get(self.at) else {
            return self.wrong("more bytes");
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
            _ => return self.wrong("a head of CBOR"),
        };
        let Some(bytes) = self.bytes.get(self.at + 1..self.at + 1 + length) else {
            return self.wrong("more bytes");
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

    /// Into an array or a map: how many members it says it has.
    fn open(&mut self, major: Major) -> Scanned<Argument> {
        if self.peek_major()? != major {
            return match major {
                Major::Array => self.wrong("an array"),
                _ => self.wrong("a map of keys and values, or an array of them"),
            };
        }
        self.head()
    }

    fn has_next(&mut self, left: &mut Argument) -> Scanned<bool> {
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

    fn chunk(&mut self, length: u64) -> Scanned<&'a [u8]> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let end = self.at.saturating_add(length);
        let Some(bytes) = self.bytes.get(self.at..end) else {
            return self.wrong("more bytes");
        };
        self.at = end;
        Ok(bytes)
    }

    /// Bytes or text, in one piece or in several.
    fn string(&mut self, major: Major, arena: &'a Bump) -> Scanned<&'a [u8]> {
        if let Some(length) = self.head()? {
            return self.chunk(length);
        }
        let mut all = Vec::new();
        let mut left = None;
        while self.has_next(&mut left)? {
            if self.peek_major()? != major {
                return self.wrong("a piece of the same kind");
            }
            match self.head()? {
                Some(length) => all.extend_from_slice(self.chunk(length)?),
                None => return self.wrong("a piece with a length"),
            }
        }
        Ok(arena.alloc_slice_copy(&all))
    }

    fn text(&mut self, arena: &'a Bump) -> Scanned<&'a str> {
        if self.peek_major()? != Major::Text {
            return self.wrong("a text");
        }
        let bytes = self.string(Major::Text, arena)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            Err(_) => self.wrong("text in UTF-8"),
        }
    }

    fn value(&mut self, arena: &'a Bump) -> Scanned<Raw<'a>> {
        match self.peek_major()? {
            Major::Array | Major::Map | Major::Bytes => {
                let mut out = String::new();
                let is_bytes = self.peek_major()? == Major::Bytes;
                self.write_json(&mut out, MAX_DEPTH, arena)?;
                let json = arena.alloc_str(&out);
                Ok(match is_bytes {
                    true => Raw::Text(&json[1..json.len() - 1]),
                    false => Raw::Json(json),
                })
            }
            Major::Text => self.text(arena).map(Raw::Text),
            _ => self.scalar(),
        }
    }

    fn scalar(&mut self) -> Scanned<Raw<'a>> {
        let major = self.peek_major()?;
        let first = self.bytes[self.at];
        let Some(argument) = self.head()? else {
            return self.wrong("a value");
        };
        match (major, first & 0x1f) {
            (Major::Unsigned, _) => Ok(match i64::try_from(argument) {
                Ok(whole) => Raw::Int(whole),
                Err(_) => Raw::Float(argument as f64),
            }),
            (Major::Negative, _) => Ok(match i64::try_from(argument) {
                Ok(whole) => Raw::Int(-1 - whole),
                Err(_) => Raw::Float(-1.0 - argument as f64),
            }),
            (Major::Simple, 20) => Ok(Raw::Bool(false)),
            (Major::Simple, 21) => Ok(Raw::Bool(true)),
            (Major::Simple, 22 | 23) => Ok(Raw::Null),
            (Major::Simple, 25) => self.float(half(argument as u16)),
            (Major::Simple, 26) => self.float(f32::from_bits(argument as u32).into()),
            (Major::Simple, 27) => self.float(f64::from_bits(argument)),
            _ => self.wrong("a value"),
        }
    }

    fn float(&self, float: f64) -> Scanned<Raw<'a>> {
        match float.is_finite() {
            true => Ok(Raw::Float(float)),
            false => self.wrong("a finite number"),
        }
    }

    fn skip(&mut self, depth: u32, arena: &'a Bump) -> Scanned<()> {
        let Some(depth) = depth.checked_sub(1) else {
            return self.wrong("at most 64 levels");
        };
        let major = self.peek_major()?;
        match major {
            Major::Array | Major::Map => {
                let mut left = self.head()?;
                while self.has_next(&mut left)? {
                    self.skip(depth, arena)?;
                    if major == Major::Map {
                        self.skip(depth, arena)?;
                    }
                }
                Ok(())
            }
            Major::Bytes | Major::Text => self.string(major, arena).map(|_| ()),
            _ => self.scalar().map(|_| ()),
        }
    }

    fn write_json(&mut self, out: &mut String, depth: u32, arena: &'a Bump) -> Scanned<()> {
        let Some(depth) = depth.checked_sub(1) else {
            return self.wrong("at most 64 levels");
        };
        match self.peek_major()? {
            Major::Array => {
                out.push('[');
                let mut left = self.head()?;
                let mut is_first = true;
                while self.has_next(&mut left)? {
                    if !std::mem::take(&mut is_first) {
                        out.push(',');
                    }
                    self.write_json(out, depth, arena)?;
                }
                out.push(']');
            }
            Major::Map => {
                out.push('{');
                let mut left = self.head()?;
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
            Major::Bytes => {
                let bytes = self.string(Major::Bytes, arena)?;
                out.push('"');
                push_base64(out, bytes);
                out.push('"');
            }
            Major::Text => push_string(out, self.text(arena)?),
            _ => match self.scalar()? {
                Raw::Bool(value) => out.push_str(if value { "true" } else { "false" }),
                Raw::Int(whole) => out.push_str(itoa::Buffer::new().format(whole)),
                Raw::Float(float) => out.push_str(zmij::Buffer::new().format_finite(float)),
                Raw::Null | Raw::Text(_) | Raw::Json(_) => out.push_str("null"),
            },
        }
        Ok(())
    }
}

/// A number of 16 bits, RFC 8949 appendix D.
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

/// Without padding, in the alphabet for addresses.
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
    fn it_becomes_the_json_of_the_same_meaning() {
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
    fn what_is_cut_off_or_endless_is_refused() {
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
        // So many members are not there.
        assert!(
            to_json(
                &[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                &Bump::new()
            )
            .is_err()
        );
    }
}
