//! Rows in memory between the shards and the machine. Each shard appends to its own part under a lock. Only the machine
//! contends for it, for no longer than it takes to detach some chunks. The machine is woken once for the number of rows
//! that it waits for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::metrics::SinkCounters;
use crate::row::{SinkRow, SinkRowWriter};
use crate::settings::{OnFull, QueueSettings};

/// A chunk is closed at this number of rows or bytes, which limits copying under the lock.
const CHUNK_ROWS: usize = 64;
const CHUNK_BYTES: usize = 32 << 10;
const HEAD: usize = 4;
const NO_WAITER: usize = usize::MAX;

/// Result of pushing a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushOutcome {
    Queued,
    /// The row is queued, and the queue is full: pause its publisher until
    /// [`ConnectorService::wait_for_room`](crate::ConnectorService::wait_for_room) resolves.
    Blocked,
    /// The queue is full, or the row is larger than the queue.
    Dropped,
    /// The sink does not exist or is disabled.
    Unknown,
}

pub(crate) struct MemoryQueue {
    shard_queues: Box<[ShardQueue]>,
    rows: AtomicUsize,
    bytes: AtomicUsize,
    max_rows: AtomicUsize,
    max_bytes: AtomicUsize,
    on_full: AtomicU8,
    /// Rows go on to files; a caller that pushed rows may wait until they are written.
    is_spooled: AtomicBool,
    /// The files have reached their limit; blocking pushers stay blocked.
    are_files_full: AtomicBool,
    waiting: Mutex<Vec<WrittenWaiter>>,
    /// The machine is woken at this number of rows or bytes.
    wake_at_rows: AtomicUsize,
    wake_at_bytes: AtomicUsize,
    wake: Notify,
    /// Notified when a full queue has room again.
    room: Arc<Notify>,
    metrics: Arc<SinkCounters>,
}

/// Aligned to a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct ShardQueue(Mutex<ShardRows>);

/// The rows of one shard, and counts since the start.
#[derive(Default)]
struct ShardRows {
    chunks: VecDeque<RowChunk>,
    appended: u64,
    /// Number of appended rows that were removed from memory.
    removed: u64,
    /// Number of appended rows that are in files or were discarded.
    written: u64,
}

/// Waits until a number of rows of a part is in files.
struct WrittenWaiter {
    shard_queue: usize,
    rows: u64,
    _done: Arc<WrittenCallback>,
}

/// Calls the function when the last reference is dropped.
pub(crate) struct WrittenCallback(Option<Box<dyn FnOnce() + Send + Sync>>);

impl WrittenCallback {
    pub(crate) fn new(done: Box<dyn FnOnce() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self(Some(done)))
    }
}

impl Drop for WrittenCallback {
    fn drop(&mut self) {
        if let Some(done) = self.0.take() {
            done();
        }
    }
}

/// Rows, each preceded by its length.
#[derive(Default)]
struct RowChunk {
    bytes: Vec<u8>,
    read: usize,
    rows: usize,
}

impl RowChunk {
    /// Removes and returns the first row.
    fn take(&mut self) -> Option<SinkRow<'_>> {
        let (length, rest) = self.bytes[self.read..].split_first_chunk::<HEAD>()?;
        let length = u32::from_le_bytes(*length) as usize;
        self.read += HEAD + length;
        self.rows -= 1;
        Some(SinkRow::from_bytes(&rest[..length]))
    }
}

impl ShardQueue {
    fn lock(&self) -> MutexGuard<'_, ShardRows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryQueue {
    pub(crate) fn new(shards: usize, settings: &QueueSettings, metrics: Arc<SinkCounters>) -> Self {
        let queue = Self {
            shard_queues: (0..shards.max(1)).map(|_| ShardQueue::default()).collect(),
            rows: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            max_rows: AtomicUsize::new(0),
            max_bytes: AtomicUsize::new(0),
            on_full: AtomicU8::new(0),
            is_spooled: AtomicBool::new(false),
            are_files_full: AtomicBool::new(false),
            waiting: Mutex::default(),
            wake_at_rows: AtomicUsize::new(NO_WAITER),
            wake_at_bytes: AtomicUsize::new(NO_WAITER),
            wake: Notify::new(),
            room: Arc::default(),
            metrics,
        };
        queue.set_limits(settings);
        queue
    }

