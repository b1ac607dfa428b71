//! Removal of what a run has created, and of what earlier runs have left.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use outbound::url_encoding::url_encode;

use super::{
    CreatedObjects, DEVICES_PER_REQUEST, FleetSetup, MarkedObject, configuration_object,
    device_path, endpoint_object, product_object,
};
use crate::creation_mark::{MARK, TAG, is_marked};
use crate::definition::FleetTransport;
use crate::plan::FleetPlan;

/// Requests to remove devices that are sent at a time.
const REMOVERS: usize = 8;

/// What [`FleetSetup::clean`] has removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RemovedObjects {
    pub(crate) devices: u64,
    /// Products, relay endpoints and other objects.
    pub(crate) others: u64,
    /// What has the id of one of them, but was created by others.
    pub(crate) kept: Vec<String>,
}

/// The removal of devices by several threads.
struct DeviceRemoval {
    /// Whether devices without the mark stay.
    verifies: bool,
    total: u64,
    visited: AtomicU64,
    removed: AtomicU64,
}

impl<'a> FleetSetup<'a> {
    /// Removes what a run has created.
    pub(crate) fn remove(&self, created: &CreatedObjects) -> anyhow::Result<()> {
        // What others do with a package does not keep the devices.
        let firmware = self.firmware().remove(created.firmware.iter());
        let others = self.remove_devices_and_objects(created);
        join_results(firmware.map(drop), others)
    }

    fn remove_devices_and_objects(&self, created: &CreatedObjects) -> anyhow::Result<()> {
        if !self.mode.shares_products {
            // Before the devices, so that none registers itself again.
            self.remove_endpoints(&created.endpoints)?;
        }
        let fleets = created.devices.iter();
        let fleets =
            fleets.map(|(number, positions)| (&self.plan.fleets[*number], positions.clone()));
        self.remove_devices(&fleets.collect::<Vec<_>>(), false)?;
        if self.mode.shares_products {
            // The last machine removes what all of them use.
            if !self.is_last_machine(created)? {
                return Ok(());
            }
            self.remove_endpoints(&self.shared_endpoints(created)?)?;
        }
        for object in self.definition.object[..created.objects].iter().rev() {
            self.node.delete(&configuration_object(object).path)?;
        }
        for product in created.products.iter().rev() {
            let is_removed = self.node.delete(&product_object(product).path)?;
            ensure!(
                is_removed || self.mode.shares_products,
                "the node keeps the product `{product}`, since other devices use it"
            );
        }
        Ok(())
    }

    fn remove_endpoints(&self, endpoints: &[String]) -> anyhow::Result<()> {
        for endpoint in endpoints {
            self.node.delete(&endpoint_object(endpoint).path)?;
        }
        Ok(())
    }

    /// Whether no other machine has devices. Without products to create, no machine knows that it is the last.
    fn is_last_machine(&self, created: &CreatedObjects) -> anyhow::Result<bool> {
        for product in &created.products {
            let path = format!("/api/v1/devices?product={}&limit=1", url_encode(product));
            if self.node.rows(&path).next().transpose()?.is_some() {
                return Ok(false);
            }
        }
        Ok(!created.products.is_empty())
    }

    /// Relay endpoints that all machines have created.
    fn shared_endpoints(&self, created: &CreatedObjects) -> anyhow::Result<Vec<String>> {
        if created.endpoints.is_empty() {
            return Ok(Vec::new());
        }
        let mut endpoints = Vec::new();
        for endpoint in self.node.rows("/api/v1/endpoints?limit=1000") {
            let endpoint = endpoint?;
            let (id, product) = (endpoint["id"].as_str(), endpoint["product"].as_str());
            if let (Some(id), Some(product)) = (id, product)
                && endpoint["name"] == MARK
                && created.products.iter().any(|created| created == product)
            {
                endpoints.push(id.to_owned());
            }
        }
        Ok(endpoints)
    }

    /// Removes what earlier runs of the file have left.
    pub(crate) fn clean(&self) -> anyhow::Result<RemovedObjects> {
        // What others do with a package does not keep the devices.
        let firmware = self.firmware().clean();
        let mut removed = RemovedObjects::default();
        let others = self.clean_devices_and_objects(&mut removed);
        join_results(firmware.map(drop), others)?;
        Ok(removed)
    }

