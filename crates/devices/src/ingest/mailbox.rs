//! A bounded message queue: one half is filled while a worker empties the other.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::mailbox_segment::MailboxSegment;
use super::marks::{MailboxDamage, MarkFile};
use super::pipeline::DeviceMessage;

/// Interval at which a waiting publisher checks whether the worker still makes progress.
const RECHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Result of a push into a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PushOutcome {
    Accepted,
    /// The message is larger than a half, or the mailbox is closed.
    TooLarge,
    /// The mailbox is full and its worker is stuck.
    Full,
}

pub(super) struct Mailbox {
    state: Mutex<MailboxState>,
    /// Signals that there is work.
    filled: Condvar,
    /// Signals that there is room again, or that all work is done.
    emptied: Condvar,
    /// Publishers have to wait.
    is_half_full: AtomicBool,
    pub(super) queued: AtomicU64,
    pub(super) queued_bytes: AtomicU64,
}

struct MailboxState {
    filling: MailboxSegment,
    /// `None` while the worker has this half.
    spare: Option<MailboxSegment>,
    /// Halves taken by a worker, and halves completed.
    taken: u64,
    done: u64,
    is_worker_asleep: bool,
    waiting: u32,
    is_stopped: bool,
    /// The worker has ended.
    has_worker_ended: bool,
}

pub(super) fn log_damage((path, problem): &MailboxDamage) {
    tracing::error!(
        path = %path.display(),
        problem,
        "device mailbox is damaged; readable messages are stored, and the damaged file is kept as *.damaged"
    );
}

impl Mailbox {
    pub(super) fn files(directory: &Path, number: usize) -> [PathBuf; 2] {
        ['a', 'b'].map(|half| directory.join(format!("mailbox-{number}{half}")))
    }

    /// Opens the mailbox with the messages of a previous process, the older half first. Logs damage.
    pub(super) fn open(
        files: Option<(&Path, &MarkFile)>,
        number: usize,
        bytes: usize,
    ) -> io::Result<(Self, Vec<MailboxSegment>)> {
        let half_bytes = bytes / 2;
        let mut halves = Vec::new();
        match files {
            None => {
                halves.push(MailboxSegment::in_memory(half_bytes)?);
                halves.push(MailboxSegment::in_memory(half_bytes)?);
            }
            Some((directory, guard)) => {
                for (path, half) in Self::files(directory, number).iter().zip(2 * number..) {
                    let (known, mark) = (guard.values_of(half), Some(guard.mark(half)));
                    let (segment, problem) = MailboxSegment::open(path, half_bytes, known, mark)?;
                    if let Some(problem) = problem {
                        log_damage(&problem);
                    }
                    halves.push(segment);
                }
            }
        }
        halves.sort_by_key(|half| (half.is_empty(), half.sequence()));
        Ok((Self::new(MailboxSegment::in_memory(0)?), halves))
    }

    fn new(nothing: MailboxSegment) -> Self {
        Self {
            state: Mutex::new(MailboxState {
                filling: nothing,
                spare: None,
                taken: 0,
                done: 0,
                is_worker_asleep: false,
                waiting: 0,
                is_stopped: false,
                has_worker_ended: false,
            }),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            is_half_full: AtomicBool::new(false),
            queued: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
        }
    }

    /// Starts with two empty halves.
    pub(super) fn begin(&self, mut halves: Vec<MailboxSegment>) {
        let mut state = self.lock();
        halves.iter_mut().for_each(|half| half.clear(0));
        state.spare = halves.pop();
        if let Some(half) = halves.pop() {
            state.filling = half;
        }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether publishers have to wait: half of a half is full. The rest is reserved for messages already on
    /// their way.
    pub(super) fn is_half_full(&self) -> bool {
        self.is_half_full.load(Ordering::Relaxed)
    }

    /// Adds a message. Waits for room, unless `is_hopeless` reports that the worker makes none.
    #[inline]
    pub(super) fn push(
        &self,
        message: &DeviceMessage<'_>,
        handed_ns: u64,
        is_hopeless: impl Fn() -> bool,
    ) -> PushOutcome {
        let mut state = self.lock();
        loop {
            if state.is_stopped || MailboxSegment::size_of(message) > state.filling.free_bytes() {
                return PushOutcome::TooLarge;
            }
            if state.filling.push(message, handed_ns) {
                break;
            }
            if is_hopeless() {
                return PushOutcome::Full;
            }
            state = self.wait_for_worker(state);
        }
        let used = state.filling.used_bytes();
        self.queued
            .store(u64::from(state.filling.count()), Ordering::Relaxed);
        self.queued_bytes.store(used as u64, Ordering::Relaxed);
        if used > state.filling.free_bytes() / 2 {
            self.is_half_full.store(true, Ordering::Relaxed);
        }
        if state.is_worker_asleep {
            state.is_worker_asleep = false;
            drop(state);
            self.filled.notify_one();
        }
        PushOutcome::Accepted
    }

    fn wait_for_worker<'s>(
        &self,
        mut state: MutexGuard<'s, MailboxState>,
    ) -> MutexGuard<'s, MailboxState> {
        state.waiting += 1;
        let waited = self.emptied.wait_timeout(state, RECHECK_INTERVAL);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    /// Takes the filled half for the worker and returns the one it has processed. `None`: the mailbox is
    /// empty and closed.
    pub(super) fn exchange(&self, done: Option<MailboxSegment>) -> Option<MailboxSegment> {
        let mut state = self.lock();
        if let Some(mut done) = done {
            done.clear(0);
            state.spare = Some(done);
            state.done = state.taken;
            if state.waiting > 0 {
                self.emptied.notify_all();
            }
        }
        while state.filling.is_empty() {
            if state.is_stopped {
                state.has_worker_ended = true;
                self.emptied.notify_all();
                return None;
            }
            state.is_worker_asleep = true;
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.is_worker_asleep = false;
        let mut fresh = state.spare.take()?;
        state.taken += 1;
        fresh.clear(state.taken);
        let full = std::mem::replace(&mut state.filling, fresh);
        self.is_half_full.store(false, Ordering::Relaxed);
        self.queued.store(0, Ordering::Relaxed);
        self.queued_bytes.store(0, Ordering::Relaxed);
        if state.waiting > 0 {
            self.emptied.notify_all();
        }
        Some(full)
    }

    /// Waits until all messages now in the mailbox are processed. Returns `false` if they are not and
    /// `is_hopeless` reports that they will not be soon.
    pub(super) fn flush(&self, is_hopeless: impl Fn() -> bool) -> bool {
        let mut state = self.lock();
        let target = state.taken + u64::from(!state.filling.is_empty());
        while state.done < target && !state.has_worker_ended {
            if is_hopeless() {
                return false;
            }
            state = self.wait_for_worker(state);
        }
        true
    }

    /// Records that the worker has ended.
    pub(super) fn end(&self) {
        self.lock().has_worker_ended = true;
        self.emptied.notify_all();
    }

    /// Accepts no more messages. Queued messages are still processed.
    pub(super) fn stop(&self) {
        self.lock().is_stopped = true;
        self.filled.notify_all();
        self.emptied.notify_all();
    }
}
