//! Validates packages and assignments, and follows their changes in the store.

mod campaigns;
mod images;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;

use bytes::Bytes;

use devices::group::{self, GroupDefinition};
use devices::protocol::DownlinkMessage;
use devices::{Device, DeviceChange, DeviceNo, Registry};
use hooks::MetricFamily;
use serde_json::Value;
use store::{Objects, StoreError};
use transfer::{FileService, TransferError, TransferErrorKind};
use wall_clock::now_ms;

use crate::assignment::{ASSIGNMENT_KIND, AssignmentDefinition, AssignmentTarget};
use crate::campaign::Campaigns;
use crate::catalog::{AssignedPackage, Catalog};
use crate::chunk_cache::ChunkCache;
use crate::chunk_queue::ChunkQueue;
use crate::definition_error::DefinitionError;
use crate::device_state::{InstallRecord, InstallReport};
use crate::image::verify_image;
use crate::images::{ImageSource, MissingImages};
use crate::install_table::InstallTable;
use crate::jetlinks::{self, FirmwareMessage};
use crate::metrics::{ChunkTransport, FirmwareMetrics};
use crate::package::{FirmwareDefinition, FirmwarePackage, FirmwareType, KIND};
use crate::settings::FirmwareSettings;
use crate::sharing::Sharing;
use crate::signature::{TrustError, TrustedKeys};
use crate::target_queue::TargetQueue;

/// Why the firmware of a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum FirmwareOpenError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("cannot read the firmware packages of the store: {0}")]
    Store(#[from] StoreError),
}

