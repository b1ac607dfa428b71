//! [`Store`]: one open data directory, to which shards submit batches and from which a node restores its state.

mod keyed_state_catch_up;
mod log_copy;
mod recovered_queues;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use foldhash::fast::RandomState;

use crate::backend::QueueBackend;
use crate::batch::{MAX_BATCH_BYTES, StateKind, StoreBatch};
use crate::config::StoreConfig;
use crate::directory;
use crate::error::{StoreError, StoreOpenError};
use crate::health::StoreHealth;
use crate::keyed_state::KeyedState;
use crate::log::applier::Applier;
use crate::log::external_queues::ExternalQueues;
use crate::log::file_system::{FileSystem, OsFileSystem};
use crate::log::log_mark::{self, LogMarksFile};
use crate::log::maintenance::{LogMaintenance, LogPosition};
use crate::log::reader::LogReader;
use crate::log::recovery::{self, RecoveredLog};
use crate::log::segments::{SegmentDirectory, Segments};
use crate::log::shared::{StoreRequest, StoreShared, lock};
use crate::log::writer::{LogWriter, LogWriterParts};
use crate::log::writer_loop;
use crate::objects::Objects;
use crate::observer::StoreObserver;
use crate::queue::{QueueFetch, QueueSummary};
use crate::tables::Tables;
use keyed_state_catch_up::KeyedStateCatchUp;

/// Part of the limit of the log that removed segments may take while a reader of the log has not read them.
const REMOVED_SEGMENTS_DIVISOR: u64 = 8;

/// Result of opening a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreOpenReport {
    /// The directory was empty.
    pub is_new: bool,
    pub queued_messages: u64,
    pub queued_sessions: u64,
    pub segments: u64,
    pub log_bytes: u64,
    /// Bytes of a damaged or incomplete end that were cut off.
    pub truncated_bytes: u64,
    /// Where and why data was cut off, as text for the log.
    pub truncation: Option<String>,
    /// Other problems that do not prevent opening the store, as text for the log.
    pub warnings: Vec<String>,
    pub duration_ms: u64,
}

/// Counters and gauges of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub segments: u64,
    /// Size of all written segments of the log.
    pub log_bytes: u64,
    /// Approximate part of `log_bytes` that is live.
    pub live_bytes: u64,
    /// Queued entries; a message counts once per session.
    pub live_messages: u64,
    /// Sessions with queued messages.
    pub queued_sessions: u64,
    pub pending_bytes: u64,
    pub batches: u64,
    pub groups: u64,
    pub written_bytes: u64,
    /// Bytes copied by reclaiming.
    pub copied_bytes: u64,
    pub fsyncs: u64,
    pub last_fsync_us: u64,
    pub write_errors: u64,
    /// Messages that could not be read back.
    pub read_errors: u64,
    /// Free space of the file system.
    pub free_bytes: u64,
    /// Disk space of keyed state and objects.
    pub keyed_bytes: u64,
    /// Written groups of batches whose notifications wait for the copy on another node.
    pub held_notifications: u64,
}

/// An open data directory. Clones refer to the same store; dropping the last one closes it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
}

struct StoreInner {
    config: StoreConfig,
    objects: Objects,
    keyed: Arc<KeyedState>,
    shared: Arc<StoreShared>,
    files: Arc<dyn FileSystem>,
    log_dir: PathBuf,
    /// The recovered content, until the writer starts.
    recovered_store: Mutex<Option<RecoveredStore>>,
    threads: Mutex<Option<StoreThreads>>,
    /// Exclusive lock; the system releases it when the process ends.
    _lock: File,
}

struct RecoveredStore {
    recovered: RecoveredLog,
    log_marks: LogMarksFile,
    applied_lsn: u64,
    external_queues: Option<ExternalQueues>,
    /// Queues in the other server, by session.
    summaries: Option<QueueSummaries>,
}

type QueueSummaries = HashMap<u64, QueueSummary, RandomState>;

