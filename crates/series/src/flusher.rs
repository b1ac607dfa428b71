//! The flusher's thread: writes full memtables to segment files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::column_table::{ColumnTable, RowReadBuffers};
use crate::committer;
use crate::deletions::Deletion;
use crate::error::SeriesError;
use crate::lock::lock;
use crate::memtable::Memtable;
use crate::partitioning::PARTITION_COUNT;
use crate::partitioning::index_in_partition;
use crate::point::DeviceNo;
use crate::segment::{Segment, SegmentMeta, SegmentWriter};
use crate::shared::{HealthFlag, SeriesShared, increment};

/// Windows written at once; rows of further windows take another pass.
const MAX_WINDOWS: usize = 32;
const IDLE: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn run(shared: &Arc<SeriesShared>) {
    loop {
        let is_closing = shared.is_closing.load(Ordering::Acquire);
        let mut pause = IDLE;
        // Read first: rows frozen later are not meant.
        let rescued = shared.failed_sync.load(Ordering::Acquire);
        match flush_all(shared) {
            Ok(()) => {
                if shared.set_flag(HealthFlag::Flush, false) {
                    tracing::info!("telemetry segment write recovered");
                }
                if rescued > 0 && committer::commit_segments(shared).is_ok() {
                    shared.complete_rescue(rescued);
                }
            }
            Err(error) => {
                increment(&shared.counters.errors, 1);
                if shared.set_flag(HealthFlag::Flush, true) {
                    tracing::error!(%error, "telemetry segment write failed; rows stay in memory and in the write-ahead log; retrying");
                    shared.room.notify_all();
                }
                pause = RETRY_PAUSE;
            }
        }
        if is_closing {
            return;
        }
        std::thread::park_timeout(pause);
    }
}

fn flush_all(shared: &SeriesShared) -> Result<(), SeriesError> {
    // One memtable of each partition in turn, so that no partition is neglected.
    loop {
        let mut was_there = false;
        for partition in 0..PARTITION_COUNT {
            was_there |= flush_one(shared, partition)?;
        }
        if !was_there {
            return Ok(());
        }
    }
}

fn flush_one(shared: &SeriesShared, partition: usize) -> Result<bool, SeriesError> {
    let cell = &shared.partitions[partition];
    let (memtable, deletions) = {
        let part = lock(&cell.partition);
        let Some(memtable) = part.frozen.first().cloned() else {
            return Ok(false);
        };
        let deletions: Vec<Deletion> = part.deletions.values().flatten().copied().collect();
        (memtable, deletions)
    };
    wait_for_committer(shared);
    let written = write_memtable(shared, partition, &memtable, &deletions)?;
    increment(&shared.counters.flushes, 1);
    let bytes = written.iter().map(|segment| segment.bytes).sum();
    increment(&shared.counters.flushed_bytes, bytes);
    shared
        .uncommitted
        .fetch_add(written.len(), Ordering::AcqRel);
    {
        let mut part = lock(&cell.partition);
        part.fold_latest(&memtable);
        part.frozen.remove(0);
        // Under one lock, so that a snapshot sees either the memtable or the files.
        part.add_written_files(written, memtable.next_lsn - 1);
    }
    shared.adjust_frozen_bytes(0, memtable.bytes());
    memtable.recycle(&shared.chunk_pool);
    SeriesShared::wake(&shared.committer);
    Ok(true)
}

/// Bounds the number of files that are not on disk yet, and with them the log, which has their rows.
fn wait_for_committer(shared: &SeriesShared) {
    let is_much = || {
        let files = shared.uncommitted.load(Ordering::Acquire);
        let log = shared.wal.bytes.load(Ordering::Relaxed);
        files >= committer::MAX_UNCOMMITTED_FILES
            || (files > 0 && log > shared.config.max_wal_bytes)
    };
    while is_much() && !shared.is_closing.load(Ordering::Acquire) {
        SeriesShared::wake(&shared.committer);
        std::thread::park_timeout(RETRY_PAUSE);
    }
}

