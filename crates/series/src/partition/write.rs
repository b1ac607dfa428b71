//! Writes to a partition: rows and deletions.
//!
//! Under the partition's lock a row is written to the write-ahead log and then to the memtable. A full
//! memtable is frozen and handed to the flusher. Nothing here waits for a disk, except for a block when no
//! file was prepared in time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::varint;

use super::Partition;
use crate::cell::{self, MAX_CELL_BYTES};
use crate::deletions::Deletion;
use crate::error::SeriesError;
use crate::memtable::Memtable;
use crate::partitioning::index_in_partition;
use crate::point::{DeviceNo, KeyId, MAX_POINTS, MAX_ROW_BYTES, Point};
use crate::shared::{SeriesShared, increment};
use crate::wal::block::{BlockHead, RECORD_HEAD, ROW, WORD_HEAD};
use crate::wal::{BlockWriter, max_shape_bytes};

impl Partition {
    #[inline]
    pub(crate) fn append(
        &mut self,
        shared: &SeriesShared,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
    ) -> Result<(), SeriesError> {
        let len = points.len();
        let texts: usize = points.iter().map(|point| point.value.text_len()).sum();
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
        if self
            .block
            .as_ref()
            .is_none_or(|block| block.room() < needed)
        {
            self.claim_block(shared)?;
        }
        let block = self
            .block
            .as_mut()
            .expect("a block was claimed if there was none");
        if self.scratch.len() < room {
            self.scratch.resize(room, 0);
        }
        let cell = &shared.partitions[self.index];
        let (known, words) = self.active.shape_and_words(shape);
        if known.defined_in != block.number {
            block.put_shape(shape, &known.keys);
            known.defined_in = block.number;
        }
        let synced_lsn = cell.synced_lsn.load(Ordering::Relaxed);
        if synced_lsn != block.noted_synced_lsn {
            block.put_synced(synced_lsn);
        }
        words.begin_block(block.number);
        let record = &mut self.scratch[..];
        let mut at = varint::write(record, RECORD_HEAD, u64::from(device.0));
        at = varint::write(record, at, u64::from(shape));
        at = varint::write(record, at, varint::zigzag(ts_ms - block.last_ts));
        let values = at;
        for (point, hint) in points.iter().zip(&mut known.hints) {
            at = cell::write(record, at, point.value, hint, words);
        }
        for &word in &words.undefined {
            block.put_word(word, words.get(word));
        }
        block.put_record(ROW, &mut record[..at]);
        block.last_ts = ts_ms;
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
        points: &[Point<'_>],
    ) -> Result<Option<u32>, SeriesError> {
        let keys: Arc<[KeyId]> = points.iter().map(|point| point.key).collect();
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
        points: &[Point<'_>],
    ) -> Result<(), SeriesError> {
        let mut distinct: Vec<Point<'_>> = Vec::with_capacity(points.len());
        for point in points {
            match distinct.iter_mut().find(|known| known.key == point.key) {
                Some(known) => *known = *point,
                None => distinct.push(*point),
            }
        }
        self.append(shared, device, ts_ms, &distinct)
    }

    #[cold]
    fn claim_block(&mut self, shared: &SeriesShared) -> Result<(), SeriesError> {
        let next_lsn = self.active.next_lsn;
        let block = shared.wal.claim_block(BlockHead {
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
        let block = block.inspect_err(|_| increment(&shared.counters.errors, 1))?;
        let before = self.block.replace(block);
        self.next_number += 1;
        self.has_claimed = true;
        self.release_block(before);
        Ok(())
    }

    /// The file of a completed block no longer waits for rows of this partition.
    fn release_block(&self, before: Option<BlockWriter>) {
        let Some(before) = before else { return };
        let is_same = |block: &BlockWriter| Arc::ptr_eq(&block.segment, &before.segment);
        if !self.block.as_ref().is_some_and(is_same) {
            let last_lsn = self.active.next_lsn - 1;
            before.segment.up_to[self.index].store(last_lsn, Ordering::Release);
        }
    }

    /// Freezes the memtable for the flusher and starts a new one.
    pub(crate) fn freeze(&mut self, shared: &SeriesShared) {
        let block = self.block.take();
        self.release_block(block);
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
