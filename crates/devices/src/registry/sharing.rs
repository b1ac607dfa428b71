//! The devices of this node as records that all nodes of a cluster have.
//!
//! The content of a record is the id of the gateway and the record of `device.rs` without it, because numbers of devices
//! are those of one node. Attributes are records of their own; events and telemetry are not shared.
//!
//! Two things that a record refers to may be missing here:
//! - its product: the record waits in the table `device_awaiting` until the product arrives;
//! - its gateway: the id of the gateway gets its number at once, and the device when it arrives.

use std::ops::Bound;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cluster::{
    NodeName, Record, RecordChanges, RecordDigests, RecordVersion, SharedRecords,
    SharedRecordsError,
};
use series::DeviceNo;
use store::Durability;

use super::attribute_sharing::SharedAttributes;
use super::device_transaction::DeviceTransaction;
use super::keys::{DeviceName, no_at_end, reserved_row};
use super::observers::DeviceChange;
use super::shared_versions::{SharedVersions, VersionRow, decode_awaiting};
use super::{Registry, RegistryError, RegistryInner};
use crate::device::Device;
use crate::product::ProvisionMode;
use crate::record_codec::{decode_text, encode_text};

/// Time for which a change waits for the confirmation of the other nodes that can be reached.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(1);
/// Devices that are written in one batch when a node shares its devices for the first time.
const BATCH_DEVICES: usize = 2000;

/// What the exchange with other nodes needs of a registry, besides the registry itself.
pub struct RegistryChanges {
    /// Changes of devices.
    pub devices: RecordChanges,
    /// Changes of attributes.
    pub attributes: RecordChanges,
    pub shared_attributes: SharedAttributes,
}

/// A change that observers are to be told.
enum AppliedChange {
    Created(Arc<Device>),
    Updated(Arc<Device>),
    Removed(Arc<Device>),
}

impl Registry {
    /// Shares the devices and their attributes with the other nodes of a cluster from now on; returns the changes that these
    /// have to be told. Called once, before anything changes devices. Reads all devices and attributes.
    ///
    /// # Errors
    /// If the store fails.
    pub fn share(&self, node: &NodeName) -> Result<RegistryChanges, RegistryError> {
        let shared = SharedVersions::of_devices(&self.inner.tables, node)?;
        let shared_attributes = SharedVersions::of_attributes(&self.inner.tables, node)?;
        let changes = RegistryChanges {
            devices: shared.changes.clone(),
            attributes: shared_attributes.changes.clone(),
            shared_attributes: SharedAttributes::new(self.clone()),
        };
        // Set once.
        let _ = self.inner.shared.set(shared);
        let _ = self.inner.shared_attributes.set(shared_attributes);
        self.inner.load_versions()?;
        self.inner.load_attribute_versions()?;
        for product in self.products() {
            self.inner.apply_awaiting(product.id().as_str());
        }
        self.inner.apply_all_awaiting_attributes()?;
        if self.count() > 0 {
            // Those of the time before the cluster.
            self.inner.lock_digest_keys().mark_used();
        }
        Ok(changes)
    }

    /// Whether this node knows that a device with this id was removed after that time.
    pub(crate) fn was_removed_after(
        &self,
        device: &str,
        time_ms: u64,
    ) -> Result<bool, RegistryError> {
        self.inner.was_device_removed_after(device, time_ms)
    }

    /// Forgets devices and attributes that were removed long ago. Does nothing outside a cluster. Reads the versions of all of
    /// them.
    ///
    /// # Errors
    /// If the store fails.
    pub fn forget_removed_devices(&self, now_ms: u64) -> Result<(), RegistryError> {
        let inner = &*self.inner;
        let kinds = [&inner.shared, &inner.shared_attributes];
        for shared in kinds.into_iter().filter_map(|kind| kind.get()) {
            inner.forget_removed(shared, now_ms)?;
        }
        Ok(())
    }
}

impl RegistryInner {
    pub(super) fn forget_removed(
        &self,
        shared: &SharedVersions,
        now_ms: u64,
    ) -> Result<(), RegistryError> {
        let mut forgotten = Vec::new();
        shared.scan(None, &mut |id, row| {
            if row.is_forgotten(now_ms) {
                forgotten.push(id.to_owned());
            }
            true
        })?;
        for portion in forgotten.chunks(BATCH_DEVICES) {
            let _lock = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
            let mut batch = self.tables.batch()?;
            for id in portion {
                if shared.row(id)?.is_some_and(|row| row.is_forgotten(now_ms)) {
                    shared.forget(&mut batch, id)?;
                }
            }
            batch.commit(Durability::Buffered)?;
        }
        Ok(())
    }

