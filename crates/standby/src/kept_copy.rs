//! The copy of another node's sessions in a store of its own.

use std::collections::VecDeque;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use store::{QueuePage, Store, StoreBatch, StoreConfig, StoreObserver};

use crate::inputs::Inputs;
use crate::message::{self, CopyBody};

/// The file that says what the copy is of.
const ORIGIN: &str = "origin.json";
/// Exists when the copy has had everything once: it has the sessions as they were at some moment since.
const COMPLETE: &str = "complete";
/// When the adoption of the sessions in the copy began, in milliseconds since 1970, as decimal digits.
const ADOPTING: &str = "adopting";
/// Exists when the sessions in the copy are adopted.
const ADOPTED: &str = "adopted";
/// Exists when the sessions are to be adopted although no record allows it, because the records of the cluster are lost.
const ADOPTION_REQUESTED: &str = "adoption-requested";
const STORE: &str = "store";
/// All batches of a copy are those of one shard, so that they keep their order.
const COPY_SHARD: u16 = 0;

/// What a copy is of, as JSON beside its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyOrigin {
    /// Number of the run of the node.
    pub(crate) run: u64,
}

/// Why a message of a copy was not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error("{0}")]
    Files(#[from] std::io::Error),
    #[error("{0}")]
    Open(#[from] store::StoreOpenError),
    #[error("a message cannot be read: {0}")]
    Message(#[from] message::CopyMessageError),
    #[error("the log of the node cannot be read: {0}")]
    Records(#[from] store::InvalidRecords),
    #[error("a message of the copy was lost")]
    Gap,
    #[error("this node has not written the last copy to its disk yet")]
    Behind,
    #[error("this node stores no sessions, or stores them in another server (store.queue_backend)")]
    NoStore,
}

/// Reports what the store of a copy has logged.
struct CopyObserver {
    logged_batch: Arc<AtomicU64>,
    inputs: Arc<Inputs>,
}

impl StoreObserver for CopyObserver {
    fn on_logged(&self, _shard: u16, batch: u64) {
        self.logged_batch.fetch_max(batch, Ordering::AcqRel);
        self.inputs.wake();
    }

    fn on_fetched(&self, _shard: u16, _page: QueuePage) {}
}

/// A message that is not in the log of the copy.
struct UnloggedMessage {
    batch: u64,
    number: u64,
    /// The last frame of the node's log up to which the copy is complete then.
    last_lsn: Option<u64>,
}

/// A copy that is being received.
pub(crate) struct KeptCopy {
    store: Store,
    /// Number of the copy, and of the message expected next.
    copy: u64,
    next_number: u64,
    run: u64,
    /// The last frame of the node's log that is in the log of the copy.
    last_lsn: Option<u64>,
    /// The last batch that is in the log of the copy.
    logged_batch: Arc<AtomicU64>,
    last_batch: u64,
    /// Messages that are not in the log of the copy.
    unlogged: VecDeque<UnloggedMessage>,
    pub(crate) received_bytes: u64,
}

impl KeptCopy {
    /// Begins an empty copy; what was in the directory is removed.
    pub(crate) fn create(
        directory: &Path,
        config: StoreConfig,
        (copy, run): (u64, u64),
        inputs: &Arc<Inputs>,
    ) -> Result<Self, KeepError> {
        remove(directory)?;
        fs::create_dir_all(directory)?;
        let (store, _) = Store::open(&directory.join(STORE), config)?;
        let logged_batch = Arc::new(AtomicU64::new(0));
        let observer = CopyObserver {
            logged_batch: logged_batch.clone(),
            inputs: inputs.clone(),
        };
        store.start(Arc::new(observer))?;
        let origin = serde_json::to_vec(&CopyOrigin { run }).map_err(std::io::Error::from)?;
        // Last, so that a directory with it has a store.
        fs::write(directory.join(ORIGIN), origin)?;
        Ok(Self {
            store,
            copy,
            next_number: 1,
            run,
            last_lsn: None,
            logged_batch,
            last_batch: 0,
            unlogged: VecDeque::new(),
            received_bytes: 0,
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.copy
    }

    /// The last frame of the log of a run that it has, if it is of this run and complete up to there.
    pub(crate) fn position(&self, run: u64) -> Option<u64> {
        self.last_lsn.filter(|_| self.run == run)
    }

    /// Whether messages are not in the log of the copy yet.
    pub(crate) fn is_writing(&mut self) -> bool {
        self.poll_confirmed();
        !self.unlogged.is_empty()
    }

    /// Continues as the copy with another number.
    pub(crate) fn resume(&mut self, copy: u64) {
        self.copy = copy;
        self.next_number = 1;
    }

    /// Stores a message with keyed state or frames.
    pub(crate) fn store(&mut self, body: CopyBody<'_>) -> Result<(), KeepError> {
        let (number, last_lsn, mut batch) = match body {
            CopyBody::State {
                number,
                kind,
                entries,
            } => {
                let mut batch = StoreBatch::default();
                message::read_state_entries(entries, |key, value| batch.put(kind, key, value))?;
                self.received_bytes += entries.len() as u64;
                (number, None, batch)
            }
            CopyBody::Frames {
                number,
                last_lsn,
                frames,
            } => {
                let mut records = Vec::with_capacity(frames.len());
                message::read_frames(frames, &mut records)?;
                let batch = StoreBatch::from_records(0, &records)?;
                self.received_bytes += frames.len() as u64;
                (number, Some(last_lsn), batch)
            }
            _ => return Ok(()),
        };
        if number != self.next_number {
            return Err(KeepError::Gap);
        }
        self.next_number += 1;
        self.last_batch += 1;
        batch.number = self.last_batch;
        self.unlogged.push_back(UnloggedMessage {
            batch: batch.number,
            number,
            last_lsn,
        });
        self.store.submit(COPY_SHARD, batch);
        Ok(())
    }

    /// The number of the last message that is in the log, if there is a later one than before.
    pub(crate) fn poll_confirmed(&mut self) -> Option<u64> {
        let logged = self.logged_batch.load(Ordering::Acquire);
        let mut confirmed = None;
        while let Some(message) = self
            .unlogged
            .pop_front_if(|message| message.batch <= logged)
        {
            confirmed = Some(message.number);
            self.last_lsn = message.last_lsn.or(self.last_lsn);
        }
        confirmed
    }

    /// Writes everything, and closes the store.
    pub(crate) fn close(self) {
        self.store.close();
    }
}

/// Removes a copy.
pub(crate) fn remove(directory: &Path) -> std::io::Result<()> {
    // First, so that a part of a copy is not taken for a copy.
    for result in [
        fs::remove_file(directory.join(ORIGIN)),
        fs::remove_dir_all(directory),
    ] {
        match result {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Records that a copy has everything.
pub(crate) fn mark_complete(directory: &Path) -> std::io::Result<()> {
    create_marker(directory, COMPLETE)
}

pub(crate) fn is_complete(directory: &Path) -> bool {
    directory.join(COMPLETE).exists()
}

/// Records that the adoption of the sessions in a copy begins. Returns when the first attempt began, in milliseconds since 1970.
pub(crate) fn begin_adoption(directory: &Path) -> std::io::Result<u64> {
    let path = directory.join(ADOPTING);
    let known = match fs::read_to_string(&path) {
        // A part of it was written by a node that has failed before it adopted anything.
        Ok(text) => text.strip_suffix('\n').and_then(|text| text.parse().ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(since_ms) = known {
        return Ok(since_ms);
    }
    let since_ms = wall_clock::now_ms();
    let mut file = fs::File::create(&path)?;
    writeln!(file, "{since_ms}")?;
    file.sync_all()?;
    fs::File::open(directory)?.sync_all()?;
    Ok(since_ms)
}

/// Records that the sessions in a copy are adopted.
pub(crate) fn mark_adopted(directory: &Path) -> std::io::Result<()> {
    create_marker(directory, ADOPTED)
}

/// Requests that the sessions in a copy are adopted without a record.
pub(crate) fn request_adoption(directory: &Path) -> std::io::Result<()> {
    create_marker(directory, ADOPTION_REQUESTED)
}

pub(crate) fn is_adoption_requested(directory: &Path) -> bool {
    directory.join(ADOPTION_REQUESTED).exists()
}

/// Takes the request back.
pub(crate) fn withdraw_request(directory: &Path) -> std::io::Result<()> {
    match fs::remove_file(directory.join(ADOPTION_REQUESTED)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn create_marker(directory: &Path, name: &str) -> std::io::Result<()> {
    fs::File::create(directory.join(name))?.sync_all()?;
    fs::File::open(directory)?.sync_all()
}

pub(crate) fn is_adopted(directory: &Path) -> bool {
    directory.join(ADOPTED).exists()
}

/// What the copy in a directory is of; `None`: there is no copy.
pub(crate) fn read_origin(directory: &Path) -> Option<CopyOrigin> {
    let origin = fs::read(directory.join(ORIGIN)).ok()?;
    serde_json::from_slice(&origin).ok()
}

/// Where the store of a copy is.
pub(crate) fn store_directory(directory: &Path) -> PathBuf {
    directory.join(STORE)
}
