//! Rule chains, device groups and pull sources: validation of these objects, and their queries by
//! the API.

use api::{
    BackendFuture, BackendObjectKind, DeviceBackendError, DevicePage, FleetBackend,
    ObjectValidationError, PullTestResult,
};
use devices::chain;
use devices::group;
use devices::pull::{self, PullScheduler};
use devices::retention::Retention;
use devices::{DeviceNo, Registry};
use serde_json::{Value, json};
use store::Objects;

use super::node_devices::{NodeDevices, inline_schema, to_backend_error};
use super::object_references::ObjectReferences;

#[derive(Clone)]
pub(super) struct FleetService {
    pub(super) objects: Objects,
    pub(super) devices: NodeDevices,
    pub(super) retention: Retention,
    pub(super) pulls: PullScheduler,
    pub(super) uses: ObjectReferences,
}

/// A kind of objects validated here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FleetKind {
    Chain,
    Group,
    Pull,
}

impl FleetKind {
    pub(super) fn from_object_kind(kind: BackendObjectKind) -> Option<Self> {
        match kind {
            BackendObjectKind::Chain => Some(Self::Chain),
            BackendObjectKind::DeviceGroup => Some(Self::Group),
            BackendObjectKind::PullSource => Some(Self::Pull),
            _ => None,
        }
    }

    /// The kind's name in the store, and the maximum number of objects.
    fn storage_kind_and_limit(self) -> (&'static str, usize) {
        match self {
            Self::Chain => (chain::KIND, chain::MAX_CHAINS),
            Self::Group => (group::KIND, group::MAX_GROUPS),
            Self::Pull => (pull::KIND, pull::MAX_SOURCES),
        }
    }

    pub(super) fn schemas(self) -> (Value, Value) {
        let schema = match self {
            Self::Chain => inline_schema::<chain::ChainDefinition>(),
            Self::Group => inline_schema::<group::GroupDefinition>(),
            Self::Pull => {
                return pull::PullSourceDefinition::schemas(inline_schema::<
                    pull::PullSourceDefinition,
                >());
            }
        };
        (schema.clone(), schema)
    }

    pub(super) fn object_view(self, stored: &Value) -> Value {
        match self {
            Self::Pull => pull::redact(stored),
            Self::Chain | Self::Group => stored.clone(),
        }
    }
}

fn validation_error(field: impl Into<String>, detail: impl Into<String>) -> ObjectValidationError {
    ObjectValidationError {
        field: field.into(),
        detail: detail.into(),
    }
}

impl FleetService {
    fn registry(&self) -> &Registry {
        &self.devices.registry
    }

    /// Converts the JSON of a request to the stored form.
    pub(super) fn prepare(
        &self,
        kind: FleetKind,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, ObjectValidationError> {
        if current.is_none() {
            let (name, most) = kind.storage_kind_and_limit();
            self.check_capacity(name, most)?;
        }
        let stored = match kind {
            FleetKind::Chain => {
                let read = chain::ChainDefinition::read(&input);
                let (chain, _) = read
                    .map_err(|error| validation_error(error.field, format!("{}.", error.detail)))?;
                serde_json::to_value(chain)
            }
            FleetKind::Group => {
                let read = group::GroupDefinition::read(&input);
                let group = read
                    .map_err(|error| validation_error(error.field, format!("{}.", error.detail)))?;
                serde_json::to_value(group)
            }
            FleetKind::Pull => {
                let accepted = PullScheduler::restore_secrets(input, current);
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
        let (mut count, mut after): (usize, Option<String>) = (0, None);
        loop {
            let page = self.objects.list(name, after.as_deref(), 1000);
            let page = page.map_err(|error| validation_error("", format!("{error}.")))?;
            count += page.len();
            match page.last() {
                Some(last) if page.len() == 1000 => after = Some(last.id.clone()),
                _ if count < most => return Ok(()),
                _ => {
                    return Err(validation_error(
                        "",
                        format!("The limit of {most} objects is reached."),
                    ));
                }
            }
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

    fn load_group(&self, id: &str) -> Result<group::GroupDefinition, DeviceBackendError> {
        let unavailable =
            |error: &dyn std::fmt::Display| DeviceBackendError::Unavailable(format!("{error}."));
        if let Some(declared) = self.uses.find_declared(group::KIND, id) {
            return group::GroupDefinition::read(declared).map_err(|error| unavailable(&error));
        }
        let object = self.objects.get(group::KIND, id);
        let object = object
            .map_err(|error| unavailable(&error))?
            .ok_or_else(|| {
                DeviceBackendError::NotFound(format!("There is no group of devices {id:?}."))
            })?;
        group::GroupDefinition::read(&object.value).map_err(|error| unavailable(&error))
    }
}

impl FleetBackend for FleetService {
    fn group_devices(
        &self,
        group: &str,
        from: u32,
        limit: usize,
    ) -> Result<DevicePage, DeviceBackendError> {
        let group = self.load_group(group)?;
        let page = group.members(self.registry(), DeviceNo(from), limit);
        let page = page.map_err(to_backend_error)?;
        let rows = page
            .devices
            .iter()
            .map(|device| self.devices.device_json(device));
        Ok(DevicePage {
            rows: rows.collect::<Result<_, _>>().map_err(to_backend_error)?,
            next: page.next.map(|no| no.0),
        })
    }

    fn group_counts(&self, group: &str) -> Result<Value, DeviceBackendError> {
        const MOST: usize = 1_000_000;
        let definition = self.load_group(group)?;
        let (mut devices, mut online, mut from) = (0, 0, DeviceNo(0));
        let is_cut = loop {
            let page = definition.members(self.registry(), from, 1000);
            let page = page.map_err(to_backend_error)?;
            devices += page.devices.len();
            for device in &page.devices {
                let presence = self
                    .devices
                    .states
                    .presence(device.no)
                    .map_err(to_backend_error)?;
                online += usize::from(presence.state == devices::DeviceState::Online);
            }
            match page.next {
                None => break false,
                Some(_) if devices >= MOST => break true,
                Some(next) => from = next,
            }
        };
        Ok(json!({"group": group, "devices": devices, "online": online, "is_cut": is_cut}))
    }

    fn group_members(&self, group: &str) -> Result<Vec<String>, DeviceBackendError> {
        let definition = self.load_group(group)?;
        let all = definition.all_members(self.registry(), group::MAX_MEMBERS);
        let (all, are_more) = all.map_err(to_backend_error)?;
        if are_more {
            return Err(DeviceBackendError::Field {
                field: "group".to_owned(),
                detail: format!(
                    "the group {group:?} has more than {} devices, which is the limit of a query",
                    group::MAX_MEMBERS
                ),
            });
        }
        Ok(all.iter().map(|device| device.id.to_string()).collect())
    }

    fn pull_source_statuses(&self) -> Vec<Value> {
        self.pulls
            .statuses()
            .iter()
            .map(|status| json!(status))
            .collect()
    }

    fn pull_source_status(&self, name: &str) -> Option<Value> {
        self.pulls.status(name).map(|status| json!(status))
    }

    fn test_pull_source<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<PullTestResult>> {
        Box::pin(self.pulls.test(name))
    }
}
