//! The object of the cluster that says which node may adopt the sessions of another one, and which one has done so.
//!
//! Only compare-and-set changes it. A node acknowledges nothing that its standby has not stored while the record names the
//! standby as current. The standby adopts the sessions by writing its name into the record. After that, the node cannot
//! remove its standby any more, so that it acknowledges nothing, whatever it believes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::{ClusterObjects, ExpectedRevision, NodeName, PutError};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

/// Time for one request to the servers. Nothing is confirmed to other nodes meanwhile.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The content of the record of a node, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StandbyRecord {
    /// Number of the run of the node in which the copy was made.
    pub(crate) run: u64,
    /// The standby, if its copy is current.
    pub(crate) standby: Option<NodeName>,
    /// The node that adopts or has adopted the sessions.
    pub(crate) adopted_by: Option<NodeName>,
    /// Whether all sessions are adopted.
    pub(crate) is_adopted: bool,
}

/// A record and its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownRecord {
    pub(crate) record: StandbyRecord,
    pub(crate) revision: u64,
}

/// What became of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Written(u64),
    /// Somebody else has changed the record.
    Conflict,
    /// The servers have not answered: the change may have been made.
    Unknown(String),
}

/// The records of all nodes. Calls block the thread.
#[derive(Clone)]
pub(crate) struct StandbyRecords {
    objects: Arc<dyn ClusterObjects>,
    runtime: Handle,
}

impl StandbyRecords {
    pub(crate) fn new(objects: Arc<dyn ClusterObjects>, runtime: Handle) -> Self {
        Self { objects, runtime }
    }

    /// The record of a node; `None` inside: there is none.
    pub(crate) fn read(&self, node: &NodeName) -> Result<Option<KnownRecord>, String> {
        let key = key(node);
        let read = async { tokio::time::timeout(REQUEST_TIMEOUT, self.objects.get(&key)).await };
        let entry = match self.runtime.block_on(read) {
            Ok(Ok(entry)) => entry,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("the cluster's NATS servers do not answer".to_owned()),
        };
        let Some(entry) = entry else {
            return Ok(None);
        };
        let record = serde_json::from_slice(&entry.value)
            .map_err(|error| format!("the record {key} cannot be read: {error}"))?;
        Ok(Some(KnownRecord {
            record,
            revision: entry.revision,
        }))
    }

    /// Writes the record of a node if it has this revision; `None`: if there is no record.
    pub(crate) fn write(
        &self,
        node: &NodeName,
        record: &StandbyRecord,
        revision: Option<u64>,
    ) -> WriteOutcome {
        let value = match serde_json::to_vec(record) {
            Ok(value) => Bytes::from(value),
            Err(error) => return WriteOutcome::Unknown(error.to_string()),
        };
        let key = key(node);
        let expected = match revision {
            Some(revision) => ExpectedRevision::Revision(revision),
            None => ExpectedRevision::Absent,
        };
        let write = self.objects.put(&key, value, expected);
        let write = async { tokio::time::timeout(REQUEST_TIMEOUT, write).await };
        match self.runtime.block_on(write) {
            Ok(Ok(revision)) => WriteOutcome::Written(revision),
            Ok(Err(PutError::Conflict)) => WriteOutcome::Conflict,
            Ok(Err(PutError::Cluster(error))) => WriteOutcome::Unknown(error.to_string()),
            Err(_) => WriteOutcome::Unknown("the cluster's NATS servers do not answer".to_owned()),
        }
    }

    /// The nodes whose sessions `node` has not finished to adopt keep them.
    pub(crate) fn cancel_adoptions(
        &self,
        node: &NodeName,
        members: &[NodeName],
    ) -> Result<(), String> {
        for member in members {
            let Some(known) = self.read(member)? else {
                continue;
            };
            if known.record.adopted_by.as_ref() != Some(node) || known.record.is_adopted {
                continue;
            }
            let record = StandbyRecord {
                adopted_by: None,
                ..known.record
            };
            match self.write(member, &record, Some(known.revision)) {
                WriteOutcome::Written(_) => {
                    tracing::warn!(node = %member, adopter = %node, "a node keeps its sessions, because the one that was to adopt them is removed");
                }
                WriteOutcome::Conflict => {}
                WriteOutcome::Unknown(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn key(node: &NodeName) -> String {
    format!("standby.{node}")
}
