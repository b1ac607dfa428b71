//! The end of a transfer: coverage, digest, and the moment at which the file becomes visible.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use disk::Fsync;
use wall_clock::now_ms;

use crate::digest::FileDigest;
use crate::error::{TransferError, TransferErrorKind};
use crate::file_info::FileInfo;
use crate::file_table::{EntryPhase, EntryState, FileEntry};
use crate::record::FileState;
use crate::service::{FileService, FileTarget};

/// Result of [`FileService::finish_step`].
#[derive(Debug, Clone, PartialEq)]
pub enum FinishStep {
    /// The digest is not known yet; call it again.
    Pending,
    Complete(FileInfo),
}

impl FileService {
    /// Completes a transfer. Checks that nothing is missing, and computes the digest of up to `budget` bytes that were
    /// not digested as they arrived. Makes the file visible when its digest is verified. `size` and `checksum` override
    /// what was announced. If the file is complete already and is the same, nothing is done.
    ///
    /// # Errors
    /// If there is no such transfer, parts are missing, or the digest differs. Then the transfer continues.
    pub fn finish_step(
        &self,
        target: FileTarget<'_>,
        size: Option<u64>,
        checksum: Option<FileDigest>,
        budget: u64,
    ) -> Result<FinishStep, TransferError> {
        self.count(self.try_finish(target, size, checksum, budget))
    }

    /// [`finish_step`](Self::finish_step) until it is done.
    ///
    /// # Errors
    /// Those of [`finish_step`](Self::finish_step).
    pub fn finish(
        &self,
        target: FileTarget<'_>,
        size: Option<u64>,
        checksum: Option<FileDigest>,
    ) -> Result<FileInfo, TransferError> {
        const BUDGET: u64 = 64 << 20;
        loop {
            if let FinishStep::Complete(info) = self.finish_step(target, size, checksum, BUDGET)? {
                return Ok(info);
            }
        }
    }

    fn try_finish(
        &self,
        target: FileTarget<'_>,
        size: Option<u64>,
        checksum: Option<FileDigest>,
        budget: u64,
    ) -> Result<FinishStep, TransferError> {
        let not_found = || {
            let detail = "there is no transfer of this id; begin it with init, or it has expired";
            TransferError::new(TransferErrorKind::NotFound, detail)
        };
        let entry = self.find(target).ok_or_else(not_found)?;
        let mut state = entry.lock();
        match state.phase {
            EntryPhase::Removed => return Err(not_found()),
            EntryPhase::Complete => {
                let record = &state.record;
                let is_same = size.is_none_or(|size| record.size == Some(size))
                    && checksum.is_none_or(|checksum| record.checksum == Some(checksum));
                return match is_same {
                    true => Ok(FinishStep::Complete(self.info_of(&entry, &state))),
                    false => Err(TransferError::new(
                        TransferErrorKind::Conflict,
                        "the file is complete with another size or digest; begin a new transfer",
                    )),
                };
            }
            EntryPhase::Closed | EntryPhase::Open(_) => {}
        }
        let (announced, expected) = (state.record.size, checksum.or(state.record.checksum));
        let is_paused = state.record.is_paused;
        let sync = self.inner.settings.fsync == Fsync::Always;
        let file = self.open_partial(&entry, &mut state)?;
        let storage = |error| TransferError::storage("complete a file", &error);
        file.commit(sync).map_err(storage)?;
        let size = size.or(announced).unwrap_or(file.received().end());
        if let Some(gap) = file.received().first_missing(0..size) {
            if is_paused {
                return Err(TransferError::paused());
            }
            let detail = format!(
                "{} of {size} bytes are missing, first those from {} to {}; send them and finish again",
                file.received().missing(0..size).count(),
                gap.start,
                gap.end
            );
            return Err(TransferError::new(TransferErrorKind::Incomplete, detail));
        }
        let Some(digest) = file.digest(size, budget).map_err(storage)? else {
            return Ok(FinishStep::Pending);
        };
        if let Some(expected) = expected
            && digest != expected
        {
            let detail = format!(
                "the SHA-256 of the file is {digest}, not {expected}; send the wrong segments again, or abort the transfer"
            );
            return Err(TransferError::new(
                TransferErrorKind::ChecksumMismatch,
                detail,
            ));
        }
        // Whatever the policy, a file that is shown as verified must not lose its bytes by a power failure.
        let sync = self.inner.settings.fsync != Fsync::Never;
        file.seal(size, sync).map_err(storage)?;
        self.publish(&entry, &mut state, size, digest)
            .map_err(storage)?;
        let info = self.info_of(&entry, &state);
        let is_event_pending = state.record.is_event_pending;
        drop(state);
        self.inner.metrics.completed.fetch_add(1, Relaxed);
        if is_event_pending && let Some(observer) = self.inner.observer.get() {
            (observer.completed)(&info);
        }
        Ok(FinishStep::Complete(info))
    }

    /// Makes a verified file visible, and removes the one that it replaces.
    fn publish(
        &self,
        entry: &Arc<FileEntry>,
        state: &mut EntryState,
        size: u64,
        digest: FileDigest,
    ) -> std::io::Result<()> {
        let mut record = state.record.clone();
        record.size = Some(size);
        record.checksum = Some(digest);
        record.state = FileState::Complete;
        record.is_paused = false;
        record.completed_at_ms = Some(now_ms());
        let observer = self.inner.observer.get();
        // Rules get the event of a copy at the node of the file.
        record.is_event_pending =
            !record.is_copy && observer.is_some_and(|observer| (observer.is_interested)());
        entry.directory.write_record(&record)?;
        state.record = record;
        state.phase = EntryPhase::Complete;
        let replaced = self.table().complete_transfer(entry, size);
        // The file is complete; what cannot be removed now is removed by the next start.
        if let Err(error) = entry.directory.remove_range_log() {
            tracing::warn!(%error, id = %entry.id, "removing the log of a complete file failed");
        }
        if let Some(replaced) = replaced
            && !self.is_kept(&replaced)
            && let Err(error) = self.remove_entry(&replaced, None)
        {
            tracing::warn!(%error, id = %replaced.id, "removing a replaced file failed");
        }
        Ok(())
    }
}
