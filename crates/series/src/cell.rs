//! Encoding of one value in the write-ahead log and in memory: a tag, then as few bytes as possible.
//!
//! | tag | then |
//! |---|---|
//! | 0, 8 | false, true |
//! | 16 + n | integer, n + 1 bytes |
//! | 31 | float, 8 bytes |
//! | 32 | text: varint of its length, bytes |
//! | 33 | repeated text: varint of its number among the words of its block or memtable |
//! | 40 | JSON, likewise |
//! | 48 + 8 s + n | decimal with s places: integer of n + 1 bytes |

use disk::varint::{self, VarintReader};

use crate::decimal;
use crate::encoding_hint::EncodingHint;
use crate::point::PointValue;
use crate::text_dictionary::TextDictionary;

const FALSE: u8 = 0;
const TRUE: u8 = 1 << 3;
const INT: u8 = 2 << 3;
const FLOAT: u8 = (3 << 3) | 7;
const TEXT: u8 = 4 << 3;
const WORD: u8 = TEXT | 1;
const JSON: u8 = 5 << 3;
const DECIMAL: u8 = 6 << 3;

/// Maximum bytes of a value, apart from a text itself; eight bytes are always written.
pub(crate) const MAX_CELL_BYTES: usize = 12;

#[inline]
fn write_number(out: &mut [u8], at: usize, tag: u8, number: i64) -> usize {
    let bits = 65 - (number ^ (number >> 63)).leading_zeros();
    let len = bits.div_ceil(8).min(8) as usize;
    out[at] = tag + (len - 1) as u8;
    out[at + 1..at + 9].copy_from_slice(&number.to_le_bytes());
    at + 1 + len
}

fn write_text(out: &mut [u8], at: usize, tag: u8, text: &str) -> usize {
    out[at] = tag;
    let at = varint::write(out, at + 1, text.len() as u64);
    out[at..at + text.len()].copy_from_slice(text.as_bytes());
    at + text.len()
}

/// Writes a value at `at`, where [`MAX_CELL_BYTES`] and the length of its text have room; returns where it
/// ends.
#[inline]
pub(crate) fn write(
    out: &mut [u8],
    at: usize,
    value: PointValue<'_>,
    hint: &mut EncodingHint,
    words: &mut TextDictionary,
) -> usize {
    match value {
        PointValue::Float(value) => match hint.find_decimal(value) {
            Some((scale, number)) => write_number(out, at, DECIMAL + (scale << 3), number),
            None => {
                out[at] = FLOAT;
                out[at + 1..at + 9].copy_from_slice(&value.to_le_bytes());
                at + 9
            }
        },
        PointValue::Int(number) => write_number(out, at, INT, number),
        PointValue::Bool(value) => {
            out[at] = if value { TRUE } else { FALSE };
            at + 1
        }
        PointValue::Text(text) => match words.number_for_text(text, hint) {
            Some(number) => {
                out[at] = WORD;
                varint::write(out, at + 1, u64::from(number))
            }
            None => write_text(out, at, TEXT, text),
        },
        PointValue::Json(text) => write_text(out, at, JSON, text),
    }
}

/// A decoded value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    Decimal { scale: u8, number: i64 },
    Plain(PointValue<'a>),
}

impl<'a> Cell<'a> {
    pub(crate) fn value(self) -> PointValue<'a> {
        match self {
            Cell::Decimal { scale, number } => PointValue::Float(decimal::unscale(number, scale)),
            Cell::Plain(value) => value,
        }
    }
}

/// A value as encoded, with texts not validated.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RawCell<'a> {
    Decimal { scale: u8, number: i64 },
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(&'a [u8]),
    Word(u32),
    Json(&'a [u8]),
}

#[inline]
fn read_number(reader: &mut VarintReader<'_>, tag: u8) -> Option<i64> {
    let len = usize::from(tag & 7) + 1;
    let word = match reader.bytes.get(reader.at..reader.at + 8) {
        Some(bytes) => u64::from_le_bytes(bytes.try_into().expect("8 were taken")),
        None => {
            let mut bytes = [0; 8];
            bytes[..len].copy_from_slice(reader.bytes.get(reader.at..reader.at + len)?);
            u64::from_le_bytes(bytes)
        }
    };
    reader.at += len;
    let unused = 64 - 8 * len as u32;
    Some(((word << unused) as i64) >> unused)
}

#[inline]
fn read_text<'a>(reader: &mut VarintReader<'a>) -> Option<&'a [u8]> {
    let len = reader.number_up_to(usize::MAX)?;
    reader.take(len)
}

