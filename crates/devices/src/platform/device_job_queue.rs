//! The queue of blocking work on device messages: shards and workers add jobs in order and continue.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use hooks::DurableCallback;
use series::DeviceNo;

use super::control_request::ControlRequest;
use crate::authenticator::DeviceAdmission;
use crate::ingest::OwnedDeviceMessage;
use crate::protocol::DeviceProtocol;

/// Number and total size of queued jobs from which publishers have to wait.
const MAX_JOBS: usize = 10_000;
const MAX_BYTES: usize = 16 << 20;

/// A control message of a device.
pub(super) struct ControlJob {
    /// The device on whose connection it arrived.
    pub(super) sender: DeviceNo,
    pub(super) subject: DeviceNo,
    pub(super) protocol: DeviceProtocol,
    pub(super) now_ms: i64,
    pub(super) request: ControlRequest,
}

pub(super) enum DeviceJob {
    Control(ControlJob),
    /// A message that names devices which were not in memory.
    Deferred(OwnedDeviceMessage),
    /// The device of a connecting client may have changed.
    RecheckAdmission(Box<DeviceAdmission>, Box<str>),
    /// A client requests registration.
    Provision {
        client_id: Box<str>,
        /// `None`: over a Unix socket.
        from: Option<IpAddr>,
        request: Box<[u8]>,
    },
}

impl DeviceJob {
    /// Approximate memory of the job.
    fn bytes(&self) -> usize {
        match self {
            Self::Control(sent) => sent.request.bytes(),
            Self::Deferred(again) => again.bytes(),
            Self::RecheckAdmission(_, client_id) => client_id.len(),
            Self::Provision {
                client_id, request, ..
            } => client_id.len() + request.len(),
        }
    }
}

#[derive(Default)]
struct JobQueueState {
    jobs: VecDeque<DeviceJob>,
    /// Number of jobs ever added, and of those completed.
    enqueued: u64,
    done: u64,
    /// Callbacks, each with the number of completed jobs it waits for.
    waiters: VecDeque<(u64, DurableCallback)>,
    is_stopped: bool,
    has_ended: bool,
}

#[derive(Default)]
pub(super) struct DeviceJobQueue {
    state: Mutex<JobQueueState>,
    changed: Condvar,
    /// Number of queued jobs.
    jobs: AtomicUsize,
    bytes: AtomicUsize,
    thread: OnceLock<ThreadId>,
}

impl DeviceJobQueue {
    fn lock(&self) -> MutexGuard<'_, JobQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, job: DeviceJob) {
        self.jobs.fetch_add(1, Relaxed);
        self.bytes.fetch_add(job.bytes(), Relaxed);
        let mut state = self.lock();
        state.enqueued += 1;
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn is_full(&self) -> bool {
        self.jobs.load(Relaxed) > MAX_JOBS || self.bytes.load(Relaxed) > MAX_BYTES
    }

    fn wait<'g>(&self, state: MutexGuard<'g, JobQueueState>) -> MutexGuard<'g, JobQueueState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None`: the queue is stopped.
    pub(super) fn next(&self) -> Option<DeviceJob> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                self.jobs.fetch_sub(1, Relaxed);
                self.bytes.fetch_sub(job.bytes(), Relaxed);
                return Some(job);
            }
            if state.is_stopped {
                state.has_ended = true;
                self.changed.notify_all();
                return None;
            }
            state = self.wait(state);
        }
    }

    pub(super) fn begin(&self) {
        // Only one thread sets this.
        let _ = self.thread.set(thread::current().id());
    }

    /// Whether this is the worker thread, whose own messages run their jobs immediately.
    pub(super) fn is_worker_thread(&self) -> bool {
        (self.thread.get()).is_some_and(|thread| *thread == thread::current().id())
    }

    pub(super) fn done(&self) {
        let mut state = self.lock();
        state.done += 1;
        let done = state.done;
        let is_due = |(number, _): &(u64, DurableCallback)| *number <= done;
        let due = state.waiters.iter().take_while(|caller| is_due(caller));
        let count = due.count();
        let due: Vec<_> = state.waiters.drain(..count).collect();
        drop(state);
        self.changed.notify_all();
        due.into_iter().for_each(|(_, settled)| settled());
    }

    /// Calls `settled` when all jobs added so far are complete.
    pub(super) fn settle(&self, settled: DurableCallback) {
        let mut state = self.lock();
        let came = state.enqueued;
        if state.done < came && !state.has_ended {
            state.waiters.push_back((came, settled));
            return;
        }
        drop(state);
        settled();
    }

    /// Waits until no job is queued or running.
    pub(super) fn wait_idle(&self) {
        let mut state = self.lock();
        while state.done < state.enqueued && !state.has_ended {
            state = self.wait(state);
        }
    }

    pub(super) fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
        self.wait_idle();
    }
}
