//! The interface between the API and device groups and pull sources, beyond their objects.

use serde_json::Value;

use crate::connector_backend::BackendFuture;
use crate::device_backend::{DeviceBackendError, DevicePage};

/// The result of testing a pull source: rows by device, or an error.
pub type PullTestResult = Result<Value, String>;

/// Device groups and pull sources. Synchronous methods are called on threads that may block.
pub trait FleetBackend: Send + Sync + 'static {
    /// The devices of a group, as in the list of all devices.
    fn group_devices(
        &self,
        group: &str,
        from: u32,
        limit: usize,
    ) -> Result<DevicePage, DeviceBackendError> {
        let _ = (from, limit);
        Err(group_not_found(group))
    }

    /// The number of devices in a group.
    fn group_counts(&self, group: &str) -> Result<Value, DeviceBackendError> {
        Err(group_not_found(group))
    }

    /// The ids of all devices of a group; an error if there are too many for one query.
    fn group_members(&self, group: &str) -> Result<Vec<String>, DeviceBackendError> {
        Err(group_not_found(group))
    }

    /// The states of all pull sources, sorted by name.
    fn pull_source_statuses(&self) -> Vec<Value> {
        Vec::new()
    }

    fn pull_source_status(&self, name: &str) -> Option<Value> {
        let _ = name;
        None
    }

    /// Queries the system of a pull source once and stores nothing. `None`: the source does not
    /// exist.
    fn test_pull_source<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<PullTestResult>> {
        let _ = name;
        Box::pin(std::future::ready(None))
    }
}

fn group_not_found(group: &str) -> DeviceBackendError {
    DeviceBackendError::NotFound(format!("There is no group of devices {group:?}."))
}

/// The backend of a node without devices.
pub struct NoFleetBackend;

impl FleetBackend for NoFleetBackend {}
