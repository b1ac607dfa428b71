//! What a point is, and rows of them.

use crate::error::Error;

/// A device's number: dense, given by who keeps the devices, never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNo(pub u32);

impl DeviceNo {
    /// For sharing devices out over so many places by a remainder: numbers that go by steps, as those of every eighth device, do not meet in
    /// a few of them, as they do by the number itself.
    #[inline]
    #[must_use]
    pub fn spread(self) -> u32 {
        self.0.wrapping_mul(0x9e37_79b1) >> 16
    }
}

/// The name of a key, as a number of the dictionary that the series keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

/// What a key has at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    /// Checked text of a JSON array or object.
    Json(&'a str),
}

impl Value<'_> {
    /// The number to calculate with: that of a bool is 0 or 1; texts have none.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Value::Bool(value) => Some(f64::from(u8::from(value))),
            Value::Int(value) => Some(value as f64),
            Value::Float(value) => Some(value),
            Value::Text(_) | Value::Json(_) => None,
        }
    }

    /// Its bytes apart from a tag and a length.
    pub(crate) fn text_len(&self) -> usize {
        match self {
            Value::Text(text) | Value::Json(text) => text.len(),
            _ => 0,
        }
    }
}

/// One value of one key; its time is that of its row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point<'a> {
    pub key: KeyId,
    pub value: Value<'a>,
}

/// Points of one time, as a query gives them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<'a> {
    pub ts_ms: i64,
    pub points: &'a [Point<'a>],
}

/// Points that are not in one slice of [`Point`]s.
pub(crate) trait RowPoints: Copy {
    fn len(&self) -> usize;
    fn get(&self, at: usize) -> Point<'_>;
}

impl RowPoints for &[Point<'_>] {
    #[inline]
    fn len(&self) -> usize {
        <[_]>::len(self)
    }

    #[inline]
    fn get(&self, at: usize) -> Point<'_> {
        self[at]
    }
}

#[derive(Debug, Clone, Copy)]
enum Held {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(u32, u32),
    Json(u32, u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldRow {
    pub(crate) device: DeviceNo,
    pub(crate) ts_ms: i64,
    start: u32,
    end: u32,
}

/// Rows of many devices, to be appended together; its memory is used again after [`clear`](Rows::clear).
#[derive(Debug, Clone, Default)]
pub struct Rows {
    rows: Vec<HeldRow>,
    points: Vec<(KeyId, Held)>,
    texts: String,
}

/// Texts that one [`Rows`] can hold.
const MAX_TEXTS: usize = 1 << 30;

impl Rows {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub fn push(
        &mut self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), Error> {
        let start = self.points.len();
        let text_bytes: usize = points.iter().map(|point| point.value.text_len()).sum();
        let texts = self.texts.len() + text_bytes;
        if texts > MAX_TEXTS || start + points.len() > u32::MAX as usize {
            return Err(Error::RowTooLarge {
                found: texts,
                unit: "bytes in its batch",
                max: MAX_TEXTS,
            });
        }
        for point in points {
            let mut hold = |text: &str| {
                let at = self.texts.len() as u32;
                self.texts.push_str(text);
                (at, self.texts.len() as u32)
            };
            let held = match point.value {
                Value::Bool(value) => Held::Bool(value),
                Value::Int(value) => Held::Int(value),
                Value::Float(value) => Held::Float(value),
                Value::Text(text) => {
                    let (at, end) = hold(text);
                    Held::Text(at, end)
                }
                Value::Json(text) => {
                    let (at, end) = hold(text);
                    Held::Json(at, end)
                }
            };
            self.points.push((point.key, held));
        }
        self.rows.push(HeldRow {
            device,
            ts_ms,
            start: start as u32,
            end: self.points.len() as u32,
        });
        Ok(())
    }

    /// Rows in it.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Points of all its rows.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.points.clear();
        self.texts.clear();
    }

    pub(crate) fn rows(&self) -> &[HeldRow] {
        &self.rows
    }

    pub(crate) fn points_of(&self, row: &HeldRow) -> HeldPoints<'_> {
        HeldPoints {
            points: &self.points[row.start as usize..row.end as usize],
            texts: &self.texts,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct HeldPoints<'a> {
    points: &'a [(KeyId, Held)],
    texts: &'a str,
}

impl RowPoints for HeldPoints<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.points.len()
    }

    #[inline]
    fn get(&self, at: usize) -> Point<'_> {
        let (key, held) = self.points[at];
        let text = |at: u32, end: u32| &self.texts[at as usize..end as usize];
        let value = match held {
            Held::Bool(value) => Value::Bool(value),
            Held::Int(value) => Value::Int(value),
            Held::Float(value) => Value::Float(value),
            Held::Text(at, end) => Value::Text(text(at, end)),
            Held::Json(at, end) => Value::Json(text(at, end)),
        };
        Point { key, value }
    }
}
