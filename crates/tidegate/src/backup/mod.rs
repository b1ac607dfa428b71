//! Backups of a node: all configuration objects, devices and telemetry in one file, made while the node runs and restored to a
//! stopped one. The format of the file is described in docs/internals/backups.md.

mod container;
mod directory;
mod restore;
mod write;

use store::SavedState;

pub(crate) use directory::Backups;
pub(crate) use restore::{restore, verify};
pub(crate) use write::{BackupLimits, BackupSources};

/// First entry: JSON that describes the backup.
const HEAD_ENTRY: &str = "backup.json";
/// JSON lines of all objects and rows of tables, as `tidegate store export` writes them.
const OBJECTS_ENTRY: &str = "objects.jsonl";
/// Prefix of the files of the telemetry.
const TELEMETRY_PREFIX: &str = "telemetry/";
/// Prefix of the complete files of devices and people.
const FILES_PREFIX: &str = "files/";

/// The entry with a part of the keyed state.
fn state_entry(state: SavedState) -> String {
    format!("{}.jsonl", state.name())
}

/// The part of the keyed state in an entry of this name.
fn state_of_entry(name: &str) -> Option<SavedState> {
    SavedState::ALL
        .into_iter()
        .find(|state| state_entry(*state) == name)
}

/// What the first entry contains.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct BackupHead {
    pub(crate) created_at_ms: u64,
    /// Version of the program.
    pub(crate) program: String,
    /// Bytes of all telemetry files.
    pub(crate) telemetry_bytes: u64,
    /// Rows in these files.
    pub(crate) telemetry_rows: u64,
    /// Complete files of devices and people, and their bytes, when the backup began.
    #[serde(default)]
    pub(crate) files: u64,
    #[serde(default)]
    pub(crate) file_bytes: u64,
}

/// Progress in bytes; the result is whether to continue.
pub(crate) type BackupProgress<'a> = dyn FnMut(u64) -> bool + 'a;
