//! Rule chains, device groups, pull sources and namespaces: validation of these objects.

use api::{BackendObjectKind, ObjectValidationError};
use devices::chain;
use devices::group;
use devices::pull::{self, PullScheduler};
use devices::retention::Retention;
use namespaces::NamespaceDefinition;
use serde_json::Value;
use store::Objects;

use super::node_devices::inline_schema;

#[derive(Clone)]
pub(super) struct FleetService {
    pub(super) objects: Objects,
    pub(super) retention: Retention,
}

/// A kind of objects validated here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FleetKind {
    Chain,
    Group,
    Pull,
    Namespace,
}

impl FleetKind {
    pub(super) fn from_object_kind(kind: BackendObjectKind) -> Option<Self> {
        match kind {
            BackendObjectKind::RuleChain => Some(Self::Chain),
            BackendObjectKind::DeviceGroup => Some(Self::Group),
            BackendObjectKind::PullSource => Some(Self::Pull),
            BackendObjectKind::Namespace => Some(Self::Namespace),
            _ => None,
        }
    }

    /// The kind's name in the store, and the maximum number of objects.
    fn storage_kind_and_limit(self) -> (&'static str, usize) {
        match self {
            Self::Chain => (chain::KIND, chain::MAX_CHAINS),
            Self::Group => (group::KIND, group::MAX_GROUPS),
            Self::Pull => (pull::KIND, pull::MAX_SOURCES),
            Self::Namespace => (namespaces::KIND, namespaces::MAX_NAMESPACES),
        }
    }

    pub(super) fn schemas(self) -> (Value, Value) {
        let schema = match self {
            Self::Chain => inline_schema::<chain::ChainDefinition>(),
            Self::Group => inline_schema::<group::GroupDefinition>(),
            Self::Namespace => inline_schema::<NamespaceDefinition>(),
            Self::Pull => inline_schema::<pull::PullSourceDefinition>(),
        };
        secret::written_and_shown_schemas(schema)
    }
}

fn validation_error(field: impl Into<String>, detail: impl Into<String>) -> ObjectValidationError {
    ObjectValidationError {
        field: field.into(),
        detail: detail.into(),
    }
}

impl FleetService {
    /// Converts the JSON of a request to the stored form.
    pub(super) fn prepare(
        &self,
        kind: FleetKind,
        id: &str,
        input: &Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError> {
        if current.is_none() {
            let (name, most) = kind.storage_kind_and_limit();
            self.check_capacity(name, most)?;
        }
        let stored = match kind {
            FleetKind::Chain => {
                let read = chain::ChainDefinition::read(input);
                let (chain, _) = read
                    .map_err(|error| validation_error(error.field, format!("{}.", error.detail)))?;
                serde_json::to_value(chain)
            }
            FleetKind::Group => {
                let read = group::GroupDefinition::read(input);
                let group = read
                    .map_err(|error| validation_error(error.field, format!("{}.", error.detail)))?;
                serde_json::to_value(group)
            }
            FleetKind::Namespace => {
                let read = NamespaceDefinition::read(id, input);
                let namespace = read
                    .map_err(|error| validation_error(error.field, format!("{}.", error.detail)))?;
                serde_json::to_value(namespace)
            }
            FleetKind::Pull => {
                let accepted = PullScheduler::stored_form(input);
                return accepted
                    .map_err(|error| validation_error(error.field, format!("{}.", error.detail)));
            }
        };
        stored
            .map_err(|error| validation_error("", format!("The object cannot be stored: {error}.")))
    }

    /// Checks that the limit of a kind allows one more object.
    pub(super) fn check_capacity(
        &self,
        name: &str,
        most: usize,
    ) -> Result<(), ObjectValidationError> {
        let mut count = 0_usize;
        let read = self.objects.for_each(name, |_| count += 1);
        read.map_err(|error| validation_error("", format!("{error}.")))?;
        match count < most {
            true => Ok(()),
            false => Err(validation_error(
                "",
                format!("The limit of {most} objects is reached."),
            )),
        }
    }

    /// Checks that the number of different retention times allows this one.
    pub(super) fn check_retention(
        &self,
        id: &str,
        product: &Value,
    ) -> Result<(), ObjectValidationError> {
        let Ok(product) = devices::Product::read(id, product, 0) else {
            // An invalid product was rejected before.
            return Ok(());
        };
        let checked = self.retention.check(&product);
        checked.map_err(|error| validation_error(error.field, format!("{}.", error.message)))
    }
}
