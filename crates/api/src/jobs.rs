//! Jobs: work that outlives its request, with progress, and with an end that can be requested. They
//! are kept in memory: a stop of the node ends them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use namespaces::NamespaceSelection;
use schemars::JsonSchema;
use secret::RandomSourceError;
use serde::Serialize;
use wall_clock::now_ms;

use crate::access::random_id;
use crate::job_files::JobFile;
use crate::node_backend::JobProgress;

/// Jobs that run at once.
const MAX_RUNNING: usize = 16;
/// Jobs that are kept, those that have ended included.
const MAX_JOBS: usize = 200;
/// Failures of single items that are kept per job.
const MAX_FAILURES: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobState {
    Running,
    Done,
    /// It was cancelled; items that were processed before stay.
    Cancelled,
    Failed,
}

/// An item that the job could not process.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct JobFailure {
    /// Such as the id of a device.
    subject: String,
    reason: String,
}

/// A job as it is now.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Job")]
pub(crate) struct JobView {
    pub(crate) id: String,
    /// Such as `group_command`.
    kind: &'static str,
    /// What it is about, such as the id of a device group.
    subject: String,
    /// `null`: the job belongs to the node as a whole.
    namespace: Option<String>,
    created_by: String,
    pub(crate) state: JobState,
    /// Whether it was cancelled; it may still run for a moment.
    is_cancel_requested: bool,
    started_at_ms: u64,
    ended_at_ms: Option<u64>,
    /// Number of items processed, failures included.
    done: u64,
    /// `null`: unknown.
    total: Option<u64>,
    failed: u64,
    /// The first 100 failures.
    failures: Vec<JobFailure>,
    /// Why the job as a whole failed.
    error: Option<String>,
    /// Whether there is a file to download: `GET /api/v1/exports/{id}/content`.
    has_result: bool,
}

/// A running job, for the work itself.
#[derive(Clone)]
pub(crate) struct JobHandle(Arc<Job>);

struct Job {
    view: Mutex<JobView>,
    is_cancelled: AtomicBool,
    /// The file that it has written, with its media type.
    result: Mutex<Option<(Arc<JobFile>, &'static str)>>,
}

/// Who starts a job, and what it is about.
pub(crate) struct NewJob {
    pub(crate) kind: &'static str,
    pub(crate) subject: String,
    pub(crate) namespace: Option<String>,
    pub(crate) created_by: String,
}

/// Why a job cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobStartError {
    #[error(
        "{MAX_RUNNING} jobs are running, which is the limit; wait until one has ended, or cancel it"
    )]
    TooMany,
    #[error(transparent)]
    Random(#[from] RandomSourceError),
}

#[derive(Default)]
pub(crate) struct Jobs {
    /// The newest last.
    jobs: Mutex<VecDeque<Arc<Job>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Job {
    fn view(&self) -> JobView {
        JobView {
            is_cancel_requested: self.is_cancelled.load(Relaxed),
            has_result: lock(&self.result).is_some(),
            ..lock(&self.view).clone()
        }
    }

    fn is_running(&self) -> bool {
        lock(&self.view).state == JobState::Running
    }

    fn is_selected(&self, namespaces: &NamespaceSelection) -> bool {
        match &lock(&self.view).namespace {
            Some(namespace) => namespaces.contains(namespace),
            None => *namespaces == NamespaceSelection::All,
        }
    }
}

impl Jobs {
    pub(crate) fn start(&self, job: NewJob) -> Result<JobHandle, JobStartError> {
        let mut jobs = lock(&self.jobs);
        if jobs.iter().filter(|job| job.is_running()).count() >= MAX_RUNNING {
            return Err(JobStartError::TooMany);
        }
        if jobs.len() >= MAX_JOBS
            && let Some(oldest) = jobs.iter().position(|job| !job.is_running())
        {
            jobs.remove(oldest);
        }
        let job = Arc::new(Job {
            view: Mutex::new(JobView {
                id: random_id("job-")?,
                kind: job.kind,
                subject: job.subject,
                namespace: job.namespace,
                created_by: job.created_by,
                state: JobState::Running,
                is_cancel_requested: false,
                started_at_ms: now_ms(),
                ended_at_ms: None,
                done: 0,
                total: None,
                failed: 0,
                failures: Vec::new(),
                error: None,
                has_result: false,
            }),
            is_cancelled: AtomicBool::new(false),
            result: Mutex::default(),
        });
        jobs.push_back(job.clone());
        Ok(JobHandle(job))
    }

    pub(crate) fn is_running(&self, kind: &str) -> bool {
        let jobs = lock(&self.jobs);
        jobs.iter()
            .any(|job| job.is_running() && lock(&job.view).kind == kind)
    }

    /// The jobs of these namespaces, newest first.
    pub(crate) fn list(&self, namespaces: &NamespaceSelection) -> Vec<JobView> {
        let jobs = lock(&self.jobs);
        let selected = jobs.iter().rev().filter(|job| job.is_selected(namespaces));
        selected.map(|job| job.view()).collect()
    }

