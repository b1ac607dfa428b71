//! The attributes of devices as records that all nodes of a cluster have, so that a device finds them at whichever node it
//! connects to.
//!
//! A record is one attribute. Its id is that of the device, NUL, the letter of the scope and the key; its content is the
//! time at which the device was created (8 bytes, big-endian) and the value as JSON. The time in its version is that of the
//! last change of the attribute.
//!
//! Records belong to the device that was created at that time:
//! - the attributes of a device that is removed, or replaced by another one with the same id, are forgotten with it by each
//!   node for itself;
//! - a record waits in the table `attribute_awaiting` while there is no device with its id, and is not stored while there is
//!   another one. The comparison with the other node brings it again.

use std::ops::Bound;
use std::sync::{Arc, PoisonError};

use cluster::{Record, RecordDigests, RecordVersion, SharedRecords, SharedRecordsError};
use serde_json::Value;
use series::DeviceNo;
use store::{Durability, TableBatch};

use super::attribute_scope::AttributeScope;
use super::device_transaction::DeviceTransaction;
use super::keys::{DeviceName, attribute_row, split_attribute_row};
use super::observers::AttributeChange;
use super::shared_versions::{SharedVersions, VersionTransaction, decode_awaiting};
use super::{Registry, RegistryError, RegistryInner};
use crate::device::Device;

/// Attributes that get their first version in one batch.
const BATCH_ATTRIBUTES: usize = 2000;
/// The attributes of a registry, for the exchange with other nodes.
pub struct SharedAttributes(Registry);

/// The parts of the id of a record.
struct AttributeName<'a> {
    device: &'a str,
    scope: AttributeScope,
    key: &'a str,
}

impl<'a> AttributeName<'a> {
    fn parse(id: &'a str) -> Option<Self> {
        let (device, rest) = id.split_once('\0')?;
        let is_its = |scope: &AttributeScope| rest.starts_with(char::from(scope.letter()));
        let scope = AttributeScope::ALL.into_iter().find(is_its)?;
        let key = &rest[1..];
        (!key.is_empty()).then_some(Self { device, scope, key })
    }
}

fn record_id(device: &Device, scope: AttributeScope, key: &str) -> String {
    format!("{}\0{}{key}", device.id, char::from(scope.letter()))
}

fn encode_content(device: &Device, json: &[u8]) -> Vec<u8> {
    [&device.created_ms.to_be_bytes()[..], json].concat()
}

/// The time at which the device was created, and the value.
fn decode_content(content: &[u8]) -> Option<(u64, &[u8])> {
    let (created, json) = content.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*created), json))
}

/// An attribute that another node has changed, for the observers.
struct AppliedAttribute {
    device: Arc<Device>,
    scope: AttributeScope,
    key: String,
    /// `None`: it was removed.
    value: Option<Value>,
}

impl SharedAttributes {
    pub(super) fn new(registry: Registry) -> Self {
        Self(registry)
    }
}

/// Changes of attributes in one batch of the store.
pub(super) struct AttributeTransaction<'a> {
    inner: &'a RegistryInner,
    batch: TableBatch,
    /// `None` outside a cluster.
    versions: Option<VersionTransaction<'a>>,
}

impl<'a> AttributeTransaction<'a> {
    pub(super) fn new(inner: &'a RegistryInner) -> Result<Self, RegistryError> {
        Ok(Self {
            inner,
            batch: inner.tables.batch()?,
            versions: inner.shared_attributes.get().map(VersionTransaction::new),
        })
    }

    /// Writes an attribute that this node changes; `None` removes it. In a cluster, the time of the change is later than that of
    /// the change before, at whichever node that was.
    pub(super) fn write_change(
        &mut self,
        device: &Device,
        scope: AttributeScope,
        key: &str,
        json: Option<&[u8]>,
        now_ms: u64,
    ) -> Result<(), RegistryError> {
        let mut time_ms = now_ms;
        if let Some(versions) = &mut self.versions {
            let id = record_id(device, scope, key);
            // What does not exist needs no version.
            if json.is_some() || versions.row(&id)?.is_some_and(|row| !row.is_removed) {
                let state = (0, json.is_none());
                time_ms = versions.stamp(&mut self.batch, &id, None, state)?.time_ms;
            }
        }
        self.put_row(device.no, scope, key, json, time_ms)
    }

