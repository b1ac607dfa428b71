//! What happens at other nodes, in the order in which it happened, for a thread that handles it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use cluster::{DownReason, NodeName, PeerNodeId};

/// Bytes of messages that wait for a thread; further ones are dropped, and the copy they belong to begins again.
const MAX_QUEUED_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(crate) enum Input {
    Up(PeerNodeId, NodeName),
    Down(PeerNodeId, DownReason),
    Message(PeerNodeId, Bytes),
}

/// The inputs of one thread.
#[derive(Default)]
pub(crate) struct Inputs {
    queue: Mutex<InputQueue>,
    arrival: Condvar,
    /// Whether something else than an input has happened.
    is_woken: AtomicBool,
}

#[derive(Default)]
struct InputQueue {
    inputs: VecDeque<Input>,
    bytes: usize,
    is_stopped: bool,
}

impl Inputs {
    pub(crate) fn push(&self, input: Input) {
        let mut queue = self.queue();
        if let Input::Message(_, message) = &input {
            if queue.bytes > 0 && queue.bytes + message.len() > MAX_QUEUED_BYTES {
                tracing::warn!("too many messages of a copy of sessions wait; one was dropped");
                return;
            }
            queue.bytes += message.len();
        }
        queue.inputs.push_back(input);
        self.arrival.notify_one();
    }

    /// Lets [`wait`](Self::wait) return. Cheap if the thread has not looked since the last call.
    pub(crate) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            // With the lock, so that a thread that is about to wait notices it.
            drop(self.queue());
            self.arrival.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.queue().is_stopped = true;
        self.arrival.notify_one();
    }

    /// Waits for inputs, a call of [`wake`](Self::wake), or a time. `None`: the thread is to end.
    pub(crate) fn wait(&self, until: Instant) -> Option<VecDeque<Input>> {
        let mut queue = self.queue();
        loop {
            if queue.is_stopped {
                return None;
            }
            let is_woken = self.is_woken.swap(false, Ordering::AcqRel);
            let left = until.saturating_duration_since(Instant::now());
            if is_woken || left.is_zero() || !queue.inputs.is_empty() {
                queue.bytes = 0;
                return Some(std::mem::take(&mut queue.inputs));
            }
            let waited = self.arrival.wait_timeout(queue, left);
            (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn queue(&self) -> MutexGuard<'_, InputQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
