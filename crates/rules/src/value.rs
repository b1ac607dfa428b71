//! Values of the rule language. They are `Copy` and live in the arena of one evaluation, which is reset after
//! the message.

use std::cmp::Ordering;

use crate::json;

/// The memory of one evaluation.
pub type Arena = bumpalo::Bump;

/// One value. `Bytes` and `Str` compare bytewise; a payload is `Bytes` until it is checked to be UTF-8.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub enum Value<'a> {
    /// A missing field or item. EMQX distinguishes it from null; elsewhere it is null.
    Undefined,
    /// The null of a JSON text.
    Null,
    Bool(bool),
    Int(i64),
    /// The digits of an integer that does not fit an `Int`, as in JSON. It is compared and written exactly
    /// but cannot be used in calculations.
    Big(&'a str),
    Float(f64),
    Str(&'a str),
    Bytes(&'a [u8]),
    Array(&'a [Value<'a>]),
    /// Fields in their original order. If a name occurs twice, the later one counts.
    Map(&'a [(&'a str, Value<'a>)]),
    /// Validated text of a JSON array or object that is not yet parsed into `Array` or `Map`.
    Json(&'a str),
}

const _: () = assert!(size_of::<Value<'static>>() == 24);

impl<'a> Value<'a> {
    /// The type name for error messages.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined | Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Int(_) => "integer",
            Value::Big(_) => "an integer of more than 64 bits",
            Value::Float(_) => "float",
            Value::Str(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Array(_) => "array",
            Value::Map(_) => "map",
            Value::Json(text) if text.starts_with('[') => "array",
            Value::Json(_) => "map",
        }
    }

    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Undefined | Value::Null)
    }

    /// Whether the value is missing, which EMQX distinguishes from null.
    #[must_use]
    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined)
    }

    /// The value as a condition: `true`, nonzero numbers and the text `true` are true.
    #[must_use]
    pub fn is_truthy(&self) -> bool {
        match self {
            Value::Bool(truth) => *truth,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            Value::Big(_) => true,
            Value::Str(text) => *text == "true",
            Value::Bytes(bytes) => *bytes == b"true",
            _ => false,
        }
    }

    /// The bytes of a text or byte string.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Value::Str(text) | Value::Json(text) => Some(text.as_bytes()),
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A text, or a byte string that is valid UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Value::Str(text) => Some(text),
            Value::Bytes(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// An integer, a float without a fraction, or the text of an integer.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::Int(number) => Some(number),
            Value::Float(number) => float_to_i64(number),
            _ => match self.as_number()? {
                Number::Int(number) => Some(number),
                Number::Float(number) => float_to_i64(number),
            },
        }
    }

    /// A number or the text of a number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Big(digits) => digits.parse().ok(),
            _ => self.as_number().map(Number::as_f64),
        }
    }

    /// A number or the text of a number; integers stay integers. Integers of more than 64 bits yield `None`,
    /// because calculations with them would not be exact.
    #[must_use]
    pub fn as_number(&self) -> Option<Number> {
        match *self {
            Value::Int(number) => Some(Number::Int(number)),
            Value::Float(number) => Some(Number::Float(number)),
            Value::Str(_) | Value::Bytes(_) => Number::parse(self.as_str()?),
            _ => None,
        }
    }

    /// Compares two values. `None` if they are not comparable: null with anything, text with a number it does
    /// not represent, arrays or maps that are not equal.
    #[must_use]
    pub fn compare(&self, other: &Value<'_>) -> Option<Ordering> {
        match (self, other) {
            (Value::Undefined | Value::Null, _) | (_, Value::Undefined | Value::Null) => None,
            (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
            (Value::Str(left), Value::Str(right)) => Some(left.cmp(right)),
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            (Value::Big(_), _) | (_, Value::Big(_)) => compare_decimal(self, other),
            (Value::Int(_) | Value::Float(_), _) | (_, Value::Int(_) | Value::Float(_)) => {
                self.as_number()?.compare(other.as_number()?)
            }
            (Value::Bool(truth), text) => Some(bool_text(*truth).as_bytes().cmp(text.as_bytes()?)),
            (text, Value::Bool(truth)) => Some(text.as_bytes()?.cmp(bool_text(*truth).as_bytes())),
            (Value::Str(_) | Value::Bytes(_), Value::Str(_) | Value::Bytes(_)) => {
                Some(self.as_bytes()?.cmp(other.as_bytes()?))
            }
            _ => are_structures_not_distinct(self, other).then_some(Ordering::Equal),
        }
    }

    /// Equality of the operator `=`: nothing equals null.
    #[must_use]
    pub fn equals(&self, other: &Value<'_>) -> bool {
        self.compare(other) == Some(Ordering::Equal)
    }

    /// Equality for distinct values: null is the same as null.
    #[must_use]
    pub fn is_not_distinct(&self, other: &Value<'_>) -> bool {
        (self.is_null() && other.is_null()) || self.equals(other)
    }

    /// Equality as EMQX matches values in IN and CASE. The types must be equal, so that 1 equals neither 1.0 nor '1',
    /// and null is not undefined.
    #[must_use]
    pub fn is_strictly_equal(&self, other: &Value<'_>) -> bool {
        match (self, other) {
            (Value::Undefined, Value::Undefined) | (Value::Null, Value::Null) => true,
            (Value::Int(_) | Value::Big(_), Value::Int(_) | Value::Big(_))
            | (Value::Float(_), Value::Float(_))
            | (Value::Bool(_), Value::Bool(_))
            | (Value::Str(_) | Value::Bytes(_), Value::Str(_) | Value::Bytes(_)) => {
                self.equals(other)
            }
            _ => {
                self.type_rank() >= ARRAY_RANK
                    && self.type_rank() == other.type_rank()
                    && self.equals(other)
            }
        }
    }

    /// A total order for sorting: null, booleans, numbers (NaN first), text, arrays, maps.
    #[must_use]
    pub fn total_order(&self, other: &Value<'_>) -> Ordering {
        match (self.type_rank(), other.type_rank()) {
            (left, right) if left != right => left.cmp(&right),
            // All arrays compare as equal in this order, and so do all maps.
            (ARRAY_RANK.., _) => Ordering::Equal,
            (2, _) => self
                .compare(other)
                .unwrap_or_else(|| other.is_nan().cmp(&self.is_nan())),
            _ => self.compare(other).unwrap_or(Ordering::Equal),
        }
    }

    fn is_nan(&self) -> bool {
        matches!(self, Value::Float(number) if number.is_nan())
    }

    fn type_rank(&self) -> u8 {
        match self {
            Value::Undefined | Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Int(_) | Value::Big(_) | Value::Float(_) => 2,
            Value::Str(_) | Value::Bytes(_) => 3,
            Value::Array(_) => ARRAY_RANK,
            Value::Json(text) if text.starts_with('[') => ARRAY_RANK,
            Value::Map(_) | Value::Json(_) => 5,
        }
    }

    /// Parses one level of JSON text. Nested arrays and objects stay text.
    #[must_use]
    pub fn parse_one_level(self, arena: &'a Arena) -> Value<'a> {
        match self {
            Value::Json(text) => json::parse_one_level(text, arena),
            other => other,
        }
    }

    /// A field of a map; null if this is not a map or has no such field.
    #[must_use]
    pub fn field(&self, name: &str, arena: &'a Arena) -> Value<'a> {
        self.find_field(name, arena).unwrap_or(Value::Undefined)
    }

    /// A field of a map; the field may exist and be null.
    #[must_use]
    pub fn find_field(&self, name: &str, arena: &'a Arena) -> Option<Value<'a>> {
        match self.parse_one_level(arena) {
            Value::Map(fields) => fields
                .iter()
                .rev()
                .find(|(field, _)| *field == name)
                .map(|(_, value)| *value),
            _ => None,
        }
    }

    /// An item of an array counted from 0, or from the end if negative; null if it does not exist.
    #[must_use]
    pub fn item(&self, index: i64, arena: &'a Arena) -> Value<'a> {
        let Value::Array(items) = self.parse_one_level(arena) else {
            return Value::Undefined;
        };
        let index = if index < 0 {
            index.checked_add_unsigned(items.len() as u64)
        } else {
            Some(index)
        };
        index
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| items.get(index).copied())
            .unwrap_or(Value::Undefined)
    }

    /// The value as text: text unchanged, numbers in their shortest form, arrays and maps as JSON, null as
    /// `null`. Invalid UTF-8 in bytes is replaced.
    #[must_use]
    pub fn text(&self, arena: &'a Arena) -> &'a str {
        match *self {
            Value::Undefined | Value::Null => "null",
            Value::Bool(truth) => bool_text(truth),
            Value::Str(text) | Value::Json(text) | Value::Big(text) => text,
            Value::Bytes(bytes) => match String::from_utf8_lossy(bytes) {
                std::borrow::Cow::Borrowed(text) => text,
                std::borrow::Cow::Owned(text) => arena.alloc_str(&text),
            },
            Value::Int(number) => arena.alloc_str(itoa::Buffer::new().format(number)),
            Value::Float(number) => arena.alloc_str(float_text(number, &mut zmij::Buffer::new())),
            Value::Array(_) | Value::Map(_) => json::text(self, arena),
        }
    }

    /// Writes the value as JSON. Integers stay integers. Floats keep a point or an exponent and have the
    /// shortest form; NaN and infinities become null. Bytes become text if they are UTF-8, otherwise base64.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        json::write(self, out);
    }

    /// A copy that outlives the arena.
    #[must_use]
    pub fn into_owned(self) -> OwnedValue {
        match self {
            Value::Undefined => OwnedValue::Undefined,
            Value::Null => OwnedValue::Null,
            Value::Bool(truth) => OwnedValue::Bool(truth),
            Value::Int(number) => OwnedValue::Int(number),
            Value::Big(digits) => OwnedValue::Big(digits.into()),
            Value::Float(number) => OwnedValue::Float(number),
            Value::Str(text) => OwnedValue::Str(text.into()),
            Value::Bytes(bytes) => OwnedValue::Bytes(bytes.into()),
            Value::Array(items) => {
                OwnedValue::Array(items.iter().map(|item| item.into_owned()).collect())
            }
            Value::Map(fields) => OwnedValue::Map(
                fields
                    .iter()
                    .map(|(name, value)| ((*name).into(), value.into_owned()))
                    .collect(),
            ),
            Value::Json(text) => OwnedValue::Json(text.into()),
        }
    }
}

fn bool_text(truth: bool) -> &'static str {
    if truth { "true" } else { "false" }
}

/// The shortest text that parses back to this number, with a point or an exponent.
pub(crate) fn float_text(number: f64, buffer: &mut zmij::Buffer) -> &str {
    if number.is_finite() {
        buffer.format_finite(number)
    } else {
        "null"
    }
}

/// Converts a float without a fraction to an integer.
pub(crate) fn float_to_i64(number: f64) -> Option<i64> {
    // 2^63 is representable as a float, 2^63 - 1 is not.
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number);
    (fits && number.trunc() == number).then_some(number as i64)
}

/// Compares numbers exactly: integers of any size by their digits, floats by their exact values.
fn compare_decimal(left: &Value<'_>, right: &Value<'_>) -> Option<Ordering> {
    let (left, right) = (
        DecimalDigits::from_value(left)?,
        DecimalDigits::from_value(right)?,
    );
    let size = left
        .digits
        .len()
        .cmp(&right.digits.len())
        .then_with(|| left.digits.cmp(&right.digits))
        .then_with(|| left.has_fraction.cmp(&right.has_fraction));
    Some(match (left.is_negative, right.is_negative) {
        (false, false) => size,
        (true, true) => size.reverse(),
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
    })
}

/// A number in decimal digits without leading zeros.
struct DecimalDigits<'a> {
    is_negative: bool,
    digits: std::borrow::Cow<'a, str>,
    has_fraction: bool,
}

