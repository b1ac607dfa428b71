//! Keeps the configuration objects of a node equal to those of the cluster, and changes them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::local::{LocalObject, LocalObjects, LocalObjectsError};
use super::name::ObjectName;
use super::replica::{ObjectReplica, ReplicaEvent, ReplicaPhase, ReplicaRequest};
use super::stored;
use crate::error::{ClusterError, PutError};
use crate::fabric::{ClusterObjects, ExpectedRevision};
use crate::member::NodeName;

/// Pause after the objects of this node could not be read or stored.
const LOCAL_RETRY: Duration = Duration::from_secs(1);
/// How long a change waits until this node has stored it, or the change of another node that precedes it.
const APPLY_LIMIT: Duration = Duration::from_secs(10);
const MAX_SLEEP_MS: u64 = 60_000;
const MAX_REPORTED_CONFLICTS: usize = 100;

/// Why an object was not changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReplicatedObjectsError {
    /// The object has another version than expected.
    #[error("the object was changed by someone else")]
    Conflict,
    /// The change is not possible now. It may have been made nevertheless if the connection was lost meanwhile.
    #[error("{0}")]
    Unavailable(String),
    /// The object cannot be stored in a cluster.
    #[error("{0}")]
    Invalid(String),
}

impl From<LocalObjectsError> for ReplicatedObjectsError {
    fn from(error: LocalObjectsError) -> Self {
        Self::Unavailable(error.0)
    }
}

/// What is known of the objects, for people.
#[derive(Debug, Clone)]
pub struct ReplicatedObjectsStatus {
    pub phase: ReplicaPhase,
    /// Objects of the cluster.
    pub objects: usize,
    /// Everything up to this revision is stored on this node.
    pub revision: u64,
    /// Objects that only this node has, since they are too large for the cluster.
    pub local_only: Vec<ObjectName>,
    /// Objects of this node that were replaced by those of the cluster when it joined, at most 100 of them.
    pub conflicts: Vec<ObjectName>,
    /// Why the objects of this node and of the cluster are not equal now.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReplicaProgress {
    phase: ReplicaPhase,
    revision: u64,
}

#[derive(Debug, Default)]
struct ReplicaReports {
    conflicts: VecDeque<ObjectName>,
    local_error: Option<String>,
}

/// The configuration objects that all nodes of a cluster have.
pub struct ReplicatedObjects {
    objects: Arc<dyn ClusterObjects>,
    local: Arc<dyn LocalObjects>,
    replica: Mutex<ObjectReplica>,
    progress: watch::Sender<ReplicaProgress>,
    reports: Mutex<ReplicaReports>,
    started: Instant,
}

