//! Changes of devices that are written in one batch of the store.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use namespaces::Quota;
use series::DeviceNo;
use store::{Durability, TableBatch};

use super::contested_names::{WaitingDevices, created_first};
use super::keys::{DeviceIndexKey, DeviceName, contested_row, no_at_end, reserved_row};
use super::new_device::{DeviceWriteOutcome, PreparedDevice, WritePrecondition, invalid};
use super::shared_versions::{VersionRow, VersionTransaction};
use super::{RegistryError, RegistryInner};
use crate::credential::Credential;
use crate::device::Device;
use crate::id::DeviceId;

/// Changes written in one batch; later changes see the earlier ones.
pub(super) struct DeviceTransaction<'a> {
    pub(super) inner: &'a RegistryInner,
    pub(super) batch: TableBatch,
    next: u32,
    /// Index rows with a new holder; `None`: no holder.
    names: HashMap<Vec<u8>, Option<DeviceNo>, RandomState>,
    /// Names removed from their devices; some may have been assigned again.
    removed_names: Vec<(Vec<u8>, DeviceNo)>,
    /// Changed devices; `None`: removed.
    devices: HashMap<u32, Option<Arc<Device>>, RandomState>,
    counts: HashMap<Box<str>, i64, RandomState>,
    /// Numbers of devices before these changes, by namespace.
    stored_in_namespace: HashMap<Box<str>, u64, RandomState>,
    /// Devices that existed before.
    replaced: Vec<DeviceNo>,
    /// Changed devices that wait for names.
    waiting: WaitingDevices,
    /// `None` outside a cluster.
    pub(super) versions: Option<VersionTransaction<'a>>,
    pub(super) attribute_versions: Option<VersionTransaction<'a>>,
    /// The version of the record of another node that is being stored.
    pub(super) incoming: Option<cluster::RecordVersion>,
}

impl<'a> DeviceTransaction<'a> {
    pub(super) fn new(inner: &'a RegistryInner, next: u32) -> Result<Self, RegistryError> {
        Ok(Self {
            inner,
            batch: inner.tables.batch()?,
            next,
            names: HashMap::default(),
            removed_names: Vec::new(),
            devices: HashMap::default(),
            counts: HashMap::default(),
            stored_in_namespace: HashMap::default(),
            replaced: Vec::new(),
            waiting: WaitingDevices::default(),
            versions: inner.shared.get().map(VersionTransaction::new),
            attribute_versions: inner.shared_attributes.get().map(VersionTransaction::new),
            incoming: None,
        })
    }

    pub(super) fn check_precondition(
        &self,
        expected: WritePrecondition,
        current: Option<&Arc<Device>>,
    ) -> Result<(), RegistryError> {
        let is_met = match (expected, current) {
            (WritePrecondition::Any, _) | (WritePrecondition::Absent, None) => true,
            (WritePrecondition::Absent, Some(device)) => {
                return Err(RegistryError::Exists {
                    id: device.id.to_string(),
                });
            }
            (WritePrecondition::Revision(revision), Some(device)) => device.revision == revision,
            (WritePrecondition::Version(version), Some(device)) => {
                let row = match &self.versions {
                    Some(versions) => versions.row(device.id.as_str())?,
                    None => None,
                };
                version_number(device, row) == version
            }
            (WritePrecondition::Revision(_) | WritePrecondition::Version(_), None) => false,
        };
        match is_met {
            true => Ok(()),
            false => Err(RegistryError::Conflict {
                current: current.map_or(0, |device| device.revision),
            }),
        }
    }

    fn holder(&self, name: &DeviceName<'_>) -> Result<Option<DeviceNo>, RegistryError> {
        let row = name.encode();
        match self.names.get(&row) {
            Some(owner) => Ok(*owner),
            None => self.inner.holder(&row),
        }
    }

    pub(super) fn by_no(&self, no: DeviceNo) -> Result<Option<Arc<Device>>, RegistryError> {
        match self.devices.get(&no.0) {
            Some(device) => Ok(device.clone()),
            None => Ok(self.inner.load_device_uncached(no)?.map(Arc::new)),
        }
    }