impl<'a> DecimalDigits<'a> {
    fn from_value(value: &Value<'a>) -> Option<Self> {
        let (text, has_fraction) = match *value {
            Value::Big(digits) => (digits.into(), false),
            Value::Int(number) => (number.to_string().into(), false),
            Value::Float(number) if number.is_finite() => (
                format!("{:.0}", number.trunc()).into(),
                number.fract() != 0.0,
            ),
            Value::Str(_) | Value::Bytes(_) => {
                let text = value.as_str()?.trim();
                match is_integer(text) {
                    true => (text.into(), false),
                    false => return Self::from_value(&Value::Float(Number::parse(text)?.as_f64())),
                }
            }
            _ => return None,
        };
        let text: std::borrow::Cow<'a, str> = text;
        let is_negative = text.starts_with('-');
        let strip = |text: &str| text.len() - text.trim_start_matches(['-', '+', '0']).len();
        let digits = match text {
            std::borrow::Cow::Borrowed(text) => text[strip(text)..].into(),
            std::borrow::Cow::Owned(text) => text[strip(&text)..].to_owned().into(),
        };
        Some(Self {
            is_negative,
            digits,
            has_fraction,
        })
    }
}

/// Whether the text consists of digits with an optional sign.
pub(crate) fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

/// Compares arrays and maps by their members; the order of fields does not matter.
fn are_structures_not_distinct(left: &Value<'_>, right: &Value<'_>) -> bool {
    let arena = Arena::new();
    let (left, right): (Value<'_>, Value<'_>) = (*left, *right);
    match (left.parse_one_level(&arena), right.parse_one_level(&arena)) {
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| left.is_not_distinct(right))
        }
        (Value::Map(left), Value::Map(right)) => {
            left.len() == right.len() && are_fields_not_distinct(left, right, &arena)
        }
        _ => false,
    }
}