/// Sends messages to devices.
pub trait DeviceMessenger: Send + Sync {
    /// Sends a message to a device if it is online and uses a protocol that has the message. Never blocks.
    fn send(&self, device: &Device, message: &DownlinkMessage<'_>);
}

/// Tells whether a device is online at this node.
pub type DevicePresenceCheck = Box<dyn Fn(DeviceNo) -> bool + Send + Sync>;

/// The firmware packages of a node. Clones share them.
#[derive(Clone)]
pub struct FirmwareService {
    pub(crate) inner: Arc<FirmwareInner>,
}

pub(crate) struct FirmwareInner {
    registry: Registry,
    files: FileService,
    keys: TrustedKeys,
    catalog: RwLock<Catalog>,
    /// Whether there is any package.
    is_in_use: AtomicBool,
    chunks: ChunkCache,
    pub(crate) chunk_queue: ChunkQueue,
    metrics: FirmwareMetrics,
    max_chunk_bytes: u64,
    pub(crate) installs: InstallTable,
    pub(crate) campaigns: Campaigns,
    pub(crate) stop: (Mutex<bool>, Condvar),
    /// Images that come from other nodes.
    images: MissingImages,
    image_source: OnceLock<Box<dyn ImageSource>>,
    is_in_cluster: bool,
    /// Whether a device is connected to this node; `None` outside a cluster.
    pub(crate) presence: OnceLock<DevicePresenceCheck>,
    /// The records that all nodes of the cluster have; `None` outside a cluster.
    pub(crate) shared: OnceLock<Arc<Sharing>>,
    public_url: String,
    pub(crate) messenger: OnceLock<Arc<dyn DeviceMessenger>>,
    pub(crate) target_queue: TargetQueue,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl FirmwareService {
    /// Reads the packages and assignments of the store, and follows their changes. `declared_groups` are device groups
    /// of the configuration.
    ///
    /// # Errors
    /// If a setting is invalid, or the store cannot be read.
    pub fn open(
        objects: &Objects,
        registry: Registry,
        files: FileService,
        settings: &FirmwareSettings,
        declared_groups: &[(String, Value)],
    ) -> Result<Self, FirmwareOpenError> {
        let inner = Arc::new(FirmwareInner {
            registry,
            chunks: ChunkCache::new(files.clone(), settings.cache_bytes),
            files,
            keys: TrustedKeys::open(&settings.trust)?,
            catalog: RwLock::default(),
            is_in_use: AtomicBool::new(false),
            chunk_queue: ChunkQueue::default(),
            metrics: FirmwareMetrics::default(),
            max_chunk_bytes: settings.max_chunk_bytes(),
            installs: InstallTable::open(objects.tables())?,
            public_url: settings.public_url.trim_end_matches('/').to_owned(),
            messenger: OnceLock::new(),
            target_queue: TargetQueue::default(),
            campaigns: Campaigns::open(objects.tables(), settings.node.as_ref(), now_ms())?,
            images: MissingImages::default(),
            image_source: OnceLock::new(),
            is_in_cluster: settings.node.is_some(),
            presence: OnceLock::new(),
            shared: OnceLock::new(),
            stop: Default::default(),
            threads: Mutex::default(),
        });
        let (weak, stored) = (Arc::downgrade(&inner), objects.downgrade());
        let declared: Vec<String> = declared_groups.iter().map(|(id, _)| id.clone()).collect();
        objects.observe_changes(Box::new(move |change| {
            if ![KIND, ASSIGNMENT_KIND, group::KIND].contains(&change.kind.as_ref())
                || (change.kind == group::KIND && declared.contains(&change.id))
            {
                return;
            }
            let (Some(inner), Some(stored)) = (weak.upgrade(), stored.upgrade()) else {
                return;
            };
            match stored.get(&change.kind, &change.id) {
                Ok(object) => {
                    let value = object.map(|object| object.value);
                    inner.follow(&change.kind, &change.id, value.as_ref());
                }
                Err(error) => {
                    tracing::error!(kind = %change.kind, id = change.id, %error, "reading a changed object failed; its previous version remains in use");
                }
            }
        }));
        for kind in [group::KIND, KIND, ASSIGNMENT_KIND] {
            objects.for_each(kind, |object| {
                inner.apply(kind, &object.id, Some(&object.value));
            })?;
        }
        for (id, value) in declared_groups {
            inner.apply(group::KIND, id, Some(value));
        }
        let weak = Arc::downgrade(&inner);
        inner.registry.add_device_observer(Box::new(move |change| {
            let Some(inner) = weak.upgrade() else { return };
            match change {
                DeviceChange::Created(device) => {
                    inner.share_change(|sharing| sharing.device_created(&inner.installs, device));
                    inner.push_device(device);
                }
                DeviceChange::Updated(device) => inner.push_device(device),
                DeviceChange::Removed(device) => {
                    if inner.is_in_use.load(Relaxed) {
                        inner.target_queue.push_removed(device.no);
                    }
                    inner.share_change(|sharing| sharing.device_removed(device));
                    let id = Some(device.id.as_str());
                    inner.campaigns.device_deleted(device.no, id, now_ms());
                }
            }
        }));
        Ok(Self { inner })
    }

    /// Whether this node notifies a device: in a cluster the one where the device is.
    pub(crate) fn is_here(&self, device: DeviceNo) -> bool {
        let presence = self.inner.presence.get();
        presence.is_none_or(|is_here| is_here(device))
    }

    /// Whether there is any package, so that reports of devices matter.
    #[inline]
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.inner.is_in_use.load(Relaxed)
    }

    /// A device has connected or subscribed: it is notified of its target if it does not know it. Never blocks.
    pub fn device_reachable(&self, device: DeviceNo) {
        if self.is_in_use() {
            self.inner.target_queue.push_reachable(device);
        }
    }

    /// A device has sent a message on a firmware topic of JetLinks' protocol; `step` is the rest of the topic. Never
    /// blocks.
    pub fn receive(&self, device: DeviceNo, step: &str, json: &str) {
        match jetlinks::read_message(step, json) {
            Some(FirmwareMessage::Report(report)) => {
                self.report(device, FirmwareType::Firmware, report);
            }
            Some(FirmwareMessage::Pull(request)) => {
                self.inner.target_queue.push_pull(device, request);
            }
            None => tracing::debug!(device = device.0, step, "invalid firmware message ignored"),
        }
    }

    /// A link to an image that needs no login until then.
    pub(crate) fn signed_url(
        &self,
        file: &str,
        expires_at_ms: u64,
    ) -> Result<String, TransferError> {
        let signature = self.inner.files.sign_link(file, expires_at_ms)?;
        let path = FileService::signed_path(file, expires_at_ms, &signature);
        Ok(format!("{}{path}", self.inner.public_url))
    }

