//! One data directory: what shards submit to, and what a node reads when it starts.

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
use crate::batch::{Batch, Space};
use crate::config::Config;
use crate::directory;
use crate::error::{Error, OpenError};
use crate::keyed::{Db, Keyed, Write};
use crate::log::applier::Applier;
use crate::log::files::{Files, RealFiles};
use crate::log::keeper::{Keeper, Mark};
use crate::log::mark::{self, LogMarks};
use crate::log::outside::Outside;
use crate::log::reader::Reader;
use crate::log::recover::{self, Recovered};
use crate::log::segments::{Place, Segments};
use crate::log::shared::{Request, Shared, lock};
use crate::log::writer::{self, Writer};
use crate::objects::Objects;
use crate::queue::{Fetch, Page, QueueSummary};
use crate::tables::Tables;

/// Places in a segment are 32 bits wide.
const MAX_BATCH_BYTES: usize = 1 << 30;

/// Who submits batches, told on threads of the store: it must not block.
pub trait Owner: Send + Sync {
    /// Everything this shard submitted up to and including this batch is in the log (with [`Fsync::Always`](crate::Fsync):
    /// on disk).
    fn logged(&self, shard: u16, batch: u64);
    /// The answer to a fetch.
    fn fetched(&self, shard: u16, page: Page);
}

/// Whether the store takes new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    Ok = 0,
    /// No room: refuse new messages. What was submitted is still written, and acknowledgements make room.
    Full = 1,
    /// Writing fails. What was submitted is kept, and written when it works again.
    Failed = 2,
}

/// What opening found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// The directory was empty.
    pub is_new: bool,
    pub queued_messages: u64,
    pub queued_sessions: u64,
    pub segments: u64,
    pub log_bytes: u64,
    /// Bytes of a damaged or incomplete end that were cut off.
    pub cut_bytes: u64,
    /// Where and why something was cut off, in words for the log.
    pub cut: Option<String>,
    /// What else is wrong and does not keep the store from being opened, in words for the log.
    pub warnings: Vec<String>,
    pub duration_ms: u64,
}

/// Counters and gauges, for metrics and for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    pub segments: u64,
    /// Bytes of all segments of the log, written ones.
    pub log_bytes: u64,
    /// Of these, roughly what is still wanted.
    pub live_bytes: u64,
    /// Entries that wait, once per session.
    pub live_messages: u64,
    /// Sessions something waits for.
    pub queued_sessions: u64,
    pub pending_bytes: u64,
    pub batches: u64,
    pub groups: u64,
    pub written_bytes: u64,
    /// Bytes written again to give segments back.
    pub copied_bytes: u64,
    pub fsyncs: u64,
    pub last_fsync_us: u64,
    pub write_errors: u64,
    /// Messages that could not be read back.
    pub read_errors: u64,
    /// Room on the file system.
    pub free_bytes: u64,
    /// Disk space of keyed state and objects.
    pub keyed_bytes: u64,
}

/// A data directory, open. Clones are the same store; the last one to go closes it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    objects: Objects,
    keyed: Arc<Keyed>,
    shared: Arc<Shared>,
    files: Arc<dyn Files>,
    log_dir: PathBuf,
    /// What was found, until the writer has it.
    opened: Mutex<Option<Opened>>,
    running: Mutex<Option<Running>>,
    /// Locked; the system lets go of it with the process.
    _lock: File,
}

struct Opened {
    recovered: Recovered,
    log_marks: LogMarks,
    applied_lsn: u64,
    outside: Option<Outside>,
    /// What the other server has, by session.
    summaries: Option<Summaries>,
}

type Summaries = HashMap<u64, QueueSummary, RandomState>;

struct Running {
    writer: JoinHandle<()>,
    keeper: (Arc<Keeper>, JoinHandle<()>),
    applier: (Arc<Applier>, JoinHandle<()>),
    reader: JoinHandle<()>,
}

impl Store {
    /// Opens a data directory, or makes one.
    pub fn open(dir: &Path, config: Config) -> Result<(Store, OpenReport), OpenError> {
        refuse_other_queues(dir)?;
        Self::open_with(dir, config, Arc::new(RealFiles))
    }

    /// The same, with queued messages in another server instead of the log.
    pub fn open_with_queues(
        dir: &Path,
        config: Config,
        queues: Box<dyn QueueBackend>,
    ) -> Result<(Store, OpenReport), OpenError> {
        Self::open_any(dir, config, Arc::new(RealFiles), Some(queues))
    }

    /// Wherever its queues are; they stay there.
    pub(crate) fn open_with(
        dir: &Path,
        config: Config,
        files: Arc<dyn Files>,
    ) -> Result<(Store, OpenReport), OpenError> {
        Self::open_any(dir, config, files, None)
    }

