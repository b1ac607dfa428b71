//! Durable marks for alarm notifications that are not known to be durable at their receiver. A mark is written in the
//! same batch as the alarm, and removed once the receiver reports durability. Marks left at start are sent again with
//! the same number.
//!
//! Table `alarm_pending_notification`: `m` and a number -> the change and the alarm's record; `n` -> the next number. Numbers are
//! never reused.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use store::{Durability, StoreError, Table, TableBatch, Tables};

use super::event::{AlarmChange, AlarmEvent};
use super::record::Alarm;

/// Maximum number of marks. If the receiver makes no progress, further notifications are sent without a mark.
const MAX_MARKS: usize = 100_000;
const NEXT_NO_KEY: &[u8] = b"n";
const MARK_PREFIX: &[u8] = b"m";
/// How long a stopping node waits until sent notifications are durable.
const FINISH_WITHIN: Duration = Duration::from_secs(2);

/// Called once everything is durable; dropped if that cannot be determined.
pub type DurableCallback = Box<dyn FnOnce() + Send + Sync>;

/// Sends alarm events, and reports when they survive a crash of the node.
pub trait AlarmNotifier: Send + Sync {
    /// Whether this change of an alarm is sent to anyone.
    fn wants(&self, change: AlarmChange, alarm: &Alarm) -> bool;
    fn notify(&self, event: &AlarmEvent, now_ms: u64);
    /// Calls `done` once every event passed so far is durable. Does not block.
    fn settle(&self, done: DurableCallback);
}

pub(super) struct PendingNotifications {
    tables: Tables,
    table: Table,
    marks: Mutex<PendingMarks>,
    notifier: OnceLock<Arc<dyn AlarmNotifier>>,
    /// Highest numbers that were sent and that are durable.
    notified_up_to: AtomicU64,
    durable_up_to: AtomicU64,
    is_settling: AtomicBool,
}

struct PendingMarks {
    next: u64,
    /// In ascending order.
    numbers: VecDeque<u64>,
}

/// A pending durability request; there is at most one at a time.
struct SettleRequest {
    pending: Arc<PendingNotifications>,
    up_to: u64,
}

impl Drop for SettleRequest {
    fn drop(&mut self) {
        self.pending.is_settling.store(false, Ordering::Release);
    }
}

impl PendingNotifications {
    pub(super) fn open(tables: &Tables) -> Result<Arc<Self>, StoreError> {
        let pending = Self {
            tables: tables.clone(),
            table: tables.table("alarm_pending_notification"),
            marks: Mutex::new(PendingMarks {
                next: 1,
                numbers: VecDeque::new(),
            }),
            notifier: OnceLock::new(),
            notified_up_to: AtomicU64::new(0),
            durable_up_to: AtomicU64::new(0),
            is_settling: AtomicBool::new(false),
        };
        pending.load()?;
        Ok(Arc::new(pending))
    }

    fn load(&self) -> Result<(), StoreError> {
        let mut numbers = VecDeque::new();
        self.table
            .scan(MARK_PREFIX, Bound::Unbounded, &mut |key, _| {
                numbers.push_back(decode_u64(&key[MARK_PREFIX.len()..]));
                true
            })?;
        let next = self.table.get_with(NEXT_NO_KEY, decode_u64)?.unwrap_or(1);
        let mut marks = self.marks();
        marks.next = marks.next.max(next);
        marks.numbers = numbers;
        Ok(())
    }

    fn marks(&self) -> MutexGuard<'_, PendingMarks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops all marks after alarms were restored from a backup: those are not sent again.
    pub(super) fn clear(&self) -> Result<(), StoreError> {
        self.load()?;
        let numbers = std::mem::take(&mut self.marks().numbers);
        self.remove(numbers.iter())
    }