    pub(super) fn by_name(
        &self,
        name: &DeviceName<'_>,
    ) -> Result<Option<Arc<Device>>, RegistryError> {
        match self.holder(name)? {
            Some(no) => self.by_no(no),
            None => Ok(None),
        }
    }

    /// The number of an id that has one without a device: a device at another node has named it as its gateway.
    fn reserved_number(&self, id: &str) -> Result<Option<DeviceNo>, RegistryError> {
        if self.versions.is_none() {
            return Ok(None);
        }
        let Some(no) = self.holder(&DeviceName::Id(id))? else {
            return Ok(None);
        };
        let has_record = self.devices.contains_key(&no.0) || self.inner.has_record(no)?;
        Ok((!has_record).then_some(no))
    }

    /// The number for a device that does not exist yet.
    pub(super) fn new_number(&mut self, id: &str) -> Result<DeviceNo, RegistryError> {
        if let Some(no) = self.reserved_number(id)? {
            return Ok(no);
        }
        let no = DeviceNo(self.next);
        self.next += 1;
        Ok(no)
    }

    /// The number of the device with this id, also if its record has not arrived yet.
    pub(super) fn number_of_id(&mut self, id: &str) -> Result<DeviceNo, RegistryError> {
        let name = DeviceName::Id(id);
        if let Some(no) = self.holder(&name)? {
            return Ok(no);
        }
        let no = self.new_number(id)?;
        let row = name.encode();
        self.batch
            .put(&self.inner.index, &row, &no.0.to_be_bytes())?;
        self.batch
            .put(&self.inner.index, &reserved_row(no), id.as_bytes())?;
        self.names.insert(row, Some(no));
        Ok(no)
    }

    /// The devices behind a gateway.
    pub(super) fn children_of(&self, gateway: &Device) -> Result<Vec<Arc<Device>>, RegistryError> {
        let mut numbers: Vec<DeviceNo> = Vec::new();
        let prefix = DeviceIndexKey::Parent(gateway.no).prefix();
        let index = &self.inner.index;
        index.scan(&prefix, std::ops::Bound::Unbounded, &mut |row, _| {
            numbers.extend(no_at_end(row));
            true
        })?;
        let changed = self.devices.values().flatten();
        numbers.extend(changed.map(|device| device.no));
        numbers.sort_unstable();
        numbers.dedup();
        let mut children = Vec::new();
        for no in numbers {
            let child = self.by_no(no)?;
            children.extend(child.filter(|child| child.parent == Some(gateway.no)));
        }
        Ok(children)
    }

    /// Sets the version for other nodes.
    pub(super) fn stamp(
        &mut self,
        id: &str,
        revision: u32,
        is_removed: bool,
    ) -> Result<(), RegistryError> {
        if let Some(versions) = &mut self.versions {
            let state = (revision, is_removed);
            versions.stamp(&mut self.batch, id, self.incoming, state)?;
        }
        Ok(())
    }

    /// Devices that wait for a name.
    fn waiting_for(&self, row: &[u8]) -> Vec<DeviceNo> {
        match self.waiting.get(row) {
            Some(waiting) => waiting.clone(),
            None => self.inner.contested_names.waiting_for(row),
        }
    }

    fn has_contested_names(&self) -> bool {
        !self.waiting.is_empty() || self.inner.contested_names.is_any()
    }

    /// Whether the device has a name that another one holds. Only changes of other nodes give a name to two
    /// devices; those of this node are checked before.
    fn must_wait_for_name(
        &mut self,
        name: &DeviceName<'_>,
        row: &[u8],
        device: &Device,
    ) -> Result<bool, RegistryError> {
        if matches!(name, DeviceName::Id(_))
            || (self.incoming.is_none() && !self.has_contested_names())
        {
            return Ok(false);
        }
        let other = match self.holder(name)? {
            Some(no) if no != device.no => self.by_no(no)?,
            _ => None,
        };
        let Some(other) = other.filter(|other| name.belongs_to(other)) else {
            return Ok(false);
        };
        let must_wait = created_first(device, &other).no == other.no;
        let later = if must_wait { device.no } else { other.no };
        let mut waiting = self.waiting_for(row);
        if !waiting.contains(&later) {
            waiting.push(later);
            let row = contested_row(row, later);
            self.batch.put(&self.inner.index, &row, b"")?;
        }
        self.waiting.insert(row.to_vec(), waiting);
        if !must_wait {
            self.removed_names.push((row.to_vec(), other.no));
        }
        Ok(must_wait)
    }

