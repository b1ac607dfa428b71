//! Progress of a queue that one thread works off in order, with callbacks for waiters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hooks::DurableCallback;

/// Counts the entries added to a queue and the entries completed.
#[derive(Default)]
pub struct QueueProgress {
    added: AtomicU64,
    done: AtomicU64,
    /// Callbacks with the number of completed entries that they wait for.
    waiters: Mutex<VecDeque<(u64, DurableCallback)>>,
    /// The remaining entries are never completed.
    is_closed: AtomicBool,
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
        self.complete_many(1);
    }

    /// Counts the oldest entries as completed.
    pub fn complete_many(&self, count: u64) {
        if count == 0 {
            return;
        }
        let done = self.done.fetch_add(count, SeqCst) + count;
        self.call_waiters(done);
    }

    /// Number of entries that are not completed.
    pub fn pending(&self) -> u64 {
        // A completion in between only makes the number larger.
        let done = self.done.load(SeqCst);
        self.added.load(SeqCst) - done
    }

    /// Drops all waiters without calling them, also those that come later, unless the work they wait for is complete.
    pub fn close(&self) {
        self.is_closed.store(true, SeqCst);
        let waiters = std::mem::take(&mut *self.waiters());
        drop(waiters);
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
            if self.is_closed.load(SeqCst) {
                return;
            }
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

    #[test]
    fn waiters_of_a_closed_queue_are_dropped() {
        let progress = QueueProgress::default();
        let alive = Arc::new(());
        let settle = || {
            let alive = alive.clone();
            progress.settle(Box::new(move || panic!("{alive:?}: it is not complete")));
        };
        progress.add();
        progress.add();
        progress.add();
        settle();
        progress.complete_many(2);
        assert_eq!((progress.pending(), Arc::strong_count(&alive)), (1, 2));
        progress.close();
        settle();
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