    fn clean_devices_and_objects(&self, removed: &mut RemovedObjects) -> anyhow::Result<()> {
        let endpoints = self.endpoints().into_iter();
        for (endpoint, _) in endpoints {
            self.clean_object(&endpoint_object(&endpoint), removed)?;
        }
        let fleets = self.fleets().map(|(_, fleet)| (fleet, 0..fleet.count));
        removed.devices += self.remove_devices(&fleets.collect::<Vec<_>>(), true)?;
        for object in self.definition.object.iter().rev() {
            self.clean_object(&configuration_object(object), removed)?;
        }
        for (name, _) in self.products() {
            self.clean_object(&product_object(name), removed)?;
        }
        Ok(())
    }

    fn clean_object(
        &self,
        object: &MarkedObject,
        removed: &mut RemovedObjects,
    ) -> anyhow::Result<()> {
        let Some(found) = self.node.get(&object.path)? else {
            return Ok(());
        };
        let is_ours = is_marked(&found[object.field]);
        match is_ours && self.node.delete(&object.path)? {
            true => removed.others += 1,
            false => removed.kept.push(object.title.clone()),
        }
        Ok(())
    }

    /// Removes devices at positions of fleets; `verifies` spares those without the mark.
    fn remove_devices(
        &self,
        fleets: &[(&'a FleetPlan, Range<u32>)],
        verifies: bool,
    ) -> anyhow::Result<u64> {
        let total = fleets.iter().map(|(_, positions)| positions.len() as u64);
        let removal = DeviceRemoval {
            verifies,
            total: total.sum(),
            visited: AtomicU64::new(0),
            removed: AtomicU64::new(0),
        };
        // A gateway with children cannot be removed.
        for removes_children in [true, false] {
            let devices = fleets
                .iter()
                .filter(|(fleet, _)| fleet.gateway.is_some() == removes_children)
                .flat_map(|(fleet, positions)| positions.clone().map(move |at| (*fleet, at)));
            let devices = Mutex::new(devices);
            let remove_some = || -> anyhow::Result<()> {
                loop {
                    let next = devices.lock().ok().and_then(|mut devices| devices.next());
                    let Some((fleet, at)) = next else {
                        return Ok(());
                    };
                    self.remove_device((fleet, at), &removal)?;
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
        }
        if removal.total >= u64::from(DEVICES_PER_REQUEST) {
            self.report(true, removal.total, removal.total);
        }
        Ok(removal.removed.into_inner())
    }

    fn remove_device(
        &self,
        (fleet, at): (&FleetPlan, u32),
        removal: &DeviceRemoval,
    ) -> anyhow::Result<()> {
        let path = device_path(&fleet.device_id(self.plan.seed, at));
        if !removal.verifies || self.is_created_device(fleet, &path)? {
            self.node.delete(&path)?;
            removal.removed.fetch_add(1, Ordering::Relaxed);
        }
        let visited = removal.visited.fetch_add(1, Ordering::Relaxed) + 1;
        if visited.is_multiple_of(u64::from(DEVICES_PER_REQUEST)) {
            self.report(true, visited, removal.total);
        }
        Ok(())
    }

    /// Whether a device exists and a simulation has created it.
    fn is_created_device(&self, fleet: &FleetPlan, path: &str) -> anyhow::Result<bool> {
        let Some(device) = self.node.get(path)? else {
            return Ok(false);
        };
        match fleet.transport {
            // Devices of relay endpoints have no tags; the product that they belong to is that of the simulation.
            FleetTransport::Relay => self.is_created(&product_object(&fleet.product)),
            _ => Ok(device["tags"][TAG] == MARK),
        }
    }
}

/// The error of either, or of both.
fn join_results(one: anyhow::Result<()>, other: anyhow::Result<()>) -> anyhow::Result<()> {
    match (one, other) {
        (Err(one), Err(other)) => Err(one.context(format!("{other:#}"))),
        (one, other) => one.and(other),
    }
}
