//! A message queue: one half is filled while a worker empties the other.
//!
//! A publisher never waits for the worker, because the worker may wait for the publisher's shard: a half is cleared
//! when the messages that its rule chains published are stored, and shards store them. Messages that do not fit are
//! held in memory, in order, and acknowledged when they are in a file or processed ([`Mailbox::settle_overflow`]).
//! Publishers are paused long before ([`Mailbox::is_half_full`]), so only messages that they had already sent overflow.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hooks::DurableCallback;

use super::mailbox_segment::MailboxSegment;
use super::marks::{MailboxDamage, MarkFile};
use super::message::{DeviceMessage, OwnedDeviceMessage};
use crate::queue_progress::QueueProgress;

/// Result of a push into a mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PushOutcome {
    Accepted,
    /// The message is accepted, but only in memory: see [`Mailbox::settle_overflow`].
    Overflowed,
    /// The mailbox is full and its worker is stuck.
    Full,
    /// The mailbox is closed.
    Closed,
}

/// What a worker has to process next.
pub(super) enum MailboxWork {
    Half(MailboxSegment),
    /// A message that is larger than a half, with the time of its submission.
    Message(OwnedDeviceMessage, u64),
}

impl MailboxWork {
    fn count(&self) -> u64 {
        match self {
            Self::Half(half) => half.count().into(),
            Self::Message(..) => 1,
        }
    }
}

pub(super) struct Mailbox {
    state: Mutex<MailboxState>,
    /// Signals that there is work.
    filled: Condvar,
    /// Signals that the worker has completed or taken something, or has ended.
    completed: Condvar,
    /// Progress of the messages that were held in memory.
    overflow: QueueProgress,
    /// Publishers have to wait.
    is_half_full: AtomicBool,
    pub(super) queued: AtomicU64,
    pub(super) queued_bytes: AtomicU64,
}

