//! The files of the write-ahead log: claims blocks, forces them to disk, and removes files whose rows are in
//! segment files.

use std::collections::VecDeque;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;

use super::block::{BLOCK_BYTES, BlockHead};
use super::block_writer::BlockWriter;
use super::wal_file::WalFile;
use crate::error::{SeriesError, io_error};
use crate::lock::lock;
use crate::partitioning::PARTITION_COUNT;

#[derive(Default)]
struct WalState {
    /// Oldest first; the last one is being filled.
    all: VecDeque<Arc<WalFile>>,
    next_block: u64,
    is_open: bool,
    prepared: Option<Arc<WalFile>>,
    next_id: u32,
    /// There are rows, or were since the start. Before the first row, no file takes up disk space.
    is_used: bool,
}

pub(crate) struct Wal {
    dir: PathBuf,
    segment_bytes: u64,
    state: Mutex<WalState>,
    /// The thread that prepares files.
    maintenance: OnceLock<Thread>,
    pub(crate) bytes: AtomicU64,
}

impl Wal {
    pub(crate) fn new(dir: PathBuf, segment_bytes: u32, kept: Vec<WalFile>, next_id: u32) -> Self {
        let bytes = kept.iter().map(|segment| segment.bytes).sum();
        Self {
            dir,
            segment_bytes: u64::from(segment_bytes),
            state: Mutex::new(WalState {
                is_used: !kept.is_empty(),
                all: kept.into_iter().map(Arc::new).collect(),
                next_id,
                ..WalState::default()
            }),
            maintenance: OnceLock::new(),
            bytes: AtomicU64::new(bytes),
        }
    }

    fn state(&self) -> MutexGuard<'_, WalState> {
        lock(&self.state)
    }

    /// Sets the thread that prepares files.
    pub(crate) fn set_maintenance_thread(&self, thread: Thread) {
        let _ = self.maintenance.set(thread);
    }

    fn create(&self, id: u32) -> Result<WalFile, SeriesError> {
        let file = WalFile::create(&self.dir, id, self.segment_bytes)?;
        self.bytes.fetch_add(self.segment_bytes, Ordering::Relaxed);
        Ok(file)
    }

    /// Creates the next file, if there is none and one will be needed.
    pub(crate) fn prepare_next_file(&self) -> Result<(), SeriesError> {
        let id = {
            let mut state = self.state();
            if state.prepared.is_some() || !state.is_used {
                return Ok(());
            }
            state.next_id += 1;
            state.next_id - 1
        };
        // Without the lock: claiming continues meanwhile, with a file of its own if necessary.
        let segment = self.create(id)?;
        let mut state = self.state();
        if state.all.back().is_some_and(|last| last.id > id) {
            // Files are read in order of their numbers; nothing was written to this one.
            drop(state);
            self.discard(&segment);
            return Ok(());
        }
        state.prepared = Some(Arc::new(segment));
        Ok(())
    }

    fn discard(&self, segment: &WalFile) {
        // If an empty file remains, the next start removes it.
        let _ = fs::remove_file(&segment.path);
        self.bytes.fetch_sub(segment.bytes, Ordering::Relaxed);
    }

    /// Claims a block for a partition that has filled its last one.
    pub(crate) fn claim_block(&self, head: BlockHead) -> Result<BlockWriter, SeriesError> {
        let mut state = self.state();
        state.is_used = true;
        let blocks = self.segment_bytes / BLOCK_BYTES as u64;
        if !state.is_open || state.next_block == blocks {
            let next = match state.prepared.take() {
                Some(next) => next,
                None => {
                    state.next_id += 1;
                    Arc::new(self.create(state.next_id - 1)?)
                }
            };
            state.all.push_back(next);
            (state.is_open, state.next_block) = (true, 0);
            if let Some(worker) = self.maintenance.get() {
                worker.unpark();
            }
        }
        let segment = Arc::clone(
            state
                .all
                .back()
                .expect("opening a file adds it to the list"),
        );
        let map = segment.map_block(state.next_block)?;
        state.next_block += 1;
        segment.up_to[usize::from(head.partition)].store(u64::MAX, Ordering::Release);
        Ok(BlockWriter::new(
            segment,
            map,
            &BlockHead {
                salt: random_u64(),
                ..head
            },
        ))
    }

    /// Forces everything written before to disk.
    pub(crate) fn sync(&self) -> Result<(), SeriesError> {
        let all: Vec<_> = self.state().all.iter().cloned().collect();
        let mut result = Ok(());
        for segment in all {
            if segment.is_dirty.swap(false, Ordering::AcqRel)
                && let Err(error) = segment.file.sync_data()
            {
                segment.is_dirty.store(true, Ordering::Release);
                result = Err(io_error("force to disk", &segment.path)(error));
            }
        }
        result
    }

    /// Allocates no more blocks of the file that is being filled.
    pub(crate) fn retire_open_file(&self) {
        self.state().is_open = false;
    }

    /// Removes files whose rows are all in segment files.
    pub(crate) fn remove_flushed_files(
        &self,
        flushed: &[u64; PARTITION_COUNT],
    ) -> Result<(), SeriesError> {
        loop {
            let first = {
                let mut state = self.state();
                let is_filled = state.all.len() > 1 || (!state.is_open && !state.all.is_empty());
                let is_done = |segment: &Arc<WalFile>| {
                    let up_to = segment.up_to.iter().zip(flushed);
                    up_to
                        .into_iter()
                        .all(|(up_to, flushed)| up_to.load(Ordering::Acquire) <= *flushed)
                };
                match state.all.front() {
                    Some(first) if is_filled && is_done(first) => state.all.pop_front(),
                    _ => None,
                }
            };
            let Some(first) = first else { return Ok(()) };
            self.bytes.fetch_sub(first.bytes, Ordering::Relaxed);
            fs::remove_file(&first.path).map_err(io_error("remove", &first.path))?;
        }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.state().is_used
    }

    /// The partitions that still need the oldest file.
    pub(crate) fn pinning_partitions(&self, flushed: &[u64; PARTITION_COUNT]) -> Vec<usize> {
        let state = self.state();
        let Some(first) = state.all.front() else {
            return Vec::new();
        };
        let pins = |&partition: &usize| {
            first.up_to[partition].load(Ordering::Acquire) > flushed[partition]
        };
        (0..PARTITION_COUNT).filter(pins).collect()
    }

    pub(crate) fn drop_prepared(&self) {
        let prepared = self.state().prepared.take();
        if let Some(segment) = prepared {
            self.discard(&segment);
        }
    }
}

/// An unpredictable number from the key source of hash maps.
fn random_u64() -> u64 {
    RandomState::new().hash_one(0_u8)
}
