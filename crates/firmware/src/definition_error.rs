//! Why the JSON of a package or an assignment is invalid.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A field with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct DefinitionError {
    /// Path of the field; empty: the object as a whole.
    pub field: String,
    /// A sentence without its full stop.
    pub detail: String,
}

impl DefinitionError {
    pub(crate) fn new(field: &str, detail: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            detail: detail.into(),
        }
    }
}

pub(crate) fn read_definition<T: DeserializeOwned + JsonSchema>(
    value: &Value,
) -> Result<T, DefinitionError> {
    definition::read_definition(value)
        .map_err(|error| DefinitionError::new(&error.field, error.detail))
}

pub(crate) fn check_length(
    field: &str,
    text: &str,
    (least, most): (usize, usize),
) -> Result<(), DefinitionError> {
    let count = text.chars().count();
    match (least..=most).contains(&count) {
        true => Ok(()),
        false => {
            let detail = format!("expected {least} to {most} characters, not {count}");
            Err(DefinitionError::new(field, detail))
        }
    }
}