/// Writes the rows of a memtable, one file for each window.
fn write_memtable(
    shared: &SeriesShared,
    partition: usize,
    memtable: &Memtable,
    deletions: &[Deletion],
) -> Result<Vec<Segment>, SeriesError> {
    let last_lsn = memtable.next_lsn - 1;
    let mut turn = MemtableFlush {
        shared,
        partition,
        memtable,
        deletions: deletions
            .iter()
            .filter(|deletion| deletion.lsn >= last_lsn)
            .copied()
            .collect(),
        last_lsn,
        known_deletions: deletions
            .iter()
            .map(|deletion| deletion.number)
            .max()
            .unwrap_or(0),
        writers: BTreeMap::new(),
        done: BTreeSet::new(),
        has_more: true,
    };
    let mut written: Vec<Segment> = Vec::new();
    if let Err(error) = turn.write(&mut written) {
        // All its rows are written again.
        written
            .iter()
            .for_each(|segment| segment.is_gone.store(true, Ordering::Release));
        return Err(error);
    }
    Ok(written)
}

impl MemtableFlush<'_> {
    fn write(&mut self, written: &mut Vec<Segment>) -> Result<(), SeriesError> {
        let (shared, partition, last_lsn) = (self.shared, self.partition, self.last_lsn);
        while self.has_more {
            let result = self.collect_rows();
            let mut writers = std::mem::take(&mut self.writers).into_iter();
            if let Err(error) = result {
                writers.for_each(|(_, writer)| writer.discard());
                return Err(error);
            }
            while let Some((window, mut writer)) = writers.next() {
                self.done.insert(window);
                // Only when the last one has its final name, all rows of the memtable are in files.
                let is_last = !self.has_more && writers.len() == 0;
                let before = shared.partitions[partition]
                    .flushed_lsn
                    .load(Ordering::Acquire);
                writer.meta.flushed_lsn = if is_last { last_lsn } else { before };
                match writer.finish() {
                    Ok(segment) => written.push(segment),
                    Err(error) => {
                        writers.for_each(|(_, writer)| writer.discard());
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

struct MemtableFlush<'a> {
    shared: &'a SeriesShared,
    partition: usize,
    memtable: &'a Memtable,
    deletions: Vec<Deletion>,
    known_deletions: u64,
    last_lsn: u64,
    writers: BTreeMap<i64, SegmentWriter>,
    done: BTreeSet<i64>,
    has_more: bool,
}

impl MemtableFlush<'_> {
    fn collect_rows(&mut self) -> Result<(), SeriesError> {
        self.has_more = false;
        let mut table = ColumnTable::default();
        let mut reading = RowReadBuffers::default();
        for device in self.memtable.devices() {
            let place = index_in_partition(DeviceNo(device));
            let Some(rows) = self.memtable.device_rows(place) else {
                continue;
            };
            table.clear();
            table
                .read_rows(&rows, (i64::MIN, i64::MAX), None, &mut reading)
                .expect("values encoded by this process are readable");
            table.sort();
            for deletion in self
                .deletions
                .iter()
                .filter(|deletion| deletion.device == device)
            {
                deletion.apply(&mut table);
            }
            self.put(device, &table)?;
        }
        Ok(())
    }

    fn put(&mut self, device: u32, table: &ColumnTable) -> Result<(), SeriesError> {
        let window_ms = self.shared.config.window_ms;
        let (Some(first), Some(last)) = (table.ts.first(), table.ts.last()) else {
            return Ok(());
        };
        let (first, last) = (first.div_euclid(window_ms), last.div_euclid(window_ms));
        if first == last {
            return self.put_window(device, first, table);
        }
        let mut start = 0;
        while start < table.ts.len() {
            let window = table.ts[start].div_euclid(window_ms);
            let end = table
                .ts
                .partition_point(|ts_ms| ts_ms.div_euclid(window_ms) <= window);
            self.put_window(device, window, &table.slice(start..end))?;
            start = end;
        }
        Ok(())
    }

    fn put_window(
        &mut self,
        device: u32,
        window: i64,
        table: &ColumnTable,
    ) -> Result<(), SeriesError> {
        if self.done.contains(&window) {
            return Ok(());
        }
        if !self.writers.contains_key(&window) {
            if self.writers.len() == MAX_WINDOWS {
                self.has_more = true;
                return Ok(());
            }
            let meta = SegmentMeta {
                partition: self.partition,
                window,
                id: self.shared.next_file_id(),
                last_lsn: self.last_lsn,
                deletions: self.known_deletions,
                ..SegmentMeta::default()
            };
            let writer = SegmentWriter::create(
                &self.shared.segments_dir(),
                meta,
                self.shared.config.window_ms,
            )?;
            self.writers.insert(window, writer);
        }
        let writer = self
            .writers
            .get_mut(&window)
            .expect("the writer was created if it did not exist");
        writer.put(device, table, 0)
    }
}
