//! Products and devices of a simulation on a node: created before the run, removed after it.
//!
//! Nothing that exists is changed. Products and devices that a simulation has created carry [`MARK`], and only those are removed.

mod removal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use anyhow::{bail, ensure};
use load_client::node_api::NodeApi;
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use crate::creation_mark::{MARK, TAG, is_marked, marked};
use crate::definition::{
    FleetTransport, ObjectDefinition, ProductDefinition, SimulationDefinition,
};
use crate::device_history::DeviceHistory;
use crate::firmware_setup::FirmwareSetup;
use crate::plan::{FleetPlan, SimulationPlan};
use crate::setup_mode::SetupMode;
use load_client::interrupt::Interrupt;

/// Devices of one request.
const DEVICES_PER_REQUEST: u32 = 5000;

/// An id of the simulation belongs to an object that no simulation has created.
#[derive(Debug)]
pub struct ForeignObjectError {
    title: String,
}

impl fmt::Display for ForeignObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} exists and was not created by a simulation; rename or delete it first",
            self.title
        )
    }
}

impl std::error::Error for ForeignObjectError {}

/// What a run has created.
#[derive(Debug, Default)]
pub(crate) struct CreatedObjects {
    products: Vec<String>,
    /// Number of objects of the file, of which the first ones were created.
    objects: usize,
    /// Products, relay endpoints and other objects that did not exist.
    pub(crate) new_objects: usize,
    /// Relay endpoints.
    endpoints: Vec<String>,
    /// Number of the fleet, and positions in it.
    devices: Vec<(usize, Range<u32>)>,
    /// Names of firmware.
    firmware: Vec<String>,
}

impl CreatedObjects {
    /// Adds devices at these positions of a fleet.
    fn add_devices(&mut self, number: usize, positions: impl Iterator<Item = u32>) {
        for at in positions {
            match self.devices.last_mut() {
                Some((last, range)) if *last == number && range.end == at => range.end += 1,
                _ => self.devices.push((number, at..at + 1)),
            }
        }
    }
}

/// How far the creation or removal of devices is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetupProgress {
    pub(crate) is_removal: bool,
    pub(crate) done: u64,
    pub(crate) total: u64,
}

/// An object by its path, and the field with the mark.
struct MarkedObject {
    path: String,
    /// Such as `the product `meter``.
    title: String,
    field: &'static str,
}

pub(crate) struct FleetSetup<'a> {
    node: NodeApi,
    plan: &'a SimulationPlan,
    definition: &'a SimulationDefinition,
    interrupt: &'a Interrupt,
    mode: SetupMode,
    progress: &'a (dyn Fn(SetupProgress) + Sync),
}

impl<'a> FleetSetup<'a> {
    /// Whether a run creates anything.
    pub(crate) fn is_needed(definition: &SimulationDefinition) -> bool {
        !definition.object.is_empty() || definition.product.values().any(|product| product.create)
    }

    pub(crate) fn new(
        (plan, definition): (&'a SimulationPlan, &'a SimulationDefinition),
        node: NodeApi,
        interrupt: &'a Interrupt,
        mode: SetupMode,
        progress: &'a (dyn Fn(SetupProgress) + Sync),
    ) -> Self {
        Self {
            node,
            plan,
            definition,
            interrupt,
            mode,
            progress,
        }
    }

    /// Creates everything. What was created before an error is in `created`.
    pub(crate) fn create(&self, created: &mut CreatedObjects) -> anyhow::Result<()> {
        for (name, product) in self.products() {
            let mut body = product.fields.clone();
            let description = marked(body.get("description").unwrap_or(&Value::Null));
            body.insert("description".to_owned(), json!(description));
            let is_new = self.create_object(&product_object(name), &Value::Object(body))?;
            created.new_objects += usize::from(is_new);
            created.products.push(name.clone());
        }
        for (endpoint, fleet) in self.endpoints() {
            let is_new = self.create_object(&endpoint_object(&endpoint), &self.endpoint(fleet))?;
            created.new_objects += usize::from(is_new);
            created.endpoints.push(endpoint);
        }
        for object in &self.definition.object {
            let field = object.kind.description_field();
            let mut body = object.fields.clone();
            let description = marked(body.get(field).unwrap_or(&Value::Null));
            body.insert(field.to_owned(), json!(description));
            let is_new = self.create_object(&configuration_object(object), &Value::Object(body))?;
            created.new_objects += usize::from(is_new);
            created.objects += 1;
        }
        let imported = self.fleets();
        let imported = imported.filter(|(_, fleet)| fleet.transport != FleetTransport::Relay);
        let total = imported.map(|(_, fleet)| u64::from(fleet.count)).sum();
        let mut done = 0;
        for (number, fleet) in self.fleets() {
            if fleet.transport == FleetTransport::Relay {
                // The devices register themselves.
                created.devices.push((number, 0..fleet.count));
                continue;
            }
            let mut from = 0;
            while from < fleet.count && !self.interrupt.is_requested() {
                let to = fleet.count.min(from + DEVICES_PER_REQUEST);
                self.create_devices((number, fleet), from..to, created)?;
                done += u64::from(to - from);
                from = to;
                self.report(false, done, total);
            }
        }
        self.firmware().create(&mut created.firmware)
    }

