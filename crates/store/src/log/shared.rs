//! State shared by shards and threads of the store: submitted batches, health, counters.
//!
//! A shard takes one lock to submit, which the writer holds only to swap two vectors.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::Thread;

pub(crate) use super::locking::lock;
use super::notification_hold::NotificationHold;
use super::read_job::SegmentChunk;
use super::written_log::WrittenLog;
use crate::batch::StoreBatch;
use crate::health::{HealthFlag, StoreHealth};
use crate::queue::QueueFetch;

const SLOTS: usize = 63;
/// The bit for all events that do not come from a shard.
const EVENT_BIT: u64 = 1 << SLOTS;
const MAX_RECYCLED_BATCHES: usize = 256;

pub(crate) enum StoreRequest {
    Batch(u16, StoreBatch),
    Fetch(u16, QueueFetch),
}

#[derive(Default)]
pub(crate) struct StoreCounters {
    pub(crate) segments: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) live_bytes: AtomicU64,
    pub(crate) live_messages: AtomicU64,
    pub(crate) queued_sessions: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) fsyncs: AtomicU64,
    pub(crate) last_fsync_us: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) read_errors: AtomicU64,
    pub(crate) free_bytes: AtomicU64,
    pub(crate) held_notifications: AtomicU64,
}

struct SubmissionSlots([Mutex<Vec<StoreRequest>>; SLOTS]);

impl Default for SubmissionSlots {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

/// Adds to a counter.
pub(crate) fn increment(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

#[derive(Default)]
pub(crate) struct StoreShared {
    slots: SubmissionSlots,
    /// Slots with submitted requests.
    dirty: AtomicU64,
    writer: OnceLock<Thread>,
    pending_bytes: AtomicUsize,
    health: AtomicU8,
    health_flags: AtomicU8,
    recycled_batches: Mutex<Vec<StoreBatch>>,
    chunks: Mutex<Vec<SegmentChunk>>,
    pub(crate) is_stopping: AtomicBool,
    /// All present segments are to be reclaimed, however much of them is live.
    pub(crate) is_compaction_requested: AtomicBool,
    pub(crate) is_compacting: AtomicBool,
    pub(crate) counters: StoreCounters,
    pub(crate) written_log: WrittenLog,
    pub(super) hold: NotificationHold,
}

impl StoreShared {
    pub(crate) fn submit(&self, shard: u16, request: StoreRequest) {
        if let StoreRequest::Batch(_, batch) = &request {
            self.pending_bytes
                .fetch_add(batch.bytes.len(), Ordering::Relaxed);
        }
        let slot = usize::from(shard) % SLOTS;
        lock(&self.slots.0[slot]).push(request);
        self.wake_for(1 << slot);
    }

    /// Wakes the writer for anything other than a shard's request.
    pub(crate) fn wake(&self) {
        self.wake_for(EVENT_BIT);
    }

    fn wake_for(&self, bit: u64) {
        if self.dirty.fetch_or(bit, Ordering::AcqRel) == 0
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }

    /// Registers this thread as the writer; earlier submissions wake it.
    pub(crate) fn register_writer(&self) {
        let _ = self.writer.set(std::thread::current());
    }

    /// Passes everything submitted since the last call to `each`, in the order of each shard; `false` if there was no wake-up.
    pub(crate) fn collect_requests(
        &self,
        spare: &mut Vec<StoreRequest>,
        each: &mut dyn FnMut(StoreRequest),
    ) -> bool {
        let mut bits = self.dirty.swap(0, Ordering::AcqRel);
        if bits == 0 {
            return false;
        }
        bits &= !EVENT_BIT;
        while bits != 0 {
            let slot = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            std::mem::swap(&mut *lock(&self.slots.0[slot]), spare);
            spare.drain(..).for_each(&mut *each);
        }
        true
    }

    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn recycled_batch(&self) -> StoreBatch {
        lock(&self.recycled_batches).pop().unwrap_or_default()
    }

    /// Recycles batches that were logged and are no longer needed.
    pub(crate) fn recycle(&self, batches: &mut Vec<StoreBatch>) {
        let mut spares = lock(&self.recycled_batches);
        let room = MAX_RECYCLED_BATCHES.saturating_sub(spares.len());
        for mut batch in batches.drain(..).take(room) {
            batch.clear();
            spares.push(batch);
        }
    }

    /// Counts bytes that the store writes itself.
    pub(crate) fn add_pending_bytes(&self, bytes: usize) {
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract_pending_bytes(&self, bytes: usize) {
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn push_chunk(&self, chunk: SegmentChunk) {
        lock(&self.chunks).push(chunk);
        self.wake();
    }

    pub(crate) fn take_chunk(&self) -> Option<SegmentChunk> {
        lock(&self.chunks).pop()
    }

    pub(crate) fn health(&self) -> StoreHealth {
        match self.health.load(Ordering::Relaxed) {
            0 => StoreHealth::Ok,
            1 => StoreHealth::Full,
            _ => StoreHealth::Failed,
        }
    }

    pub(crate) fn has_flag(&self, trouble: HealthFlag) -> bool {
        self.health_flags.load(Ordering::Acquire) & trouble as u8 != 0
    }

    /// Sets or clears a health flag; returns whether that changed it.
    pub(crate) fn set_flag(&self, trouble: HealthFlag, is_there: bool) -> bool {
        let bit = trouble as u8;
        let before = if is_there {
            self.health_flags.fetch_or(bit, Ordering::AcqRel)
        } else {
            self.health_flags.fetch_and(!bit, Ordering::AcqRel)
        };
        if (before & bit != 0) == is_there {
            return false;
        }
        // Repeated until it succeeds, because another thread may change its flag at the same time.
        loop {
            let flags = self.health_flags.load(Ordering::Acquire);
            let full = HealthFlag::LogFull as u8 | HealthFlag::DiskFull as u8;
            let health = match flags {
                0 => StoreHealth::Ok,
                flags if flags & !full == 0 => StoreHealth::Full,
                _ => StoreHealth::Failed,
            };
            self.health.store(health as u8, Ordering::Release);
            if self.health_flags.load(Ordering::Acquire) == flags {
                return true;
            }
        }
    }
}