struct StoreThreads {
    writer: JoinHandle<()>,
    maintenance: (Arc<LogMaintenance>, JoinHandle<()>),
    applier: (Arc<Applier>, JoinHandle<()>),
    reader: JoinHandle<()>,
}

impl Store {
    /// Opens a data directory, or creates one.
    pub fn open(
        dir: &Path,
        config: StoreConfig,
    ) -> Result<(Store, StoreOpenReport), StoreOpenError> {
        check_queues_location(dir)?;
        Self::open_with(dir, config, Arc::new(OsFileSystem))
    }

    /// As [`open`](Self::open), with queued messages in another server instead of the log.
    pub fn open_with_queues(
        dir: &Path,
        config: StoreConfig,
        queues: Box<dyn QueueBackend>,
    ) -> Result<(Store, StoreOpenReport), StoreOpenError> {
        Self::open_inner(dir, config, Arc::new(OsFileSystem), Some(queues))
    }

    /// Opens a store and leaves its queues where they are.
    pub(crate) fn open_with(
        dir: &Path,
        config: StoreConfig,
        files: Arc<dyn FileSystem>,
    ) -> Result<(Store, StoreOpenReport), StoreOpenError> {
        Self::open_inner(dir, config, files, None)
    }

    fn open_inner(
        dir: &Path,
        config: StoreConfig,
        files: Arc<dyn FileSystem>,
        queues: Option<Box<dyn QueueBackend>>,
    ) -> Result<(Store, StoreOpenReport), StoreOpenError> {
        let started = Instant::now();
        config.check()?;
        let (lock, is_new) = directory::lock_or_create(dir)?;
        let log_dir = dir.join(directory::LOG);
        let (keyed, mut warnings) = KeyedState::open(dir, config.cache_bytes)?;
        let db = keyed.db()?;
        let mut catching_up = KeyedStateCatchUp::new(&db)?;
        let log_mark = log_mark::read(dir)?;
        warnings.extend(log_mark.problem);
        directory::check_queues_owner(dir, log_mark.queues_owner)?;
        let recovered =
            recovery::recover_log(&log_dir, &*files, &log_mark.mark, &mut |lsn, records| {
                catching_up.add(lsn, records)
            })?;
        let applied_lsn = catching_up.finish()?;
        directory::apply_recovery(&log_dir, &*files, &recovered)?;
        let owner = directory::queues_owner_mark(dir)?;
        let log_marks = LogMarksFile::create(dir, recovered.log_mark(), owner)?;
        let free_bytes = files.free_bytes(&log_dir).unwrap_or(0);
        keyed.flush_replayed(free_bytes.saturating_sub(config.min_free_bytes))?;
        let cut = recovered.truncation.as_ref();
        let (outside, summaries) = match queues {
            Some(queues) => {
                let (outside, summaries) = open_queues(dir, &recovered, queues)?;
                if let Some(owner) = directory::queues_owner_mark(dir)? {
                    log_marks.set_queues_owner(owner);
                }
                (Some(outside), Some(summaries))
            }
            None => (None, None),
        };
        let (queued_messages, queued_sessions) = match &outside {
            None => (recovered.index.messages(), recovered.index.sessions()),
            Some(outside) => (outside.messages(), outside.sessions()),
        };
        let report = StoreOpenReport {
            is_new,
            queued_messages,
            queued_sessions: queued_sessions as u64,
            segments: recovered.segments.len() as u64,
            log_bytes: recovered.segments.iter().map(|segment| segment.used).sum(),
            truncated_bytes: cut.map_or(0, |cut| cut.bytes),
            truncation: cut.map(ToString::to_string),
            warnings,
            duration_ms: started.elapsed().as_millis() as u64,
        };
        let keyed = Arc::new(keyed);
        let shared: Arc<StoreShared> = Arc::default();
        shared.written_log.publish_recovered(
            &recovered.segments,
            recovered.last_lsn,
            recovered.last_lsn.max(applied_lsn),
            config.max_log_bytes / REMOVED_SEGMENTS_DIVISOR,
        );
        let inner = StoreInner {
            config,
            objects: Objects::new(Arc::clone(&keyed)),
            keyed,
            shared,
            files,
            log_dir,
            recovered_store: Mutex::new(Some(RecoveredStore {
                recovered,
                log_marks,
                applied_lsn,
                external_queues: outside,
                summaries,
            })),
            threads: Mutex::default(),
            _lock: lock,
        };
        let store = Store {
            inner: Arc::new(inner),
        };
        Ok((store, report))
    }

