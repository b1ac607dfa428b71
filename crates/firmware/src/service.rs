//! Validates packages and assignments, and follows their changes in the store.

use std::sync::{Arc, PoisonError, RwLock};

use devices::group::{self, GroupDefinition};
use devices::{Device, Registry};
use serde_json::Value;
use store::{Objects, StoreError};
use transfer::FileService;

use crate::assignment::{ASSIGNMENT_KIND, AssignmentDefinition, AssignmentTarget};
use crate::catalog::{AssignedPackage, Catalog};
use crate::definition_error::DefinitionError;
use crate::image::verify_image;
use crate::package::{FirmwareDefinition, FirmwarePackage, FirmwareType, KIND};
use crate::signature::{TrustError, TrustSettings, TrustedKeys};

/// Why the firmware of a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum FirmwareOpenError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("cannot read the firmware packages of the store: {0}")]
    Store(#[from] StoreError),
}

/// The firmware packages of a node. Clones share them.
#[derive(Clone)]
pub struct FirmwareService {
    inner: Arc<FirmwareInner>,
}

struct FirmwareInner {
    registry: Registry,
    files: FileService,
    keys: TrustedKeys,
    catalog: RwLock<Catalog>,
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
        trust: &TrustSettings,
        declared_groups: &[(String, Value)],
    ) -> Result<Self, FirmwareOpenError> {
        let inner = Arc::new(FirmwareInner {
            registry,
            files,
            keys: TrustedKeys::open(trust)?,
            catalog: RwLock::default(),
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
                    inner.apply(&change.kind, &change.id, value.as_ref());
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
        Ok(Self { inner })
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

    /// The package of this type that a device is to install.
    #[must_use]
    pub fn assigned(&self, device: &Device, kind: FirmwareType) -> Option<AssignedPackage> {
        self.inner.read_catalog().assigned(device, kind)
    }
}

impl FirmwareInner {
    fn read_catalog(&self) -> std::sync::RwLockReadGuard<'_, Catalog> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_catalog(&self) -> std::sync::RwLockWriteGuard<'_, Catalog> {
        self.catalog.write().unwrap_or_else(PoisonError::into_inner)
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
        if let Some(file) = &file
            && let Err(error) = self.files.hold(file, &holder)
        {
            tracing::error!(package = id, file, %error, "the image of a firmware package cannot be kept; devices cannot download it");
        }
        let before = self.write_catalog().set_package(id, package);
        if let Some(before) = before.filter(|before| Some(&before.file) != file.as_ref())
            && let Err(error) = self.files.release(&before.file, &holder)
        {
            tracing::error!(package = id, file = before.file, %error, "the file of a deleted firmware package cannot be released");
        }
    }
}