/// Reads what [`write()`] wrote.
#[inline]
pub(crate) fn read_raw<'a>(reader: &mut VarintReader<'a>) -> Option<RawCell<'a>> {
    let tag = reader.byte()?;
    if (DECIMAL..DECIMAL + (16 << 3)).contains(&tag) {
        return Some(RawCell::Decimal {
            scale: (tag - DECIMAL) >> 3,
            number: read_number(reader, tag)?,
        });
    }
    Some(match tag {
        tag if tag & !7 == INT => RawCell::Int(read_number(reader, tag)?),
        FLOAT => RawCell::Float(f64::from_bits(reader.fixed_u64()?)),
        TEXT => RawCell::Text(read_text(reader)?),
        WORD => RawCell::Word(u32::try_from(reader.number()?).ok()?),
        FALSE => RawCell::Bool(false),
        TRUE => RawCell::Bool(true),
        JSON => RawCell::Json(read_text(reader)?),
        _ => return None,
    })
}

/// Like [`read_raw`], and validates texts; `word` resolves words.
pub(crate) fn read<'a>(
    reader: &mut VarintReader<'a>,
    word: impl Fn(u32) -> Option<&'a str>,
) -> Option<Cell<'a>> {
    let text = |bytes| std::str::from_utf8(bytes).ok();
    Some(match read_raw(reader)? {
        RawCell::Decimal { scale, number } => Cell::Decimal { scale, number },
        RawCell::Int(value) => Cell::Plain(PointValue::Int(value)),
        RawCell::Float(value) => Cell::Plain(PointValue::Float(value)),
        RawCell::Bool(value) => Cell::Plain(PointValue::Bool(value)),
        RawCell::Text(bytes) => Cell::Plain(PointValue::Text(text(bytes)?)),
        RawCell::Word(number) => Cell::Plain(PointValue::Text(word(number)?)),
        RawCell::Json(bytes) => Cell::Plain(PointValue::Json(text(bytes)?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same(left: PointValue<'_>, right: PointValue<'_>) -> bool {
        match (left, right) {
            (PointValue::Float(left), PointValue::Float(right)) => {
                left.to_bits() == right.to_bits()
            }
            (left, right) => left == right,
        }
    }

    fn round_trip(values: &[PointValue<'_>]) {
        let (mut hint, mut words) = (EncodingHint::default(), TextDictionary::default());
        let mut out = vec![0; 1 << 16];
        let mut at = 0;
        for &value in values {
            at = write(&mut out, at, value, &mut hint, &mut words);
        }
        // With and without padding behind it: a chunk may have either.
        for bytes in [&out[..], &out[..at]] {
            let mut reader = VarintReader::new(bytes);
            for &value in values {
                let word = |number| Some(words.get(number));
                let found = read(&mut reader, word).unwrap().value();
                assert!(same(found, value), "{found:?} {value:?}");
            }
            assert_eq!(reader.at, at);
        }
    }

    #[test]
    fn extremes_round_trip() {
        let ints = [0, -1, 127, 128, -128, -129, i64::MIN, i64::MAX].map(PointValue::Int);
        let floats = [
            0.0,
            -0.0,
            f64::NAN,
            f64::INFINITY,
            -f64::INFINITY,
            f64::MIN_POSITIVE,
            23.6,
            1e15,
            1e300,
        ];
        round_trip(&ints);
        round_trip(&floats.map(PointValue::Float));
        round_trip(&[
            PointValue::Bool(true),
            PointValue::Text(""),
            PointValue::Json("[1]"),
            PointValue::Bool(false),
            PointValue::Text("Grüße"),
            PointValue::Text("Grüße"),
        ]);
    }

    proptest! {
        #[test]
        fn values_round_trip(bits in proptest::collection::vec(any::<u64>(), 0..200), text in ".*") {
            let values: Vec<_> = bits.iter().map(|&bits| match bits % 5 {
                0 => PointValue::Int(bits as i64 >> (bits % 61)),
                1 => PointValue::Float(f64::from_bits(bits)),
                2 => PointValue::Float((bits % 100_000) as f64 / 100.0),
                3 => PointValue::Bool(bits & 8 != 0),
                _ => PointValue::Text(&text),
            }).collect();
            round_trip(&values);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut reader = VarintReader::new(&bytes);
            while read(&mut reader, |_| None).is_some() {}
        }
    }
}
