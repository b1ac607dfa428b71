//! All files and transfers of the node in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::error::TransferError;
use crate::file_directory::FileDirectory;
use crate::partial_file::PartialFile;
use crate::record::{FileOwner, FileRecord, FileState, OwnerKind};
use crate::usage::{Usage, UsageTable};

/// Names a transfer: its owner, and the id that the owner chose.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TransferKey {
    kind: OwnerKind,
    owner: Box<str>,
    file_id: Box<str>,
}

impl TransferKey {
    pub(crate) fn new(owner: &FileOwner, file_id: &str) -> Self {
        Self {
            kind: owner.kind,
            owner: owner.id.as_str().into(),
            file_id: file_id.into(),
        }
    }

    /// A name that no sender can choose, so that a copy replaces no file of its sender at this node, and none replaces it.
    fn of_copy(owner: &FileOwner, id: &str) -> Self {
        Self::new(owner, &format!("copy\n{id}"))
    }
}

/// One file or transfer.
pub(crate) struct FileEntry {
    pub(crate) id: Box<str>,
    pub(crate) owner: FileOwner,
    pub(crate) key: TransferKey,
    pub(crate) directory: FileDirectory,
    pub(crate) state: Mutex<EntryState>,
    /// Bytes counted in the usage.
    pub(crate) reserved: AtomicU64,
    /// Bytes received.
    pub(crate) received: AtomicU64,
}

pub(crate) struct EntryState {
    pub(crate) record: FileRecord,
    pub(crate) phase: EntryPhase,
    pub(crate) last_activity_ms: u64,
}

pub(crate) enum EntryPhase {
    /// A transfer whose files are closed.
    Closed,
    Open(Box<PartialFile>),
    Complete,
    Removed,
}

impl EntryState {
    /// Rejects what would continue a paused transfer.
    pub(crate) fn check_not_paused(&self) -> Result<(), TransferError> {
        match self.record.is_paused {
            false => Ok(()),
            true => Err(TransferError::paused()),
        }
    }
}

