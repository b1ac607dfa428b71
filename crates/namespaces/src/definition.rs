//! A namespace as it is written: name, state and quotas.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::DEFAULT;
use crate::quota::Quotas;

const MAX_ID_BYTES: usize = 64;
const MAX_NAME_CHARS: usize = 256;
const MAX_TEXT_CHARS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NamespaceState {
    #[default]
    Active,
    /// Its operators and API keys are rejected, and its devices cannot connect.
    Disabled,
}

/// A namespace as written by an admin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NamespaceDefinition {
    /// Display name; default: the id.
    #[schemars(length(max = 256))]
    pub name: String,
    #[schemars(length(max = 1000))]
    pub description: String,
    pub state: NamespaceState,
    /// Why it is disabled, shown to its operators; required then.
    #[schemars(length(max = 1000))]
    pub reason: String,
    pub quotas: Quotas,
}

/// A field of a namespace with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceError {
    /// Path of the field; empty: the namespace as a whole.
    pub field: String,
    pub detail: String,
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.detail),
            field => write!(f, "{field}: {}", self.detail),
        }
    }
}

fn invalid(field: impl Into<String>, detail: impl Into<String>) -> NamespaceError {
    NamespaceError {
        field: field.into(),
        detail: detail.into(),
    }
}

/// Checks the id of a namespace. Ids are part of topics and paths, so few characters are allowed.
///
/// # Errors
/// States what is expected.
pub fn check_id(id: &str) -> Result<(), NamespaceError> {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    match (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(invalid(
            "id",
            format!("expected 1 to {MAX_ID_BYTES} of the characters a-z, 0-9, _ and -"),
        )),
    }
}

impl NamespaceDefinition {
    /// # Errors
    /// Returns the path of the invalid field and what is wrong with it.
    pub fn read(id: &str, value: &Value) -> Result<Self, NamespaceError> {
        check_id(id)?;
        let read: Result<Self, _> = definition::read_definition(value);
        let namespace = read.map_err(|error| invalid(&error.field, error.detail))?;
        for (field, text, most) in [
            ("name", &namespace.name, MAX_NAME_CHARS),
            ("description", &namespace.description, MAX_TEXT_CHARS),
            ("reason", &namespace.reason, MAX_TEXT_CHARS),
        ] {
            if text.chars().count() > most {
                return Err(invalid(
                    field,
                    format!("expected at most {most} characters"),
                ));
            }
        }
        match namespace.state {
            NamespaceState::Active if !namespace.reason.is_empty() => Err(invalid(
                "reason",
                "expected none for an active namespace; it explains why a namespace is disabled",
            )),
            NamespaceState::Disabled if namespace.reason.trim().is_empty() => Err(invalid(
                "reason",
                "expected why the namespace is disabled; its operators see it",
            )),
            NamespaceState::Disabled if id == DEFAULT => {
                Err(invalid("state", "the default namespace cannot be disabled"))
            }
            _ => Ok(namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_the_field() {
        let field = |id: &str, value: Value| {
            let read = NamespaceDefinition::read(id, &value);
            read.expect_err("invalid").field
        };
        for id in ["", "A", "a/b", "a b", "ä"] {
            assert_eq!(field(id, json!({})), "id", "{id:?}");
        }
        assert_eq!(
            field("a", json!({"quotas": {"groups": -1}})),
            "quotas.groups"
        );
        assert_eq!(field("a", json!({"quotas": {"group": 1}})), "quotas.group");
        assert_eq!(field("a", json!({"state": "disabled"})), "reason");
        assert_eq!(field("a", json!({"reason": "unpaid"})), "reason");
        let disabled = json!({"state": "disabled", "reason": "unpaid"});
        assert_eq!(field(DEFAULT, disabled.clone()), "state");
        assert!(NamespaceDefinition::read("a", &disabled).is_ok());
    }
}
