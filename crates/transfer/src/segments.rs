//! Segments of transfers: limits, storage and commit.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use disk::Fsync;
use wall_clock::now_ms;

use crate::digest::FileDigest;
use crate::error::{TransferError, TransferErrorKind};
use crate::file_table::{EntryPhase, EntryState, FileEntry};
use crate::partial_file::{PartialFile, SegmentOutcome, equals};
use crate::record::FileOwner;
use crate::service::{FileService, FileTarget, transfer_not_found};
use crate::usage::Usage;

/// A segment that was written and is not acknowledged yet.
#[must_use = "a segment counts after `commit`"]
pub struct WrittenSegment {
    entry: Option<Arc<FileEntry>>,
}

impl WrittenSegment {
    /// Whether both belong to the same file, so that one commit serves both.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        match (&self.entry, &other.entry) {
            (Some(this), Some(other)) => Arc::ptr_eq(this, other),
            (None, _) | (_, None) => false,
        }
    }
}

impl FileService {
    /// Writes a segment. It is acknowledged after [`commit`](Self::commit).
    ///
    /// # Errors
    /// If there is no such transfer, the digest differs, a limit is reached, or the disk is full.
    pub fn write(
        &self,
        target: FileTarget<'_>,
        offset: u64,
        bytes: &[u8],
        digest: Option<FileDigest>,
    ) -> Result<WrittenSegment, TransferError> {
        self.count(self.try_write(target, offset, bytes, digest))
    }

    fn try_write(
        &self,
        target: FileTarget<'_>,
        offset: u64,
        bytes: &[u8],
        digest: Option<FileDigest>,
    ) -> Result<WrittenSegment, TransferError> {
        self.check_enabled()?;
        if let Some(expected) = digest {
            let actual = FileDigest::of(bytes);
            if actual != expected {
                let detail = format!(
                    "the SHA-256 of the segment at {offset} is {actual}, not {expected}; send it again"
                );
                return Err(TransferError::new(
                    TransferErrorKind::ChecksumMismatch,
                    detail,
                ));
            }
        }
        let entry = self.find(target).ok_or_else(transfer_not_found)?;
        let mut state = entry.lock();
        match state.phase {
            EntryPhase::Complete => return compare_with_complete(&entry, offset, bytes),
            EntryPhase::Removed => return Err(transfer_not_found()),
            EntryPhase::Closed | EntryPhase::Open(_) => {}
        }
        state.check_not_paused()?;
        self.check_room(&entry, offset, bytes.len() as u64)?;
        let file = self.open_partial(&entry, &mut state)?;
        let outcome = file.write(offset, bytes);
        let outcome = outcome.map_err(|error| TransferError::storage("write a segment", &error))?;
        state.last_activity_ms = now_ms();
        drop(state);
        let counter = match outcome {
            SegmentOutcome::Written => &self.inner.metrics.received_bytes,
            SegmentOutcome::Repeated => &self.inner.metrics.repeated_bytes,
            SegmentOutcome::TooManyRanges => {
                let detail = "the segments leave too many gaps; fill the gaps first";
                return Err(TransferError::invalid(detail));
            }
        };
        counter.fetch_add(bytes.len() as u64, Relaxed);
        Ok(WrittenSegment { entry: Some(entry) })
    }

    /// Charges received bytes to the rates of their sender, its product and namespace, and the node. Returns until when the
    /// sender has to pause, in milliseconds since 1970; 0: it need not.
    #[must_use]
    pub fn charge_rate(&self, owner: &FileOwner, bytes: u64) -> u64 {
        let settings = &self.inner.settings;
        self.inner.rates.charge(owner, bytes, settings, now_ms())
    }

    /// Checks the limits for a segment.
    pub(crate) fn check_room(
        &self,
        entry: &FileEntry,
        offset: u64,
        len: u64,
    ) -> Result<(), TransferError> {
        let end = offset.saturating_add(len);
        self.check_file_size(end)?;
        self.reserve_until(entry, end)?;
        self.check_free(self.free_bytes()?, len)?;
        self.inner.free_space.reserve(len);
        Ok(())
    }

    /// Counts bytes beyond the announced size, if a quota permits them.
    fn reserve_until(&self, entry: &FileEntry, end: u64) -> Result<(), TransferError> {
        if end <= entry.reserved.load(Relaxed) {
            return Ok(());
        }
        let limits = self.namespace_limits(&entry.owner.namespace);
        let mut table = self.table();
        let added = end.saturating_sub(entry.reserved.load(Relaxed));
        let usage = Usage {
            bytes: added,
            ..Usage::default()
        };
        (table.usage).check(&entry.owner, usage, &self.inner.settings, limits)?;
        table.reserve(entry, added);
        Ok(())
    }

    /// The files of a transfer, opened if they are closed.
    pub(crate) fn open_partial<'s>(
        &self,
        entry: &FileEntry,
        state: &'s mut EntryState,
    ) -> Result<&'s mut PartialFile, TransferError> {
        if let EntryPhase::Closed = state.phase {
            let opened = PartialFile::open(entry.directory.path());
            let file = opened.map_err(|error| TransferError::storage("open a file", &error))?;
            entry.received.store(file.received().count(), Relaxed);
            state.phase = EntryPhase::Open(Box::new(file));
        }
        match &mut state.phase {
            EntryPhase::Open(file) => Ok(file),
            EntryPhase::Closed | EntryPhase::Complete | EntryPhase::Removed => {
                Err(transfer_not_found())
            }
        }
    }

    /// Makes a segment durable, and all segments written to the same file before. It may be acknowledged afterwards.
    ///
    /// # Errors
    /// If the file system returns an error. Then the segment counts as not received.
    pub fn commit(&self, written: &WrittenSegment) -> Result<(), TransferError> {
        let Some(entry) = &written.entry else {
            return Ok(());
        };
        let mut state = entry.lock();
        match &mut state.phase {
            EntryPhase::Open(file) => {
                let sync = self.inner.settings.fsync == Fsync::Always;
                let committed = file.commit(sync);
                entry.received.store(file.received().count(), Relaxed);
                let result =
                    committed.map_err(|error| TransferError::storage("store a segment", &error));
                drop(state);
                self.count(result)
            }
            // It was closed, or completed by another request; both commit first.
            EntryPhase::Closed | EntryPhase::Complete => Ok(()),
            EntryPhase::Removed => Err(transfer_not_found()),
        }
    }
}

/// A segment of a file that is complete already is accepted if it is the same.
fn compare_with_complete(
    entry: &FileEntry,
    offset: u64,
    bytes: &[u8],
) -> Result<WrittenSegment, TransferError> {
    let failed = |error: io::Error| TransferError::storage("read a file", &error);
    let file = File::open(entry.directory.data_path()).map_err(failed)?;
    match equals(&file, offset, bytes).map_err(failed)? {
        true => Ok(WrittenSegment { entry: None }),
        false => Err(TransferError::new(
            TransferErrorKind::Conflict,
            "the file is complete and has other bytes here; begin a new transfer",
        )),
    }
}