impl ReplicatedObjects {
    /// `random_id` returns ids that nobody else has.
    pub fn new(
        node: NodeName,
        objects: Arc<dyn ClusterObjects>,
        local: Arc<dyn LocalObjects>,
        random_id: impl FnMut() -> String + Send + 'static,
    ) -> Arc<Self> {
        let replica = ObjectReplica::new(node, random_id, 0);
        let progress = ReplicaProgress {
            phase: replica.phase(),
            revision: 0,
        };
        Arc::new(Self {
            objects,
            local,
            replica: Mutex::new(replica),
            progress: watch::Sender::new(progress),
            reports: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Begins to follow the objects of the cluster. The task ends when it is aborted.
    pub fn start(self: &Arc<Self>) -> JoinHandle<()> {
        tokio::spawn(self.clone().follow())
    }

    pub fn status(&self) -> ReplicatedObjectsStatus {
        let replica = self.replica();
        let reports = self.reports();
        ReplicatedObjectsStatus {
            phase: replica.phase(),
            objects: replica.objects(),
            revision: replica.handled_revision(),
            local_only: replica.local_only().iter().cloned().collect(),
            conflicts: reports.conflicts.iter().cloned().collect(),
            error: reports
                .local_error
                .clone()
                .or_else(|| replica.last_error().map(str::to_owned)),
        }
    }

    /// Waits until the objects of this node are those of the cluster.
    pub async fn wait_until_synchronized(&self) {
        let is_synchronized =
            |progress: &ReplicaProgress| progress.phase == ReplicaPhase::Synchronized;
        let _ = self.progress.subscribe().wait_for(is_synchronized).await;
    }

    /// Creates or replaces an object in the cluster and on this node, and returns its version. `expected` is about the
    /// object on this node.
    ///
    /// # Errors
    /// If the object has another version, or the change is not possible now or at all. After
    /// [`Conflict`](ReplicatedObjectsError::Conflict) this node has the other version.
    pub async fn put(
        &self,
        name: &ObjectName,
        value: Value,
        expected: ExpectedRevision,
    ) -> Result<u64, ReplicatedObjectsError> {
        self.check_synchronized()?;
        let key = name
            .key()
            .map_err(|error| ReplicatedObjectsError::Invalid(error.to_string()))?;
        let current = self.current(name, expected).await?;
        let now_ms = wall_clock::now_ms();
        let object = LocalObject {
            name: name.clone(),
            value,
            version: 0,
            created_ms: current.as_ref().map_or(now_ms, |object| object.created_ms),
            updated_ms: now_ms,
        };
        let encoded = stored::encode(&object).map_err(ReplicatedObjectsError::Invalid)?;
        let expected_in_cluster = match self.replica().local_only().contains(name) {
            true => ExpectedRevision::Absent,
            false => expected,
        };
        let stored = self.objects.put(&key, encoded, expected_in_cluster).await;
        self.finish_change(name, expected, stored).await
    }

    /// Removes an object from the cluster and this node; `false` if this node does not have it.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn delete(
        &self,
        name: &ObjectName,
        expected: ExpectedRevision,
    ) -> Result<bool, ReplicatedObjectsError> {
        self.check_synchronized()?;
        if self.current(name, expected).await?.is_none() {
            return Ok(false);
        }
        if self.replica().local_only().contains(name) {
            self.delete_local_only(name).await?;
            return Ok(true);
        }
        let key = name
            .key()
            .map_err(|error| ReplicatedObjectsError::Invalid(error.to_string()))?;
        let stored = self.objects.delete(&key, expected).await;
        self.finish_change(name, expected, stored).await?;
        Ok(true)
    }

    fn check_synchronized(&self) -> Result<(), ReplicatedObjectsError> {
        let phase = self.progress.borrow().phase;
        if phase == ReplicaPhase::Synchronized {
            return Ok(());
        }
        let reason = match self.status().error {
            Some(error) => format!(": {error}"),
            None => String::new(),
        };
        Err(ReplicatedObjectsError::Unavailable(format!(
            "this node is not synchronized with its cluster ({}){reason}; try again later",
            phase.as_str()
        )))
    }

    /// The object of this node, if it is as expected.
    async fn current(
        &self,
        name: &ObjectName,
        expected: ExpectedRevision,
    ) -> Result<Option<LocalObject>, ReplicatedObjectsError> {
        let (local, name) = (self.local.clone(), name.clone());
        let current = blocking(move || local.get(&name)).await?;
        let is_expected = match (expected, &current) {
            (ExpectedRevision::Any, _) | (ExpectedRevision::Absent, None) => true,
            (ExpectedRevision::Revision(version), Some(current)) => current.version == version,
            (ExpectedRevision::Absent, Some(_)) | (ExpectedRevision::Revision(_), None) => false,
        };
        match is_expected {
            true => Ok(current),
            false => Err(ReplicatedObjectsError::Conflict),
        }
    }

    async fn delete_local_only(&self, name: &ObjectName) -> Result<(), ReplicatedObjectsError> {
        let (local, removed) = (self.local.clone(), name.clone());
        blocking(move || local.remove(&removed)).await?;
        let local = self.local.clone();
        let forgotten = self.replica().forget_local_only(name, local.as_ref());
        forgotten.map_err(ReplicatedObjectsError::from)
    }

    /// Waits until this node has what the cluster has now, whether it accepted the change or has another one.
    async fn finish_change(
        &self,
        name: &ObjectName,
        expected: ExpectedRevision,
        stored: Result<u64, PutError>,
    ) -> Result<u64, ReplicatedObjectsError> {
        let revision = match stored {
            Ok(revision) => revision,
            Err(PutError::Conflict) => {
                return Err(self.wait_for_other_change(name, expected).await);
            }
            Err(PutError::Cluster(error @ ClusterError::Rejected(_))) => {
                return Err(ReplicatedObjectsError::Invalid(error.to_string()));
            }
            Err(PutError::Cluster(error)) => {
                return Err(ReplicatedObjectsError::Unavailable(error.to_string()));
            }
        };
        let mut progress = self.progress.subscribe();
        let is_handled = |progress: &ReplicaProgress| progress.revision >= revision;
        match timeout(APPLY_LIMIT, progress.wait_for(is_handled)).await {
            Ok(_) => Ok(revision),
            Err(_) => Err(ReplicatedObjectsError::Unavailable(
                "the change is stored in the cluster, and this node has not received it yet"
                    .to_owned(),
            )),
        }
    }

    /// Waits until the object of this node is not as expected, and returns the error of the change.
    async fn wait_for_other_change(
        &self,
        name: &ObjectName,
        expected: ExpectedRevision,
    ) -> ReplicatedObjectsError {
        let mut progress = self.progress.subscribe();
        let received = async {
            loop {
                if let Err(error) = self.current(name, expected).await {
                    return error;
                }
                // The sender lives as long as this object.
                let _ = progress.changed().await;
            }
        };
        timeout(APPLY_LIMIT, received).await.unwrap_or_else(|_| {
            ReplicatedObjectsError::Unavailable(
                "another node has changed the object, and this node has not received that yet"
                    .to_owned(),
            )
        })
    }

    fn replica(&self) -> MutexGuard<'_, ObjectReplica> {
        self.replica.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reports(&self) -> MutexGuard<'_, ReplicaReports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    async fn follow(self: Arc<Self>) {
        let mut changes = self.objects.watch();
        let mut request: Option<JoinHandle<Result<u64, PutError>>> = None;
        loop {
            if request.is_none() {
                let next = self
                    .with_replica(|replica, local, now_ms| replica.poll_request(local, now_ms))
                    .await;
                request = next.map(|request| self.send(request));
            }
            let sleep_ms = self
                .replica()
                .next_timeout_ms()
                .saturating_sub(self.now_ms())
                .min(MAX_SLEEP_MS);
            tokio::select! {
                change = changes.recv() => {
                    let Some(change) = change else { return };
                    self.with_replica(move |replica, local, now_ms| {
                        replica.handle_change(&change, local, now_ms)
                    })
                    .await;
                }
                answer = answer_of(&mut request) => {
                    request = None;
                    let now_ms = self.now_ms();
                    self.replica().handle_answer(answer, now_ms);
                }
                () = sleep(Duration::from_millis(sleep_ms)), if request.is_none() => {}
            }
        }
    }

    fn send(&self, request: ReplicaRequest) -> JoinHandle<Result<u64, PutError>> {
        let objects = self.objects.clone();
        tokio::spawn(async move {
            let ReplicaRequest {
                key,
                value,
                expected,
            } = request;
            objects.put(&key, value, expected).await
        })
    }

    /// Calls the replica on a thread that may block, again until the objects of this node can be read and stored.
    async fn with_replica<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Fn(&mut ObjectReplica, &dyn LocalObjects, u64) -> Result<T, LocalObjectsError>
        + Send
        + Sync
        + 'static,
    ) -> T {
        let call = Arc::new(call);
        loop {
            let (this, call) = (self.clone(), call.clone());
            let now_ms = self.now_ms();
            let outcome =
                blocking(move || call(&mut this.replica(), this.local.as_ref(), now_ms)).await;
            self.report(outcome.as_ref().err());
            match outcome {
                Ok(value) => return value,
                Err(_) => sleep(LOCAL_RETRY).await,
            }
        }
    }

