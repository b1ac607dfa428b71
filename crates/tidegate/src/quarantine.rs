//! Damaged files that the node was started without: the directory `quarantine` in the data directory.
//! Each incident is a directory `TIME-PART` with the files and `record.json`, which states the reason,
//! the lost data and where the files were.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use api::{QuarantinedFile, QuarantinedPart};
use wall_clock::now_ms;

const DIRECTORY: &str = "quarantine";
const RECORD: &str = "record.json";
/// Name extension of the copies of damaged files.
const DAMAGED: &str = "damaged";
/// Descriptions of lost data that are kept per incident.
const MAX_LOST: usize = 1000;

/// The quarantine of a data directory.
#[derive(Debug, Clone)]
pub(crate) struct Quarantine {
    directory: PathBuf,
}

impl Quarantine {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self {
            directory: data_dir.join(DIRECTORY),
        }
    }

    /// Moves damaged files to the quarantine. The record is written first, so that each moved file has one.
    pub(crate) fn preserve(
        &self,
        part: &str,
        reason: &str,
        mut lost: Vec<String>,
        files: &[PathBuf],
    ) -> anyhow::Result<QuarantinedPart> {
        if lost.len() > MAX_LOST {
            let more = lost.len() - MAX_LOST;
            lost.truncate(MAX_LOST);
            lost.push(format!("and {more} more"));
        }
        let at_ms = now_ms();
        disk::create_private_dir(&self.directory).context("cannot create the quarantine")?;
        let (id, directory) = self.create_incident(at_ms, part)?;
        let file = |(at, path): (usize, &PathBuf)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            QuarantinedFile {
                // Files of different directories may have the same name.
                name: format!("{}-{name}", at + 1),
                original: original_path(path).display().to_string(),
                bytes: fs::metadata(path).map_or(0, |metadata| metadata.len()),
            }
        };
        let record = QuarantinedPart {
            id,
            at_ms,
            part: part.to_owned(),
            reason: reason.to_owned(),
            lost,
            files: files.iter().enumerate().map(file).collect(),
        };
        let text = serde_json::to_vec_pretty(&record).context("cannot encode the record")?;
        let written = disk::replace_file(&directory, RECORD, &text)
            .and_then(|()| disk::sync_dir(&self.directory));
        written.with_context(|| format!("cannot write to {}", directory.display()))?;
        for (path, file) in files.iter().zip(&record.files) {
            move_file(path, &directory.join(&file.name))
                .with_context(|| format!("cannot move {} to the quarantine", path.display()))?;
        }
        disk::sync_dir(&directory)
            .with_context(|| format!("cannot force {} to disk", directory.display()))?;
        Ok(record)
    }

    fn create_incident(&self, at_ms: u64, part: &str) -> anyhow::Result<(String, PathBuf)> {
        let mut number = at_ms;
        loop {
            let id = format!("{number}-{}", part.replace(' ', "-"));
            let directory = self.directory.join(&id);
            if directory.exists() {
                number += 1;
                continue;
            }
            disk::create_private_dir(&directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
            return Ok((id, directory));
        }
    }

    /// Everything in quarantine, oldest first. A record that cannot be read is described by its directory.
    pub(crate) fn list(&self) -> io::Result<Vec<QuarantinedPart>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut parts = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let id = entry.file_name().to_string_lossy().into_owned();
                parts.push(read_record(&entry.path(), id));
            }
        }
        parts.sort_by(|a, b| (a.at_ms, &a.id).cmp(&(b.at_ms, &b.id)));
        Ok(parts)
    }

    /// Deletes an incident with its files; `false` if there is none with this id.
    pub(crate) fn delete(&self, id: &str) -> io::Result<bool> {
        let is_known = self.list()?.iter().any(|part| part.id == id);
        if is_known {
            fs::remove_dir_all(self.directory.join(id))?;
            disk::sync_dir(&self.directory)?;
        }
        Ok(is_known)
    }

    /// Moves the copies of damaged files that parts of the node have made below a directory.
    pub(crate) fn collect(
        &self,
        part: &str,
        directory: &Path,
    ) -> anyhow::Result<Option<QuarantinedPart>> {
        let mut copies = Vec::new();
        find_damaged_copies(directory, &mut copies)
            .with_context(|| format!("cannot read {}", directory.display()))?;
        if copies.is_empty() {
            return Ok(None);
        }
        copies.sort();
        let reason = "damaged when the node opened it; the log of that start names the lost data";
        self.preserve(part, reason, Vec::new(), &copies).map(Some)
    }
}

