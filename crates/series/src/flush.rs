//! The flusher's thread: full memtables become segment files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::deletions::Deletion;
use crate::error::Error;
use crate::memtable::Memtable;
use crate::part::place_of;
use crate::point::DeviceNo;
use crate::segment::{Meta, Segment, Writer};
use crate::settle;
use crate::shared::{Shared, Trouble, count, lock};
use crate::table::{Reading, Table};
use crate::wal::PARTITIONS;

/// Windows written at once; rows of more take another turn.
const MAX_WINDOWS: usize = 32;
const IDLE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn run(shared: &Arc<Shared>) {
    loop {
        let is_closing = shared.is_closing.load(Ordering::Acquire);
        let mut pause = IDLE;
        // Before: rows frozen after that are not meant.
        let rescued = shared.rescue_upto.load(Ordering::Acquire);
        match flush_all(shared) {
            Ok(()) => {
                if shared.set(Trouble::Flush, false) {
                    tracing::info!("telemetry segment files can be written again");
                }
                if rescued > 0 && settle::settle(shared).is_ok() {
                    shared.rows_are_safe(rescued);
                }
            }
            Err(error) => {
                count(&shared.counters.errors, 1);
                if shared.set(Trouble::Flush, true) {
                    tracing::error!(%error, "a telemetry segment file cannot be written; its rows stay in memory and the log");
                    shared.room.notify_all();
                }
                pause = PAUSE;
            }
        }
        if is_closing {
            return;
        }
        std::thread::park_timeout(pause);
    }
}

fn flush_all(shared: &Shared) -> Result<(), Error> {
    // One of each partition in turn, so that none is left behind.
    loop {
        let mut was_there = false;
        for partition in 0..PARTITIONS {
            was_there |= flush_one(shared, partition)?;
        }
        if !was_there {
            return Ok(());
        }
    }
}

fn flush_one(shared: &Shared, partition: usize) -> Result<bool, Error> {
    let cell = &shared.parts[partition];
    let (memtable, deletions) = {
        let part = lock(&cell.part);
        let Some(memtable) = part.frozen.first().cloned() else {
            return Ok(false);
        };
        let deletions: Vec<Deletion> = part.deletions.values().flatten().copied().collect();
        (memtable, deletions)
    };
    wait_for_settler(shared);
    let written = write(shared, partition, &memtable, &deletions)?;
    count(&shared.counters.flushes, 1);
    let bytes = written.iter().map(|segment| segment.bytes).sum();
    count(&shared.counters.flushed_bytes, bytes);
    shared.unsettled.fetch_add(written.len(), Ordering::AcqRel);
    {
        let mut part = lock(&cell.part);
        part.fold_latest(&memtable);
        part.frozen.remove(0);
        // Under one lock, so that a snapshot sees the memtable or the files.
        part.take_written(written, memtable.next_lsn - 1);
    }
    shared.frozen(0, memtable.bytes());
    shared.spare.keep(memtable);
    Shared::wake(&shared.settler);
    Ok(true)
}

/// Files that are not on disk yet are bounded, and with them the log that has their rows.
fn wait_for_settler(shared: &Shared) {
    let is_much = || {
        let files = shared.unsettled.load(Ordering::Acquire);
        let log = shared.wal.bytes.load(Ordering::Relaxed);
        files >= settle::MAX_FILES || (files > 0 && log > shared.config.max_wal_bytes)
    };
    while is_much() && !shared.is_closing.load(Ordering::Acquire) {
        Shared::wake(&shared.settler);
        std::thread::park_timeout(PAUSE);
    }
}

/// Writes the rows of a memtable, a file for each window.
fn write(
    shared: &Shared,
    partition: usize,
    memtable: &Memtable,
    deletions: &[Deletion],
) -> Result<Vec<Segment>, Error> {
    let last_lsn = memtable.next_lsn - 1;
    let mut turn = Turn {
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
        // Its rows are written again, all of them.
        written
            .iter()
            .for_each(|segment| segment.is_gone.store(true, Ordering::Release));
        return Err(error);
    }
    Ok(written)
}

impl Turn<'_> {
    fn write(&mut self, written: &mut Vec<Segment>) -> Result<(), Error> {
        let (shared, partition, last_lsn) = (self.shared, self.partition, self.last_lsn);
        while self.has_more {
            let result = self.take();
            let mut writers = std::mem::take(&mut self.writers).into_iter();
            if let Err(error) = result {
                writers.for_each(|(_, writer)| writer.discard());
                return Err(error);
            }
            while let Some((window, mut writer)) = writers.next() {
                self.done.insert(window);
                // Only when the last one has its name, all rows of the memtable are in files.
                let is_last = !self.has_more && writers.len() == 0;
                let before = shared.parts[partition].flushed_lsn.load(Ordering::Acquire);
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

struct Turn<'a> {
    shared: &'a Shared,
    partition: usize,
    memtable: &'a Memtable,
    deletions: Vec<Deletion>,
    known_deletions: u64,
    last_lsn: u64,
    writers: BTreeMap<i64, Writer>,
    done: BTreeSet<i64>,
    has_more: bool,
}

impl Turn<'_> {
    fn take(&mut self) -> Result<(), Error> {
        self.has_more = false;
        let mut table = Table::default();
        let mut reading = Reading::default();
        for device in self.memtable.devices() {
            let place = place_of(DeviceNo(device));
            let Some(rows) = self.memtable.device_rows(place) else {
                continue;
            };
            table.clear();
            table
                .read_rows(&rows, (i64::MIN, i64::MAX), None, &mut reading)
                .expect("what was encoded in this process can be read");
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

    fn put(&mut self, device: u32, table: &Table) -> Result<(), Error> {
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

    fn put_window(&mut self, device: u32, window: i64, table: &Table) -> Result<(), Error> {
        if self.done.contains(&window) {
            return Ok(());
        }
        if !self.writers.contains_key(&window) {
            if self.writers.len() == MAX_WINDOWS {
                self.has_more = true;
                return Ok(());
            }
            let meta = Meta {
                partition: self.partition,
                window,
                id: self.shared.next_file_id(),
                last_lsn: self.last_lsn,
                deletions: self.known_deletions,
                ..Meta::default()
            };
            let writer = Writer::create(
                &self.shared.segments_dir(),
                meta,
                self.shared.config.window_ms,
            )?;
            self.writers.insert(window, writer);
        }
        let writer = self
            .writers
            .get_mut(&window)
            .expect("it was made if it was not there");
        writer.put(device, table, 0)
    }
}
