//! A queue in files, for rows that have to survive the end of the process.
//!
//! A folder per sink. `FIRST.rows` are segments, named after the number of their first row: a head (magic, version, epoch,
//! first number, CRC-32C of these) and records (length, CRC-32C of the bytes, bytes). `position` holds the epoch and the
//! number of the first row that is not acknowledged, with a CRC, written in place. A row is numbered from 0 within the
//! epoch, a random number that is drawn when the folder is made.
//!
//! Whatever is written is in the operating system's hands: the end of the process loses nothing of it. After a loss of
//! power the last segment may end in the middle of a record; reading ends there. Rows whose acknowledgement had not been
//! written are given out again.

mod segment;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom as _, SystemRandom};

use crate::row::Row;
use crate::settings::{DiskQueue as Settings, Sync};
use segment::{Reader, Segment};

const MAX_SEGMENT_BYTES: u64 = 16 << 20;
/// What is written at once.
const WRITE_BYTES: usize = 1 << 20;
const SYNC_EVERY: Duration = Duration::from_secs(1);
const POSITION_BYTES: usize = 20;

pub(crate) struct DiskQueue {
    directory: PathBuf,
    settings: Settings,
    epoch: u64,
    /// From the oldest to the one that is written.
    segments: VecDeque<Segment>,
    /// Of the next row that is appended.
    next: u64,
    /// Of the first row that is not acknowledged.
    acknowledged: u64,
    reader: Option<Reader>,
    /// Of the next row that is read.
    read: u64,
    position: File,
    /// Of all segments.
    bytes: u64,
    synced_at: Instant,
    is_dirty: bool,
}

impl DiskQueue {
    /// Opens the queue in a folder, which is made if it is not there.
    pub(crate) fn open(directory: &Path, settings: &Settings) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let path = directory.join("position");
        let position = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        let told = read_position(&position)?;
        let mut segments = find_segments(directory)?;
        // Without a segment nothing waits; with one its epoch is what counts.
        let epoch = match (segments.front(), told) {
            (Some(segment), _) => segment.epoch,
            (None, Some((epoch, _))) => epoch,
            (None, None) => random()?,
        };
        segments.retain(|segment| segment.epoch == epoch);
        let told = told
            .filter(|(of, _)| *of == epoch)
            .map(|(_, number)| number);
        let first = segments.front().map_or(0, |segment| segment.first);
        let next = segments
            .back()
            .map_or(told.unwrap_or(0), |s| s.first + s.rows);
        let acknowledged = told.unwrap_or(first).clamp(first, next.max(first));
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        let mut queue = Self {
            directory: directory.to_owned(),
            settings: settings.clone(),
            epoch,
            segments,
            next,
            acknowledged,
            reader: None,
            read: acknowledged,
            position,
            bytes,
            synced_at: Instant::now(),
            is_dirty: false,
        };
        queue.write_position()?;
        queue.remove_acknowledged()?;
        Ok(queue)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Rows that are not acknowledged.
    pub(crate) fn rows(&self) -> u64 {
        self.next - self.acknowledged
    }

