//! High-water marks of the message log in a file outside it, so that a lost beginning or end is noticed.
//!
//! The log itself cannot show that its first segment, its last frames or all of it are missing. The file `log.marks` beside it
//! records the first segment of the log, the last synced frame, and the last written frame. The last written frame counts only
//! within the boot in which it was set, because a power failure may lose what was not synced. The file also records whether
//! a file `queues` exists; without it, queued messages in another server would be forgotten.
//!
//! Invariants: a mark is set after the fact that it records, and the mark of the first segment is durable before an older
//! segment is removed. A mark therefore never demands what a crash or a power failure may take.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use disk::{HighWaterMarks, MAX_HIGH_WATER_MARK, MarksFileState, read_high_water_marks};

use crate::error::{StoreError, io_error};

pub(crate) const FILE: &str = "log.marks";
/// The number of the oldest segment; 0: the log may be empty.
const FIRST_SEGMENT: usize = 0;
const SYNCED_LSN: usize = 1;
const WRITTEN_LSN: usize = 2;
/// Describes the file `queues`: 0 if there is none, otherwise its CRC32C plus one.
const QUEUES_OWNER: usize = 3;
const MARKS: usize = 4;

/// The minimum that a log must contain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogMark {
    /// The log begins with this segment or an older one; `None`: it may have no segment.
    pub(crate) first_segment: Option<u32>,
    /// The log continues at least to this frame.
    pub(crate) last_lsn: u64,
}

/// The content of the file of marks.
#[derive(Debug)]
pub(crate) struct LogMarkReading {
    pub(crate) mark: LogMark,
    /// The CRC32C of the owner name of queues in another server, if there is one.
    pub(crate) queues_owner: Option<u32>,
    /// Why the file could not be used.
    pub(crate) problem: Option<String>,
}

/// Reads the marks of the store in `dir`.
pub(crate) fn read(dir: &Path) -> Result<LogMarkReading, StoreError> {
    let path = dir.join(FILE);
    let unknown = |what: &str| LogMarkReading {
        mark: LogMark::default(),
        queues_owner: None,
        problem: Some(format!(
            "{} {what}: a lost beginning or end of the message log cannot be detected",
            path.display()
        )),
    };
    let reading = read_high_water_marks(&path).map_err(io_error("read", &path))?;
    let (numbers, is_same_boot) = match reading {
        MarksFileState::Missing => return Ok(unknown("is missing")),
        MarksFileState::Damaged => return Ok(unknown("is damaged")),
        MarksFileState::Intact {
            numbers,
            is_same_boot,
        } => (numbers, is_same_boot),
    };
    let &[first, synced_lsn, written_lsn, queues_owner] = &numbers[..] else {
        return Ok(unknown("is not a file of marks of a log"));
    };
    let mark = match u32::try_from(first) {
        Ok(first) if first > 0 => LogMark {
            first_segment: Some(first),
            last_lsn: if is_same_boot {
                written_lsn.max(synced_lsn)
            } else {
                synced_lsn
            },
        },
        _ => LogMark::default(),
    };
    Ok(LogMarkReading {
        mark,
        queues_owner: queues_owner.checked_sub(1).map(|crc| crc as u32),
        problem: None,
    })
}

/// The marks of an open log.
pub(crate) struct LogMarksFile {
    marks: HighWaterMarks,
    path: PathBuf,
}

impl LogMarksFile {
    /// Writes the marks of a log that is synced up to its end.
    pub(crate) fn create(
        dir: &Path,
        mark: LogMark,
        queues_owner: Option<u32>,
    ) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let owner = queues_owner.map_or(0, |crc| u64::from(crc) + 1);
        let first = u64::from(mark.first_segment.unwrap_or(0));
        let last = mark.last_lsn.min(MAX_HIGH_WATER_MARK);
        let numbers: [u64; MARKS] = [first, last, last, owner];
        let marks =
            HighWaterMarks::create(dir, FILE, &numbers).map_err(io_error("write", &path))?;
        Ok(Self { marks, path })
    }

    pub(crate) fn set_first_segment(&self, segment: Option<u32>) {
        self.marks
            .set(FIRST_SEGMENT, u64::from(segment.unwrap_or(0)));
    }

    pub(crate) fn set_queues_owner(&self, crc: u32) {
        self.marks.set(QUEUES_OWNER, u64::from(crc) + 1);
    }

    pub(crate) fn set_synced(&self, lsn: u64) {
        self.marks.set(SYNCED_LSN, lsn.min(MAX_HIGH_WATER_MARK));
    }

    pub(crate) fn set_written(&self, lsn: u64) {
        self.marks.set(WRITTEN_LSN, lsn.min(MAX_HIGH_WATER_MARK));
    }

    /// Syncs the marks to disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_data()
    }
}
