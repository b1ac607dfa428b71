//! Exports of files in memory and on the disk: their states by file and sink.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use disk::CheckedLineState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file_directory::FileDirectory;

/// The file in the directory of a file that contains its exports.
pub(crate) const EXPORTS_FILE: &str = "exports";

/// How far an export is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExportState {
    /// It waits for its sink, or for the next attempt.
    Waiting,
    /// Its sink sends the file.
    Running,
    /// The target has the file.
    Complete,
    /// The sink has given up; `error` is the reason.
    Failed,
}

impl ExportState {
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Running, Self::Complete, Self::Failed];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Failed => "failed",
        }
    }

    /// Whether the sink has still to do something.
    #[must_use]
    pub fn is_active(self) -> bool {
        matches!(self, Self::Waiting | Self::Running)
    }
}

/// The export of a file by one sink.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FileExport {
    /// Name of the sink.
    pub sink: String,
    pub state: ExportState,
    /// Bytes sent by the present attempt, or by the last one.
    pub sent_bytes: u64,
    /// Number of attempts.
    pub attempts: u32,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// Where the file is, as the sink describes it; only of a complete export.
    pub location: Option<String>,
    /// Time of the last change of the state.
    pub updated_at_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredExport {
    pub(crate) state: ExportState,
    /// The row that the sink gets for it; `null` once it is complete.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) row: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<String>,
    pub(crate) sent_bytes: u64,
    pub(crate) attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) location: Option<String>,
    pub(crate) updated_at_ms: u64,
    /// The file is deleted when all its exports are complete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) deletes_file: bool,
}

/// Called with a sink, a file, and the position that the attempts of a cancelled export have stored.
pub type ExportDiscard = Box<dyn Fn(&str, &str, &str) + Send + Sync>;

pub(crate) type ExportsOfFile = BTreeMap<String, StoredExport>;

/// The exports of all files. Its lock is never held while another one is taken, nor over the disk.
#[derive(Default)]
pub(crate) struct ExportTable {
    pub(crate) by_file: HashMap<Box<str>, ExportsOfFile>,
    /// Files with exports that are only in memory.
    pub(crate) unstored: HashSet<Box<str>>,
}

impl ExportTable {
    pub(crate) fn get_mut(&mut self, file: &str, sink: &str) -> Option<&mut StoredExport> {
        self.by_file.get_mut(file)?.get_mut(sink)
    }

    pub(crate) fn remove_file(&mut self, file: &str) -> ExportsOfFile {
        self.unstored.remove(file);
        self.by_file.remove(file).unwrap_or_default()
    }

    /// Whether a file has an export that is not complete.
    pub(crate) fn has_incomplete(&self, file: &str) -> bool {
        let exports = self.by_file.get(file).into_iter().flatten();
        exports
            .into_iter()
            .any(|(_, export)| export.state != ExportState::Complete)
    }

    pub(crate) fn deletes_file(&self, file: &str) -> bool {
        let exports = self.by_file.get(file).into_iter().flatten();
        exports.into_iter().any(|(_, export)| export.deletes_file)
    }

    pub(crate) fn of_file(&self, file: &str) -> Vec<FileExport> {
        let exports = self.by_file.get(file).into_iter().flatten();
        let views = exports.map(|(sink, export)| FileExport {
            sink: sink.clone(),
            state: export.state,
            sent_bytes: export.sent_bytes,
            attempts: export.attempts,
            error: export.error.clone(),
            location: export.location.clone(),
            updated_at_ms: export.updated_at_ms,
        });
        views.collect()
    }
}

impl FileDirectory {
    /// The stored exports of a file. Damage is logged, and counts as none: the file is kept, and can be exported again.
    pub(crate) fn read_exports(&self) -> io::Result<ExportsOfFile> {
        let path = self.path().join(EXPORTS_FILE);
        let read = match disk::read_checked_line(&path)? {
            CheckedLineState::Missing => return Ok(ExportsOfFile::new()),
            CheckedLineState::Damaged => Err("its checksum differs".to_owned()),
            CheckedLineState::Intact(line) => {
                serde_json::from_str(&line).map_err(|error| error.to_string())
            }
        };
        Ok(read.unwrap_or_else(|problem| {
            tracing::error!(
                path = %path.display(),
                problem,
                "the record of the exports of a file is damaged and ignored; export the file again where needed"
            );
            ExportsOfFile::new()
        }))
    }

    pub(crate) fn write_exports(&self, exports: &ExportsOfFile) -> io::Result<()> {
        if exports.is_empty() {
            return match std::fs::remove_file(self.path().join(EXPORTS_FILE)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let line = serde_json::to_string(exports).map_err(io::Error::other)?;
        disk::write_checked_line(self.path(), EXPORTS_FILE, &line)
    }
}
