//! The queue of batched login lookups that read the disk; `disk_lookup_threads.rs` processes it.
//!
//! Shards put lookups into one queue, and a few threads process it in batches. The main cost of a single lookup is
//! waking a thread and being woken with the answer. Here a thread is woken after the shard has read all logins that
//! arrived together, and the shard is woken once per batch.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::authenticator::LoginRequest;
use crate::authenticator_chain::AuthenticatorChain;
use crate::login_outcome::LoginOutcome;

/// Lookups per batch; a few of them take a millisecond.
pub(crate) const LOOKUP_BATCH: usize = 64;

/// The queue of pending lookups. `max_pending_logins` bounds its length.
pub(crate) struct DiskLookupQueue {
    max_threads: usize,
    state: Mutex<LookupQueueState>,
}

#[derive(Default)]
struct LookupQueueState {
    waiting: VecDeque<DiskLookup>,
    threads: usize,
}

pub(crate) struct DiskLookup {
    pub(crate) request: LoginRequest,
    pub(crate) chain: Arc<AuthenticatorChain>,
    /// Index of the next authenticator in the chain.
    pub(crate) next_authenticator: usize,
    pub(crate) slot: OwnedSemaphorePermit,
    pub(crate) result_sender: oneshot::Sender<LoginOutcome>,
}

impl DiskLookupQueue {
    pub(crate) fn new(max_threads: usize) -> Self {
        Self {
            max_threads: max_threads.max(1),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LookupQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, lookup: DiskLookup) {
        self.lock().waiting.push_back(lookup);
    }

    /// Whether to start one more thread; it is counted from then on.
    pub(crate) fn try_start_thread(&self) -> bool {
        let mut state = self.lock();
        let has_enough = state.waiting.len() <= state.threads * LOOKUP_BATCH;
        let is_wanted = !has_enough && state.threads < self.max_threads;
        state.threads += usize::from(is_wanted);
        is_wanted
    }

    /// Takes the next batch; `None` if the queue is empty, and then the calling thread is no longer counted.
    pub(crate) fn take_batch(&self) -> Option<Vec<DiskLookup>> {
        let mut state = self.lock();
        let count = state.waiting.len().min(LOOKUP_BATCH);
        if count == 0 {
            state.threads -= 1;
            return None;
        }
        Some(state.waiting.drain(..count).collect())
    }

    /// A counted thread has ended without [`Self::take_batch`] finding the queue empty.
    pub(crate) fn end_thread(&self) {
        self.lock().threads -= 1;
    }
}
