//! Exports of complete files by sinks: which of them wait, how far they are, and how they ended.
//!
//! A file is kept until its exports are complete or cancelled: it does not expire, and no later file of its sender replaces
//! it. The exports of a file are stored beside its record, so that they continue after a restart.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};

use hooks::{MetricFamily, MetricKind};
use serde_json::Value;
use wall_clock::now_ms;

use crate::error::{TransferError, TransferErrorKind};
use crate::export_table::{ExportDiscard, ExportState, ExportTable, StoredExport};
use crate::file_directory::FileDirectory;
use crate::file_info::FileInfo;
use crate::file_table::{EntryPhase, EntryState, FileEntry};
use crate::service::{FileService, FileTarget, file_not_found};

/// Maximum number of exports of a file.
pub const MAX_EXPORTS: usize = 16;
/// Maximum size of the row of an export, as JSON.
pub const MAX_EXPORT_ROW_BYTES: usize = 64 << 10;

/// An export that a sink is to begin.
#[derive(Debug)]
pub struct OpenedExport {
    pub info: FileInfo,
    pub file: File,
    /// What an earlier attempt stored in order to be continued.
    pub position: Option<String>,
}

/// An export that must be queued again after a start.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveExport {
    pub file: String,
    pub sink: String,
    /// The row of the sink.
    pub row: Value,
}

fn export_not_found(sink: &str) -> TransferError {
    let detail = format!("the file has no export to the sink {sink:?}");
    TransferError::new(TransferErrorKind::NotFound, detail)
}

impl FileService {
    pub(crate) fn exports(&self) -> MutexGuard<'_, ExportTable> {
        (self.inner.exports)
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the exports of a complete file after a start. What was running is continued.
    pub(crate) fn load_exports(&self, directory: &FileDirectory, id: &str) -> io::Result<()> {
        let mut exports = directory.read_exports()?;
        if exports.is_empty() {
            return Ok(());
        }
        for export in exports.values_mut() {
            if export.state == ExportState::Running {
                export.state = ExportState::Waiting;
            }
        }
        self.exports().by_file.insert(id.into(), exports);
        Ok(())
    }

    /// Whether a complete file must not be removed automatically: its event is not handled, or it is still to be exported.
    pub(crate) fn is_kept_for_exports(&self, state: &EntryState) -> bool {
        state.record.is_event_pending || self.exports().has_incomplete(&state.record.id)
    }

    /// [`is_kept_for_exports`](Self::is_kept_for_exports) of an entry that is not locked.
    pub(crate) fn is_kept(&self, entry: &FileEntry) -> bool {
        let state = entry.lock();
        self.is_kept_for_exports(&state)
    }

    /// Records that a sink will export a file, and keeps the file until then. Returns false if there is no such file, it has
    /// too many exports, or the row is too large. Never waits for the disk; [`store_queued_exports`](Self::store_queued_exports)
    /// makes it durable.
    pub fn queue_export(&self, sink: &str, file: &str, row: Value) -> bool {
        if self.table().get(file).is_none() || row.to_string().len() > MAX_EXPORT_ROW_BYTES {
            return false;
        }
        let mut exports = self.exports();
        let of_file = exports.by_file.entry(file.into()).or_default();
        if of_file.len() >= MAX_EXPORTS && !of_file.contains_key(sink) {
            return false;
        }
        let before = of_file.remove(sink);
        let export = StoredExport {
            state: ExportState::Waiting,
            row,
            position: before.and_then(|before| before.position),
            sent_bytes: 0,
            attempts: 0,
            error: None,
            location: None,
            updated_at_ms: now_ms(),
            deletes_file: false,
        };
        of_file.insert(sink.to_owned(), export);
        exports.unstored.insert(file.into());
        true
    }

    /// Makes queued exports durable.
    pub fn store_queued_exports(&self) {
        let files = std::mem::take(&mut self.exports().unstored);
        for file in files {
            let Some(entry) = self.find(FileTarget::Id(&file)) else {
                self.exports().remove_file(&file);
                continue;
            };
            let state = entry.lock();
            if let Err(error) = self.store_exports(&entry, &state) {
                drop(state);
                tracing::error!(%error, id = %file, "storing the exports of a file failed; retrying");
                self.exports().unstored.insert(file);
            }
        }
    }

    /// Stores the exports of a file, whose lock the caller holds, so that an older state is never written last.
    fn store_exports(&self, entry: &FileEntry, state: &EntryState) -> Result<(), TransferError> {
        if !matches!(state.phase, EntryPhase::Complete) {
            return Ok(());
        }
        let exports = {
            let mut table = self.exports();
            table.unstored.remove(&entry.id);
            table.by_file.get(&entry.id).cloned().unwrap_or_default()
        };
        (entry.directory.write_exports(&exports))
            .map_err(|error| TransferError::storage("store the exports of a file", &error))
    }