    fn put_row(
        &mut self,
        no: DeviceNo,
        scope: AttributeScope,
        key: &str,
        json: Option<&[u8]>,
        time_ms: u64,
    ) -> Result<(), RegistryError> {
        let row = attribute_row(no, scope, key);
        match json {
            None => self.batch.remove(&self.inner.attributes, &row)?,
            Some(json) => {
                let value = [&time_ms.to_be_bytes()[..], json].concat();
                self.batch.put(&self.inner.attributes, &row, &value)?;
            }
        }
        Ok(())
    }

    pub(super) fn commit(self) -> Result<(), RegistryError> {
        if let Some(versions) = &self.versions {
            versions.prepare();
        }
        self.batch.commit(Durability::Buffered)?;
        if let Some(versions) = self.versions {
            versions.finish();
        }
        Ok(())
    }

    /// Stores a record of another node, which is later than that of this one.
    fn apply(
        &mut self,
        record: &Record,
        was_awaiting: bool,
        applied: &mut Vec<AppliedAttribute>,
    ) -> Result<(), RegistryError> {
        let inner = self.inner;
        let Some(versions) = &mut self.versions else {
            return Ok(());
        };
        let content = record.content.as_deref().map(decode_content);
        let (Some(name), None | Some(Some(_))) = (AttributeName::parse(&record.id), content) else {
            tracing::warn!(
                id = record.id,
                "an attribute of another node cannot be read and is missing here; run the same version on all nodes"
            );
            return Ok(());
        };
        let device = inner.find(&DeviceName::Id(name.device))?;
        let state = (0, content.is_none());
        let json = match (content.flatten(), &device) {
            (None, _) => None,
            (Some((created_ms, json)), Some(device)) if created_ms == device.created_ms => {
                Some(json)
            }
            // One of the nodes has not learnt of the other device yet.
            (Some(_), Some(_)) if was_awaiting => {
                return Ok(versions.forget(&mut self.batch, &record.id)?);
            }
            (Some(_), Some(_)) => return Ok(()),
            (Some((created_ms, _)), None) => {
                if inner.was_device_removed_after(name.device, created_ms)? {
                    if was_awaiting {
                        versions.forget(&mut self.batch, &record.id)?;
                    }
                } else {
                    versions.stamp(&mut self.batch, &record.id, Some(record.version), state)?;
                    let content = record.content.as_deref().unwrap_or_default();
                    versions.set_awaiting(&mut self.batch, &record.id, record.version, content)?;
                }
                return Ok(());
            }
        };
        versions.stamp(&mut self.batch, &record.id, Some(record.version), state)?;
        let Some(device) = device else {
            return Ok(());
        };
        self.put_row(
            device.no,
            name.scope,
            name.key,
            json,
            record.version.time_ms,
        )?;
        applied.push(AppliedAttribute {
            device,
            scope: name.scope,
            key: name.key.to_owned(),
            value: json.and_then(|json| serde_json::from_slice(json).ok()),
        });
        Ok(())
    }
}

impl DeviceTransaction<'_> {
    /// Removes the attributes of a device that is removed, or replaced by another one with the same id, with their versions. Other
    /// nodes do so when they learn of that.
    pub(super) fn remove_attributes(&mut self, device: &Device) -> Result<(), RegistryError> {
        let attributes = &self.inner.attributes;
        let mut rows = Vec::new();
        let prefix = device.no.0.to_be_bytes();
        attributes.scan(&prefix, Bound::Unbounded, &mut |row, _| {
            rows.push(row.to_vec());
            true
        })?;
        for row in rows {
            if let Some(versions) = &mut self.attribute_versions
                && let Some((scope, key)) = split_attribute_row(&row)
            {
                versions.forget(&mut self.batch, &record_id(device, scope, &key))?;
            }
            self.batch.remove(attributes, &row)?;
        }
        Ok(())
    }

    /// Forgets the records that wait for a device with this id. They are those of a device that was removed.
    pub(super) fn forget_awaiting_attributes(&mut self, device: &str) -> Result<(), RegistryError> {
        if let Some(versions) = &mut self.attribute_versions {
            for record in self.inner.awaiting_attributes(Some(device))? {
                versions.forget(&mut self.batch, &record.id)?;
            }
        }
        Ok(())
    }
}

impl RegistryInner {
    /// Whether this node knows that a device with this id was removed after that time.
    pub(super) fn was_device_removed_after(
        &self,
        device: &str,
        time_ms: u64,
    ) -> Result<bool, RegistryError> {
        let row = self.version_row(device)?;
        Ok(row.is_some_and(|row| row.is_removed && row.version.time_ms >= time_ms))
    }

