//! The writer takes what all shards submitted since the last round and writes it with one call. It syncs according to
//! the policy, and then reports it once per shard. `writer_loop.rs` is its thread.
//!
//! Nothing is acknowledged that is not written. When a write fails, the segment is abandoned, batches keep their order, and
//! the write is retried in a new segment with growing pauses.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::applier::Applier;
use super::external_queues::ExternalQueues;
use super::frame::{FLAG_COPY, FLAG_KEYED, seal};
use super::held_notifications::HeldNotifications;
use super::index::QueueIndex;
use super::maintenance::{LogMaintenance, LogPosition};
use super::read_job::{EntryToRead, MAX_PAGES, PageReadJob, ReadJob};
use super::segments::Segments;
use super::shared::{StoreRequest, StoreShared, increment};
use crate::batch::{FRAME_HEAD, StoreBatch};
use crate::config::{Fsync, StoreConfig};
use crate::health::HealthFlag;
use crate::observer::StoreObserver;
use crate::queue::QueueFetch;

/// The shard number of batches of the store itself: copies.
pub(super) const NO_SHARD: u16 = u16::MAX;
/// Bytes written before they are acknowledged, unless one batch is larger.
const MAX_GROUP_BYTES: u64 = 4 << 20;
/// Smaller batches are copied into one buffer, larger ones are written from where they are.
const COPY_BYTES: usize = 64 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// How long the writer sleeps without a wake-up.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// A failed write, and when to retry.
struct WriteFailure {
    retry_at: Instant,
    pause: Duration,
}

pub(crate) struct LogWriter {
    pub(super) shared: Arc<StoreShared>,
    pub(super) config: StoreConfig,
    pub(super) observer: Arc<dyn StoreObserver>,
    pub(super) segments: Segments,
    pub(super) index: QueueIndex,
    pub(super) maintenance: Arc<LogMaintenance>,
    pub(super) applier: Arc<Applier>,
    pub(super) jobs: Sender<ReadJob>,
    pub(super) open_pages: Arc<AtomicUsize>,
    /// The last frame in the log.
    pub(super) written_lsn: u64,
    /// The initial `written_lsn`, and the last frame in the log at that time, which is lower if the keyed state knew a later one.
    started_at_lsn: u64,
    recovered_lsn: u64,
    /// The number of the next frame.
    pub(super) next_lsn: u64,
    /// Submitted and not yet written, in order.
    backlog: VecDeque<(u16, StoreBatch)>,
    fetches: VecDeque<(u16, QueueFetch)>,
    /// The server that holds the queues, if they are not in this log.
    external_queues: Option<ExternalQueues>,
    held_notifications: HeldNotifications,
    failure: Option<WriteFailure>,
    prepare_at: Option<Instant>,
    // Reused buffers.
    requests: Vec<StoreRequest>,
    joined_frames: Vec<u8>,
    logged: Vec<(u16, u64)>,
    finished_batches: Vec<StoreBatch>,
}

/// The parts from which a writer is built.
pub(crate) struct LogWriterParts {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) config: StoreConfig,
    pub(crate) observer: Arc<dyn StoreObserver>,
    pub(crate) segments: Segments,
    pub(crate) index: QueueIndex,
    pub(crate) maintenance: Arc<LogMaintenance>,
    pub(crate) applier: Arc<Applier>,
    pub(crate) jobs: Sender<ReadJob>,
    pub(crate) open_pages: Arc<AtomicUsize>,
    pub(crate) written_lsn: u64,
    pub(crate) recovered_lsn: u64,
    pub(crate) external_queues: Option<ExternalQueues>,
}

impl LogWriter {
    pub(crate) fn new(start: LogWriterParts) -> Self {
        Self {
            shared: start.shared,
            config: start.config,
            observer: start.observer,
            segments: start.segments,
            index: start.index,
            maintenance: start.maintenance,
            applier: start.applier,
            jobs: start.jobs,
            open_pages: start.open_pages,
            written_lsn: start.written_lsn,
            started_at_lsn: start.written_lsn,
            recovered_lsn: start.recovered_lsn,
            next_lsn: start.written_lsn + 1,
            backlog: VecDeque::new(),
            fetches: VecDeque::new(),
            external_queues: start.external_queues,
            held_notifications: HeldNotifications::default(),
            failure: None,
            prepare_at: None,
            requests: Vec::new(),
            joined_frames: Vec::new(),
            logged: Vec::new(),
            finished_batches: Vec::new(),
        }
    }

