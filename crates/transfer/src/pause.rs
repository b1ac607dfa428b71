//! Pausing of transfers: a paused transfer keeps what it has, rejects segments, and does not expire.

use wall_clock::now_ms;

use crate::error::{TransferError, TransferErrorKind};
use crate::file_info::FileInfo;
use crate::file_table::EntryPhase;
use crate::service::{FileService, FileTarget, transfer_not_found};

impl FileService {
    /// Pauses a transfer, durably: segments are rejected, and it does not expire. If all bytes have arrived, it may still be
    /// finished. Repetitions change nothing.
    ///
    /// # Errors
    /// If there is no such transfer, the file is complete or is sent in one request, or the file system returns an error.
    pub fn pause(&self, id: &str) -> Result<FileInfo, TransferError> {
        self.set_paused(id, true)
    }

    /// Resumes a paused transfer, whose time without a segment begins again. Repetitions change nothing.
    ///
    /// # Errors
    /// If there is no such transfer, the file is complete, or the file system returns an error.
    pub fn resume(&self, id: &str) -> Result<FileInfo, TransferError> {
        self.set_paused(id, false)
    }

    fn set_paused(&self, id: &str, is_paused: bool) -> Result<FileInfo, TransferError> {
        let entry = self.find(FileTarget::Id(id));
        let entry = entry.ok_or_else(transfer_not_found)?;
        let mut state = entry.lock();
        let conflict = |detail: &str| TransferError::new(TransferErrorKind::Conflict, detail);
        match state.phase {
            EntryPhase::Removed => return Err(transfer_not_found()),
            EntryPhase::Complete => {
                let detail = "the file is complete; only transfers can be paused and resumed";
                return Err(conflict(detail));
            }
            EntryPhase::Closed | EntryPhase::Open(_) => {}
        }
        if state.record.is_paused == is_paused {
            return Ok(self.info_of(&entry, &state));
        }
        if is_paused && self.is_single_request(&entry.owner, &state.record.file_id) {
            let detail = "the file is sent in one request, which cannot be continued later; cancel it instead";
            return Err(conflict(detail));
        }
        let mut record = state.record.clone();
        record.is_paused = is_paused;
        (entry.directory.write_record(&record))
            .map_err(|error| TransferError::storage("store the state of a transfer", &error))?;
        state.record = record;
        state.last_activity_ms = now_ms();
        Ok(self.info_of(&entry, &state))
    }
}