    /// Waits until the other nodes have stored the changes so far, for a limited time, so that a device that was just
    /// created can connect anywhere. What has not arrived by then arrives later.
    pub(super) fn wait_until_shared(&self) {
        if let Some(shared) = self.shared.get() {
            shared.changes.wait_until_confirmed(CONFIRMATION_TIMEOUT);
        }
    }

    /// Tells the other nodes of a cluster that a device was active, which then must not register itself again there.
    pub(crate) fn mark_activated(&self, no: DeviceNo) -> Result<(), RegistryError> {
        if self.shared.get().is_none() {
            return Ok(());
        }
        let Some(device) = self.load_device(no)? else {
            return Ok(());
        };
        let product = device.product.get();
        let provisioning = product.definition.provisioning.as_ref();
        let registers_again = provisioning
            .is_some_and(|provisioning| provisioning.mode == ProvisionMode::CheckExisting);
        if !registers_again || device.was_activated {
            return Ok(());
        }
        let marked = self.update_device(no, |device| {
            device.was_activated = true;
            Ok(())
        });
        match marked {
            // It was removed meanwhile.
            Ok(_) | Err(RegistryError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Computes the digests, and gives versions to what was changed while the node was in no cluster.
    fn load_versions(&self) -> Result<(), RegistryError> {
        let Some(shared) = self.shared.get() else {
            return Ok(());
        };
        self.forget_removed(shared, wall_clock::now_ms())?;
        let existing = shared.load_digests()?;
        let known = self.stamp_changed_devices()?;
        if known < existing {
            self.stamp_removed_devices()?;
        }
        Ok(())
    }

    /// Returns how many devices had a version already.
    fn stamp_changed_devices(&self) -> Result<u64, RegistryError> {
        let (mut known, mut from) = (0, Some(DeviceNo(0)));
        while let Some(start) = from.take() {
            let mut devices = Vec::new();
            let start = start.0.to_be_bytes();
            self.devices
                .scan(&[], Bound::Included(&start), &mut |key, bytes| {
                    let Some(no) = no_at_end(key) else {
                        return true;
                    };
                    if devices.len() == BATCH_DEVICES {
                        from = Some(no);
                        return false;
                    }
                    devices.extend(Device::decode(no, bytes, |id| self.product(id)));
                    true
                })?;
            let next = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changes = DeviceTransaction::new(self, *next)?;
            for device in devices {
                let id = device.id.as_str();
                match self.version_row(id)? {
                    Some(row) if !row.is_removed => {
                        known += 1;
                        let is_same = row.revision == device.revision;
                        if is_same || self.awaiting(id)?.is_some() {
                            continue;
                        }
                    }
                    // Not the time of the start: nodes with devices of the same ids may join.
                    None => changes.incoming = Some(self.first_version(device.created_ms)),
                    Some(_) => {}
                }
                changes.stamp(id, device.revision, false)?;
                changes.incoming = None;
            }
            changes.commit(Durability::Buffered)?;
        }
        Ok(known)
    }

    fn first_version(&self, created_ms: u64) -> RecordVersion {
        let node = self.shared.get().map_or(0, SharedVersions::node);
        RecordVersion::next(None, created_ms, node)
    }

    fn stamp_removed_devices(&self) -> Result<(), RegistryError> {
        let Some(shared) = self.shared.get() else {
            return Ok(());
        };
        for portion in shared.existing_ids()?.chunks(BATCH_DEVICES) {
            let next = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changes = DeviceTransaction::new(self, *next)?;
            for id in portion {
                if self.number_of_recorded_device(id)?.is_none() && self.awaiting(id)?.is_none() {
                    changes.stamp(id, 0, true)?;
                }
            }
            changes.commit(Durability::Buffered)?;
        }
        Ok(())
    }

    /// The number of the device with this id, if it has a record.
    fn number_of_recorded_device(&self, id: &str) -> Result<Option<DeviceNo>, RegistryError> {
        match self.holder(&DeviceName::Id(id).encode())? {
            Some(no) if self.has_record(no)? => Ok(Some(no)),
            _ => Ok(None),
        }
    }

    pub(super) fn version_row(&self, id: &str) -> Result<Option<VersionRow>, RegistryError> {
        match self.shared.get() {
            Some(shared) => Ok(shared.row(id)?),
            None => Ok(None),
        }
    }

    /// The record with this id whose product is not known.
    fn awaiting(&self, id: &str) -> Result<Option<Record>, RegistryError> {
        let Some(shared) = self.shared.get().filter(|shared| shared.may_await()) else {
            return Ok(None);
        };
        let row = shared.awaiting.get(id.as_bytes())?;
        Ok(row.and_then(|row| decode_awaiting(id.as_bytes(), &row)))
    }

    /// Stores the records that have waited for this product.
    pub(super) fn apply_awaiting(&self, product: &str) {
        let Some(shared) = self.shared.get().filter(|shared| shared.may_await()) else {
            return;
        };
        let (mut records, mut is_any) = (Vec::new(), false);
        let scanned = shared.awaiting.scan(b"", Bound::Unbounded, &mut |id, row| {
            is_any = true;
            let record = decode_awaiting(id, row);
            records.extend(record.filter(|record| product_of(record) == Some(product)));
            true
        });
        if scanned.is_ok() && !is_any {
            shared.set_may_await(false);
        }
        let mut applied = scanned.map_err(RegistryError::from);
        for portion in records.chunks(BATCH_DEVICES) {
            applied = applied.and_then(|()| self.apply_records(portion, true));
        }
        if let Err(error) = applied {
            tracing::error!(product, %error, "storing the devices of a new product failed; restart the node");
        }
    }

    /// Stores records of other nodes. `was_awaiting`: those that had no product when they arrived.
    fn apply_records(&self, records: &[Record], was_awaiting: bool) -> Result<(), RegistryError> {
        let mut next = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = DeviceTransaction::new(self, *next)?;
        let mut applied = Vec::new();
        for record in records {
            let known = self.version_of(&changes, &record.id)?;
            let is_due = match was_awaiting {
                true => known == Some(record.version),
                false => known.is_none_or(|known| known < record.version),
            };
            if is_due {
                changes.incoming = Some(record.version);
                changes.apply(record, &mut applied)?;
                changes.incoming = None;
            }
        }
        *next = changes.commit(Durability::Buffered)?;
        drop(next);
        for change in &applied {
            self.notify_observers(&match change {
                AppliedChange::Created(device) => DeviceChange::Created(device),
                AppliedChange::Updated(device) => DeviceChange::Updated(device),
                AppliedChange::Removed(device) => DeviceChange::Removed(device),
            });
        }
        for change in &applied {
            if let AppliedChange::Created(device) | AppliedChange::Updated(device) = change
                && let Err(error) = self.apply_awaiting_attributes(device)
            {
                let device = device.id.as_str();
                tracing::error!(device, %error, "storing the attributes of a new device failed; restart the node");
            }
        }
        Ok(())
    }

    fn version_of(
        &self,
        changes: &DeviceTransaction<'_>,
        id: &str,
    ) -> Result<Option<RecordVersion>, RegistryError> {
        let Some(versions) = &changes.versions else {
            return Ok(None);
        };
        Ok(versions.row(id)?.map(|row| row.version))
    }

    /// The content of a device's record.
    fn content_of(&self, device: &Device) -> Result<Vec<u8>, RegistryError> {
        let gateway = match device.parent {
            None => None,
            Some(no) => match self.load_device_uncached(no)? {
                Some(gateway) => Some(gateway.id.to_string()),
                None => {
                    let id = self.index.get(&reserved_row(no))?;
                    id.and_then(|id| String::from_utf8(id).ok())
                }
            },
        };
        let mut content = Vec::with_capacity(160);
        encode_text(&mut content, gateway.as_deref().unwrap_or_default());
        content.extend_from_slice(&device.encode_with_parent(None));
        Ok(content)
    }

    fn read_record(&self, id: &str) -> Result<Option<Record>, RegistryError> {
        // The version and the device are those of one moment.
        let _lock = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(row) = self.version_row(id)? else {
            return Ok(None);
        };
        if let Some(record) = self.awaiting(id)? {
            return Ok(Some(record));
        }
        let content = match row.is_removed {
            true => None,
            false => {
                let no = self.holder(&DeviceName::Id(id).encode())?;
                let device = match no {
                    Some(no) => self.load_device_uncached(no)?,
                    None => None,
                };
                let Some(device) = device else {
                    return Ok(None);
                };
                Some(self.content_of(&device)?)
            }
        };
        Ok(Some(Record {
            id: id.to_owned(),
            version: row.version,
            content,
        }))
    }
}

impl DeviceTransaction<'_> {
    /// Stores a record of another node, which is later than that of this one.
    fn apply(
        &mut self,
        record: &Record,
        applied: &mut Vec<AppliedChange>,
    ) -> Result<(), RegistryError> {
        let old = self.by_name(&DeviceName::Id(&record.id))?;
        let Some(content) = &record.content else {
            let Some(old) = old else {
                self.forget_awaiting_attributes(&record.id)?;
                return self.stamp(&record.id, 0, true);
            };
            self.release_children(&old, applied)?;
            self.incoming = Some(record.version);
            self.remove(&old)?;
            applied.push(AppliedChange::Removed(old));
            return Ok(());
        };
        let mut bytes = &content[..];
        let mut is_product_missing = false;
        let gateway = decode_text(&mut bytes);
        let decoded = Device::decode(DeviceNo(0), bytes, |id| {
            let product = self.inner.product(id);
            is_product_missing = product.is_none();
            product
        });
        let device = decoded.filter(|device| device.id.as_str() == record.id);
        let (Some(gateway), Some(mut device)) = (gateway, device) else {
            if is_product_missing {
                return self.await_product(record, content);
            }
            tracing::warn!(
                id = record.id,
                "a device of another node cannot be read and is missing here; run the same version on all nodes"
            );
            return Ok(());
        };
        device.parent = match gateway {
            "" => None,
            gateway if gateway == record.id => None,
            gateway => Some(self.number_of_id(gateway)?),
        };
        device.no = match &old {
            Some(old) => old.no,
            None => self.new_number(&record.id)?,
        };
        let device = Arc::new(device);
        if let Some(old) = &old
            && old.created_ms != device.created_ms
        {
            // Another device with the same id.
            self.remove_attributes(old)?;
        }
        self.write(old.as_ref(), &device)?;
        applied.push(match old {
            Some(_) => AppliedChange::Updated(device),
            None => AppliedChange::Created(device),
        });
        Ok(())
    }

    fn await_product(&mut self, record: &Record, content: &[u8]) -> Result<(), RegistryError> {
        self.stamp(&record.id, 0, false)?;
        if let Some(versions) = &mut self.versions {
            versions.set_awaiting(&mut self.batch, &record.id, record.version, content)?;
        }
        Ok(())
    }

    /// The gateway was removed at another node, where these devices were not behind it yet. They lose it at all nodes.
    fn release_children(
        &mut self,
        gateway: &Device,
        applied: &mut Vec<AppliedChange>,
    ) -> Result<(), RegistryError> {
        self.incoming = None;
        for child in self.children_of(gateway)? {
            let mut draft = child.draft();
            draft.parent = None;
            draft.revision += 1;
            let released = Arc::new(draft);
            self.write(Some(&child), &released)?;
            applied.push(AppliedChange::Updated(released));
        }
        Ok(())
    }
}

fn product_of(record: &Record) -> Option<&str> {
    let mut bytes = record.content.as_deref()?;
    // The gateway.
    decode_text(&mut bytes)?;
    Device::product_in(bytes)
}

impl SharedRecords for Registry {
    fn context(&self) -> Vec<u8> {
        self.inner.lock_digest_keys().encode_used()
    }

    fn merge_context(&self, context: &[u8]) -> Result<(), SharedRecordsError> {
        if context.is_empty() {
            return Ok(());
        }
        let inner = &*self.inner;
        let mut keys = inner.lock_digest_keys();
        if let Some(rows) = keys.merge(context) {
            let mut batch = inner.tables.batch()?;
            for (row, value) in rows {
                batch.put(&inner.meta, row, &value)?;
            }
            batch.commit(Durability::Synced)?;
        }
        inner.set_digester(keys.digester());
        Ok(())
    }

    fn root(&self) -> u64 {
        let shared = self.inner.shared.get();
        shared.map_or(0, |shared| shared.digests().root())
    }

    fn digests(&self) -> RecordDigests {
        let shared = self.inner.shared.get();
        shared.map_or_else(RecordDigests::default, |shared| shared.digests().clone())
    }

    fn versions(
        &self,
        bucket: u16,
        each: &mut dyn FnMut(&str, RecordVersion),
    ) -> Result<(), SharedRecordsError> {
        match self.inner.shared.get() {
            Some(shared) => Ok(shared.remembered_versions(bucket, each)?),
            None => Ok(()),
        }
    }

    fn version(&self, id: &str) -> Result<Option<RecordVersion>, SharedRecordsError> {
        Ok(self.inner.version_row(id)?.map(|row| row.version))
    }

    fn read(&self, id: &str) -> Result<Option<Record>, SharedRecordsError> {
        Ok(self.inner.read_record(id)?)
    }

    fn apply(&self, records: Vec<Record>) -> Result<(), SharedRecordsError> {
        Ok(self.inner.apply_records(&records, false)?)
    }
}