    pub(crate) fn send_downlink(&self, device: &Device, message: &DownlinkMessage<'_>) {
        if let Some(messenger) = self.inner.messenger.get() {
            messenger.send(device, message);
        }
    }

    /// A device has reported how far its installation is. Never blocks.
    pub fn report(&self, device: DeviceNo, kind: FirmwareType, report: InstallReport) {
        self.inner.target_queue.push_report(device, kind, report);
    }

    /// What is known about the target of a device; `None`: it has had none.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn install(
        &self,
        device: DeviceNo,
        kind: FirmwareType,
    ) -> Result<Option<InstallRecord>, StoreError> {
        self.inner.installs.get(device, kind)
    }

    /// Bytes of the image of a package. The range must be within it.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read_chunk(
        &self,
        package: &FirmwarePackage,
        offset: u64,
        len: u64,
        transport: ChunkTransport,
    ) -> Result<Bytes, TransferError> {
        let chunk = self.inner.chunks.read(&package.file, offset, len)?;
        self.inner.metrics.count_chunk(transport, len);
        Ok(chunk)
    }

    /// Largest chunk in bytes.
    #[must_use]
    pub fn max_chunk_bytes(&self) -> u64 {
        self.inner.max_chunk_bytes
    }

    #[must_use]
    pub fn metric_families(&self) -> Vec<MetricFamily> {
        let inner = &self.inner;
        let (cache, dropped) = (inner.chunks.stats(), inner.chunk_queue.dropped());
        let campaigns = inner.campaigns.totals();
        let mut families = inner.metrics.families(cache, dropped, &campaigns);
        if inner.is_in_cluster {
            families.push(MetricFamily::gauge(
                "firmware_missing_images",
                "Images of firmware packages that this node has not copied from another node yet.",
                inner.images.count() as f64,
            ));
        }
        families
    }

    pub(crate) fn metrics(&self) -> &FirmwareMetrics {
        &self.inner.metrics
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    pub(crate) fn installs(&self) -> &InstallTable {
        &self.inner.installs
    }

    pub(crate) fn chunk_queue(&self) -> &ChunkQueue {
        &self.inner.chunk_queue
    }

    pub(crate) fn target_queue(&self) -> &TargetQueue {
        &self.inner.target_queue
    }

    /// Converts the JSON of a package to its stored form: verifies its image and its signature. Reads the whole image.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn prepare_package(
        &self,
        input: &Value,
        current: Option<&Value>,
    ) -> Result<FirmwareDefinition, DefinitionError> {
        let mut package = FirmwareDefinition::read(input)?;
        if let Some(current) = current.and_then(|value| FirmwareDefinition::read(value).ok()) {
            package.check_unchanged(&current)?;
        }
        self.fetch_image(&package.file, &package.namespace)?;
        verify_image(&mut package, &self.inner.files, &self.inner.keys)?;
        Ok(package)
    }

    /// Checks an assignment.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn prepare_assignment(
        &self,
        input: &Value,
    ) -> Result<AssignmentDefinition, DefinitionError> {
        let assignment = AssignmentDefinition::read(input)?;
        let package = self.package(&assignment.package);
        let package = package.filter(|package| package.namespace == assignment.namespace);
        let Some(package) = package else {
            let detail = format!(
                "there is no firmware package {:?} in the namespace {:?}; create it first",
                assignment.package, assignment.namespace
            );
            return Err(DefinitionError::new("package", detail));
        };
        let wrong_product = |field: &str, whose: &str| {
            let detail = format!(
                "the package {:?} is for {whose} {:?}",
                package.id, package.product
            );
            Err(DefinitionError::new(field, detail))
        };
        match assignment.target()? {
            AssignmentTarget::Product(product) if product != package.product => {
                wrong_product("product", "the product")
            }
            AssignmentTarget::Device(id) => {
                let device = self.inner.registry.device(&id).map_err(|error| {
                    DefinitionError::new("device", format!("it cannot be read now: {error}"))
                })?;
                let device = device.filter(|it| it.is_in_namespace(&assignment.namespace));
                match device {
                    None => Err(DefinitionError::new(
                        "device",
                        format!("there is no device {id:?}; create it first"),
                    )),
                    Some(device) if device.product.id().as_str() != package.product => {
                        wrong_product("device", "devices of the product")
                    }
                    Some(_) => Ok(assignment),
                }
            }
            _ => Ok(assignment),
        }
    }

    /// Checks that no other package of this type is assigned to the same target.
    ///
    /// # Errors
    /// Names the other assignment.
    pub fn check_assignment_is_unique(
        &self,
        id: &str,
        stored: &Value,
    ) -> Result<(), DefinitionError> {
        let assignment = AssignmentDefinition::read(stored)?;
        let catalog = self.inner.read_catalog();
        let Some(other) = catalog.other_assignment(id, &assignment) else {
            return Ok(());
        };
        let target = assignment.target()?.describe();
        let detail = format!("{target} has the assignment {other:?} already; change that one");
        Err(DefinitionError::new("package", detail))
    }

    #[must_use]
    pub fn package(&self, id: &str) -> Option<Arc<FirmwarePackage>> {
        self.inner.read_catalog().package(id).cloned()
    }

    /// The package of this type that a device is to install. A package that a campaign has assigned to it overrides all assignments.
    #[must_use]
    pub fn assigned(&self, device: &Device, kind: FirmwareType) -> Option<AssignedPackage> {
        let campaign = match self.inner.sharing() {
            Some(sharing) => sharing.target(device.no, kind).map(|target| {
                let id = target.attempt.campaign;
                (id, target.package, Some(target.attempt))
            }),
            None => {
                let campaign = self.inner.campaigns.target(device.no, kind);
                campaign.map(|(id, package)| (id, package, None))
            }
        };
        let catalog = self.inner.read_catalog();
        let package = campaign
            .and_then(|(id, package, attempt)| Some((id, catalog.package(&package)?, attempt)));
        let product = device.product.id().as_str();
        match package.filter(|(_, package, _)| package.product == product) {
            Some((id, package, attempt)) => Some(AssignedPackage {
                package: package.clone(),
                target: AssignmentTarget::Campaign(id),
                attempt,
            }),
            None => catalog.assigned(device, kind),
        }
    }

    fn examine_all(&self, devices: Vec<DeviceNo>) {
        for no in devices {
            self.inner.target_queue.push_device(no);
        }
    }

    /// Passes a changed record to the campaign of the device.
    pub(crate) fn record_changed(
        &self,
        device: DeviceNo,
        kind: FirmwareType,
        record: &InstallRecord,
    ) {
        self.inner.campaigns.record(device, kind, record, now_ms());
    }
}