    fn open_any(
        dir: &Path,
        config: Config,
        files: Arc<dyn Files>,
        queues: Option<Box<dyn QueueBackend>>,
    ) -> Result<(Store, OpenReport), OpenError> {
        let started = Instant::now();
        config.check()?;
        let (lock, is_new) = directory::take(dir)?;
        let log_dir = dir.join(directory::LOG);
        let (keyed, mut warnings) = Keyed::open(dir, config.cache_bytes)?;
        let db = keyed.db()?;
        let mut catching_up = CatchingUp::new(&db)?;
        let log_mark = mark::read(dir)?;
        warnings.extend(log_mark.problem);
        directory::check_queues_owner(dir, log_mark.queues_owner)?;
        let recovered =
            recover::recover(&log_dir, &*files, &log_mark.mark, &mut |lsn, records| {
                catching_up.add(lsn, records)
            })?;
        let applied_lsn = catching_up.finish()?;
        directory::settle(&log_dir, &*files, &recovered)?;
        let owner = directory::queues_owner_mark(dir)?;
        let log_marks = LogMarks::create(dir, recovered.mark(), owner)?;
        let free_bytes = files.free_bytes(&log_dir).unwrap_or(0);
        keyed.write_replayed(free_bytes.saturating_sub(config.min_free_bytes))?;
        let cut = recovered.cut.as_ref();
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
        let report = OpenReport {
            is_new,
            queued_messages,
            queued_sessions: queued_sessions as u64,
            segments: recovered.segments.len() as u64,
            log_bytes: recovered.segments.iter().map(|segment| segment.used).sum(),
            cut_bytes: cut.map_or(0, |cut| cut.bytes),
            cut: cut.map(ToString::to_string),
            warnings,
            duration_ms: started.elapsed().as_millis() as u64,
        };
        let keyed = Arc::new(keyed);
        let inner = Inner {
            config,
            objects: Objects::new(Arc::clone(&keyed)),
            keyed,
            shared: Arc::default(),
            files,
            log_dir,
            opened: Mutex::new(Some(Opened {
                recovered,
                log_marks,
                applied_lsn,
                outside,
                summaries,
            })),
            running: Mutex::default(),
            _lock: lock,
        };
        let store = Store {
            inner: Arc::new(inner),
        };
        Ok((store, report))
    }

    /// Starts the writer. What was submitted before is written now.
    pub fn start(&self, owner: Arc<dyn Owner>) -> io::Result<()> {
        let inner = &*self.inner;
        let mut running = lock(&inner.running);
        let Some(opened) = lock(&inner.opened).take() else {
            return Err(io::Error::other("the store was started before"));
        };
        *running = Some(inner.run(opened, owner)?);
        Ok(())
    }

    /// Hands a batch to the writer. Never blocks; the order of one shard's batches is kept.
    ///
    /// # Panics
    ///
    /// If the batch has 1 GiB or more.
    pub fn submit(&self, shard: u16, batch: Batch) {
        assert!(
            batch.size() < MAX_BATCH_BYTES,
            "a batch has less than 1 GiB"
        );
        assert!(shard != u16::MAX, "shards are numbered from 0 to 65,534");
        self.inner
            .shared
            .submit(shard, Request::Batch(shard, batch));
    }

    /// Asks for messages of a session; [`Owner::fetched`] answers. Sees every batch this shard submitted before. A message
    /// that cannot be read from the disk is given with an empty body and without being `released`.
    pub fn fetch(&self, shard: u16, fetch: Fetch) {
        self.inner
            .shared
            .submit(shard, Request::Fetch(shard, fetch));
    }

    /// An empty batch, with memory of an earlier one if there is any.
    pub fn spare(&self) -> Batch {
        self.inner.shared.spare()
    }

    /// Bytes submitted and not logged yet.
    pub fn pending_bytes(&self) -> usize {
        self.inner.shared.pending_bytes()
    }

    /// Whether more waits for the log than should: publishers are to wait.
    pub fn is_behind(&self) -> bool {
        self.pending_bytes() > self.inner.config.max_pending_bytes
    }

    pub fn health(&self) -> Health {
        self.inner.shared.health()
    }