    /// Starts the writer, which first writes what was already submitted.
    pub fn start(&self, owner: Arc<dyn StoreObserver>) -> io::Result<()> {
        let inner = &*self.inner;
        let mut running = lock(&inner.threads);
        let Some(opened) = lock(&inner.recovered_store).take() else {
            return Err(io::Error::other("the store was started before"));
        };
        *running = Some(inner.spawn_threads(opened, owner)?);
        Ok(())
    }

    /// Submits a batch to the writer. Never blocks; the batches of one shard keep their order.
    ///
    /// # Panics
    ///
    /// If the batch has 1 GiB or more.
    pub fn submit(&self, shard: u16, batch: StoreBatch) {
        assert!(
            batch.size() < MAX_BATCH_BYTES,
            "a batch has less than 1 GiB"
        );
        assert!(shard != u16::MAX, "shards are numbered from 0 to 65,534");
        self.inner
            .shared
            .submit(shard, StoreRequest::Batch(shard, batch));
    }

    /// Requests messages of a session; [`StoreObserver::on_fetched`] receives them. The request sees every batch this shard
    /// submitted before. An unreadable message is returned with an empty body and without being `released`.
    pub fn fetch(&self, shard: u16, fetch: QueueFetch) {
        self.inner
            .shared
            .submit(shard, StoreRequest::Fetch(shard, fetch));
    }

    /// An empty batch that reuses the memory of an earlier one if possible.
    pub fn recycled_batch(&self) -> StoreBatch {
        self.inner.shared.recycled_batch()
    }

    /// Bytes submitted and not logged yet.
    pub fn pending_bytes(&self) -> usize {
        self.inner.shared.pending_bytes()
    }

    /// Whether pending bytes exceed their limit and publishers have to pause.
    pub fn is_overloaded(&self) -> bool {
        self.pending_bytes() > self.inner.config.max_pending_bytes
    }

    pub fn health(&self) -> StoreHealth {
        self.inner.shared.health()
    }

    pub fn stats(&self) -> StoreStats {
        let counters = &self.inner.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreStats {
            segments: get(&counters.segments),
            log_bytes: get(&counters.log_bytes),
            live_bytes: get(&counters.live_bytes),
            live_messages: get(&counters.live_messages),
            queued_sessions: get(&counters.queued_sessions),
            pending_bytes: self.pending_bytes() as u64,
            batches: get(&counters.batches),
            groups: get(&counters.groups),
            written_bytes: get(&counters.written_bytes),
            copied_bytes: get(&counters.copied_bytes),
            fsyncs: get(&counters.fsyncs),
            last_fsync_us: get(&counters.last_fsync_us),
            write_errors: get(&counters.write_errors),
            read_errors: get(&counters.read_errors),
            free_bytes: get(&counters.free_bytes),
            held_notifications: get(&counters.held_notifications),
            keyed_bytes: self.inner.keyed.db().map_or(0, |db| db.disk_bytes()),
        }
    }

    /// Calls `each` with every key and value of a space, in key order. On a running store, the newest batches may be missing;
    /// [`tail_log`](Self::tail_log) describes how a copy gets them.
    pub fn scan(
        &self,
        space: StateKind,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), StoreError> {
        let db = self.inner.keyed.db()?;
        for item in db.keyspace(space).iter() {
            let (key, value) = item
                .into_inner()
                .map_err(StoreError::keyed_error("read its keyed state"))?;
            each(&key, &value);
        }
        Ok(())
    }

