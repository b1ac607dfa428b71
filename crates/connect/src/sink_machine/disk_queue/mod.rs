//! A queue in files, for rows that must survive the end of the process.
//!
//! Each sink has a directory. `FIRST.rows` are segments, named after the number of their first row: a head (magic, version, epoch,
//! first number, CRC-32C of these) and records (length, lower half of the number, CRC-32C of number and bytes, bytes). `position`
//! is a file of [marks](disk::HighWaterMarks): the epoch, the number of the first unacknowledged row, the number of the next row,
//! and the latter two as of the last sync. Rows are numbered from 0 within the epoch, a random number drawn when the directory is created.
//!
//! Written rows are in the page cache of the operating system and survive the end of the process. After a power failure the last
//! segment may end in the middle of a record; reading ends there. Rows whose acknowledgement was not written are given out
//! again. Damaged or missing rows, recognised by their numbers, are reported when the queue is opened, and the others
//! are given out. A damaged file is copied to `FIRST.rows.damaged`.
//!
//! It shares the primitives of `disk` with the other logs, but not their code. The message log of `store` may not skip a
//! damaged record, since later ones change state. Here each row stands alone, and what is readable must be sent. The
//! log of `series` and the mailboxes of `devices` write into mapped, preallocated memory. A queue of rows must not
//! occupy disk space while it is empty, and is read back by its own writer at any distance.

mod segment;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use disk::{HighWaterMarks, MarksFileState};

use super::{copy_damaged_file, random_mark};
use crate::row::SinkRow;
use crate::settings::{DiskQueueSettings as Settings, DiskQueueSync};
use segment::{QueueSegment, SegmentOpening};

const MAX_SEGMENT_BYTES: u64 = 16 << 20;
/// Size of one write.
const WRITE_BYTES: usize = 1 << 20;
const SYNC_EVERY: Duration = Duration::from_secs(1);
const POSITION: &str = "position";
/// Indexes of the marks in `position`.
const EPOCH: usize = 0;
const ACKNOWLEDGED: usize = 1;
const NEXT: usize = 2;
const SYNCED: usize = 3;
const MARKS: usize = 4;

pub(crate) struct DiskQueue {
    directory: PathBuf,
    settings: Settings,
    epoch: u64,
    /// From the oldest segment to the one being written.
    segments: VecDeque<QueueSegment>,
    /// Number of the next row to append.
    next: u64,
    /// Number of the first unacknowledged row.
    acknowledged: u64,
    reader: Option<segment::SegmentReader>,
    /// Number of the next row to read.
    read: u64,
    marks: HighWaterMarks,
    /// Size of all segments.
    bytes: u64,
    synced_at: Instant,
    /// Rows were written since the last sync.
    is_dirty: bool,
    /// A segment was created since the directory was last synced: its name may be lost in a power failure.
    has_unsynced_name: bool,
}

/// Content of a directory.
struct DiskQueueExamination {
    epoch: Option<u64>,
    segments: VecDeque<QueueSegment>,
    acknowledged: u64,
    next: u64,
    /// Damaged or missing data, with its file.
    problems: Vec<(PathBuf, String)>,
}

/// Counts the rows waiting in a queue's directory, and reports damage. Changes nothing.
///
/// # Errors
/// I/O errors of the file system, or files of another version.
pub fn check_disk_queue(directory: &Path) -> io::Result<(u64, Vec<String>)> {
    let examined = examine(directory)?;
    let problem = |(path, detail): &(PathBuf, String)| format!("{}: {detail}", path.display());
    let problems = examined.problems.iter().map(problem).collect();
    Ok((examined.next - examined.acknowledged, problems))
}