    pub fn stats(&self) -> Stats {
        let counters = &self.inner.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
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
            keyed_bytes: self.inner.keyed.db().map_or(0, |db| db.disk_bytes()),
        }
    }

    /// Calls `each` with every key and value of a space, in order of the keys. At start: later, the newest batches may be
    /// missing.
    pub fn scan(&self, space: Space, each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), Error> {
        let db = self.inner.keyed.db()?;
        for item in db.space(space).iter() {
            let (key, value) = item
                .into_inner()
                .map_err(Error::keyed("read its keyed state"))?;
            each(&key, &value);
        }
        Ok(())
    }

    /// Removes those of the keys whose value is unwanted, whoever put it; returns how many. Unlike a batch that deletes, it
    /// never removes what another shard puts at the same time. It is not in the log: after a crash they may be there again.
    /// A value so new that it has not left the log for the keyed state is not seen. May block.
    pub fn prune(
        &self,
        space: Space,
        keys: &mut dyn Iterator<Item = &[u8]>,
        is_unwanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<u64, Error> {
        let keyed = &self.inner.keyed;
        let pruned = keyed.healthy()?.prune(space, keys, is_unwanted);
        pruned.inspect_err(|_| keyed.failed())
    }

    /// What waits for a session; `None` if nothing does. Before [`start`](Self::start) only.
    pub fn queue(&self, session: u64) -> Option<QueueSummary> {
        let opened = lock(&self.inner.opened);
        let opened = opened.as_ref()?;
        match &opened.summaries {
            None => opened.recovered.index.summary(session),
            Some(summaries) => summaries.get(&session).cloned(),
        }
    }

    /// The sessions something waits for. Before [`start`](Self::start) only.
    pub fn queued_sessions(&self) -> Vec<u64> {
        let opened = lock(&self.inner.opened);
        let Some(opened) = &*opened else {
            return Vec::new();
        };
        match &opened.summaries {
            None => opened.recovered.index.queued_sessions(),
            Some(summaries) => summaries.keys().copied().collect(),
        }
    }

    pub fn objects(&self) -> &Objects {
        &self.inner.objects
    }

    pub fn tables(&self) -> &Tables {
        self.inner.objects.tables()
    }

    /// Writes the log anew without what nobody wants any more; [`is_compacting`](Self::is_compacting) says when that is
    /// done. A running node does it by itself, as far as it is worth it.
    pub fn compact(&self) {
        let shared = &self.inner.shared;
        shared.is_compacting.store(true, Ordering::Release);
        shared.compaction_wanted.store(true, Ordering::Release);
        shared.wake();
    }

    pub fn is_compacting(&self) -> bool {
        self.inner.shared.is_compacting.load(Ordering::Acquire)
    }

    /// Has the LSM library write everything anew, without what was replaced or removed.
    pub(crate) fn compact_keyed(&self) -> Result<(), Error> {
        self.inner.keyed.db()?.compact()
    }

    /// Writes and syncs everything submitted, and ends the writer and the other threads of the store.
    pub fn close(&self) {
        self.inner.close();
    }
}

/// What tests need to know and do.
#[cfg(test)]
impl Store {
    pub(crate) fn is_all_synced(&self) -> bool {
        let running = lock(&self.inner.running);
        running
            .as_ref()
            .is_some_and(|running| running.keeper.0.is_clean())
    }

    /// As if a write of the LSM library had failed.
    pub(crate) fn fail_keyed_state(&self) {
        self.inner.keyed.failed();
    }
}

impl Inner {
    fn run(&self, opened: Opened, owner: Arc<dyn Owner>) -> io::Result<Running> {
        let Opened {
            recovered,
            log_marks,
            applied_lsn,
            outside,
            summaries: _,
        } = opened;
        // The keyed state may know frames that the log lost in a power failure; their numbers are not used again.
        let written_lsn = recovered.last_lsn.max(applied_lsn);
        let synced = Mark {
            lsn: written_lsn,
            segment: recovered.next_id,
            offset: 0,
        };
        let (shared, files) = (&self.shared, &self.files);
        let keeper = Arc::new(Keeper::new(
            Arc::clone(shared),
            Arc::clone(files),
            self.log_dir.clone(),
            self.config.clone(),
            synced,
            (log_marks, recovered.mark().first_segment),
        ));
        let applier = Arc::new(Applier::new(
            Arc::clone(&keeper),
            Arc::clone(shared),
            Arc::clone(&self.keyed),
            (Arc::clone(files), self.log_dir.clone()),
            self.config.fsync,
            applied_lsn,
        ));
        let place = Place {
            dir: self.log_dir.clone(),
            files: Arc::clone(files),
            segment_bytes: u64::from(self.config.segment_bytes),
        };
        let (jobs, jobs_taken) = mpsc::channel();
        let open_pages = Arc::new(AtomicUsize::new(0));
        let reader = Reader {
            shared: Arc::clone(shared),
            owner: Arc::clone(&owner),
            jobs: jobs_taken,
            open_pages: Arc::clone(&open_pages),
        };
        let writer = Writer::new(writer::Start {
            shared: Arc::clone(shared),
            config: self.config.clone(),
            owner,
            segments: Segments::new(place, recovered.segments, recovered.next_id),
            index: recovered.index,
            keeper: Arc::clone(&keeper),
            applier: Arc::clone(&applier),
            jobs,
            open_pages,
            written_lsn,
            recovered_lsn: recovered.last_lsn,
            outside,
        });
        if self.keyed.has_unverified() {
            let (keyed, shared) = (Arc::clone(&self.keyed), Arc::clone(shared));
            // It ends by itself; nobody waits for it.
            spawn("store-verifier", move || {
                keyed.verify_rest(&shared.is_stopping)
            })?;
        }
        // A store that starts on a full disk says so from the beginning.
        keeper.look_at_room();
        let (keeps, applies) = (Arc::clone(&keeper), Arc::clone(&applier));
        Ok(Running {
            keeper: (keeper, spawn("store-keeper", move || keeps.run())?),
            applier: (applier, spawn("store-applier", move || applies.run())?),
            reader: spawn("store-reader", move || reader.run())?,
            writer: spawn("store-writer", move || writer.run())?,
        })
    }

