//! Requests of devices for chunks over MQTT that wait for the thread that answers them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::package::FirmwareType;

/// Requests that wait; their publishers are paused when half of them wait, and further ones are dropped.
const MAX_WAITING_REQUESTS: usize = 16_384;

/// A request for a chunk, as it was published.
#[derive(Debug)]
pub(crate) struct ChunkRequest {
    pub(crate) client_id: Box<str>,
    pub(crate) device: Box<str>,
    pub(crate) kind: FirmwareType,
    pub(crate) topic: Box<str>,
    pub(crate) payload: Box<[u8]>,
}

#[derive(Default)]
pub(crate) struct ChunkQueue {
    state: Mutex<ChunkQueueState>,
    has_work: Condvar,
}

#[derive(Default)]
struct ChunkQueueState {
    requests: VecDeque<ChunkRequest>,
    dropped: u64,
    is_stopping: bool,
}

impl ChunkQueue {
    fn lock(&self) -> MutexGuard<'_, ChunkQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request. A device repeats one that is dropped. Never blocks.
    pub(crate) fn push(&self, request: ChunkRequest) {
        let mut state = self.lock();
        if state.requests.len() >= MAX_WAITING_REQUESTS {
            state.dropped += 1;
            if state.dropped.is_power_of_two() {
                let dropped = state.dropped;
                tracing::warn!(
                    dropped,
                    "requests for firmware chunks dropped; too many wait"
                );
            }
            return;
        }
        state.requests.push_back(request);
        drop(state);
        self.has_work.notify_one();
    }

    /// Requests that were dropped since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    pub(crate) fn is_saturated(&self) -> bool {
        self.lock().requests.len() >= MAX_WAITING_REQUESTS / 2
    }

    pub(crate) fn stop(&self) {
        self.lock().is_stopping = true;
        self.has_work.notify_all();
    }

    /// The next request; `None`: the node stops.
    pub(crate) fn next(&self) -> Option<ChunkRequest> {
        let mut state = self.lock();
        loop {
            if state.is_stopping {
                return None;
            }
            if let Some(request) = state.requests.pop_front() {
                return Some(request);
            }
            let woken = self.has_work.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
