//! One partition: appends rows.
//!
//! Under the partition's lock a row is written to the write-ahead log and then to the memtable. A full
//! memtable is frozen and handed to the flusher. Nothing here waits for a disk, except for a block when no
//! file was prepared in time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::varint;

use crate::cell::{self, MAX_CELL_BYTES};
use crate::deletions::{Deletion, PartitionDeletions};
use crate::error::SeriesError;
use crate::latest::LatestCache;
use crate::memtable::Memtable;
use crate::point::{DeviceNo, KeyId, Point, RowPoints};
use crate::segment::Segment;
use crate::shared::{SeriesShared, increment};
use crate::wal::block::{BlockHead, RECORD_HEAD, ROW, WORD_HEAD, max_shape_bytes};
use crate::wal::{BlockWriter, PARTITIONS};

/// Maximum number of points in a row.
pub const MAX_POINTS: usize = 1024;
/// Maximum encoded size of a row.
pub const MAX_ROW_BYTES: usize = 128 << 10;

/// Number of partitions. Workers that divide devices with [`partition_of`] do not contend for a partition.
pub const PARTITION_COUNT: usize = PARTITIONS;

/// The partition of a device. Consecutive numbers are in different partitions, and so are numbers with a
/// constant step, such as every eighth.
#[inline]
pub fn partition_of(device: DeviceNo) -> usize {
    // The devices of one index are each in another partition.
    let turned = DeviceNo(index_in_partition(device)).spread();
    (device.0 ^ turned) as usize % PARTITIONS
}

