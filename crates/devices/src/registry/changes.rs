//! Creates, changes and removes devices: one, or many in one store batch.

use std::sync::{Arc, PoisonError};

use series::DeviceNo;
use store::Durability;

use super::device_transaction::{DeviceTransaction, version_number};
use super::keys::{DeviceIndexKey, DeviceName};
use super::new_device::{DeviceWriteOutcome, NewDevice, PreparedDevice, WritePrecondition};
use super::observers::DeviceChange;
use super::{Registry, RegistryError, RegistryInner};
use crate::credential::{Credential, CredentialSummary};
use crate::device::Device;

/// Result of writing one device.
type DeviceWriteResult = Result<DeviceWriteOutcome, RegistryError>;

impl Registry {
    /// Registers an observer that is called after each change of a device.
    pub fn add_device_observer(&self, observer: Box<dyn Fn(&DeviceChange<'_>) + Send + Sync>) {
        let observers = self.inner.device_observers.write();
        observers
            .unwrap_or_else(PoisonError::into_inner)
            .push(observer);
    }

    /// Creates or replaces a device. The device is on disk when this returns. Takes about 30 ms for a short password,
    /// which is hashed with argon2.
    pub fn put(
        &self,
        device: NewDevice,
        expected: WritePrecondition,
    ) -> Result<DeviceWriteOutcome, RegistryError> {
        let sealed = self.inner.prepare(device, true)?;
        let written = self
            .inner
            .put_all(vec![sealed], expected, Durability::Synced)?
            .pop()
            .expect("one result per device")?;
        self.inner.wait_until_shared();
        Ok(written)
    }

    /// Removes a device with its attributes; returns `false` if there was none.
    pub fn remove(&self, id: &str, expected: WritePrecondition) -> Result<bool, RegistryError> {
        let inner = &*self.inner;
        let next = inner.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = DeviceTransaction::new(inner, *next)?;
        let Some(device) = changes.by_name(&DeviceName::Id(id))? else {
            return Ok(false);
        };
        changes.check_precondition(expected, Some(&device))?;
        let mut has_children = false;
        let behind = DeviceIndexKey::Parent(device.no).prefix();
        inner
            .index
            .scan(&behind, std::ops::Bound::Unbounded, &mut |_, _| {
                has_children = true;
                false
            })?;
        if has_children {
            return Err(RegistryError::HasChildren { id: id.to_owned() });
        }
        changes.remove(&device)?;
        changes.commit(Durability::Synced)?;
        // Observers may change devices themselves.
        drop(next);
        inner.notify_observers(&DeviceChange::Removed(&device));
        inner.wait_until_shared();
        Ok(true)
    }

    /// The version of a device: it grows with each change and never repeats for devices of the same id. In a cluster, it
    /// is the same on all nodes that have the device in the same state. Reads the disk there.
    ///
    /// # Errors
    /// If the store fails.
    pub fn version_of(&self, device: &Device) -> Result<u64, RegistryError> {
        let row = match self.inner.shared.get() {
            Some(shared) => shared.row(device.id.as_str())?,
            None => None,
        };
        Ok(version_number(device, row))
    }

    /// The public part of the device's credentials.
    #[must_use]
    pub fn credentials_of(&self, device: &Device) -> Vec<CredentialSummary> {
        device.credentials.iter().map(Credential::summary).collect()
    }
}

impl RegistryInner {
    pub(super) fn notify_observers(&self, change: &DeviceChange<'_>) {
        let observers = self.device_observers.read();
        let observers = observers.unwrap_or_else(PoisonError::into_inner);
        observers.iter().for_each(|observer| observer(change));
    }

    /// Writes devices in one batch. Returns one result per device, in order; an invalid device does not prevent the
    /// others.
    pub(super) fn put_all(
        &self,
        devices: Vec<PreparedDevice>,
        expected: WritePrecondition,
        durability: Durability,
    ) -> Result<Vec<DeviceWriteResult>, RegistryError> {
        let issues = devices.len() == 1;
        let mut next = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = DeviceTransaction::new(self, *next)?;
        let mut results = Vec::with_capacity(devices.len());
        for sealed in devices {
            let written = changes.put(sealed, expected, issues);
            if let Err(RegistryError::Store(error)) = written {
                return Err(error.into());
            }
            results.push(written);
        }
        *next = changes.commit(durability)?;
        drop(next);
        for written in results.iter().flatten() {
            self.notify_observers(&match written.was_created {
                true => DeviceChange::Created(&written.device),
                false => DeviceChange::Updated(&written.device),
            });
        }
        Ok(results)
    }

    /// Replaces a device by a changed one if it was not modified in the meantime.
    pub(super) fn update_device(
        &self,
        no: DeviceNo,
        change: impl FnOnce(&mut Device) -> Result<(), RegistryError>,
    ) -> Result<Arc<Device>, RegistryError> {
        let next = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = DeviceTransaction::new(self, *next)?;
        let Some(old) = changes.by_no(no)? else {
            return Err(RegistryError::NotFound {
                what: "device",
                id: no.0.to_string(),
            });
        };
        let mut draft = old.draft();
        change(&mut draft)?;
        draft.revision += 1;
        let device = Arc::new(draft);
        changes.write(Some(&old), &device)?;
        changes.commit(Durability::Synced)?;
        drop(next);
        self.notify_observers(&DeviceChange::Updated(&device));
        Ok(device)
    }
}