    pub(super) fn collect(&mut self) -> bool {
        let (backlog, fetches) = (&mut self.backlog, &mut self.fetches);
        let outside = &mut self.external_queues;
        let each = &mut |request| match (request, &mut *outside) {
            (StoreRequest::Batch(shard, batch), None) => backlog.push_back((shard, batch)),
            (StoreRequest::Fetch(shard, fetch), None) => fetches.push_back((shard, fetch)),
            (StoreRequest::Batch(shard, batch), Some(outside)) => outside.push(shard, batch),
            (StoreRequest::Fetch(shard, fetch), Some(outside)) => outside.push_fetch(shard, fetch),
        };
        self.shared.collect_requests(&mut self.requests, each)
    }

    /// Writes what was submitted, and answers requests.
    pub(super) fn write_all(&mut self) {
        self.deliver_held_notifications();
        self.write_backlog();
        if self.external_queues.is_none() {
            return self.start_fetches();
        }
        while self.backlog.is_empty()
            && let Some(outside) = &mut self.external_queues
        {
            self.logged.clear();
            outside.take_logged(&mut self.logged);
            self.notify_logged(self.written_lsn);
            let Some(outside) = &mut self.external_queues else {
                break;
            };
            if !outside.apply_next_group(&self.shared, &mut self.backlog) {
                outside.answer_fetches(&self.shared, &*self.observer);
                break;
            }
            self.write_backlog();
        }
        if let Some(outside) = &self.external_queues {
            outside.update_health(&self.shared, self.config.max_pending_bytes);
        }
    }

    /// How long to sleep without a wake-up.
    pub(super) fn wait_timeout(&self) -> Duration {
        let now = Instant::now();
        let retry_at = self.failure.as_ref().map(|failure| failure.retry_at);
        let outside = self
            .external_queues
            .as_ref()
            .and_then(ExternalQueues::retry_at);
        let due = [retry_at, self.prepare_at, outside];
        let due = due.into_iter().flatten().min();
        let pause = due.map_or(MAX_SLEEP, |due| due.saturating_duration_since(now));
        let waits_for_applier = !self.backlog.is_empty() && self.failure.is_none();
        let limit = if waits_for_applier {
            FIRST_PAUSE
        } else {
            MAX_SLEEP
        };
        pause.clamp(Duration::from_micros(100), limit)
    }

    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Whether everything submitted is written, and nothing has to be written again.
    pub(super) fn is_idle(&self) -> bool {
        let outside = self.external_queues.as_ref();
        outside.is_none_or(ExternalQueues::is_idle)
            && self.backlog.is_empty()
            && self.maintenance.failed_sync_position().is_none()
    }

    /// Number of submitted batches that are not written.
    pub(super) fn pending_batches(&self) -> usize {
        let outside = self.external_queues.as_ref();
        self.backlog.len() + outside.map_or(0, ExternalQueues::pending_batches)
    }

    /// Writes a batch of the store itself immediately; requires an empty backlog.
    pub(super) fn write_own(&mut self, batch: StoreBatch) {
        debug_assert!(self.backlog.is_empty(), "it would be written out of order");
        self.backlog.push_back((NO_SHARD, batch));
        self.write_backlog();
    }

    fn write_backlog(&mut self) {
        let is_due = |failure: &WriteFailure| failure.retry_at <= Instant::now();
        if !self.failure.as_ref().is_none_or(is_due) {
            return;
        }
        if self.maintenance.failed_sync_position().is_some() {
            match self.rewrite_unsynced() {
                Ok(()) => self.clear_failure(),
                Err(error) => return self.record_failure(&error),
            }
        }
        while !self.backlog.is_empty() && self.applier.has_room() {
            match self.write_group() {
                Ok(()) => self.clear_failure(),
                Err(error) => return self.record_failure(&error),
            }
        }
    }

