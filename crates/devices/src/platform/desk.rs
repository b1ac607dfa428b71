//! One thread for what devices say that may wait for the disk: shards and workers leave it here, in order, and go on.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use broker::hooks::Settled;
use series::DeviceNo;

use super::Platform;
use super::errand::Errand;
use crate::Admission;
use crate::command::Letter;
use crate::dialect::Dialect;
use crate::ingest::{Message, ProductNo, Voice};
use crate::rights::PROVISION_RESPONSE;

/// Jobs, and bytes of theirs, from which on publishers are to wait.
const MAX_JOBS: usize = 10_000;
const MAX_BYTES: usize = 16 << 20;

/// Something a device has said.
pub(super) struct Sent {
    /// Whose connection it came on.
    pub(super) by: DeviceNo,
    pub(super) about: DeviceNo,
    pub(super) dialect: Dialect,
    pub(super) now_ms: i64,
    pub(super) what: Errand,
}

/// A message that speaks of devices which were not at hand.
pub(super) struct Again {
    no: DeviceNo,
    product: ProductNo,
    id: Box<str>,
    topic: Box<str>,
    payload: Box<[u8]>,
    received_ms: i64,
}

pub(super) enum Job {
    Errand(Sent),
    Again(Again),
    /// The device of a client that connects may have changed.
    LookAgain(Box<Admission>, Box<str>),
    /// A client wants to be registered.
    Provision {
        client_id: Box<str>,
        /// `None`: over a Unix socket.
        from: Option<IpAddr>,
        request: Box<[u8]>,
    },
}

impl Job {
    /// About what it holds.
    fn bytes(&self) -> usize {
        match self {
            Self::Errand(sent) => sent.what.bytes(),
            Self::Again(again) => again.payload.len() + again.topic.len(),
            Self::LookAgain(_, client_id) => client_id.len(),
            Self::Provision {
                client_id, request, ..
            } => client_id.len() + request.len(),
        }
    }

    pub(super) fn again(message: &Message<'_>) -> Self {
        Self::Again(Again {
            no: message.by.no,
            product: message.by.product,
            id: message.by.id.into(),
            topic: message.topic.into(),
            payload: message.payload.into(),
            received_ms: message.received_ms,
        })
    }
}

impl Again {
    pub(super) fn message(&self) -> Message<'_> {
        Message {
            by: Voice {
                no: self.no,
                product: self.product,
                id: &self.id,
            },
            topic: &self.topic,
            payload: &self.payload,
            received_ms: self.received_ms,
        }
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Jobs that ever came, and those that are done.
    came: u64,
    done: u64,
    /// To be called when so many are done.
    callers: VecDeque<(u64, Settled)>,
    is_stopped: bool,
    has_ended: bool,
}

#[derive(Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
    /// Of the jobs that wait.
    jobs: AtomicUsize,
    bytes: AtomicUsize,
    thread: OnceLock<ThreadId>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, job: Job) {
        self.jobs.fetch_add(1, Relaxed);
        self.bytes.fetch_add(job.bytes(), Relaxed);
        let mut state = self.lock();
        state.came += 1;
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn is_full(&self) -> bool {
        self.jobs.load(Relaxed) > MAX_JOBS || self.bytes.load(Relaxed) > MAX_BYTES
    }

    fn wait<'g>(&self, state: MutexGuard<'g, State>) -> MutexGuard<'g, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None`: there will be none.
    fn next(&self) -> Option<Job> {
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
        // The first one is the same as all others.
        let _ = self.thread.set(thread::current().id());
    }

    /// Whether this is the desk's own thread, whose messages have errands that are run at once.
    pub(super) fn is_here(&self) -> bool {
        (self.thread.get()).is_some_and(|thread| *thread == thread::current().id())
    }

    fn done(&self) {
        let mut state = self.lock();
        state.done += 1;
        let done = state.done;
        let is_due = |(number, _): &(u64, Settled)| *number <= done;
        let due = state.callers.iter().take_while(|caller| is_due(caller));
        let count = due.count();
        let due: Vec<_> = state.callers.drain(..count).collect();
        drop(state);
        self.changed.notify_all();
        due.into_iter().for_each(|(_, settled)| settled());
    }

    /// Calls `settled` when everything is done that has come until now.
    pub(super) fn settle_later(&self, settled: Settled) {
        let mut state = self.lock();
        let came = state.came;
        if state.done < came && !state.has_ended {
            state.callers.push_back((came, settled));
            return;
        }
        drop(state);
        settled();
    }

    /// Waits until there is nothing to do.
    pub(super) fn settle(&self) {
        let mut state = self.lock();
        while state.done < state.came && !state.has_ended {
            state = self.wait(state);
        }
    }

    pub(super) fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
        self.settle();
    }
}

pub(super) fn start(platform: &Platform) -> std::io::Result<()> {
    let weak = Arc::downgrade(&platform.inner);
    let run = move || {
        let mut lane = None;
        // It ends with the last platform, or when it is told to.
        while let Some(platform) = weak.upgrade().map(|inner| Platform { inner }) {
            let Some(job) = platform.inner.desk.next() else {
                return;
            };
            platform.inner.desk.begin();
            let run = AssertUnwindSafe(|| match job {
                Job::Errand(sent) => platform.run_errand(&sent),
                Job::LookAgain(device, client_id) => platform.look_again(&device, &client_id),
                Job::Provision {
                    client_id,
                    from,
                    request,
                } => {
                    let teller = &platform.inner.parts.teller;
                    let attempts = &platform.inner.provisioning_attempts;
                    let key = super::provisioning::key_of(&request);
                    let now_ms = crate::now_ms();
                    if attempts.is_blocked(from, &key, now_ms) {
                        tracing::warn!(
                            client_id = &*client_id,
                            ?from,
                            "provisioning refused: too many failures for this key; client disconnected"
                        );
                        teller.send_away(std::slice::from_ref(&client_id));
                        return;
                    }
                    let answer = platform.provision(from, &request);
                    if answer.is_err() {
                        attempts.failed(from, &key, now_ms);
                    }
                    let (Ok(answer) | Err(answer)) = answer;
                    let letter = Letter {
                        topic: PROVISION_RESPONSE.to_owned(),
                        payload: answer.to_string(),
                        subscribes: false,
                        // It holds credentials.
                        logged: None,
                    };
                    teller.tell(&client_id, letter);
                }
                Job::Again(again) => {
                    // At a start, whoever works off what is left finds devices itself.
                    if let Some(pipeline) = platform.inner.pipeline.get() {
                        let message = again.message();
                        platform.find_children(&message);
                        let lane = lane.get_or_insert_with(|| pipeline.last_lane());
                        pipeline.work(lane, &message);
                    }
                }
            });
            if panic::catch_unwind(run).is_err() {
                tracing::error!("what a device said caused a panic; this is a bug");
            }
            platform.inner.desk.done();
        }
    };
    let builder = thread::Builder::new().name("devices-desk".to_owned());
    builder.spawn(run).map(|_| ())
}