pub(crate) fn index_in_partition(device: DeviceNo) -> u32 {
    device.0 / PARTITIONS as u32
}

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
    follows_lsn: u64,
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

    /// Applies these deletions to memory and keeps them for segment files.
    pub(crate) fn delete(&mut self, shared: &SeriesShared, deletions: &[Deletion]) {
        for deletion in deletions {
            let device = DeviceNo(deletion.device);
            if self.active.has_device(index_in_partition(device)) {
                match deletion.covers_device() {
                    true => self.active.remove_device(index_in_partition(device)),
                    // Frozen rows are filtered when they are read.
                    false => self.freeze(shared),
                }
            }
            self.latest.remove(deletion.device);
            self.deletions
                .entry(deletion.device)
                .or_default()
                .push(*deletion);
        }
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

    #[inline]
    pub(crate) fn append(
        &mut self,
        shared: &SeriesShared,
        device: DeviceNo,
        ts_ms: i64,
        points: impl RowPoints,
    ) -> Result<(), SeriesError> {
        let len = points.len();
        let texts: usize = (0..len).map(|at| points.get(at).value.text_len()).sum();
        let room = RECORD_HEAD + 25 + len * MAX_CELL_BYTES + texts;
        if room > MAX_ROW_BYTES || len > MAX_POINTS || len == 0 {
            return Err(row_size_error(len, room));
        }
        let slot = self
            .active
            .slot_or_insert(index_in_partition(device), device.0);
        let shape = match self.active.last_shape_if_same(slot, points) {
            Some(shape) => shape,
            None => match self.find_or_insert_shape(shared, points)? {
                Some(shape) => shape,
                None => return self.append_deduplicated(shared, device, ts_ms, points),
            },
        };
        // The row, and the room to define its shape and words and to record the synced row.
        let needed = room + len * WORD_HEAD + max_shape_bytes(len) + RECORD_HEAD + 10;
        if self.block.as_ref().is_none_or(|lane| lane.room() < needed) {
            self.claim_block(shared)?;
        }
        let lane = self
            .block
            .as_mut()
            .expect("a block was claimed if there was none");
        if self.scratch.len() < room {
            self.scratch.resize(room, 0);
        }
        let cell = &shared.partitions[self.index];
        let (known, words) = self.active.shape_and_words(shape);
        if known.defined_in != lane.number {
            lane.put_shape(shape, &known.keys);
            known.defined_in = lane.number;
        }
        let synced_lsn = cell.synced_lsn.load(Ordering::Relaxed);
        if synced_lsn != lane.noted_synced_lsn {
            lane.put_synced(synced_lsn);
        }
        words.begin_block(lane.number);
        let record = &mut self.scratch[..];
        let mut at = varint::write(record, RECORD_HEAD, u64::from(device.0));
        at = varint::write(record, at, u64::from(shape));
        at = varint::write(record, at, varint::zigzag(ts_ms - lane.last_ts));
        let values = at;
        for (place, hint) in known.hints.iter_mut().enumerate() {
            at = cell::write(record, at, points.get(place).value, hint, words);
        }
        for &word in &words.undefined {
            lane.put_word(word, words.get(word));
        }
        lane.put_record(ROW, &mut record[..at]);
        lane.last_ts = ts_ms;
        if self.active.rows == 0 {
            self.active.since_ms = shared.clock_ms.load(Ordering::Relaxed);
        }
        let values = &self.scratch[values..at];
        self.active
            .push(slot, ts_ms, shape, len, values, &shared.chunk_pool);
        let lsn = self.active.next_lsn - 1;
        cell.last_lsn.store(lsn, Ordering::Release);
        shared.marks.set_appended(self.index, lsn);
        if self.active.bytes() >= shared.freeze_bytes || self.active.is_full() {
            self.freeze(shared);
        }
        Ok(())
    }

    /// The shape of a row whose keys differ from the previous row's; `None` if a key occurs twice.
    #[cold]
    fn find_or_insert_shape(
        &mut self,
        shared: &SeriesShared,
        points: impl RowPoints,
    ) -> Result<Option<u32>, SeriesError> {
        let keys: Arc<[KeyId]> = (0..points.len()).map(|at| points.get(at).key).collect();
        if let Some(shape) = self.active.find_shape(&keys) {
            return Ok(Some(shape));
        }
        let known = shared.keys.len();
        if let Some(unknown) = keys.iter().find(|key| key.0 >= known) {
            return Err(SeriesError::UnknownKey(unknown.0));
        }
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|two| two[0] == two[1]) {
            return Ok(None);
        }
        Ok(Some(self.active.insert_shape(keys)))
    }

    /// Appends a row with duplicate keys, using the last value of each.
    fn append_deduplicated(
        &mut self,
        shared: &SeriesShared,
        device: DeviceNo,
        ts_ms: i64,
        points: impl RowPoints,
    ) -> Result<(), SeriesError> {
        let mut distinct: Vec<Point<'_>> = Vec::with_capacity(points.len());
        for at in 0..points.len() {
            let point = points.get(at);
            match distinct.iter_mut().find(|known| known.key == point.key) {
                Some(known) => *known = point,
                None => distinct.push(point),
            }
        }
        self.append(shared, device, ts_ms, &distinct[..])
    }

    #[cold]
    fn claim_block(&mut self, shared: &SeriesShared) -> Result<(), SeriesError> {
        let next_lsn = self.active.next_lsn;
        let lane = shared.wal.claim_block(BlockHead {
            partition: self.index as u16,
            salt: 0,
            number: self.next_number,
            first_lsn: next_lsn,
            follows_lsn: if self.has_claimed {
                next_lsn - 1
            } else {
                self.follows_lsn
            },
            synced_lsn: shared.partitions[self.index]
                .synced_lsn
                .load(Ordering::Relaxed),
        });
        let lane = lane.inspect_err(|_| increment(&shared.counters.errors, 1))?;
        let before = self.block.replace(lane);
        self.next_number += 1;
        self.has_claimed = true;
        self.release_block(before);
        Ok(())
    }

    /// The file of a completed block no longer waits for rows of this partition.
    fn release_block(&self, before: Option<BlockWriter>) {
        let Some(before) = before else { return };
        let is_same = |lane: &BlockWriter| Arc::ptr_eq(&lane.segment, &before.segment);
        if !self.block.as_ref().is_some_and(is_same) {
            let last_lsn = self.active.next_lsn - 1;
            before.segment.upto[self.index].store(last_lsn, Ordering::Release);
        }
    }

    /// Freezes the memtable for the flusher and starts a new one.
    pub(crate) fn freeze(&mut self, shared: &SeriesShared) {
        let lane = self.block.take();
        self.release_block(lane);
        if self.active.is_empty() {
            return;
        }
        let next = Memtable::new(self.active.next_lsn);
        let full = std::mem::replace(&mut self.active, next);
        increment(&shared.counters.rows, full.rows);
        increment(&shared.counters.points, full.points);
        shared.adjust_frozen_bytes(full.bytes(), 0);
        self.frozen.push(Arc::new(full));
        SeriesShared::wake(&shared.flusher);
    }
}

#[cold]
fn row_size_error(points: usize, bytes: usize) -> SeriesError {
    if points == 0 {
        return SeriesError::EmptyRow;
    }
    let too_large = |found, unit, max| SeriesError::RowTooLarge { found, unit, max };
    if points > MAX_POINTS {
        return too_large(points, "points", MAX_POINTS);
    }
    too_large(bytes, "bytes", MAX_ROW_BYTES)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn devices_have_distinct_positions_in_a_partition() {
        let places: HashSet<_> = (0..100_000)
            .map(|no| (partition_of(DeviceNo(no)), index_in_partition(DeviceNo(no))))
            .collect();
        assert_eq!(places.len(), 100_000);
    }

    #[test]
    fn numbers_with_a_step_are_in_all_partitions() {
        for step in [1, 2, 8, 20, 64, 1000, 4096] {
            let used: HashSet<_> = (0..1000)
                .map(|at| partition_of(DeviceNo(at * step)))
                .collect();
            assert_eq!(used.len(), PARTITION_COUNT, "by {step}");
        }
    }
}
