//! The configuration objects that all nodes of a cluster have.

use std::sync::Arc;

use cluster::{
    ExpectedRevision, LocalObject, LocalObjects, LocalObjectsError, ObjectName, ReplicaRecord,
    ReplicatedObjects, ReplicatedObjectsError,
};
use serde_json::Value;
use store::{
    ExpectedVersion, Object, ObjectError, ObjectReplication, Objects, StoreError, WeakObjects,
};
use tokio::runtime::Handle;

/// Kinds that all nodes have. Not among them is what concerns one node: listeners, certificates, changed settings,
/// sessions of the console, states of rules. Nor are sources, which would work once per node, and firmware, whose files
/// are on one node.
const REPLICATED_KINDS: [&str; 19] = [
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
    namespaces::KIND,
    relay::KIND,
];

/// The object of this node with the [`ReplicaRecord`].
const RECORD_KIND: &str = "cluster_record";
const RECORD_ID: &str = "record";

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
        let record = serde_json::from_value(stored.value);
        record.map(Some).map_err(store_error)
    }

    fn set_record(&self, record: &ReplicaRecord) -> Result<(), LocalObjectsError> {
        let value = serde_json::to_value(record).map_err(store_error)?;
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
