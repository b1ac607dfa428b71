//! Points, rows and batches of rows.

use crate::error::SeriesError;

/// Maximum number of points in a row.
pub const MAX_POINTS: usize = 1024;
/// Maximum encoded size of a row.
pub const MAX_ROW_BYTES: usize = 128 << 10;

/// A device number: dense, assigned by the device registry, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNo(pub u32);

impl DeviceNo {
    /// Distributes devices over a number of slots by remainder. Numbers with a constant step, such as every
    /// eighth device, do not collide in a few slots, as they would without this.
    #[inline]
    #[must_use]
    pub fn spread(self) -> u32 {
        self.0.wrapping_mul(0x9e37_79b1) >> 16
    }
}

/// The name of a key, as a number of the series' dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

/// The value of a key at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PointValue<'a> {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    /// Validated text of a JSON array or object.
    Json(&'a str),
}

impl PointValue<'_> {
    /// The numeric value: a bool is 0 or 1; texts have none.
    pub fn number(&self) -> Option<f64> {
        match *self {
            PointValue::Bool(value) => Some(f64::from(u8::from(value))),
            PointValue::Int(value) => Some(value as f64),
            PointValue::Float(value) => Some(value),
            PointValue::Text(_) | PointValue::Json(_) => None,
        }
    }

    /// The encoded size without tag and length.
    pub(crate) fn text_len(&self) -> usize {
        match self {
            PointValue::Text(text) | PointValue::Json(text) => text.len(),
            _ => 0,
        }
    }
}

/// A [`PointValue`] with its own memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum OwnedValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
    Json(Box<str>),
}

impl OwnedValue {
    pub(crate) fn new(value: PointValue<'_>) -> Self {
        match value {
            PointValue::Bool(value) => OwnedValue::Bool(value),
            PointValue::Int(value) => OwnedValue::Int(value),
            PointValue::Float(value) => OwnedValue::Float(value),
            PointValue::Text(text) => OwnedValue::Text(text.into()),
            PointValue::Json(text) => OwnedValue::Json(text.into()),
        }
    }

    pub(crate) fn value(&self) -> PointValue<'_> {
        match self {
            OwnedValue::Bool(value) => PointValue::Bool(*value),
            OwnedValue::Int(value) => PointValue::Int(*value),
            OwnedValue::Float(value) => PointValue::Float(*value),
            OwnedValue::Text(text) => PointValue::Text(text),
            OwnedValue::Json(text) => PointValue::Json(text),
        }
    }
}

/// The value of one key; its time is that of its row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point<'a> {
    pub key: KeyId,
    pub value: PointValue<'a>,
}

/// Points of one time, as a query returns them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeriesRow<'a> {
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
enum BufferedValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(u32, u32),
    Json(u32, u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BufferedRow {
    pub(crate) device: DeviceNo,
    pub(crate) ts_ms: i64,
    start: u32,
    end: u32,
}

/// Rows of many devices, to be appended together; `clear` keeps its memory for reuse.
#[derive(Debug, Clone, Default)]
pub struct RowBatch {
    rows: Vec<BufferedRow>,
    points: Vec<(KeyId, BufferedValue)>,
    texts: String,
}

/// Maximum bytes of texts in one [`RowBatch`].
const MAX_TEXTS: usize = 1 << 30;

impl RowBatch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub fn push(
        &mut self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), SeriesError> {
        let start = self.points.len();
        let text_bytes: usize = points.iter().map(|point| point.value.text_len()).sum();
        let texts = self.texts.len() + text_bytes;
        if texts > MAX_TEXTS || start + points.len() > u32::MAX as usize {
            return Err(SeriesError::RowTooLarge {
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
                PointValue::Bool(value) => BufferedValue::Bool(value),
                PointValue::Int(value) => BufferedValue::Int(value),
                PointValue::Float(value) => BufferedValue::Float(value),
                PointValue::Text(text) => {
                    let (at, end) = hold(text);
                    BufferedValue::Text(at, end)
                }
                PointValue::Json(text) => {
                    let (at, end) = hold(text);
                    BufferedValue::Json(at, end)
                }
            };
            self.points.push((point.key, held));
        }
        self.rows.push(BufferedRow {
            device,
            ts_ms,
            start: start as u32,
            end: self.points.len() as u32,
        });
        Ok(())
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of points of all rows.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    pub fn clear(&mut self) {
        self.rows.clear();
        self.points.clear();
        self.texts.clear();
    }

    pub(crate) fn rows(&self) -> &[BufferedRow] {
        &self.rows
    }

    pub(crate) fn points_of(&self, row: &BufferedRow) -> BufferedPoints<'_> {
        BufferedPoints {
            points: &self.points[row.start as usize..row.end as usize],
            texts: &self.texts,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct BufferedPoints<'a> {
    points: &'a [(KeyId, BufferedValue)],
    texts: &'a str,
}

impl RowPoints for BufferedPoints<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.points.len()
    }

    #[inline]
    fn get(&self, at: usize) -> Point<'_> {
        let (key, held) = self.points[at];
        let text = |at: u32, end: u32| &self.texts[at as usize..end as usize];
        let value = match held {
            BufferedValue::Bool(value) => PointValue::Bool(value),
            BufferedValue::Int(value) => PointValue::Int(value),
            BufferedValue::Float(value) => PointValue::Float(value),
            BufferedValue::Text(at, end) => PointValue::Text(text(at, end)),
            BufferedValue::Json(at, end) => PointValue::Json(text(at, end)),
        };
        Point { key, value }
    }
}