    /// Takes a name from a device, of several that have it. Returns whether one of them still holds it.
    fn release_contested_name(
        &mut self,
        name: &DeviceName<'_>,
        row: &[u8],
        no: DeviceNo,
    ) -> Result<bool, RegistryError> {
        let mut waiting = self.waiting_for(row);
        let inner = self.inner;
        if let Some(at) = waiting.iter().position(|device| *device == no) {
            waiting.swap_remove(at);
            self.batch.remove(&inner.index, &contested_row(row, no))?;
            self.waiting.insert(row.to_vec(), waiting);
            return Ok(true);
        }
        if waiting.is_empty() || self.holder(name)? != Some(no) {
            return Ok(!waiting.is_empty());
        }
        let mut next: Option<Arc<Device>> = None;
        for no in &waiting {
            if let Some(device) = self.by_no(*no)? {
                next = Some(match next {
                    Some(next) if created_first(&next, &device).no == next.no => next,
                    _ => device,
                });
            }
        }
        let Some(next) = next else {
            return Ok(false);
        };
        waiting.retain(|device| *device != next.no);
        self.batch
            .remove(&inner.index, &contested_row(row, next.no))?;
        self.batch
            .put(&inner.index, row, &next.no.0.to_be_bytes())?;
        self.waiting.insert(row.to_vec(), waiting);
        self.removed_names.push((row.to_vec(), no));
        self.names.insert(row.to_vec(), Some(next.no));
        // It may be found by this name from now on.
        self.replaced.push(next.no);
        Ok(true)
    }

    pub(super) fn put(
        &mut self,
        sealed: PreparedDevice,
        expected: WritePrecondition,
        issues: bool,
    ) -> Result<DeviceWriteOutcome, RegistryError> {
        let PreparedDevice {
            device: new,
            credentials,
        } = sealed;
        let old = self.by_name(&DeviceName::Id(&new.id))?;
        self.check_precondition(expected, old.as_ref())?;
        let credentials = match (credentials, &old) {
            (Some(credentials), _) => Some(credentials),
            (None, Some(_)) => None,
            (None, None) => Some(self.inner.default_credentials(&new, issues)?),
        };
        let product = self.inner.product(&new.product);
        let product = product.ok_or_else(|| RegistryError::NotFound {
            what: "product",
            id: new.product.clone(),
        })?;
        let parent = match &new.parent {
            None => None,
            Some(id) if *id == new.id => {
                return Err(invalid("parent", "a device cannot be its own parent"));
            }
            Some(id) => match self.by_name(&DeviceName::Id(id))? {
                // A device of another namespace is answered like an absent one.
                Some(parent) if !parent.is_in_namespace(product.get().namespace()) => {
                    return Err(invalid("parent", format!("there is no device {id:?}")));
                }
                Some(parent) if parent.is_gateway() => Some(parent.no),
                Some(_) => return Err(invalid("parent", format!("{id:?} is not a gateway"))),
                None => return Err(invalid("parent", format!("there is no device {id:?}"))),
            },
        };
        let max_devices = self.inner.config.max_devices;
        if old.is_none() && self.inner.count.load(Relaxed) + self.added_devices() >= max_devices {
            return Err(RegistryError::Full {
                what: format!("{max_devices} devices"),
            });
        }
        match &old {
            Some(old) if !old.is_in_namespace(product.get().namespace()) => {
                let message = "expected a product of the same namespace; the namespace of a device cannot change";
                return Err(invalid("product", message));
            }
            Some(_) => {}
            None => self.check_device_quota(product.get().namespace())?,
        }
        let mut issued = Vec::new();
        let (stored, fresh): (Box<[Credential]>, _) = match credentials {
            None => (
                old.as_ref()
                    .map(|old| old.credentials.clone())
                    .unwrap_or_default(),
                None,
            ),
            Some(credentials) => {
                let mut stored = Vec::with_capacity(credentials.len());
                for (credential, shown_once) in credentials {
                    stored.push(credential);
                    issued.extend(shown_once);
                }
                (stored.into(), Some(()))
            }
        };
        let id = DeviceId::new(&new.id).map_err(|error| invalid("id", error.to_string()))?;
        let reserved = match &old {
            Some(old) => Some(old.no),
            None => self.reserved_number(id.as_str())?,
        };
        let device = Device {
            no: reserved.unwrap_or(DeviceNo(self.next)),
            id,
            product,
            name: new.name.into(),
            parent,
            group: new.group.map(Into::into),
            tags: new
                .tags
                .into_iter()
                .map(|(k, v)| (k.into(), v.into()))
                .collect(),
            is_enabled: new.enabled,
            is_gateway: new.gateway,
            created_ms: old
                .as_ref()
                .map_or_else(wall_clock::now_ms, |old| old.created_ms),
            revision: old.as_ref().map_or(1, |old| old.revision + 1),
            credentials: stored,
            claim: old.as_ref().and_then(|old| old.claim.clone()),
            was_activated: old.as_ref().is_some_and(|old| old.was_activated),
            verified_password_digest: OnceLock::new(),
        };
        if fresh.is_some() {
            self.check_names(&device)?;
        }
        let device = Arc::new(device);
        if reserved.is_none() {
            self.next += 1;
        }
        if old.is_none() {
            self.forget_awaiting_attributes(device.id.as_str())?;
        }
        self.write(old.as_ref(), &device)?;
        Ok(DeviceWriteOutcome {
            device,
            issued,
            was_created: old.is_none(),
        })
    }