    /// Creates an object, unless it may exist and an earlier run or another machine has created it. Returns whether it is new.
    fn create_object(&self, object: &MarkedObject, body: &Value) -> anyhow::Result<bool> {
        let is_new = self.node.create(&object.path, body)?;
        let may_exist = self.mode.shares_products || self.mode.keeps;
        if is_new || (may_exist && self.is_created(object)?) {
            return Ok(is_new);
        }
        let title = &object.title;
        match may_exist {
            true => Err(foreign_object(title)),
            false => bail!("{title} exists on the node; {}", self.mode.remedy()),
        }
    }

    fn firmware(&self) -> FirmwareSetup<'_> {
        FirmwareSetup::new(&self.node, self.definition, self.mode)
    }

    fn create_devices(
        &self,
        (number, fleet): (usize, &FleetPlan),
        positions: Range<u32>,
        created: &mut CreatedObjects,
    ) -> anyhow::Result<()> {
        let new = match self.mode.keeps {
            true => self.adopt_devices((number, fleet), positions, created)?,
            false => positions.collect(),
        };
        self.create_new_devices((number, fleet), &new, created)?;
        if fleet.history.is_empty() || new.is_empty() {
            return Ok(());
        }
        DeviceHistory::new(&self.node, self.plan)?.report((number, fleet), &new, self.interrupt)
    }

    /// Gives devices of an earlier run new credentials, and returns the positions of the others.
    fn adopt_devices(
        &self,
        (number, fleet): (usize, &FleetPlan),
        positions: Range<u32>,
        created: &mut CreatedObjects,
    ) -> anyhow::Result<Vec<u32>> {
        let (mut new, mut existing) = (Vec::new(), Vec::new());
        for at in positions {
            let id = fleet.device_id(self.plan.seed, at);
            match self.node.get(&device_path(&id))? {
                None => new.push(at),
                Some(device) if device["tags"][TAG] == MARK => existing.push(at),
                Some(_) => return Err(foreign_object(&format!("the device `{id}`"))),
            }
        }
        if !existing.is_empty() {
            let answer = self.node.post_lines(
                "/api/v1/device-import",
                &self.device_lines(fleet, &existing),
            )?;
            ensure!(
                answer["rejected"] == 0,
                "the node does not change the devices of an earlier run: {}",
                answer["rejections"]
            );
        }
        created.add_devices(number, existing.into_iter());
        Ok(new)
    }

    fn device_lines(&self, fleet: &FleetPlan, positions: &[u32]) -> String {
        let positions = positions.iter();
        positions
            .map(|at| format!("{}\n", self.device(fleet, *at)))
            .collect()
    }

    fn create_new_devices(
        &self,
        (number, fleet): (usize, &FleetPlan),
        positions: &[u32],
        created: &mut CreatedObjects,
    ) -> anyhow::Result<()> {
        if positions.is_empty() {
            return Ok(());
        }
        let imported = self.node.post_lines(
            "/api/v1/device-import?create_only=true",
            &self.device_lines(fleet, positions),
        )?;
        let rejections = imported["rejections"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if imported["rejected"] == 0 {
            created.add_devices(number, positions.iter().copied());
            return Ok(());
        }
        let rejected_lines: Vec<u64> = rejections
            .iter()
            .filter_map(|rejection| rejection["line"].as_u64())
            .collect();
        let is_complete = imported["rejected"].as_u64() == Some(rejected_lines.len() as u64);
        for (line, &at) in (1..).zip(positions).filter(|_| is_complete) {
            if !rejected_lines.contains(&line) {
                created.add_devices(number, std::iter::once(at));
            }
        }
        bail!(
            "the node does not accept {} devices of the fleet `{}`; the first: {}. If they exist, {}",
            imported["rejected"],
            fleet.name,
            rejections.first().unwrap_or(&Value::Null),
            self.mode.remedy()
        )
    }

    /// A relay endpoint as the API has it.
    fn endpoint(&self, fleet: &FleetPlan) -> Value {
        let mut endpoint = json!({"name": MARK, "product": fleet.product});
        if let Some(key) = &fleet.password {
            let key = fleet.identity_text(key, self.plan.seed, fleet.first);
            endpoint["access_key"] = json!(key);
        }
        endpoint
    }

    /// Relay endpoints of products to create, each with a fleet that uses it.
    fn endpoints(&self) -> Vec<(String, &'a FleetPlan)> {
        let mut endpoints: BTreeMap<String, &FleetPlan> = BTreeMap::new();
        for (_, fleet) in self.fleets() {
            let Some(endpoint) = &fleet.endpoint else {
                continue;
            };
            for at in 0..fleet.count {
                let index = fleet.first + at;
                let name = fleet.identity_text(endpoint, self.plan.seed, index);
                endpoints.entry(name).or_insert(fleet);
            }
        }
        endpoints.into_iter().collect()
    }

    /// A device as the API has it.
    fn device(&self, fleet: &FleetPlan, at: u32) -> Value {
        let text = |template| fleet.identity_text(template, self.plan.seed, fleet.first + at);
        let username = fleet.username.as_ref().map(text);
        let password = fleet.password.as_ref().map(text);
        let credentials = match (username, password) {
            _ if let Some(secure) = &fleet.secure => {
                let (id, key) = (text(&secure.id), text(&secure.key));
                json!([{"type": "secure", "secure_id": id, "secure_key": key}])
            }
            (Some(username), Some(password)) => {
                json!([{"type": "password", "username": username, "password": password}])
            }
            (Some(token), None) => json!([{"type": "token", "token": token}]),
            (None, _) => json!([]),
        };
        let mut device = json!({
            "id": text(&fleet.id), "product": fleet.product, "credentials": credentials, "tags": {TAG: MARK},
        });
        if let Some(name) = &fleet.display_name {
            device["name"] = json!(text(name));
        }
        for (name, value) in &fleet.tags {
            device["tags"][name] = json!(text(value));
        }
        if !fleet.child_fleets.is_empty() {
            device["gateway"] = json!(true);
        }
        if let Some(gateway) = &fleet.gateway {
            let gateways = &self.plan.fleets[gateway.fleet];
            let parent = gateways.identity_text(&gateways.id, self.plan.seed, gateway.index_of(at));
            device["parent"] = json!(parent);
            device["credentials"] = json!([]);
        }
        device
    }

    /// Whether a simulation has created the object; `false`: it exists, or was created by others.
    fn is_created(&self, object: &MarkedObject) -> anyhow::Result<bool> {
        let found = self.node.get(&object.path)?;
        Ok(found.is_some_and(|found| is_marked(&found[object.field])))
    }

    /// Products to create.
    fn products(&self) -> impl Iterator<Item = (&'a String, &'a ProductDefinition)> + use<'a> {
        self.definition
            .product
            .iter()
            .filter(|(_, product)| product.create)
    }

    /// Fleets of products to create, with their numbers; gateways precede their children.
    fn fleets(&self) -> impl Iterator<Item = (usize, &'a FleetPlan)> + use<'a> {
        let products = &self.definition.product;
        let fleets = || self.plan.fleets.iter().enumerate();
        let gateways = fleets().filter(|(_, fleet)| fleet.gateway.is_none());
        let children = fleets().filter(|(_, fleet)| fleet.gateway.is_some());
        gateways.chain(children).filter(|(_, fleet)| {
            products
                .get(&fleet.product)
                .is_some_and(|product| product.create)
        })
    }

    fn report(&self, is_removal: bool, done: u64, total: u64) {
        (self.progress)(SetupProgress {
            is_removal,
            done,
            total,
        });
    }
}

fn foreign_object(title: &str) -> anyhow::Error {
    ForeignObjectError {
        title: title.to_owned(),
    }
    .into()
}

fn device_path(id: &str) -> String {
    format!("/api/v1/devices/{}", url_encode(id))
}

fn endpoint_object(id: &str) -> MarkedObject {
    MarkedObject {
        path: format!("/api/v1/endpoints/{}", url_encode(id)),
        title: format!("the relay endpoint `{id}`"),
        field: "name",
    }
}

fn product_object(name: &str) -> MarkedObject {
    MarkedObject {
        path: format!("/api/v1/products/{}", url_encode(name)),
        title: format!("the product `{name}`"),
        field: "description",
    }
}

fn configuration_object(object: &ObjectDefinition) -> MarkedObject {
    let collection = object.kind.collection();
    MarkedObject {
        path: format!("/api/v1/{collection}/{}", url_encode(&object.id)),
        title: format!("{collection}/{}", object.id),
        field: object.kind.description_field(),
    }
}
