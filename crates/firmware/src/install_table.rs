//! The installations of all devices: one record of each device and type, in a table of the store.
//!
//! `firmware_device`: device number (big-endian), letter of the type -> JSON of the record.

use std::ops::Bound;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use devices::DeviceNo;
use store::{Durability, StoreError, Table, TableBatch, Tables};

use crate::device_state::InstallRecord;
use crate::package::FirmwareType;

/// Is called once a batch is committed.
pub(crate) type CommitNotice<'a> = Box<dyn FnOnce() + 'a>;

/// Tells other nodes of a cluster of installations.
pub(crate) trait InstallSharing: Send + Sync {
    /// Adds what other nodes are told to the batch that stores the record. The caller has the lock of
    /// [`writing`](InstallTable::writing).
    fn add_install<'a>(
        &'a self,
        batch: &mut TableBatch,
        device: DeviceNo,
        kind: FirmwareType,
        record: &InstallRecord,
    ) -> Result<Option<CommitNotice<'a>>, StoreError>;
}

pub(crate) struct InstallTable {
    tables: Tables,
    records: Table,
    /// Serialises changes.
    writing: Arc<Mutex<()>>,
    /// `None` outside a cluster.
    sharing: OnceLock<Arc<dyn InstallSharing>>,
}

fn key(device: DeviceNo, kind: FirmwareType) -> Vec<u8> {
    [&device.0.to_be_bytes()[..], &kind.prefix().as_bytes()[..1]].concat()
}

impl InstallTable {
    pub(crate) fn open(tables: &Tables) -> Result<Self, StoreError> {
        Ok(Self {
            records: tables.table("firmware_device"),
            tables: tables.clone(),
            writing: Arc::default(),
            sharing: OnceLock::new(),
        })
    }

    /// The lock of all changes, also of those of shared records.
    pub(crate) fn writing(&self) -> Arc<Mutex<()>> {
        self.writing.clone()
    }

    /// Tells other nodes of each change from now on. To be called once.
    pub(crate) fn share(&self, sharing: Arc<dyn InstallSharing>) {
        let _ = self.sharing.set(sharing);
    }

    /// Whether there is any record.
    pub(crate) fn has_any(&self) -> Result<bool, StoreError> {
        let mut has_any = false;
        self.records.scan(b"", Bound::Unbounded, &mut |_, _| {
            has_any = true;
            false
        })?;
        Ok(has_any)
    }

    /// All records.
    pub(crate) fn all(&self) -> Result<Vec<(DeviceNo, FirmwareType, InstallRecord)>, StoreError> {
        let mut all = Vec::new();
        self.records
            .scan(b"", Bound::Unbounded, &mut |key, value| {
                let no = key
                    .first_chunk()
                    .map(|no| DeviceNo(u32::from_be_bytes(*no)));
                let mut kinds = FirmwareType::ALL.into_iter();
                let kind = kinds.find(|kind| key.get(4..) == Some(&kind.prefix().as_bytes()[..1]));
                let record = serde_json::from_slice(value).ok();
                if let (Some(no), Some(kind), Some(record)) = (no, kind, record) {
                    all.push((no, kind, record));
                }
                true
            })?;
        Ok(all)
    }

    /// Adds a record of another node to a batch. The caller has the lock of [`writing`](Self::writing).
    pub(crate) fn put(
        &self,
        batch: &mut TableBatch,
        device: DeviceNo,
        kind: FirmwareType,
        record: &InstallRecord,
    ) -> Result<(), StoreError> {
        let json = serde_json::to_vec(record).expect("a record is JSON");
        batch.put(&self.records, &key(device, kind), &json)
    }

    pub(crate) fn get(
        &self,
        device: DeviceNo,
        kind: FirmwareType,
    ) -> Result<Option<InstallRecord>, StoreError> {
        let found = self.records.get_with(&key(device, kind), |bytes| {
            serde_json::from_slice(bytes).ok()
        })?;
        Ok(found.flatten())
    }

    /// Changes a record: `change` gets the present one and returns the new one, or `None` to leave it. Returns the new
    /// one.
    pub(crate) fn update(
        &self,
        device: DeviceNo,
        kind: FirmwareType,
        change: impl FnOnce(Option<InstallRecord>) -> Option<InstallRecord>,
    ) -> Result<Option<InstallRecord>, StoreError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(record) = change(self.get(device, kind)?) else {
            return Ok(None);
        };
        let mut batch = self.tables.batch()?;
        self.put(&mut batch, device, kind, &record)?;
        let shared = match self.sharing.get() {
            Some(sharing) => sharing.add_install(&mut batch, device, kind, &record)?,
            None => None,
        };
        batch.commit(Durability::Buffered)?;
        if let Some(finish) = shared {
            finish();
        }
        Ok(Some(record))
    }

    /// Removes what is known about a device.
    pub(crate) fn remove(&self, device: DeviceNo) -> Result<(), StoreError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = self.tables.batch()?;
        for kind in FirmwareType::ALL {
            batch.remove(&self.records, &key(device, kind))?;
        }
        batch.commit(Durability::Buffered)
    }
}
