//! The registry: all products and devices of a node, in tables of the store, with recently used devices cached in
//! memory.
//!
//! A start reads products and names only; with very many devices, the names are loaded in the background. Device
//! numbers are dense and never reused. Changes are serialised; readers never wait for them.

mod attribute_scope;
mod attribute_sharing;
mod attributes;
mod cache;
mod changes;
mod contested_names;
mod device_transaction;
mod digest_keys;
mod events;
mod import;
mod keys;
mod list;
mod name_index;
mod namespaces;
mod new_device;
mod observers;
mod provision;
mod shared_versions;
mod sharing;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use ::namespaces::Namespaces;
use foldhash::fast::RandomState;
use secret::random_bytes;
use series::DeviceNo;
use store::{Durability, Objects, Table, Tables};

pub use attribute_scope::AttributeScope;
pub use attribute_sharing::SharedAttributes;
pub use attributes::{DeviceAttribute, MAX_ATTRIBUTES};
pub use events::{DeviceEvent, DeviceEventFilter};
pub use import::{ImportFormat, ImportMode, ImportRejection, ImportSummary, export_header};
pub use keys::DeviceIndexKey;
pub use list::{DeviceFilter, DeviceListPage};
pub use new_device::{DeviceWriteOutcome, NewDevice, WritePrecondition};
pub use observers::{AttributeChange, DeviceChange};
pub use provision::{ProvisionRequest, ProvisionedDevice};
pub use shared_versions::{SharedVersions, VersionRow, VersionTransaction};
pub use sharing::RegistryChanges;

use crate::credential::{CredentialError, SecretDigester};
use crate::device::Device;
use crate::id::ProductId;
use crate::product::{self, Product, ProductError, ProductSlot};
use cache::DeviceCache;
use contested_names::ContestedNames;
use digest_keys::DigestKeys;
pub(crate) use keys::DeviceName;
use keys::no_at_end;
use name_index::{NameCandidates, NameIndex};
use observers::{AttributeObserver, DeviceObserver};

/// Limits of a registry.
#[derive(Debug, Clone)]
pub struct RegistryConfig {
    /// Maximum number of devices in memory, each about 400 bytes.
    pub max_cached_devices: usize,
    pub max_devices: u32,
    pub max_products: usize,
    /// Minimum length in bytes of a token or password that a device chooses when it registers.
    pub min_provisioned_secret_bytes: usize,
    /// Maximum number of stored events per device; 0: events are not stored.
    pub max_events_per_device: u32,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            max_cached_devices: 100_000,
            max_devices: 10_000_000,
            max_products: 10_000,
            min_provisioned_secret_bytes: 16,
            max_events_per_device: 1000,
        }
    }
}

