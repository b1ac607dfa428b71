//! Clients about whom the disk has to be asked, many at a time.
//!
//! Shards leave them in one queue, and few threads work it off in portions. Most of what a look-up costs one by one is waking
//! somebody who does it and being woken with the answer: here a thread is woken when the shard has read everybody who has just
//! come, and the shard when a portion is done.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::hooks::Authentication;
use mqtt::ReasonCode;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::authenticator::Request;
use crate::chain::{Chain, Checked};
use crate::service::{Ask, Outcome, Shared, outcome};

/// Answered together; a few of them are a millisecond.
const PORTION: usize = 64;

/// Look-ups that wait. There are no more than there are places (`max_checks`).
pub(crate) struct Lookups {
    max_threads: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Lookup>,
    threads: usize,
}

struct Lookup {
    request: Request,
    chain: Arc<Chain>,
    /// Who of the chain is to be asked.
    at: usize,
    place: OwnedSemaphorePermit,
    answer: oneshot::Sender<Outcome>,
}

impl Lookups {
    pub(crate) fn new(max_threads: usize) -> Self {
        Self {
            max_threads: max_threads.max(1),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more thread is to begin; it counts from then on.
    fn wants_thread(&self) -> bool {
        let mut state = self.lock();
        let has_enough = state.waiting.len() <= state.threads * PORTION;
        let is_wanted = !has_enough && state.threads < self.max_threads;
        state.threads += usize::from(is_wanted);
        is_wanted
    }

    /// The next portion; `None`: the thread that asks does not count any more.
    fn next(&self) -> Option<Vec<Lookup>> {
        let mut state = self.lock();
        let count = state.waiting.len().min(PORTION);
        if count == 0 {
            state.threads -= 1;
            return None;
        }
        Some(state.waiting.drain(..count).collect())
    }
}

/// A thread that looks up. It counts until it finds nothing to do.
struct Thread {
    shared: Arc<Shared>,
    has_ended: bool,
}

impl Drop for Thread {
    /// The runtime goes down and does not run it.
    fn drop(&mut self) {
        if !self.has_ended {
            self.shared.lookups.lock().threads -= 1;
        }
    }
}

impl Thread {
    fn run(mut self) {
        while let Some(portion) = self.shared.lookups.next() {
            let look_up = |lookup| {
                let look_up = AssertUnwindSafe(|| self.shared.look_up(lookup));
                catch_unwind(look_up).unwrap_or_else(|_| {
                    tracing::error!("a panic while a client was looked up; this is a bug");
                    None
                })
            };
            let answers: Vec<_> = portion.into_iter().filter_map(look_up).collect();
            for (answer, outcome) in answers {
                // The client may have gone.
                let _ = answer.send(outcome);
            }
        }
        self.has_ended = true;
    }
}

impl Shared {
    /// Judges on a thread that may look at the disk.
    pub(crate) fn look_up_later(
        self: &Arc<Self>,
        request: Request,
        chain: Arc<Chain>,
        at: usize,
    ) -> Authentication {
        let Some(place) = self.take_place() else {
            return Authentication::Deny(ReasonCode::SERVER_BUSY);
        };
        let (answer, answered) = oneshot::channel();
        self.lookups.lock().waiting.push_back(Lookup {
            request,
            chain,
            at,
            place,
            answer,
        });
        let shared = self.clone();
        Authentication::Later(Box::pin(async move {
            // Not before the shard has read whoever came together with this one.
            shared.begin_lookups();
            match tokio::time::timeout(shared.timeout(), answered).await {
                Ok(Ok(Ok(grant))) => Authentication::Allow(grant),
                Ok(Ok(Err(code))) => Authentication::Deny(code),
                // The runtime is going down, the thread broke, or the disk does not answer.
                Ok(Err(_)) | Err(_) => {
                    shared.counts.failed.fetch_add(1, Relaxed);
                    Authentication::Deny(ReasonCode::SERVER_UNAVAILABLE)
                }
            }
        }))
    }

    fn begin_lookups(self: &Arc<Self>) {
        if self.lookups.wants_thread() {
            let thread = Thread {
                shared: self.clone(),
                has_ended: false,
            };
            self.runtime().spawn_blocking(move || thread.run());
        }
    }

    /// `None`: it takes more than a look at the disk, and is answered by others.
    fn look_up(self: &Arc<Self>, lookup: Lookup) -> Option<(oneshot::Sender<Outcome>, Outcome)> {
        let Lookup {
            request,
            chain,
            at,
            place,
            answer,
        } = lookup;
        if answer.is_closed() {
            return None;
        }
        let ask = match chain.look_up(at, &request, self.has_users()) {
            Checked::Judged(judged) if self.may_conclude(&judged) => {
                return Some((answer, outcome(self.conclude(request, judged, None))));
            }
            Checked::Judged(Ok(identity)) => Ask::Rules(identity),
            Checked::Judged(Err(_)) => Ask::Chain(chain, at),
            Checked::Asks(at) => Ask::Chain(chain, at),
        };
        let judging = self.clone().judge(request, ask, place);
        self.runtime().spawn(async move {
            // The client may have gone.
            let _ = answer.send(judging.await);
        });
        None
    }
}
