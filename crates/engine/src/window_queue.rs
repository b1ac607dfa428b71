//! The queue of rows from the shards to the thread that owns the windows.
//!
//! A window counts the events of all shards. For a rule with a window, a shard therefore evaluates only WHERE. It sends
//! matching rows as bytes over this queue to one thread, which owns the windows of all rules. Rows of one shard keep
//! their order. The queue is bounded: above the limit publishers wait, and far above it rows are dropped and counted.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rules::WindowSample;
use rules::windows::put_sample;

use crate::rule_lineage::RuleLineage;
use crate::running_rule::RunningRule;
use crate::window_queue_level::WindowQueueLevel;

/// Overhead of a row in bytes.
const ROW_BYTES: usize = 32;

pub(crate) struct WindowQueue {
    inbox: Mutex<WindowInbox>,
    has_work: Condvar,
    level: Arc<WindowQueueLevel>,
}

#[derive(Default)]
pub(crate) struct WindowInbox {
    /// Rows, one after the other.
    pub(crate) bytes: Vec<u8>,
    pub(crate) samples: Vec<QueuedSample>,
    /// Commands (changed rules, stop), each with the number of rows that precede it.
    pub(crate) commands: Vec<(usize, WindowCommand)>,
}

/// A row and its rule.
pub(crate) struct QueuedSample {
    /// Serial of the rule, which may have been changed meanwhile.
    pub(crate) serial: u64,
    pub(crate) len: usize,
    pub(crate) lineage: RuleLineage,
}

pub(crate) enum WindowCommand {
    /// Starts a rule with a window, replacing the rule of the same name.
    StartRule(Arc<RunningRule>),
    /// Stops the windows of this rule: it no longer runs or has no window any more.
    StopRule(Box<str>),
    /// Starts to store the keyed state of a rule, replacing the rule of the same name.
    TrackState(Arc<RunningRule>),
    /// Stops storing the keyed state of the rule of this name.
    UntrackState(Box<str>),
    /// Stores all windows and ends the thread.
    Stop,
}

impl WindowQueue {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            inbox: Mutex::default(),
            has_work: Condvar::new(),
            level: Arc::new(WindowQueueLevel::new(max_bytes)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, WindowInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn level(&self) -> &Arc<WindowQueueLevel> {
        &self.level
    }

    /// Queues a row. Returns false if there is no room.
    pub(crate) fn push(
        &self,
        bound: &RunningRule,
        lineage: RuleLineage,
        sample: &WindowSample<'_>,
    ) -> bool {
        let mut inbox = self.lock();
        if self.level.is_overfull() {
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
        self.level.add(len + ROW_BYTES);
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

    /// Waits for rows or commands, at most for `within`. `spare` is cleared and reused as the next inbox.
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

    /// Releases the bytes of processed rows.
    pub(crate) fn release_bytes(&self, inbox: &WindowInbox) {
        let bytes = inbox.bytes.len() + inbox.samples.len() * ROW_BYTES;
        self.level.subtract(bytes);
    }
}
