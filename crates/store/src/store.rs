//! One data directory: what shards submit to, and what a node reads when it starts.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::batch::{Batch, Space};
use crate::config::Config;
use crate::error::{Error, OpenError};
use crate::keyed::Keyed;
use crate::objects::Objects;
use crate::queue::{Fetch, Page, QueueSummary};

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
    /// Room on the file system.
    pub free_bytes: u64,
    /// Disk space of keyed state and objects.
    pub keyed_bytes: u64,
}

/// A data directory, open. Clones are the same store.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    objects: Objects,
    keyed: Arc<Keyed>,
    pending: Mutex<Vec<(u16, Batch)>>,
    pending_bytes: AtomicUsize,
    /// Locked; the system lets go of it with the process.
    _lock: File,
}

impl Store {
    /// Opens a data directory, or makes one.
    pub fn open(dir: &Path, config: Config) -> Result<(Store, OpenReport), OpenError> {
        let is_new = !dir.join("lock").exists();
        let io = |what| {
            move |source| Error::Io {
                what,
                path: dir.to_owned(),
                source,
            }
        };
        fs::create_dir_all(dir).map_err(io("create the directory"))?;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("lock"))
            .map_err(io("open the lock file in"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked {
                    path: dir.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io("lock")(source).into()),
        }
        let keyed = Arc::new(Keyed::open(&dir.join("state"), config.cache_bytes)?);
        let inner = Inner {
            objects: Objects::new(Arc::clone(&keyed)),
            keyed,
            pending: Mutex::default(),
            pending_bytes: AtomicUsize::new(0),
            _lock: lock,
        };
        let report = OpenReport {
            is_new,
            ..OpenReport::default()
        };
        Ok((
            Store {
                inner: Arc::new(inner),
            },
            report,
        ))
    }

    /// Starts the writer.
    pub fn start(&self, _owner: Arc<dyn Owner>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Hands a batch to the writer. Never blocks; the order of one shard's batches is kept.
    pub fn submit(&self, shard: u16, batch: Batch) {
        self.inner
            .pending_bytes
            .fetch_add(batch.size(), Ordering::Relaxed);
        let pending = self.inner.pending.lock();
        pending
            .unwrap_or_else(PoisonError::into_inner)
            .push((shard, batch));
    }

    /// Asks for messages of a session; [`Owner::fetched`] answers. Sees every batch this shard submitted before.
    pub fn fetch(&self, _shard: u16, _fetch: Fetch) {}

    /// An empty batch, with memory of an earlier one if there is any.
    pub fn spare(&self) -> Batch {
        let mut batch = Batch::default();
        batch.clear();
        batch
    }

    /// Bytes submitted and not logged yet.
    pub fn pending_bytes(&self) -> usize {
        self.inner.pending_bytes.load(Ordering::Relaxed)
    }

    pub fn health(&self) -> Health {
        Health::Ok
    }

    pub fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Calls `each` with every key and value of a space, in order of the keys.
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

    /// What waits for a session. Before [`start`](Self::start) only.
    pub fn queue(&self, _session: u64) -> Option<QueueSummary> {
        None
    }

    /// The sessions something waits for. Before [`start`](Self::start) only.
    pub fn queued_sessions(&self) -> Vec<u64> {
        Vec::new()
    }

    pub fn objects(&self) -> &Objects {
        &self.inner.objects
    }

    /// Writes and syncs everything submitted and ends the writer.
    pub fn close(&self) {}
}
