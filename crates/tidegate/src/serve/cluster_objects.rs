//! The configuration objects that all nodes of a cluster have.

use std::sync::Arc;

use cluster::{
    ExpectedRevision, LocalObject, LocalObjects, LocalObjectsError, ObjectName, ReplicaRecord,
    ReplicatedObjects, ReplicatedObjectsError,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{
    ExpectedVersion, Object, ObjectError, ObjectReplication, Objects, StoreError, WeakObjects,
};
use tokio::runtime::Handle;

/// Kinds that all nodes have. Not among them is what concerns one node: listeners, certificates, changed settings,
/// sessions of the console, states of rules. Nor are sources, which would work once per node.
const REPLICATED_KINDS: [&str; 21] = [
    api::API_KEY_KIND,
    api::DASHBOARD_KIND,
    api::INVITE_KIND,
    api::OPERATOR_KIND,
    auth::objects::ACL_RULE,
    auth::objects::AUTHENTICATOR,
    auth::objects::BAN,
    auth::objects::USER,
    connect::objects::CONNECTOR,
    connect::objects::SINK,
    devices::PRODUCT_KIND,
    devices::alarm::NODE_ALARM_RULES_KIND,
    devices::alarm::NOTIFICATION_KIND,
    devices::chain::KIND,
    devices::group::KIND,
    devices::pull::KIND,
    engine::RULE_KIND,
    firmware::ASSIGNMENT_KIND,
    firmware::KIND,
    namespaces::KIND,
    relay::KIND,
];
/// Kinds that an earlier version did not replicate, and whose records do not name the replicated kinds.
const LATER_KINDS: [&str; 2] = [firmware::ASSIGNMENT_KIND, firmware::KIND];

/// The object of this node with the [`ReplicaRecord`].
const RECORD_KIND: &str = "cluster_record";
const RECORD_ID: &str = "record";

/// The [`ReplicaRecord`] as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredReplicaRecord {
    #[serde(flatten)]
    record: ReplicaRecord,
    /// The kinds that were replicated when it was written.
    #[serde(default)]
    kinds: Option<Vec<String>>,
}

impl StoredReplicaRecord {
    fn has_kind(&self, kind: &str) -> bool {
        match &self.kinds {
            Some(kinds) => kinds.iter().any(|known| known == kind),
            None => !LATER_KINDS.contains(&kind),
        }
    }
}

/// The objects of this node as the cluster sees them.
pub(super) struct NodeObjects(pub(super) WeakObjects);

fn store_error(error: impl std::fmt::Display) -> LocalObjectsError {
    LocalObjectsError(error.to_string())
}

impl NodeObjects {
    fn objects(&self) -> Result<Objects, LocalObjectsError> {
        let closed = || LocalObjectsError("the store is closed".to_owned());
        self.0.upgrade().ok_or_else(closed)
    }
}

impl LocalObjects for NodeObjects {
    fn list(&self) -> Result<Vec<(ObjectName, u64)>, LocalObjectsError> {
        let objects = self.objects()?;
        let mut found = Vec::new();
        for kind in REPLICATED_KINDS {
            let each = |object: Object| {
                found.push((ObjectName::new(kind, &object.id), object.version));
            };
            objects.for_each(kind, each).map_err(store_error)?;
        }
        Ok(found)
    }

    fn get(&self, name: &ObjectName) -> Result<Option<LocalObject>, LocalObjectsError> {
        let stored = self.objects()?.get(&name.kind, &name.id);
        let stored = stored.map_err(store_error)?;
        Ok(stored.map(|object| LocalObject {
            name: name.clone(),
            value: object.value,
            version: object.version,
            created_ms: object.created_ms,
            updated_ms: object.updated_ms,
        }))
    }

    fn apply(&self, object: &LocalObject) -> Result<(), LocalObjectsError> {
        let applied = self.objects()?.apply_replicated(&Object {
            kind: object.name.kind.clone(),
            id: object.name.id.clone(),
            value: object.value.clone(),
            version: object.version,
            created_ms: object.created_ms,
            updated_ms: object.updated_ms,
        });
        applied.map_err(store_error)
    }

    fn remove(&self, name: &ObjectName) -> Result<(), LocalObjectsError> {
        let removed = self.objects()?.remove_replicated(&name.kind, &name.id);
        removed.map_err(store_error)
    }