    fn report(&self, error: Option<&LocalObjectsError>) {
        let (events, progress) = {
            let mut replica = self.replica();
            let events: Vec<ReplicaEvent> = std::iter::from_fn(|| replica.poll_event()).collect();
            let progress = ReplicaProgress {
                phase: replica.phase(),
                revision: replica.handled_revision(),
            };
            (events, progress)
        };
        {
            let mut reports = self.reports();
            if let Some(error) = error
                && reports.local_error.is_none()
            {
                tracing::warn!(%error, "this node cannot store the configuration objects of its cluster; trying again");
            }
            reports.local_error = error.map(|error| error.0.clone());
            for event in events {
                report_event(event, &mut reports);
            }
        }
        self.progress.send_if_modified(|before| {
            let is_changed = *before != progress;
            *before = progress;
            is_changed
        });
    }
}

fn report_event(event: ReplicaEvent, reports: &mut ReplicaReports) {
    match event {
        ReplicaEvent::Synchronized => {
            tracing::info!("this node has all configuration objects of its cluster");
        }
        ReplicaEvent::Conflict { name } => {
            tracing::warn!(
                kind = name.kind,
                id = name.id,
                "the configuration object of the cluster has replaced a different one of this node"
            );
            reports.conflicts.push_back(name);
            if reports.conflicts.len() > MAX_REPORTED_CONFLICTS {
                reports.conflicts.pop_front();
            }
        }
        ReplicaEvent::NotStored { name, reason } => tracing::warn!(
            kind = name.kind,
            id = name.id,
            reason,
            "a configuration object exists on this node only"
        ),
        ReplicaEvent::Unreadable { key, reason } => tracing::error!(
            key,
            reason,
            "a configuration object of the cluster cannot be read; this node keeps its own version of it"
        ),
        ReplicaEvent::AllLost => tracing::error!(
            "the cluster's NATS servers have lost the configuration objects; the nodes store theirs again"
        ),
    }
}

async fn answer_of(
    request: &mut Option<JoinHandle<Result<u64, PutError>>>,
) -> Result<u64, PutError> {
    match request {
        Some(request) => request.await.unwrap_or_else(|_| {
            Err(ClusterError::Unreachable("the request has ended".to_owned()).into())
        }),
        None => std::future::pending().await,
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LocalObjectsError> + Send + 'static,
) -> Result<T, LocalObjectsError> {
    let ended = |_| LocalObjectsError("the node is stopping".to_owned());
    spawn_blocking(work).await.map_err(ended)?
}
