//! Settings of file connectors and their sinks.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::content::AfterExport;

#[cfg(feature = "parquet")]
use crate::columns::ColumnSetting as Column;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSettings {
    /// Directory below `sinks/files` in the node's data directory; created if needed.
    #[serde(default)]
    pub(super) directory: PathBuf,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FileSinkSettings {
    /// Name of the current file, as `telemetry.jsonl`. Names of rotated files contain the time. With format `content` the
    /// path of each file below the directory of the connector, with date and placeholders, as `%Y/%m/${deviceId}/${name}`;
    /// an existing file is replaced.
    pub(super) file: String,
    #[serde(default)]
    pub(super) format: FileFormat,
    /// Template of each line with format `lines`. Default: the whole row as JSON.
    pub(super) line: Option<String>,
    /// Columns of a CSV or Parquet file, in order: name and value, as `{"name": "t", "value": "${payload.t}"}`; in
    /// Parquet also a type.
    #[serde(default)]
    pub(super) columns: Vec<Column>,
    /// Row groups of a Parquet file.
    #[cfg(feature = "parquet")]
    pub(super) parquet: Option<crate::columns::ParquetLayout>,
    #[serde(default)]
    pub(super) rotate: RotationSettings,
    /// Syncs the file to disk after each batch.
    #[serde(default)]
    pub(super) sync: bool,
    /// With format `content`, whether a file stays on the node after its export.
    #[serde(default)]
    pub(super) after: AfterExport,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum FileFormat {
    /// A line for each row.
    #[default]
    Lines,
    /// Comma-separated values with a header line at the beginning of each file.
    Csv,
    /// Typed columns. A file appears when it is complete, that is when the next one is begun; until then its rows are in
    /// `FILE.rows`.
    #[cfg(feature = "parquet")]
    Parquet,
    /// Copies of files of the node: a row contains the id of a file in its field `id`, as the event `$events/file/received`.
    Content,
}

#[cfg(not(feature = "parquet"))]
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) value: String,
}

/// When a new file is begun.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RotationSettings {
    #[schemars(range(min = 1024))]
    pub(super) max_bytes: u64,
    /// Maximum age in seconds. Default: unlimited.
    #[schemars(range(min = 1))]
    pub(super) max_age_s: Option<u64>,
    /// Number of rotated files to keep; older ones are deleted.
    #[schemars(range(min = 1, max = 100_000))]
    pub(super) max_files: usize,
}

impl Default for RotationSettings {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 20,
            max_age_s: None,
            max_files: 16,
        }
    }
}
