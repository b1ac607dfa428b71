//! The configuration objects of one node.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::name::ObjectName;

/// A configuration object.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalObject {
    pub name: ObjectName,
    pub value: Value,
    /// The revision of the object in the cluster, if the node got it from there.
    pub version: u64,
    pub created_ms: u64,
    pub updated_ms: u64,
}

/// What a node knows of the objects of the cluster it belongs to. It is stored as durably as the objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    /// The set of objects that those of the node are a copy of.
    pub set_id: String,
    /// Objects that only this node has, since they are too large for the cluster.
    #[serde(default)]
    pub local_only: Vec<ObjectName>,
}

/// Objects could not be read or stored. The call can be repeated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct LocalObjectsError(pub String);

/// The configuration objects of a node that belong to the cluster. Calls may block.
///
/// While the node is part of a cluster, only [`ObjectReplica`](super::ObjectReplica) changes these objects. If the node starts
/// without a cluster, its record has to be removed before anything is changed.
pub trait LocalObjects: Send + Sync + 'static {
    /// Names and versions of all objects.
    fn list(&self) -> Result<Vec<(ObjectName, u64)>, LocalObjectsError>;

    fn get(&self, name: &ObjectName) -> Result<Option<LocalObject>, LocalObjectsError>;

    /// Creates or replaces an object, with its version and times.
    fn apply(&self, object: &LocalObject) -> Result<(), LocalObjectsError>;

    /// Removes an object if it exists.
    fn remove(&self, name: &ObjectName) -> Result<(), LocalObjectsError>;

    fn record(&self) -> Result<Option<ReplicaRecord>, LocalObjectsError>;

    fn set_record(&self, record: &ReplicaRecord) -> Result<(), LocalObjectsError>;
}