/// Compares the fields of two maps of the same size, in any order.
fn are_fields_not_distinct(left: MapFields<'_>, right: MapFields<'_>, arena: &Arena) -> bool {
    // In most cases the order is the same, too.
    let ordered = left
        .iter()
        .zip(right)
        .all(|(left, right)| left.0 == right.0);
    if ordered {
        return left
            .iter()
            .zip(right)
            .all(|(left, right)| left.1.is_not_distinct(&right.1));
    }
    let sorted = |fields: MapFields<'_>| {
        let order = arena.alloc_slice_fill_iter(0..fields.len());
        order.sort_by_key(|&at| fields[at].0);
        &*order
    };
    let pairs = sorted(left).iter().zip(sorted(right));
    pairs.into_iter().all(|(&left_at, &right_at)| {
        let (left, right) = (&left[left_at], &right[right_at]);
        left.0 == right.0 && left.1.is_not_distinct(&right.1)
    })
}

type MapFields<'a> = &'a [(&'a str, Value<'a>)];

/// Rank of arrays in the order of all values; maps follow.
const ARRAY_RANK: u8 = 4;

/// A number: an integer or a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    /// Parses a whole text, optionally surrounded by blanks. Integers beyond 64 bits become floats.
    #[must_use]
    pub fn parse(text: &str) -> Option<Number> {
        let text = text.trim();
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text).as_bytes();
        // Rust's own parser also accepts "inf" and "nan".
        if !matches!(digits.first()?, b'0'..=b'9' | b'.') {
            return None;
        }
        if let Ok(number) = text.parse() {
            return Some(Number::Int(number));
        }
        let number: f64 = text.parse().ok()?;
        number.is_finite().then_some(Number::Float(number))
    }

    #[must_use]
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(number) => number as f64,
            Number::Float(number) => number,
        }
    }

    /// Compares exactly, even if an integer is not representable as a float.
    #[must_use]
    pub fn compare(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
            (Number::Float(left), Number::Float(right)) => left.partial_cmp(&right),
            (Number::Int(left), Number::Float(right)) => compare_int_float(left, right),
            (Number::Float(left), Number::Int(right)) => {
                compare_int_float(right, left).map(Ordering::reverse)
            }
        }
    }
}

