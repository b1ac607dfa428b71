//! A queue of blocking work for one thread. It reports when it is full, so that producers slow down.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An unbounded queue: no job may be lost. The bound only sets the flag that producers check with `is_full`.
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

    /// Puts failed work back at the front.
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

    /// Blocks until there is work or the timeout is over; may wake up spuriously.
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

    /// Makes the thread end after the queued work.
    pub(crate) fn stop(&self) {
        // The lock prevents a lost wake-up between the thread's last check and its wait.
        let waiting = self.lock();
        self.is_stopping.store(true, Relaxed);
        drop(waiting);
        self.changed.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Relaxed)
    }

    /// Whether the thread may end now.
    pub(crate) fn is_done(&self) -> bool {
        self.is_stopping() && self.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_still_accepts_jobs() {
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
    fn a_stop_wakes_the_thread_and_keeps_queued_jobs() {
        let queue = JobQueue::new(2);
        queue.push(());
        queue.stop();
        assert!(queue.is_stopping() && !queue.is_done());
        queue.pop();
        // Would block for ever if `stop` had no effect.
        queue.wait(Duration::MAX);
        assert!(queue.is_done());
    }
}