    fn find(&self, id: &str, namespaces: &NamespaceSelection) -> Option<Arc<Job>> {
        let jobs = lock(&self.jobs);
        let found = jobs.iter().find(|job| lock(&job.view).id == id)?;
        found.is_selected(namespaces).then(|| found.clone())
    }

    pub(crate) fn get(&self, id: &str, namespaces: &NamespaceSelection) -> Option<JobView> {
        Some(self.find(id, namespaces)?.view())
    }

    /// The file of a job, with its media type.
    pub(crate) fn result(
        &self,
        id: &str,
        namespaces: &NamespaceSelection,
    ) -> Option<(Arc<JobFile>, &'static str)> {
        lock(&self.find(id, namespaces)?.result).clone()
    }

    /// Requests the end of a job. One that has ended stays as it is.
    pub(crate) fn cancel(&self, id: &str, namespaces: &NamespaceSelection) -> Option<JobView> {
        let job = self.find(id, namespaces)?;
        if job.is_running() {
            job.is_cancelled.store(true, Relaxed);
        }
        Some(job.view())
    }
}

impl JobProgress for JobHandle {
    fn set_total(&self, total: u64) {
        JobHandle::set_total(self, total);
    }

    fn set_done(&self, done: u64) {
        JobHandle::set_done(self, done);
    }

    fn is_cancelled(&self) -> bool {
        JobHandle::is_cancelled(self)
    }
}

impl JobHandle {
    pub(crate) fn view(&self) -> JobView {
        self.0.view()
    }

    /// Whether the job is to end now.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Relaxed)
    }

    pub(crate) fn set_total(&self, total: u64) {
        lock(&self.0.view).total = Some(total);
    }

    /// Number of items processed so far.
    pub(crate) fn set_done(&self, done: u64) {
        lock(&self.0.view).done = done;
    }

    /// One more item is processed.
    pub(crate) fn advance(&self) {
        self.advance_by(1);
    }

    pub(crate) fn advance_by(&self, items: u64) {
        lock(&self.0.view).done += items;
    }

    /// The file that the job has written. It is removed with the job.
    pub(crate) fn set_result(&self, file: JobFile, media_type: &'static str) {
        *lock(&self.0.result) = Some((Arc::new(file), media_type));
    }

    /// One more item is processed, without success.
    pub(crate) fn fail_item(&self, subject: &str, reason: String) {
        let mut view = lock(&self.0.view);
        (view.done, view.failed) = (view.done + 1, view.failed + 1);
        if view.failures.len() < MAX_FAILURES {
            view.failures.push(JobFailure {
                subject: subject.to_owned(),
                reason,
            });
        }
    }

    /// The job has ended. `Err`: it failed as a whole.
    pub(crate) fn end(&self, outcome: Result<(), String>) {
        let is_cancelled = self.is_cancelled();
        let mut view = lock(&self.0.view);
        view.ended_at_ms = Some(now_ms());
        view.state = match outcome {
            Err(error) => {
                view.error = Some(error);
                JobState::Failed
            }
            Ok(()) if is_cancelled => JobState::Cancelled,
            Ok(()) => JobState::Done,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_job(namespace: Option<&str>) -> NewJob {
        NewJob {
            kind: "test",
            subject: "s".to_owned(),
            namespace: namespace.map(str::to_owned),
            created_by: "ann".to_owned(),
        }
    }

    #[test]
    fn a_job_has_progress_and_an_end() {
        let (jobs, all) = (Jobs::default(), NamespaceSelection::All);
        let job = jobs.start(new_job(None)).expect("room");
        job.set_total(3);
        job.advance();
        job.fail_item("d", "gone".to_owned());
        let id = job.view().id;
        let view = jobs.cancel(&id, &all).expect("exists");
        assert_eq!((view.done, view.failed, view.total), (2, 1, Some(3)));
        assert!(view.is_cancel_requested && view.state == JobState::Running);
        job.end(Ok(()));
        assert_eq!(
            jobs.get(&id, &all).expect("exists").state,
            JobState::Cancelled
        );
        let failed = jobs.start(new_job(None)).expect("room");
        failed.end(Err("no".to_owned()));
        assert_eq!(jobs.list(&all)[0].state, JobState::Failed);
    }

    #[test]
    fn jobs_are_limited_and_belong_to_namespaces() {
        let (jobs, all) = (Jobs::default(), NamespaceSelection::All);
        let running: Vec<_> = (0..MAX_RUNNING)
            .map(|_| jobs.start(new_job(Some("acme"))).expect("room"))
            .collect();
        assert!(jobs.start(new_job(None)).is_err());
        running.iter().for_each(|job| job.end(Ok(())));
        for _ in 0..MAX_JOBS + 5 {
            jobs.start(new_job(None)).expect("room").end(Ok(()));
        }
        assert_eq!(jobs.list(&all).len(), MAX_JOBS);
        let job = jobs.start(new_job(Some("acme"))).expect("room");
        let id = job.view().id;
        assert!(jobs.get(&id, &all.within("acme")).is_some());
        assert!(jobs.get(&id, &all.within("other")).is_none());
        assert_eq!(jobs.list(&all.within("acme")).len(), 1);
    }
}