/// Reads all files of a directory and compares them with the marks.
fn examine(directory: &Path) -> io::Result<DiskQueueExamination> {
    let path = directory.join(POSITION);
    let mut problems = Vec::new();
    let marks = match disk::read_high_water_marks(&path)? {
        MarksFileState::Intact {
            numbers,
            is_same_boot,
        } if numbers.len() == MARKS => Some((numbers, is_same_boot)),
        MarksFileState::Missing => None,
        MarksFileState::Intact { .. } | MarksFileState::Damaged => {
            problems.push((path.clone(), "it is not what was written".to_owned()));
            None
        }
    };
    let paths = segment_files(directory)?;
    if marks.is_none() && problems.is_empty() && !paths.is_empty() {
        problems.push((path, "it is missing".to_owned()));
    }
    if !problems.is_empty() {
        let detail = &mut problems[0].1;
        detail.push_str("; rows already sent are sent again, and lost rows cannot be detected");
    }
    let mut examined = DiskQueueExamination {
        epoch: marks.as_ref().map(|(numbers, _)| numbers[EPOCH]),
        segments: VecDeque::new(),
        acknowledged: 0,
        next: 0,
        problems,
    };
    examined.open_segments(&paths)?;
    let first = examined.segments.front().map(|segment| segment.first);
    let end = examined.segments.back().map(QueueSegment::end);
    let (mut acknowledged, mut next) = (first.unwrap_or(0), end.unwrap_or(0));
    if let Some((numbers, is_same_boot)) = marks {
        acknowledged = numbers[ACKNOWLEDGED];
        let written = match is_same_boot {
            true => numbers[NEXT].max(numbers[SYNCED]),
            // Unsynced data may be lost after a power failure.
            false => numbers[SYNCED],
        };
        next = next.max(written).max(acknowledged);
    }
    examined.find_gaps(directory, acknowledged, next);
    (examined.acknowledged, examined.next) = (acknowledged.min(next), next);
    Ok(examined)
}

impl DiskQueueExamination {
    fn open_segments(&mut self, paths: &[(u64, PathBuf)]) -> io::Result<()> {
        let mut headless = Vec::new();
        for (first, path) in paths {
            match QueueSegment::open(path)? {
                SegmentOpening::Segment(segment) => self.segments.push_back(segment),
                SegmentOpening::NoHead(is_short) => headless.push((*first, path, is_short)),
            }
        }
        // The epoch in the segments is authoritative.
        let of_rows = self.segments.front().map(|segment| segment.epoch);
        self.epoch = self.epoch.or(of_rows);
        if let Some(of_rows) = of_rows.filter(|epoch| Some(*epoch) != self.epoch) {
            let others = self.segments.iter().filter(|s| Some(s.epoch) == self.epoch);
            if others.count() == 0 {
                self.epoch = Some(of_rows);
            }
        }
        let epoch = self.epoch.unwrap_or(0);
        for (first, path, is_short) in headless {
            let detail = "the head of the file is not what was written";
            let segment = match is_short {
                // A crash during its creation: it never contained a row, unless a mark shows it.
                true => continue,
                false => QueueSegment::open_without_head(path, epoch, first)?,
            };
            self.problems.push((path.clone(), detail.to_owned()));
            self.segments.push_back(segment);
        }
        self.segments.retain(|segment| segment.epoch == epoch);
        let segments = self.segments.make_contiguous();
        segments.sort_by_key(|segment| segment.first);
        for segment in segments.iter().filter(|segment| segment.lost > 0) {
            let detail = format!("{} rows in it are damaged and lost", segment.lost);
            self.problems.push((segment.path.clone(), detail));
        }
        Ok(())
    }

    /// Reports expected rows that are in no file.
    fn find_gaps(&mut self, directory: &Path, acknowledged: u64, next: u64) {
        let mut due = acknowledged;
        let starts = self
            .segments
            .iter()
            .map(|s| (s.path.clone(), s.first, s.end()));
        let end = (directory.to_owned(), next, next);
        let mut before = None;
        for (path, first, end) in starts.chain([end]) {
            if first > due {
                let detail = format!(
                    "{} rows behind it are missing, from number {due} on",
                    first - due
                );
                let place = before.clone().unwrap_or_else(|| path.clone());
                self.problems.push((place, detail));
            }
            due = due.max(end);
            before = Some(path);
        }
    }
}

