//! The directory: whose it is and which layout it has.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use disk::NotTaken;

use crate::error::{Error, OpenError, io_error};
use crate::segment::Segment;
use crate::wal::log::sync_dir;

pub(crate) const WAL: &str = "wal";
pub(crate) const SEGMENTS: &str = "segments";
const VERSION: &str = "version";

/// Takes a directory for this process, and makes it if it is not there.
pub(crate) fn take(dir: &Path, window_ms: i64) -> Result<File, OpenError> {
    let lock = disk::take(dir).map_err(|not_taken| match not_taken {
        NotTaken::Held => OpenError::Locked {
            path: dir.to_owned(),
        },
        NotTaken::Io { what, path, source } => Error::Io { what, path, source }.into(),
    })?;
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
            let written = disk::replace(dir, VERSION, expected.as_bytes());
            written.map_err(io_error("write its version to", dir))?;
        }
    }
    for name in [WAL, SEGMENTS] {
        let path = dir.join(name);
        fs::create_dir_all(&path).map_err(io_error("make the directory", &path))?;
    }
    sync_dir(dir)?;
    Ok(lock)
}

/// Opens a file that grows by entries behind its head, and reads it. One that is new, or whose head is cut off, gets the head.
pub(crate) fn list(path: &Path, head: &[u8]) -> Result<(File, Vec<u8>), OpenError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let mut file = file.map_err(io_error("open", path))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(io_error("read", path))?;
    if bytes.len() < head.len() && head.starts_with(&bytes) {
        file.seek(SeekFrom::Start(0))
            .map_err(io_error("write", path))?;
        file.write_all(head).map_err(io_error("write", path))?;
        file.sync_all().map_err(io_error("force to disk", path))?;
        bytes = head.to_vec();
    }
    Ok((file, bytes))
}

/// Opens all segment files, and removes what a crash left behind: unfinished ones, and those that others replace. Tells also the
/// number of the next file.
pub(crate) fn segments(dir: &Path) -> Result<(Vec<Segment>, u64), OpenError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let path = entry.map_err(io_error("list", dir))?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("new") => fs::remove_file(&path).map_err(io_error("remove", &path))?,
            Some("seg") => found.push(Segment::open(path)?),
            _ => {}
        }
    }
    let replaced: HashSet<u64> = found
        .iter()
        .flat_map(|segment| segment.meta.replaces.iter().copied())
        .collect();
    let ids = found.iter().map(|segment| segment.meta.id);
    let next_id = ids.chain(replaced.iter().copied()).max().unwrap_or(0) + 1;
    let (gone, kept): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|segment| replaced.contains(&segment.meta.id));
    for segment in gone {
        fs::remove_file(&segment.path).map_err(io_error("remove", &segment.path))?;
    }
    Ok((kept, next_id))
}
