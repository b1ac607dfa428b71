//! Complete files in a backup: what is read of a running node, and where a restore writes it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::export_table::EXPORTS_FILE;
use crate::file_directory::RECORD_FILE;
use crate::file_table::{EntryPhase, FileEntry};
use crate::partial_file::DATA_FILE;
use crate::service::{FileService, FileTarget};

/// The records of a file are small.
const MAX_RECORD_BYTES: u64 = 16 << 20;

/// A file of the directory of a complete file. The content is that of the moment at which it was opened.
pub struct SavedFile {
    /// Path below the directory of files.
    pub path: String,
    pub bytes: u64,
    pub content: Box<dyn Read + Send>,
}

impl FileService {
    /// The ids of all complete files, the oldest first, and their bytes.
    #[must_use]
    pub fn complete_files(&self) -> (Vec<String>, u64) {
        let entries: Vec<std::sync::Arc<FileEntry>> =
            self.table().newest_first(None).cloned().collect();
        let complete = entries.iter().rev().filter_map(|entry| {
            let state = entry.lock();
            let size = state.record.size.unwrap_or(0);
            matches!(state.phase, EntryPhase::Complete).then(|| (entry.id.to_string(), size))
        });
        let (ids, sizes): (Vec<_>, Vec<u64>) = complete.unzip();
        (ids, sizes.iter().sum())
    }

    /// What a backup contains of a complete file: its record last, since it makes the file complete. Empty if it was deleted
    /// meanwhile.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn saved_files(&self, id: &str) -> io::Result<Vec<SavedFile>> {
        let Some(entry) = self.find(FileTarget::Id(id)) else {
            return Ok(Vec::new());
        };
        // The data of a complete file does not change; its records are read under its lock.
        let state = entry.lock();
        if !matches!(state.phase, EntryPhase::Complete) {
            return Ok(Vec::new());
        }
        let directory = entry.directory.path();
        let data = File::open(directory.join(DATA_FILE))?;
        let mut files = vec![SavedFile {
            path: format!("{id}/{DATA_FILE}"),
            bytes: data.metadata()?.len(),
            content: Box::new(data),
        }];
        for name in [EXPORTS_FILE, RECORD_FILE] {
            let file = match File::open(directory.join(name)) {
                Err(error) if name == EXPORTS_FILE && error.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                opened => opened?,
            };
            let mut content = Vec::new();
            file.take(MAX_RECORD_BYTES).read_to_end(&mut content)?;
            files.push(SavedFile {
                path: format!("{id}/{name}"),
                bytes: content.len() as u64,
                content: Box::new(io::Cursor::new(content)),
            });
        }
        Ok(files)
    }
}

/// Where a restore writes a file with the path of a [`SavedFile`]; `None`: it is no such path.
#[must_use]
pub fn saved_file_path(directory: &Path, path: &str) -> Option<PathBuf> {
    let (id, name) = path.split_once('/')?;
    let is_id = id.len() == 28
        && id
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_name = [DATA_FILE, EXPORTS_FILE, RECORD_FILE].contains(&name);
    (is_id && is_name).then(|| directory.join(id).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_files_are_restored() {
        let id = "0123456789ab0123456789abcdef";
        let at = |path: &str| saved_file_path(Path::new("f"), path);
        assert_eq!(
            at(&format!("{id}/data")),
            Some(Path::new("f").join(id).join("data"))
        );
        for path in [
            "",
            "data",
            "../data",
            "x/data",
            &format!("{id}/ranges"),
            &format!("{id}/../x"),
        ] {
            assert_eq!(at(path), None, "{path}");
        }
    }
}
