//! The time series of a node, whose rows and deletions are also queued for a copy, in the order in which they are stored.
//!
//! A device belongs to a partition of the time series. What is copied of a partition is stored and queued under one lock,
//! so that two values of one time, or a row and its deletion, have the same order in the copy. Rows that are not copied
//! take no lock.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use disk::varint::{self, VarintReader};
use series::{
    DeviceNo, KeyId, MAX_POINTS, PARTITION_COUNT, Point, Series, SeriesError, SeriesPositions,
    SyncTicket, partition_of,
};

use crate::deletion_journal::{DeletionJournal, RecordedDeletion};
use crate::lock::lock;
use crate::point_codec::{put_value, read_value};

/// Entries that are sent together.
const CHUNK_BYTES: usize = 64 << 10;
/// Queued bytes; above them the queue overflows, and the copy is completed from the time series later.
pub const MAX_QUEUE_BYTES: usize = 64 << 20;

const ROW: u8 = 0;
const DELETION: u8 = 1;

/// Time series whose rows are copied. A clone refers to the same ones.
#[derive(Clone)]
pub struct CopiedSeries {
    series: Series,
    queue: Arc<CopyQueue>,
}

struct CopyQueue {
    /// Locked in ascending order, before all others.
    order: [Mutex<()>; PARTITION_COUNT],
    entries: Mutex<QueuedEntries>,
    journal: Mutex<Option<DeletionJournal>>,
    max_bytes: usize,
}

#[derive(Default)]
struct QueuedEntries {
    /// Whether entries are queued at all.
    is_open: bool,
    has_overflowed: bool,
    chunks: VecDeque<QueuedChunk>,
    bytes: usize,
}

/// Consecutive entries.
pub(crate) struct QueuedChunk {
    bytes: Vec<u8>,
    /// When the first one was queued.
    pub(crate) since: Instant,
}

/// What was stored.
#[derive(Debug, PartialEq)]
pub(crate) enum QueuedEntry {
    /// Its points are those of the reader.
    Row {
        device: DeviceNo,
        /// The copy then has the rows of the partition up to this number.
        position: u64,
        ts_ms: i64,
    },
    Deletion(RecordedDeletion),
}

/// Size and age of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct QueueLoad {
    pub(crate) bytes: usize,
    pub(crate) since: Option<Instant>,
    pub(crate) has_overflowed: bool,
}

impl CopiedSeries {
    pub fn new(series: Series) -> Self {
        Self::with_queue(series, MAX_QUEUE_BYTES)
    }

    pub(crate) fn with_queue(series: Series, max_bytes: usize) -> Self {
        Self {
            series,
            queue: Arc::new(CopyQueue {
                order: Default::default(),
                entries: Mutex::default(),
                journal: Mutex::default(),
                max_bytes,
            }),
        }
    }

    pub fn series(&self) -> &Series {
        &self.series
    }

