//! The versions of devices, of their attributes and of other records about them, by which the nodes of a cluster recognise
//! later changes.
//!
//! A row of a table such as `device_version` and `attribute_version` has the version (16 bytes), the revision of the device (4
//! bytes, big-endian; 0 for attributes) and whether the record was removed (1 byte). Its key begins with the bucket, so
//! that the versions of a bucket are one range.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cluster::{NodeName, Record, RecordChanges, RecordDigests, RecordVersion, record_bucket};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use store::{StoreError, Table, TableBatch, Tables};

/// Time for which removed records are remembered. A node that was away for longer may bring them back.
const REMOVAL_RETENTION_MS: u64 = 7 * 24 * 3600 * 1000;

/// The versions of the records of one kind.
pub struct SharedVersions {
    versions: Table,
    /// Records of other nodes, with their versions, whose products or devices are not known yet.
    pub awaiting: Table,
    node: u64,
    digests: Mutex<RecordDigests>,
    /// What other nodes have to be told.
    pub changes: RecordChanges,
    may_await: AtomicBool,
}

/// The version of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRow {
    pub version: RecordVersion,
    pub revision: u32,
    pub is_removed: bool,
}

impl VersionRow {
    fn encode(self) -> Vec<u8> {
        let mut row = self.version.to_bytes().to_vec();
        row.extend_from_slice(&self.revision.to_be_bytes());
        row.push(u8::from(self.is_removed));
        row
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let (version, row) = row.split_first_chunk::<{ RecordVersion::BYTES }>()?;
        let (revision, row) = row.split_first_chunk::<4>()?;
        Some(Self {
            version: RecordVersion::from_bytes(*version),
            revision: u32::from_be_bytes(*revision),
            is_removed: *row.first()? != 0,
        })
    }

    pub fn is_forgotten(&self, now_ms: u64) -> bool {
        self.is_removed && self.version.time_ms.saturating_add(REMOVAL_RETENTION_MS) < now_ms
    }
}

fn key_of(id: &str) -> Vec<u8> {
    [&record_bucket(id).to_be_bytes()[..], id.as_bytes()].concat()
}

impl SharedVersions {
    /// Those of the devices.
    pub fn of_devices(tables: &Tables, node: &NodeName) -> Result<Self, StoreError> {
        Self::open(tables, node, "device_version", "device_awaiting")
    }

    /// Those of the attributes.
    pub fn of_attributes(tables: &Tables, node: &NodeName) -> Result<Self, StoreError> {
        Self::open(tables, node, "attribute_version", "attribute_awaiting")
    }

    /// Those of records of another kind, in tables with these names.
    ///
    /// # Errors
    /// If the store fails.
    pub fn open(
        tables: &Tables,
        node: &NodeName,
        versions: &str,
        awaiting: &str,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            versions: tables.table(versions),
            awaiting: tables.table(awaiting),
            node: RecordVersion::node_number(node),
            digests: Mutex::default(),
            changes: RecordChanges::default(),
            may_await: AtomicBool::new(true),
        })
    }

    /// The number of this node in versions.
    pub fn node(&self) -> u64 {
        self.node
    }

    /// Whether there may be records whose products or devices are not known.
    pub fn may_await(&self) -> bool {
        self.may_await.load(Ordering::Acquire)
    }

    pub fn set_may_await(&self, may_await: bool) {
        self.may_await.store(may_await, Ordering::Release);
    }

    pub fn digests(&self) -> MutexGuard<'_, RecordDigests> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn row(&self, id: &str) -> Result<Option<VersionRow>, StoreError> {
        let row = self.versions.get_with(&key_of(id), VersionRow::decode)?;
        Ok(row.flatten())
    }

    /// All versions of a bucket, or of all buckets, until `each` returns false.
    pub fn scan(
        &self,
        bucket: Option<u16>,
        each: &mut dyn FnMut(&str, VersionRow) -> bool,
    ) -> Result<(), StoreError> {
        let prefix = bucket.map(u16::to_be_bytes);
        let prefix = prefix.as_ref().map_or(&[][..], |bucket| &bucket[..]);
        let mut scan = |key: &[u8], row: &[u8]| {
            let id = key.get(2..).and_then(|id| str::from_utf8(id).ok());
            match id.zip(VersionRow::decode(row)) {
                Some((id, row)) => each(id, row),
                None => true,
            }
        };
        self.versions.scan(prefix, Bound::Unbounded, &mut scan)
    }

    /// Computes the digests from the table; returns the number of records that exist.
    pub fn load_digests(&self) -> Result<u64, StoreError> {
        let mut existing = 0;
        let mut digests = RecordDigests::default();
        self.scan(None, &mut |id, row| {
            if !row.is_removed {
                existing += 1;
                digests.toggle(id, row.version);
            }
            true
        })?;
        *self.digests() = digests;
        Ok(existing)
    }

    /// The ids of all records that exist.
    pub fn existing_ids(&self) -> Result<Vec<String>, StoreError> {
        let mut existing = Vec::new();
        self.scan(None, &mut |id, row| {
            if !row.is_removed {
                existing.push(id.to_owned());
            }
            true
        })?;
        Ok(existing)
    }

    /// See [`SharedRecords::versions`](cluster::SharedRecords::versions).
    pub fn remembered_versions(
        &self,
        bucket: u16,
        each: &mut dyn FnMut(&str, RecordVersion),
    ) -> Result<(), StoreError> {
        let now_ms = wall_clock::now_ms();
        self.scan(Some(bucket), &mut |id, row| {
            if !row.is_forgotten(now_ms) {
                each(id, row.version);
            }
            true
        })
    }

    pub fn forget(&self, batch: &mut TableBatch, id: &str) -> Result<(), StoreError> {
        batch.remove(&self.versions, &key_of(id))
    }
}