/// A device, or all devices of a product.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum AffectedTarget {
    Product(String),
    Device(String),
}

impl FirmwareInner {
    fn read_catalog(&self) -> std::sync::RwLockReadGuard<'_, Catalog> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_catalog(&self) -> std::sync::RwLockWriteGuard<'_, Catalog> {
        self.catalog.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records that all nodes of the cluster have; `None` outside a cluster.
    pub(crate) fn sharing(&self) -> Option<&Sharing> {
        self.shared.get().map(|sharing| &**sharing)
    }

    /// Changes shared records. What fails is made up for by the next start.
    pub(crate) fn share_change<E: std::fmt::Display>(
        &self,
        change: impl FnOnce(&Sharing) -> Result<(), E>,
    ) {
        if let Some(sharing) = self.sharing()
            && let Err(error) = change(sharing)
        {
            tracing::error!(%error, "storing what other nodes are told about firmware failed");
        }
    }

    /// In a cluster, a device that was offline may have to be told that its package is gone.
    pub(crate) fn update_use(&self) {
        let has_records = || match self.sharing() {
            Some(_) => self.installs.has_any().unwrap_or(true),
            None => false,
        };
        let is_in_use = !self.read_catalog().is_empty() || has_records();
        self.is_in_use.store(is_in_use, Relaxed);
    }

    fn push_device(&self, device: &Device) {
        if self.is_in_use.load(Relaxed)
            && self
                .read_catalog()
                .uses_product(device.product.id().as_str())
        {
            self.target_queue.push_device(device.no);
        }
    }

    /// Applies a change, and examines the devices that it may concern.
    fn follow(&self, kind: &str, id: &str, value: Option<&Value>) {
        let mut affected = self.affected(kind, id);
        self.apply(kind, id, value);
        affected.extend(self.affected(kind, id));
        affected.sort();
        affected.dedup();
        for target in affected {
            match target {
                AffectedTarget::Product(product) => self.target_queue.push_product(&product),
                AffectedTarget::Device(id) => match self.registry.device(&id) {
                    Ok(device) => {
                        device
                            .iter()
                            .for_each(|device| self.target_queue.push_device(device.no));
                    }
                    Err(error) => {
                        tracing::error!(device = id, %error, "reading a device failed; it is notified of its firmware when it connects");
                    }
                },
            }
        }
    }

    /// Devices whose targets depend on an object.
    fn affected(&self, kind: &str, id: &str) -> Vec<AffectedTarget> {
        let catalog = self.read_catalog();
        match kind {
            KIND if catalog.is_assigned(id) => {
                let package = catalog.package(id).into_iter();
                package
                    .map(|package| AffectedTarget::Product(package.product.clone()))
                    .collect()
            }
            KIND => Vec::new(),
            ASSIGNMENT_KIND => {
                let Some(assignment) = catalog.assignment(id) else {
                    return Vec::new();
                };
                let package = catalog.package(&assignment.package);
                match (&assignment.device, package) {
                    (Some(device), _) => vec![AffectedTarget::Device(device.clone())],
                    (None, Some(package)) => vec![AffectedTarget::Product(package.product.clone())],
                    (None, None) => Vec::new(),
                }
            }
            _ => {
                let products = catalog.products_of_group(id).into_iter();
                products.map(AffectedTarget::Product).collect()
            }
        }
    }

    /// Applies the stored form of an object; `None`: it was deleted.
    fn apply(&self, kind: &str, id: &str, value: Option<&Value>) {
        let invalid = |error: &dyn std::fmt::Display| {
            tracing::error!(kind, id, %error, "a stored object is invalid; ignored");
        };
        match kind {
            KIND => {
                let package = value.and_then(|value| {
                    let read = FirmwarePackage::from_stored(id, value);
                    read.inspect_err(|error| invalid(error)).ok()
                });
                self.apply_package(id, package);
            }
            ASSIGNMENT_KIND => {
                let assignment = value.and_then(|value| {
                    let read = AssignmentDefinition::read(value);
                    read.inspect_err(|error| invalid(error)).ok()
                });
                self.write_catalog().set_assignment(id, assignment);
            }
            _ => {
                let group = value.and_then(|value| {
                    let read = GroupDefinition::read(value);
                    read.inspect_err(|error| invalid(error)).ok()
                });
                self.write_catalog().set_group(id, group);
            }
        }
    }

    /// Changes a package, and keeps its file as long as it exists.
    fn apply_package(&self, id: &str, package: Option<FirmwarePackage>) {
        let holder = FirmwarePackage::holder(id);
        let file = package.as_ref().map(|package| package.file.clone());
        let held = match &file {
            Some(file) => self.files.hold(file, &holder),
            None => Ok(()),
        };
        let missed = package.clone().filter(|_| {
            let is_absent = |error: &TransferError| error.kind == TransferErrorKind::NotFound;
            self.is_in_cluster && held.as_ref().is_err_and(is_absent)
        });
        let before = self.write_catalog().set_package(id, package);
        self.update_use();
        match (missed, held) {
            (Some(missed), _) => self.images.add(&missed),
            (None, Err(error)) => {
                tracing::error!(package = id, file, %error, "the image of a firmware package cannot be kept; devices cannot download it");
            }
            (None, Ok(())) => {}
        }
        if let Some(before) = before.filter(|before| Some(&before.file) != file.as_ref()) {
            let released = match self.images.remove_package(&before.file, id) {
                true => self.files.discard_copy(&before.file),
                false => self.files.release(&before.file, &holder),
            };
            if let Err(error) = released {
                tracing::error!(package = id, file = before.file, %error, "the file of a deleted firmware package cannot be released");
            }
        }
    }
}
