//! The queue and the thread for blocking work on device messages: shards and workers add jobs in order and
//! continue.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use broker::hooks::DurableCallback;
use series::DeviceNo;

use super::Platform;
use super::control_request::ControlRequest;
use crate::authenticator::DeviceAdmission;
use crate::command::EncodedDownlink;
use crate::ingest::OwnedDeviceMessage;
use crate::protocol::DeviceProtocol;
use crate::topic_permissions::PROVISION_RESPONSE;

/// Number and total size of queued jobs from which publishers have to wait.
const MAX_JOBS: usize = 10_000;
const MAX_BYTES: usize = 16 << 20;

/// A control message of a device.
pub(super) struct ControlJob {
    /// The device on whose connection it arrived.
    pub(super) sender: DeviceNo,
    pub(super) subject: DeviceNo,
    pub(super) dialect: DeviceProtocol,
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
    fn next(&self) -> Option<DeviceJob> {
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

    fn begin(&self) {
        // Only one thread sets this.
        let _ = self.thread.set(thread::current().id());
    }

    /// Whether this is the worker thread, whose own messages run their jobs immediately.
    pub(super) fn is_worker_thread(&self) -> bool {
        (self.thread.get()).is_some_and(|thread| *thread == thread::current().id())
    }

    fn done(&self) {
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

pub(super) fn start_worker(platform: &Platform) -> std::io::Result<()> {
    let weak = Arc::downgrade(&platform.inner);
    let run = move || {
        let mut lane = None;
        // The thread ends when the last platform is dropped, or when it is stopped.
        while let Some(platform) = weak.upgrade().map(|inner| Platform { inner }) {
            let Some(job) = platform.inner.jobs.next() else {
                return;
            };
            platform.inner.jobs.begin();
            let run = AssertUnwindSafe(|| match job {
                DeviceJob::Control(sent) => platform.run_control_job(&sent),
                DeviceJob::RecheckAdmission(device, client_id) => {
                    platform.recheck_admission(&device, &client_id)
                }
                DeviceJob::Provision {
                    client_id,
                    from,
                    request,
                } => {
                    let messenger = &platform.inner.parts.messenger;
                    let attempts = &platform.inner.provisioning_attempts;
                    let key = super::provisioning::key_of(&request);
                    let now = Instant::now();
                    if attempts.is_blocked(from, &key, now) {
                        tracing::warn!(
                            client_id = &*client_id,
                            ?from,
                            "provisioning refused: too many failures for this key; client disconnected"
                        );
                        messenger.disconnect(std::slice::from_ref(&client_id));
                        return;
                    }
                    let answer = platform.provision(from, &request);
                    if answer.is_err() {
                        attempts.record_failure(from, &key, now);
                    }
                    let (Ok(answer) | Err(answer)) = answer;
                    let encoded = EncodedDownlink {
                        topic: PROVISION_RESPONSE.to_owned(),
                        payload: answer.to_string(),
                        needs_subscription: false,
                        // The answer contains credentials.
                        log_recipient: None,
                    };
                    messenger.send(&client_id, encoded);
                }
                DeviceJob::Deferred(again) => {
                    // During start, the replay loads the devices itself.
                    if let Some(pipeline) = platform.inner.pipeline.get() {
                        let message = again.as_message();
                        platform.load_children(&message);
                        let lane = lane.get_or_insert_with(|| pipeline.retry_lane());
                        pipeline.process(lane, &message);
                    }
                }
            });
            if panic::catch_unwind(run).is_err() {
                tracing::error!("device job panicked; this is a bug");
            }
            platform.inner.jobs.done();
        }
    };
    let builder = thread::Builder::new().name("devices-jobs".to_owned());
    builder.spawn(run).map(|_| ())
}
