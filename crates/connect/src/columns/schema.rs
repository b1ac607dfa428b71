//! Names and types of columns.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ColumnType {
    #[default]
    Text,
    Bool,
    /// 64-bit integer.
    Int,
    /// 64-bit float.
    Float,
    /// Milliseconds since 1970.
    TimestampMs,
    /// JSON text.
    Json,
    /// Any bytes.
    Bytes,
}

/// Names and types of columns without their templates, which suffices to read records.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSchema(pub(super) Vec<(String, ColumnType)>);

impl ColumnSchema {
    /// Creates it from unique names and their types.
    pub fn new(columns: &[(&str, ColumnType)]) -> Self {
        let columns = columns.iter();
        Self(
            columns
                .map(|(name, of)| ((*name).to_owned(), *of))
                .collect(),
        )
    }
}
