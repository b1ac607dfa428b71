//! What belongs to devices beside the registry: rule chains, groups, pull sources. Whether such objects may be written, and what the API asks of them.

use api::{Asking, DevicePage, DeviceProblem, FleetTools, Invalid, Pulled, RuledKind};
use devices::chain;
use devices::group;
use devices::pull::{self, Pulls};
use devices::retention::Retention;
use devices::{DeviceNo, Registry};
use serde_json::{Value, json};
use store::Objects;

use super::devices::{Devices, plain_schema, problem};
use super::uses::Uses;

#[derive(Clone)]
pub(super) struct Fleet {
    pub(super) objects: Objects,
    pub(super) devices: Devices,
    pub(super) retention: Retention,
    pub(super) pulls: Pulls,
    pub(super) uses: Uses,
}

/// A kind that is understood here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FleetKind {
    Chain,
    Group,
    Pull,
}

impl FleetKind {
    pub(super) fn of(kind: RuledKind) -> Option<Self> {
        match kind {
            RuledKind::Chain => Some(Self::Chain),
            RuledKind::DeviceGroup => Some(Self::Group),
            RuledKind::PullSource => Some(Self::Pull),
            _ => None,
        }
    }

    /// Its name in the store, and how many there may be.
    fn bounds(self) -> (&'static str, usize) {
        match self {
            Self::Chain => (chain::KIND, chain::MAX_CHAINS),
            Self::Group => (group::KIND, group::MAX_GROUPS),
            Self::Pull => (pull::KIND, pull::MAX_SOURCES),
        }
    }

    pub(super) fn schemas(self) -> (Value, Value) {
        let schema = match self {
            Self::Chain => plain_schema::<chain::Definition>(),
            Self::Group => plain_schema::<group::Definition>(),
            Self::Pull => return pull::Definition::schemas(plain_schema::<pull::Definition>()),
        };
        (schema.clone(), schema)
    }

    pub(super) fn show(self, stored: &Value) -> Value {
        match self {
            Self::Pull => pull::shown(stored),
            Self::Chain | Self::Group => stored.clone(),
        }
    }
}

fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Invalid {
    Invalid {
        field: field.into(),
        detail: detail.into(),
    }
}

impl Fleet {
    fn registry(&self) -> &Registry {
        &self.devices.registry
    }

    /// From what a client wrote to what is stored.
    pub(super) fn accept(
        &self,
        kind: FleetKind,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, Invalid> {
        if current.is_none() {
            let (name, most) = kind.bounds();
            self.check_room(name, most)?;
        }
        let stored = match kind {
            FleetKind::Chain => {
                let read = chain::Definition::read(&input);
                let (chain, _) =
                    read.map_err(|error| invalid(error.field, format!("{}.", error.detail)))?;
                serde_json::to_value(chain)
            }
            FleetKind::Group => {
                let read = group::Definition::read(&input);
                let group =
                    read.map_err(|error| invalid(error.field, format!("{}.", error.detail)))?;
                serde_json::to_value(group)
            }
            FleetKind::Pull => {
                let accepted = Pulls::accept(input, current);
                return accepted
                    .map_err(|error| invalid(error.field, format!("{}.", error.detail)));
            }
        };
        stored.map_err(|error| invalid("", format!("It cannot be stored: {error}.")))
    }

    /// Whether there may be one more of a kind.
    pub(super) fn check_room(&self, name: &str, most: usize) -> Result<(), Invalid> {
        let (mut count, mut after): (usize, Option<String>) = (0, None);
        loop {
            let page = self.objects.list(name, after.as_deref(), 1000);
            let page = page.map_err(|error| invalid("", format!("{error}.")))?;
            count += page.len();
            match page.last() {
                Some(last) if page.len() == 1000 => after = Some(last.id.clone()),
                _ if count < most => return Ok(()),
                _ => {
                    return Err(invalid(
                        "",
                        format!("There are {most} already, which are the most."),
                    ));
                }
            }
        }
    }

    /// Whether another product may say this of how long its telemetry stays.
    pub(super) fn check_retention(&self, id: &str, product: &Value) -> Result<(), Invalid> {
        let Ok(product) = devices::Product::read(id, product, 0) else {
            // It was read before.
            return Ok(());
        };
        let checked = self.retention.check(&product);
        checked.map_err(|error| invalid(error.field, format!("{}.", error.message)))
    }

    fn group(&self, id: &str) -> Result<group::Definition, DeviceProblem> {
        let unavailable =
            |error: &dyn std::fmt::Display| DeviceProblem::Unavailable(format!("{error}."));
        if let Some(declared) = self.uses.declared(group::KIND, id) {
            return group::Definition::read(declared).map_err(|error| unavailable(&error));
        }
        let object = self.objects.get(group::KIND, id);
        let object = object
            .map_err(|error| unavailable(&error))?
            .ok_or_else(|| {
                DeviceProblem::NotFound(format!("There is no group of devices {id:?}."))
            })?;
        group::Definition::read(&object.value).map_err(|error| unavailable(&error))
    }
}

impl FleetTools for Fleet {
    fn group_devices(
        &self,
        group: &str,
        from: u32,
        limit: usize,
    ) -> Result<DevicePage, DeviceProblem> {
        let group = self.group(group)?;
        let page = group.members(self.registry(), DeviceNo(from), limit);
        let page = page.map_err(problem)?;
        let rows = page
            .devices
            .iter()
            .map(|device| self.devices.value_of(device));
        Ok(DevicePage {
            rows: rows.collect::<Result<_, _>>().map_err(problem)?,
            next: page.next.map(|no| no.0),
        })
    }

    fn group_counts(&self, group: &str) -> Result<Value, DeviceProblem> {
        const MOST: usize = 1_000_000;
        let definition = self.group(group)?;
        let (mut devices, mut online, mut from) = (0, 0, DeviceNo(0));
        let is_cut = loop {
            let page = definition.members(self.registry(), from, 1000);
            let page = page.map_err(problem)?;
            devices += page.devices.len();
            for device in &page.devices {
                let presence = self.devices.states.presence(device.no).map_err(problem)?;
                online += usize::from(presence.state == devices::State::Online);
            }
            match page.next {
                None => break false,
                Some(_) if devices >= MOST => break true,
                Some(next) => from = next,
            }
        };
        Ok(json!({"group": group, "devices": devices, "online": online, "is_cut": is_cut}))
    }

    fn group_members(&self, group: &str) -> Result<Vec<String>, DeviceProblem> {
        let definition = self.group(group)?;
        let all = definition.all(self.registry(), group::MAX_MEMBERS);
        let (all, are_more) = all.map_err(problem)?;
        if are_more {
            return Err(DeviceProblem::Field {
                field: "group".to_owned(),
                detail: format!(
                    "the group {group:?} has more than {} devices, which are the most of one question",
                    group::MAX_MEMBERS
                ),
            });
        }
        Ok(all.iter().map(|device| device.id.to_string()).collect())
    }

    fn pull_sources(&self) -> Vec<Value> {
        self.pulls
            .statuses()
            .iter()
            .map(|status| json!(status))
            .collect()
    }

    fn pull_source(&self, name: &str) -> Option<Value> {
        self.pulls.status(name).map(|status| json!(status))
    }

    fn test_pull_source<'a>(&'a self, name: &'a str) -> Asking<'a, Option<Pulled>> {
        Box::pin(self.pulls.test(name))
    }
}
