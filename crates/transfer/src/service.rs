//! The engine: opens the directory of files, begins transfers and removes files. Segments are stored by
//! `segments.rs`, and files are read by `file_queries.rs`.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use namespaces::{Namespaces, QUOTA_MEGABYTE, Quota};
use ring::rand::{SecureRandom as _, SystemRandom};
use wall_clock::now_ms;

use crate::error::{TransferError, TransferErrorKind};
use crate::export_table::{ExportDiscard, ExportTable};
use crate::file_directory::{FileDirectory, StoredRecord, file_directories};
use crate::file_info::FileInfo;
use crate::file_table::{EntryPhase, EntryState, FileEntry, FileTable, TransferKey};
use crate::free_space::FreeSpace;
use crate::metrics::TransferMetrics;
use crate::rate_limit::RateLimits;
use crate::record::{FORMAT_VERSION, FileOwner, FileRecord, FileState};
use crate::request::TransferRequest;
use crate::settings::TransferSettings;
use crate::signed_link::LinkKey;
use crate::usage::{NamespaceFileLimits, Usage};

/// File that marks the directory and contains its version.
const VERSION_FILE: &str = "version";
/// Locks of transfers that are being begun; several, since a begin waits for the disk.
const BEGIN_LOCKS: usize = 64;
/// Time for which a complete copy of a file of another node is kept that nobody holds yet.
pub(crate) const COPY_RETENTION_MS: u64 = 600_000;

/// Is notified of complete files.
pub struct CompletionObserver {
    /// Whether it is to be notified; asked when a file becomes complete.
    pub is_interested: Box<dyn Fn() -> bool + Send + Sync>,
    /// Called on the thread that completed the file. The file is kept until [`FileService::settle_event`].
    pub completed: Box<dyn Fn(&FileInfo) + Send + Sync>,
}

/// The file or transfer that a call is about.
#[derive(Debug, Clone, Copy)]
pub enum FileTarget<'a> {
    /// By the id that the node gave it.
    Id(&'a str),
    /// The transfer of an owner by the id that the owner chose.
    Transfer(&'a FileOwner, &'a str),
}

/// A transfer that was begun, or that existed already.
#[derive(Debug, Clone, PartialEq)]
pub enum TransferStart {
    New(FileInfo),
    /// The same transfer was begun before; what was received is kept.
    Resumed(FileInfo),
    /// The same file was transferred before.
    Complete(FileInfo),
}

impl TransferStart {
    #[must_use]
    pub fn info(&self) -> &FileInfo {
        match self {
            Self::New(info) | Self::Resumed(info) | Self::Complete(info) => info,
        }
    }
}

/// All files of a node. Clones share them. Every method may block on the disk.
#[derive(Clone)]
pub struct FileService {
    pub(crate) inner: Arc<FileServiceInner>,
}

pub(crate) struct FileServiceInner {
    pub(crate) directory: PathBuf,
    pub(crate) settings: TransferSettings,
    table: Mutex<FileTable>,
    begin_locks: [Mutex<()>; BEGIN_LOCKS],
    begin_hasher: RandomState,
    pub(crate) free_space: FreeSpace,
    pub(crate) rates: RateLimits,
    /// Ids of transfers that a request has taken.
    pub(crate) uploads: Mutex<HashSet<String>>,
    pub(crate) link_key: LinkKey,
    namespaces: OnceLock<Namespaces>,
    pub(crate) observer: OnceLock<CompletionObserver>,
    pub(crate) metrics: TransferMetrics,
    pub(crate) exports: Mutex<ExportTable>,
    pub(crate) export_discard: OnceLock<ExportDiscard>,
}

pub(crate) fn transfer_not_found() -> TransferError {
    let detail = "there is no transfer of this id; begin it with init, or it has expired";
    TransferError::new(TransferErrorKind::NotFound, detail)
}

pub(crate) fn file_not_found() -> TransferError {
    let detail = "there is no complete file of this id; it may have expired";
    TransferError::new(TransferErrorKind::NotFound, detail)
}

