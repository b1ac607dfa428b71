//! What is wrong with a rule.

/// A rule that is not taken: the field and what was expected of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct RuleDefinitionError {
    /// Such as `sql` or `actions[1].topic`; empty: the rule as a whole.
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
