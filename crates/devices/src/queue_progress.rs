//! Progress of a queue that one thread works off in order, with callbacks for waiters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use broker::hooks::DurableCallback;

/// Counts the entries added to a queue and the entries completed.
#[derive(Default)]
pub struct QueueProgress {
    added: AtomicU64,
    done: AtomicU64,
    /// Callbacks with the number of completed entries that they wait for.
    waiters: Mutex<VecDeque<(u64, DurableCallback)>>,
}

impl QueueProgress {
    fn waiters(&self) -> MutexGuard<'_, VecDeque<(u64, DurableCallback)>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an entry; call it before the entry can be completed.
    pub fn add(&self) {
        self.added.fetch_add(1, SeqCst);
    }

    /// Counts the oldest entry as completed, or a counted entry as not queued after all.
    pub fn complete(&self) {
        let done = self.done.fetch_add(1, SeqCst) + 1;
        self.call_waiters(done);
    }

    /// Calls all waiters now, because the queued work cannot be done at present.
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

    /// Whether there is unfinished work.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.done.load(SeqCst) < self.added.load(SeqCst)
    }

    /// Calls `settled`, from any thread, once everything added so far is completed.
    pub fn settle(&self, settled: DurableCallback) {
        let mut callers = self.waiters();
        let target = self.added.load(SeqCst);
        if self.done.load(SeqCst) < target {
            // The next completion takes the lock after this.
            callers.push_back((target, settled));
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
    fn waiters_are_called_when_all_earlier_entries_are_complete() {
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