    /// The records that wait for the device with this id, or with `None` for any device.
    fn awaiting_attributes(&self, device: Option<&str>) -> Result<Vec<Record>, RegistryError> {
        let shared = self.shared_attributes.get();
        let Some(shared) = shared.filter(|shared| shared.may_await()) else {
            return Ok(Vec::new());
        };
        let prefix = device.map_or_else(String::new, |device| format!("{device}\0"));
        let mut records = Vec::new();
        shared
            .awaiting
            .scan(prefix.as_bytes(), Bound::Unbounded, &mut |id, row| {
                records.extend(decode_awaiting(id, row));
                true
            })?;
        Ok(records)
    }

    /// Stores the records that have waited for this device, and forgets those of another one with its id.
    pub(super) fn apply_awaiting_attributes(&self, device: &Device) -> Result<(), RegistryError> {
        let records = self.awaiting_attributes(Some(device.id.as_str()))?;
        match records.is_empty() {
            true => Ok(()),
            false => self.apply_attributes(&records, true),
        }
    }

    /// The same for all devices, after a start: the node may have ended between a device and its attributes.
    pub(super) fn apply_all_awaiting_attributes(&self) -> Result<(), RegistryError> {
        for portion in self.awaiting_attributes(None)?.chunks(BATCH_ATTRIBUTES) {
            self.apply_attributes(portion, true)?;
        }
        Ok(())
    }

    /// Stores records of other nodes. `was_awaiting`: those that had no device when they arrived.
    fn apply_attributes(
        &self,
        records: &[Record],
        was_awaiting: bool,
    ) -> Result<(), RegistryError> {
        let lock = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = AttributeTransaction::new(self)?;
        let mut applied = Vec::new();
        for record in records {
            let Some(versions) = &changes.versions else {
                return Ok(());
            };
            let known = versions.row(&record.id)?.map(|row| row.version);
            let is_due = match was_awaiting {
                true => known == Some(record.version),
                false => known.is_none_or(|known| known < record.version),
            };
            if is_due {
                changes.apply(record, was_awaiting, &mut applied)?;
            }
        }
        changes.commit()?;
        drop(lock);
        // Attributes that were changed together follow each other.
        let is_same = |one: &AppliedAttribute, other: &AppliedAttribute| {
            (one.device.no, one.scope) == (other.device.no, other.scope)
        };
        for together in applied.chunk_by(is_same) {
            let (mut changed, mut removed) = (Vec::new(), Vec::new());
            for AppliedAttribute { key, value, .. } in together {
                match value {
                    Some(value) => changed.push((key.clone(), value.clone())),
                    None => removed.push(key.clone()),
                }
            }
            self.notify_attribute_observers(&AttributeChange {
                device: &together[0].device,
                scope: together[0].scope,
                changed: &changed,
                removed: &removed,
                is_of_other_node: true,
            });
        }
        Ok(())
    }

    /// Computes the digests, and gives versions to what was changed while the node was in no cluster.
    pub(super) fn load_attribute_versions(&self) -> Result<(), RegistryError> {
        let Some(shared) = self.shared_attributes.get() else {
            return Ok(());
        };
        self.forget_removed(shared, wall_clock::now_ms())?;
        let existing = shared.load_digests()?;
        let mut awaits = false;
        shared.awaiting.scan(b"", Bound::Unbounded, &mut |_, _| {
            awaits = true;
            false
        })?;
        shared.set_may_await(awaits);
        let known = self.stamp_changed_attributes(shared)?;
        if known < existing {
            self.stamp_removed_attributes(shared)?;
        }
        Ok(())
    }

    /// Returns how many attributes had a version already.
    fn stamp_changed_attributes(&self, shared: &SharedVersions) -> Result<u64, RegistryError> {
        let (mut known, mut from) = (0, Some(Vec::new()));
        let mut device: Option<Device> = None;
        while let Some(start) = from.take() {
            let mut found = Vec::new();
            self.attributes
                .scan(&[], Bound::Included(&start), &mut |row, value| {
                    if found.len() == BATCH_ATTRIBUTES {
                        from = Some(row.to_vec());
                        return false;
                    }
                    found.push((row.to_vec(), value.to_vec()));
                    true
                })?;
            let _lock = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changes = AttributeTransaction::new(self)?;
            for (row, value) in found {
                let no = row.first_chunk::<4>();
                let no = no.map(|no| DeviceNo(u32::from_be_bytes(*no)));
                let (Some(no), Some((scope, key))) = (no, split_attribute_row(&row)) else {
                    continue;
                };
                if device.as_ref().is_none_or(|device| device.no != no) {
                    device = self.load_device_uncached(no)?;
                }
                let (Some(device), Some((time, json))) = (&device, value.split_first_chunk::<8>())
                else {
                    continue;
                };
                let id = record_id(device, scope, &key);
                let before = shared.row(&id)?;
                let updated_ms = u64::from_be_bytes(*time);
                if let Some(before) = before.filter(|before| !before.is_removed) {
                    known += 1;
                    if before.version.time_ms == updated_ms {
                        continue;
                    }
                }
                let before = before.map(|before| before.version);
                // Not the time of the start: the later of two nodes that meet must not win because of that.
                let version = RecordVersion::next(before, updated_ms, shared.node());
                if let Some(versions) = &mut changes.versions {
                    versions.stamp(&mut changes.batch, &id, Some(version), (0, false))?;
                }
                if version.time_ms != updated_ms {
                    changes.put_row(no, scope, &key, Some(json), version.time_ms)?;
                }
            }
            changes.commit()?;
        }
        Ok(known)
    }

