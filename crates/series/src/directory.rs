//! The directory: whose it is and which layout it has.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::Path;

use crate::error::{OpenError, io_error};
use crate::wal::log::sync_dir;

pub(crate) const WAL: &str = "wal";
pub(crate) const SEGMENTS: &str = "segments";
const VERSION: &str = "version";

/// Takes a directory for this process, and makes it if it is not there.
pub(crate) fn take(dir: &Path, window_ms: i64) -> Result<File, OpenError> {
    fs::create_dir_all(dir).map_err(io_error("make the directory", dir))?;
    let path = dir.join("lock");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let lock = lock.map_err(io_error("open", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(OpenError::Locked {
                path: dir.to_owned(),
            });
        }
        Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error).into()),
    }
    let expected = format!("tidegate series 1\nwindow_ms {window_ms}\n");
    let path = dir.join(VERSION);
    let found = match fs::read_to_string(&path) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error("read", &path)(error).into()),
    };
    match found {
        Some(found) if found == expected => {}
        Some(found) => {
            return Err(OpenError::Version {
                path: dir.to_owned(),
                found: found.trim().chars().take(64).collect(),
                expected: expected.trim().to_owned(),
            });
        }
        None if dir.join(WAL).exists() => {
            return Err(OpenError::Version {
                path: dir.to_owned(),
                found: "none (its file `version` is missing)".to_owned(),
                expected: expected.trim().to_owned(),
            });
        }
        None => {
            let unfinished = dir.join("version.new");
            let write = || {
                let mut file = File::create(&unfinished)?;
                file.write_all(expected.as_bytes())?;
                file.sync_all()?;
                fs::rename(&unfinished, &path)
            };
            write().map_err(io_error("write its version to", dir))?;
        }
    }
    for name in [WAL, SEGMENTS] {
        let path = dir.join(name);
        fs::create_dir_all(&path).map_err(io_error("make the directory", &path))?;
    }
    sync_dir(dir)?;
    Ok(lock)
}
