//! Keeps the configuration objects of a node equal to those of the cluster.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::local::{LocalObject, LocalObjects, LocalObjectsError, ReplicaRecord};
use super::name::{ObjectName, SET_KEY};
use super::stored::{self, ObjectSet};
use crate::error::PutError;
use crate::fabric::{ExpectedRevision, ObjectChange, ObjectEntry};
use crate::member::NodeName;

/// How long a node waits for another one that stores its objects first, and makes no progress.
const CLAIM_TIMEOUT_MS: u64 = 30_000;
/// Pause after a request that failed.
const RETRY_MS: u64 = 1000;

/// What a replica is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaPhase {
    /// It reads the objects of the cluster.
    Reading,
    /// The cluster has no objects, and this node tries to be the one that stores its own.
    Claiming,
    /// Another node stores its objects first.
    Waiting,
    /// The node stores objects that only it has.
    Uploading,
    /// The objects of the node are those of the cluster.
    Synchronized,
}

impl ReplicaPhase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Claiming => "claiming",
            Self::Waiting => "waiting",
            Self::Uploading => "uploading",
            Self::Synchronized => "synchronized",
        }
    }
}

/// What people should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaEvent {
    Synchronized,
    /// This node had another object of this name before it joined; the one of the cluster has replaced it.
    Conflict {
        name: ObjectName,
    },
    /// An object of this node is not stored in the cluster.
    NotStored {
        name: ObjectName,
        reason: String,
    },
    /// An object of the cluster cannot be read, for example because a newer version has written it. The node keeps what it
    /// has.
    Unreadable {
        key: String,
        reason: String,
    },
    /// The servers have lost all objects. The nodes store their own again.
    AllLost,
}

/// A request to [`ClusterObjects::put`](crate::ClusterObjects::put).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaRequest {
    pub key: String,
    pub value: Bytes,
    pub expected: ExpectedRevision,
}

/// A set of objects as the cluster has it.
#[derive(Debug)]
struct SetRevision {
    set: ObjectSet,
    revision: u64,
}

/// An object of the cluster.
#[derive(Debug)]
struct KnownObject {
    revision: u64,
    /// Present until the node has stored it.
    waiting: Option<LocalObject>,
}

/// Makes the objects of a node follow those of the cluster.
///
/// The cluster has a record with a random id of its set of objects. A node whose own record has the same id has a copy of the
/// set: what the cluster has not, was deleted while the node was away. Any other node joins: its own objects are added, except
/// for those that the cluster has already. If there is no set, one node creates it and stores its objects; the others wait
/// and join then. Thus a deletion is never mistaken for a loss of the servers' data, nor the reverse.
///
/// The owner passes each change of [`ClusterObjects::watch`](crate::ClusterObjects::watch) to [`handle_change`](Self::handle_change), carries
/// out what [`poll_request`](Self::poll_request) returns, and passes the answer to [`handle_answer`](Self::handle_answer). It
/// polls after each call, and at [`next_timeout_ms`](Self::next_timeout_ms). A call that fails because of the local objects
/// is to be repeated with the same arguments.
pub struct ObjectReplica {
    node: NodeName,
    /// Source of ids of sets.
    random_id: Box<dyn FnMut() -> String + Send>,
    phase: ReplicaPhase,
    set: Option<SetRevision>,
    /// The set that was last compared with the objects of this node, and whether these are a copy of it.
    compared_set: Option<(String, bool)>,
    known: BTreeMap<ObjectName, KnownObject>,
    /// Objects that the servers do not have any more. At the end of the listing it is known whether they were deleted.
    lost: BTreeSet<ObjectName>,
    uploads: VecDeque<ObjectName>,
    local_only: BTreeSet<ObjectName>,
    /// The upload that waits for its answer, or nothing for a change of the set.
    in_flight: Option<Option<ObjectName>>,
    retry_at_ms: u64,
    progress_ms: u64,
    handled_revision: u64,
    last_error: Option<String>,
    events: VecDeque<ReplicaEvent>,
}

impl ObjectReplica {
    /// `random_id` returns ids that nobody else has.
    pub fn new(
        node: NodeName,
        random_id: impl FnMut() -> String + Send + 'static,
        now_ms: u64,
    ) -> Self {
        Self {
            node,
            random_id: Box::new(random_id),
            phase: ReplicaPhase::Reading,
            set: None,
            compared_set: None,
            known: BTreeMap::new(),
            lost: BTreeSet::new(),
            uploads: VecDeque::new(),
            local_only: BTreeSet::new(),
            in_flight: None,
            retry_at_ms: 0,
            progress_ms: now_ms,
            handled_revision: 0,
            last_error: None,
            events: VecDeque::new(),
        }
    }

