//! Rows on their way from the shards to whoever keeps the windows.
//!
//! A window counts what all shards see. So a rule with a window is only asked for its WHERE on the shard; what passed goes, as
//! bytes, over this queue to one thread, which alone keeps the windows of all rules. The order of rows of one shard is kept. The
//! queue has a bound: above it publishers wait, and far above it rows are thrown away and counted.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rules::WindowSample;
use rules::windows::put_sample;

use crate::running_rule::{RuleLineage, RunningRule};

/// Above so many times the bound nothing is taken any more: events of which nobody can be made to wait.
const HARD_LIMIT_FACTOR: usize = 4;
/// What a row costs besides its bytes.
const ROW_BYTES: usize = 32;

pub(crate) struct WindowQueue {
    inbox: Mutex<WindowInbox>,
    has_work: Condvar,
    /// Bytes that wait, to be looked at without the lock.
    waiting_bytes: AtomicUsize,
    max_bytes: usize,
}

#[derive(Default)]
pub(crate) struct WindowInbox {
    /// Rows one after the other.
    pub(crate) bytes: Vec<u8>,
    pub(crate) samples: Vec<QueuedSample>,
    /// Something else than rows, rules that were changed or a stop, and behind how many rows.
    pub(crate) commands: Vec<(usize, WindowCommand)>,
}

/// A row and the rule it is for.
pub(crate) struct QueuedSample {
    /// Of the rule, which may have been changed meanwhile.
    pub(crate) serial: u64,
    pub(crate) len: usize,
    pub(crate) lineage: RuleLineage,
}

pub(crate) enum WindowCommand {
    /// A rule with a window runs from now on, in place of the one of its name.
    StartRule(Arc<RunningRule>),
    /// The rule of this name runs no more, or has no window any more.
    StopRule(Box<str>),
    /// A rule keeps something from now on, in place of the one of its name.
    TrackState(Arc<RunningRule>),
    /// The rule of this name keeps nothing any more.
    UntrackState(Box<str>),
    /// Stores what there is, and that was all.
    Stop,
}

impl WindowQueue {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            inbox: Mutex::default(),
            has_work: Condvar::new(),
            waiting_bytes: AtomicUsize::new(0),
            max_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WindowInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether publishers are to wait.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.waiting_bytes.load(Relaxed) > self.max_bytes
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Relaxed)
    }

    /// False: there is no room.
    pub(crate) fn push(
        &self,
        bound: &RunningRule,
        lineage: RuleLineage,
        sample: &WindowSample<'_>,
    ) -> bool {
        let mut inbox = self.lock();
        if self.waiting_bytes() > self.max_bytes * HARD_LIMIT_FACTOR {
            return false;
        }
        let before = inbox.bytes.len();
        put_sample(sample, &mut inbox.bytes);
        let len = inbox.bytes.len() - before;
        inbox.samples.push(QueuedSample {
            serial: bound.serial,
            len,
            lineage,
        });
        let was_empty = inbox.samples.len() == 1;
        self.waiting_bytes.fetch_add(len + ROW_BYTES, Relaxed);
        drop(inbox);
        if was_empty {
            self.has_work.notify_one();
        }
        true
    }

    pub(crate) fn send_command(&self, order: WindowCommand) {
        let mut inbox = self.lock();
        let behind = inbox.samples.len();
        inbox.commands.push((behind, order));
        drop(inbox);
        self.has_work.notify_one();
    }

    /// Waits for something to do, or until so much time has passed. `spare` is emptied and used again.
    pub(crate) fn wait_and_take(&self, within: Duration, mut spare: WindowInbox) -> WindowInbox {
        spare.bytes.clear();
        spare.samples.clear();
        spare.commands.clear();
        let inbox = self.lock();
        let is_idle =
            |inbox: &mut WindowInbox| inbox.samples.is_empty() && inbox.commands.is_empty();
        let waited = self.has_work.wait_timeout_while(inbox, within, is_idle);
        let (mut inbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *inbox, &mut spare);
        spare
    }

    /// Rows were seen to.
    pub(crate) fn release_bytes(&self, inbox: &WindowInbox) {
        let bytes = inbox.bytes.len() + inbox.samples.len() * ROW_BYTES;
        self.waiting_bytes.fetch_sub(bytes, Relaxed);
    }
}