/// A row of the table of records that wait for their product or device.
pub(super) fn decode_awaiting(id: &[u8], row: &[u8]) -> Option<Record> {
    let (version, content) = row.split_first_chunk::<{ RecordVersion::BYTES }>()?;
    Some(Record {
        id: str::from_utf8(id).ok()?.to_owned(),
        version: RecordVersion::from_bytes(*version),
        content: Some(content.to_vec()),
    })
}

/// The versions that one batch changes.
pub struct VersionTransaction<'a> {
    shared: &'a SharedVersions,
    changed: HashMap<Box<str>, VersionChange, RandomState>,
    awaits: bool,
}

struct VersionChange {
    before: Option<VersionRow>,
    /// `None`: the record is not remembered any more.
    after: Option<VersionRow>,
    /// Whether other nodes are to be told.
    is_own: bool,
}

impl<'a> VersionTransaction<'a> {
    pub fn new(shared: &'a SharedVersions) -> Self {
        Self {
            shared,
            changed: HashMap::default(),
            awaits: false,
        }
    }

    /// The version of a record after the changes so far.
    pub fn row(&self, id: &str) -> Result<Option<VersionRow>, StoreError> {
        match self.changed.get(id) {
            Some(change) => Ok(change.after),
            None => self.shared.row(id),
        }
    }

    /// Sets the version of a changed record: that of another node, or with `None` a new one. Returns it.
    pub fn stamp(
        &mut self,
        batch: &mut TableBatch,
        id: &str,
        version: Option<RecordVersion>,
        (revision, is_removed): (u32, bool),
    ) -> Result<RecordVersion, StoreError> {
        let current = self.row(id)?;
        let after = VersionRow {
            version: version.unwrap_or_else(|| {
                let before = current.map(|row| row.version);
                RecordVersion::next(before, wall_clock::now_ms(), self.shared.node)
            }),
            revision,
            is_removed,
        };
        batch.put(&self.shared.versions, &key_of(id), &after.encode())?;
        if self.shared.may_await() {
            batch.remove(&self.shared.awaiting, id.as_bytes())?;
        }
        self.change(id, current, Some(after), version.is_none());
        Ok(after.version)
    }

    /// Removes a record without remembering that, because other nodes learn of it in another way.
    pub fn forget(&mut self, batch: &mut TableBatch, id: &str) -> Result<(), StoreError> {
        let current = self.row(id)?;
        self.shared.forget(batch, id)?;
        if self.shared.may_await() {
            batch.remove(&self.shared.awaiting, id.as_bytes())?;
        }
        self.change(id, current, None, false);
        Ok(())
    }

    fn change(
        &mut self,
        id: &str,
        current: Option<VersionRow>,
        after: Option<VersionRow>,
        is_own: bool,
    ) {
        match self.changed.get_mut(id) {
            Some(change) => {
                change.after = after;
                change.is_own |= is_own;
            }
            None => {
                let change = VersionChange {
                    before: current,
                    after,
                    is_own,
                };
                self.changed.insert(id.into(), change);
            }
        }
    }

    /// Keeps a record until its product or device is known. Called after [`stamp`](Self::stamp).
    pub fn set_awaiting(
        &mut self,
        batch: &mut TableBatch,
        id: &str,
        version: RecordVersion,
        content: &[u8],
    ) -> Result<(), StoreError> {
        self.awaits = true;
        let row = [&version.to_bytes()[..], content].concat();
        batch.put(&self.shared.awaiting, id.as_bytes(), &row)
    }

    /// To be called before the batch is committed.
    pub fn prepare(&self) {
        if self.awaits {
            self.shared.set_may_await(true);
        }
    }

    /// To be called once the batch is committed.
    pub fn finish(self) {
        let mut digests = self.shared.digests();
        for (id, change) in &self.changed {
            for row in change.before.iter().chain(&change.after) {
                if !row.is_removed {
                    digests.toggle(id, row.version);
                }
            }
        }
        drop(digests);
        let own = self.changed.iter();
        let own = own.filter(|(_, change)| change.is_own && change.after.is_some());
        let mut own = own.map(|(id, _)| &**id).peekable();
        if own.peek().is_some() {
            self.shared.changes.add(own);
        }
    }
}
