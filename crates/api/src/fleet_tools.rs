//! What the API asks of groups of devices and of pull sources beside their objects.

use serde_json::Value;

use crate::connector_tools::Asking;
use crate::device_tools::{DevicePage, DeviceProblem};

/// What came of trying a pull source: rows by device, or why there are none.
pub type Pulled = Result<Value, String>;

/// Groups and pull sources. What does not wait for an answer of others is called on threads that may block.
pub trait FleetTools: Send + Sync + 'static {
    /// Devices of a group, as in the list of all devices.
    fn group_devices(
        &self,
        group: &str,
        from: u32,
        limit: usize,
    ) -> Result<DevicePage, DeviceProblem> {
        let _ = (from, limit);
        Err(no_group(group))
    }

    /// How many devices a group has.
    fn group_counts(&self, group: &str) -> Result<Value, DeviceProblem> {
        Err(no_group(group))
    }

    /// The ids of all devices of a group; refused if there are too many for one question.
    fn group_members(&self, group: &str) -> Result<Vec<String>, DeviceProblem> {
        Err(no_group(group))
    }

    /// How pull sources do, sorted by name.
    fn pull_sources(&self) -> Vec<Value> {
        Vec::new()
    }

    fn pull_source(&self, name: &str) -> Option<Value> {
        let _ = name;
        None
    }

    /// Asks the system of a pull source once, and stores nothing. `None`: there is no such source.
    fn test_pull_source<'a>(&'a self, name: &'a str) -> Asking<'a, Option<Pulled>> {
        let _ = name;
        Box::pin(std::future::ready(None))
    }
}

fn no_group(group: &str) -> DeviceProblem {
    DeviceProblem::NotFound(format!("There is no group of devices {group:?}."))
}

/// A node without devices.
pub struct NoFleetTools;

impl FleetTools for NoFleetTools {}
