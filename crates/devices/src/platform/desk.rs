//! One thread for what devices say that may wait for the disk: shards and workers leave it here, in order, and go on.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use series::DeviceNo;

use super::Platform;
use super::errand::Errand;
use crate::dialect::Dialect;
use crate::ingest::{Message, ProductNo, Voice};

/// Jobs from which on publishers are to wait.
const MAX_JOBS: usize = 10_000;

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
}

impl Job {
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
    is_busy: bool,
    is_stopped: bool,
    has_ended: bool,
}

#[derive(Default)]
pub(super) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, job: Job) {
        self.lock().jobs.push_back(job);
        self.changed.notify_all();
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().jobs.len() > MAX_JOBS
    }

    fn wait<'g>(&self, state: MutexGuard<'g, State>) -> MutexGuard<'g, State> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None`: there will be none.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        state.is_busy = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.is_busy = true;
                return Some(job);
            }
            self.changed.notify_all();
            if state.is_stopped {
                state.has_ended = true;
                return None;
            }
            state = self.wait(state);
        }
    }

    /// Waits until there is nothing to do.
    pub(super) fn settle(&self) {
        let mut state = self.lock();
        while (state.is_busy || !state.jobs.is_empty()) && !state.has_ended {
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
    let weak = std::sync::Arc::downgrade(&platform.inner);
    let run = move || {
        let mut lane = None;
        // It ends with the last platform, or when it is told to.
        while let Some(platform) = weak.upgrade().map(|inner| Platform { inner }) {
            let Some(job) = platform.inner.desk.next() else {
                return;
            };
            match job {
                Job::Errand(sent) => platform.run_errand(&sent),
                Job::Again(again) => {
                    let Some(pipeline) = platform.inner.pipeline.get() else {
                        continue;
                    };
                    let message = again.message();
                    platform.find_children(&message);
                    let lane = lane.get_or_insert_with(|| pipeline.last_lane());
                    pipeline.work(lane, &message);
                }
            }
        }
    };
    let builder = std::thread::Builder::new().name("devices-desk".to_owned());
    builder.spawn(run).map(|_| ())
}