    fn record(&self) -> Result<Option<ReplicaRecord>, LocalObjectsError> {
        let stored = self.objects()?.get(RECORD_KIND, RECORD_ID);
        let Some(stored) = stored.map_err(store_error)? else {
            return Ok(None);
        };
        let stored: StoredReplicaRecord =
            serde_json::from_value(stored.value).map_err(store_error)?;
        let later: Vec<&str> = REPLICATED_KINDS
            .into_iter()
            .filter(|kind| !stored.has_kind(kind))
            .collect();
        let mut record = stored.record;
        // What an earlier version of the program kept at this node was not deleted in the cluster: it is added to it.
        for kind in later {
            let each = |object: Object| {
                record.local_only.push(ObjectName::new(kind, &object.id));
            };
            self.objects()?.for_each(kind, each).map_err(store_error)?;
        }
        Ok(Some(record))
    }

    fn set_record(&self, record: &ReplicaRecord) -> Result<(), LocalObjectsError> {
        let stored = StoredReplicaRecord {
            record: record.clone(),
            kinds: Some(REPLICATED_KINDS.map(str::to_owned).to_vec()),
        };
        let value = serde_json::to_value(stored).map_err(store_error)?;
        let objects = self.objects()?;
        let stored = objects.put(RECORD_KIND, RECORD_ID, value, ExpectedVersion::Any);
        stored.map(drop).map_err(store_error)
    }
}

/// Forgets the cluster that the node was a member of: its objects may change from now on. May block.
pub(super) fn forget_cluster(objects: &Objects) -> Result<(), ObjectError> {
    if objects.get(RECORD_KIND, RECORD_ID)?.is_some() {
        objects.delete(RECORD_KIND, RECORD_ID, ExpectedVersion::Any)?;
    }
    Ok(())
}

/// Sends changes of this node to the cluster. Called on threads that may block.
pub(super) struct ClusterReplication {
    pub(super) objects: Arc<ReplicatedObjects>,
    pub(super) runtime: Handle,
}

impl ObjectReplication for ClusterReplication {
    fn is_replicated(&self, kind: &str) -> bool {
        REPLICATED_KINDS.contains(&kind)
    }

    fn put(
        &self,
        kind: &str,
        id: &str,
        value: &Value,
        expected: ExpectedVersion,
    ) -> Result<(), ObjectError> {
        let name = ObjectName::new(kind, id);
        let put = self.objects.put(&name, value.clone(), required(expected));
        let stored = self.runtime.block_on(put);
        stored.map(drop).map_err(object_error)
    }

    fn delete(&self, kind: &str, id: &str, expected: ExpectedVersion) -> Result<bool, ObjectError> {
        let name = ObjectName::new(kind, id);
        let delete = self.objects.delete(&name, required(expected));
        self.runtime.block_on(delete).map_err(object_error)
    }
}

fn required(expected: ExpectedVersion) -> ExpectedRevision {
    match expected {
        ExpectedVersion::Any => ExpectedRevision::Any,
        ExpectedVersion::Absent => ExpectedRevision::Absent,
        ExpectedVersion::Version(version) => ExpectedRevision::Revision(version),
    }
}

fn object_error(error: ReplicatedObjectsError) -> ObjectError {
    match error {
        ReplicatedObjectsError::Conflict => ObjectError::Conflict { current: None },
        ReplicatedObjectsError::Unavailable(reason) | ReplicatedObjectsError::Invalid(reason) => {
            StoreError::Cluster(reason).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use store::{Store, StoreConfig};

    use super::*;

    #[test]
    fn objects_that_an_earlier_version_kept_at_its_node_are_added_to_the_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let (store, _) = Store::open(&path, StoreConfig::default()).unwrap();
        let objects = store.objects();
        let earlier = json!({"set_id": "s", "local_only": []});
        for (kind, id, value) in [
            (firmware::KIND, "package", json!({})),
            (devices::PRODUCT_KIND, "pump", json!({})),
            (RECORD_KIND, RECORD_ID, earlier),
        ] {
            let put = objects.put(kind, id, value, ExpectedVersion::Absent);
            put.unwrap();
        }
        let node = NodeObjects(objects.downgrade());
        let mut record = node.record().unwrap().unwrap();
        assert_eq!(record.set_id, "s");
        let package = ObjectName::new(firmware::KIND, "package");
        assert_eq!(record.local_only, [package]);
        // Once they are part of the set, an object that the cluster lacks was deleted.
        record.local_only.clear();
        node.set_record(&record).unwrap();
        assert_eq!(node.record().unwrap(), Some(record));
        store.close();
    }
}
