//! The error for an invalid rule definition.

/// An invalid rule definition: the field, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct RuleDefinitionError {
    /// Field path such as `sql` or `actions[1].topic`; empty for the rule as a whole.
    pub field: String,
    pub detail: String,
}

impl RuleDefinitionError {
    pub(crate) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            detail: detail.into(),
        }
    }
}