fn new_file_id(created_at_ms: u64) -> Result<String, TransferError> {
    let mut random = [0; 8];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| TransferError::storage("create an id", &io::Error::other("no randomness")))?;
    Ok(format!(
        "{created_at_ms:012x}{:016x}",
        u64::from_le_bytes(random)
    ))
}

impl FileService {
    /// Opens the directory of files, and creates it if it is missing.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn open(directory: &Path, settings: TransferSettings) -> io::Result<Self> {
        disk::create_private_dir(directory)?;
        let version = directory.join(VERSION_FILE);
        if !version.exists() {
            disk::replace_file(
                directory,
                VERSION_FILE,
                format!("{FORMAT_VERSION}\n").as_bytes(),
            )?;
        }
        let service = Self {
            inner: Arc::new(FileServiceInner {
                free_space: FreeSpace::new(directory),
                directory: directory.to_owned(),
                settings,
                table: Mutex::default(),
                begin_locks: std::array::from_fn(|_| Mutex::default()),
                begin_hasher: RandomState::new(),
                rates: RateLimits::default(),
                uploads: Mutex::default(),
                link_key: LinkKey::open(directory)?,
                namespaces: OnceLock::new(),
                observer: OnceLock::new(),
                metrics: TransferMetrics::default(),
                exports: Mutex::default(),
                export_discard: OnceLock::new(),
            }),
        };
        service.load()?;
        Ok(service)
    }

    /// Applies the quotas of namespaces from now on.
    pub fn set_namespaces(&self, namespaces: Namespaces) {
        let _ = self.inner.namespaces.set(namespaces);
    }

    /// Notifies an observer of each file that becomes complete from now on. Only the first observer is notified.
    pub fn observe_completions(&self, observer: CompletionObserver) {
        let _ = self.inner.observer.set(observer);
    }

    #[must_use]
    pub fn settings(&self) -> &TransferSettings {
        &self.inner.settings
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, FileTable> {
        self.inner
            .table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self) -> io::Result<()> {
        let mut replaced = Vec::new();
        for directory in file_directories(&self.inner.directory)? {
            let record = match directory.read_record()? {
                StoredRecord::Intact(record) => *record,
                StoredRecord::Missing => {
                    directory.remove()?;
                    continue;
                }
                StoredRecord::Damaged(problem) => {
                    tracing::error!(
                        directory = %directory.path().display(),
                        problem,
                        "the record of a file is damaged; the file is not served and its directory is kept"
                    );
                    continue;
                }
            };
            replaced.extend(self.load_file(directory, record)?);
        }
        for entry in replaced {
            if self.is_kept(&entry) {
                continue;
            }
            self.table().remove(&entry);
            entry.directory.remove()?;
        }
        Ok(())
    }

    /// Adds a stored file; returns an older one that it replaces.
    fn load_file(
        &self,
        directory: FileDirectory,
        record: FileRecord,
    ) -> io::Result<Option<Arc<FileEntry>>> {
        let state = record.state;
        let entry = match state {
            FileState::Complete => {
                directory.remove_range_log()?;
                self.load_exports(&directory, &record.id)?;
                let size = record.size.unwrap_or(0);
                let last_ms = record.completed_at_ms.unwrap_or(record.created_at_ms);
                FileEntry::new(
                    directory,
                    record,
                    EntryPhase::Complete,
                    (size, size),
                    last_ms,
                )
            }
            FileState::Receiving => {
                let len = directory.data_len().unwrap_or(0);
                let reserved = record.size.unwrap_or(0).max(len);
                let last_ms = directory.last_activity_ms().unwrap_or(record.created_at_ms);
                let received = len.min(reserved);
                let phase = EntryPhase::Closed;
                FileEntry::new(directory, record, phase, (reserved, received), last_ms)
            }
        };
        let entry = Arc::new(entry);
        let is_held = !entry.lock().record.used_by.is_empty();
        let mut table = self.table();
        if is_held {
            table.insert_unnamed(entry);
            return Ok(None);
        }
        let before = match state {
            FileState::Receiving => table.transfer(&entry.key),
            FileState::Complete => table.complete(&entry.key),
        };
        table.insert(entry, state, false);
        Ok(before)
    }

    /// Begins a transfer. The same request again changes nothing.
    ///
    /// # Errors
    /// If a field is invalid, the owner has another transfer with this id, a quota is used up, or the disk is nearly full.
    pub fn begin(&self, request: TransferRequest) -> Result<TransferStart, TransferError> {
        self.count(self.try_begin(request))
    }

    pub(crate) fn count<T>(&self, result: Result<T, TransferError>) -> Result<T, TransferError> {
        result.inspect_err(|error| self.inner.metrics.count_failure(error.kind))
    }

    fn try_begin(&self, request: TransferRequest) -> Result<TransferStart, TransferError> {
        self.check_enabled()?;
        let request = request.checked()?;
        let size = request.size.unwrap_or(0);
        self.check_file_size(size)?;
        let key = TransferKey::new(&request.owner, &request.file_id);
        let stripe = self.inner.begin_hasher.hash_one(&key) as usize % BEGIN_LOCKS;
        let lock = &self.inner.begin_locks[stripe];
        let _beginning = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (transfer, complete) = {
            let table = self.table();
            (table.transfer(&key), table.complete(&key))
        };
        let record = self.new_record(request)?;
        if let Some(entry) = transfer {
            let mut state = entry.lock();
            if !matches!(state.phase, EntryPhase::Removed | EntryPhase::Complete) {
                if !is_same_request(&state.record, &record) {
                    let detail = format!(
                        "the transfer {:?} was begun with other properties; abort it first, or choose another file id",
                        record.file_id
                    );
                    return Err(TransferError::new(TransferErrorKind::Conflict, detail));
                }
                state.last_activity_ms = now_ms();
                self.inner.metrics.resumed.fetch_add(1, Relaxed);
                return Ok(TransferStart::Resumed(self.info_of(&entry, &state)));
            }
        }
        if let Some(entry) = complete {
            let state = entry.lock();
            let stored = &state.record;
            if record.checksum.is_some()
                && stored.checksum == record.checksum
                && stored.name == record.name
                && record.size.is_none_or(|size| stored.size == Some(size))
            {
                return Ok(TransferStart::Complete(self.info_of(&entry, &state)));
            }
        }
        self.create(record, size).map(TransferStart::New)
    }

    pub(crate) fn check_enabled(&self) -> Result<(), TransferError> {
        match self.inner.settings.enabled {
            true => Ok(()),
            false => Err(TransferError::new(
                TransferErrorKind::Disabled,
                "file transfers are disabled on this node (files.enabled)",
            )),
        }
    }

    pub(crate) fn check_file_size(&self, size: u64) -> Result<(), TransferError> {
        let limit = self.inner.settings.max_file_bytes;
        match size <= limit {
            true => Ok(()),
            false => Err(TransferError::new(
                TransferErrorKind::TooLarge,
                format!("a file may have {limit} bytes (files.max_file_bytes), not {size}"),
            )),
        }
    }

    fn new_record(&self, request: TransferRequest) -> Result<FileRecord, TransferError> {
        let settings = &self.inner.settings;
        let created_at_ms = now_ms();
        let max_ttl_s = u64::from(settings.max_segments_ttl_s);
        let ttl_s = request.segments_ttl_s.unwrap_or(max_ttl_s);
        let ttl_s = ttl_s.clamp(
            u64::from(settings.min_segments_ttl_s).min(max_ttl_s),
            max_ttl_s,
        );
        Ok(FileRecord {
            version: FORMAT_VERSION,
            id: new_file_id(created_at_ms)?,
            owner: request.owner,
            file_id: request.file_id,
            name: request.name,
            size: request.size,
            checksum: request.checksum,
            content_type: request.content_type,
            expires_at_ms: request.expires_at_ms,
            segments_ttl_s: ttl_s as u32,
            user_data: request.user_data,
            is_partial: request.is_partial,
            is_paused: false,
            is_event_pending: false,
            created_at_ms,
            state: FileState::Receiving,
            completed_at_ms: None,
            is_copy: false,
            used_by: BTreeSet::new(),
        })
    }

    pub(crate) fn namespace_limits(&self, namespace: &str) -> NamespaceFileLimits {
        let limits = self.inner.namespaces.get();
        let Some(limits) = limits.and_then(|namespaces| namespaces.get(namespace)) else {
            return NamespaceFileLimits::default();
        };
        let megabytes = limits.quotas.limit(Quota::FileMegabytes);
        NamespaceFileLimits {
            files: limits.quotas.limit(Quota::Files).map(u64::from),
            bytes: megabytes.map(|megabytes| u64::from(megabytes) * QUOTA_MEGABYTE),
        }
    }

    fn create(&self, record: FileRecord, size: u64) -> Result<FileInfo, TransferError> {
        let free = self.free_bytes()?;
        let limits = self.namespace_limits(&record.owner.namespace);
        let added = usage_of_new(size);
        let owner = record.owner.clone();
        {
            let mut table = self.table();
            self.check_free(free, table.outstanding_bytes().saturating_add(size))?;
            (table.usage).check(&owner, added, &self.inner.settings, limits)?;
            table.usage.add(&owner, added);
        }
        self.create_counted(record, size)
    }

    /// Creates a transfer whose usage is counted already.
    pub(crate) fn create_counted(
        &self,
        record: FileRecord,
        size: u64,
    ) -> Result<FileInfo, TransferError> {
        let owner = record.owner.clone();
        let directory = FileDirectory::new(&self.inner.directory, &record.id);
        let file = directory.create(&record).map_err(|error| {
            self.table().usage.remove(&owner, usage_of_new(size));
            TransferError::storage("begin a file", &error)
        })?;
        let phase = EntryPhase::Open(Box::new(file));
        let entry = FileEntry::new(directory, record, phase, (size, 0), now_ms());
        let entry = Arc::new(entry);
        self.table()
            .insert(entry.clone(), FileState::Receiving, true);
        self.inner.metrics.begun.fetch_add(1, Relaxed);
        let state = entry.lock();
        Ok(self.info_of(&entry, &state))
    }

    pub(crate) fn free_bytes(&self) -> Result<u64, TransferError> {
        let free = self.inner.free_space.bytes();
        free.map_err(|error| TransferError::storage("read the free space of the disk", &error))
    }

    pub(crate) fn check_free(&self, free: u64, needed: u64) -> Result<(), TransferError> {
        let kept = self.inner.settings.min_free_bytes;
        match free >= kept.saturating_add(needed) {
            true => Ok(()),
            false => Err(TransferError::new(
                TransferErrorKind::DiskFull,
                format!(
                    "the disk has {free} bytes free and keeps {kept} (files.min_free_bytes); {needed} more do not fit: \
                     delete files or add space"
                ),
            )),
        }
    }

    /// The entry that a call is about; a transfer that is not complete is preferred.
    pub(crate) fn find(&self, target: FileTarget<'_>) -> Option<Arc<FileEntry>> {
        let table = self.table();
        match target {
            FileTarget::Id(id) => table.get(id),
            FileTarget::Transfer(owner, file_id) => {
                let key = TransferKey::new(owner, file_id);
                table.transfer(&key).or_else(|| table.complete(&key))
            }
        }
    }

    /// Removes a transfer that is not complete. Without one there is nothing to do.
    ///
    /// # Errors
    /// If the file system returns an error.
    pub fn abort(&self, owner: &FileOwner, file_id: &str) -> Result<(), TransferError> {
        let transfer = self.table().transfer(&TransferKey::new(owner, file_id));
        match transfer {
            Some(entry) => {
                let removed = self.remove_entry(&entry, Some(FileState::Receiving))?;
                self.count_abort(removed.as_ref());
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Deletes a file or a transfer; returns what it was.
    ///
    /// # Errors
    /// If there is none, or the file system returns an error.
    pub fn delete(&self, id: &str) -> Result<FileInfo, TransferError> {
        let entry = self.table().get(id).ok_or_else(file_not_found)?;
        let removed = self.remove_entry(&entry, None)?;
        self.count_abort(removed.as_ref());
        removed.ok_or_else(file_not_found)
    }

    /// Removes an entry if it is in this state; `None`: it was not.
    pub(crate) fn remove_entry(
        &self,
        entry: &Arc<FileEntry>,
        only: Option<FileState>,
    ) -> Result<Option<FileInfo>, TransferError> {
        let mut state = entry.lock();
        if matches!(state.phase, EntryPhase::Removed)
            || only.is_some_and(|only| state.record.state != only)
        {
            return Ok(None);
        }
        if let Some(holder) = state.record.used_by.first() {
            let detail = format!("the file is used by {holder}; delete that first");
            return Err(TransferError::new(TransferErrorKind::Conflict, detail));
        }
        let info = self.info_of(entry, &state);
        (entry.directory.remove())
            .map_err(|error| TransferError::storage("delete a file", &error))?;
        state.phase = EntryPhase::Removed;
        self.table().remove(entry);
        let exports = self.exports().remove_file(&entry.id);
        for (sink, export) in &exports {
            self.discard_export(sink, &entry.id, export);
        }
        Ok(Some(info))
    }

    fn count_abort(&self, removed: Option<&FileInfo>) {
        if removed.is_some_and(|info| info.state == FileState::Receiving) {
            self.inner.metrics.aborted.fetch_add(1, Relaxed);
        }
    }

    /// When a file or transfer expires, in milliseconds since 1970.
    pub(crate) fn expiry_ms(&self, state: &EntryState) -> Option<u64> {
        let record = &state.record;
        let retention_ms = u64::from(self.inner.settings.retention_s) * 1000;
        match (record.state, record.expires_at_ms) {
            (FileState::Receiving, _) if record.is_paused => None,
            (FileState::Receiving, _) => {
                let ttl_ms = u64::from(record.segments_ttl_s) * 1000;
                Some(state.last_activity_ms.saturating_add(ttl_ms))
            }
            (FileState::Complete, _)
                if !record.used_by.is_empty() || self.is_kept_for_exports(state) =>
            {
                None
            }
            (FileState::Complete, _) if record.is_copy => {
                let completed_at_ms = record.completed_at_ms.unwrap_or(record.created_at_ms);
                Some(completed_at_ms.saturating_add(COPY_RETENTION_MS))
            }
            (FileState::Complete, Some(expires_at_ms)) => Some(expires_at_ms),
            (FileState::Complete, None) if retention_ms == 0 => None,
            (FileState::Complete, None) => {
                let completed_at_ms = record.completed_at_ms.unwrap_or(record.created_at_ms);
                Some(completed_at_ms.saturating_add(retention_ms))
            }
        }
    }

    pub(crate) fn info_of(&self, entry: &FileEntry, state: &EntryState) -> FileInfo {
        let received = entry.received.load(Relaxed);
        let exports = self.exports().of_file(&entry.id);
        FileInfo::new(&state.record, received, self.expiry_ms(state), exports)
    }
}

/// What a transfer of this size uses.
pub(crate) fn usage_of_new(size: u64) -> Usage {
    Usage {
        files: 1,
        bytes: size,
        transfers: 1,
    }
}

/// Whether a request begins the transfer that exists already.
fn is_same_request(known: &FileRecord, requested: &FileRecord) -> bool {
    known.name == requested.name
        && known.size == requested.size
        && known.checksum == requested.checksum
        && known.content_type == requested.content_type
        && known.expires_at_ms == requested.expires_at_ms
        && known.user_data == requested.user_data
}