    /// Like [`Series::submit`].
    ///
    /// # Errors
    /// As those of [`Series::submit`].
    #[inline]
    pub fn submit(
        &self,
        device: DeviceNo,
        ts_ms: i64,
        points: &[Point<'_>],
        is_copied: bool,
    ) -> Result<SyncTicket, SeriesError> {
        if !is_copied {
            return self.series.submit(device, ts_ms, points);
        }
        let _order = lock(&self.queue.order[partition_of(device)]);
        let ticket = self.series.submit(device, ts_ms, points)?;
        let position = self.series.position_of(device);
        self.queue.push_rows([(device, position, ts_ms, points)]);
        Ok(ticket)
    }

    /// Like [`Series::submit_row_refs`]. `is_copied` says which rows are copied.
    pub fn submit_row_refs<'r, 'p: 'r>(
        &self,
        count: usize,
        row: impl Fn(usize) -> (DeviceNo, i64, &'r [Point<'p>]),
        is_copied: impl Fn(usize) -> bool,
        rejected: &mut dyn FnMut(usize, SeriesError),
    ) -> SyncTicket {
        let copied = (0..count).filter(|at| is_copied(*at));
        let partitions = copied.fold(0_u32, |all, at| all | 1 << partition_of(row(at).0));
        if partitions == 0 {
            return self.series.submit_row_refs(count, row, rejected);
        }
        let _order = self.queue.lock_order(partitions);
        let mut failed = Vec::new();
        let ticket = self.series.submit_row_refs(count, &row, &mut |at, error| {
            failed.push(at);
            rejected(at, error);
        });
        failed.sort_unstable();
        let is_stored = |at: &usize| is_copied(*at) && failed.binary_search(at).is_err();
        self.queue.push_rows((0..count).filter(is_stored).map(|at| {
            let (device, ts_ms, points) = row(at);
            (device, self.series.position_of(device), ts_ms, points)
        }));
        ticket
    }

    /// Like [`Series::delete_range`].
    ///
    /// # Errors
    /// As those of [`Series::delete_range`], and if the deletion cannot be recorded for the copy.
    pub fn delete_range(
        &self,
        device: DeviceNo,
        keys: Option<&[KeyId]>,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<(), SeriesError> {
        let _order = lock(&self.queue.order[partition_of(device)]);
        let mut journal = lock(&self.queue.journal);
        let Some(journal) = &mut *journal else {
            return self.series.delete_range(device, keys, from_ms, to_ms);
        };
        let key_numbers = keys.map(|keys| keys.iter().map(|key| key.0).collect::<Vec<_>>());
        let added = journal.add(device.0, key_numbers.clone(), (from_ms, to_ms));
        let number = added.map_err(|error| {
            tracing::error!(%error, "a deletion of telemetry cannot be recorded for the copy at another node; it is rejected");
            SeriesError::Full("the deletion cannot be recorded for the copy at another node")
        })?;
        let deleted = self.series.delete_range(device, keys, from_ms, to_ms);
        match deleted {
            Ok(()) => self.queue.push_deletion(&RecordedDeletion {
                number,
                device: device.0,
                keys: key_numbers,
                from_ms,
                to_ms,
            }),
            Err(_) => journal.retract(number),
        }
        deleted
    }

    /// Records deletions from now on in this directory. Without that, they are not copied.
    pub(crate) fn open_journal(&self, directory: &Path) -> io::Result<()> {
        let journal = DeletionJournal::open(directory)?;
        *lock(&self.queue.journal) = Some(journal);
        Ok(())
    }

    pub(crate) fn with_journal<T>(
        &self,
        work: impl FnOnce(&mut DeletionJournal) -> T,
    ) -> Option<T> {
        lock(&self.queue.journal).as_mut().map(work)
    }

    /// Empties the queue, and queues what is stored from now on. Returns the positions, and the number of the deletion, behind
    /// which everything is queued.
    pub(crate) fn open_queue(&self) -> (SeriesPositions, u64) {
        let _order = self.queue.lock_order(u32::MAX);
        *lock(&self.queue.entries) = QueuedEntries {
            is_open: true,
            ..QueuedEntries::default()
        };
        let last = self.with_journal(|journal| journal.last());
        (self.series.positions(), last.unwrap_or_default())
    }

    /// Nothing is queued any more.
    pub(crate) fn close_queue(&self) {
        *lock(&self.queue.entries) = QueuedEntries::default();
    }

    pub(crate) fn take_chunk(&self) -> Option<QueuedChunk> {
        let mut entries = lock(&self.queue.entries);
        let chunk = entries.chunks.pop_front()?;
        entries.bytes -= chunk.bytes.len();
        Some(chunk)
    }

    pub(crate) fn queue_load(&self) -> QueueLoad {
        let entries = lock(&self.queue.entries);
        QueueLoad {
            bytes: entries.bytes,
            since: entries.chunks.front().map(|chunk| chunk.since),
            has_overflowed: entries.has_overflowed,
        }
    }
}

