//! What a point is.

/// A device's number: dense, given by who keeps the devices, never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNo(pub u32);

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

/// One value of one key; its time is that of its row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point<'a> {
    pub key: KeyId,
    pub value: Value<'a>,
}
