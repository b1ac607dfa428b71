//! Parses JetLinks' metadata into a model. Reports all errors at once, each with its place in the document.

use std::collections::HashSet;

use foldhash::fast::RandomState;
use serde_json::{Map, Value};

use super::date::DateFormat;
use super::thing_model::{
    EventModel, FunctionModel, MAX_ITEMS, MAX_PROPERTIES, MAX_TYPE_DEPTH, PropertyModel,
    ThingModel, UnknownKeys,
};
use super::value_type::{
    BooleanType, EnumerationType, FieldType, FileEncoding, IntegerType, NumberType, TextType,
    ValueType,
};

/// Maximum number of errors reported.
const MAX_ERRORS: usize = 20;
const MAX_KEY_BYTES: usize = 256;
const MAX_ELEMENTS: usize = 4096;
const TYPES: &str = "int, long, float, double, boolean, string, enum, date, password, file, array, object or geoPoint";

/// An error in a metadata document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize)]
#[error("{place}: {message}")]
pub struct ThingModelError {
    /// Such as `properties[3].valueType.min`.
    pub place: String,
    pub message: String,
}

#[derive(Default)]
struct ModelParser {
    errors: Vec<ThingModelError>,
}

impl ThingModel {
    /// Reads a metadata document. Returns all its errors at once.
    pub fn read(metadata: &Value, unknown_keys: UnknownKeys) -> Result<Self, Vec<ThingModelError>> {
        let mut model = parse(metadata)?;
        model.unknown_keys = unknown_keys;
        Ok(model)
    }
}

fn parse(metadata: &Value) -> Result<ThingModel, Vec<ThingModelError>> {
    let mut reader = ModelParser::default();
    let mut model = ThingModel::default();
    let empty = Map::new();
    let document = match metadata {
        Value::Object(document) => document,
        Value::Null => &empty,
        other => {
            reader.add_error(
                "metadata",
                format!("expected an object, found {}", json_type_name(other)),
            );
            &empty
        }
    };
    let each = |reader: &mut ModelParser, list, most| reader.list(document, "", list, most);
    let items = each(&mut reader, "properties", MAX_PROPERTIES);
    let properties = items.into_iter().enumerate();
    let properties = properties
        .filter_map(|(at, (place, item))| reader.property(&place, item, at as u16))
        .collect();
    model = ThingModel {
        tags: {
            let items = each(&mut reader, "tags", MAX_ITEMS).into_iter().enumerate();
            items
                .filter_map(|(at, (place, item))| reader.property(&place, item, at as u16))
                .collect()
        },
        functions: {
            let items = each(&mut reader, "functions", MAX_ITEMS).into_iter();
            items
                .filter_map(|(place, item)| reader.function(&place, item))
                .collect()
        },
        events: {
            let items = each(&mut reader, "events", MAX_ITEMS).into_iter();
            items
                .filter_map(|(place, item)| reader.event(&place, item))
                .collect()
        },
        ..match reader.errors.is_empty() {
            true => ThingModel::new(properties),
            false => model,
        }
    };
    match reader.errors.is_empty() {
        true => Ok(model),
        false => {
            reader.errors.truncate(MAX_ERRORS);
            Err(reader.errors)
        }
    }
}

fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn join_path(place: &str, field: &str) -> String {
    match place {
        "" => field.to_owned(),
        place => format!("{place}.{field}"),
    }
}

/// A field's text; numbers and booleans count as text, because JetLinks' own tools write both.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

impl ModelParser {
    fn add_error(&mut self, place: impl Into<String>, message: impl Into<String>) {
        // One more than is reported shows that there are more; further errors are not worth the memory.
        if self.errors.len() <= MAX_ERRORS {
            self.errors.push(ThingModelError {
                place: place.into(),
                message: message.into(),
            });
        }
    }