    /// Of the files.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= self.settings.max_bytes
    }

    pub(crate) fn is_full_twice(&self) -> bool {
        self.bytes / 2 >= self.settings.max_bytes
    }

    /// The number of the next row that is given out.
    pub(crate) fn next_to_read(&self) -> u64 {
        self.read
    }

    /// Rows that were not given out yet.
    pub(crate) fn unread(&self) -> u64 {
        self.next - self.read
    }

    /// Appends rows with few writes. Says how many of them were written, also if there was an error then.
    pub(crate) fn append<'a>(
        &mut self,
        rows: impl Iterator<Item = Row<'a>>,
    ) -> (usize, io::Result<()>) {
        let before = self.next;
        let result = self.append_all(rows);
        ((self.next - before) as usize, result)
    }

    fn append_all<'a>(&mut self, rows: impl Iterator<Item = Row<'a>>) -> io::Result<()> {
        let mut records = Vec::new();
        let mut count = 0;
        for row in rows {
            segment::put_record(&mut records, row.as_bytes());
            count += 1;
            if records.len() >= WRITE_BYTES {
                self.write(&records, count)?;
                records.clear();
                count = 0;
            }
        }
        if count > 0 {
            self.write(&records, count)?;
        }
        match self.settings.sync {
            Sync::Always => self.sync(),
            Sync::EverySecond if self.synced_at.elapsed() >= SYNC_EVERY => self.sync(),
            Sync::EverySecond | Sync::Never => Ok(()),
        }
    }

    fn write(&mut self, records: &[u8], count: u64) -> io::Result<()> {
        let limit = MAX_SEGMENT_BYTES.min(self.settings.max_bytes / 4);
        let is_open = self.segments.back().is_some_and(|s| s.bytes < limit);
        if !is_open {
            if self.settings.sync != Sync::Never {
                self.sync()?;
            }
            let segment = Segment::make(&self.directory, self.epoch, self.next)?;
            self.bytes += segment.bytes;
            self.segments.push_back(segment);
        }
        let segment = self.segments.back_mut().expect("one was just pushed");
        segment.write(records, count)?;
        self.bytes += records.len() as u64;
        self.next += count;
        self.is_dirty = true;
        Ok(())
    }

    /// Makes sure that what was written is on the disk.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.synced_at = Instant::now();
        if let Some(segment) = self.segments.back_mut().filter(|_| self.is_dirty) {
            segment.sync()?;
        }
        self.is_dirty = false;
        Ok(())
    }

    /// Reads rows with their numbers, until so many rows or bytes were read.
    pub(crate) fn read(
        &mut self,
        max_rows: usize,
        max_bytes: usize,
        mut each: impl FnMut(u64, Row<'_>),
    ) -> io::Result<()> {
        let (mut rows, mut bytes) = (0, 0);
        while rows < max_rows && bytes < max_bytes && self.read < self.next {
            let mut reader = match self.reader.take() {
                Some(reader) => reader,
                None => match self.open_reader()? {
                    Some(reader) => reader,
                    None => break,
                },
            };
            match reader.next()? {
                Some(row) => {
                    rows += 1;
                    bytes += row.as_bytes().len();
                    each(self.read, row);
                    self.read += 1;
                    self.reader = Some(reader);
                }
                // The next segment begins with the next number, unless rows were lost with a damaged one.
                None => {
                    let behind = self.segments.iter().map(|segment| segment.first);
                    let next = behind.filter(|&first| first > reader.first()).min();
                    match next {
                        Some(first) => self.read = self.read.max(first),
                        None => {
                            let lost = self.next - self.read;
                            tracing::error!(
                                directory = %self.directory.display(), lost, "rows of a disk queue cannot be read"
                            );
                            self.read = self.next;
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn open_reader(&self) -> io::Result<Option<Reader>> {
        let mut segments = self.segments.iter();
        let Some(segment) = segments.find(|s| s.first <= self.read && self.read < s.first + s.rows)
        else {
            return Ok(None);
        };
        let mut reader = segment.reader()?;
        for _ in segment.first..self.read {
            reader.next()?;
        }
        Ok(Some(reader))
    }

    /// Everything before this number will not be given out again, also after a restart.
    pub(crate) fn acknowledge(&mut self, before: u64) -> io::Result<()> {
        if before <= self.acknowledged {
            return Ok(());
        }
        self.acknowledged = before.min(self.next);
        self.write_position()?;
        self.remove_acknowledged()
    }

    fn write_position(&mut self) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(POSITION_BYTES);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.acknowledged.to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        self.position.write_all_at(&bytes, 0)
    }

    fn remove_acknowledged(&mut self) -> io::Result<()> {
        while let Some(segment) = self.segments.front() {
            let is_last = self.segments.len() == 1;
            let is_done = segment.first + segment.rows <= self.acknowledged;
            // The last one goes when it is large enough to be worth it: a file per batch would cost more.
            if !is_done || (is_last && segment.bytes < 1 << 20) {
                return Ok(());
            }
            fs::remove_file(&segment.path)?;
            self.bytes -= segment.bytes;
            self.segments.pop_front();
        }
        Ok(())
    }
}

fn find_segments(directory: &Path) -> io::Result<VecDeque<Segment>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "rows")
        {
            match Segment::open(&path)? {
                Some(segment) => found.push(segment),
                None => {
                    // Its head was never whole: no row was ever in it.
                    tracing::warn!(path = %path.display(), "a file of a disk queue has no head; it is removed");
                    fs::remove_file(&path)?;
                }
            }
        }
    }
    found.sort_by_key(|segment| segment.first);
    Ok(found.into())
}

fn read_position(file: &File) -> io::Result<Option<(u64, u64)>> {
    let mut bytes = [0; POSITION_BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let number = |at: usize| {
        let bytes = bytes[at..at + 8].try_into().expect("it is 8 bytes long");
        u64::from_le_bytes(bytes)
    };
    let crc = u32::from_le_bytes(bytes[16..].try_into().expect("it is 4 bytes long"));
    Ok((crc == crc32c::crc32c(&bytes[..16])).then(|| (number(0), number(8))))
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let drawn = SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::RowWriter;

    fn settings() -> Settings {
        Settings {
            max_bytes: 1 << 20,
            sync: Sync::Never,
        }
    }

    fn open(directory: &Path) -> DiskQueue {
        DiskQueue::open(directory, &settings()).unwrap()
    }

    fn append(queue: &mut DiskQueue, numbers: std::ops::Range<i64>) {
        let rows: Vec<Vec<u8>> = numbers
            .map(|n| {
                let mut bytes = Vec::new();
                let mut row = RowWriter::new(&mut bytes);
                row.int("n", n);
                row.text("filler", &"x".repeat(100));
                bytes
            })
            .collect();
        let (count, result) = queue.append(rows.iter().map(|bytes| Row::from_bytes(bytes)));
        result.unwrap();
        assert_eq!(count, rows.len());
    }

    fn read(queue: &mut DiskQueue, max: usize) -> Vec<i64> {
        let mut read = Vec::new();
        queue
            .read(max, usize::MAX, |number, row| {
                let Some(crate::Value::Int(n)) = row.get("n") else {
                    panic!("no number in row {number}")
                };
                read.push(n);
            })
            .unwrap();
        read
    }

    #[test]
    fn what_was_not_acknowledged_is_there_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = open(directory.path());
        append(&mut queue, 0..10);
        assert_eq!(read(&mut queue, 6), [0, 1, 2, 3, 4, 5]);
        queue.acknowledge(4).unwrap();
        let epoch = queue.epoch();
        drop(queue);
        let mut queue = open(directory.path());
        assert_eq!((queue.epoch(), queue.rows()), (epoch, 6));
        append(&mut queue, 10..12);
        assert_eq!(read(&mut queue, 99), (4..12).collect::<Vec<_>>());
        queue.acknowledge(12).unwrap();
        drop(queue);
        assert_eq!(open(directory.path()).rows(), 0);
    }

    #[test]
    fn numbers_go_on_when_all_segments_are_gone() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = open(directory.path());
        append(&mut queue, 0..20_000);
        read(&mut queue, 20_000);
        queue.acknowledge(20_000).unwrap();
        assert!(queue.bytes() < 2 << 20, "{}", queue.bytes());
        drop(queue);
        let mut queue = open(directory.path());
        append(&mut queue, 0..1);
        let mut number = None;
        queue.read(1, 1, |n, _| number = Some(n)).unwrap();
        assert_eq!(number, Some(20_000));
    }

    #[test]
    fn segments_go_as_they_are_acknowledged() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = open(directory.path());
        let mut appended = 0;
        while !queue.is_full() {
            append(&mut queue, appended..appended + 100);
            appended += 100;
        }
        assert!(queue.segments.len() >= 4);
        let full = queue.bytes();
        let half = appended / 2;
        assert_eq!(read(&mut queue, half as usize).len(), half as usize);
        queue.acknowledge(half as u64).unwrap();
        assert!(queue.bytes() < full && !queue.is_full());
        assert_eq!(read(&mut queue, usize::MAX).len() as i64, appended - half);
    }

    /// Whatever the last write left of a record, those before it are read and new ones are appended behind them.
    #[test]
    fn a_torn_end_costs_only_what_was_torn() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = open(directory.path());
        append(&mut queue, 0..3);
        let path = queue.segments[0].path.clone();
        drop(queue);
        let whole = fs::read(&path).unwrap();
        let start_of_last = whole.len() - (whole.len() - segment::HEAD_BYTES) / 3;
        for end in (start_of_last..whole.len()).step_by(7) {
            fs::write(&path, &whole[..end]).unwrap();
            let mut queue = open(directory.path());
            assert_eq!(queue.rows(), 2, "cut at {end}");
            append(&mut queue, 7..8);
            assert_eq!(read(&mut queue, 9), [0, 1, 7], "cut at {end}");
        }
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert_eq!(open(directory.path()).rows(), 2);
    }

    #[test]
    fn a_damaged_position_repeats_rows_and_loses_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut queue = open(directory.path());
        append(&mut queue, 0..5);
        read(&mut queue, 5);
        queue.acknowledge(3).unwrap();
        drop(queue);
        fs::write(directory.path().join("position"), [7; 20]).unwrap();
        assert_eq!(read(&mut open(directory.path()), 9), [0, 1, 2, 3, 4]);
    }
}
