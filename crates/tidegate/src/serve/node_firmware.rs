//! Firmware of the node: opens it, and validates its objects.

use api::{BackendObjectKind, ObjectValidationError};
use devices::Registry;
use firmware::{
    AssignmentDefinition, DefinitionError, FirmwareDefinition, FirmwareService, TrustSettings,
};
use serde_json::Value;
use store::Objects;
use transfer::FileService;

use super::node_devices::inline_schema;

/// A kind of objects that is validated here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirmwareKind {
    Package,
    Assignment,
}

impl FirmwareKind {
    pub(super) fn from_object_kind(kind: BackendObjectKind) -> Option<Self> {
        match kind {
            BackendObjectKind::Firmware => Some(Self::Package),
            BackendObjectKind::FirmwareAssignment => Some(Self::Assignment),
            _ => None,
        }
    }

    /// The kind's name in the store, and the maximum number of objects.
    pub(super) fn storage_kind_and_limit(self) -> (&'static str, usize) {
        match self {
            Self::Package => (firmware::KIND, firmware::MAX_PACKAGES),
            Self::Assignment => (firmware::ASSIGNMENT_KIND, firmware::MAX_ASSIGNMENTS),
        }
    }

    pub(super) fn schemas(self) -> (Value, Value) {
        let schema = match self {
            Self::Package => inline_schema::<FirmwareDefinition>(),
            Self::Assignment => inline_schema::<AssignmentDefinition>(),
        };
        secret::written_and_shown_schemas(schema)
    }
}

/// The firmware of the node.
#[derive(Clone)]
pub(super) struct NodeFirmware {
    pub(super) service: FirmwareService,
}

fn to_validation_error(error: DefinitionError) -> ObjectValidationError {
    ObjectValidationError {
        field: error.field,
        detail: format!("{}.", error.detail),
    }
}

impl NodeFirmware {
    /// Reads the packages of the store.
    pub(super) fn open(
        objects: &Objects,
        registry: Registry,
        files: FileService,
        trust: &TrustSettings,
        declared_groups: &[(String, Value)],
    ) -> anyhow::Result<Self> {
        let service = FirmwareService::open(objects, registry, files, trust, declared_groups)?;
        Ok(Self { service })
    }

    /// Converts the JSON of a request to the stored form.
    pub(super) fn prepare(
        &self,
        kind: FirmwareKind,
        input: &Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError> {
        let stored = match kind {
            FirmwareKind::Package => {
                let package = self.service.prepare_package(input, current);
                serde_json::to_value(package.map_err(to_validation_error)?)
            }
            FirmwareKind::Assignment => {
                let assignment = self.service.prepare_assignment(input);
                serde_json::to_value(assignment.map_err(to_validation_error)?)
            }
        };
        stored.map_err(|error| ObjectValidationError {
            field: String::new(),
            detail: format!("The object cannot be stored: {error}."),
        })
    }

    pub(super) fn check_assignment_is_unique(
        &self,
        id: &str,
        stored: &Value,
    ) -> Result<(), ObjectValidationError> {
        let checked = self.service.check_assignment_is_unique(id, stored);
        checked.map_err(to_validation_error)
    }
}