    pub fn phase(&self) -> ReplicaPhase {
        self.phase
    }

    /// Number of objects of the cluster.
    pub fn objects(&self) -> usize {
        self.known.len()
    }

    /// Objects that only this node has.
    pub fn local_only(&self) -> &BTreeSet<ObjectName> {
        &self.local_only
    }

    /// Everything up to this revision is stored on this node, once it is synchronized.
    pub fn handled_revision(&self) -> u64 {
        self.handled_revision
    }

    /// Why the last request failed; `None` if it did not.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    pub fn poll_event(&mut self) -> Option<ReplicaEvent> {
        self.events.pop_front()
    }

    /// When [`poll_request`](Self::poll_request) is to be called again at the latest.
    pub fn next_timeout_ms(&self) -> u64 {
        match self.phase {
            _ if self.in_flight.is_some() => u64::MAX,
            ReplicaPhase::Reading | ReplicaPhase::Synchronized => u64::MAX,
            ReplicaPhase::Claiming | ReplicaPhase::Uploading => self.retry_at_ms,
            ReplicaPhase::Waiting if self.set.is_none() => u64::MAX,
            ReplicaPhase::Waiting => self.retry_at_ms.max(self.progress_ms + CLAIM_TIMEOUT_MS),
        }
    }

    /// # Errors
    /// If the objects of this node cannot be read or stored.
    pub fn handle_change(
        &mut self,
        change: &ObjectChange,
        local: &dyn LocalObjects,
        now_ms: u64,
    ) -> Result<(), LocalObjectsError> {
        match change {
            ObjectChange::Put { key, entry } if key == SET_KEY => {
                self.handle_set(entry, local)?;
            }
            ObjectChange::Put { key, entry } => {
                if let Some(name) = ObjectName::from_key(key) {
                    self.handle_put(name, entry, local)?;
                }
            }
            ObjectChange::Deleted { key, .. } | ObjectChange::Lost { key } if key == SET_KEY => {
                self.set = None;
                if let ReplicaPhase::Waiting | ReplicaPhase::Uploading = self.phase {
                    self.begin(ReplicaPhase::Claiming);
                }
            }
            ObjectChange::Deleted { key, revision } => {
                if let Some(name) = ObjectName::from_key(key) {
                    self.handle_deletion(&name, *revision, local)?;
                }
            }
            ObjectChange::Lost { key } => {
                self.lost.extend(ObjectName::from_key(key));
            }
            ObjectChange::Complete => self.finish_listing(local)?,
        }
        self.progress_ms = now_ms;
        let revision = match change {
            ObjectChange::Put { entry, .. } => entry.revision,
            ObjectChange::Deleted { revision, .. } => *revision,
            ObjectChange::Lost { .. } | ObjectChange::Complete => 0,
        };
        self.handled_revision = self.handled_revision.max(revision);
        Ok(())
    }

    fn handle_set(
        &mut self,
        entry: &ObjectEntry,
        local: &dyn LocalObjects,
    ) -> Result<(), LocalObjectsError> {
        let set = match ObjectSet::decode(&entry.value) {
            Ok(set) => set,
            Err(reason) => {
                let key = SET_KEY.to_owned();
                self.events
                    .push_back(ReplicaEvent::Unreadable { key, reason });
                return Ok(());
            }
        };
        self.set = Some(SetRevision {
            set,
            revision: entry.revision,
        });
        self.retry_at_ms = 0;
        match self.phase {
            // The listing is still incomplete, or it is compared at the end of the next one.
            ReplicaPhase::Reading | ReplicaPhase::Synchronized => Ok(()),
            ReplicaPhase::Claiming | ReplicaPhase::Waiting | ReplicaPhase::Uploading => {
                self.compare(local)
            }
        }
    }

    fn handle_put(
        &mut self,
        name: ObjectName,
        entry: &ObjectEntry,
        local: &dyn LocalObjects,
    ) -> Result<(), LocalObjectsError> {
        self.lost.remove(&name);
        let is_known = self
            .known
            .get(&name)
            .is_some_and(|known| known.revision >= entry.revision);
        if is_known {
            return Ok(());
        }
        let waiting = match stored::decode(&name, entry) {
            Ok(object) => Some(object),
            Err(reason) => {
                let key = name.to_string();
                self.events
                    .push_back(ReplicaEvent::Unreadable { key, reason });
                None
            }
        };
        let mut known = KnownObject {
            revision: entry.revision,
            waiting,
        };
        if let ReplicaPhase::Uploading | ReplicaPhase::Synchronized = self.phase {
            let is_copy = self.is_copy();
            let is_conflict = store(&mut known, is_copy, local)?;
            self.report_conflict(is_conflict, &name);
            if self.local_only.remove(&name) {
                self.write_record(local)?;
            }
        }
        self.known.insert(name, known);
        Ok(())
    }

    /// Whether the objects of this node are a copy of the cluster's, so that a difference is no conflict.
    fn is_copy(&self) -> bool {
        self.phase == ReplicaPhase::Synchronized
            || self
                .compared_set
                .as_ref()
                .is_some_and(|(_, is_copy)| *is_copy)
    }

    fn report_conflict(&mut self, is_conflict: bool, name: &ObjectName) {
        if is_conflict {
            let name = name.clone();
            self.events.push_back(ReplicaEvent::Conflict { name });
        }
    }

    fn handle_deletion(
        &mut self,
        name: &ObjectName,
        revision: u64,
        local: &dyn LocalObjects,
    ) -> Result<(), LocalObjectsError> {
        self.lost.remove(name);
        let is_known = self
            .known
            .get(name)
            .is_some_and(|known| known.revision < revision);
        if !is_known {
            return Ok(());
        }
        if let ReplicaPhase::Uploading | ReplicaPhase::Synchronized = self.phase {
            local.remove(name)?;
        }
        self.known.remove(name);
        Ok(())
    }

    fn finish_listing(&mut self, local: &dyn LocalObjects) -> Result<(), LocalObjectsError> {
        let set_id = self.set.as_ref().map(|known| &known.set.id);
        let is_same_set = match &self.compared_set {
            Some((compared, _)) => set_id == Some(compared),
            None => false,
        };
        let is_following = matches!(
            self.phase,
            ReplicaPhase::Uploading | ReplicaPhase::Synchronized
        );
        if is_following && is_same_set {
            // Somebody has deleted them, and the servers have forgotten who.
            while let Some(name) = self.lost.first() {
                local.remove(name)?;
                self.known.remove(name);
                self.lost.pop_first();
            }
            return Ok(());
        }
        for name in std::mem::take(&mut self.lost) {
            self.known.remove(&name);
        }
        if is_following {
            self.events.push_back(ReplicaEvent::AllLost);
        }
        self.compare(local)
    }

    /// Decides what to do once all objects of the cluster are known.
    fn compare(&mut self, local: &dyn LocalObjects) -> Result<(), LocalObjectsError> {
        let Some(SetRevision { set, .. }) = &self.set else {
            self.begin(ReplicaPhase::Claiming);
            return Ok(());
        };
        if !set.is_complete && set.node != self.node {
            self.begin(ReplicaPhase::Waiting);
            return Ok(());
        }
        let is_compared = self
            .compared_set
            .as_ref()
            .is_some_and(|(compared, _)| *compared == set.id);
        if is_compared && self.phase == ReplicaPhase::Uploading {
            // Only the record of the set has changed.
            return Ok(());
        }
        let set_id = set.id.clone();
        let record = local.record()?;
        let record = record.filter(|record| record.set_id == set_id);
        let is_copy = record.is_some();
        let local_only = record.map_or_else(Vec::new, |record| record.local_only);
        let versions: BTreeMap<ObjectName, u64> = local.list()?.into_iter().collect();
        for (name, known) in &mut self.known {
            if is_copy && versions.get(name) == Some(&known.revision) {
                known.waiting = None;
            }
            if store(known, is_copy, local)? {
                let name = name.clone();
                self.events.push_back(ReplicaEvent::Conflict { name });
            }
        }
        let mut uploads = VecDeque::new();
        for name in versions.into_keys() {
            if self.known.contains_key(&name) {
                continue;
            }
            if is_copy && !local_only.contains(&name) {
                local.remove(&name)?;
            } else {
                uploads.push_back(name);
            }
        }
        self.begin(ReplicaPhase::Uploading);
        self.uploads = uploads;
        self.compared_set = Some((set_id, is_copy));
        Ok(())
    }

    fn begin(&mut self, phase: ReplicaPhase) {
        self.phase = phase;
        self.uploads.clear();
        self.local_only.clear();
        self.compared_set = None;
    }

    /// The next request, if one is due and none waits for its answer.
    ///
    /// # Errors
    /// If the objects of this node cannot be read or stored.
    pub fn poll_request(
        &mut self,
        local: &dyn LocalObjects,
        now_ms: u64,
    ) -> Result<Option<ReplicaRequest>, LocalObjectsError> {
        if self.in_flight.is_some() || now_ms < self.next_timeout_ms() {
            return Ok(None);
        }
        match self.phase {
            ReplicaPhase::Reading | ReplicaPhase::Synchronized => Ok(None),
            ReplicaPhase::Claiming => {
                let set = ObjectSet {
                    id: (self.random_id)(),
                    node: self.node.clone(),
                    is_complete: false,
                };
                Ok(Some(self.request_set(&set, ExpectedRevision::Absent)))
            }
            // The other node has ended while it stored its objects.
            ReplicaPhase::Waiting => Ok(self.request_own_set(false)),
            ReplicaPhase::Uploading => self.poll_upload(local),
        }
    }

    fn request_set(&mut self, set: &ObjectSet, expected: ExpectedRevision) -> ReplicaRequest {
        self.in_flight = Some(None);
        ReplicaRequest {
            key: SET_KEY.to_owned(),
            value: set.encode(),
            expected,
        }
    }

    fn request_own_set(&mut self, is_complete: bool) -> Option<ReplicaRequest> {
        let known = self.set.as_ref()?;
        let set = ObjectSet {
            id: known.set.id.clone(),
            node: self.node.clone(),
            is_complete,
        };
        let revision = known.revision;
        Some(self.request_set(&set, ExpectedRevision::Revision(revision)))
    }

    fn poll_upload(
        &mut self,
        local: &dyn LocalObjects,
    ) -> Result<Option<ReplicaRequest>, LocalObjectsError> {
        while let Some(name) = self.uploads.front() {
            let object = match self.known.contains_key(name) {
                true => None,
                false => local.get(name)?,
            };
            let Some(name) = self.uploads.pop_front() else {
                break;
            };
            let Some(object) = object else { continue };
            let encoded = name
                .key()
                .map_err(|error| error.to_string())
                .and_then(|key| Ok((key, stored::encode(&object)?)));
            match encoded {
                Ok((key, value)) => {
                    self.in_flight = Some(Some(name));
                    return Ok(Some(ReplicaRequest {
                        key,
                        value,
                        expected: ExpectedRevision::Absent,
                    }));
                }
                Err(reason) => {
                    self.local_only.insert(name.clone());
                    self.events
                        .push_back(ReplicaEvent::NotStored { name, reason });
                }
            }
        }
        if (self.set.as_ref()).is_some_and(|known| !known.set.is_complete) {
            return Ok(self.request_own_set(true));
        }
        self.write_record(local)?;
        self.phase = ReplicaPhase::Synchronized;
        self.events.push_back(ReplicaEvent::Synchronized);
        Ok(None)
    }

    fn write_record(&self, local: &dyn LocalObjects) -> Result<(), LocalObjectsError> {
        // Before the end of the uploads, a restart has to begin them again.
        let is_finished = self.uploads.is_empty() && self.in_flight.is_none();
        let Some((set_id, _)) = self.compared_set.as_ref().filter(|_| is_finished) else {
            return Ok(());
        };
        local.set_record(&ReplicaRecord {
            set_id: set_id.clone(),
            local_only: self.local_only.iter().cloned().collect(),
        })
    }

    /// Handles the answer to the last request.
    pub fn handle_answer(&mut self, answer: Result<u64, PutError>, now_ms: u64) {
        let Some(request) = self.in_flight.take() else {
            return;
        };
        self.last_error = None;
        match answer {
            // The watch reports what was stored, by this node or another one.
            Ok(_) | Err(PutError::Conflict) if request.is_some() => {}
            Ok(_) | Err(PutError::Conflict) => self.retry_at_ms = now_ms + RETRY_MS,
            Err(PutError::Cluster(error)) => {
                self.last_error = Some(error.to_string());
                self.retry_at_ms = now_ms + RETRY_MS;
                if let Some(name) = request
                    && self.phase == ReplicaPhase::Uploading
                {
                    self.uploads.push_front(name);
                }
            }
        }
    }

    /// Forgets that an object exists on this node only, after it was deleted here.
    ///
    /// # Errors
    /// If the record of this node cannot be stored.
    pub fn forget_local_only(
        &mut self,
        name: &ObjectName,
        local: &dyn LocalObjects,
    ) -> Result<(), LocalObjectsError> {
        match self.local_only.remove(name) {
            true => self.write_record(local),
            false => Ok(()),
        }
    }
}

/// Stores an object that waits for it. Returns whether the node had another one before it joined.
fn store(
    known: &mut KnownObject,
    is_copy: bool,
    local: &dyn LocalObjects,
) -> Result<bool, LocalObjectsError> {
    let Some(object) = &known.waiting else {
        return Ok(false);
    };
    let before = match is_copy {
        true => None,
        false => local.get(&object.name)?,
    };
    local.apply(object)?;
    let is_conflict = before.is_some_and(|before| before.value != object.value);
    known.waiting = None;
    Ok(is_conflict)
}
