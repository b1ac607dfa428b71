//! Why a definition of alarms is invalid.

use std::fmt;

/// An invalid field of a definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct AlarmDefinitionError {
    /// Path of the field, such as `alarms[0].raise[1].when.value`.
    pub field: String,
    pub detail: String,
}

impl AlarmDefinitionError {
    pub(crate) fn new(field: &str, detail: impl Into<String>) -> Self {
        Self {
            field: field.to_owned(),
            detail: detail.into(),
        }
    }
}

impl fmt::Display for AlarmDefinitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.field {
            "" => f.write_str(&self.detail),
            field => write!(f, "{field}: {}", self.detail),
        }
    }
}
