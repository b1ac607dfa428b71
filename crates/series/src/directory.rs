//! The store's directory: its lock and its layout version.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use disk::DirectoryLockError;

use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::file_operations::sync_dir;
use crate::inspection::Inspection;
use crate::partitioning::PARTITION_COUNT;
use crate::segment::{Segment, SegmentMeta};
use crate::series_marks::{ExpectedContents, Manifest, SeriesMarks};

pub(crate) const WAL: &str = "wal";
pub(crate) const SEGMENTS: &str = "segments";
const VERSION: &str = "version";

fn lock(dir: &Path) -> Result<File, SeriesOpenError> {
    disk::lock_directory(dir).map_err(|not_taken| match not_taken {
        DirectoryLockError::Locked => SeriesOpenError::Locked {
            path: dir.to_owned(),
        },
        DirectoryLockError::Io { what, path, source } => {
            SeriesError::Io { what, path, source }.into()
        }
    })
}

pub(crate) fn expected_version(window_ms: i64) -> String {
    format!("tidegate series 2\nwindow_ms {window_ms}\n")
}

fn read_version(dir: &Path) -> Result<Option<String>, SeriesOpenError> {
    let path = dir.join(VERSION);
    match fs::read(&path) {
        Ok(found) => Ok(Some(String::from_utf8_lossy(&found).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", &path)(error).into()),
    }
}

fn version_error(dir: &Path, found: &str, expected: &str) -> SeriesOpenError {
    SeriesOpenError::Version {
        path: dir.to_owned(),
        found: found.trim().chars().take(64).collect(),
        expected: expected.trim().to_owned(),
    }
}

fn missing_version_error(dir: &Path, expected: &str) -> SeriesOpenError {
    version_error(dir, "none (its file `version` is missing)", expected)
}

/// Locks an existing directory without changing anything in it.
pub(crate) fn lock_existing(dir: &Path, window_ms: i64) -> Result<File, SeriesOpenError> {
    let expected = expected_version(window_ms);
    match read_version(dir)? {
        Some(found) if found == expected => lock(dir),
        Some(found) => Err(version_error(dir, &found, &expected)),
        None => Err(missing_version_error(dir, &expected)),
    }
}

/// Locks a directory for this process; creates it if it does not exist.
pub(crate) fn lock_or_create(dir: &Path, window_ms: i64) -> Result<File, SeriesOpenError> {
    let lock = lock(dir)?;
    let expected = expected_version(window_ms);
    match read_version(dir)? {
        Some(found) if found == expected => {}
        Some(found) => return Err(version_error(dir, &found, &expected)),
        None if dir.join(WAL).exists() => return Err(missing_version_error(dir, &expected)),
        None => {
            // Written before the version: every directory with a version also has these.
            Manifest::default().write(dir)?;
            SeriesMarks::create(dir, [0; PARTITION_COUNT], 0, 0)?;
            let written = disk::replace_file(dir, VERSION, expected.as_bytes());
            written.map_err(io_error("write the version to", dir))?;
        }
    }
    for name in [WAL, SEGMENTS] {
        let path = dir.join(name);
        fs::create_dir_all(&path).map_err(io_error("create the directory", &path))?;
    }
    sync_dir(dir)?;
    Ok(lock)
}

/// Opens all segment files, and removes what a crash left: unfinished files, and files that others replace.
/// Also returns the number of the next file.
pub(crate) fn open_segments(
    dir: &Path,
    expected: &ExpectedContents,
    inspection: &mut Inspection,
) -> Result<(Vec<Segment>, u64), SeriesOpenError> {
    let mut found = Vec::new();
    let mut unfinished = Vec::new();
    let mut broken = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let path = entry.map_err(io_error("list", dir))?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("new") => unfinished.push(path),
            Some("seg") => match Segment::open(path.clone()) {
                Ok(segment) => found.push(segment),
                Err(error) => {
                    inspection.report_open_error(error)?;
                    broken.push(path);
                }
            },
            _ => {}
        }
    }
    let replaced: HashSet<u64> = found
        .iter()
        .flat_map(|segment| segment.meta.replaces.iter().copied())
        .collect();
    for file in expected.missing_files(&found, &replaced) {
        let path = dir.join(SegmentMeta::file_name(file.partition, file.window, file.id));
        if !broken.contains(&path) {
            let detail = "the file is missing, and with it the rows of its devices and its time";
            inspection.report_damage(&path, 0, detail)?;
        }
    }
    let ids = found.iter().map(|segment| segment.meta.id);
    let next_id = ids.chain(replaced.iter().copied()).max().unwrap_or(0) + 1;
    let (gone, kept): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|segment| replaced.contains(&segment.meta.id));
    if inspection.is_writing() {
        let gone = gone.iter().map(|segment| segment.path.clone());
        for path in unfinished.into_iter().chain(gone).chain(broken) {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
    }
    Ok((kept, next_id.max(expected.manifest.next_file_id)))
}
