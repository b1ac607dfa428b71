//! All packages and assignments in memory, arranged for the query which package a device is to install.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use devices::Device;
use devices::group::GroupDefinition;

use crate::assignment::{AssignmentDefinition, AssignmentTarget};
use crate::device_state::InstallAttempt;
use crate::package::{FirmwarePackage, FirmwareType};

/// A package and why a device is to install it.
#[derive(Debug, Clone, PartialEq)]
pub struct AssignedPackage {
    pub package: Arc<FirmwarePackage>,
    pub target: AssignmentTarget,
    /// The notification by a campaign, in a cluster.
    pub attempt: Option<InstallAttempt>,
}

#[derive(Default)]
pub(crate) struct Catalog {
    packages: HashMap<String, Arc<FirmwarePackage>>,
    assignments: BTreeMap<String, AssignmentDefinition>,
    groups: BTreeMap<String, GroupDefinition>,
    /// Packages by what they are assigned to; derived from the fields above.
    products: HashMap<(FirmwareType, String), Arc<FirmwarePackage>>,
    devices: HashMap<(FirmwareType, String), Arc<FirmwarePackage>>,
    /// Groups in the order of their ids; of several with the same device the first one decides.
    assigned_groups: BTreeMap<(FirmwareType, String), Arc<FirmwarePackage>>,
    /// Products of packages.
    used_products: HashSet<String>,
}

impl Catalog {
    pub(crate) fn package(&self, id: &str) -> Option<&Arc<FirmwarePackage>> {
        self.packages.get(id)
    }

    /// Adds, replaces or removes a package; returns the previous one.
    pub(crate) fn set_package(
        &mut self,
        id: &str,
        package: Option<FirmwarePackage>,
    ) -> Option<Arc<FirmwarePackage>> {
        let before = match package {
            Some(package) => self.packages.insert(id.to_owned(), Arc::new(package)),
            None => self.packages.remove(id),
        };
        self.arrange();
        before
    }

    pub(crate) fn set_assignment(&mut self, id: &str, assignment: Option<AssignmentDefinition>) {
        match assignment {
            Some(assignment) => self.assignments.insert(id.to_owned(), assignment),
            None => self.assignments.remove(id),
        };
        self.arrange();
    }

    pub(crate) fn set_group(&mut self, id: &str, group: Option<GroupDefinition>) {
        match group {
            Some(group) => self.groups.insert(id.to_owned(), group),
            None => self.groups.remove(id),
        };
    }

    /// Whether devices of a product may have a target.
    pub(crate) fn uses_product(&self, product: &str) -> bool {
        self.used_products.contains(product)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packages.is_empty()
    }

    pub(crate) fn assignment(&self, id: &str) -> Option<&AssignmentDefinition> {
        self.assignments.get(id)
    }

    /// Whether a package is assigned to anything.
    pub(crate) fn is_assigned(&self, package: &str) -> bool {
        let mut assignments = self.assignments.values();
        assignments.any(|assignment| assignment.package == package)
    }

    /// Products of the packages that are assigned to a group.
    pub(crate) fn products_of_group(&self, group: &str) -> Vec<String> {
        let assigned = self.assigned_groups.iter();
        let assigned = assigned.filter(|((_, id), _)| id == group);
        assigned
            .map(|(_, package)| package.product.clone())
            .collect()
    }

    fn arrange(&mut self) {
        let products = self
            .packages
            .values()
            .map(|package| package.product.clone());
        self.used_products = products.collect();
        self.products.clear();
        self.devices.clear();
        self.assigned_groups.clear();
        for assignment in self.assignments.values() {
            let package = self.packages.get(&assignment.package);
            let (Some(package), Ok(target)) = (package, assignment.target()) else {
                continue;
            };
            let (kind, package) = (package.kind, package.clone());
            match target {
                AssignmentTarget::Product(id) => _ = self.products.insert((kind, id), package),
                AssignmentTarget::Group(id) => _ = self.assigned_groups.insert((kind, id), package),
                AssignmentTarget::Device(id) => _ = self.devices.insert((kind, id), package),
                // No assignment names a campaign.
                AssignmentTarget::Campaign(_) => {}
            }
        }
    }

    /// The assignment of another id for the same target and type.
    pub(crate) fn other_assignment(
        &self,
        id: &str,
        assignment: &AssignmentDefinition,
    ) -> Option<&str> {
        let kind_of = |package: &str| self.packages.get(package).map(|package| package.kind);
        let (kind, target) = (kind_of(&assignment.package), assignment.target().ok());
        let mut others = self.assignments.iter();
        let other = others.find(|(other, known)| {
            *other != id && known.target().ok() == target && kind_of(&known.package) == kind
        });
        other.map(|(id, _)| id.as_str())
    }

    pub(crate) fn group(&self, id: &str) -> Option<&GroupDefinition> {
        self.groups.get(id)
    }

    /// The package that a device is to install: its own, otherwise that of a group, otherwise that of its product.
    pub(crate) fn assigned(&self, device: &Device, kind: FirmwareType) -> Option<AssignedPackage> {
        let product = device.product.id().as_str();
        let fits = |package: &&Arc<FirmwarePackage>| {
            package.product == product && device.is_in_namespace(&package.namespace)
        };
        let found = |package: &Arc<FirmwarePackage>, target| AssignedPackage {
            package: package.clone(),
            target,
            attempt: None,
        };
        let id = device.id.as_str();
        let own = self.devices.get(&(kind, id.to_owned())).filter(fits);
        if let Some(package) = own {
            return Some(found(package, AssignmentTarget::Device(id.to_owned())));
        }
        let groups = self.assigned_groups.range((kind, String::new())..);
        let mut groups = groups.take_while(|((of, _), _)| *of == kind);
        let group = groups.find(|((_, group), package)| {
            let group = self.groups.get(group);
            fits(package) && group.is_some_and(|group| group.contains(device))
        });
        if let Some(((_, id), package)) = group {
            return Some(found(package, AssignmentTarget::Group(id.clone())));
        }
        let package = self
            .products
            .get(&(kind, product.to_owned()))
            .filter(fits)?;
        Some(found(
            package,
            AssignmentTarget::Product(product.to_owned()),
        ))
    }
}