impl FileEntry {
    pub(crate) fn new(
        directory: FileDirectory,
        record: FileRecord,
        phase: EntryPhase,
        (reserved, received): (u64, u64),
        last_activity_ms: u64,
    ) -> Self {
        Self {
            id: record.id.as_str().into(),
            owner: record.owner.clone(),
            key: match record.is_copy {
                true => TransferKey::of_copy(&record.owner, &record.id),
                false => TransferKey::new(&record.owner, &record.file_id),
            },
            directory,
            reserved: AtomicU64::new(reserved),
            received: AtomicU64::new(received),
            state: Mutex::new(EntryState {
                record,
                phase,
                last_activity_ms,
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn usage(&self, is_transfer: bool) -> Usage {
        Usage {
            files: 1,
            bytes: self.reserved.load(Relaxed),
            transfers: u64::from(is_transfer),
        }
    }

    /// Bytes that will still be written to the disk.
    fn outstanding(&self) -> u64 {
        let received = self.received.load(Relaxed);
        self.reserved.load(Relaxed).saturating_sub(received)
    }
}

/// The table. Its lock is never held while a file's is taken; the opposite order is permitted.
#[derive(Default)]
pub(crate) struct FileTable {
    by_id: BTreeMap<Box<str>, Arc<FileEntry>>,
    transfers: HashMap<TransferKey, Arc<FileEntry>, RandomState>,
    complete: HashMap<TransferKey, Arc<FileEntry>, RandomState>,
    pub(crate) usage: UsageTable,
}

impl FileTable {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<FileEntry>> {
        self.by_id.get(id).cloned()
    }

    pub(crate) fn transfer(&self, key: &TransferKey) -> Option<Arc<FileEntry>> {
        self.transfers.get(key).cloned()
    }

    pub(crate) fn complete(&self, key: &TransferKey) -> Option<Arc<FileEntry>> {
        self.complete.get(key).cloned()
    }

    /// Entries with an id below `before`, the newest first.
    pub(crate) fn newest_first(
        &self,
        before: Option<&str>,
    ) -> impl Iterator<Item = &Arc<FileEntry>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let upper = before.map_or(Unbounded, Excluded);
        let range = self.by_id.range::<str, _>((Unbounded, upper));
        range.rev().map(|(_, entry)| entry)
    }

    pub(crate) fn transfers(&self) -> impl Iterator<Item = &Arc<FileEntry>> {
        self.transfers.values()
    }

    /// Bytes that the transfers will still write to the disk.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        self.transfers
            .values()
            .map(|entry| entry.outstanding())
            .sum()
    }

    /// Adds an entry whose usage was counted before, if `is_counted`.
    pub(crate) fn insert(&mut self, entry: Arc<FileEntry>, state: FileState, is_counted: bool) {
        let is_transfer = state == FileState::Receiving;
        if !is_counted {
            self.usage.add(&entry.owner, entry.usage(is_transfer));
        }
        self.by_id.insert(entry.id.clone(), entry.clone());
        let names = match is_transfer {
            true => &mut self.transfers,
            false => &mut self.complete,
        };
        names.insert(entry.key.clone(), entry);
    }

    /// Adds a complete file that cannot be addressed by its owner's id, so that no other replaces it.
    pub(crate) fn insert_unnamed(&mut self, entry: Arc<FileEntry>) {
        self.usage.add(&entry.owner, entry.usage(false));
        self.by_id.insert(entry.id.clone(), entry);
    }

    /// Makes a complete file one that no other replaces.
    pub(crate) fn remove_name(&mut self, entry: &Arc<FileEntry>) {
        let named = self.complete.get(&entry.key);
        if named.is_some_and(|named| Arc::ptr_eq(named, entry)) {
            self.complete.remove(&entry.key);
        }
    }

    /// Makes a complete file addressable by its owner's id; false if another one is.
    pub(crate) fn restore_name(&mut self, entry: &Arc<FileEntry>) -> bool {
        let named = self.complete.entry(entry.key.clone());
        Arc::ptr_eq(named.or_insert_with(|| entry.clone()), entry)
    }

    /// Whether a complete file is the one that its owner's id names.
    pub(crate) fn is_named(&self, entry: &Arc<FileEntry>) -> bool {
        let named = self.complete.get(&entry.key);
        named.is_some_and(|named| Arc::ptr_eq(named, entry))
    }

    /// Removes an entry; false if it is not in the table.
    pub(crate) fn remove(&mut self, entry: &Arc<FileEntry>) -> bool {
        if self.by_id.remove(&entry.id).is_none() {
            return false;
        }
        let is_this =
            |known: Option<&Arc<FileEntry>>| known.is_some_and(|known| Arc::ptr_eq(known, entry));
        let is_transfer = is_this(self.transfers.get(&entry.key));
        if is_transfer {
            self.transfers.remove(&entry.key);
        } else if is_this(self.complete.get(&entry.key)) {
            self.complete.remove(&entry.key);
        }
        self.usage.remove(&entry.owner, entry.usage(is_transfer));
        true
    }

    /// Makes a transfer a complete file of this size. Returns the file that it replaces; that one is still in the table.
    pub(crate) fn complete_transfer(
        &mut self,
        entry: &Arc<FileEntry>,
        size: u64,
    ) -> Option<Arc<FileEntry>> {
        self.usage.remove(&entry.owner, entry.usage(true));
        entry.reserved.store(size, Relaxed);
        entry.received.store(size, Relaxed);
        self.usage.add(&entry.owner, entry.usage(false));
        self.transfers.remove(&entry.key);
        self.complete.insert(entry.key.clone(), entry.clone())
    }

    /// Counts bytes of a transfer beyond those it announced.
    pub(crate) fn reserve(&mut self, entry: &FileEntry, added: u64) {
        let added_usage = Usage {
            bytes: added,
            ..Usage::default()
        };
        self.usage.add(&entry.owner, added_usage);
        entry.reserved.fetch_add(added, Relaxed);
    }
}
