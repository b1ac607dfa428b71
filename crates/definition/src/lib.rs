//! Reading of JSON that people write. Errors name the field and what is expected in plain words, without the texts that serde quotes,
//! which may be secrets.

mod redaction;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserializer;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::redaction::redact_quoted_texts;

/// A field that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field, such as `waves[0].percent`; empty: the object as a whole.
    pub field: String,
    /// What is expected, without full stop.
    pub detail: String,
}

/// Reads a definition. Its schema tells the range of a number that is expected in place of another value.
///
/// # Errors
/// Names the field and what is expected.
pub fn read_definition<'de, T, D>(json: D) -> Result<T, FieldError>
where
    T: DeserializeOwned + JsonSchema,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    serde_path_to_error::deserialize(json)
        .map_err(|error| FieldError::new(&error, Some(schema_of::<T>)))
}

/// Like [`read_definition`], for a type without a schema: the range is the one of the type of number.
///
/// # Errors
/// Names the field and what is expected.
pub fn read_json<'de, T, D>(json: D) -> Result<T, FieldError>
where
    T: DeserializeOwned,
    D: Deserializer<'de, Error = serde_json::Error>,
{
    serde_path_to_error::deserialize(json).map_err(|error| FieldError::new(&error, None))
}

fn schema_of<T: JsonSchema>() -> Value {
    let generator = SchemaGenerator::new(SchemaSettings::draft2020_12());
    generator.into_root_schema_for::<T>().to_value()
}

impl FieldError {
    fn new(
        error: &serde_path_to_error::Error<serde_json::Error>,
        schema: Option<fn() -> Value>,
    ) -> Self {
        let path = error.path();
        let field = match path.to_string() {
            all if all == "." || all == "?" => String::new(),
            field => field,
        };
        let bounds = |path: &Path| match schema {
            Some(schema) => {
                let document = schema();
                SchemaBounds::find(&document, path)
            }
            None => SchemaBounds::default(),
        };
        let detail = redact_quoted_texts(&error.inner().to_string());
        Self {
            field,
            detail: plain_words(&detail, || bounds(path)),
        }
    }
}

/// `field: detail`, or only the detail of the object as a whole.
impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.detail),
            field => write!(f, "{field}: {}", self.detail),
        }
    }
}

/// The limits of a number by its schema.
#[derive(Debug, Default, Clone, Copy)]
struct SchemaBounds {
    least: Option<i64>,
    most: Option<i64>,
}

impl SchemaBounds {
    fn find(document: &Value, path: &Path) -> Self {
        let segments: Vec<&Segment> = path.iter().collect();
        let mut found = Self::default();
        visit(document, document, &segments, 0, &mut |schema| {
            let limit = |name: &str| schema.get(name).and_then(Value::as_i64);
            found.least = found.least.or_else(|| limit("minimum"));
            found.most = found.most.or_else(|| limit("maximum"));
        });
        found
    }
}

/// Schemas in schemas; deeper ones are recursive.
const MAX_SCHEMA_DEPTH: usize = 32;

/// Calls `found` with each schema of the value at a path.
fn visit(
    document: &Value,
    schema: &Value,
    path: &[&Segment],
    depth: usize,
    found: &mut dyn FnMut(&Value),
) {
    if depth > MAX_SCHEMA_DEPTH {
        return;
    }
    let depth = depth + 1;
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.strip_prefix('#');
        if let Some(target) = target.and_then(|target| document.pointer(target)) {
            visit(document, target, path, depth, found);
        }
    }
    for name in ["anyOf", "oneOf", "allOf"] {
        for part in schema[name].as_array().into_iter().flatten() {
            visit(document, part, path, depth, found);
        }
    }
    let Some((first, rest)) = path.split_first() else {
        return found(schema);
    };
    let inner = match first {
        Segment::Map { key } => match &schema["properties"][key] {
            Value::Null => &schema["additionalProperties"],
            property => property,
        },
        Segment::Seq { index } => match &schema["prefixItems"][index] {
            Value::Null => &schema["items"],
            item => item,
        },
        Segment::Enum { .. } | Segment::Unknown => schema,
    };
    if inner.is_object() {
        visit(document, inner, rest, depth, found);
    }
}

/// Replaces `invalid type: FOUND, expected TYPE` and `unknown variant` of serde. Other errors, such as those of unknown
/// fields, are kept.
fn plain_words(error: &str, bounds: impl FnOnce() -> SchemaBounds) -> String {
    if let Some(rest) = error.strip_prefix("unknown variant ") {
        return format!("unknown value {rest}");
    }
    let begins = ["invalid type: ", "invalid value: "];
    let Some(rest) = begins.iter().find_map(|begin| error.strip_prefix(begin)) else {
        return error.to_owned();
    };
    let Some((found, expected)) = rest.rsplit_once(", expected ") else {
        return error.to_owned();
    };
    let (expected, position) = match expected.find(" at line ") {
        Some(at) => expected.split_at(at),
        None => (expected, ""),
    };
    let found = found_value(found);
    let expected = expected_value(expected, bounds).unwrap_or_else(|| expected.to_owned());
    format!("expected {expected}, found {found}{position}")
}

/// How a JSON value is called, given how serde calls it.
fn found_value(found: &str) -> &str {
    let quoted = found.split('`').nth(1);
    match found.split(' ').next().unwrap_or_default() {
        "sequence" => "an array",
        "map" => "an object",
        "integer" | "boolean" | "number" => quoted.unwrap_or(found),
        "floating" => quoted.unwrap_or(found),
        "unit" => "null",
        _ => found,
    }
}