/// Why a registry operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    #[error("there is no {what} {id:?}")]
    NotFound { what: &'static str, id: String },
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    #[error("{field}: {name:?} is already in use by another device")]
    NameTaken { field: &'static str, name: String },
    #[error("there is already a device {id:?}")]
    Exists { id: String },
    #[error("{id:?} has child devices; remove them or give them another parent first")]
    HasChildren { id: String },
    #[error("the current revision is {current}")]
    Conflict { current: u32 },
    #[error("the maximum of {what} is reached; remove devices or raise devices.max_devices")]
    Full { what: String },
    /// A quota of the namespace is reached; the text states it.
    #[error("{0}")]
    QuotaReached(String),
    #[error(transparent)]
    Store(#[from] store::StoreError),
}

impl From<CredentialError> for RegistryError {
    fn from(error: CredentialError) -> Self {
        Self::Invalid {
            field: format!("credentials.{}", error.field),
            message: error.message,
        }
    }
}

/// The products and devices of a node. Clones share one registry.
#[derive(Clone)]
pub struct Registry {
    pub(crate) inner: Arc<RegistryInner>,
}

pub(crate) struct RegistryInner {
    pub(crate) config: RegistryConfig,
    tables: Tables,
    devices: Table,
    index: Table,
    pub(crate) states: Table,
    attributes: Table,
    events: Table,
    meta: Table,
    digest_keys: Mutex<DigestKeys>,
    pub(crate) digester: RwLock<Arc<SecretDigester>>,
    products: RwLock<HashMap<Box<str>, Arc<ProductSlot>, RandomState>>,
    /// Ids of products declared in the configuration file; a stored product with the same id is ignored.
    declared: RwLock<HashSet<Box<str>>>,
    /// Whether there is any product; checked for every client that connects.
    has_products: AtomicBool,
    has_provisioning: AtomicBool,
    cache: DeviceCache,
    name_index: NameIndex,
    contested_names: ContestedNames,
    /// The versions of devices for other nodes; not set outside a cluster.
    shared: OnceLock<SharedVersions>,
    /// The same for the attributes of devices.
    shared_attributes: OnceLock<SharedVersions>,
    /// The next device number. The lock serialises changes.
    next_no: Mutex<u32>,
    count: AtomicU32,
    attribute_observers: RwLock<Vec<AttributeObserver>>,
    device_observers: RwLock<Vec<DeviceObserver>>,
    /// Not set in tests and tools: all namespaces are active and without limits.
    namespaces: OnceLock<Namespaces>,
}

impl Registry {
    /// Opens the tables, loads the products and follows their changes.
    pub fn open(objects: &Objects, config: RegistryConfig) -> Result<Self, RegistryError> {
        let tables = objects.tables().clone();
        let inner = RegistryInner {
            devices: tables.table("device"),
            index: tables.table("device_index"),
            states: tables.table("device_state"),
            attributes: tables.table("device_attribute"),
            events: tables.table("device_event"),
            meta: tables.table("device_meta"),
            tables,
            digest_keys: Mutex::default(),
            digester: RwLock::new(Arc::new(SecretDigester::new(&[0; 32]))),
            products: RwLock::default(),
            declared: RwLock::default(),
            has_products: AtomicBool::new(false),
            has_provisioning: AtomicBool::new(false),
            cache: DeviceCache::new(config.max_cached_devices),
            name_index: NameIndex::default(),
            contested_names: ContestedNames::default(),
            shared: OnceLock::new(),
            shared_attributes: OnceLock::new(),
            next_no: Mutex::new(0),
            count: AtomicU32::new(0),
            attribute_observers: RwLock::default(),
            device_observers: RwLock::default(),
            namespaces: OnceLock::new(),
            config,
        };
        let registry = Self {
            inner: Arc::new(inner),
        };
        registry.inner.load_meta()?;
        registry.inner.load_names();
        registry.load_products(objects)?;
        let (weak, stored) = (Arc::downgrade(&registry.inner), objects.downgrade());
        objects.observe_changes(Box::new(move |change| {
            if change.kind != product::KIND {
                return;
            }
            let (Some(inner), Some(stored)) = (weak.upgrade(), stored.upgrade()) else {
                return;
            };
            if inner.is_declared(&change.id) {
                return;
            }
            match stored.get(product::KIND, &change.id) {
                Ok(object) => {
                    let object = object.as_ref();
                    inner.apply_product(&change.id, object.map(|o| (&o.value, o.version)));
                }
                Err(error) => {
                    tracing::error!(id = change.id, %error, "reading a changed product failed; the previous version remains in use");
                }
            }
        }));
        let weak = Arc::downgrade(&registry.inner);
        registry.inner.tables.observe_restores(Box::new(move || {
            if let Some(inner) = weak.upgrade() {
                if inner.shared.get().is_some() {
                    tracing::error!(
                        "devices were restored in a cluster; restart the node, so that the other nodes learn of them"
                    );
                }
                inner.cache.clear();
                inner.name_index.clear();
                if let Err(error) = inner.load_meta() {
                    tracing::error!(%error, "reading the restored devices failed; restart the node");
                }
                inner.load_names();
            }
        }));
        Ok(registry)
    }

    fn load_products(&self, objects: &Objects) -> Result<(), RegistryError> {
        objects.for_each(product::KIND, |object| {
            let product = (&object.value, object.version);
            self.inner.apply_product(&object.id, Some(product));
        })?;
        Ok(())
    }

    /// Adds a product declared in the configuration file. A stored product with the same id is ignored.
    ///
    /// # Errors
    /// Returns the invalid fields.
    pub fn declare(&self, id: &str, product: &serde_json::Value) -> Result<(), Vec<ProductError>> {
        let read = Product::read(id, product, 0)?;
        self.check_product(&read).map_err(|error| vec![error])?;
        if let Some(owner) = self.owner_of_key(&read) {
            return Err(vec![ProductError {
                field: "provisioning.key".to_owned(),
                message: format!(
                    "the key is already in use by the product {:?}",
                    owner.as_str()
                ),
            }]);
        }
        let declared = self.inner.declared.write();
        declared
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id.into());
        self.inner.apply_product(id, Some((product, 0)));
        Ok(())
    }

    /// Whether a product is declared in the configuration file.
    #[must_use]
    pub fn is_declared(&self, id: &str) -> bool {
        self.inner.is_declared(id)
    }

    /// Whether the node has any product; without one, no client is a device.
    #[inline]
    #[must_use]
    pub fn has_products(&self) -> bool {
        self.inner.has_products.load(Relaxed)
    }

    /// Whether devices of any product may register themselves.
    #[must_use]
    pub fn has_provisioning(&self) -> bool {
        self.inner.has_provisioning.load(Relaxed)
    }

    #[must_use]
    pub fn product(&self, id: &str) -> Option<Arc<ProductSlot>> {
        self.inner.product(id)
    }

    /// All products in the order of their ids.
    #[must_use]
    pub fn products(&self) -> Vec<Arc<ProductSlot>> {
        let mut all = self.inner.all_products();
        all.sort_unstable_by(|left, right| left.id().cmp(right.id()));
        all
    }

    /// Checks what [`Product::read`] cannot: the limit of products.
    pub fn check_product(&self, product: &Product) -> Result<(), ProductError> {
        let wrong = |field: &str, message: &str| ProductError {
            field: field.to_owned(),
            message: message.to_owned(),
        };
        let products = self.products();
        let is_new = !products.iter().any(|slot| *slot.id() == product.id);
        if is_new && products.len() >= self.inner.config.max_products {
            return Err(wrong(
                "product",
                "the maximum number of products is reached",
            ));
        }
        Ok(())
    }

    /// The other product that already uses the provisioning key of this one.
    pub fn owner_of_key(&self, product: &Product) -> Option<ProductId> {
        let key = &product.definition.provisioning.as_ref()?.key;
        let products = self.products();
        let mut others = products.iter().filter(|slot| *slot.id() != product.id);
        let owner = others.find(|slot| {
            let other = &slot.get().definition.provisioning;
            other.as_ref().is_some_and(|other| other.key == *key)
        });
        owner.map(|slot| slot.id().clone())
    }

    /// The number of devices.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.inner.count.load(Relaxed)
    }

    /// Whether all names of devices are loaded; until then, names that are not in memory are looked up on disk.
    #[must_use]
    pub fn has_loaded_names(&self) -> bool {
        self.inner.name_index.is_complete()
    }

    /// The number of devices of a product.
    pub fn count_of(&self, product: &str) -> Result<u64, RegistryError> {
        self.inner.count_of(product)
    }

    /// Whether a device is unchanged in the registry. `false` may also mean that it is not in memory.
    pub(crate) fn is_current(&self, device: &Device) -> bool {
        let known = self.inner.cache.get(device.no);
        // Two nodes may have changed a device at the same moment, which gives both changes the same revision.
        known
            .is_some_and(|known| known.revision == device.revision && known.has_same_access(device))
    }

    /// The device, if it is in memory.
    #[must_use]
    pub fn cached(&self, id: &str) -> Option<Arc<Device>> {
        self.inner.cache.find(&DeviceName::Id(id))
    }

    /// The device, from disk if necessary.
    pub fn device(&self, id: &str) -> Result<Option<Arc<Device>>, RegistryError> {
        self.inner.find(&DeviceName::Id(id))
    }

    #[must_use]
    pub fn cached_by_no(&self, no: DeviceNo) -> Option<Arc<Device>> {
        self.inner.cache.get(no)
    }

    pub fn by_no(&self, no: DeviceNo) -> Result<Option<Arc<Device>>, RegistryError> {
        match self.inner.cache.get(no) {
            Some(device) => Ok(Some(device)),
            None => self.inner.load_device(no),
        }
    }

    /// The number of the device with this id, if `is_asked` holds for it. Reads the disk only then.
    pub(crate) fn number_of_id_if(
        &self,
        id: &str,
        is_asked: impl Fn(DeviceNo) -> bool,
    ) -> Result<Option<DeviceNo>, RegistryError> {
        let candidates = self.inner.candidates(&DeviceName::Id(id).encode())?;
        for no in candidates.into_iter().filter(|no| is_asked(*no)) {
            if self
                .by_no(no)?
                .is_some_and(|device| device.id.as_str() == id)
            {
                return Ok(Some(no));
            }
        }
        Ok(None)
    }

    /// The number of devices in memory, cache hits and cache misses.
    #[must_use]
    pub fn cache_counts(&self) -> (usize, u64, u64) {
        let cache = &self.inner.cache;
        (
            cache.len(),
            cache.hits.load(Relaxed),
            cache.misses.load(Relaxed),
        )
    }
}

