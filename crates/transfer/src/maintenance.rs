//! Periodic work: syncs, closing of idle transfers, expiry; and the check of a stopped node's files.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use content::{DigestAlgorithm, PrefixDigest};
use disk::Fsync;

use crate::digest::FileDigest;
use crate::file_directory::{FileDirectory, StoredRecord, file_directories};
use crate::file_table::{EntryPhase, FileEntry};
use crate::partial_file::verify_ranges;
use crate::record::{FileRecord, FileState};
use crate::service::FileService;

/// After this time without a segment the files of a transfer are closed.
const CLOSE_AFTER_MS: u64 = 60_000;

impl FileService {
    /// Syncs what was received since the last call, if the fsync policy requires it.
    pub fn sync(&self) {
        if matches!(self.inner.settings.fsync, Fsync::Every(_)) {
            self.checkpoint_all();
        }
    }

    fn checkpoint_all(&self) {
        let transfers: Vec<Arc<FileEntry>> = self.table().transfers().cloned().collect();
        for entry in transfers {
            let mut state = entry.lock();
            if let EntryPhase::Open(file) = &mut state.phase
                && let Err(error) = file.checkpoint()
            {
                tracing::error!(%error, id = %entry.id, "syncing a file failed; retrying");
            }
        }
    }

    /// Removes what has expired, and closes the files of idle transfers.
    pub fn expire(&self, now_ms: u64) {
        let entries: Vec<Arc<FileEntry>> = self.table().newest_first(None).cloned().collect();
        for entry in entries {
            let mut state = entry.lock();
            let is_expired = self.expiry_ms(&state).is_some_and(|at_ms| at_ms <= now_ms);
            let idle_ms = now_ms.saturating_sub(state.last_activity_ms);
            if let EntryPhase::Open(file) = &mut state.phase
                && idle_ms >= CLOSE_AFTER_MS
                && !is_expired
                && file.commit(false).and_then(|()| file.checkpoint()).is_ok()
            {
                state.phase = EntryPhase::Closed;
            }
            drop(state);
            if !is_expired {
                continue;
            }
            match self.remove_entry(&entry, None) {
                Ok(Some(_)) => {
                    self.inner.metrics.expired.fetch_add(1, Relaxed);
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, id = %entry.id, "removing an expired file failed; retrying");
                }
            }
        }
    }

    /// Syncs everything; called when the node stops.
    pub fn close(&self) {
        self.store_queued_exports();
        if self.inner.settings.fsync != Fsync::Never {
            self.checkpoint_all();
        }
    }
}

/// Reads all files of a stopped node and changes nothing. Returns the number of files and transfers, and what is damaged.
///
/// # Errors
/// If the directory cannot be read.
pub fn check_files(directory: &Path) -> io::Result<(u64, Vec<String>)> {
    let (mut files, mut problems) = (0, Vec::new());
    for directory in file_directories(directory)? {
        let name = directory.path().display().to_string();
        match directory.read_record() {
            Ok(StoredRecord::Missing) => continue,
            Ok(StoredRecord::Damaged(problem)) => {
                problems.push(format!("the record in {name} is damaged: {problem}"));
            }
            Ok(StoredRecord::Intact(record)) => {
                if let Some(problem) = check_file(&directory, &record) {
                    let what = &record.name;
                    problems.push(format!("the file {what:?} in {name} is damaged: {problem}"));
                }
            }
            Err(error) => problems.push(format!("{name} cannot be read: {error}")),
        }
        files += 1;
    }
    Ok((files, problems))
}

/// The damage of one file.
fn check_file(directory: &FileDirectory, record: &FileRecord) -> Option<String> {
    match record.state {
        FileState::Receiving => match verify_ranges(directory.path()) {
            // Ranges that are not on disk count as missing, so that the sender sends them again.
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        },
        FileState::Complete => match digest_of(directory) {
            Err(error) => Some(error.to_string()),
            Ok((size, _)) if Some(size) != record.size => Some(format!(
                "it has {size} bytes instead of {}",
                record.size.unwrap_or(0)
            )),
            Ok((_, digest)) if Some(digest) != record.checksum => {
                Some("its SHA-256 digest differs from the verified one".to_owned())
            }
            Ok(_) => None,
        },
    }
}

fn digest_of(directory: &FileDirectory) -> io::Result<(u64, FileDigest)> {
    let file = File::open(directory.data_path())?;
    let size = file.metadata()?.len();
    let mut digest = PrefixDigest::new(DigestAlgorithm::Sha256);
    digest.advance(&file, size, u64::MAX)?;
    Ok((size, FileDigest(digest.finish().bytes)))
}