    /// Changes an export and stores the change; false if there is no such export.
    fn change_export(
        &self,
        sink: &str,
        file: &str,
        change: impl FnOnce(&mut StoredExport),
    ) -> Result<bool, TransferError> {
        let Some(entry) = self.find(FileTarget::Id(file)) else {
            self.exports().remove_file(file);
            return Ok(false);
        };
        let state = entry.lock();
        if let Some(export) = self.exports().get_mut(file, sink) {
            change(export);
        } else {
            return Ok(false);
        }
        self.store_exports(&entry, &state)?;
        Ok(true)
    }

    /// Begins an attempt of an export. `None`: the export was cancelled, or its file deleted.
    ///
    /// # Errors
    /// If the file is not complete, or the file system returns an error.
    pub fn begin_export(
        &self,
        sink: &str,
        file: &str,
    ) -> Result<Option<OpenedExport>, TransferError> {
        let mut position = None;
        let begun = self.change_export(sink, file, |export| {
            position.clone_from(&export.position);
            export.state = ExportState::Running;
            export.attempts = export.attempts.saturating_add(1);
            export.sent_bytes = 0;
            export.updated_at_ms = now_ms();
        })?;
        if !begun {
            return Ok(None);
        }
        let (info, content) = match self.read(file) {
            Err(error) if error.kind == TransferErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        Ok(Some(OpenedExport {
            info,
            file: content,
            position,
        }))
    }

    /// Notes how far an export is. Never waits for the disk.
    pub fn note_export_progress(&self, sink: &str, file: &str, sent_bytes: u64) {
        if let Some(export) = self.exports().get_mut(file, sink) {
            export.sent_bytes = sent_bytes;
        }
    }

    /// Stores what a later attempt needs to continue. Returns `false` if there is no such export.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn store_export_position(
        &self,
        sink: &str,
        file: &str,
        position: Option<&str>,
    ) -> Result<bool, TransferError> {
        let position = position.map(str::to_owned);
        self.change_export(sink, file, |export| export.position = position)
    }