    /// Removes those of the keys whose current value is unwanted, whichever shard wrote it; returns their number. Unlike a delete
    /// in a batch, it never removes a value that another shard writes at the same time. The removal is not in the log: keys may
    /// reappear after a crash. Values not yet applied from the log are not seen. May block.
    pub fn prune(
        &self,
        space: StateKind,
        keys: &mut dyn Iterator<Item = &[u8]>,
        is_unwanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<u64, StoreError> {
        let keyed = &self.inner.keyed;
        let pruned = keyed.healthy_db()?.prune(space, keys, is_unwanted);
        pruned.inspect_err(|_| keyed.mark_failed())
    }

    pub fn objects(&self) -> &Objects {
        &self.inner.objects
    }

    pub fn tables(&self) -> &Tables {
        self.inner.objects.tables()
    }

    /// Rewrites the log without garbage; [`is_compacting`](Self::is_compacting) reports when it is done. A running node reclaims
    /// by itself as far as it is worthwhile.
    pub fn compact(&self) {
        let shared = &self.inner.shared;
        shared.is_compacting.store(true, Ordering::Release);
        shared
            .is_compaction_requested
            .store(true, Ordering::Release);
        shared.wake();
    }

    pub fn is_compacting(&self) -> bool {
        self.inner.shared.is_compacting.load(Ordering::Acquire)
    }

    /// Compacts the LSM library, which removes replaced and deleted values.
    pub(crate) fn compact_keyed(&self) -> Result<(), StoreError> {
        self.inner.keyed.db()?.compact()
    }

    /// Writes and syncs everything submitted, then ends the threads of the store.
    pub fn close(&self) {
        self.inner.close();
    }
}

/// Test access to internals.
#[cfg(test)]
impl Store {
    pub(crate) fn is_all_synced(&self) -> bool {
        let running = lock(&self.inner.threads);
        running
            .as_ref()
            .is_some_and(|running| running.maintenance.0.is_all_synced())
    }

    /// Simulates a failed write of the LSM library.
    pub(crate) fn fail_keyed_state(&self) {
        self.inner.keyed.mark_failed();
    }
}

impl StoreInner {
    fn spawn_threads(
        &self,
        opened: RecoveredStore,
        owner: Arc<dyn StoreObserver>,
    ) -> io::Result<StoreThreads> {
        let RecoveredStore {
            recovered,
            log_marks,
            applied_lsn,
            external_queues: outside,
            summaries: _,
        } = opened;
        // The keyed state may know frames that the log lost in a power failure; their numbers are not reused.
        let written_lsn = recovered.last_lsn.max(applied_lsn);
        let synced = LogPosition {
            lsn: written_lsn,
            segment: recovered.next_id,
            offset: 0,
        };
        let (shared, files) = (&self.shared, &self.files);
        let worker = Arc::new(LogMaintenance::new(
            Arc::clone(shared),
            Arc::clone(files),
            self.log_dir.clone(),
            self.config.clone(),
            synced,
            (log_marks, recovered.log_mark().first_segment),
        ));
        let applier = Arc::new(Applier::new(
            Arc::clone(&worker),
            Arc::clone(shared),
            Arc::clone(&self.keyed),
            (Arc::clone(files), self.log_dir.clone()),
            self.config.fsync,
            applied_lsn,
        ));
        let place = SegmentDirectory {
            dir: self.log_dir.clone(),
            files: Arc::clone(files),
            segment_bytes: u64::from(self.config.segment_bytes),
        };
        let (jobs, jobs_taken) = mpsc::channel();
        let open_pages = Arc::new(AtomicUsize::new(0));
        let reader = LogReader {
            shared: Arc::clone(shared),
            observer: Arc::clone(&owner),
            jobs: jobs_taken,
            open_pages: Arc::clone(&open_pages),
        };
        let writer = LogWriter::new(LogWriterParts {
            shared: Arc::clone(shared),
            config: self.config.clone(),
            observer: owner,
            segments: Segments::new(place, recovered.segments, recovered.next_id),
            index: recovered.index,
            maintenance: Arc::clone(&worker),
            applier: Arc::clone(&applier),
            jobs,
            open_pages,
            written_lsn,
            recovered_lsn: recovered.last_lsn,
            external_queues: outside,
        });
        if self.keyed.has_unverified_tables() {
            let (keyed, shared) = (Arc::clone(&self.keyed), Arc::clone(shared));
            // Nothing joins this thread; it ends by itself.
            spawn("store-verifier", move || {
                keyed.verify_remaining_tables(&shared.is_stopping)
            })?;
        }
        // A store that starts on a full disk reports it from the beginning.
        worker.check_free_space();
        let (keeps, applies) = (Arc::clone(&worker), Arc::clone(&applier));
        Ok(StoreThreads {
            maintenance: (worker, spawn("store-maintenance", move || keeps.run())?),
            applier: (applier, spawn("store-applier", move || applies.run())?),
            reader: spawn("store-reader", move || reader.run())?,
            writer: spawn("store-writer", move || writer_loop::run(writer))?,
        })
    }

