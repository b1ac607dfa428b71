//! Rows on their way from the shards to whoever keeps the windows.
//!
//! A window counts what all shards see. So a rule with a window is only asked for its WHERE on the shard; what passed goes, as
//! bytes, over this queue to one thread, which alone keeps the windows of all rules. The order of rows of one shard is kept. The
//! queue has a bound: above it publishers wait, and far above it rows are thrown away and counted.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rules::Sample;
use rules::windows::put_sample;

use crate::bound::{Bound, Lineage};

/// Above so many times the bound nothing is taken any more: events of which nobody can be made to wait.
const HARD_TIMES: usize = 4;
/// What a row costs besides its bytes.
const ROW_BYTES: usize = 32;

pub(crate) struct Rows {
    inbox: Mutex<Inbox>,
    more: Condvar,
    /// Bytes that wait, to be looked at without the lock.
    waiting_bytes: AtomicUsize,
    max_bytes: usize,
}

#[derive(Default)]
pub(crate) struct Inbox {
    /// Rows one after the other.
    pub(crate) bytes: Vec<u8>,
    pub(crate) rows: Vec<Queued>,
    /// Something else than rows, rules that were changed or a stop, and behind how many rows.
    pub(crate) orders: Vec<(usize, Order)>,
}

/// A row and the rule it is for.
pub(crate) struct Queued {
    /// Of the rule, which may have been changed meanwhile.
    pub(crate) serial: u64,
    pub(crate) len: usize,
    pub(crate) lineage: Lineage,
}

pub(crate) enum Order {
    /// A rule with a window runs from now on, in place of the one of its name.
    Start(Arc<Bound>),
    /// The rule of this name runs no more, or has no window any more.
    End(Box<str>),
    /// A rule keeps something from now on, in place of the one of its name.
    Remember(Arc<Bound>),
    /// The rule of this name keeps nothing any more.
    Forget(Box<str>),
    /// Stores what there is, and that was all.
    Stop,
}

impl Rows {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            inbox: Mutex::default(),
            more: Condvar::new(),
            waiting_bytes: AtomicUsize::new(0),
            max_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
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
    pub(crate) fn push(&self, bound: &Bound, lineage: Lineage, sample: &Sample<'_>) -> bool {
        let mut inbox = self.lock();
        if self.waiting_bytes() > self.max_bytes * HARD_TIMES {
            return false;
        }
        let before = inbox.bytes.len();
        put_sample(sample, &mut inbox.bytes);
        let len = inbox.bytes.len() - before;
        inbox.rows.push(Queued {
            serial: bound.serial,
            len,
            lineage,
        });
        let was_empty = inbox.rows.len() == 1;
        self.waiting_bytes.fetch_add(len + ROW_BYTES, Relaxed);
        drop(inbox);
        if was_empty {
            self.more.notify_one();
        }
        true
    }

    pub(crate) fn order(&self, order: Order) {
        let mut inbox = self.lock();
        let behind = inbox.rows.len();
        inbox.orders.push((behind, order));
        drop(inbox);
        self.more.notify_one();
    }

    /// Waits for something to do, or until so much time has passed. `spare` is emptied and used again.
    pub(crate) fn take(&self, within: Duration, mut spare: Inbox) -> Inbox {
        spare.bytes.clear();
        spare.rows.clear();
        spare.orders.clear();
        let inbox = self.lock();
        let is_idle = |inbox: &mut Inbox| inbox.rows.is_empty() && inbox.orders.is_empty();
        let waited = self.more.wait_timeout_while(inbox, within, is_idle);
        let (mut inbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *inbox, &mut spare);
        spare
    }

    /// Rows were seen to.
    pub(crate) fn done(&self, inbox: &Inbox) {
        let bytes = inbox.bytes.len() + inbox.rows.len() * ROW_BYTES;
        self.waiting_bytes.fetch_sub(bytes, Relaxed);
    }
}