impl CopyQueue {
    fn lock_order(&self, partitions: u32) -> Vec<MutexGuard<'_, ()>> {
        let wanted = self.order.iter().enumerate();
        wanted
            .filter(|(at, _)| partitions & (1 << at) != 0)
            .map(|(_, order)| lock(order))
            .collect()
    }

    fn push_rows<'r, 'p: 'r>(
        &self,
        rows: impl IntoIterator<Item = (DeviceNo, u64, i64, &'r [Point<'p>])>,
    ) {
        let mut entries = lock(&self.entries);
        if !entries.is_open || entries.has_overflowed {
            return;
        }
        for (device, position, ts_ms, points) in rows {
            entries.push(self.max_bytes, |out| {
                out.push(ROW);
                varint::put(out, u64::from(device.0));
                varint::put(out, position);
                varint::put_signed(out, ts_ms);
                varint::put(out, points.len() as u64);
                for point in points {
                    varint::put(out, u64::from(point.key.0));
                    put_value(out, point.value);
                }
            });
        }
    }

    fn push_deletion(&self, deletion: &RecordedDeletion) {
        let mut entries = lock(&self.entries);
        if !entries.is_open || entries.has_overflowed {
            return;
        }
        entries.push(self.max_bytes, |out| {
            out.push(DELETION);
            varint::put(out, deletion.number);
            varint::put(out, u64::from(deletion.device));
            varint::put_signed(out, deletion.from_ms);
            varint::put_signed(out, deletion.to_ms);
            let keys = deletion.keys.as_ref();
            varint::put(out, keys.map_or(0, |keys| keys.len() as u64 + 1));
            for key in keys.into_iter().flatten() {
                varint::put(out, u64::from(*key));
            }
        });
    }
}

impl QueuedEntries {
    /// Adds the entry that `write` writes.
    fn push(&mut self, max_bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let has_room = self.chunks.back();
        if has_room.is_none_or(|chunk| chunk.bytes.len() >= CHUNK_BYTES) {
            self.chunks.push_back(QueuedChunk {
                bytes: Vec::new(),
                since: Instant::now(),
            });
        }
        let chunk = self.chunks.back_mut().expect("a chunk was added");
        let before = chunk.bytes.len();
        write(&mut chunk.bytes);
        self.bytes += chunk.bytes.len() - before;
        if self.bytes > max_bytes {
            // The rest would lack what is missing here.
            self.chunks = VecDeque::new();
            self.bytes = 0;
            self.has_overflowed = true;
        }
    }
}

impl QueuedChunk {
    /// Passes the entries in their order, those of rows with their points.
    pub(crate) fn for_each(&self, each: &mut dyn FnMut(QueuedEntry, &[Point<'_>])) {
        let mut reader = VarintReader::new(&self.bytes);
        let mut points = Vec::new();
        while !reader.is_empty() {
            points.clear();
            let entry = read_entry(&mut reader, &mut points);
            each(
                entry.expect("the entry was written by this process"),
                &points,
            );
        }
    }
}

fn read_entry<'a>(
    reader: &mut VarintReader<'a>,
    points: &mut Vec<Point<'a>>,
) -> Option<QueuedEntry> {
    let number = |reader: &mut VarintReader<'a>| u32::try_from(reader.number()?).ok();
    if reader.byte()? == DELETION {
        return Some(QueuedEntry::Deletion(RecordedDeletion {
            number: reader.number()?,
            device: number(reader)?,
            from_ms: reader.signed()?,
            to_ms: reader.signed()?,
            keys: match reader.number()? {
                0 => None,
                count => Some((1..count).map(|_| number(reader)).collect::<Option<_>>()?),
            },
        }));
    }
    let device = DeviceNo(number(reader)?);
    let position = reader.number()?;
    let ts_ms = reader.signed()?;
    for _ in 0..reader.number_up_to(MAX_POINTS)? {
        let key = KeyId(number(reader)?);
        let value = read_value(reader)?;
        points.push(Point { key, value });
    }
    Some(QueuedEntry::Row {
        device,
        position,
        ts_ms,
    })
}
