//! Queries of files and transfers: descriptions, lists, contents, usage and metrics.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use disk::Fsync;
use hooks::MetricFamily;
use namespaces::NamespaceSelection;

use crate::error::{TransferError, TransferErrorKind};
use crate::file_info::{FileInfo, MAX_SHOWN_RANGES, TransferStatus};
use crate::file_table::{EntryPhase, FileEntry};
use crate::record::FileState;
use crate::service::{FileService, FileTarget, file_not_found, transfer_not_found};
use crate::usage::Usage;

/// Recommended size of a segment in bytes.
const RECOMMENDED_SEGMENT_BYTES: u64 = 256 << 10;

impl FileService {
    /// A file or transfer; `None`: there is none.
    #[must_use]
    pub fn info(&self, target: FileTarget<'_>) -> Option<FileInfo> {
        let entry = self.find(target)?;
        let state = entry.lock();
        let is_present = !matches!(state.phase, EntryPhase::Removed);
        is_present.then(|| self.info_of(&entry, &state))
    }

    /// Up to `limit` files and transfers that `wanted` selects, the newest first, before the one with the id `before`.
    #[must_use]
    pub fn list(
        &self,
        namespaces: &NamespaceSelection,
        before: Option<&str>,
        limit: usize,
        wanted: &dyn Fn(&FileInfo) -> bool,
    ) -> Vec<FileInfo> {
        let entries: Vec<Arc<FileEntry>> = {
            let table = self.table();
            let entries = table.newest_first(before);
            let selected = entries.filter(|entry| namespaces.contains(&entry.owner.namespace));
            selected.cloned().collect()
        };
        let infos = entries.iter().filter_map(|entry| {
            let state = entry.lock();
            let is_present = !matches!(state.phase, EntryPhase::Removed);
            is_present.then(|| self.info_of(entry, &state))
        });
        infos.filter(|info| wanted(info)).take(limit).collect()
    }

    /// What of a transfer was received.
    ///
    /// # Errors
    /// If there is no such file or transfer.
    pub fn status(&self, target: FileTarget<'_>) -> Result<TransferStatus, TransferError> {
        let entry = self.find(target).ok_or_else(transfer_not_found)?;
        let mut state = entry.lock();
        let (size, is_paused) = (state.record.size, state.record.is_paused);
        if let EntryPhase::Complete = state.phase {
            return Ok(TransferStatus {
                state: FileState::Complete,
                is_paused: false,
                size,
                received: size
                    .iter()
                    .filter(|size| **size > 0)
                    .map(|size| (0, *size))
                    .collect(),
                missing: Vec::new(),
                chunk: RECOMMENDED_SEGMENT_BYTES,
            });
        }
        let file = self.open_partial(&entry, &mut state)?;
        // What is shown as received must survive a kill.
        let committed = file.commit(self.inner.settings.fsync == Fsync::Always);
        committed.map_err(|error| TransferError::storage("store a segment", &error))?;
        let received = file.received();
        let pairs = |ranges: &mut dyn Iterator<Item = std::ops::Range<u64>>| {
            let ranges = ranges.take(MAX_SHOWN_RANGES);
            ranges.map(|range| (range.start, range.end)).collect()
        };
        Ok(TransferStatus {
            state: FileState::Receiving,
            is_paused,
            size,
            received: pairs(&mut received.iter()),
            missing: pairs(&mut received.missing(0..size.unwrap_or(received.end())).iter()),
            chunk: RECOMMENDED_SEGMENT_BYTES,
        })
    }

    /// Length of the part of a transfer that was received without a gap from its beginning.
    ///
    /// # Errors
    /// If there is no such file or transfer.
    pub fn received_prefix(&self, id: &str) -> Result<u64, TransferError> {
        let entry = self.table().get(id).ok_or_else(transfer_not_found)?;
        let mut state = entry.lock();
        match state.phase {
            EntryPhase::Complete => Ok(state.record.size.unwrap_or(0)),
            _ => Ok(self
                .open_partial(&entry, &mut state)?
                .received()
                .contiguous_end(0)),
        }
    }

    /// Opens the content of a transfer that need not be complete, for digests of what has arrived.
    ///
    /// # Errors
    /// If there is no such file or transfer, or the file system returns an error.
    pub fn content_of_transfer(&self, id: &str) -> Result<File, TransferError> {
        let entry = self.table().get(id).ok_or_else(transfer_not_found)?;
        let state = entry.lock();
        match state.phase {
            EntryPhase::Removed => Err(transfer_not_found()),
            _ => File::open(entry.directory.data_path())
                .map_err(|error| TransferError::storage("open a file", &error)),
        }
    }

    /// Opens a complete file for reading.
    ///
    /// # Errors
    /// If there is no such complete file, or the file system returns an error.
    pub fn read(&self, id: &str) -> Result<(FileInfo, File), TransferError> {
        let entry = self.table().get(id).ok_or_else(file_not_found)?;
        let state = entry.lock();
        match state.phase {
            EntryPhase::Complete => {
                let file = File::open(entry.directory.data_path());
                let file = file.map_err(|error| TransferError::storage("open a file", &error))?;
                Ok((self.info_of(&entry, &state), file))
            }
            EntryPhase::Removed => Err(file_not_found()),
            EntryPhase::Closed | EntryPhase::Open(_) => Err(TransferError::new(
                TransferErrorKind::Incomplete,
                "the file is not complete yet",
            )),
        }
    }

    /// Counts bytes of a file that were sent to a reader.
    pub fn count_sent(&self, bytes: u64) {
        self.inner.metrics.sent_bytes.fetch_add(bytes, Relaxed);
    }

    /// Files and bytes of a namespace.
    #[must_use]
    pub fn namespace_usage(&self, namespace: &str) -> Usage {
        self.table().usage.namespace(namespace)
    }

    /// Metrics; `queued_bytes` wait to be written.
    #[must_use]
    pub fn metric_families(&self, queued_bytes: u64) -> Vec<MetricFamily> {
        let usage = self.table().usage.node();
        let mut families = self.inner.metrics.families(usage, queued_bytes);
        families.push(self.export_metrics());
        families
    }
}
