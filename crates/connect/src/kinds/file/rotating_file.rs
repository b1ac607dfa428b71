//! The current file of a sink, and its rotation.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::directory::make_directory;
use super::file_names::FileNames;

pub(super) struct RotationLimits {
    pub(super) max_bytes: u64,
    pub(super) max_age: Option<Duration>,
    pub(super) max_files: usize,
}

pub(super) struct RotatingFile {
    names: FileNames,
    rotation: RotationLimits,
    /// Bytes at the beginning of each file.
    head: Vec<u8>,
    sync: bool,
    open: Option<OpenFile>,
}

struct OpenFile {
    file: File,
    bytes: u64,
    since: SystemTime,
}

impl RotatingFile {
    pub(super) fn new(
        directory: &Path,
        name: &str,
        rotation: RotationLimits,
        head: Vec<u8>,
        sync: bool,
    ) -> Self {
        Self {
            names: FileNames::new(directory, name),
            rotation,
            head,
            sync,
            open: None,
        }
    }

    fn path(&self) -> PathBuf {
        self.names.current_path("")
    }

    /// Appends lines: all of them or none.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.open()?,
        };
        let head = self.head.len() as u64;
        let is_old = self.rotation.max_age.is_some_and(|max| {
            let age = open.since.elapsed().unwrap_or_default();
            age >= max
        });
        let is_large = open.bytes + lines.len() as u64 > self.rotation.max_bytes;
        if open.bytes > head && (is_old || is_large) {
            drop(open);
            self.rotate_current()?;
            open = self.open()?;
        }
        let written = open.file.write_all(lines).and_then(|()| match self.sync {
            true => open.file.sync_data(),
            false => Ok(()),
        });
        match written {
            Ok(()) => {
                open.bytes += lines.len() as u64;
                self.open = Some(open);
                Ok(())
            }
            Err(error) => {
                // A partial write must not precede the retry.
                let _ = open.file.set_len(open.bytes);
                Err(error)
            }
        }
    }

    fn open(&self) -> io::Result<OpenFile> {
        make_directory(self.names.directory())?;
        let path = self.path();
        let mut file = File::options().create(true).append(true).open(&path)?;
        let about = file.metadata()?;
        let mut bytes = about.len();
        let since = about.created().unwrap_or_else(|_| SystemTime::now());
        if bytes == 0 {
            disk::apply_original_umask(&path)?;
            file.write_all(&self.head)?;
            bytes = self.head.len() as u64;
        }
        if self.sync {
            // Otherwise a power failure may take the new file with its synced lines.
            disk::sync_dir(self.names.directory())?;
        }
        Ok(OpenFile { file, bytes, since })
    }

    fn rotate_current(&self) -> io::Result<()> {
        fs::rename(self.path(), self.names.unused_rotated_path(&[]))?;
        self.names.remove_oldest(self.rotation.max_files)
    }

    pub(super) fn close(&mut self) {
        if let Some(open) = self.open.take()
            && let Err(error) = open.file.sync_data()
        {
            tracing::warn!(path = %self.path().display(), %error, "sink file sync failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_rotated_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let rotation = RotationLimits {
            max_bytes: 100,
            max_age: None,
            max_files: 2,
        };
        let head = b"n\n".to_vec();
        let mut log = RotatingFile::new(directory.path(), "a.csv", rotation, head, false);
        fs::write(directory.path().join("a-other.csv"), b"").unwrap();
        for n in 0..20 {
            log.append(format!("{n:039}\n").as_bytes()).unwrap();
        }
        log.close();
        let entries = fs::read_dir(directory.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), 4, "{names:?}");
        let text = fs::read_to_string(directory.path().join("a.csv")).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "n");
        assert_eq!(lines[2].parse(), Ok(19));
        assert_eq!(lines.len(), 3);
    }
}