    fn close(&self) {
        let Some(running) = lock(&self.threads).take() else {
            return;
        };
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.wake();
        // The order matters: write the log, then sync it, then apply it to the keyed state.
        join_thread(running.writer);
        let (worker, keeper_thread) = running.maintenance;
        worker.stop();
        join_thread(keeper_thread);
        let (applier, applier_thread) = running.applier;
        applier.stop();
        join_thread(applier_thread);
        join_thread(running.reader);
        self.shared.written_log.set_watcher(None);
        if let Err(error) = self.keyed.update_mark() {
            tracing::warn!(%error, "keyed state mark not written");
        }
    }
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Claims the queues in another server.
fn open_queues(
    dir: &Path,
    recovered: &RecoveredLog,
    mut queues: Box<dyn QueueBackend>,
) -> Result<(ExternalQueues, QueueSummaries), StoreOpenError> {
    let messages = recovered.index.messages();
    if messages > 0 {
        return Err(StoreOpenError::QueuesElsewhere {
            found: format!(
                "{messages} queued messages are in the embedded log of {}, and queues are to be in {}",
                dir.display(),
                queues.name()
            ),
            advice: "have them delivered with the embedded log first (store.queue_backend = \"embedded\"), or begin with \
                     an empty directory"
                .to_owned(),
        });
    }
    let known = directory::queues_owner(dir)?;
    let is_new = known.is_none();
    let owner = known.unwrap_or_else(directory::generate_owner_name);
    if is_new {
        directory::write_queues_owner(dir, &owner)?;
    }
    let mut summaries = QueueSummaries::default();
    let last_number = queues
        .recover(&owner, &mut |session, summary| {
            summaries.insert(session, summary);
        })
        .map_err(|source| {
            if is_new {
                directory::remove_queues_owner(dir);
            }
            StoreOpenError::Queues {
                server: queues.name(),
                source,
            }
        })?;
    let counts = summaries.iter();
    let counts = counts.filter(|(_, summary)| summary.messages > 0);
    let counts = counts.map(|(&session, summary)| (session, summary.messages));
    let outside = ExternalQueues::new(queues, last_number, counts.collect());
    Ok((outside, summaries))
}

/// Refuses to use the embedded log while queues of this directory are in another server.
fn check_queues_location(dir: &Path) -> Result<(), StoreOpenError> {
    match directory::queues_owner(dir)? {
        None => Ok(()),
        Some(owner) => Err(StoreOpenError::QueuesElsewhere {
            found: format!(
                "the queued messages of {} are in another server (owner {owner} there)",
                dir.display()
            ),
            advice: format!(
                "set store.queue_backend as it was, or give up what waits there: remove {} and run `tidegate store repair`",
                dir.join("queues").display()
            ),
        }),
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

fn join_thread(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("store thread panicked");
    }
}
