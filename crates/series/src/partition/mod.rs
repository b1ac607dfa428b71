//! One partition: its memtables, segment files, latest values and deletions, and the block of the write-ahead
//! log that it fills.

mod write;

use std::sync::Arc;

use crate::deletions::PartitionDeletions;
use crate::latest::LatestCache;
use crate::memtable::Memtable;
use crate::partitioning::index_in_partition;
use crate::point::DeviceNo;
use crate::segment::Segment;
use crate::wal::BlockWriter;

pub(crate) struct Partition {
    index: usize,
    pub(crate) active: Memtable,
    /// Full memtables waiting for their segment files, oldest first.
    pub(crate) frozen: Vec<Arc<Memtable>>,
    /// Sorted by window, then from old to young.
    pub(crate) files: Arc<Vec<Arc<Segment>>>,
    /// Files that are not known to be on disk, in the order they were written.
    pub(crate) uncommitted: Vec<Arc<Segment>>,
    /// Up to this row, all rows are in files.
    pub(crate) written_lsn: u64,
    /// Covers rows in segment files only.
    pub(crate) latest: LatestCache,
    pub(crate) deletions: PartitionDeletions,
    /// Changes whenever files or deletions change.
    pub(crate) generation: u64,
    /// The last row of the write-ahead log before the first block is claimed.
    pub(crate) follows_lsn: u64,
    block: Option<BlockWriter>,
    next_number: u64,
    has_claimed: bool,
    scratch: Vec<u8>,
}

/// Initial state of a partition.
#[derive(Default)]
pub(crate) struct PartitionStart {
    pub(crate) active: Memtable,
    pub(crate) frozen: Vec<Arc<Memtable>>,
    pub(crate) files: Vec<Segment>,
    pub(crate) deletions: PartitionDeletions,
    pub(crate) next_number: u64,
    /// The last row of the write-ahead log.
    pub(crate) follows_lsn: u64,
    /// Up to this row, all rows are in segment files.
    pub(crate) flushed_lsn: u64,
}

impl Partition {
    pub(crate) fn new(index: usize, start: PartitionStart) -> Self {
        let PartitionStart {
            active,
            frozen,
            files,
            deletions,
            next_number,
            follows_lsn,
            flushed_lsn,
        } = start;
        let mut part = Self {
            index,
            active,
            frozen,
            files: Arc::default(),
            uncommitted: Vec::new(),
            written_lsn: flushed_lsn,
            latest: LatestCache::default(),
            deletions,
            generation: 0,
            follows_lsn,
            block: None,
            next_number,
            has_claimed: false,
            scratch: vec![0; 1024],
        };
        part.replace_files(&[], files.into_iter().map(Arc::new));
        part
    }

    /// Adds the files written from a memtable that ends with this row.
    pub(crate) fn add_written_files(&mut self, files: Vec<Segment>, last_lsn: u64) {
        let files: Vec<Arc<Segment>> = files.into_iter().map(Arc::new).collect();
        self.uncommitted.extend(files.iter().cloned());
        self.replace_files(&[], files);
        self.written_lsn = last_lsn;
    }

    /// Replaces an uncommitted file with one of the same content.
    pub(crate) fn replace_file(&mut self, old: &Arc<Segment>, new: Segment) -> Arc<Segment> {
        let new = Arc::new(new);
        self.replace_files(&[old.meta.id], [Arc::clone(&new)]);
        let known = self
            .uncommitted
            .iter_mut()
            .find(|file| Arc::ptr_eq(file, old));
        if let Some(known) = known {
            *known = Arc::clone(&new);
        }
        new
    }

    /// Replaces files with others.
    pub(crate) fn replace_files(
        &mut self,
        gone: &[u64],
        new: impl IntoIterator<Item = Arc<Segment>>,
    ) {
        let kept = self
            .files
            .iter()
            .filter(|file| !gone.contains(&file.meta.id))
            .cloned();
        let mut files: Vec<Arc<Segment>> = kept.chain(new).collect();
        files.sort_by_key(|file| (file.meta.window, file.meta.last_lsn, file.meta.id));
        self.files = Arc::new(files);
        self.generation += 1;
    }

    /// Merges the rows of a flushed memtable into the cache of latest values.
    pub(crate) fn fold_latest(&mut self, memtable: &Memtable) {
        if self.latest.is_empty() {
            return;
        }
        let devices: Vec<u32> = self.latest.devices().collect();
        for device in devices {
            if let Some(newest) = memtable.newest(index_in_partition(DeviceNo(device))) {
                self.latest.merge_newest(device, &newest);
            }
        }
    }
}