    fn close(&self) {
        let Some(running) = lock(&self.running).take() else {
            return;
        };
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.wake();
        // In this order: the log is written, then on disk, then in the keyed state.
        join(running.writer);
        let (keeper, keeper_thread) = running.keeper;
        keeper.stop();
        join(keeper_thread);
        let (applier, applier_thread) = running.applier;
        applier.stop();
        join(applier_thread);
        join(running.reader);
        if let Err(error) = self.keyed.mark() {
            tracing::warn!(%error, "the mark of the keyed state was not written");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Takes over the queues in another server.
fn open_queues(
    dir: &Path,
    recovered: &Recovered,
    mut queues: Box<dyn QueueBackend>,
) -> Result<(Outside, Summaries), OpenError> {
    let messages = recovered.index.messages();
    if messages > 0 {
        return Err(OpenError::Elsewhere {
            found: format!(
                "{messages} queued messages are in the embedded log of {}, and queues are to be in {}",
                dir.display(),
                queues.name()
            ),
            advice: "have them delivered with the embedded log first (store.queue = \"embedded\"), or begin with \
                     an empty directory"
                .to_owned(),
        });
    }
    let known = directory::queues_owner(dir)?;
    let is_new = known.is_none();
    let owner = known.unwrap_or_else(directory::new_owner);
    if is_new {
        directory::write_queues_owner(dir, &owner)?;
    }
    let mut summaries = Summaries::default();
    let last_number = queues
        .recover(&owner, &mut |session, summary| {
            summaries.insert(session, summary);
        })
        .map_err(|source| {
            if is_new {
                directory::forget_queues_owner(dir);
            }
            OpenError::Queues {
                server: queues.name(),
                source,
            }
        })?;
    let counts = summaries.iter();
    let counts = counts.filter(|(_, summary)| summary.messages > 0);
    let counts = counts.map(|(&session, summary)| (session, summary.messages));
    let outside = Outside::new(queues, last_number, counts.collect());
    Ok((outside, summaries))
}

/// Queues are to be in the log, but were in another server.
fn refuse_other_queues(dir: &Path) -> Result<(), OpenError> {
    match directory::queues_owner(dir)? {
        None => Ok(()),
        Some(owner) => Err(OpenError::Elsewhere {
            found: format!(
                "the queued messages of {} are in another server (owner {owner} there)",
                dir.display()
            ),
            advice: format!(
                "set store.queue as it was, or give up what waits there: remove {} and run `tidegate store repair`",
                dir.join("queues").display()
            ),
        }),
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread of the store has panicked");
    }
}

/// Gives the keyed state what the log knows and it does not.
struct CatchingUp<'a> {
    db: &'a Db,
    applied_lsn: u64,
    write: Write<'a>,
    last_lsn: u64,
}

impl<'a> CatchingUp<'a> {
    fn new(db: &'a Db) -> Result<Self, Error> {
        let applied_lsn = db.applied_lsn()?;
        Ok(Self {
            db,
            applied_lsn,
            write: db.write(),
            last_lsn: applied_lsn,
        })
    }

    fn add(&mut self, lsn: u64, records: &[u8]) -> Result<(), Error> {
        if lsn <= self.last_lsn {
            return Ok(());
        }
        self.write.add(records);
        self.last_lsn = lsn;
        if self.write.len() > 10_000 {
            let write = std::mem::replace(&mut self.write, self.db.write());
            write.commit(lsn)?;
            self.applied_lsn = lsn;
        }
        Ok(())
    }

    fn finish(self) -> Result<u64, Error> {
        if self.last_lsn > self.applied_lsn {
            self.write.commit(self.last_lsn)?;
        }
        // What waits for it to be on disk begins with this number.
        self.db.sync()?;
        Ok(self.last_lsn)
    }
}