impl From<Number> for Value<'_> {
    fn from(number: Number) -> Self {
        match number {
            Number::Int(number) => Value::Int(number),
            Number::Float(number) => Value::Float(number),
        }
    }
}

fn compare_int_float(int: i64, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    match float_to_i64(float.trunc()) {
        Some(whole) if whole == int => 0.0.partial_cmp(&(float - float.trunc())),
        Some(whole) => Some(int.cmp(&whole)),
        None if float > 0.0 => Some(Ordering::Less),
        None => Some(Ordering::Greater),
    }
}

/// A value that is not bound to an arena, for windows and the key-value store of a rule.
#[derive(Clone, Debug)]
pub enum OwnedValue {
    Undefined,
    Null,
    Bool(bool),
    Int(i64),
    Big(Box<str>),
    Float(f64),
    Str(Box<str>),
    Bytes(Box<[u8]>),
    Array(Box<[OwnedValue]>),
    Map(Box<[(Box<str>, OwnedValue)]>),
    Json(Box<str>),
}

impl OwnedValue {
    /// Copies the value into the arena.
    #[must_use]
    pub fn to_value<'a>(&self, arena: &'a Arena) -> Value<'a> {
        match self {
            OwnedValue::Undefined => Value::Undefined,
            OwnedValue::Null => Value::Null,
            OwnedValue::Bool(truth) => Value::Bool(*truth),
            OwnedValue::Int(number) => Value::Int(*number),
            OwnedValue::Big(digits) => Value::Big(arena.alloc_str(digits)),
            OwnedValue::Float(number) => Value::Float(*number),
            OwnedValue::Str(text) => Value::Str(arena.alloc_str(text)),
            OwnedValue::Bytes(bytes) => Value::Bytes(arena.alloc_slice_copy(bytes)),
            OwnedValue::Array(items) => Value::Array(
                arena.alloc_slice_fill_iter(items.iter().map(|item| item.to_value(arena))),
            ),
            OwnedValue::Map(fields) => Value::Map(
                arena.alloc_slice_fill_iter(
                    fields
                        .iter()
                        .map(|(name, value)| (&*arena.alloc_str(name), value.to_value(arena))),
                ),
            ),
            OwnedValue::Json(text) => Value::Json(arena.alloc_str(text)),
        }
    }

    /// Approximate memory of the value in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let inner = match self {
            OwnedValue::Str(text) | OwnedValue::Json(text) | OwnedValue::Big(text) => text.len(),
            OwnedValue::Bytes(bytes) => bytes.len(),
            OwnedValue::Array(items) => items.iter().map(OwnedValue::size_bytes).sum(),
            OwnedValue::Map(fields) => fields
                .iter()
                .map(|(name, value)| name.len() + size_of::<Box<str>>() + value.size_bytes())
                .sum(),
            _ => 0,
        };
        size_of::<OwnedValue>() + inner
    }
}

#[cfg(test)]
mod tests;