    fn stamp_removed_attributes(&self, shared: &SharedVersions) -> Result<(), RegistryError> {
        for portion in shared.existing_ids()?.chunks(BATCH_ATTRIBUTES) {
            let _lock = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changes = AttributeTransaction::new(self)?;
            for id in portion {
                if shared.awaiting.has(id.as_bytes())? {
                    continue;
                }
                let Some(name) = AttributeName::parse(id) else {
                    continue;
                };
                let Some(versions) = &mut changes.versions else {
                    return Ok(());
                };
                match self.find(&DeviceName::Id(name.device))? {
                    Some(device) => {
                        let row = attribute_row(device.no, name.scope, name.key);
                        if !self.attributes.has(&row)? {
                            versions.stamp(&mut changes.batch, id, None, (0, true))?;
                        }
                    }
                    // Removed with its device.
                    None => versions.forget(&mut changes.batch, id)?,
                }
            }
            changes.commit()?;
        }
        Ok(())
    }

    fn read_attribute_record(&self, id: &str) -> Result<Option<Record>, RegistryError> {
        // The version and the value are those of one moment.
        let _lock = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(shared), Some(name)) = (self.shared_attributes.get(), AttributeName::parse(id))
        else {
            return Ok(None);
        };
        let Some(row) = shared.row(id)? else {
            return Ok(None);
        };
        let mut record = Record {
            id: id.to_owned(),
            version: row.version,
            content: None,
        };
        if row.is_removed {
            return Ok(Some(record));
        }
        if shared.may_await()
            && let Some(row) = shared.awaiting.get(id.as_bytes())?
        {
            return Ok(decode_awaiting(id.as_bytes(), &row));
        }
        let device = match self.holder(&DeviceName::Id(name.device).encode())? {
            Some(no) => self.load_device_uncached(no)?,
            None => None,
        };
        let Some(device) = device else {
            return Ok(None);
        };
        let row = attribute_row(device.no, name.scope, name.key);
        let json = |value: &[u8]| value.get(8..).map(<[u8]>::to_vec);
        let Some(json) = self.attributes.get_with(&row, json)?.flatten() else {
            return Ok(None);
        };
        record.content = Some(encode_content(&device, &json));
        Ok(Some(record))
    }
}

impl SharedRecords for SharedAttributes {
    fn context(&self) -> Vec<u8> {
        Vec::new()
    }

    fn merge_context(&self, _context: &[u8]) -> Result<(), SharedRecordsError> {
        Ok(())
    }

    fn root(&self) -> u64 {
        let shared = self.0.inner.shared_attributes.get();
        shared.map_or(0, |shared| shared.digests().root())
    }

    fn digests(&self) -> RecordDigests {
        let shared = self.0.inner.shared_attributes.get();
        shared.map_or_else(RecordDigests::default, |shared| shared.digests().clone())
    }

    fn versions(
        &self,
        bucket: u16,
        each: &mut dyn FnMut(&str, RecordVersion),
    ) -> Result<(), SharedRecordsError> {
        match self.0.inner.shared_attributes.get() {
            Some(shared) => Ok(shared.remembered_versions(bucket, each)?),
            None => Ok(()),
        }
    }

    fn version(&self, id: &str) -> Result<Option<RecordVersion>, SharedRecordsError> {
        let row = match self.0.inner.shared_attributes.get() {
            Some(shared) => shared.row(id)?,
            None => None,
        };
        Ok(row.map(|row| row.version))
    }

    fn read(&self, id: &str) -> Result<Option<Record>, SharedRecordsError> {
        Ok(self.0.inner.read_attribute_record(id)?)
    }

    fn apply(&self, records: Vec<Record>) -> Result<(), SharedRecordsError> {
        Ok(self.0.inner.apply_attributes(&records, false)?)
    }
}
