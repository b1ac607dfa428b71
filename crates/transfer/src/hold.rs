//! Files that are kept for something, such as a firmware package, whatever happens to other files of their sender.

use std::sync::Arc;

use crate::error::{TransferError, TransferErrorKind};
use crate::file_table::{EntryPhase, FileEntry};
use crate::service::{FileService, FileTarget, file_not_found};

/// Maximum number of holders of a file.
const MAX_HOLDERS: usize = 64;

impl FileService {
    /// Keeps a complete file, durably, until each holder has released it. It cannot be deleted, does not expire, and no
    /// later file of the same sender replaces it. `holder` is a noun phrase for messages. Repetitions change nothing.
    ///
    /// # Errors
    /// If there is no such complete file, it has too many holders, or the file system returns an error.
    pub fn hold(&self, id: &str, holder: &str) -> Result<(), TransferError> {
        let entry = self.find(FileTarget::Id(id));
        let entry = entry.ok_or_else(file_not_found)?;
        let mut state = entry.lock();
        if !matches!(state.phase, EntryPhase::Complete) {
            return Err(file_not_found());
        }
        if state.record.used_by.contains(holder) {
            return Ok(());
        }
        if state.record.used_by.len() == MAX_HOLDERS {
            let detail = format!("the file is used {MAX_HOLDERS} times; upload it again");
            return Err(TransferError::new(TransferErrorKind::Conflict, detail));
        }
        let mut record = state.record.clone();
        record.used_by.insert(holder.to_owned());
        (entry.directory.write_record(&record))
            .map_err(|error| TransferError::storage("keep a file", &error))?;
        state.record = record;
        self.table().remove_name(&entry);
        Ok(())
    }

    /// Ends a hold. If the sender has sent another file of the same id meanwhile, that one replaces this file now.
    /// Without such a hold nothing is done.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn release(&self, id: &str, holder: &str) -> Result<(), TransferError> {
        let Some(entry) = self.find(FileTarget::Id(id)) else {
            return Ok(());
        };
        let is_replaced = self.release_entry(&entry, holder)?;
        match is_replaced {
            true => self.remove_if_obsolete(id),
            false => Ok(()),
        }
    }

    /// Returns whether the file is a copy that nobody needs any more, or another file has taken its name.
    fn release_entry(&self, entry: &Arc<FileEntry>, holder: &str) -> Result<bool, TransferError> {
        let mut state = entry.lock();
        if matches!(state.phase, EntryPhase::Removed) || !state.record.used_by.contains(holder) {
            return Ok(false);
        }
        let mut record = state.record.clone();
        record.used_by.remove(holder);
        (entry.directory.write_record(&record))
            .map_err(|error| TransferError::storage("release a file", &error))?;
        state.record = record;
        // A copy has no other use.
        let is_free = state.record.used_by.is_empty();
        Ok(is_free && (state.record.is_copy || !self.table().restore_name(entry)))
    }
}
