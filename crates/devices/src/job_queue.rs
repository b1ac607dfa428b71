//! What waits for a thread of its own, and whether so much of it that whoever brings it is to slow down.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Takes whatever it is given, since nothing of it may be lost: the bound is where it says that it is full.
pub(crate) struct JobQueue<T> {
    waiting: Mutex<VecDeque<T>>,
    changed: Condvar,
    full_threshold: usize,
    is_full: AtomicBool,
    is_stopping: AtomicBool,
}

impl<T> JobQueue<T> {
    pub(crate) fn new(full_from: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            changed: Condvar::new(),
            full_threshold: full_from,
            is_full: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_full(&self, waiting: &VecDeque<T>) {
        self.is_full
            .store(waiting.len() >= self.full_threshold, Relaxed);
    }

    pub(crate) fn push(&self, work: T) {
        let mut waiting = self.lock();
        waiting.push_back(work);
        self.update_full(&waiting);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Puts back what could not be done, to be the next again.
    pub(crate) fn put_back(&self, work: T) {
        let mut waiting = self.lock();
        waiting.push_front(work);
        self.update_full(&waiting);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut waiting = self.lock();
        let work = waiting.pop_front();
        self.update_full(&waiting);
        work
    }

    /// Returns when there is something to do or the time is over, and now and then without a reason.
    pub(crate) fn wait(&self, most: Duration) {
        let waiting = self.lock();
        if waiting.is_empty() && !self.is_stopping() {
            drop(self.changed.wait_timeout(waiting, most));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Relaxed)
    }

    /// Tells the thread to end when it has done what waits.
    pub(crate) fn stop(&self) {
        // Under the lock: not between the thread's last look and its wait.
        let waiting = self.lock();
        self.is_stopping.store(true, Relaxed);
        drop(waiting);
        self.changed.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Relaxed)
    }

    /// Whether the thread is to end now.
    pub(crate) fn is_done(&self) -> bool {
        self.is_stopping() && self.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_from_its_bound_on_and_keeps_what_comes_nevertheless() {
        let queue = JobQueue::new(2);
        queue.push(1);
        assert!(!queue.is_full());
        queue.push(2);
        queue.push(3);
        assert!(queue.is_full());
        assert_eq!(queue.pop(), Some(1));
        assert!(queue.is_full());
        assert_eq!(queue.pop(), Some(2));
        assert!(!queue.is_full());
        queue.put_back(2);
        assert!(queue.is_full());
        assert_eq!((queue.pop(), queue.len()), (Some(2), 1));
    }

    #[test]
    fn a_stop_is_heard_whenever_it_is_said_and_leaves_what_waits() {
        let queue = JobQueue::new(2);
        queue.push(());
        queue.stop();
        assert!(queue.is_stopping() && !queue.is_done());
        queue.pop();
        // Would never return if it waited.
        queue.wait(Duration::MAX);
        assert!(queue.is_done());
    }
}
