//! File names: that of the current file, and those of rotated files, which contain the time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use wall_clock::now_ms;

pub(super) struct FileNames {
    directory: PathBuf,
    stem: String,
    /// Extension including its dot.
    extension: String,
}

impl FileNames {
    pub(super) fn new(directory: &Path, name: &str) -> Self {
        let (stem, extension) = match name.rsplit_once('.') {
            Some((stem, extension)) => (stem.to_owned(), format!(".{extension}")),
            None => (name.to_owned(), String::new()),
        };
        Self {
            directory: directory.to_owned(),
            stem,
            extension,
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of the current file; `more` is appended to its name.
    pub(super) fn current_path(&self, more: &str) -> PathBuf {
        let (stem, extension) = (&self.stem, &self.extension);
        self.directory.join(format!("{stem}{extension}{more}"))
    }

    /// `NAME.EXT` becomes `NAME-20260131T235959.123Z.EXT`, such that no file with this name, or with one of `more` appended, exists.
    pub(super) fn unused_rotated_path(&self, more: &[&str]) -> PathBuf {
        let mut ms = now_ms();
        loop {
            let path = self.directory.join(format!(
                "{}-{}{}",
                self.stem,
                timestamp_suffix(ms),
                self.extension
            ));
            let mut all = [""].iter().chain(more);
            if !all.any(|more| with_suffix(&path, more).exists()) {
                return path;
            }
            ms += 1;
        }
    }

    /// Rotated files with `more` appended to their names, oldest first.
    pub(super) fn rotated_paths(&self, more: &str) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let stamp = name
                .strip_prefix(&self.stem)
                .and_then(|rest| rest.strip_prefix('-'))
                .and_then(|rest| rest.strip_suffix(more))
                .and_then(|rest| rest.strip_suffix(&self.extension));
            if stamp.is_some_and(is_timestamp_suffix) {
                files.push(self.directory.join(name));
            }
        }
        files.sort();
        Ok(files)
    }

    pub(super) fn remove_oldest(&self, max_files: usize) -> io::Result<()> {
        let mut files = self.rotated_paths("")?;
        let too_many = files.len().saturating_sub(max_files);
        for path in files.drain(..too_many) {
            fs::remove_file(path)?;
        }
        Ok(())
    }
}

/// A path with `more` appended to its name.
pub(super) fn with_suffix(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// Milliseconds since 1970 as `20260131T235959.123Z`, which sorts by time.
fn timestamp_suffix(ms: u64) -> String {
    let at = Timestamp::from_millisecond(ms as i64).unwrap_or(Timestamp::MAX);
    at.strftime("%Y%m%dT%H%M%S%.3fZ").to_string()
}

fn is_timestamp_suffix(text: &str) -> bool {
    let shape = "00000000T000000.000Z";
    text.len() == shape.len()
        && text.bytes().zip(shape.bytes()).all(|(byte, of)| match of {
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_named() {
        assert_eq!(timestamp_suffix(0), "19700101T000000.000Z");
        assert_eq!(timestamp_suffix(951_782_399_999), "20000228T235959.999Z");
        assert_eq!(timestamp_suffix(951_782_400_000), "20000229T000000.000Z");
        assert_eq!(timestamp_suffix(1_767_225_599_001), "20251231T235959.001Z");
        assert!(
            is_timestamp_suffix(&timestamp_suffix(1_767_225_599_001))
                && !is_timestamp_suffix("20251231")
        );
    }
}
