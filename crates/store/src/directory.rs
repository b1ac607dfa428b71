//! The data directory: lock, layout version, owner of external queues, and applying the result of recovery to the log's files.
//!
//! Content: `lock`, `version`, `state/` (the LSM library), `log/` (segments), `log.marks` and `state.mark` (the minimum
//! content of both), `queues` (owner name of the queues in another server).

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher as _;
use std::io;
use std::path::Path;

use disk::DirectoryLockError;

use crate::error::{StoreError, StoreOpenError, io_error};
use crate::log::file_system::FileSystem;
use crate::log::frame::LAYOUT_VERSION;
use crate::log::log_mark::{LogMark, LogMarksFile};
use crate::log::recovery::RecoveredLog;
use crate::log::segments::segment_path;
use crate::state::state_mark::StateMark;

pub(crate) const STATE: &str = "state";
pub(crate) const LOG: &str = "log";
const VERSION: &str = "version";
const QUEUES: &str = "queues";

/// Locks a directory for this process and creates it if needed; returns whether it is new.
pub(crate) fn lock_or_create(dir: &Path) -> Result<(File, bool), StoreOpenError> {
    let lock = disk::lock_directory(dir).map_err(|not_taken| match not_taken {
        DirectoryLockError::Locked => StoreOpenError::Locked {
            path: dir.to_owned(),
        },
        DirectoryLockError::Io { what, path, source } => {
            StoreError::Io { what, path, source }.into()
        }
    })?;
    let is_new = check_version(dir)?;
    let log = dir.join(LOG);
    fs::create_dir_all(&log).map_err(io_error("make the directory", &log))?;
    if is_new {
        // Before the version: every store with a version has marks.
        LogMarksFile::create(dir, LogMark::default(), None)?;
        StateMark::default().write(dir)?;
        write_version(dir).map_err(io_error("write its version to", dir))?;
    }
    Ok((lock, is_new))
}

/// Locks an existing store.
pub(crate) fn lock_existing(dir: &Path) -> Result<File, StoreOpenError> {
    if !dir.join(VERSION).exists() && !dir.join(STATE).exists() {
        return Err(StoreOpenError::Missing {
            path: dir.to_owned(),
        });
    }
    lock_or_create(dir).map(|(lock, _)| lock)
}

/// Checks the layout version; `true` if nothing was stored here yet.
fn check_version(dir: &Path) -> Result<bool, StoreOpenError> {
    let path = dir.join(VERSION);
    let refuse = |found: &str| StoreOpenError::Version {
        path: dir.to_owned(),
        found: found.chars().take(64).collect(),
        expected: LAYOUT_VERSION,
    };
    match fs::read_to_string(&path) {
        Ok(text) => {
            let number = text.strip_suffix('\n');
            let number = number.and_then(|text| text.strip_prefix("tidegate store "));
            match number.unwrap_or("unknown") {
                number if number.parse() == Ok(LAYOUT_VERSION) => Ok(false),
                other => Err(refuse(other)),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if dir.join(STATE).exists() {
                return Err(refuse("none (its file `version` is missing)"));
            }
            Ok(true)
        }
        Err(error) => Err(io_error("read", &path)(error).into()),
    }
}

fn write_version(dir: &Path) -> io::Result<()> {
    write_line(dir, VERSION, &format!("tidegate store {LAYOUT_VERSION}"))
}

fn write_line(dir: &Path, name: &str, line: &str) -> io::Result<()> {
    disk::replace_file(dir, name, format!("{line}\n").as_bytes())
}

/// The owner name under which this directory holds queues in another server, if any.
pub(crate) fn queues_owner(dir: &Path) -> Result<Option<String>, StoreOpenError> {
    let path = dir.join(QUEUES);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", &path)(error).into()),
    }
}

/// The record of the owner file in the marks.
pub(crate) fn queues_owner_mark(dir: &Path) -> Result<Option<u32>, StoreOpenError> {
    let owner = queues_owner(dir)?;
    Ok(owner.map(|owner| crc32c::crc32c(owner.as_bytes())))
}

/// Compares the owner file with its record in the marks.
pub(crate) fn check_queues_owner(dir: &Path, marked: Option<u32>) -> Result<(), StoreOpenError> {
    let found = queues_owner_mark(dir)?;
    let what = match (found, marked) {
        (None, Some(_)) => "is missing",
        (Some(found), Some(marked)) if found != marked => "is damaged",
        _ => return Ok(()),
    };
    Err(StoreOpenError::QueuesElsewhere {
        found: format!(
            "the file {} {what}, by which the queued messages of this directory are found in another server",
            dir.join(QUEUES).display()
        ),
        advice: "restore it from a backup, or give up what waits there: remove the file if it is there, and run \
                 `tidegate store repair`"
            .to_owned(),
    })
}

/// Generates a unique owner name.
pub(crate) fn generate_owner_name() -> String {
    // Keys of a hash map are sufficiently random for a name.
    let number = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", number(), number())
}

pub(crate) fn write_queues_owner(dir: &Path, owner: &str) -> Result<(), StoreOpenError> {
    write_line(dir, QUEUES, owner).map_err(io_error("write", &dir.join(QUEUES)))?;
    Ok(())
}

/// Removes the owner file after the first attempt to claim the server failed: nothing is queued there.
pub(crate) fn remove_queues_owner(dir: &Path) {
    // If it stays, a start without that server reports how to proceed.
    let _ = fs::remove_file(dir.join(QUEUES));
}

/// Cuts off a torn end, removes unused files, and syncs what may not be on disk.
pub(crate) fn apply_recovery(
    log_dir: &Path,
    files: &dyn FileSystem,
    recovered: &RecoveredLog,
) -> Result<(), StoreError> {
    let cut_segments = recovered.truncation.iter().flat_map(|cut| &cut.segments);
    // Youngest first: a crash in between leaves a log with a torn end.
    let mut gone: Vec<u32> = cut_segments
        .chain(&recovered.unused_segments)
        .copied()
        .collect();
    gone.sort_unstable();
    for &id in gone.iter().rev() {
        let path = segment_path(log_dir, id);
        files.remove(&path).map_err(io_error("remove", &path))?;
        files
            .sync_dir(log_dir)
            .map_err(io_error("force to disk", log_dir))?;
    }
    for segment in &recovered.segments {
        let path = segment_path(log_dir, segment.id);
        let is_last = recovered.segments.back().map(|last| last.id) == Some(segment.id);
        if is_last {
            // The prepared space behind the end is freed; a new segment follows.
            let truncated = segment.file.truncate(segment.used);
            truncated.map_err(io_error("cut", &path))?;
        }
        if is_last || segment.last_lsn > recovered.synced_lsn {
            let synced = segment.file.sync();
            synced.map_err(io_error("force to disk", &path))?;
        }
    }
    Ok(())
}