    /// Checks that the namespace may have one more device.
    fn check_device_quota(&mut self, namespace: &str) -> Result<(), RegistryError> {
        let limits = self
            .inner
            .namespaces
            .get()
            .and_then(|all| all.get(namespace));
        let Some(limits) = limits.filter(|limits| limits.quotas.devices.is_some()) else {
            return Ok(());
        };
        let stored = match self.stored_in_namespace.get(namespace) {
            Some(stored) => *stored,
            None => {
                let stored = self.inner.count_in_namespace(namespace)?;
                self.stored_in_namespace.insert(namespace.into(), stored);
                stored
            }
        };
        let is_inside = |id: &str| {
            let product = self.inner.product(id);
            product.is_some_and(|product| product.get().namespace() == namespace)
        };
        let added = self.counts.iter().filter(|(product, _)| is_inside(product));
        let added: i64 = added.map(|(_, change)| change).sum();
        let used = stored.saturating_add_signed(added);
        let checked = limits.quotas.check(Quota::Devices, namespace, used, 1);
        checked.map_err(RegistryError::QuotaReached)
    }

    fn added_devices(&self) -> u32 {
        self.counts.values().sum::<i64>().max(0) as u32
    }

    fn check_names(&self, device: &Device) -> Result<(), RegistryError> {
        for name in DeviceName::names_of(device) {
            let holder = self.holder(&name)?;
            if holder.is_none_or(|holder| holder == device.no) {
                continue;
            }
            let (field, name) = match name {
                DeviceName::Id(id) => ("id", id.to_owned()),
                DeviceName::Token(_) => ("token", "***".to_owned()),
                DeviceName::Username(name) => ("username", name.to_owned()),
                DeviceName::CommonName(name) => ("common_name", name.to_owned()),
            };
            return Err(RegistryError::NameTaken { field, name });
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        old: Option<&Arc<Device>>,
        new: &Arc<Device>,
    ) -> Result<(), RegistryError> {
        let no = new.no.0.to_be_bytes();
        if let Some(old) = old {
            self.remove_index_entries(old)?;
            self.replaced.push(old.no);
        }
        let inner = self.inner;
        self.batch.put(&inner.devices, &no, &new.encode())?;
        for name in DeviceName::names_of(new) {
            let row = name.encode();
            if self.must_wait_for_name(&name, &row, new)? {
                continue;
            }
            self.batch.put(&inner.index, &row, &no)?;
            self.names.insert(row, Some(new.no));
        }
        if old.is_none() && self.versions.is_some() {
            self.batch.remove(&inner.index, &reserved_row(new.no))?;
        }
        for group in DeviceIndexKey::keys_of(new) {
            self.batch.put(&inner.index, &group.encode(new.no), b"")?;
        }
        *self
            .counts
            .entry(new.product.id().as_str().into())
            .or_default() += 1;
        self.devices.insert(new.no.0, Some(Arc::clone(new)));
        self.stamp(new.id.as_str(), new.revision, false)
    }

    /// Removes the index entries of a device.
    fn remove_index_entries(&mut self, old: &Device) -> Result<(), RegistryError> {
        for name in DeviceName::names_of(old) {
            let row = name.encode();
            if self.has_contested_names() && self.release_contested_name(&name, &row, old.no)? {
                continue;
            }
            self.batch.remove(&self.inner.index, &row)?;
            self.removed_names.push((row.clone(), old.no));
            self.names.insert(row, None);
        }
        for group in DeviceIndexKey::keys_of(old) {
            self.batch
                .remove(&self.inner.index, &group.encode(old.no))?;
        }
        *self
            .counts
            .entry(old.product.id().as_str().into())
            .or_default() -= 1;
        Ok(())
    }

    pub(super) fn remove(&mut self, old: &Device) -> Result<(), RegistryError> {
        self.remove_index_entries(old)?;
        self.replaced.push(old.no);
        self.devices.insert(old.no.0, None);
        self.stamp(old.id.as_str(), old.revision, true)?;
        let inner = self.inner;
        let no = old.no.0.to_be_bytes();
        self.batch.remove(&inner.devices, &no)?;
        self.batch.remove(&inner.states, &no)?;
        self.remove_attributes(old)?;
        self.forget_awaiting_attributes(old.id.as_str())?;
        let mut events = Vec::new();
        inner
            .events
            .scan(&no, std::ops::Bound::Unbounded, &mut |key, _| {
                events.push(key.to_vec());
                true
            })?;
        for key in events {
            self.batch.remove(&inner.events, &key)?;
        }
        Ok(())
    }

    /// Commits everything and returns the next device number.
    pub(super) fn commit(mut self, durability: Durability) -> Result<u32, RegistryError> {
        let inner = self.inner;
        let mut count = i64::from(inner.count.load(Relaxed));
        for (product, change) in &self.counts {
            if *change == 0 {
                continue;
            }
            count += change;
            let key = [b"count\0", product.as_bytes()].concat();
            let of_product = inner.count_of(product)? as i64 + change;
            let of_product = of_product.max(0) as u64;
            self.batch
                .put(&inner.meta, &key, &of_product.to_be_bytes())?;
        }
        let count = count.max(0) as u32;
        self.batch
            .put(&inner.meta, b"count", &count.to_be_bytes())?;
        self.batch
            .put(&inner.meta, b"next", &self.next.to_be_bytes())?;
        // Before the devices are visible: the holder of a name must always be found by it.
        for (row, holder) in &self.names {
            if let Some(no) = holder {
                inner.name_index.add(row, *no);
            }
        }
        if let Some(versions) = &self.versions {
            versions.prepare();
        }
        self.batch.commit(durability)?;
        inner.contested_names.update(self.waiting);
        for (row, no) in &self.removed_names {
            if self.names.get(row).copied().flatten() != Some(*no) {
                inner.name_index.remove(row, *no);
            }
        }
        inner.count.store(count, Relaxed);
        for no in self.replaced {
            inner.cache.remove(no);
        }
        for versions in self.versions.into_iter().chain(self.attribute_versions) {
            versions.finish();
        }
        Ok(self.next)
    }
}

pub(super) fn version_number(device: &Device, row: Option<VersionRow>) -> u64 {
    match row {
        // Later for each change of a device, whichever node has made it.
        Some(row) => row.version.time_ms,
        None => u64::from(device.no.0) << 32 | u64::from(device.revision),
    }
}