    pub(crate) fn set_limits(&self, settings: &QueueSettings) {
        self.max_rows.store(settings.max_rows, Relaxed);
        self.max_bytes.store(settings.max_bytes, Relaxed);
        let policy = match settings.on_full {
            OnFull::Block => 0,
            OnFull::DropOldest => 1,
            OnFull::DropNewest => 2,
        };
        self.on_full.store(policy, Relaxed);
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.load(Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    fn is_full_for(&self, times: usize) -> bool {
        self.rows() >= self.max_rows.load(Relaxed).saturating_mul(times)
            || self.bytes() >= self.max_bytes.load(Relaxed).saturating_mul(times)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full_for(1)
    }

    /// Whether publishers have to wait.
    pub(crate) fn is_blocking(&self) -> bool {
        self.is_blocking_policy() && (self.is_full() || self.are_files_full.load(Relaxed))
    }

    /// Whether the policy is to pause publishers rather than to lose rows.
    pub(crate) fn is_blocking_policy(&self) -> bool {
        self.on_full.load(Relaxed) == 0
    }

    /// Whether rows are moved to files, which callers can wait for.
    pub(crate) fn is_spooled(&self) -> bool {
        self.is_spooled.load(Relaxed)
    }

    /// Sets whether files accept rows; if not, nothing waits for them.
    pub(crate) fn set_spooled(&self, is_spooled: bool) {
        self.is_spooled.store(is_spooled, SeqCst);
        if !is_spooled {
            let waiting = std::mem::take(&mut *self.waiting());
            drop(waiting);
        }
    }

    pub(crate) fn set_files_full(&self, are_full: bool) {
        if self.are_files_full.swap(are_full, Relaxed) && !are_full {
            self.room.notify_waiters();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<WrittenWaiter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `done` until all present rows of this shard are in files, if they are being moved there; whether there are
    /// such rows.
    pub(crate) fn hold_until_written(&self, shard: u16, done: &Arc<WrittenCallback>) -> bool {
        let part = usize::from(shard) % self.shard_queues.len();
        let mut waiting = self.waiting();
        let rows = self.shard_queues[part].lock();
        // Checked under the lock, so that ending the spooling misses no waiter.
        let is_pending = self.is_spooled.load(SeqCst) && rows.written < rows.appended;
        if is_pending {
            waiting.push(WrittenWaiter {
                shard_queue: part,
                rows: rows.appended,
                _done: done.clone(),
            });
        }
        is_pending
    }

    /// Number of rows taken from each shard so far.
    pub(crate) fn taken_counts(&self) -> Vec<u64> {
        self.shard_queues
            .iter()
            .map(|part| part.lock().removed)
            .collect()
    }

    /// Records that the rows up to these [`MemoryQueue::taken_counts`] are in files.
    pub(crate) fn record_written(&self, marks: &[u64]) {
        for (part, mark) in self.shard_queues.iter().zip(marks) {
            part.lock().written = *mark;
        }
        let mut waiting = self.waiting();
        let (left, done) = std::mem::take(&mut *waiting)
            .into_iter()
            .partition(|one| one.rows > marks[one.shard_queue]);
        *waiting = left;
        drop(waiting);
        drop::<Vec<WrittenWaiter>>(done);
    }

    /// Notified whenever there may be room again.
    pub(crate) fn room_notify(&self) -> Arc<Notify> {
        self.room.clone()
    }

    /// Appends the row that `fill` writes. Waits for nothing but the machine's short critical sections.
    pub(crate) fn push(
        &self,
        shard: u16,
        fill: impl FnOnce(&mut SinkRowWriter<'_>),
    ) -> PushOutcome {
        let own = usize::from(shard) % self.shard_queues.len();
        let mut answer = PushOutcome::Queued;
        if self.is_blocking_policy() && self.are_files_full.load(Relaxed) {
            answer = PushOutcome::Blocked;
        }
        if self.is_full() {
            match self.on_full.load(Relaxed) {
                0 if self.is_full_for(2) => answer = PushOutcome::Dropped,
                0 => answer = PushOutcome::Blocked,
                1 => self.drop_oldest(own),
                _ => answer = PushOutcome::Dropped,
            }
            if answer == PushOutcome::Dropped {
                self.metrics.dropped_full.fetch_add(1, Relaxed);
                return answer;
            }
        }
        let Some((rows, bytes)) = self.append(own, fill) else {
            self.metrics.dropped_too_large.fetch_add(1, Relaxed);
            return PushOutcome::Dropped;
        };
        if rows >= self.wake_at_rows.load(SeqCst) || bytes >= self.wake_at_bytes.load(SeqCst) {
            self.wake_machine();
        }
        answer
    }

    /// Returns the size of the queue including the row; `None` if the row is too large.
    fn append(
        &self,
        own: usize,
        fill: impl FnOnce(&mut SinkRowWriter<'_>),
    ) -> Option<(usize, usize)> {
        let mut part = self.shard_queues[own].lock();
        let is_open = |last: &RowChunk| last.rows < CHUNK_ROWS && last.bytes.len() < CHUNK_BYTES;
        if !part.chunks.back().is_some_and(is_open) {
            part.chunks.push_back(RowChunk::default());
        }
        let chunk = part.chunks.back_mut().expect("one was just pushed");
        let start = chunk.bytes.len();
        chunk.bytes.extend_from_slice(&[0; HEAD]);
        fill(&mut SinkRowWriter::new(&mut chunk.bytes));
        let length = chunk.bytes.len() - start - HEAD;
        match u32::try_from(length) {
            Ok(short) if length <= self.max_bytes.load(Relaxed) => {
                chunk.bytes[start..start + HEAD].copy_from_slice(&short.to_le_bytes());
                chunk.rows += 1;
                part.appended += 1;
                // Under the lock, so that no row is taken before it is counted. Counted before checking whether the machine waits;
                // the machine announces its wait before it reads the counts. Hence SeqCst.
                let rows = self.rows.fetch_add(1, SeqCst) + 1;
                let bytes = self.bytes.fetch_add(length, SeqCst) + length;
                Some((rows, bytes))
            }
            _ => {
                chunk.bytes.truncate(start);
                None
            }
        }
    }

    fn wake_machine(&self) {
        self.wake_at_bytes.store(NO_WAITER, Relaxed);
        if self.wake_at_rows.swap(NO_WAITER, SeqCst) != NO_WAITER {
            self.wake.notify_one();
        }
    }

    /// Makes room: removes the oldest row of this shard, or of another one if this has none.
    fn drop_oldest(&self, own: usize) {
        for at in 0..self.shard_queues.len() {
            let mut part = self.shard_queues[(own + at) % self.shard_queues.len()].lock();
            while self.is_full() {
                let Some(chunk) = part.chunks.front_mut() else {
                    break;
                };
                match chunk.take() {
                    Some(row) => {
                        let length = row.as_bytes().len();
                        part.removed += 1;
                        self.rows.fetch_sub(1, SeqCst);
                        self.bytes.fetch_sub(length, SeqCst);
                        self.metrics.dropped_full.fetch_add(1, Relaxed);
                    }
                    None => drop(part.chunks.pop_front()),
                }
            }
            if !self.is_full() {
                return;
            }
        }
    }

    /// Resolves when this number of rows or bytes is queued. For a single waiter.
    pub(crate) async fn ready(&self, rows: usize, bytes: usize) {
        loop {
            self.wake_at_bytes.store(bytes, SeqCst);
            self.wake_at_rows.store(rows, SeqCst);
            let is_there =
                self.rows.load(SeqCst) >= rows || self.bytes.load(SeqCst) >= bytes.max(1);
            if is_there {
                self.wake_at_rows.store(NO_WAITER, SeqCst);
                return;
            }
            self.wake.notified().await;
        }
    }

    /// Takes rows, in order for each shard, until a number of rows or bytes is reached.
    pub(crate) fn take(
        &self,
        max_rows: usize,
        max_bytes: usize,
        mut each: impl FnMut(SinkRow<'_>),
    ) -> usize {
        let was_full = self.is_full();
        let (mut rows, mut bytes) = (0, 0);
        for part in &self.shard_queues {
            while rows < max_rows && bytes < max_bytes {
                let mut part = part.lock();
                let own = &mut *part;
                let Some(first) = own.chunks.front_mut() else {
                    break;
                };
                let is_whole =
                    first.rows <= max_rows - rows && first.bytes.len() <= max_bytes - bytes;
                if is_whole {
                    let mut chunk = own.chunks.pop_front().expect("it was looked at");
                    own.removed += chunk.rows as u64;
                    drop(part);
                    while let Some(row) = chunk.take() {
                        rows += 1;
                        bytes += row.as_bytes().len();
                        each(row);
                    }
                    continue;
                }
                while rows < max_rows && bytes < max_bytes {
                    let Some(row) = first.take() else {
                        own.chunks.pop_front();
                        break;
                    };
                    own.removed += 1;
                    rows += 1;
                    bytes += row.as_bytes().len();
                    each(row);
                }
            }
        }
        self.rows.fetch_sub(rows, SeqCst);
        self.bytes.fetch_sub(bytes, SeqCst);
        if was_full && !self.is_full() {
            self.room.notify_waiters();
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn queue(max_rows: usize, on_full: OnFull) -> MemoryQueue {
        let settings = QueueSettings {
            max_rows,
            on_full,
            ..QueueSettings::default()
        };
        MemoryQueue::new(2, &settings, Arc::default())
    }

    fn taken(queue: &MemoryQueue, max_rows: usize) -> Vec<i64> {
        let mut numbers = Vec::new();
        queue.take(max_rows, usize::MAX, |row| {
            let Some(crate::SinkValue::Int(number)) = row.get("n") else {
                panic!("no number")
            };
            numbers.push(number);
        });
        numbers
    }

    #[test]
    fn rows_of_a_shard_come_in_their_order() {
        let queue = queue(1000, OnFull::Block);
        for n in 0..200 {
            assert_eq!(queue.push(0, |row| row.int("n", n)), PushOutcome::Queued);
        }
        assert_eq!(taken(&queue, 100), (0..100).collect::<Vec<_>>());
        assert_eq!(taken(&queue, 1000), (100..200).collect::<Vec<_>>());
        assert_eq!((queue.rows(), queue.bytes()), (0, 0));
    }

    #[test]
    fn each_policy_is_applied() {
        let oldest = queue(3, OnFull::DropOldest);
        let newest = queue(3, OnFull::DropNewest);
        let block = queue(3, OnFull::Block);
        for n in 0..5 {
            assert_eq!(oldest.push(0, |row| row.int("n", n)), PushOutcome::Queued);
            let (expected_newest, expected_block) = match n {
                0..3 => (PushOutcome::Queued, PushOutcome::Queued),
                _ => (PushOutcome::Dropped, PushOutcome::Blocked),
            };
            assert_eq!(newest.push(0, |row| row.int("n", n)), expected_newest);
            assert_eq!(block.push(0, |row| row.int("n", n)), expected_block);
        }
        assert_eq!(block.push(0, |row| row.int("n", 5)), PushOutcome::Blocked);
        assert_eq!(block.push(0, |row| row.int("n", 6)), PushOutcome::Dropped);
        assert_eq!(taken(&oldest, 9), [2, 3, 4]);
        assert_eq!(taken(&newest, 9), [0, 1, 2]);
        assert_eq!(taken(&block, 9), [0, 1, 2, 3, 4, 5]);
        assert_eq!(oldest.metrics.dropped_full.load(Relaxed), 2);
        assert_eq!(newest.metrics.dropped_full.load(Relaxed), 2);
        assert_eq!(block.metrics.dropped_full.load(Relaxed), 1);
    }

    #[test]
    fn the_oldest_of_another_shard_makes_room_too() {
        let queue = queue(2, OnFull::DropOldest);
        queue.push(0, |row| row.int("n", 1));
        queue.push(0, |row| row.int("n", 2));
        queue.push(1, |row| row.int("n", 3));
        assert_eq!(taken(&queue, 9), [2, 3]);
    }

    #[test]
    fn a_row_larger_than_the_queue_is_dropped() {
        let settings = QueueSettings {
            max_bytes: 1024,
            ..QueueSettings::default()
        };
        let queue = MemoryQueue::new(1, &settings, Arc::default());
        let large = "x".repeat(2000);
        assert_eq!(
            queue.push(0, |row| row.text("t", &large)),
            PushOutcome::Dropped
        );
        assert_eq!(queue.push(0, |row| row.int("n", 1)), PushOutcome::Queued);
        assert_eq!(taken(&queue, 9), [1]);
        assert_eq!(queue.metrics.dropped_too_large.load(Relaxed), 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_waiter_misses_no_row() {
        let queue = Arc::new(queue(usize::MAX >> 1, OnFull::Block));
        let pushing = queue.clone();
        let pusher = std::thread::spawn(move || {
            for n in 0..100_000 {
                pushing.push((n % 2) as u16, |row| row.int("n", n));
            }
        });
        let mut count = 0;
        while count < 100_000 {
            let ready = queue.ready(1, usize::MAX);
            tokio::time::timeout(Duration::from_secs(10), ready)
                .await
                .expect("there is more to come");
            count += taken(&queue, 1000).len();
        }
        pusher.join().unwrap();
    }

    #[test]
    fn completion_is_reported_when_all_rows_of_the_shard_are_in_files() {
        let queue = queue(100, OnFull::DropOldest);
        let completed = Arc::new(AtomicUsize::new(0));
        let wait = |shard| {
            let completed = completed.clone();
            let done = Box::new(move || _ = completed.fetch_add(1, SeqCst));
            queue.hold_until_written(shard, &WrittenCallback::new(done));
        };
        let count = || completed.load(SeqCst);
        queue.push(0, |row| row.int("n", 1));
        wait(0);
        assert_eq!(count(), 1, "no files are written");
        queue.set_spooled(true);
        wait(0);
        wait(1);
        assert_eq!(count(), 2, "there is nothing of the other shard");
        taken(&queue, 9);
        let marks = queue.taken_counts();
        queue.push(0, |row| row.int("n", 2));
        wait(0);
        queue.record_written(&marks);
        assert_eq!(count(), 3, "the second row is not there yet");
        taken(&queue, 9);
        queue.record_written(&queue.taken_counts());
        assert_eq!(count(), 4);
        queue.push(1, |row| row.int("n", 3));
        wait(1);
        queue.set_spooled(false);
        assert_eq!(count(), 5, "files are no longer written");
    }

    #[tokio::test]
    async fn waiters_are_notified_of_room() {
        let queue = queue(1, OnFull::Block);
        queue.push(0, |row| row.int("n", 1));
        let room = queue.room_notify();
        let notified_room = room.notified();
        assert!(queue.is_full());
        taken(&queue, 1);
        tokio::time::timeout(Duration::from_secs(10), notified_room)
            .await
            .expect("there is room");
    }
}
