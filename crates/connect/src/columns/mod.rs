//! Mapping of rows to typed columns for Parquet and CSV files.

mod parquet_writer;
mod record;
mod schema;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::row::SinkRow;
use crate::settings::{SettingsError, check_range};
use crate::template::Template;
pub use parquet_writer::ParquetWriter;
pub(crate) use record::MAX_RECORD_BYTES;
pub use schema::{ColumnSchema, ColumnType};

const MAX_COLUMNS: usize = 1000;
const MAX_NAME_BYTES: usize = 200;

/// Setting of a column.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnSetting {
    #[schemars(length(min = 1, max = 200))]
    pub(crate) name: String,
    /// Value, as `${payload.t}`.
    pub(crate) value: String,
    /// Type of the column in a Parquet file. A row whose value cannot be converted becomes a dead letter; a missing value
    /// is null.
    #[serde(rename = "type")]
    pub(crate) of: Option<ColumnType>,
}

/// Row groups of a Parquet file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ParquetLayout {
    /// Maximum number of rows in a row group, which is written and read as a unit.
    #[schemars(range(min = 1, max = 10_000_000))]
    row_group_rows: usize,
    /// Approximate maximum size of a row group in bytes; writing a file needs as much memory.
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    row_group_bytes: usize,
    compression: ParquetCompression,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ParquetCompression {
    #[default]
    Snappy,
    None,
}

impl Default for ParquetLayout {
    fn default() -> Self {
        Self {
            row_group_rows: 100_000,
            row_group_bytes: 32 << 20,
            compression: ParquetCompression::Snappy,
        }
    }
}

impl ParquetLayout {
    /// Limits a row group to this number of rows and approximately this number of bytes.
    pub fn new(row_group_rows: usize, row_group_bytes: usize) -> Self {
        Self {
            row_group_rows,
            row_group_bytes,
            ..Self::default()
        }
    }

    /// `field` is the name of the setting, for errors.
    pub(crate) fn check(&self, field: &str) -> Result<(), SettingsError> {
        let rows = format!("{field}.row_group_rows");
        check_range(&rows, self.row_group_rows, 1..=10_000_000)?;
        let bytes = format!("{field}.row_group_bytes");
        check_range(&bytes, self.row_group_bytes, 65_536..=1 << 30)
    }
}

/// The columns of a file and the templates of their values.
pub(crate) struct ColumnMapping {
    schema: ColumnSchema,
    values: Vec<Template>,
}

impl ColumnMapping {
    /// Creates it from the setting `columns`.
    pub(crate) fn new(settings: &[ColumnSetting]) -> Result<Self, SettingsError> {
        if settings.is_empty() || settings.len() > MAX_COLUMNS {
            let detail = format!("expected 1 to {MAX_COLUMNS}");
            return Err(SettingsError::new("columns", detail));
        }
        let mut columns = Self {
            schema: ColumnSchema(Vec::new()),
            values: Vec::new(),
        };
        for (at, setting) in settings.iter().enumerate() {
            let field = |name: &str| format!("columns[{at}].{name}");
            let is_name = !setting.name.is_empty() && setting.name.len() <= MAX_NAME_BYTES;
            let mut known = columns.schema.0.iter();
            if !is_name || known.any(|(name, _)| *name == setting.name) {
                let detail = format!("expected 1 to {MAX_NAME_BYTES} bytes, each name once");
                return Err(SettingsError::new(&field("name"), detail));
            }
            let value = Template::parse(&field("value"), &setting.value)?;
            columns.values.push(value);
            let of = setting.of.unwrap_or_default();
            columns.schema.0.push((setting.name.clone(), of));
        }
        Ok(columns)
    }

    pub(crate) fn shape(&self) -> &ColumnSchema {
        &self.schema
    }

    /// Appends the record of a row, or returns which column its value does not fit and appends nothing.
    pub(crate) fn add(&self, row: SinkRow<'_>, out: &mut Vec<u8>) -> Result<(), String> {
        let start = out.len();
        let mut scratch = Vec::new();
        for ((name, of), template) in self.schema.0.iter().zip(&self.values) {
            let value = template.value(row, &mut scratch);
            if let Err(what) = record::put_value(*of, value, out) {
                out.truncate(start);
                return Err(format!("column {name}: {what}"));
            }
        }
        if out.len() - start > MAX_RECORD_BYTES {
            out.truncate(start);
            let mib = MAX_RECORD_BYTES >> 20;
            return Err(format!("the row is larger than {mib} MiB"));
        }
        Ok(())
    }
}
