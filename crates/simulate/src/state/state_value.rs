//! A value of a device, its parts, and what it depends on.

use crate::random::RandomKey;

/// A value, ready to be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StateValue<'a> {
    Integer(i64),
    Number {
        value: f64,
        decimals: u8,
    },
    Boolean(bool),
    Text(&'a str),
    /// Degrees.
    Position {
        longitude: f64,
        latitude: f64,
    },
}

/// The part of a value that a template writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    Whole,
    Longitude,
    Latitude,
    /// Degrees clockwise from north.
    Heading,
    SpeedKmh,
}

impl Component {
    pub(crate) const NAMES: [(&'static str, Self); 4] = [
        ("lon", Self::Longitude),
        ("lat", Self::Latitude),
        ("heading", Self::Heading),
        ("speed", Self::SpeedKmh),
    ];
}

/// What the values of one device depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceState<'a> {
    pub(crate) key: RandomKey,
    /// Messages made so far.
    pub(crate) step: u32,
    /// Since the run started.
    pub(crate) elapsed_ns: u64,
    /// Since 1970.
    pub(crate) wall_ms: u64,
    pub(crate) cells: &'a [f64],
}
