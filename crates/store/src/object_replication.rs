//! The interface to the other nodes that have the same configuration objects.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use crate::error::ObjectError;
use crate::expected_version::ExpectedVersion;

/// Stores changes of configuration objects for all nodes.
pub trait ObjectReplication: Send + Sync {
    /// Whether all nodes have the objects of this kind.
    fn is_replicated(&self, kind: &str) -> bool;

    /// Stores an object for all nodes. Blocks until it is stored on this node, too, by [`Objects::apply_replicated`](crate::Objects::apply_replicated).
    fn put(
        &self,
        kind: &str,
        id: &str,
        value: &Value,
        expected: ExpectedVersion,
    ) -> Result<(), ObjectError>;

    /// Removes an object from all nodes; `false` if it does not exist. Blocks until it is removed here.
    fn delete(&self, kind: &str, id: &str, expected: ExpectedVersion) -> Result<bool, ObjectError>;
}

/// Set once, after the store was opened.
pub(crate) type ReplicationSlot = OnceLock<Arc<dyn ObjectReplication>>;
