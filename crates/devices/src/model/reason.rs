//! Why a value does not fit its type. Made on the way of a message, hence `Copy` and put into words only when somebody reads.

use std::fmt;

/// Why a value is kept out of telemetry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason<'m> {
    /// Expected one of this kind.
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
    /// Text of a boolean that is neither of its two.
    NotBoolean {
        yes: &'m str,
        no: &'m str,
    },
    /// None of the elements.
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
    /// What is wrong is inside an array or object.
    Item {
        at: usize,
        reason: Inner,
    },
    Field {
        field: &'m str,
        reason: Inner,
    },
    /// The model does not have the key, and the product keeps to its model.
    Unknown,
}

/// What is wrong inside, said shortly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inner {
    Kind,
    Range,
    Length,
    Element,
    Form,
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Inner::Kind => "is of another type",
            Inner::Range => "is out of range",
            Inner::Length => "is too long",
            Inner::Element => "is none of the elements",
            Inner::Form => "has not the form of its type",
        })
    }
}

impl Reason<'_> {
    /// A word for metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Reason::Kind { .. } | Reason::NotBoolean { .. } => "type",
            Reason::NotInteger | Reason::NotFinite => "number",
            Reason::Below { .. } | Reason::Above { .. } => "range",
            Reason::TooLong { .. } | Reason::TooLarge { .. } => "length",
            Reason::NotElement { .. } => "element",
            Reason::NotDate { .. } | Reason::NotPoint | Reason::NotUrl | Reason::NotBase64 => {
                "form"
            }
            Reason::Item { .. } | Reason::Field { .. } => "inner",
            Reason::Unknown => "unknown",
        }
    }

    pub(super) fn inner(&self) -> Inner {
        match self {
            Reason::Below { .. } | Reason::Above { .. } => Inner::Range,
            Reason::TooLong { .. } | Reason::TooLarge { .. } => Inner::Length,
            Reason::NotElement { .. } => Inner::Element,
            Reason::NotDate { .. } | Reason::NotPoint | Reason::NotUrl | Reason::NotBase64 => {
                Inner::Form
            }
            Reason::Item { reason, .. } | Reason::Field { reason, .. } => *reason,
            _ => Inner::Kind,
        }
    }
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Kind { expected, found } => write!(f, "expected {expected}, found {found}"),
            Reason::NotInteger => f.write_str("expected a whole number of 64 bits"),
            Reason::NotFinite => f.write_str("expected a finite number"),
            Reason::Below { min } => write!(f, "below the least value, {min}"),
            Reason::Above { max } => write!(f, "above the greatest value, {max}"),
            Reason::TooLong { max, found } => {
                write!(f, "{found} characters, where {max} are the most")
            }
            Reason::NotBoolean { yes, no } => {
                write!(f, "expected true or false, {yes:?} or {no:?}")
            }
            Reason::NotElement { count } => write!(f, "none of the {count} elements"),
            Reason::NotDate { format } => write!(
                f,
                "expected milliseconds since 1970 or a date such as {format:?}"
            ),
            Reason::NotPoint => f.write_str(
                "expected a place: {\"lon\":.., \"lat\":..}, [lon, lat] or \"lon,lat\", with degrees in range",
            ),
            Reason::NotUrl => f.write_str("expected a URL"),
            Reason::NotBase64 => f.write_str("expected Base64"),
            Reason::TooLarge { max } => write!(f, "more than {max} bytes"),
            Reason::Item { at, reason } => write!(f, "item {at} {reason}"),
            Reason::Field { field, reason } => write!(f, "field {field:?} {reason}"),
            Reason::Unknown => f.write_str("the product's model has no such property"),
        }
    }
}