    /// Sets the notifier and sends the events that are still marked.
    pub(super) fn set_notifier(&self, to: Arc<dyn AlarmNotifier>) -> Result<(), StoreError> {
        let numbers = self.marks().numbers.clone();
        for no in numbers {
            let found = self.table.get_with(&key_of(no), decode)?.flatten();
            if let Some((change, alarm)) = found {
                let event = AlarmEvent {
                    change,
                    alarm: Arc::new(alarm),
                    tag: 0,
                    change_no: no,
                };
                to.notify(&event, wall_clock::now_ms());
            }
            self.mark_notified(no);
        }
        // The notifier is set only here.
        let _ = self.notifier.set(to);
        Ok(())
    }

    /// Adds a mark to the batch that writes the alarm. Returns the number of the change, or 0 if nothing is to be
    /// sent.
    pub(super) fn mark(
        &self,
        batch: &mut TableBatch,
        change: AlarmChange,
        alarm: &Alarm,
    ) -> Result<u64, StoreError> {
        if !self
            .notifier
            .get()
            .is_some_and(|to| to.wants(change, alarm))
        {
            return Ok(0);
        }
        let mut marks = self.marks();
        let no = marks.next;
        batch.put(&self.table, NEXT_NO_KEY, &(no + 1).to_be_bytes())?;
        if marks.numbers.len() < MAX_MARKS {
            let mut record = vec![change as u8];
            record.append(&mut alarm.encode());
            batch.put(&self.table, &key_of(no), &record)?;
            marks.numbers.push_back(no);
        }
        marks.next = no + 1;
        Ok(no)
    }

    /// Passes an event to the notifier.
    pub(super) fn notify(&self, event: &AlarmEvent) {
        if let (1.., Some(to)) = (event.change_no, self.notifier.get()) {
            to.notify(event, wall_clock::now_ms());
            self.mark_notified(event.change_no);
        }
    }

    fn mark_notified(&self, no: u64) {
        self.notified_up_to.fetch_max(no, Ordering::AcqRel);
    }

    /// Removes the marks of durable notifications and requests durability of those sent since. Called periodically.
    pub(super) fn settle(self: &Arc<Self>) -> Result<(), StoreError> {
        let safe = self.durable_up_to.load(Ordering::Acquire);
        let mut done = VecDeque::new();
        {
            let mut marks = self.marks();
            while let Some(no) = marks.numbers.pop_front_if(|no| *no <= safe) {
                done.push_back(no);
            }
        }
        if let Err(error) = self.remove(done.iter()) {
            let mut marks = self.marks();
            done.append(&mut marks.numbers);
            marks.numbers = done;
            return Err(error);
        }
        let up_to = self.notified_up_to.load(Ordering::Acquire);
        if up_to > safe
            && let Some(to) = self.notifier.get()
            && !self.is_settling.swap(true, Ordering::AcqRel)
        {
            let request = SettleRequest {
                pending: Arc::clone(self),
                up_to,
            };
            to.settle(Box::new(move || {
                request
                    .pending
                    .durable_up_to
                    .fetch_max(request.up_to, Ordering::AcqRel);
            }));
        }
        Ok(())
    }

    /// Waits briefly at shutdown until sent notifications are durable. The remaining ones are sent again at the next
    /// start.
    pub(super) fn finish(self: &Arc<Self>) {
        const PAUSE: Duration = Duration::from_millis(5);
        let end = Instant::now() + FINISH_WITHIN;
        while self.settle().is_ok() && !self.marks().numbers.is_empty() && Instant::now() < end {
            std::thread::sleep(PAUSE);
        }
    }

    fn remove<'a>(&self, numbers: impl Iterator<Item = &'a u64>) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        for no in numbers {
            batch.remove(&self.table, &key_of(*no))?;
        }
        match batch.is_empty() {
            true => Ok(()),
            false => batch.commit(Durability::Buffered),
        }
    }
}

fn key_of(no: u64) -> Vec<u8> {
    [MARK_PREFIX, &no.to_be_bytes()].concat()
}

fn decode_u64(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn decode(record: &[u8]) -> Option<(AlarmChange, Alarm)> {
    let (change, alarm) = record.split_first()?;
    let change = AlarmChange::ALL.get(usize::from(*change))?;
    Some((*change, Alarm::decode(alarm)?))
}