impl DiskQueue {
    /// Opens the queue in a directory, which is created if needed. Damage is logged.
    pub(crate) fn open(directory: &Path, settings: &Settings) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let mut examined = examine(directory)?;
        for (path, problem) in &examined.problems {
            tracing::error!(
                path = %path.display(),
                problem,
                "sink disk queue is damaged; sending readable rows and keeping damaged files as *.damaged"
            );
            copy_damaged_file(path)?;
        }
        let epoch = match examined.epoch {
            Some(epoch) => epoch,
            None => random_mark()?,
        };
        for (first, path) in segment_files(directory)? {
            // The file is not a segment of this epoch and contains no rows of it.
            if !examined.segments.iter().any(|segment| segment.path == path) {
                tracing::warn!(path = %path.display(), first, "file in sink disk queue contains no rows of the queue; removing it");
                fs::remove_file(&path)?;
            }
        }
        for segment in &mut examined.segments {
            if segment.torn > 0 {
                tracing::warn!(
                    path = %segment.path.display(),
                    bytes = segment.torn,
                    "sink disk queue file has a torn end; truncating it"
                );
                segment.truncate_torn_end()?;
            }
        }
        let DiskQueueExamination {
            segments,
            acknowledged,
            next,
            ..
        } = examined;
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        let marks = [
            epoch,
            acknowledged,
            next,
            acknowledged.max(synced(&segments)),
        ];
        let mut queue = Self {
            marks: HighWaterMarks::create(directory, POSITION, &marks)?,
            directory: directory.to_owned(),
            settings: settings.clone(),
            epoch,
            segments,
            next,
            acknowledged,
            reader: None,
            read: acknowledged,
            bytes,
            synced_at: Instant::now(),
            is_dirty: false,
            has_unsynced_name: false,
        };
        queue.remove_acknowledged()?;
        Ok(queue)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of unacknowledged rows.
    pub(crate) fn rows(&self) -> u64 {
        self.next - self.acknowledged
    }

