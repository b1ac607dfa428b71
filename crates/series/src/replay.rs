//! Replays the write-ahead log into memory at a start.

use std::path::Path;
use std::sync::Arc;

use disk::varint::VarintReader;

use crate::cell::{self, MAX_CELL_BYTES};
use crate::config::SeriesConfig;
use crate::deletions::{Deletion, PartitionDeletions};
use crate::directory;
use crate::error::SeriesOpenError;
use crate::inspection::Inspection;
use crate::memtable::{ChunkPool, Memtable};
use crate::partition::PartitionStart;
use crate::partitioning::PARTITION_COUNT;
use crate::partitioning::index_in_partition;
use crate::point::DeviceNo;
use crate::segment::Segment;
use crate::series_marks::ExpectedContents;
use crate::shared::now_ms;
use crate::wal::Wal;
use crate::wal::recovery::{RecoveryBounds, WalRow, WalTruncation, recover_wal};

pub(crate) struct ReplayedWal {
    pub(crate) partitions: [PartitionStart; PARTITION_COUNT],
    pub(crate) wal: Wal,
    pub(crate) flushed: [u64; PARTITION_COUNT],
    /// The last existing row of each partition; numbers up to that of a later deletion may have been skipped.
    pub(crate) last_lsn: [u64; PARTITION_COUNT],
    pub(crate) rows: u64,
    pub(crate) truncations: Vec<WalTruncation>,
}

/// Reads the rows of the write-ahead log that are not in segment files.
pub(crate) fn replay_wal(
    dir: &Path,
    config: &SeriesConfig,
    segments: &[Segment],
    deletions: [PartitionDeletions; PARTITION_COUNT],
    (expected, keys): (&ExpectedContents, u32),
    inspection: &mut Inspection,
) -> Result<ReplayedWal, SeriesOpenError> {
    let mut flushed = expected.manifest.flushed;
    let mut highest = [0_u64; PARTITION_COUNT];
    for meta in segments.iter().map(|segment| &segment.meta) {
        flushed[meta.partition] = flushed[meta.partition].max(meta.flushed_lsn);
        highest[meta.partition] = highest[meta.partition].max(meta.last_lsn);
    }
    for (highest, deletions) in highest.iter_mut().zip(&deletions) {
        let lsns = deletions.values().flatten().map(|deletion| deletion.lsn);
        *highest = lsns.fold(*highest, u64::max);
    }
    let mut tables: [PartitionReplay; PARTITION_COUNT] =
        deletions.map(|deletions| PartitionReplay::new(deletions, config));
    let wal_dir = dir.join(directory::WAL);
    let known = RecoveryBounds {
        flushed,
        expected: expected.last_lsn,
        keys,
    };
    let recovered = recover_wal(&wal_dir, &known, inspection, &mut |row| {
        tables[row.partition].apply_row(&row)
    })?;
    let mut partition = 0..PARTITION_COUNT;
    let parts = tables.map(|table| {
        let partition = partition
            .next()
            .expect("there is one table for each partition");
        let next_lsn = recovered.next_lsn[partition];
        // Numbers used by files or deletions are not reused.
        let part = table.finish(
            next_lsn,
            next_lsn.max(highest[partition] + 1),
            recovered.next_number[partition],
        );
        PartitionStart {
            flushed_lsn: flushed[partition],
            ..part
        }
    });
    Ok(ReplayedWal {
        partitions: parts,
        wal: Wal::new(
            wal_dir,
            config.wal_segment_bytes,
            recovered.segments,
            recovered.next_id,
        ),
        last_lsn: recovered.next_lsn.map(|next_lsn| next_lsn - 1),
        flushed,
        rows: recovered.rows,
        truncations: recovered.truncations,
    })
}

/// Replays the rows of one partition.
struct PartitionReplay {
    active: Memtable,
    frozen: Vec<Arc<Memtable>>,
    deletions: PartitionDeletions,
    /// Deletions of parts of a device, by row number; past ones have been removed.
    partial: Vec<Deletion>,
    freeze_bytes: usize,
    spare: ChunkPool,
    values: Vec<u8>,
    now_ms: i64,
}

impl PartitionReplay {
    fn new(deletions: PartitionDeletions, config: &SeriesConfig) -> Self {
        let partial = deletions
            .values()
            .flatten()
            .filter(|deletion| !deletion.covers_device());
        let mut partial: Vec<Deletion> = partial.copied().collect();
        partial.sort_unstable_by_key(|deletion| std::cmp::Reverse(deletion.lsn));
        Self {
            active: Memtable::new(1),
            frozen: Vec::new(),
            deletions,
            partial,
            freeze_bytes: config.freeze_bytes(),
            spare: ChunkPool::new(0, config.chunk_bytes()),
            values: Vec::new(),
            now_ms: now_ms(),
        }
    }

    fn freeze(&mut self) {
        if !self.active.is_empty() {
            let next = Memtable::new(self.active.next_lsn);
            self.frozen
                .push(Arc::new(std::mem::replace(&mut self.active, next)));
        }
    }

    /// Returns `None` if the values are invalid.
    fn apply_row(&mut self, row: &WalRow<'_>) -> Option<()> {
        while let Some(deletion) = self.partial.pop_if(|deletion| deletion.lsn < row.lsn) {
            // A deletion separates earlier rows from later ones, as when it was made.
            if self
                .active
                .has_device(index_in_partition(DeviceNo(deletion.device)))
            {
                self.freeze();
            }
        }
        let of_device = self.deletions.get(&row.device).into_iter().flatten();
        let is_gone = of_device
            .clone()
            .any(|deletion| deletion.covers_device() && deletion.lsn >= row.lsn);
        let active = &mut self.active;
        active.next_lsn = row.lsn;
        if is_gone {
            active.next_lsn += 1;
            return Some(());
        }
        if active.is_empty() {
            active.since_ms = self.now_ms;
        }
        let slot = active.slot_or_insert(index_in_partition(DeviceNo(row.device)), row.device);
        let known = active.find_shape(row.keys);
        let shape = known.unwrap_or_else(|| active.insert_shape(Arc::clone(row.keys)));
        // Words have other numbers here than in the log.
        let (known, words) = active.shape_and_words(shape);
        let mut reader = VarintReader::new(row.values);
        let mut end = 0;
        for hint in known.hints.iter_mut() {
            let word = |number| row.words.get(&number).map(|word| &**word);
            let value = cell::read(&mut reader, word)?.value();
            let room = end + MAX_CELL_BYTES + value.text_len();
            if self.values.len() < room {
                self.values.resize(room, 0);
            }
            end = cell::write(&mut self.values, end, value, hint, words);
        }
        let points = row.keys.len();
        active.push(
            slot,
            row.ts_ms,
            shape,
            points,
            &self.values[..end],
            &self.spare,
        );
        if active.bytes() >= self.freeze_bytes || active.is_full() {
            self.freeze();
        }
        Some(())
    }

    fn finish(mut self, follows: u64, next_lsn: u64, next_number: u64) -> PartitionStart {
        while let Some(deletion) = self.partial.pop() {
            if self
                .active
                .has_device(index_in_partition(DeviceNo(deletion.device)))
            {
                self.freeze();
            }
        }
        self.active.next_lsn = next_lsn;
        PartitionStart {
            active: self.active,
            frozen: self.frozen,
            files: Vec::new(),
            deletions: self.deletions,
            next_number,
            follows_lsn: follows - 1,
            flushed_lsn: 0,
        }
    }
}
