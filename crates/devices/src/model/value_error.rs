//! Why a value does not fit its type. Created while messages are processed, hence `Copy`, and formatted only
//! when read.

use std::fmt;

use rules::value::Value;

/// Why a value is not stored as telemetry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueError<'m> {
    /// The value is of another kind than expected.
    Kind {
        expected: &'static str,
        found: &'static str,
    },
    NotInteger,
    NotFinite,
    Below {
        min: f64,
    },
    Above {
        max: f64,
    },
    TooLong {
        max: u32,
        found: usize,
    },
    /// Text that is neither of the two texts of a boolean.
    NotBoolean {
        yes: &'m str,
        no: &'m str,
    },
    /// The value is not among the elements.
    NotElement {
        count: usize,
    },
    NotDate {
        format: &'m str,
    },
    NotPoint,
    NotUrl,
    NotBase64,
    TooLarge {
        max: usize,
    },
    /// The error is inside an array or object.
    Item {
        at: usize,
        reason: NestedValueError,
    },
    Field {
        field: &'m str,
        reason: NestedValueError,
    },
    /// The model does not have the key, and the product rejects unknown keys.
    Unknown,
}

/// A nested error in short form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NestedValueError {
    Kind,
    Range,
    Length,
    Element,
    Format,
}

impl fmt::Display for NestedValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NestedValueError::Kind => "is of another type",
            NestedValueError::Range => "is out of range",
            NestedValueError::Length => "is too long",
            NestedValueError::Element => "is not one of the elements",
            NestedValueError::Format => "does not have the format of its type",
        })
    }
}

impl ValueError<'_> {
    /// A label for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            ValueError::Kind { .. } | ValueError::NotBoolean { .. } => "type",
            ValueError::NotInteger | ValueError::NotFinite => "number",
            ValueError::Below { .. } | ValueError::Above { .. } => "range",
            ValueError::TooLong { .. } | ValueError::TooLarge { .. } => "length",
            ValueError::NotElement { .. } => "element",
            ValueError::NotDate { .. }
            | ValueError::NotPoint
            | ValueError::NotUrl
            | ValueError::NotBase64 => "form",
            ValueError::Item { .. } | ValueError::Field { .. } => "inner",
            ValueError::Unknown => "unknown",
        }
    }

    pub(super) fn nested(&self) -> NestedValueError {
        match self {
            ValueError::Below { .. } | ValueError::Above { .. } => NestedValueError::Range,
            ValueError::TooLong { .. } | ValueError::TooLarge { .. } => NestedValueError::Length,
            ValueError::NotElement { .. } => NestedValueError::Element,
            ValueError::NotDate { .. }
            | ValueError::NotPoint
            | ValueError::NotUrl
            | ValueError::NotBase64 => NestedValueError::Format,
            ValueError::Item { reason, .. } | ValueError::Field { reason, .. } => *reason,
            _ => NestedValueError::Kind,
        }
    }
}

impl fmt::Display for ValueError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueError::Kind { expected, found } => write!(f, "expected {expected}, found {found}"),
            ValueError::NotInteger => f.write_str("expected a 64-bit whole number"),
            ValueError::NotFinite => f.write_str("expected a finite number"),
            ValueError::Below { min } => write!(f, "below the least value, {min}"),
            ValueError::Above { max } => write!(f, "above the greatest value, {max}"),
            ValueError::TooLong { max, found } => {
                write!(f, "{found} characters; the maximum is {max}")
            }
            ValueError::NotBoolean { yes, no } => {
                write!(f, "expected true or false, {yes:?} or {no:?}")
            }
            ValueError::NotElement { count } => write!(f, "not one of the {count} elements"),
            ValueError::NotDate { format } => write!(
                f,
                "expected milliseconds since 1970 or a date such as {format:?}"
            ),
            ValueError::NotPoint => f.write_str(
                "expected a place: {\"lon\":.., \"lat\":..}, [lon, lat] or \"lon,lat\", with degrees in range",
            ),
            ValueError::NotUrl => f.write_str("expected a URL"),
            ValueError::NotBase64 => f.write_str("expected Base64"),
            ValueError::TooLarge { max } => write!(f, "more than {max} bytes"),
            ValueError::Item { at, reason } => write!(f, "item {at} {reason}"),
            ValueError::Field { field, reason } => write!(f, "field {field:?} {reason}"),
            ValueError::Unknown => f.write_str("the product's model has no such property"),
        }
    }
}

/// The error for a value of another kind than expected.
pub(super) fn wrong_kind<'m>(expected: &'static str, found: &Value<'_>) -> ValueError<'m> {
    ValueError::Kind {
        expected,
        found: found.type_name(),
    }
}
