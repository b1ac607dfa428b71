//! The backups that a node has made, in `backups` in the data directory or in `backup.directory`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use api::BackupInfo;

use super::BackupProgress;
use super::restore::verify;
use super::write::{BackupLimits, BackupSources};

const EXTENSION: &str = "tgbackup";
const UNFINISHED: &str = "new";
/// A person or program that makes backups without end should notice.
const MAX_BACKUPS: usize = 1000;

/// The backups of a node.
#[derive(Clone)]
pub(crate) struct Backups {
    directory: PathBuf,
    data_dir: PathBuf,
    limits: BackupLimits,
    sources: BackupSources,
}

impl Backups {
    /// Removes what a killed process has left.
    pub(crate) fn open(
        data_dir: &Path,
        configured: Option<PathBuf>,
        limits: BackupLimits,
        sources: BackupSources,
    ) -> Self {
        let this = Self {
            directory: configured.unwrap_or_else(|| data_dir.join("backups")),
            data_dir: data_dir.to_owned(),
            limits,
            sources,
        };
        for path in this.files(UNFINISHED).unwrap_or_default() {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove an incomplete backup");
            }
        }
        this
    }

    fn path(&self, id: &str, extension: &str) -> PathBuf {
        self.directory.join(format!("{id}.{extension}"))
    }

    fn files(&self, extension: &str) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let is_wanted = path.extension().is_some_and(|ending| ending == extension);
            if is_wanted
                && path
                    .file_stem()
                    .and_then(|id| id.to_str())
                    .is_some_and(is_id)
            {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Whether the file system of the data directory has more free space than the node needs.
    pub(crate) fn has_room(&self) -> bool {
        self.limits.check_free_space(&self.data_dir).is_ok()
    }

    /// Complete backups, newest first.
    pub(crate) fn list(&self) -> io::Result<Vec<BackupInfo>> {
        let mut found = Vec::new();
        for path in self.files(EXTENSION)? {
            let id = path.file_stem().unwrap_or_default().to_string_lossy();
            found.push(BackupInfo {
                created_at_ms: id
                    .split('-')
                    .next_back()
                    .and_then(|ms| ms.parse().ok())
                    .unwrap_or(0),
                id: id.into_owned(),
                bytes: fs::metadata(&path)?.len(),
            });
        }
        found.sort_by_key(|backup| std::cmp::Reverse(backup.created_at_ms));
        Ok(found)
    }

    /// The file of a backup; `None` if there is none with this id.
    pub(crate) fn find(&self, id: &str) -> Option<PathBuf> {
        let path = self.path(id, EXTENSION);
        (is_id(id) && path.is_file()).then_some(path)
    }

    /// Deletes a backup; `false` if there is none with this id.
    pub(crate) fn delete(&self, id: &str) -> io::Result<bool> {
        let Some(path) = self.find(id) else {
            return Ok(false);
        };
        fs::remove_file(path)?;
        disk::sync_dir(&self.directory)?;
        Ok(true)
    }

    /// Makes a backup with this id. It is in the list only when it is complete and on disk.
    pub(crate) fn create(
        &self,
        id: &str,
        on_total: &mut dyn FnMut(u64),
        progress: &mut BackupProgress<'_>,
    ) -> anyhow::Result<()> {
        disk::create_private_dir(&self.directory)
            .with_context(|| format!("cannot create {}", self.directory.display()))?;
        if self.files(EXTENSION)?.len() >= MAX_BACKUPS {
            bail!("there are {MAX_BACKUPS} backups; delete old ones");
        }
        let unfinished = self.path(id, UNFINISHED);
        let written = self
            .sources
            .write(&unfinished, self.limits, on_total, progress);
        if let Err(error) = written {
            // The error of the backup is what matters.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        fs::rename(&unfinished, self.path(id, EXTENSION))
            .and_then(|()| disk::sync_dir(&self.directory))
            .with_context(|| format!("cannot complete {}", unfinished.display()))
    }

    /// Reads a whole backup and checks it.
    pub(crate) fn verify(&self, id: &str, progress: &mut BackupProgress<'_>) -> anyhow::Result<()> {
        let path = self.find(id).context("there is no such backup")?;
        verify(&path, progress).map(drop)
    }

    pub(crate) fn size(&self, id: &str) -> Option<u64> {
        fs::metadata(self.find(id)?).ok().map(|file| file.len())
    }
}

fn is_id(id: &str) -> bool {
    id.strip_prefix("backup-").is_some_and(|number| {
        (1..=20).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
