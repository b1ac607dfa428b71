//! Points and rows.

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
    #[inline]
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