fn read_record(directory: &Path, id: String) -> QuarantinedPart {
    let read = fs::read(directory.join(RECORD));
    let record = read.map_err(|error| error.to_string()).and_then(|bytes| {
        serde_json::from_slice::<QuarantinedPart>(&bytes).map_err(|error| error.to_string())
    });
    match record {
        // The directory's name is what a request names.
        Ok(record) => QuarantinedPart { id, ..record },
        Err(error) => QuarantinedPart {
            id,
            at_ms: 0,
            part: "unknown".to_owned(),
            reason: format!("the record cannot be read: {error}"),
            lost: Vec::new(),
            files: Vec::new(),
        },
    }
}

/// The path of a damaged file whose copy has another name.
fn original_path(copy: &Path) -> PathBuf {
    match copy.extension() {
        Some(extension) if extension == OsStr::new(DAMAGED) => copy.with_extension(""),
        _ => copy.to_owned(),
    }
}

fn find_damaged_copies(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find_damaged_copies(&path, found)?;
        } else if path.extension() == Some(OsStr::new(DAMAGED)) {
            found.push(path);
        }
    }
    Ok(())
}

/// Moves a file, also to another file system: telemetry may have a directory elsewhere.
fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            fs::copy(from, to)?;
            fs::File::open(to)?.sync_all()?;
            fs::remove_file(from)
        }
        moved => moved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_kept_with_their_record_until_they_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(dir.path());
        assert_eq!(quarantine.list().unwrap(), []);
        let (a, b) = (dir.path().join("sinks/a"), dir.path().join("sinks/b"));
        for directory in [&a, &b] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("0.rows.damaged"), "rows").unwrap();
            fs::write(directory.join("0.rows"), "rest").unwrap();
        }
        let sinks = dir.path().join("sinks");
        let part = quarantine.collect("sinks", &sinks).unwrap().unwrap();
        assert_eq!(part.files.len(), 2);
        assert_eq!(
            part.files[1].original,
            b.join("0.rows").display().to_string()
        );
        assert!(!a.join("0.rows.damaged").exists() && a.join("0.rows").exists());
        let kept = dir.path().join("quarantine").join(&part.id);
        assert_eq!(fs::read(kept.join(&part.files[0].name)).unwrap(), b"rows");
        assert_eq!(quarantine.collect("sinks", &sinks).unwrap(), None);
        // Two incidents of one moment.
        let second = quarantine.preserve("sinks", "why", vec!["rows".to_owned()], &[]);
        assert_eq!(
            quarantine.list().unwrap(),
            [part.clone(), second.unwrap().clone()]
        );
        assert!(quarantine.delete(&part.id).unwrap());
        assert!(!quarantine.delete(&part.id).unwrap());
        assert!(!quarantine.delete("..").unwrap());
        assert_eq!(quarantine.list().unwrap().len(), 1);
        assert!(a.join("0.rows").exists());
    }

    #[test]
    fn an_unreadable_record_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(dir.path());
        let part = quarantine.preserve("telemetry", "why", Vec::new(), &[]);
        let part = part.unwrap();
        let record = dir.path().join("quarantine").join(&part.id).join(RECORD);
        fs::write(record, "{").unwrap();
        let listed = quarantine.list().unwrap();
        assert_eq!((listed.len(), &listed[0].id), (1, &part.id));
        assert!(listed[0].reason.contains("cannot be read"));
        assert!(quarantine.delete(&part.id).unwrap());
    }
}
