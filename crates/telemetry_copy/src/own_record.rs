//! What this node remembers of the copy of its telemetry.

use std::io;
use std::path::Path;

use disk::CheckedLineState;
use serde::{Deserialize, Serialize};

const FILE: &str = "own-copy";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OwnRecord {
    /// Random number of the time series of this node.
    pub(crate) series: u64,
    pub(crate) copy: Option<ChosenCopy>,
}

/// A copy at a standby.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChosenCopy {
    pub(crate) standby: String,
    /// Random number of the copy.
    pub(crate) copy: u64,
}

impl OwnRecord {
    /// `None`: there is none, or it is damaged. A new one then begins a new copy, and the present one stays as that of other time series.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub(crate) fn read(directory: &Path) -> io::Result<Option<Self>> {
        Ok(match disk::read_checked_line(&directory.join(FILE))? {
            CheckedLineState::Missing => None,
            CheckedLineState::Damaged => {
                tracing::warn!(
                    "the record of the copy of the telemetry is damaged; a new copy is made"
                );
                None
            }
            CheckedLineState::Intact(line) => serde_json::from_str(&line).ok(),
        })
    }

    /// # Errors
    /// If the file system returns an error.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let line = serde_json::to_string(self).map_err(io::Error::other)?;
        disk::write_checked_line(directory, FILE, &line)
    }
}
