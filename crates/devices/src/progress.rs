//! How far the one thread is that works a queue off in its order, for those who wait for what was in it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use broker::hooks::Settled;

/// Counts what comes into a queue and what is done of it.
#[derive(Default)]
pub struct Progress {
    came: AtomicU64,
    done: AtomicU64,
    /// To be called when so many are done.
    callers: Mutex<VecDeque<(u64, Settled)>>,
}

impl Progress {
    fn callers(&self) -> MutexGuard<'_, VecDeque<(u64, Settled)>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something comes into the queue; to be said before it can be done.
    pub fn came(&self) {
        self.came.fetch_add(1, SeqCst);
    }

    /// The oldest is done, or was not put in after all.
    pub fn done(&self) {
        let done = self.done.fetch_add(1, SeqCst) + 1;
        self.call(done);
    }

    /// What waits cannot be done now: nobody waits for it.
    pub fn give_up(&self) {
        self.call(u64::MAX);
    }

    fn call(&self, done: u64) {
        let mut callers = self.callers();
        let is_due = |caller: &&(u64, Settled)| caller.0 <= done;
        let count = callers.iter().take_while(is_due).count();
        let due: Vec<_> = callers.drain(..count).collect();
        drop(callers);
        due.into_iter().for_each(|(_, settled)| settled());
    }

    /// Whether anything is to be done.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.done.load(SeqCst) < self.came.load(SeqCst)
    }

    /// Calls `settled`, from any thread, when everything is done that has come until now.
    pub fn settle(&self, settled: Settled) {
        let mut callers = self.callers();
        let came = self.came.load(SeqCst);
        if self.done.load(SeqCst) < came {
            // Whoever is done next takes the lock after this.
            callers.push_back((came, settled));
            let done = self.done.load(SeqCst);
            drop(callers);
            return self.call(done);
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
        let (progress, called) = (Progress::default(), Arc::<AtomicUsize>::default());
        let settle = || {
            let called = called.clone();
            progress.settle(Box::new(move || _ = called.fetch_add(1, SeqCst)));
        };
        let calls = || called.load(SeqCst);
        settle();
        assert_eq!((calls(), progress.is_pending()), (1, false));
        progress.came();
        progress.came();
        settle();
        progress.came();
        settle();
        progress.done();
        assert_eq!(calls(), 1);
        progress.done();
        assert_eq!((calls(), progress.is_pending()), (2, true));
        progress.give_up();
        assert_eq!(calls(), 3);
        progress.done();
        assert!(!progress.is_pending());
    }
}