/// Test access by credentials.
#[cfg(test)]
impl Registry {
    /// The device with this access token, from disk if necessary.
    pub(crate) fn by_token(&self, token: &str) -> Result<Option<Arc<Device>>, RegistryError> {
        let digest = self.inner.digester().digest(token.as_bytes());
        self.inner.find(&DeviceName::Token(&digest))
    }

    /// The device with this access token, if it is in memory.
    pub(crate) fn cached_by_token(&self, token: &str) -> Option<Arc<Device>> {
        let digest = self.inner.digester().digest(token.as_bytes());
        self.inner.cache.find(&DeviceName::Token(&digest))
    }
}

impl RegistryInner {
    fn load_meta(&self) -> Result<(), RegistryError> {
        let mut next = self.next_no.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = match DigestKeys::load(&self.meta)? {
            Some(keys) => keys,
            None => {
                let key: [u8; 32] = random_bytes().map_err(|error| RegistryError::Invalid {
                    field: "key".to_owned(),
                    message: error.to_string(),
                })?;
                let mut batch = self.tables.batch()?;
                batch.put(&self.meta, b"key", &key)?;
                batch.commit(Durability::Synced)?;
                DigestKeys::new(key)
            }
        };
        self.set_digester(keys.digester());
        *self.lock_digest_keys() = keys;
        self.contested_names.load(&self.index)?;
        let number = |value: Option<Vec<u8>>| {
            let value = value.as_deref().and_then(no_at_end);
            value.map_or(0, |no| no.0)
        };
        *next = number(self.meta.get(b"next")?);
        self.count.store(number(self.meta.get(b"count")?), Relaxed);
        Ok(())
    }

