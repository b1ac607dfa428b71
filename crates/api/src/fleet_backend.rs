//! What the API asks of groups of devices and of pull sources beside their objects.

use serde_json::Value;

use crate::connector_backend::BackendFuture;
use crate::device_backend::{DeviceBackendError, DevicePage};

/// What came of trying a pull source: rows by device, or why there are none.
pub type PullTestResult = Result<Value, String>;

/// Groups and pull sources. What does not wait for an answer of others is called on threads that may block.
pub trait FleetBackend: Send + Sync + 'static {
    /// Devices of a group, as in the list of all devices.
    fn group_devices(
        &self,
        group: &str,
        from: u32,
        limit: usize,
    ) -> Result<DevicePage, DeviceBackendError> {
        let _ = (from, limit);
        Err(group_not_found(group))
    }

    /// How many devices a group has.
    fn group_counts(&self, group: &str) -> Result<Value, DeviceBackendError> {
        Err(group_not_found(group))
    }

    /// The ids of all devices of a group; refused if there are too many for one question.
    fn group_members(&self, group: &str) -> Result<Vec<String>, DeviceBackendError> {
        Err(group_not_found(group))
    }

    /// How pull sources do, sorted by name.
    fn pull_source_statuses(&self) -> Vec<Value> {
        Vec::new()
    }

    fn pull_source_status(&self, name: &str) -> Option<Value> {
        let _ = name;
        None
    }

    /// Asks the system of a pull source once, and stores nothing. `None`: there is no such source.
    fn test_pull_source<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<PullTestResult>> {
        let _ = name;
        Box::pin(std::future::ready(None))
    }
}

fn group_not_found(group: &str) -> DeviceBackendError {
    DeviceBackendError::NotFound(format!("There is no group of devices {group:?}."))
}

/// A node without devices.
pub struct NoFleetBackend;

impl FleetBackend for NoFleetBackend {}
