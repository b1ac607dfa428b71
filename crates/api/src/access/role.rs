//! Roles of callers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The role of a caller; each role includes those before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May read.
    Viewer,
    /// May control clients and messages, and change who may connect.
    Operator,
    /// May do everything.
    Admin,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}