fn expected_value(expected: &str, bounds: impl FnOnce() -> SchemaBounds) -> Option<String> {
    let of_type: (Option<i64>, Option<i64>) = match expected {
        "u8" => (Some(0), Some(u8::MAX.into())),
        "u16" => (Some(0), Some(u16::MAX.into())),
        "u32" => (Some(0), Some(u32::MAX.into())),
        "u64" | "usize" | "u128" => (Some(0), None),
        "i8" => (Some(i8::MIN.into()), Some(i8::MAX.into())),
        "i16" => (Some(i16::MIN.into()), Some(i16::MAX.into())),
        "i32" => (Some(i32::MIN.into()), Some(i32::MAX.into())),
        "i64" | "isize" | "i128" => (None, None),
        "f32" | "f64" => {
            let bounds = bounds();
            return Some(number("a number", bounds.least, bounds.most));
        }
        "a boolean" => return Some("true or false".to_owned()),
        "a string" => return Some("a text".to_owned()),
        "a sequence" => return Some("an array".to_owned()),
        "a map" => return Some("an object".to_owned()),
        "string or map" => return Some("a text or an object".to_owned()),
        nonzero if nonzero.starts_with("a nonzero ") => {
            return Some(number("a whole number", Some(1), bounds().most));
        }
        structure if structure.starts_with("struct ") => return Some("an object".to_owned()),
        _ => return None,
    };
    let bounds = bounds();
    let (least, most) = (bounds.least.or(of_type.0), bounds.most.or(of_type.1));
    Some(number("a whole number", least, most))
}

fn number(what: &str, least: Option<i64>, most: Option<i64>) -> String {
    match (least, most) {
        (Some(least), Some(most)) => format!("{what} from {least} to {most}"),
        (Some(least), None) => format!("{what} from {least}"),
        (None, Some(most)) => format!("{what} up to {most}"),
        (None, None) => what.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields, default)]
    #[derive(Default)]
    #[allow(dead_code)]
    struct Campaign {
        timeout_s: u32,
        #[schemars(range(min = 1, max = 100))]
        percent: Option<u8>,
        parts: Vec<Wave>,
        by_name: BTreeMap<String, Wave>,
        is_on: bool,
        until_ms: Option<u64>,
        offset: i64,
        share: f64,
        name: String,
        mode: Mode,
    }

    #[derive(Debug, Default, Deserialize, JsonSchema)]
    #[allow(dead_code)]
    struct Wave {
        #[schemars(range(min = 10, max = 20))]
        size: u16,
    }

    #[derive(Debug, Default, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        #[default]
        Fast,
    }

    fn error(value: Value) -> String {
        read_definition::<Campaign, _>(value)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn wrong_types_name_the_field_and_what_is_expected() {
        let cases = [
            (
                json!({"timeout_s": "pencil"}),
                "timeout_s: expected a whole number from 0 to 4294967295, found a text",
            ),
            (
                json!({"timeout_s": -1}),
                "timeout_s: expected a whole number from 0 to 4294967295, found -1",
            ),
            (
                json!({"timeout_s": 1.5}),
                "timeout_s: expected a whole number from 0 to 4294967295, found 1.5",
            ),
            (
                json!({"percent": 500}),
                "percent: expected a whole number from 1 to 100, found 500",
            ),
            (
                json!({"parts": [{"size": 10}, {"size": true}]}),
                "parts[1].size: expected a whole number from 10 to 20, found true",
            ),
            (
                json!({"by_name": {"a": {"size": []}}}),
                "by_name.a.size: expected a whole number from 10 to 20, found an array",
            ),
            (json!({"parts": 5}), "parts: expected an array, found 5"),
            (
                json!({"by_name": "x"}),
                "by_name: expected an object, found a text",
            ),
            (
                json!({"parts": [5]}),
                "parts[0]: expected an object, found 5",
            ),
            (
                json!({"is_on": "yes"}),
                "is_on: expected true or false, found a text",
            ),
            (
                json!({"until_ms": "tomorrow"}),
                "until_ms: expected a whole number from 0, found a text",
            ),
            (
                json!({"offset": {}}),
                "offset: expected a whole number, found an object",
            ),
            (
                json!({"share": "half"}),
                "share: expected a number, found a text",
            ),
            (json!({"name": null}), "name: expected a text, found null"),
            (json!("pencil"), "expected an object, found a text"),
        ];
        for (value, expected) in cases {
            assert_eq!(error(value), expected);
        }
        let unknown = error(json!({"tiemout_s": 1}));
        assert!(
            unknown.contains("unknown field `tiemout_s`, expected one of `timeout_s`"),
            "{unknown}"
        );
        let variant = error(json!({"mode": "slow"}));
        assert!(
            variant.starts_with("mode: unknown value `slow`, expected `fast`"),
            "{variant}"
        );
    }

    #[test]
    fn types_without_schema_have_the_range_of_their_numbers() {
        let read = read_json::<BTreeMap<String, u8>, _>(json!({"a": 300}));
        assert_eq!(
            read.unwrap_err().to_string(),
            "a: expected a whole number from 0 to 255, found 300"
        );
        let mut text = serde_json::Deserializer::from_str("{\"a\": \"pencil\"}");
        let read = read_json::<BTreeMap<String, u8>, _>(&mut text);
        assert_eq!(
            read.unwrap_err().to_string(),
            "a: expected a whole number from 0 to 255, found a text at line 1 column 14"
        );
    }
}
