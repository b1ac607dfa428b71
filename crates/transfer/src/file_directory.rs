//! The directory of one file: its record, its bytes, and while it is received the log of its ranges.
//!
//! `record` is written last when a transfer begins and removed first when a file is removed, so a directory without it is
//! a remainder. A file becomes complete by the replacement of `record`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use disk::CheckedLineState;

use crate::partial_file::{DATA_FILE, PartialFile, RANGES_FILE};
use crate::record::{FORMAT_VERSION, FileRecord};

pub(crate) const RECORD_FILE: &str = "record";

/// The record of a directory.
pub(crate) enum StoredRecord {
    /// Remainder of a begin or a removal that was interrupted.
    Missing,
    Damaged(String),
    Intact(Box<FileRecord>),
}

#[derive(Debug, Clone)]
pub(crate) struct FileDirectory(PathBuf);

impl FileDirectory {
    pub(crate) fn new(parent: &Path, id: &str) -> Self {
        Self(parent.join(id))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn data_path(&self) -> PathBuf {
        self.0.join(DATA_FILE)
    }

    /// Begins a file. What a failure leaves is removed by the next start.
    pub(crate) fn create(&self, record: &FileRecord) -> io::Result<PartialFile> {
        disk::create_private_dir(&self.0)?;
        let created = PartialFile::create(&self.0).and_then(|file| {
            self.write_record(record)?;
            Ok(file)
        });
        if created.is_err() {
            let _ = self.remove();
        }
        created
    }

    pub(crate) fn write_record(&self, record: &FileRecord) -> io::Result<()> {
        let line = serde_json::to_string(record).map_err(io::Error::other)?;
        disk::write_checked_line(&self.0, RECORD_FILE, &line)
    }

    pub(crate) fn read_record(&self) -> io::Result<StoredRecord> {
        let line = match disk::read_checked_line(&self.0.join(RECORD_FILE))? {
            CheckedLineState::Missing => return Ok(StoredRecord::Missing),
            CheckedLineState::Damaged => {
                return Ok(StoredRecord::Damaged("its checksum differs".to_owned()));
            }
            CheckedLineState::Intact(line) => line,
        };
        Ok(match serde_json::from_str::<FileRecord>(&line) {
            Err(error) => StoredRecord::Damaged(error.to_string()),
            Ok(record) if record.version != FORMAT_VERSION => StoredRecord::Damaged(format!(
                "its version is {}, this program reads version {FORMAT_VERSION}",
                record.version
            )),
            Ok(record) => StoredRecord::Intact(Box::new(record)),
        })
    }

    /// Removes what a complete file does not need.
    pub(crate) fn remove_range_log(&self) -> io::Result<()> {
        match fs::remove_file(self.0.join(RANGES_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(self.0.join(RECORD_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// When something was received last, or the record was written after that, in milliseconds since 1970.
    pub(crate) fn last_activity_ms(&self) -> io::Result<u64> {
        let received = fs::metadata(self.0.join(RANGES_FILE))?.modified()?;
        let recorded = fs::metadata(self.0.join(RECORD_FILE))?.modified()?;
        let modified = received.max(recorded);
        let since = modified.duration_since(std::time::UNIX_EPOCH);
        Ok(since.map_or(0, |since| since.as_millis() as u64))
    }

    pub(crate) fn data_len(&self) -> io::Result<u64> {
        Ok(fs::metadata(self.data_path())?.len())
    }
}

/// The directories of all files, without remainders that cannot be directories of files.
pub(crate) fn file_directories(parent: &Path) -> io::Result<Vec<FileDirectory>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(FileDirectory(entry.path()));
        }
    }
    found.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(found)
}
