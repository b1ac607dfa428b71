//! A row: an ordered map of values that a rule passes to a sink, packed into bytes.
//!
//! Packing only copies, so a shard can do it; reading borrows from the bytes. The memory queue, the disk queue and dead
//! letters contain the same bytes. A value is a tag, followed by nothing (null, false, true) or 8 bytes little-endian
//! (integer, float). Other tags are followed by a length of 4 bytes and the bytes. A map is a sequence of key length (2
//! bytes), key, value. An array is a sequence of values. A row is a map without tag and length. The origin of the row
//! may follow the last field: 2 bytes that are not a valid key length, and a text. Readers of fields stop there.

mod json;
mod writer;

pub use writer::{ItemWriter, SinkRowWriter};

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const FLOAT: u8 = 4;
const TEXT: u8 = 5;
const BYTES: u8 = 6;
const JSON: u8 = 7;
const ARRAY: u8 = 8;
const MAP: u8 = 9;

/// Maximum nesting depth of arrays and maps.
pub(crate) const MAX_DEPTH: usize = 64;

/// Marker in place of a key length: the rest is the origin.
const ORIGIN: u16 = u16::MAX;
/// Ensures that an origin is shorter than a key whose length would be [`ORIGIN`].
const MAX_ORIGIN_BYTES: usize = 1024;

/// A packed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkRow<'a>(&'a [u8]);

/// A value in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SinkValue<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    /// Bytes that are not UTF-8.
    Bytes(&'a [u8]),
    /// The text of a JSON array or object.
    Json(&'a str),
    Array(ArrayItems<'a>),
    Map(SinkRow<'a>),
}

/// The values of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayItems<'a>(&'a [u8]);

impl<'a> SinkRow<'a> {
    /// Wraps bytes written by a [`SinkRowWriter`]. Other bytes are safe: reading ends where they are invalid.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The origin that [`SinkRowWriter::origin`] appended.
    pub fn origin(self) -> Option<&'a str> {
        let marked = self
            .bytes_after_fields()
            .strip_prefix(&ORIGIN.to_le_bytes())?;
        std::str::from_utf8(marked).ok()
    }

    fn bytes_after_fields(self) -> &'a [u8] {
        let mut rest = self.0;
        while let Some((_, behind)) = take_key(rest)
            && let Some((_, _, behind)) = take(behind)
        {
            rest = behind;
        }
        rest
    }

    /// The bytes without the origin.
    fn without_origin(self) -> &'a [u8] {
        &self.0[..self.0.len() - self.bytes_after_fields().len()]
    }

    /// The fields, in order.
    pub fn fields(self) -> RowFields<'a> {
        RowFields(self.0)
    }

    /// The first field with this name.
    pub fn get(self, name: &str) -> Option<SinkValue<'a>> {
        let mut rest = self.0;
        loop {
            let (key, behind) = take_key(rest)?;
            let (tag, body, behind) = take(behind)?;
            if key == name.as_bytes() {
                return Some(value_of(tag, body));
            }
            rest = behind;
        }
    }
}

/// The fields of a row.
#[derive(Debug, Clone, Copy)]
pub struct RowFields<'a>(&'a [u8]);

impl<'a> Iterator for RowFields<'a> {
    type Item = (&'a str, SinkValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, behind) = take_key(self.0)?;
        let (tag, body, behind) = take(behind)?;
        self.0 = behind;
        Some((std::str::from_utf8(key).ok()?, value_of(tag, body)))
    }
}

impl<'a> ArrayItems<'a> {
    /// The item at an index, counted from 1 at the beginning or from -1 at the end.
    pub fn nth(self, index: i64) -> Option<SinkValue<'a>> {
        let mut this = self;
        match index {
            1.. => this.by_ref().nth(usize::try_from(index - 1).ok()?),
            0 => None,
            _ => {
                let count = i64::try_from(self.count()).ok()?;
                match count + index {
                    at @ 0.. => this.by_ref().nth(usize::try_from(at).ok()?),
                    _ => None,
                }
            }
        }
    }
}

impl<'a> Iterator for ArrayItems<'a> {
    type Item = SinkValue<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (tag, body, behind) = take(self.0)?;
        self.0 = behind;
        Some(value_of(tag, body))
    }
}