    /// Size of the files in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= self.settings.max_bytes
    }

    pub(crate) fn is_over_double_limit(&self) -> bool {
        self.bytes / 2 >= self.settings.max_bytes
    }

    /// Number of the next row to give out.
    pub(crate) fn next_to_read(&self) -> u64 {
        self.read
    }

    /// Rows not yet given out.
    pub(crate) fn unread(&self) -> u64 {
        self.next - self.read
    }

    /// Appends rows with few writes. Returns how many were written, even if an error followed.
    pub(crate) fn append<'a>(
        &mut self,
        rows: impl Iterator<Item = SinkRow<'a>>,
    ) -> (usize, io::Result<()>) {
        let before = self.next;
        let result = self.append_all(rows);
        ((self.next - before) as usize, result)
    }

    fn append_all<'a>(&mut self, rows: impl Iterator<Item = SinkRow<'a>>) -> io::Result<()> {
        let mut records = Vec::new();
        let mut count = 0;
        for row in rows {
            segment::put_record(&mut records, self.next + count, row.as_bytes());
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
            DiskQueueSync::Always => self.sync(),
            DiskQueueSync::EverySecond if self.synced_at.elapsed() >= SYNC_EVERY => self.sync(),
            DiskQueueSync::EverySecond | DiskQueueSync::Never => Ok(()),
        }
    }

    fn write(&mut self, records: &[u8], count: u64) -> io::Result<()> {
        let limit = MAX_SEGMENT_BYTES.min(self.settings.max_bytes / 4);
        // Numbers of lost rows are not reused: the rows that follow begin a new file.
        let is_open = |s: &QueueSegment| s.bytes < limit && s.end() == self.next;
        let is_open = self.segments.back().is_some_and(is_open);
        if !is_open {
            if self.settings.sync != DiskQueueSync::Never {
                self.sync()?;
            }
            let segment = QueueSegment::create(&self.directory, self.epoch, self.next)?;
            self.has_unsynced_name = true;
            self.bytes += segment.bytes;
            self.segments.push_back(segment);
        }
        let segment = self.segments.back_mut().expect("one was just pushed");
        segment.write(records, count)?;
        self.bytes += records.len() as u64;
        self.next += count;
        self.marks.set(NEXT, self.next);
        self.is_dirty = true;
        Ok(())
    }

    /// Syncs what was written to disk, with the names of new segments: a synced file without its name is lost.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.synced_at = Instant::now();
        if !self.is_dirty {
            return Ok(());
        }
        // More than one with `sync = "never"`.
        for segment in &mut self.segments {
            segment.sync()?;
        }
        if self.has_unsynced_name {
            disk::sync_dir(&self.directory)?;
            self.has_unsynced_name = false;
        }
        self.marks.set(SYNCED, self.next);
        self.is_dirty = false;
        Ok(())
    }

    /// Reads rows with their numbers, until a number of rows or bytes is reached.
    pub(crate) fn read(
        &mut self,
        max_rows: usize,
        max_bytes: usize,
        mut each: impl FnMut(u64, SinkRow<'_>),
    ) -> io::Result<()> {
        let (mut rows, mut bytes) = (0, 0);
        while rows < max_rows && bytes < max_bytes && self.read < self.next {
            let mut reader = match self.reader.take() {
                Some(reader) => reader,
                None => match self.open_reader()? {
                    Some(reader) => reader,
                    // The last rows are lost, as reported when the queue was opened.
                    None => {
                        self.read = self.next;
                        break;
                    }
                },
            };
            match reader.next()? {
                Some((number, row)) => {
                    rows += 1;
                    bytes += row.as_bytes().len();
                    each(number, row);
                    self.read = number + 1;
                    self.reader = Some(reader);
                }
                // The next segment begins with the next number, unless rows of a damaged segment were lost.
                None => {
                    let behind = self.segments.iter().map(|segment| segment.first);
                    let next = behind.filter(|&first| first > reader.first()).min();
                    match next {
                        Some(first) => self.read = self.read.max(first),
                        None => {
                            let lost = self.next - self.read;
                            tracing::error!(
                                directory = %self.directory.display(), lost, "rows of sink disk queue could not be read"
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

    fn open_reader(&self) -> io::Result<Option<segment::SegmentReader>> {
        let mut segments = self.segments.iter();
        // Rows before it may be missing.
        let Some(segment) = segments.find(|s| self.read < s.end()) else {
            return Ok(None);
        };
        segment.reader(self.read).map(Some)
    }

    /// Acknowledges all rows before this number; they are not given out again, even after a restart.
    pub(crate) fn acknowledge(&mut self, before: u64) -> io::Result<()> {
        if before <= self.acknowledged {
            return Ok(());
        }
        self.acknowledged = before.min(self.next);
        self.marks.set(ACKNOWLEDGED, self.acknowledged);
        self.remove_acknowledged()
    }

    fn remove_acknowledged(&mut self) -> io::Result<()> {
        while let Some(segment) = self.segments.front() {
            let is_last = self.segments.len() == 1;
            let is_done = segment.first + segment.rows <= self.acknowledged;
            // The last segment is removed only when it is large enough: one file per batch would cost more.
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

/// Whether a directory contains files of a queue. Every queue that was opened once has some.
pub(crate) fn has_files(directory: &Path) -> io::Result<bool> {
    Ok(directory.join(POSITION).exists() || !segment_files(directory)?.is_empty())
}

/// Segment files by the number of their first row.
fn segment_files(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let is_segment = path.extension().is_some_and(|ending| ending == "rows");
        let first = path
            .file_stem()
            .and_then(|name| name.to_str()?.parse().ok());
        if let (true, Some(first)) = (is_segment, first) {
            found.push((first, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Rows known to be synced: earlier files were synced when the next one was begun.
fn synced(segments: &VecDeque<QueueSegment>) -> u64 {
    let before_last = segments.len().checked_sub(2);
    before_last.map_or(0, |at| segments[at].end())
}

#[cfg(test)]
mod tests;
