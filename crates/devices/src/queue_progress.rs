//! How far the one thread is that works a queue off in its order, for those who wait for what was in it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use broker::hooks::DurableCallback;

/// Counts what comes into a queue and what is done of it.
#[derive(Default)]
pub struct QueueProgress {
    added: AtomicU64,
    done: AtomicU64,
    /// To be called when so many are done.
    waiters: Mutex<VecDeque<(u64, DurableCallback)>>,
}

impl QueueProgress {
    fn waiters(&self) -> MutexGuard<'_, VecDeque<(u64, DurableCallback)>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something comes into the queue; to be said before it can be done.
    pub fn add(&self) {
        self.added.fetch_add(1, SeqCst);
    }

    /// The oldest is done, or was not put in after all.
    pub fn complete(&self) {
        let done = self.done.fetch_add(1, SeqCst) + 1;
        self.call_waiters(done);
    }

    /// What waits cannot be done now: nobody waits for it.
    pub fn abandon_waiters(&self) {
        self.call_waiters(u64::MAX);
    }

    fn call_waiters(&self, done: u64) {
        let mut callers = self.waiters();
        let is_due = |caller: &&(u64, DurableCallback)| caller.0 <= done;
        let count = callers.iter().take_while(is_due).count();
        let due: Vec<_> = callers.drain(..count).collect();
        drop(callers);
        due.into_iter().for_each(|(_, settled)| settled());
    }

    /// Whether anything is to be done.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.done.load(SeqCst) < self.added.load(SeqCst)
    }

    /// Calls `settled`, from any thread, when everything is done that has come until now.
    pub fn settle(&self, settled: DurableCallback) {
        let mut callers = self.waiters();
        let came = self.added.load(SeqCst);
        if self.done.load(SeqCst) < came {
            // Whoever is done next takes the lock after this.
            callers.push_back((came, settled));
            let done = self.done.load(SeqCst);
            drop(callers);
            return self.call_waiters(done);
        }
        drop(callers);
        settled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn who_waits_is_called_when_what_came_before_is_done() {
        let (progress, called) = (QueueProgress::default(), Arc::<AtomicUsize>::default());
        let settle = || {
            let called = called.clone();
            progress.settle(Box::new(move || _ = called.fetch_add(1, SeqCst)));
        };
        let calls = || called.load(SeqCst);
        settle();
        assert_eq!((calls(), progress.is_pending()), (1, false));
        progress.add();
        progress.add();
        settle();
        progress.add();
        settle();
        progress.complete();
        assert_eq!(calls(), 1);
        progress.complete();
        assert_eq!((calls(), progress.is_pending()), (2, true));
        progress.abandon_waiters();
        assert_eq!(calls(), 3);
        progress.complete();
        assert!(!progress.is_pending());
    }
}
