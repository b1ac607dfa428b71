//! Configuration objects that all nodes of a cluster have: every node keeps a copy of its own, which it starts from and reads.
//!
//! - [`LocalObjects`] is the copy of a node.
//! - [`ObjectReplica`] makes it follow [`ClusterObjects`](crate::ClusterObjects), without I/O and clock.
//! - [`ReplicatedObjects`] joins these, and changes objects.

mod local;
mod name;
mod replica;
mod service;
mod stored;

pub use local::{LocalObject, LocalObjects, LocalObjectsError, ReplicaRecord};
pub use name::{ObjectName, ObjectNameError};
pub use replica::{ObjectReplica, ReplicaEvent, ReplicaPhase, ReplicaRequest};
pub use service::{ReplicatedObjects, ReplicatedObjectsError, ReplicatedObjectsStatus};