    fn load_names(&self) {
        self.name_index.load(&self.index, self.count.load(Relaxed));
    }

    pub(crate) fn digester(&self) -> Arc<SecretDigester> {
        let digester = self.digester.read();
        Arc::clone(&digester.unwrap_or_else(PoisonError::into_inner))
    }

    /// The digester for digests that are to be stored.
    fn digester_for_writing(&self) -> Arc<SecretDigester> {
        if self.shared.get().is_some() {
            // Held, so that the key is still the current one.
            let mut keys = self.lock_digest_keys();
            keys.mark_used();
            return self.digester();
        }
        self.digester()
    }

    fn set_digester(&self, digester: SecretDigester) {
        let current = self.digester.write();
        *current.unwrap_or_else(PoisonError::into_inner) = Arc::new(digester);
    }

    fn lock_digest_keys(&self) -> MutexGuard<'_, DigestKeys> {
        let keys = self.digest_keys.lock();
        keys.unwrap_or_else(PoisonError::into_inner)
    }

    fn count_of(&self, product: &str) -> Result<u64, RegistryError> {
        let key = [b"count\0", product.as_bytes()].concat();
        let count = self.meta.get_with(&key, |value| {
            let value = value.first_chunk::<8>();
            value.map_or(0, |bytes| u64::from_be_bytes(*bytes))
        })?;
        Ok(count.unwrap_or(0))
    }

    fn product(&self, id: &str) -> Option<Arc<ProductSlot>> {
        let products = self.products.read();
        let products = products.unwrap_or_else(PoisonError::into_inner);
        products.get(id).cloned()
    }

    fn all_products(&self) -> Vec<Arc<ProductSlot>> {
        let products = self.products.read();
        let products = products.unwrap_or_else(PoisonError::into_inner);
        products.values().cloned().collect()
    }

    fn is_declared(&self, id: &str) -> bool {
        let declared = self.declared.read();
        declared
            .unwrap_or_else(PoisonError::into_inner)
            .contains(id)
    }

    /// Applies a written or, with `None`, removed product.
    fn apply_product(&self, id: &str, written: Option<(&serde_json::Value, u64)>) {
        let is_there = written.is_some();
        let product = match written.map(|(value, version)| Product::read(id, value, version)) {
            None => None,
            Some(Ok(product)) => Some(product),
            Some(Err(errors)) => {
                let error = errors.first().map(ToString::to_string).unwrap_or_default();
                tracing::error!(
                    id,
                    error,
                    "reading a stored product failed; the previous version remains in use"
                );
                return;
            }
        };
        let mut products = self
            .products
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        match product {
            None => {
                products.remove(id);
            }
            Some(product) => {
                let is_active = self.is_namespace_active(product.namespace());
                let slot = match products.get(id) {
                    Some(slot) => {
                        slot.set(product);
                        Arc::clone(slot)
                    }
                    None => Arc::new(ProductSlot::new(product)),
                };
                slot.set_namespace_active(is_active);
                products.insert(id.into(), slot);
            }
        }
        self.has_products.store(!products.is_empty(), Relaxed);
        let may_provision = |slot: &Arc<ProductSlot>| slot.get().definition.provisioning.is_some();
        let has_provisioning = products.values().any(may_provision);
        self.has_provisioning.store(has_provisioning, Relaxed);
        drop(products);
        if is_there {
            self.apply_awaiting(id);
        }
    }

    pub(crate) fn count_hit(&self) {
        self.cache.count_lookup(true);
    }

    pub(crate) fn table_batch(&self) -> Result<store::TableBatch, RegistryError> {
        Ok(self.tables.batch()?)
    }

    pub(crate) fn has_record(&self, no: DeviceNo) -> Result<bool, RegistryError> {
        Ok(self.cache.contains(no) || self.devices.has(&no.0.to_be_bytes())?)
    }

    pub(crate) fn cached(&self, name: &DeviceName<'_>) -> Option<Arc<Device>> {
        self.find_cached(name)
    }

    fn find_cached(&self, name: &DeviceName<'_>) -> Option<Arc<Device>> {
        let found = self.cache.find(name)?;
        // A device in memory is found by all its names.
        let is_foreign = self.contested_names.is_any()
            && self.contested_names.is_waiting(&name.encode(), found.no);
        (!is_foreign).then_some(found)
    }

    /// Finds a device by name, on disk if necessary.
    pub(crate) fn find(&self, name: &DeviceName<'_>) -> Result<Option<Arc<Device>>, RegistryError> {
        if let Some(device) = self.find_cached(name) {
            self.cache.count_lookup(true);
            return Ok(Some(device));
        }
        self.cache.count_lookup(false);
        let row = name.encode();
        for no in self.candidates(&row)? {
            if let Some(device) = self
                .load_device(no)?
                .filter(|device| name.belongs_to(device))
                .filter(|device| !self.contested_names.is_waiting(&row, device.no))
            {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    /// Devices that may have a name; reads the disk only until the names are loaded.
    fn candidates(&self, row: &[u8]) -> Result<Vec<DeviceNo>, RegistryError> {
        match self.name_index.find(row) {
            NameCandidates::Devices(candidates) => Ok(candidates),
            NameCandidates::NotLoaded => {
                let no = self.index.get_with(row, no_at_end)?.flatten();
                Ok(no.into_iter().collect())
            }
        }
    }

    /// The holder of a name according to the name index.
    fn holder(&self, row: &[u8]) -> Result<Option<DeviceNo>, RegistryError> {
        match self.name_index.find(row) {
            NameCandidates::Devices(candidates) if candidates.is_empty() => Ok(None),
            _ => Ok(self.index.get_with(row, no_at_end)?.flatten()),
        }
    }

    /// Reads a record from disk and caches it.
    fn load_device(&self, no: DeviceNo) -> Result<Option<Arc<Device>>, RegistryError> {
        let generation = self.cache.generation();
        let device = self.load_device_uncached(no)?.map(Arc::new);
        if let Some(device) = &device {
            self.cache.put(device, generation);
        }
        Ok(device)
    }

    /// The same without caching, for scans over many devices.
    fn load_device_uncached(&self, no: DeviceNo) -> Result<Option<Device>, RegistryError> {
        let key = no.0.to_be_bytes();
        let read = self.devices.get_with(&key, |bytes| {
            Device::decode(no, bytes, |id| self.product(id))
        })?;
        if matches!(read, Some(None)) {
            tracing::warn!(
                no = no.0,
                "a device record is damaged or its product does not exist; device ignored"
            );
        }
        Ok(read.flatten())
    }
}

#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod tests;

/// Parses the product id in a device definition.
pub(crate) fn product_id(text: &str) -> Result<ProductId, RegistryError> {
    ProductId::new(text).map_err(|error| RegistryError::Invalid {
        field: "product".to_owned(),
        message: error.to_string(),
    })
}