    fn record_failure(&mut self, error: &io::Error) {
        increment(&self.shared.counters.write_errors, 1);
        self.segments.seal();
        let is_full = error.kind() == io::ErrorKind::StorageFull;
        let problem = if is_full {
            HealthFlag::LogFull
        } else {
            HealthFlag::Log
        };
        if self.shared.set_flag(problem, true) {
            tracing::error!(%error, "message log write failed; keeping batches and retrying");
        }
        let last_pause = self.failure.as_ref().map(|failure| failure.pause);
        let pause = last_pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(MAX_PAUSE));
        self.failure = Some(WriteFailure {
            retry_at: Instant::now() + pause,
            pause,
        });
    }

    fn clear_failure(&mut self) {
        if self.failure.take().is_some() && self.shared.set_flag(HealthFlag::Log, false) {
            tracing::info!("message log writes recovered");
        }
    }

    /// The number of the frame before the one after `lsn`: `lsn` itself, unless numbers were skipped when the store was opened.
    pub(super) fn preceding_lsn(&self, lsn: u64) -> u64 {
        if lsn == self.started_at_lsn {
            self.recovered_lsn
        } else {
            lsn
        }
    }

    /// Ensures that the open segment has space for a frame of this length.
    pub(super) fn ensure_segment_room(&mut self, frame_len: u64) -> io::Result<()> {
        let has_room =
            |segment: &&mut super::segments::Segment| segment.used + frame_len <= segment.capacity;
        if self.segments.open_segment().filter(has_room).is_none() {
            let synced_lsn = self.maintenance.synced_lsn();
            let follows_lsn = self.preceding_lsn(self.written_lsn);
            self.segments
                .begin_segment(frame_len, follows_lsn, self.next_lsn, synced_lsn)?;
        }
        Ok(())
    }

    /// Writes batches from the front of the backlog, as many as fit into a group and the segment.
    fn write_group(&mut self) -> io::Result<()> {
        let first_len = self
            .backlog
            .front()
            .map_or(0, |(_, batch)| batch.bytes.len());
        self.ensure_segment_room(first_len as u64)?;
        let synced_lsn = self.maintenance.synced_lsn();
        let segment = self
            .segments
            .open_segment()
            .expect("room was just made in it");
        let file = Arc::clone(&segment.file);
        let (id, start, capacity) = (segment.id, segment.used, segment.capacity);
        let mut joined_at = start;
        let mut offset = start;
        let mut lsn = self.next_lsn;
        let mut batches = 0;
        self.joined_frames.clear();
        self.logged.clear();
        for (shard, batch) in &mut self.backlog {
            let len = batch.bytes.len() as u64;
            let is_full = offset + len > capacity || offset + len - start > MAX_GROUP_BYTES;
            if batches > 0 && is_full {
                break;
            }
            let mut flags = if batch.is_keyed { FLAG_KEYED } else { 0 };
            if *shard == NO_SHARD {
                flags |= FLAG_COPY;
            }
            seal(
                &mut batch.bytes,
                segment.seed,
                lsn,
                synced_lsn,
                *shard,
                flags,
            );
            if batch.bytes.len() <= COPY_BYTES {
                self.joined_frames.extend_from_slice(&batch.bytes);
            } else {
                file.write_at(&self.joined_frames, joined_at)?;
                self.joined_frames.clear();
                file.write_at(&batch.bytes, offset)?;
                joined_at = offset + len;
            }
            match self.logged.iter_mut().find(|(of, _)| of == shard) {
                Some((_, number)) => *number = batch.number,
                None if *shard == NO_SHARD => {}
                None => self.logged.push((*shard, batch.number)),
            }
            offset += len;
            lsn += 1;
            batches += 1;
        }
        if !self.joined_frames.is_empty() {
            file.write_at(&self.joined_frames, joined_at)?;
        }
        let mark = LogPosition {
            lsn: lsn - 1,
            segment: id,
            offset,
        };
        if self.config.fsync == Fsync::Always {
            self.sync_now(&*file)?;
            self.maintenance.record_synced_write(mark);
        } else {
            self.maintenance.record_write(&file, mark);
        }
        let segment = self
            .segments
            .open_segment()
            .expect("it was just written to");
        segment.used = mark.offset;
        segment.last_lsn = mark.lsn;
        self.shared
            .written_log
            .publish(&self.segments.all, mark.lsn);
        // What is not pending any more can be read from the log.
        self.shared
            .subtract_pending_bytes((offset - start) as usize);
        self.notify_logged(mark.lsn);
        self.apply_group(batches, start, mark);
        let counters = &self.shared.counters;
        increment(&counters.groups, 1);
        increment(&counters.batches, batches as u64);
        increment(&counters.written_bytes, offset - start);
        Ok(())
    }

    pub(super) fn sync_now(&self, file: &dyn super::file_system::LogFile) -> io::Result<()> {
        let started = Instant::now();
        let result = file.sync();
        let duration_us = started.elapsed().as_micros() as u64;
        let counters = &self.shared.counters;
        increment(&counters.fsyncs, 1);
        counters.last_fsync_us.store(duration_us, Ordering::Relaxed);
        result
    }

    /// Notifies the shards in `logged`, now or once the frames up to `lsn` are confirmed.
    fn notify_logged(&mut self, lsn: u64) {
        let held = &mut self.held_notifications;
        if held.hold(&self.shared, lsn, &self.logged) {
            for &(shard, number) in &self.logged {
                self.observer.on_written(shard, number);
            }
            self.deliver_held_notifications();
            return;
        }
        self.call_observer();
    }

    /// Delivers the held notifications that are confirmed or no longer held.
    fn deliver_held_notifications(&mut self) {
        let held = &mut self.held_notifications;
        held.take_due(&self.shared, &mut self.logged);
        self.call_observer();
    }

    fn call_observer(&self) {
        for &(shard, number) in &self.logged {
            self.observer.on_logged(shard, number);
        }
    }

    /// On a full disk, gives back the space of removed segments that readers of the log have not read.
    pub(super) fn free_removed_segments(&self) {
        if self.shared.has_flag(HealthFlag::DiskFull) {
            self.shared.written_log.forget_all_removed();
        }
    }

    /// Applies the written batches to the index and the keyed state.
    fn apply_group(&mut self, batches: usize, start: u64, end: LogPosition) {
        let mut offset = start;
        let mut lsn = self.next_lsn;
        let mut keyed_lsn = None;
        for (_, batch) in self.backlog.drain(..batches) {
            let len = batch.bytes.len();
            let records = &batch.bytes[FRAME_HEAD..];
            let base = (offset + FRAME_HEAD as u64) as u32;
            if self.index.apply(records, end.segment, base).is_err() {
                tracing::error!("batch contains an invalid record; ignoring the rest of the batch");
            }
            if batch.is_keyed {
                keyed_lsn = Some(lsn);
                self.applier.push(lsn, batch);
            } else {
                self.finished_batches.push(batch);
            }
            offset += len as u64;
            lsn += 1;
        }
        self.shared.recycle(&mut self.finished_batches);
        self.written_lsn = end.lsn;
        self.next_lsn = lsn;
        let segment = self
            .segments
            .open_segment()
            .expect("it was just written to");
        segment.keyed_lsn = keyed_lsn.unwrap_or(segment.keyed_lsn);
    }

    /// Passes requests for messages to the reader, once everything submitted before them is written.
    fn start_fetches(&mut self) {
        while self.backlog.is_empty()
            && self.open_pages.load(Ordering::Acquire) < MAX_PAGES
            && let Some((shard, fetch)) = self.fetches.pop_front()
        {
            let (wanted, is_last) = self.select_page_entries(&fetch);
            self.open_pages.fetch_add(1, Ordering::AcqRel);
            let job = ReadJob::Page(PageReadJob {
                shard,
                session: fetch.session,
                wanted,
                is_last,
            });
            if self.jobs.send(job).is_err() {
                tracing::error!(
                    "reader thread of queued messages has ended; requests stay unanswered"
                );
            }
        }
    }

    /// The entries for a page, and whether it is the last.
    fn select_page_entries(&self, fetch: &QueueFetch) -> (Vec<EntryToRead>, bool) {
        let mut wanted: Vec<EntryToRead> = Vec::new();
        let Some(queue) = self.index.queue(fetch.session) else {
            return (wanted, true);
        };
        let mut bytes = 0;
        for entry in queue.entries_from(fetch.from_seq) {
            bytes += u64::from(entry.body_len) + u64::from(entry.attributes_len);
            let is_over =
                wanted.len() >= fetch.max_messages as usize || bytes > u64::from(fetch.max_bytes);
            if is_over && !wanted.is_empty() {
                return (wanted, false);
            }
            let file = match wanted.last() {
                Some(last) if last.entry.segment == entry.segment => Arc::clone(&last.file),
                _ => match self.segments.find(entry.segment) {
                    Some(segment) => Arc::clone(&segment.file),
                    None => continue,
                },
            };
            wanted.push(EntryToRead {
                entry: *entry,
                file,
            });
        }
        (wanted, true)
    }

    /// Keeps an empty segment prepared, so that accepted messages always have space.
    pub(super) fn prepare_next(&mut self) {
        let now = Instant::now();
        if self.failure.is_some() || self.prepare_at.is_some_and(|at| at > now) {
            return;
        }
        let prepared = self.segments.prepare_next();
        let bytes = self.segments.bytes();
        let max = self.config.max_log_bytes;
        let is_over = if self.shared.has_flag(HealthFlag::LogFull) {
            bytes > max - max / 16
        } else {
            bytes > max
        };
        let is_full = is_over || prepared.is_err();
        self.prepare_at = is_full.then(|| now + Duration::from_millis(250));
        if self.shared.set_flag(HealthFlag::LogFull, is_full) {
            match prepared {
                Err(error) => tracing::error!(
                    %error,
                    "no space for another message log segment; rejecting new messages"
                ),
                Ok(()) if is_full => tracing::error!(
                    bytes,
                    max_log_bytes = max,
                    "message log reached its size limit; rejecting new messages"
                ),
                Ok(()) => tracing::info!(bytes, "message log has space again"),
            }
        }
    }

    pub(super) fn update_counters(&self) {
        let counters = &self.shared.counters;
        let live = self.index.live();
        let (messages, sessions) = match &self.external_queues {
            None => (self.index.messages(), self.index.sessions()),
            Some(outside) => (outside.messages(), outside.sessions()),
        };
        let figures = [
            (&counters.segments, self.segments.all.len() as u64),
            (&counters.log_bytes, self.segments.bytes()),
            (&counters.live_bytes, live.bytes),
            (&counters.live_messages, messages),
            (&counters.queued_sessions, sessions as u64),
        ];
        for (counter, value) in figures {
            counter.store(value, Ordering::Relaxed);
        }
    }
}