struct MailboxState {
    filling: MailboxSegment,
    /// Whether the halves are free of messages of a previous process; before, all messages are held in memory.
    has_begun: bool,
    /// `None` while the worker has this half.
    spare: Option<MailboxSegment>,
    /// Messages that came while both halves were full, or that are larger than a half, with the times of their
    /// submission. They are newer than those in the halves.
    overflow: VecDeque<(OwnedDeviceMessage, u64)>,
    /// Sequence number of the last half taken by the worker.
    sequence: u64,
    /// Messages accepted, and messages completed.
    accepted: u64,
    done: u64,
    /// Number of threads that wait for the worker.
    waiting: u32,
    is_worker_asleep: bool,
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
                has_begun: false,
                spare: None,
                overflow: VecDeque::new(),
                sequence: 0,
                accepted: 0,
                done: 0,
                waiting: 0,
                is_worker_asleep: false,
                is_stopped: false,
                has_worker_ended: false,
            }),
            filled: Condvar::new(),
            completed: Condvar::new(),
            overflow: QueueProgress::default(),
            is_half_full: AtomicBool::new(false),
            queued: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
        }
    }

    /// Starts with two empty halves.
    pub(super) fn begin(&self, mut halves: Vec<MailboxSegment>) {
        let mut state = self.lock();
        state.has_begun = true;
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
    #[inline]
    pub(super) fn is_half_full(&self) -> bool {
        self.is_half_full.load(Ordering::Relaxed)
    }

    /// Adds a message, unless there is no room and `is_hopeless` reports that the worker makes none.
    #[inline]
    pub(super) fn push(
        &self,
        message: &DeviceMessage<'_>,
        handed_ns: u64,
        is_hopeless: impl Fn() -> bool,
    ) -> PushOutcome {
        let mut state = self.lock();
        if state.is_stopped {
            return PushOutcome::Closed;
        }
        let fits =
            state.has_begun && state.overflow.is_empty() && state.filling.push(message, handed_ns);
        if !fits {
            if is_hopeless() {
                return PushOutcome::Full;
            }
            self.overflow.add();
            let message = OwnedDeviceMessage::new(message);
            state.overflow.push_back((message, handed_ns));
        }
        state.accepted += 1;
        self.update_fill(&state);
        if state.is_worker_asleep {
            state.is_worker_asleep = false;
            drop(state);
            self.filled.notify_one();
        }
        match fits {
            true => PushOutcome::Accepted,
            false => PushOutcome::Overflowed,
        }
    }

    fn update_fill(&self, state: &MailboxState) {
        let filling = &state.filling;
        let queued = u64::from(filling.count()) + state.overflow.len() as u64;
        self.queued.store(queued, Ordering::Relaxed);
        let used = filling.used_bytes();
        self.queued_bytes.store(used as u64, Ordering::Relaxed);
        let is_half_full = used > filling.free_bytes() / 2 || !state.overflow.is_empty();
        self.is_half_full.store(is_half_full, Ordering::Relaxed);
    }

    /// Whether messages are held in memory.
    pub(super) fn has_overflow(&self) -> bool {
        self.overflow.is_pending()
    }

    /// Calls `done`, from any thread, when the messages held in memory now are in a half or processed.
    pub(super) fn settle_overflow(&self, done: DurableCallback) {
        self.overflow.settle(done);
    }

    /// Moves messages from memory into the half, until one does not fit. Returns their number.
    fn refill(state: &mut MailboxState) -> u64 {
        let mut moved = 0;
        while let Some((message, handed_ns)) = state.overflow.front()
            && state.filling.push(&message.as_message(), *handed_ns)
        {
            state.overflow.pop_front();
            moved += 1;
        }
        moved
    }

    /// Takes the next work for the worker and returns what it has completed. `None`: the mailbox is empty and closed.
    pub(super) fn exchange(&self, done: Option<MailboxWork>) -> Option<MailboxWork> {
        let mut state = self.lock();
        // Messages that left the memory.
        let mut moved = 0;
        if let Some(done) = done {
            state.done += done.count();
            match done {
                MailboxWork::Half(mut half) => {
                    half.clear(0);
                    state.spare = Some(half);
                }
                MailboxWork::Message(..) => moved += 1,
            }
        }
        let work = loop {
            if state.filling.is_empty() {
                moved += Self::refill(&mut state);
            }
            if !state.filling.is_empty() {
                let Some(mut fresh) = state.spare.take() else {
                    break None;
                };
                state.sequence += 1;
                fresh.clear(state.sequence);
                let full = std::mem::replace(&mut state.filling, fresh);
                moved += Self::refill(&mut state);
                break Some(MailboxWork::Half(full));
            }
            if let Some((message, handed_ns)) = state.overflow.pop_front() {
                break Some(MailboxWork::Message(message, handed_ns));
            }
            if state.is_stopped {
                state.has_worker_ended = true;
                break None;
            }
            if moved > 0 {
                // Their publishers wait.
                drop(state);
                self.overflow.complete_many(std::mem::take(&mut moved));
                state = self.lock();
                continue;
            }
            state.is_worker_asleep = true;
            self.wake_waiting(&state);
            state = self
                .filled
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        };
        state.is_worker_asleep = false;
        self.update_fill(&state);
        self.wake_waiting(&state);
        drop(state);
        self.overflow.complete_many(moved);
        work
    }

    /// Without waiting threads, this makes no system call.
    fn wake_waiting(&self, state: &MailboxState) {
        if state.waiting > 0 {
            self.completed.notify_all();
        }
    }

    /// Waits until all messages accepted so far are processed, or the worker has ended.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        let target = state.accepted;
        state.waiting += 1;
        while state.done < target && !state.has_worker_ended {
            state = self
                .completed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }

    /// Waits until publishers may continue or the worker has completed something, at most for `limit`. For threads that
    /// the worker never waits for.
    pub(super) fn wait_for_room(&self, limit: Duration) {
        let mut state = self.lock();
        if !self.is_half_full() {
            return;
        }
        state.waiting += 1;
        let woken = self.completed.wait_timeout(state, limit);
        woken.unwrap_or_else(PoisonError::into_inner).0.waiting -= 1;
    }

    /// Records that the worker has ended. Messages held in memory are never acknowledged.
    pub(super) fn end(&self) {
        self.lock().has_worker_ended = true;
        self.completed.notify_all();
        self.overflow.close();
    }

    /// Accepts no more messages. Queued messages are still processed.
    pub(super) fn stop(&self) {
        self.lock().is_stopped = true;
        self.filled.notify_all();
    }
}
