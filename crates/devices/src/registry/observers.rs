//! Observers of the registry, and the changes that they receive.

use std::sync::Arc;

use serde_json::Value;

use super::attribute_scope::AttributeScope;
use crate::device::Device;

/// A change of a device. Observers receive it after the store commit, on the thread that made the change.
#[derive(Debug)]
pub enum DeviceChange<'a> {
    Created(&'a Arc<Device>),
    Updated(&'a Arc<Device>),
    Removed(&'a Arc<Device>),
}

/// Changed attributes of a device; emitted once they are in the store.
#[derive(Debug)]
pub struct AttributeChange<'a> {
    pub device: &'a Device,
    pub scope: AttributeScope,
    pub changed: &'a [(String, Value)],
    pub removed: &'a [String],
    /// Whether another node of the cluster has made the change, whose observers have received it too.
    pub is_of_other_node: bool,
}

pub(super) type DeviceObserver = Box<dyn Fn(&DeviceChange<'_>) + Send + Sync>;
pub(super) type AttributeObserver = Box<dyn Fn(&AttributeChange<'_>) + Send + Sync>;