    /// The objects of a list, each with its place; their ids must differ.
    fn list<'v>(
        &mut self,
        object: &'v Map<String, Value>,
        place: &str,
        field: &str,
        most: usize,
    ) -> Vec<(String, &'v Map<String, Value>)> {
        let place = join_path(place, field);
        let items = match object.get(field) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                self.add_error(
                    place,
                    format!("expected a list, found {}", json_type_name(other)),
                );
                return Vec::new();
            }
        };
        if items.len() > most {
            let found = items.len();
            self.add_error(place, format!("{found} entries; the maximum is {most}"));
            return Vec::new();
        }
        let mut ids = HashSet::with_hasher(RandomState::default());
        let mut found = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let place = format!("{place}[{at}]");
            let Value::Object(item) = item else {
                self.add_error(
                    place,
                    format!("expected an object, found {}", json_type_name(item)),
                );
                continue;
            };
            if let Some(Value::String(id)) = item.get("id")
                && !ids.insert(id.as_str())
            {
                self.add_error(format!("{place}.id"), format!("duplicate id {id:?}"));
            }
            found.push((place, item));
        }
        found
    }

    fn id(&mut self, place: &str, item: &Map<String, Value>) -> Option<(Box<str>, Box<str>)> {
        let id = match item.get("id") {
            Some(Value::String(id)) if !id.is_empty() && id.len() <= MAX_KEY_BYTES => id,
            Some(Value::String(_)) => {
                self.add_error(
                    join_path(place, "id"),
                    format!("expected 1 to {MAX_KEY_BYTES} bytes"),
                );
                return None;
            }
            Some(other) => {
                self.add_error(
                    join_path(place, "id"),
                    format!("expected text, found {}", json_type_name(other)),
                );
                return None;
            }
            None => {
                self.add_error(join_path(place, "id"), "missing");
                return None;
            }
        };
        let name = item
            .get("name")
            .and_then(text)
            .unwrap_or_else(|| id.clone());
        Some((id.as_str().into(), name.into()))
    }

    fn property(
        &mut self,
        place: &str,
        item: &Map<String, Value>,
        at: u16,
    ) -> Option<PropertyModel> {
        let (id, name) = self.id(place, item)?;
        let value_type = self.field_type(place, item)?;
        let unit = item.get("valueType").and_then(|value| value.get("unit"));
        // Without `expands.type`, a property is readable, writable and reported.
        let uses = item.get("expands").and_then(|expands| expands.get("type"));
        let may = |word: &str| match uses {
            Some(Value::Array(words)) => words.iter().any(|found| found == word),
            Some(Value::String(words)) => words.split(',').any(|found| found.trim() == word),
            _ => true,
        };
        let is_read_only = item
            .get("expands")
            .and_then(|expands| expands.get("readOnly"))
            .and_then(text)
            .is_some_and(|flag| flag == "true");
        Some(PropertyModel {
            index: at,
            id,
            name,
            value_type,
            unit: unit
                .and_then(text)
                .filter(|unit| !unit.is_empty())
                .map(Into::into),
            may_read: may("read"),
            may_write: may("write") && !is_read_only,
            may_report: may("report"),
        })
    }

    fn function(&mut self, place: &str, item: &Map<String, Value>) -> Option<FunctionModel> {
        let (id, name) = self.id(place, item)?;
        let inputs = self.fields(place, item, "inputs", 0);
        let output = match item.get("output") {
            None | Some(Value::Null) => None,
            Some(Value::Object(output)) if output.is_empty() => None,
            Some(output) => Some(self.value_type(&join_path(place, "output"), output, 0)?),
        };
        let is_async = item
            .get("async")
            .and_then(text)
            .is_some_and(|flag| flag == "true");
        Some(FunctionModel {
            id,
            name,
            is_async,
            inputs,
            output,
        })
    }

    fn event(&mut self, place: &str, item: &Map<String, Value>) -> Option<EventModel> {
        let (id, name) = self.id(place, item)?;
        let value_type = match item.get("valueType") {
            None | Some(Value::Null) => ValueType::Any,
            Some(_) => self.field_type(place, item)?,
        };
        let level = item.get("expands").and_then(|expands| expands.get("level"));
        Some(EventModel {
            id,
            name,
            level: level.and_then(text).map(Into::into),
            value_type,
        })
    }

    fn field_type(&mut self, place: &str, item: &Map<String, Value>) -> Option<ValueType> {
        let place = join_path(place, "valueType");
        match item.get("valueType") {
            Some(value) => self.value_type(&place, value, 0),
            None => {
                self.add_error(
                    place,
                    "missing; expected an object such as {\"type\": \"float\"}",
                );
                None
            }
        }
    }

    fn fields(
        &mut self,
        place: &str,
        item: &Map<String, Value>,
        list: &str,
        depth: usize,
    ) -> Box<[FieldType]> {
        let items = self.list(item, place, list, MAX_ITEMS);
        let fields = items.into_iter().filter_map(|(place, item)| {
            let (id, _) = self.id(&place, item)?;
            let value = item.get("valueType").unwrap_or(&Value::Null);
            let value_type = self.value_type(&join_path(&place, "valueType"), value, depth + 1)?;
            let required = item
                .get("expands")
                .and_then(|expands| expands.get("required"));
            Some(FieldType {
                id,
                value_type,
                is_required: required.and_then(text).is_some_and(|flag| flag == "true"),
            })
        });
        fields.collect()
    }

    fn value_type(&mut self, place: &str, value: &Value, depth: usize) -> Option<ValueType> {
        if depth > MAX_TYPE_DEPTH {
            self.add_error(
                place,
                format!("nested more than {MAX_TYPE_DEPTH} levels deep"),
            );
            return None;
        }
        let empty = Map::new();
        let (name, fields) = match value {
            // The short form of some exports.
            Value::String(name) => (name.as_str(), &empty),
            Value::Object(fields) => match fields.get("type") {
                Some(Value::String(name)) => (name.as_str(), fields),
                _ => {
                    self.add_error(join_path(place, "type"), format!("expected {TYPES}"));
                    return None;
                }
            },
            other => {
                let found = json_type_name(other);
                self.add_error(
                    place,
                    format!("expected an object with a type, found {found}"),
                );
                return None;
            }
        };
        Some(match name {
            "int" => self.integer(place, fields, false)?,
            "long" => self.integer(place, fields, true)?,
            "float" => self.real(place, fields, false)?,
            "double" => self.real(place, fields, true)?,
            "boolean" | "bool" => {
                let word = |field: &str, default: &str| -> Box<str> {
                    let word = fields.get(field).and_then(text);
                    word.unwrap_or_else(|| default.to_owned()).into()
                };
                ValueType::Boolean(Box::new(BooleanType {
                    true_value: word("trueValue", "true"),
                    false_value: word("falseValue", "false"),
                    true_label: word("trueText", "yes"),
                    false_label: word("falseText", "no"),
                }))
            }
            "string" | "text" | "password" => ValueType::Text(TextType {
                max_length: self.bound(place, fields, "maxLength")?,
                is_secret: name == "password",
            }),
            "enum" => self.enumeration(place, fields)?,
            "date" => self.date(place, fields)?,
            "file" => {
                let body = fields.get("bodyType").or_else(|| fields.get("fileType"));
                let body = body.and_then(text).unwrap_or_else(|| "url".to_owned());
                ValueType::File(match body.to_ascii_lowercase().as_str() {
                    "url" => FileEncoding::Url,
                    "base64" => FileEncoding::Base64,
                    "binary" => FileEncoding::Binary,
                    _ => {
                        let message = format!("expected url, base64 or binary, found {body:?}");
                        self.add_error(join_path(place, "bodyType"), message);
                        return None;
                    }
                })
            }
            "array" => ValueType::Array(match fields.get("elementType") {
                None | Some(Value::Null) => None,
                Some(element) => {
                    let place = join_path(place, "elementType");
                    Some(Box::new(self.value_type(&place, element, depth + 1)?))
                }
            }),
            "object" => ValueType::Object(self.fields(place, fields, "properties", depth)),
            "geoPoint" => ValueType::Point,
            "geoShape" | "any" | "unknown" => ValueType::Any,
            other => {
                self.add_error(
                    join_path(place, "type"),
                    format!("expected {TYPES}, found {other:?}"),
                );
                return None;
            }
        })
    }

    /// A numeric option of a type, written as a number or as text, in the type or in its `expands`.
    fn number(
        &mut self,
        place: &str,
        fields: &Map<String, Value>,
        field: &str,
    ) -> Result<Option<f64>, ()> {
        let found = fields
            .get(field)
            .or_else(|| fields.get("expands")?.get(field));
        let number = match found {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(other) => other.as_f64(),
        };
        match number.filter(|number: &f64| number.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => {
                self.add_error(join_path(place, field), "expected a number");
                Err(())
            }
        }
    }

    fn bound(
        &mut self,
        place: &str,
        fields: &Map<String, Value>,
        field: &str,
    ) -> Option<Option<u32>> {
        match self.number(place, fields, field).ok()? {
            None => Some(None),
            Some(number) if (0.0..=1e9).contains(&number) && number.fract() == 0.0 => {
                Some(Some(number as u32))
            }
            Some(number) => {
                let message = format!("expected a whole number of at least 0, found {number}");
                self.add_error(join_path(place, field), message);
                None
            }
        }
    }

    fn range(&mut self, place: &str, fields: &Map<String, Value>) -> Option<(f64, f64)> {
        let min = self.number(place, fields, "min").ok()?.unwrap_or(f64::MIN);
        let max = self.number(place, fields, "max").ok()?.unwrap_or(f64::MAX);
        if min > max {
            let message = format!("{max} is less than min, {min}");
            self.add_error(join_path(place, "max"), message);
            return None;
        }
        Some((min, max))
    }

    fn integer(
        &mut self,
        place: &str,
        fields: &Map<String, Value>,
        is_long: bool,
    ) -> Option<ValueType> {
        let (min, max) = self.range(place, fields)?;
        // Floats beyond the range of an integer become its limits. `int` is not restricted to 32 bits:
        // JetLinks' devices exceed that.
        Some(ValueType::Integer(IntegerType {
            min: min.ceil() as i64,
            max: max.floor() as i64,
            is_long,
        }))
    }

    fn real(
        &mut self,
        place: &str,
        fields: &Map<String, Value>,
        is_double: bool,
    ) -> Option<ValueType> {
        let (min, max) = self.range(place, fields)?;
        let scale = self.bound(place, fields, "scale")?;
        Some(ValueType::Number(NumberType {
            min,
            max,
            scale: scale.map(|scale| scale.min(15) as u8),
            is_double,
        }))
    }

    fn enumeration(&mut self, place: &str, fields: &Map<String, Value>) -> Option<ValueType> {
        let place = join_path(place, "elements");
        let items = match fields.get("elements") {
            Some(Value::Array(items)) if !items.is_empty() && items.len() <= MAX_ELEMENTS => items,
            _ => {
                let message = format!("expected 1 to {MAX_ELEMENTS} elements with value and text");
                self.add_error(place, message);
                return None;
            }
        };
        let mut elements = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let (value, label) = match item {
                Value::Object(item) => (
                    item.get("value").and_then(text),
                    item.get("text").and_then(text),
                ),
                other => (text(other), None),
            };
            let Some(value) = value else {
                self.add_error(format!("{place}[{at}].value"), "missing");
                return None;
            };
            let label = label.unwrap_or_else(|| value.clone());
            elements.push((value.into(), label.into()));
        }
        Some(ValueType::Enumeration(Box::new(EnumerationType {
            elements: elements.into(),
        })))
    }

    fn date(&mut self, place: &str, fields: &Map<String, Value>) -> Option<ValueType> {
        let pattern = fields.get("format").or_else(|| fields.get("dateFormat"));
        let pattern = pattern.and_then(text).filter(|pattern| !pattern.is_empty());
        let pattern = pattern.unwrap_or_else(|| "timestamp".to_owned());
        let zone = fields
            .get("tz")
            .and_then(text)
            .filter(|zone| !zone.is_empty());
        match DateFormat::new(&pattern, zone.as_deref()) {
            Ok(format) => Some(ValueType::Date(Box::new(format))),
            Err(message) => {
                self.add_error(join_path(place, "format"), message);
                None
            }
        }
    }
}