    /// Ends an export whose target has the file. If `deletes_file`, the file is deleted when its other exports are complete
    /// too.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn complete_export(
        &self,
        sink: &str,
        file: &str,
        location: &str,
        deletes_file: bool,
    ) -> Result<(), TransferError> {
        let changed = self.change_export(sink, file, |export| {
            export.state = ExportState::Complete;
            export.row = Value::Null;
            export.position = None;
            export.error = None;
            export.location = Some(location.to_owned());
            export.updated_at_ms = now_ms();
            export.deletes_file = deletes_file;
        })?;
        match changed {
            true => self.remove_if_obsolete(file),
            false => Ok(()),
        }
    }

    /// Ends an attempt of an export that will be tried again.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn postpone_export(
        &self,
        sink: &str,
        file: &str,
        error: &str,
    ) -> Result<(), TransferError> {
        self.end_attempt(sink, file, ExportState::Waiting, error)
    }

    /// Ends an export that its sink has given up. The file is kept until it is exported again or the export is cancelled.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn fail_export(&self, sink: &str, file: &str, error: &str) -> Result<(), TransferError> {
        self.end_attempt(sink, file, ExportState::Failed, error)
    }

    fn end_attempt(
        &self,
        sink: &str,
        file: &str,
        state: ExportState,
        error: &str,
    ) -> Result<(), TransferError> {
        self.change_export(sink, file, |export| {
            export.state = state;
            export.error = Some(error.to_owned());
            export.updated_at_ms = now_ms();
        })?;
        Ok(())
    }

    /// Cancels an export, or removes one that has ended. A target that received parts of the file is asked to remove them.
    ///
    /// # Errors
    /// If there is no such export, or the file system returns an error.
    pub fn cancel_export(&self, sink: &str, file: &str) -> Result<(), TransferError> {
        let entry = self.find(FileTarget::Id(file)).ok_or_else(file_not_found)?;
        let state = entry.lock();
        let removed = {
            let mut exports = self.exports();
            let of_file = exports.by_file.get_mut(file);
            let removed = of_file.and_then(|of_file| of_file.remove(sink));
            if exports.by_file.get(file).is_some_and(BTreeMap::is_empty) {
                exports.by_file.remove(file);
            }
            removed
        };
        let Some(removed) = removed else {
            return Err(export_not_found(sink));
        };
        self.store_exports(&entry, &state)?;
        drop(state);
        self.discard_export(sink, file, &removed);
        self.remove_if_obsolete(file)
    }

    /// Sets what removes the sent parts of cancelled exports from the systems of their sinks; callable once.
    pub fn set_export_discard(&self, discard: ExportDiscard) {
        if self.inner.export_discard.set(discard).is_err() {
            tracing::error!(
                "the function that discards exports is set twice; ignoring the second one; this is a bug"
            );
        }
    }

    /// Lets the system of the sink forget what it has of a file.
    pub(crate) fn discard_export(&self, sink: &str, file: &str, export: &StoredExport) {
        if let (Some(position), Some(discard)) = (&export.position, self.inner.export_discard.get())
        {
            discard(sink, file, position);
        }
    }

    /// Ends the exports of a sink that no longer exists.
    pub fn fail_exports_of_sink(&self, sink: &str, error: &str) {
        let files: Vec<Box<str>> = {
            let exports = self.exports();
            let of_sink = exports.by_file.iter().filter(|(_, of_file)| {
                of_file
                    .get(sink)
                    .is_some_and(|export| export.state.is_active())
            });
            of_sink.map(|(file, _)| file.clone()).collect()
        };
        for file in files {
            if let Err(problem) = self.fail_export(sink, &file, error) {
                tracing::error!(error = %problem, id = %file, "storing the state of an export failed");
            }
        }
    }

    /// Exports that had not ended when the node stopped, the oldest first.
    #[must_use]
    pub fn active_exports(&self) -> Vec<ActiveExport> {
        let exports = self.exports();
        let all = exports.by_file.iter().flat_map(|(file, of_file)| {
            of_file
                .iter()
                .map(move |(sink, export)| (file, sink, export))
        });
        let mut active: Vec<_> = all
            .filter(|(_, _, export)| export.state.is_active())
            .map(|(file, sink, export)| {
                let active = ActiveExport {
                    file: file.to_string(),
                    sink: sink.clone(),
                    row: export.row.clone(),
                };
                (export.updated_at_ms, active)
            })
            .collect();
        active.sort_by(|(left, a), (right, b)| (left, &a.file).cmp(&(right, &b.file)));
        active.into_iter().map(|(_, export)| export).collect()
    }

    /// The row of an export that is not complete.
    #[must_use]
    pub fn export_row(&self, sink: &str, file: &str) -> Option<Value> {
        let mut exports = self.exports();
        let row = exports.get_mut(file, sink)?.row.clone();
        (!row.is_null()).then_some(row)
    }

    /// Complete files whose event was not handled before the node stopped.
    #[must_use]
    pub fn files_with_pending_event(&self) -> Vec<FileInfo> {
        let entries: Vec<Arc<FileEntry>> = self.table().newest_first(None).cloned().collect();
        let pending = entries.iter().rev().filter_map(|entry| {
            let state = entry.lock();
            let is_pending =
                matches!(state.phase, EntryPhase::Complete) && state.record.is_event_pending;
            is_pending.then(|| self.info_of(entry, &state))
        });
        pending.collect()
    }

    /// Records that the event of a complete file is handled, and stores the exports that it has queued. A node that is killed
    /// before emits the event again.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn settle_event(&self, file: &str) -> Result<(), TransferError> {
        let Some(entry) = self.find(FileTarget::Id(file)) else {
            return Ok(());
        };
        let mut state = entry.lock();
        if !matches!(state.phase, EntryPhase::Complete) || !state.record.is_event_pending {
            return Ok(());
        }
        if self.exports().by_file.contains_key(file) {
            self.store_exports(&entry, &state)?;
        }
        let mut record = state.record.clone();
        record.is_event_pending = false;
        (entry.directory.write_record(&record))
            .map_err(|error| TransferError::storage("store the state of a file", &error))?;
        state.record = record;
        drop(state);
        self.remove_if_obsolete(file)
    }

    /// Removes a complete file that was only kept for its exports, or that is to be deleted after them.
    pub(crate) fn remove_if_obsolete(&self, file: &str) -> Result<(), TransferError> {
        let Some(entry) = self.find(FileTarget::Id(file)) else {
            return Ok(());
        };
        let is_obsolete = {
            let state = entry.lock();
            matches!(state.phase, EntryPhase::Complete)
                && state.record.used_by.is_empty()
                && !self.is_kept_for_exports(&state)
                && (state.record.is_copy
                    || self.exports().deletes_file(file)
                    || !self.table().is_named(&entry))
        };
        if is_obsolete {
            self.remove_entry(&entry, None)?;
        }
        Ok(())
    }

    /// Number of exports by state.
    pub(crate) fn export_metrics(&self) -> MetricFamily {
        let mut counts = [0_u64; ExportState::ALL.len()];
        for export in self.exports().by_file.values().flat_map(BTreeMap::values) {
            counts[export.state as usize] += 1;
        }
        let by_state = ExportState::ALL.iter().zip(counts);
        MetricFamily::by_label(
            "file_exports",
            "Exports of files, by state.",
            MetricKind::Gauge,
            "state",
            by_state.map(|(state, count)| (state.name(), count as f64)),
        )
    }
}
