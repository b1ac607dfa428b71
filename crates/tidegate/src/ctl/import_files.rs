//! Files written beside an imported file: the progress of the import, and the rejected lines.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// Maximum number of rejected lines printed; the rejects file contains all.
pub(super) const MAX_PRINTED_REJECTIONS: usize = 20;

fn sibling_path(file: &Path, suffix: &str) -> PathBuf {
    let mut path: OsString = file.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Progress of an import, in `FILE.progress`.
pub(super) struct ImportCheckpoint {
    path: PathBuf,
    /// Size of the imported file: a different size means a different file.
    bytes: u64,
}

impl ImportCheckpoint {
    pub(super) fn for_file(file: &Path, bytes: u64) -> Self {
        Self {
            path: sibling_path(file, ".progress"),
            bytes,
        }
    }

    /// The line at which the import continues.
    pub(super) fn read(&self) -> anyhow::Result<u64> {
        let shown = self.path.display();
        let text = std::fs::read_to_string(&self.path).with_context(|| {
            format!("cannot read {shown}: there is no interrupted import of this file; run the command without --resume")
        })?;
        let written: Value = serde_json::from_str(&text).unwrap_or_default();
        match (
            written["next_line"].as_u64(),
            written["file_bytes"].as_u64(),
        ) {
            (Some(line), Some(bytes)) if bytes == self.bytes => Ok(line),
            (Some(_), Some(bytes)) => bail!(
                "the file has {} bytes now and had {bytes} when its import was interrupted; run the command without --resume",
                self.bytes
            ),
            _ => bail!("{shown} is damaged; run the command without --resume"),
        }
    }

    /// Records that all lines before this one are on the node's disk.
    pub(super) fn write(&mut self, next_line: u64) -> anyhow::Result<()> {
        let unfinished = sibling_path(&self.path, ".new");
        let text = json!({"next_line": next_line, "file_bytes": self.bytes}).to_string();
        let written = std::fs::write(&unfinished, text);
        let renamed = written.and_then(|()| std::fs::rename(&unfinished, &self.path));
        renamed.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Removes the progress file at the end of the import.
    pub(super) fn remove(&self) {
        // A file without lines has no progress file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Rejected lines: all in a file, the first ones also in memory.
pub(super) struct RejectsFile {
    path: PathBuf,
    /// Created with the first line.
    file: Option<BufWriter<File>>,
    appends: bool,
    first: Vec<Value>,
}

impl RejectsFile {
    pub(super) fn new(imported: &Path, path: Option<&Path>, appends: bool) -> Self {
        Self {
            path: path.map_or_else(|| sibling_path(imported, ".rejects"), Path::to_owned),
            file: None,
            appends,
            first: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, rejections: &[Value]) -> anyhow::Result<()> {
        for rejection in rejections {
            self.write(rejection)
                .with_context(|| format!("cannot write {}", self.path.display()))?;
            if self.first.len() < MAX_PRINTED_REJECTIONS {
                self.first.push(rejection.clone());
            }
        }
        // An import that is killed later does not send these lines again.
        match &mut self.file {
            Some(file) => file
                .flush()
                .with_context(|| format!("cannot write {}", self.path.display())),
            None => Ok(()),
        }
    }

    fn write(&mut self, rejection: &Value) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                let options = options.create(true).append(self.appends);
                let file = options
                    .write(true)
                    .truncate(!self.appends)
                    .open(&self.path)?;
                self.file.insert(BufWriter::new(file))
            }
        };
        writeln!(file, "{rejection}")
    }

    /// The first rejected lines, and the path of the file with all of them, if any.
    pub(super) fn finish(self) -> (Vec<Value>, Option<String>) {
        let shown = self.path.display().to_string();
        (self.first, self.file.map(|_| shown))
    }
}

/// Formats a rejected line: `line 7: id: ...`.
pub(super) fn rejection_line(rejection: &Value) -> String {
    let text = |field: &str| rejection[field].as_str().filter(|text| !text.is_empty());
    let reason = text("reason").unwrap_or("rejected without a reason");
    let line = &rejection["line"];
    match text("field") {
        Some(field) => format!("line {line}: {field}: {reason}"),
        None => format!("line {line}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_resumes_at_its_last_durable_line_of_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("meters.csv");
        let mut checkpoint = ImportCheckpoint::for_file(&file, 100);
        let error = checkpoint.read().unwrap_err().to_string();
        assert!(error.contains("without --resume"), "{error}");
        checkpoint.write(2).unwrap();
        checkpoint.write(7001).unwrap();
        assert_eq!(checkpoint.read().unwrap(), 7001);
        let error = ImportCheckpoint::for_file(&file, 101)
            .read()
            .unwrap_err()
            .to_string();
        assert!(error.contains("101 bytes now and had 100"), "{error}");
        checkpoint.remove();
        assert!(checkpoint.read().is_err());
    }

    #[test]
    fn all_rejected_lines_are_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("meters.csv");
        let rejections: Vec<_> = (1..=252)
            .map(|line| json!({"line": line, "field": "", "reason": "no"}))
            .collect();
        let mut rejects = RejectsFile::new(&file, None, false);
        rejects.add(&rejections[..200]).unwrap();
        let so_far = std::fs::read_to_string(dir.path().join("meters.csv.rejects")).unwrap();
        assert_eq!(so_far.lines().count(), 200, "before the import ends");
        rejects.add(&rejections[200..]).unwrap();
        let (first, path) = rejects.finish();
        assert_eq!(first.len(), MAX_PRINTED_REJECTIONS);
        let written = std::fs::read_to_string(path.unwrap()).unwrap();
        assert_eq!(written.lines().count(), 252);
        assert_eq!(rejection_line(&first[0]), "line 1: no");
        let with_field = json!({"line": 2, "field": "id", "reason": ""});
        assert_eq!(
            rejection_line(&with_field),
            "line 2: id: rejected without a reason"
        );
    }
}