fn take_key(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
}

/// Splits off the first value: its tag, its body, and the remaining bytes.
fn take(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (body, rest) = match tag {
        NULL | FALSE | TRUE => rest.split_at(0),
        INT | FLOAT => rest.split_at_checked(8)?,
        _ => {
            let (length, rest) = rest.split_first_chunk()?;
            rest.split_at_checked(u32::from_le_bytes(*length) as usize)?
        }
    };
    Some((tag, body, rest))
}

fn value_of(tag: u8, body: &[u8]) -> SinkValue<'_> {
    let number = || body.try_into().unwrap_or_default();
    match tag {
        FALSE => SinkValue::Bool(false),
        TRUE => SinkValue::Bool(true),
        INT => SinkValue::Int(i64::from_le_bytes(number())),
        FLOAT => SinkValue::Float(f64::from_le_bytes(number())),
        TEXT => match std::str::from_utf8(body) {
            Ok(text) => SinkValue::Text(text),
            Err(_) => SinkValue::Bytes(body),
        },
        BYTES => SinkValue::Bytes(body),
        JSON => std::str::from_utf8(body).map_or(SinkValue::Bytes(body), SinkValue::Json),
        ARRAY => SinkValue::Array(ArrayItems(body)),
        MAP => SinkValue::Map(SinkRow(body)),
        _ => SinkValue::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        let mut row = SinkRowWriter::new(&mut bytes);
        row.int("n", -5);
        row.text("t", "x");
        row.map("m", |m| {
            m.float("f", 1.5);
            m.array("a", |a| {
                a.int(1);
                a.text("two");
                a.null();
            });
        });
        row.bool("b", true);
        let row = SinkRow::from_bytes(&bytes);
        assert_eq!(row.get("n"), Some(SinkValue::Int(-5)));
        assert_eq!(row.get("b"), Some(SinkValue::Bool(true)));
        assert_eq!(row.get("x"), None);
        let Some(SinkValue::Map(map)) = row.get("m") else {
            panic!("a map was written")
        };
        let Some(SinkValue::Array(items)) = map.get("a") else {
            panic!("an array was written")
        };
        assert_eq!(items.nth(2), Some(SinkValue::Text("two")));
        assert_eq!(items.nth(-1), Some(SinkValue::Null));
        assert_eq!(
            (items.nth(0), items.nth(4), items.nth(-4)),
            (None, None, None)
        );
        let names: Vec<_> = row.fields().map(|(name, _)| name).collect();
        assert_eq!(names, ["n", "t", "m", "b"]);
    }

    #[test]
    fn where_a_row_comes_from_is_no_field() {
        let mut bytes = Vec::new();
        let mut row = SinkRowWriter::new(&mut bytes);
        row.int("n", 1);
        assert_eq!(SinkRow::from_bytes(&bytes).origin(), None);
        SinkRowWriter::new(&mut bytes).origin("0 rule");
        let row = SinkRow::from_bytes(&bytes);
        assert_eq!(row.origin(), Some("0 rule"));
        assert_eq!((row.fields().count(), row.get("x")), (1, None));
        assert_eq!(row.to_json(), serde_json::json!({"n": 1}));
        let mut copy = Vec::new();
        let mut written = SinkRowWriter::new(&mut copy);
        written.fields_of(row);
        written.int("m", 2);
        let copy = SinkRow::from_bytes(&copy);
        assert_eq!(copy.to_json(), serde_json::json!({"n": 1, "m": 2}));
    }

    #[test]
    fn bytes_that_are_no_row_are_no_danger() {
        let mut bytes = Vec::new();
        let mut row = SinkRowWriter::new(&mut bytes);
        row.text("t", "some text");
        row.map("m", |m| m.int("i", 1));
        for end in 0..bytes.len() {
            let row = SinkRow::from_bytes(&bytes[..end]);
            let _ = (row.get("m"), row.fields().count(), row.to_json());
        }
        for at in 0..bytes.len() {
            for other in [0, 5, 9, 200, 255] {
                let mut bytes = bytes.clone();
                bytes[at] = other;
                let row = SinkRow::from_bytes(&bytes);
                let _ = (row.get("m"), row.fields().count(), row.to_json());
            }
        }
    }
}
