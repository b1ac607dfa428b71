//! Products and devices of a simulation on a node: created before the run, removed after it.
//!
//! Nothing that exists is changed. Products and devices that a simulation has created carry [`MARK`], and only those are removed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail, ensure};
use load_client::node_api::NodeApi;
use load_client::units::Unit;
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};

use crate::creation_mark::{MARK, TAG};
use crate::definition::{
    FleetTransport, ProductDefinition, SimulationDefinition, TargetDefinition,
};
use crate::firmware_setup::FirmwareSetup;
use crate::plan::{FleetPlan, SimulationPlan};
use load_client::interrupt::Interrupt;

/// Devices of one request.
const DEVICES_PER_REQUEST: u32 = 5000;
/// Requests to remove devices that are sent at a time.
const REMOVERS: usize = 8;

/// What a run has created.
#[derive(Debug, Default)]
pub(crate) struct CreatedObjects {
    products: Vec<String>,
    /// Relay endpoints.
    endpoints: Vec<String>,
    /// Number of the fleet, and positions in it.
    devices: Vec<(usize, Range<u32>)>,
    /// Names of firmware.
    firmware: Vec<String>,
}

/// The HTTP API of the node.
pub(crate) fn node_api(
    target: &TargetDefinition,
    folder: &std::path::Path,
) -> anyhow::Result<NodeApi> {
    let token_file = target.token_file.as_ref().map(|file| folder.join(file));
    NodeApi::new(&target.api, token_file.as_deref()).context("target.api and target.token_file")
}

pub(crate) struct FleetSetup<'a> {
    node: NodeApi,
    plan: &'a SimulationPlan,
    definition: &'a SimulationDefinition,
    interrupt: &'a Interrupt,
    /// Whether other machines create the same products, and devices of their own.
    shares_products: bool,
    is_quiet: bool,
}

impl<'a> FleetSetup<'a> {
    /// `None`: no product of the simulation is to be created.
    pub(crate) fn new(
        (plan, definition): (&'a SimulationPlan, &'a SimulationDefinition),
        folder: &std::path::Path,
        interrupt: &'a Interrupt,
        shares_products: bool,
        is_quiet: bool,
    ) -> anyhow::Result<Option<Self>> {
        if !definition.product.values().any(|product| product.create) {
            return Ok(None);
        }
        let node = node_api(&definition.target, folder)?;
        Ok(Some(Self {
            node,
            plan,
            definition,
            interrupt,
            shares_products,
            is_quiet,
        }))
    }

