//! Parsing of hand-written JSON: single values in place of lists, and errors that name the field.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// One value, or a list of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OneOrMany<T>(pub(crate) Vec<T>);

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let values = match value {
            Value::Null => Vec::new(),
            Value::Array(values) => values,
            one => vec![one],
        };
        let read = |value| definition::read_json::<T, _>(value).map_err(serde::de::Error::custom);
        Ok(Self(
            values.into_iter().map(read).collect::<Result<_, _>>()?,
        ))
    }
}

/// Deserializes a value; the error text is meant for operators.
pub(crate) fn parse<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    definition::read_json(value).map_err(|error| error.to_string())
}

pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
