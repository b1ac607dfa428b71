//! Value types of thing models: check a value against its type and convert it to its stored form.
//!
//! Conversions are lenient: a number may arrive as text, an integer as `5.0`, a boolean as one of its two
//! texts. Nothing else is guessed.

use rules::value::{Arena, Value};
use series::PointValue as Stored;

use super::date::DateFormat;
use super::value_error::{ValueError, wrong_kind};

/// Longer text and JSON is rejected, whatever the model permits.
pub const MAX_VALUE_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq)]
pub enum ValueType {
    /// `int` and `long`.
    Integer(IntegerType),
    /// `float` and `double`.
    Number(NumberType),
    Boolean(Box<BooleanType>),
    Text(TextType),
    Enumeration(Box<EnumerationType>),
    Date(Box<DateFormat>),
    File(FileEncoding),
    Array(Option<Box<ValueType>>),
    Object(Box<[FieldType]>),
    Point,
    /// Any value; for types without rules of their own.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntegerType {
    pub min: i64,
    pub max: i64,
    pub is_long: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberType {
    pub min: f64,
    pub max: f64,
    /// Decimal places to keep.
    pub scale: Option<u8>,
    pub is_double: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BooleanType {
    pub true_value: Box<str>,
    pub false_value: Box<str>,
    pub true_label: Box<str>,
    pub false_label: Box<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextType {
    pub max_length: Option<u32>,
    pub is_secret: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnumerationType {
    /// Values with their labels.
    pub elements: Box<[(Box<str>, Box<str>)]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileEncoding {
    Url,
    Base64,
    Binary,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FieldType {
    pub id: Box<str>,
    pub value_type: ValueType,
    pub is_required: bool,
}

impl ValueType {
    /// The JetLinks name of the type.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ValueType::Integer(integer) if integer.is_long => "long",
            ValueType::Integer(_) => "int",
            ValueType::Number(number) if number.is_double => "double",
            ValueType::Number(_) => "float",
            ValueType::Boolean(_) => "boolean",
            ValueType::Text(text) if text.is_secret => "password",
            ValueType::Text(_) => "string",
            ValueType::Enumeration(_) => "enum",
            ValueType::Date(_) => "date",
            ValueType::File(_) => "file",
            ValueType::Array(_) => "array",
            ValueType::Object(_) => "object",
            ValueType::Point => "geoPoint",
            ValueType::Any => "any",
        }
    }

    /// Returns the stored form of a value. Numbers and booleans allocate nothing; text is borrowed where
    /// possible.
    #[inline]
    pub fn check<'a, 'm>(
        &'m self,
        value: Value<'a>,
        arena: &'a Arena,
    ) -> Result<Stored<'a>, ValueError<'m>> {
        match (self, value) {
            (ValueType::Number(number), Value::Float(found)) => number.check(found),
            (ValueType::Number(number), Value::Int(found)) => number.check(found as f64),
            (ValueType::Integer(integer), Value::Int(found)) => integer.check(found),
            (ValueType::Boolean(_), Value::Bool(found)) => Ok(Stored::Bool(found)),
            _ => self.check_other(value, arena),
        }
    }

    fn check_other<'a, 'm>(
        &'m self,
        value: Value<'a>,
        arena: &'a Arena,
    ) -> Result<Stored<'a>, ValueError<'m>> {
        match self {
            ValueType::Integer(integer) => match (value, value.as_i64()) {
                (Value::Float(_) | Value::Str(_), Some(found)) => integer.check(found),
                (Value::Float(_), None) => Err(ValueError::NotInteger),
                _ => Err(wrong_kind("a whole number", &value)),
            },
            ValueType::Number(number) => match (value, value.as_f64()) {
                (Value::Str(_) | Value::Big(_), Some(found)) => number.check(found),
                _ => Err(wrong_kind("a number", &value)),
            },
            ValueType::Boolean(boolean) => boolean.check(value),
            ValueType::Text(text) => text.check(value, arena),
            ValueType::Enumeration(elements) => elements.check(value, arena),
            ValueType::Date(format) => format.check(value),
            ValueType::File(body) => body.check(value),
            ValueType::Array(element) => {
                let Value::Array(items) = unwrap_json_text(value, arena) else {
                    return Err(wrong_kind("an array", &value));
                };
                if let Some(element) = element {
                    for (at, item) in items.iter().enumerate() {
                        element
                            .check(*item, arena)
                            .map_err(|reason| ValueError::Item {
                                at,
                                reason: reason.nested(),
                            })?;
                    }
                }
                check_json(value, arena)
            }
            ValueType::Object(fields) => {
                let Value::Map(found) = unwrap_json_text(value, arena) else {
                    return Err(wrong_kind("an object", &value));
                };
                check_fields(fields, found, arena)?;
                check_json(value, arena)
            }
            ValueType::Point => check_point(value, arena),
            ValueType::Any => untyped(value, arena),
        }
    }

    /// The label of a stored value, where the type defines one.
    #[must_use]
    pub fn label(&self, value: Stored<'_>) -> Option<&str> {
        match (self, value) {
            (ValueType::Boolean(boolean), Stored::Bool(true)) => Some(&boolean.true_label),
            (ValueType::Boolean(boolean), Stored::Bool(false)) => Some(&boolean.false_label),
            (ValueType::Enumeration(elements), Stored::Text(text)) => elements
                .elements
                .iter()
                .find(|(value, _)| &**value == text)
                .map(|(_, label)| &**label),
            _ => None,
        }
    }
}

fn unwrap_json_text<'a>(value: Value<'a>, arena: &'a Arena) -> Value<'a> {
    match value {
        Value::Json(text) => rules::json::parse_one_level(text, arena),
        other => other,
    }
}

pub(super) fn check_fields<'m>(
    fields: &'m [FieldType],
    found: &[(&str, Value<'_>)],
    arena: &Arena,
) -> Result<(), ValueError<'m>> {
    for field in fields {
        let value = found.iter().rfind(|(name, _)| *name == &*field.id);
        match value {
            None if !field.is_required => {}
            Some((_, Value::Null)) if !field.is_required => {}
            None => {
                return Err(ValueError::Field {
                    field: &field.id,
                    reason: super::value_error::NestedValueError::Kind,
                });
            }
            Some((_, value)) => {
                let inner = field.value_type.check(*value, arena).map(drop);
                inner.map_err(|reason| ValueError::Field {
                    field: &field.id,
                    reason: reason.nested(),
                })?;
            }
        }
    }
    Ok(())
}

fn check_json<'a, 'm>(value: Value<'a>, arena: &'a Arena) -> Result<Stored<'a>, ValueError<'m>> {
    let text = match value {
        Value::Json(text) => text,
        other => rules::json::text(&other, arena),
    };
    check_size(text).map(Stored::Json)
}

fn check_size<'m>(text: &str) -> Result<&str, ValueError<'m>> {
    if text.len() > MAX_VALUE_BYTES {
        return Err(ValueError::TooLarge {
            max: MAX_VALUE_BYTES,
        });
    }
    Ok(text)
}

/// The stored form of a value whose key has no type.
pub fn untyped<'a, 'm>(value: Value<'a>, arena: &'a Arena) -> Result<Stored<'a>, ValueError<'m>> {
    match value {
        Value::Bool(found) => Ok(Stored::Bool(found)),
        Value::Int(found) => Ok(Stored::Int(found)),
        Value::Float(found) if found.is_finite() => Ok(Stored::Float(found)),
        Value::Float(_) => Err(ValueError::NotFinite),
        Value::Str(text) => check_size(text).map(Stored::Text),
        Value::Json(_) | Value::Array(_) | Value::Map(_) => check_json(value, arena),
        // Telemetry has integers of 64 bits and floats.
        Value::Big(_) => untyped(Value::Float(value.as_f64().unwrap_or(f64::NAN)), arena),
        Value::Undefined | Value::Null | Value::Bytes(_) => Err(wrong_kind("a value", &value)),
    }
}

impl IntegerType {
    #[inline]
    fn check<'a, 'm>(&self, found: i64) -> Result<Stored<'a>, ValueError<'m>> {
        if found < self.min {
            return Err(ValueError::Below {
                min: self.min as f64,
            });
        }
        if found > self.max {
            return Err(ValueError::Above {
                max: self.max as f64,
            });
        }
        Ok(Stored::Int(found))
    }
}

impl NumberType {
    #[inline]
    fn check<'a, 'm>(&self, found: f64) -> Result<Stored<'a>, ValueError<'m>> {
        if !found.is_finite() {
            return Err(ValueError::NotFinite);
        }
        if found < self.min {
            return Err(ValueError::Below { min: self.min });
        }
        if found > self.max {
            return Err(ValueError::Above { max: self.max });
        }
        Ok(Stored::Float(match self.scale {
            None => found,
            Some(scale) => round(found, scale),
        }))
    }
}

/// Rounds to this many decimal places. A float represents at most 15 of them exactly, and a large one none.
fn round(value: f64, scale: u8) -> f64 {
    const TENS: [f64; 16] = [
        1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
    ];
    match TENS.get(usize::from(scale)) {
        Some(factor) if value.abs() < 9e15 / factor => (value * factor).round() / factor,
        _ => value,
    }
}

impl BooleanType {
    fn check<'a, 'm>(&'m self, value: Value<'a>) -> Result<Stored<'a>, ValueError<'m>> {
        let no_boolean = || ValueError::NotBoolean {
            yes: &self.true_value,
            no: &self.false_value,
        };
        let is = |text: &str| match text {
            _ if text == &*self.true_value || text == &*self.true_label => Ok(true),
            _ if text == &*self.false_value || text == &*self.false_label => Ok(false),
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(no_boolean()),
        };
        match value {
            Value::Str(text) => is(text).map(Stored::Bool),
            // The two values may be any numbers, such as 100 and 0.
            Value::Int(number) => is(&number.to_string()).map(Stored::Bool),
            _ => Err(no_boolean()),
        }
    }
}

/// A text, or a number or bool converted to text.
fn as_text<'a, 'm>(
    value: Value<'a>,
    expected: &'static str,
    arena: &'a Arena,
) -> Result<&'a str, ValueError<'m>> {
    match value {
        Value::Str(text) => Ok(text),
        Value::Int(_) | Value::Float(_) | Value::Bool(_) => Ok(rules::json::text(&value, arena)),
        _ => Err(wrong_kind(expected, &value)),
    }
}

impl TextType {
    fn check<'a, 'm>(
        &'m self,
        value: Value<'a>,
        arena: &'a Arena,
    ) -> Result<Stored<'a>, ValueError<'m>> {
        let text = as_text(value, "a string", arena)?;
        if let Some(max) = self.max_length
            && text.len() > max as usize
        {
            let found = text.chars().count();
            if found > max as usize {
                return Err(ValueError::TooLong { max, found });
            }
        }
        check_size(text).map(Stored::Text)
    }
}

impl EnumerationType {
    fn check<'a, 'm>(
        &'m self,
        value: Value<'a>,
        arena: &'a Arena,
    ) -> Result<Stored<'a>, ValueError<'m>> {
        let text = as_text(value, "one of the elements", arena)?;
        let has = |element: &&(Box<str>, Box<str>)| &*element.0 == text;
        if self.elements.iter().any(|element| has(&element)) {
            return Ok(Stored::Text(text));
        }
        // Some devices send the label.
        match self.elements.iter().find(|(_, label)| &**label == text) {
            Some((value, _)) => Ok(Stored::Text(arena.alloc_str(value))),
            None => Err(ValueError::NotElement {
                count: self.elements.len(),
            }),
        }
    }
}

impl FileEncoding {
    fn check<'a, 'm>(self, value: Value<'a>) -> Result<Stored<'a>, ValueError<'m>> {
        let Value::Str(text) = value else {
            return Err(wrong_kind("text", &value));
        };
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_\r\n".contains(&byte);
        match self {
            FileEncoding::Url if !text.contains("://") => return Err(ValueError::NotUrl),
            FileEncoding::Base64 if !text.bytes().all(is_base64) => {
                return Err(ValueError::NotBase64);
            }
            _ => {}
        }
        check_size(text).map(Stored::Text)
    }
}

/// Locations are stored as `{"lon":..,"lat":..}`, whatever form they arrive in.
fn check_point<'a, 'm>(value: Value<'a>, arena: &'a Arena) -> Result<Stored<'a>, ValueError<'m>> {
    let found = match unwrap_json_text(value, arena) {
        Value::Map(fields) => {
            let field = |names: [&str; 2]| {
                let field = fields.iter().rfind(|(name, _)| names.contains(name));
                field.and_then(|(_, value)| value.as_f64())
            };
            field(["lon", "longitude"]).zip(field(["lat", "latitude"]))
        }
        Value::Array([lon, lat]) => lon.as_f64().zip(lat.as_f64()),
        Value::Str(text) => text.split_once(',').and_then(|(lon, lat)| {
            let number = |text: &str| text.trim().parse::<f64>().ok();
            number(lon).zip(number(lat))
        }),
        _ => None,
    };
    match found {
        Some((lon, lat)) if lon.abs() <= 180.0 && lat.abs() <= 90.0 => {
            let fields = [("lon", Value::Float(lon)), ("lat", Value::Float(lat))];
            let fields = &*arena.alloc_slice_copy(&fields);
            check_json(Value::Map(fields), arena)
        }
        _ => Err(ValueError::NotPoint),
    }
}
