//! What the threads of a run know of each other: who is ready, when to start, how much has arrived.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Counters of one thread, on a cache line of their own; written with plain stores, read by the first thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ThreadCounters {
    pub(crate) received: AtomicU64,
    pub(crate) connected: AtomicU64,
}

/// State shared by all threads of a run.
#[derive(Debug)]
pub(crate) struct RunShared {
    counters: Vec<ThreadCounters>,
    arrived: AtomicUsize,
    start_ns: AtomicU64,
    aborted: AtomicBool,
}

/// Another thread gave up.
#[derive(Debug)]
pub(crate) struct RunAbortedError;

impl std::fmt::Display for RunAbortedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("another thread of the generator gave up")
    }
}

impl std::error::Error for RunAbortedError {}

impl RunShared {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            counters: (0..threads).map(|_| ThreadCounters::default()).collect(),
            arrived: AtomicUsize::new(0),
            start_ns: AtomicU64::new(0),
            aborted: AtomicBool::new(false),
        }
    }

    pub(crate) fn counters(&self, thread: usize) -> &ThreadCounters {
        &self.counters[thread]
    }

    /// Messages received by all threads so far.
    pub(crate) fn received(&self) -> u64 {
        let each = self.counters.iter();
        each.map(|c| c.received.load(Ordering::Relaxed)).sum()
    }

    /// Connections made by all threads so far.
    pub(crate) fn connected(&self) -> u64 {
        let each = self.counters.iter();
        each.map(|c| c.connected.load(Ordering::Relaxed)).sum()
    }

    /// Lets the other threads know that the run cannot go on.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Waits until every thread has come here for the `stage`-th time, counted from 1.
    pub(crate) fn wait_for_stage(&self, stage: usize) -> Result<(), RunAbortedError> {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        self.wait_until(|| self.arrived.load(Ordering::Acquire) >= stage * self.counters.len())
    }

    /// Sets the common start.
    pub(crate) fn set_start(&self, start_ns: u64) {
        self.start_ns.store(start_ns, Ordering::Release);
    }

    /// Waits for the common start to be set.
    pub(crate) fn wait_for_start(&self) -> Result<u64, RunAbortedError> {
        self.wait_until(|| self.start_ns.load(Ordering::Acquire) != 0)?;
        Ok(self.start_ns.load(Ordering::Acquire))
    }

    fn wait_until(&self, done: impl Fn() -> bool) -> Result<(), RunAbortedError> {
        while !done() {
            if self.is_aborted() {
                return Err(RunAbortedError);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}

/// Aborts the run when a thread ends without a call of `disarm`.
#[derive(Debug)]
pub(crate) struct AbortOnDrop<'a>(pub(crate) Option<&'a RunShared>);

impl AbortOnDrop<'_> {
    /// The thread ends well.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.abort();
        }
    }
}