    /// Creates everything. What was created before an error is in `created`.
    pub(crate) fn create(&self, created: &mut CreatedObjects) -> anyhow::Result<()> {
        for (name, product) in self.products() {
            let mut body = product.fields.clone();
            body.insert("description".to_owned(), json!(MARK));
            let exists = !self
                .node
                .create(&product_path(name), &Value::Object(body))?;
            let is_shared = exists && self.shares_products && self.is_created(name)?;
            ensure!(
                !exists || is_shared,
                "the product `{name}` exists on the node; set create = false to use it with its devices, or remove what an \
                 earlier run has left with --clean"
            );
            created.products.push(name.clone());
        }
        for (endpoint, fleet) in self.endpoints() {
            let is_new = self
                .node
                .create(&endpoint_path(&endpoint), &self.endpoint(fleet))?;
            let is_shared =
                !is_new && self.shares_products && self.is_created_endpoint(&endpoint)?;
            ensure!(
                is_new || is_shared,
                "the relay endpoint `{endpoint}` exists on the node; choose another `endpoint`, or remove what an earlier run has \
                 left with --clean"
            );
            created.endpoints.push(endpoint);
        }
        let total = self.fleets().map(|(_, fleet)| u64::from(fleet.count)).sum();
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
                self.show_progress("created", done, total);
            }
        }
        self.end_progress();
        self.firmware().create(&mut created.firmware)
    }

    fn firmware(&self) -> FirmwareSetup<'_> {
        FirmwareSetup::new(&self.node, self.definition)
    }

    fn create_devices(
        &self,
        (number, fleet): (usize, &FleetPlan),
        positions: Range<u32>,
        created: &mut CreatedObjects,
    ) -> anyhow::Result<()> {
        let lines: String = positions
            .clone()
            .map(|at| format!("{}\n", self.device(fleet, at)))
            .collect();
        let imported = self
            .node
            .post_lines("/api/v1/device-import?create_only=true", &lines)?;
        let rejections = imported["rejections"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if imported["rejected"] == 0 {
            created.devices.push((number, positions));
            return Ok(());
        }
        let rejected_lines: Vec<u64> = rejections
            .iter()
            .filter_map(|rejection| rejection["line"].as_u64())
            .collect();
        let is_complete = imported["rejected"].as_u64() == Some(rejected_lines.len() as u64);
        for (line, at) in (1..).zip(positions).filter(|_| is_complete) {
            if !rejected_lines.contains(&line) {
                created.devices.push((number, at..at + 1));
            }
        }
        bail!(
            "the node does not accept {} devices of the fleet `{}`; the first: {}. Remove what an earlier run has left with \
             --clean, or choose another `id`",
            imported["rejected"],
            fleet.name,
            rejections.first().unwrap_or(&Value::Null)
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

    /// Whether a simulation has created the endpoint.
    fn is_created_endpoint(&self, endpoint: &str) -> anyhow::Result<bool> {
        let found = self.node.get(&endpoint_path(endpoint))?;
        Ok(found.is_some_and(|found| found["name"] == MARK))
    }

    /// The id of a device in the API.
    fn device_id(&self, fleet: &FleetPlan, at: u32) -> String {
        let text = |template| fleet.identity_text(template, self.plan.seed, fleet.first + at);
        match &fleet.endpoint {
            Some(endpoint) => format!("{}:{}", text(endpoint), text(&fleet.client_id)),
            None => text(&fleet.id),
        }
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

    /// Removes what a run has created.
    pub(crate) fn remove(&self, created: &CreatedObjects) -> anyhow::Result<()> {
        self.firmware().remove(created.firmware.iter())?;
        // Before the devices, so that none registers itself again.
        for endpoint in &created.endpoints {
            self.node.delete(&endpoint_path(endpoint))?;
        }
        // A gateway with children cannot be removed.
        for removes_children in [true, false] {
            let devices = created
                .devices
                .iter()
                .map(|(number, positions)| (&self.plan.fleets[*number], positions.clone()));
            let devices = devices
                .filter(|(fleet, _)| fleet.gateway.is_some() == removes_children)
                .flat_map(|(fleet, positions)| positions.map(move |at| (fleet, at)));
            self.remove_devices(devices, false)?;
        }
        for product in created.products.iter().rev() {
            let path = product_path(product);
            let is_removed = self.node.delete(&path)?;
            ensure!(
                is_removed || self.shares_products,
                "the node keeps the product `{product}`, since other devices use it"
            );
        }
        Ok(())
    }

    /// Whether a simulation has created the product.
    fn is_created(&self, product: &str) -> anyhow::Result<bool> {
        let found = self.node.get(&product_path(product))?;
        Ok(found.is_some_and(|found| found["description"] == MARK))
    }

    /// Removes what earlier runs of the file have left; returns the number of devices and products.
    pub(crate) fn clean(&self) -> anyhow::Result<(u64, u64)> {
        self.firmware().clean()?;
        let mut removed = 0;
        for (endpoint, _) in self.endpoints() {
            if self.is_created_endpoint(&endpoint)? {
                self.node.delete(&endpoint_path(&endpoint))?;
            }
        }
        for removes_children in [true, false] {
            let devices = self
                .fleets()
                .filter(|(_, fleet)| fleet.gateway.is_some() == removes_children)
                .flat_map(|(_, fleet)| (0..fleet.count).map(move |at| (fleet, at)));
            removed += self.remove_devices(devices, true)?;
        }
        let mut products = 0;
        for (name, _) in self.products() {
            if self.is_created(name)? && self.node.delete(&product_path(name))? {
                products += 1;
            }
        }
        Ok((removed, products))
    }

    /// Removes devices with several requests at a time; `verifies` spares those without the mark.
    fn remove_devices(
        &self,
        devices: impl Iterator<Item = (&'a FleetPlan, u32)> + Send,
        verifies: bool,
    ) -> anyhow::Result<u64> {
        let devices = Mutex::new(devices);
        let removed = AtomicU64::new(0);
        let remove_some = || -> anyhow::Result<()> {
            loop {
                let next = devices.lock().ok().and_then(|mut devices| devices.next());
                let Some((fleet, at)) = next else {
                    return Ok(());
                };
                let id = self.device_id(fleet, at);
                let path = format!("/api/v1/devices/{}", url_encode(&id));
                if verifies {
                    let Some(device) = self.node.get(&path)? else {
                        continue;
                    };
                    // Devices of relay endpoints have no tags; the product that they belong to is that of the simulation.
                    let is_ours = match fleet.transport {
                        FleetTransport::Relay => self.is_created(&fleet.product)?,
                        _ => device["tags"][TAG] == MARK,
                    };
                    if !is_ours {
                        continue;
                    }
                }
                self.node.delete(&path)?;
                let count = removed.fetch_add(1, Ordering::Relaxed) + 1;
                if count.is_multiple_of(u64::from(DEVICES_PER_REQUEST)) {
                    self.show_progress("removed", count, self.plan.devices());
                }
            }
        };
        std::thread::scope(|scope| {
            let removers: Vec<_> = (0..REMOVERS).map(|_| scope.spawn(remove_some)).collect();
            removers.into_iter().try_for_each(|remover| {
                remover
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread of the simulation panicked"))?
            })
        })?;
        self.end_progress();
        Ok(removed.into_inner())
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

    fn show_progress(&self, verb: &str, done: u64, total: u64) {
        if !self.is_quiet {
            let count = |count: u64| Unit::Count.format(count as f64);
            eprint!("\r\x1b[K{verb} {} of {} devices", count(done), count(total));
        }
    }

    fn end_progress(&self) {
        if !self.is_quiet {
            eprint!("\r\x1b[K");
        }
    }
}

fn endpoint_path(id: &str) -> String {
    format!("/api/v1/endpoints/{}", url_encode(id))
}

fn product_path(name: &str) -> String {
    format!("/api/v1/products/{name}")
}
