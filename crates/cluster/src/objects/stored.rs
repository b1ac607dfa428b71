//! What is stored in the cluster: configuration objects, and a record about all of them, in JSON.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::local::LocalObject;
use super::name::ObjectName;
use crate::fabric::{MAX_OBJECT_BYTES, ObjectEntry};
use crate::member::NodeName;

/// Which set of objects the cluster has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectSet {
    /// Random; differs after the servers have lost all objects.
    pub(crate) id: String,
    /// The node that stores its objects first.
    pub(crate) node: NodeName,
    /// Whether that node has stored all of its objects.
    pub(crate) is_complete: bool,
}

impl ObjectSet {
    pub(crate) fn encode(&self) -> Bytes {
        serde_json::to_vec(self)
            .expect("its fields are plain")
            .into()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(value).map_err(|error| error.to_string())
    }
}

#[derive(Serialize, Deserialize)]
struct StoredObject<V> {
    created_ms: u64,
    updated_ms: u64,
    value: V,
}

/// The value of an object in the cluster.
///
/// # Errors
/// If it is too large.
pub(crate) fn encode(object: &LocalObject) -> Result<Bytes, String> {
    let stored = StoredObject {
        created_ms: object.created_ms,
        updated_ms: object.updated_ms,
        value: &object.value,
    };
    let bytes = serde_json::to_vec(&stored).expect("a JSON value has string keys");
    if bytes.len() > MAX_OBJECT_BYTES {
        return Err(format!(
            "it has {} bytes of JSON, and a cluster stores at most {MAX_OBJECT_BYTES}",
            bytes.len()
        ));
    }
    Ok(bytes.into())
}

pub(crate) fn decode(name: &ObjectName, entry: &ObjectEntry) -> Result<LocalObject, String> {
    let stored: StoredObject<Value> =
        serde_json::from_slice(&entry.value).map_err(|error| error.to_string())?;
    Ok(LocalObject {
        name: name.clone(),
        value: stored.value,
        version: entry.revision,
        created_ms: stored.created_ms,
        updated_ms: stored.updated_ms,
    })
}
