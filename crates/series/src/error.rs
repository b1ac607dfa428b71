//! Errors of the store, separated by how callers react to them.

use std::io;
use std::path::{Path, PathBuf};

/// An operation that was not carried out.
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
    /// Stored data cannot be read.
    #[error("{} of the telemetry store is damaged at byte {offset}: {detail}", path.display())]
    Damaged {
        path: PathBuf,
        offset: u64,
        detail: &'static str,
    },
    /// There is no room to accept more rows.
    #[error("the telemetry store is full: {0}")]
    Full(&'static str),
    /// Rows arrive faster than segment files are written, for longer than a caller may be blocked.
    #[error("the telemetry store is behind with writing; try again later")]
    Busy,
    /// A row whose time is ahead of the clock.
    #[error(
        "time {ts_ms} ms is more than {max_future_ms} ms in the future; set the device's clock"
    )]
    Future { ts_ms: i64, max_future_ms: i64 },
    /// A row that retention would remove immediately.
    #[error("time {ts_ms} ms is older than the longest retention, {retention_ms} ms")]
    TooOld { ts_ms: i64, retention_ms: i64 },
    /// A row that exceeds a limit.
    #[error("a row has {found} {unit}; the maximum is {max}")]
    RowTooLarge {
        found: usize,
        unit: &'static str,
        max: usize,
    },
    /// A row without points.
    #[error("a row has no points")]
    EmptyRow,
    /// A number that [`get_or_create_key`](crate::Series::get_or_create_key) has not returned, or that is only
    /// [reserved](crate::Series::reserve_key).
    #[error("there is no key with number {0}")]
    UnknownKey(u32),
    /// An invalid name.
    #[error("a key's name has {found} bytes; expected 1 to {max}")]
    KeyName { found: usize, max: usize },
    /// The dictionary is full.
    #[error(
        "the limit of {max} keys is reached; key names generated for each message fill the dictionary"
    )]
    TooManyKeys { max: u32 },
    /// An invalid query.
    #[error("{field} is {found}; expected {expected}")]
    Query {
        field: &'static str,
        found: i64,
        expected: &'static str,
    },
    /// The store is closed.
    #[error("the telemetry store is closed")]
    Closed,
}

/// A directory that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeriesOpenError {
    /// Another process has it open.
    #[error("another process is using the telemetry store {}; stop it first", path.display())]
    Locked { path: PathBuf },
    /// Written by a version with another layout.
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
    /// Damage other than a truncated end.
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
    /// An invalid setting.
    #[error("{field} is {found}; expected {expected}")]
    Setting {
        field: &'static str,
        found: String,
        expected: String,
    },
    #[error(transparent)]
    Other(#[from] SeriesError),
}

/// Wraps the error of a file operation with the operation and the file.
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
