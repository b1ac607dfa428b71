//! What can go wrong, for those who decide what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// What was asked was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeriesError {
    /// A file operation failed.
    #[error("the telemetry store cannot {what} {}: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// What is stored cannot be read.
    #[error("{} of the telemetry store is damaged at byte {offset}: {detail}", path.display())]
    Damaged {
        path: PathBuf,
        offset: u64,
        detail: &'static str,
    },
    /// There is no room to accept more.
    #[error("the telemetry store is full: {0}")]
    Full(&'static str),
    /// Rows come faster than segment files are written, for longer than a caller may be held.
    #[error("the telemetry store is behind with writing; try again later")]
    Busy,
    /// A row from ahead of the clock.
    #[error(
        "time {ts_ms} ms is more than {max_future_ms} ms in the future; set the device's clock"
    )]
    Future { ts_ms: i64, max_future_ms: i64 },
    /// A row that retention would take at once.
    #[error("time {ts_ms} ms is older than the longest retention, {retention_ms} ms")]
    TooOld { ts_ms: i64, retention_ms: i64 },
    /// One row larger than the bound.
    #[error("a row has {found} {unit}, and {max} is the most")]
    RowTooLarge {
        found: usize,
        unit: &'static str,
        max: usize,
    },
    /// A row without points.
    #[error("a row has no points")]
    EmptyRow,
    /// A number nobody got from [`get_or_create_key`](crate::Series::get_or_create_key).
    #[error("there is no key with number {0}")]
    UnknownKey(u32),
    /// A name that cannot be one.
    #[error("a key's name has {found} bytes; expected 1 to {max}")]
    KeyName { found: usize, max: usize },
    /// The dictionary is full.
    #[error(
        "there are {max} keys already; names that are made up for each message fill the dictionary"
    )]
    TooManyKeys { max: u32 },
    /// A query that cannot be.
    #[error("{field} is {found}; expected {expected}")]
    Query {
        field: &'static str,
        found: i64,
        expected: &'static str,
    },
    /// It was closed.
    #[error("the telemetry store is closed")]
    Closed,
}

/// A directory that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeriesOpenError {
    /// Somebody else has it open.
    #[error("another process is using the telemetry store {}; stop it first", path.display())]
    Locked { path: PathBuf },
    /// Made by a version with another layout.
    #[error(
        "the telemetry store {} has layout {found:?}, and this program reads {expected:?}; use the program that wrote it, or \
         restore the file `version` from a backup if it is damaged",
        path.display()
    )]
    Version {
        path: PathBuf,
        found: String,
        expected: String,
    },
    /// Damage that is not a cut-off end.
    #[error(
        "{} is damaged at byte {offset}: {detail}. Nothing was changed. Restore a backup of the directory, or keep what can \
         be read with `tidegate store repair`",
        path.display()
    )]
    Damaged {
        path: PathBuf,
        offset: u64,
        detail: String,
    },
    /// A setting that cannot be.
    #[error("{field} is {found}; expected {expected}")]
    Setting {
        field: &'static str,
        found: String,
        expected: String,
    },
    #[error(transparent)]
    Other(#[from] SeriesError),
}

/// Turns the error of a file operation into one that says what was being done to which file.
pub(crate) fn io_error<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> SeriesError + 'a {
    move |source| SeriesError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}
