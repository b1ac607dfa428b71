//! File operations of the store: append-only files, and directories forced to disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use crate::error::{SeriesError, io_error};

pub(crate) fn sync_dir(dir: &Path) -> Result<(), SeriesError> {
    disk::sync_dir(dir).map_err(io_error("force to disk", dir))
}

/// Reads an append-only file with a head. A missing file, or one with a truncated head, has no entries.
pub(crate) fn read_append_file(path: &Path, head: &[u8]) -> Result<Vec<u8>, SeriesError> {
    match fs::read(path) {
        Ok(bytes) if bytes.len() < head.len() && head.starts_with(&bytes) => Ok(head.to_vec()),
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(head.to_vec()),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

/// Opens such a file for appending after its first `whole` bytes, and truncates the rest.
pub(crate) fn open_append_file(path: &Path, head: &[u8], whole: u64) -> Result<File, SeriesError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let mut file = file.map_err(io_error("open", path))?;
    let len = file.metadata().map_err(io_error("look at", path))?.len();
    if len < head.len() as u64 {
        file.seek(SeekFrom::Start(0))
            .map_err(io_error("write", path))?;
        file.write_all(head).map_err(io_error("write", path))?;
        file.sync_all().map_err(io_error("force to disk", path))?;
    }
    file.set_len(whole).map_err(io_error("cut", path))?;
    Ok(file)
}
