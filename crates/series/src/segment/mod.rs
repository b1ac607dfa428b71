//! Segment files: rows of one partition and one time window, sorted by device and time, immutable.
//!
//! `TGSSEG1` and a zero byte · groups (`codec/row_group.rs`) · index blocks · footer · length of the footer
//! (4), its CRC32C (4), `TGSSEG1` and a zero byte. An index block describes up to 128 groups: difference of
//! the device to the one before, length of the group, first time from the window's begin, last time from the
//! first, rows. Its CRC32C ends it. The footer is kept in memory: the metadata of the file, and for each
//! index block its first device and its offset.
//!
//! A file is written under a temporary name; once it is forced to disk, it gets its final name. It names the
//! files it replaces: if a crash leaves them, the next start removes them.

mod reader;
mod writer;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{self, AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock};

use disk::varint::VarintReader;

use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::lock::lock;

pub(crate) use reader::SegmentReader;
pub(crate) use writer::SegmentWriter;

const MAGIC: &[u8; 8] = b"TGSSEG1\0";
const TAIL: usize = 16;
const MAX_FOOTER: u64 = 256 << 20;

/// Metadata of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SegmentMeta {
    pub(crate) partition: usize,
    /// The number of its window: times divided by the window's length.
    pub(crate) window: i64,
    /// Number among all files ever written; part of the file name.
    pub(crate) id: u64,
    /// The highest row number in it; among files of a window, the higher one is younger.
    pub(crate) last_lsn: u64,
    /// Up to this row, all rows of the partition are in segment files once this file exists.
    pub(crate) flushed_lsn: u64,
    pub(crate) rows: u64,
    pub(crate) points: u64,
    /// Deletions up to this number were applied.
    pub(crate) deletions: u64,
    /// Age of its window when policies were last applied, and the revision of these policies; 0 and 0 if
    /// never.
    pub(crate) policy_age_ms: u64,
    pub(crate) policy_revision: u64,
    pub(crate) replaces: Vec<u64>,
}

/// Location and extent of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupLocation {
    pub(crate) device: u32,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) first_ts: i64,
    pub(crate) last_ts: i64,
    pub(crate) rows: u32,
}

struct IndexBlock {
    first_device: u32,
    offset: u64,
    len: u32,
}

pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) meta: SegmentMeta,
    pub(crate) bytes: u64,
    index: Vec<IndexBlock>,
    last_device: u32,
    pub(crate) window_begin: i64,
    /// Up to this deletion, the file is known to contain nothing deleted.
    pub(crate) checked_deletions: AtomicU64,
    /// Like `policy_age_ms` and `policy_revision`, when a check showed that nothing is to be done.
    pub(crate) checked_policies: Mutex<(u64, u64)>,
    /// The file is obsolete; removed when the last reader is done.
    pub(crate) is_gone: AtomicBool,
    /// The file until it is known to be on disk: it has its temporary name, and a start would remove it.
    uncommitted_file: Mutex<Option<File>>,
    /// Forcing it to disk has failed.
    pub(crate) has_failed: AtomicBool,
    /// Size of its groups by owner of their device, once it was counted.
    pub(crate) bytes_by_owner: OnceLock<Box<[(u16, u64)]>>,
}

fn unfinished_path(path: &Path) -> PathBuf {
    path.with_extension("new")
}

impl Segment {
    pub(crate) fn is_committed(&self) -> bool {
        lock(&self.uncommitted_file).is_none()
    }

    /// Opens the file under its present name.
    pub(crate) fn open_file(&self) -> Result<File, SeriesError> {
        let unsettled = lock(&self.uncommitted_file);
        let path = match *unsettled {
            Some(_) => unfinished_path(&self.path),
            None => self.path.clone(),
        };
        File::open(&path).map_err(io_error("open", &path))
    }

    /// Forces it to disk.
    pub(crate) fn sync(&self) -> Result<(), SeriesError> {
        let file = lock(&self.uncommitted_file).as_ref().map(File::try_clone);
        let Some(file) = file else { return Ok(()) };
        let result = file.and_then(|file| file.sync_all());
        if result.is_err() {
            self.has_failed.store(true, atomic::Ordering::Release);
        }
        result.map_err(io_error("force to disk", &self.path))
    }

    /// Gives the file its final name: a start finds it from then on, once the directory is on disk.
    pub(crate) fn assign_final_name(&self) -> Result<(), SeriesError> {
        let mut unsettled = lock(&self.uncommitted_file);
        if unsettled.is_some() {
            let from = unfinished_path(&self.path);
            fs::rename(&from, &self.path).map_err(io_error("rename", &from))?;
            *unsettled = None;
        }
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.is_gone.load(atomic::Ordering::Acquire) {
            return;
        }
        let removed = match self.is_committed() {
            true => fs::remove_file(&self.path),
            false => fs::remove_file(unfinished_path(&self.path)),
        };
        if let Err(error) = removed {
            tracing::warn!(%error, path = %self.path.display(), "removal of a replaced telemetry segment failed; the next start removes it");
        }
    }
}

impl SegmentMeta {
    /// The name of a file of the same partition and window.
    pub(crate) fn file_name_for_id(&self, id: u64) -> String {
        Self::file_name(self.partition, self.window, id)
    }

    pub(crate) fn file_name(partition: usize, window: i64, id: u64) -> String {
        format!("{partition}-{window}-{id}.seg")
    }
}

fn damaged_error(path: &Path, offset: u64, detail: &'static str) -> SeriesError {
    SeriesError::Damaged {
        path: path.to_owned(),
        offset,
        detail,
    }
}

impl Segment {
    /// Reads the metadata of a file.
    pub(crate) fn open(path: PathBuf) -> Result<Self, SeriesOpenError> {
        let file = File::open(&path).map_err(io_error("open", &path))?;
        let bytes = file.metadata().map_err(io_error("look at", &path))?.len();
        let refuse = |offset, detail: &str| SeriesOpenError::Damaged {
            path: path.clone(),
            offset,
            detail: detail.to_owned(),
        };
        if bytes < (MAGIC.len() + TAIL) as u64 {
            return Err(refuse(0, "it is shorter than any segment file"));
        }
        let mut head = [0; MAGIC.len()];
        file.read_exact_at(&mut head, 0)
            .map_err(io_error("read", &path))?;
        if &head != MAGIC {
            return Err(refuse(
                0,
                "its head is not that of a segment file of this version",
            ));
        }
        let mut tail = [0; TAIL];
        let tail_at = bytes - TAIL as u64;
        file.read_exact_at(&mut tail, tail_at)
            .map_err(io_error("read", &path))?;
        let len = u64::from(u32::from_le_bytes(tail[..4].try_into().expect("4 bytes")));
        let crc = u32::from_le_bytes(tail[4..8].try_into().expect("4 bytes"));
        if &tail[8..] != MAGIC || len > MAX_FOOTER || len + (MAGIC.len() + TAIL) as u64 > bytes {
            return Err(refuse(
                tail_at,
                "its end is not that of a segment file of this version",
            ));
        }
        let mut footer = vec![0; len as usize];
        let footer_at = tail_at - len;
        file.read_exact_at(&mut footer, footer_at)
            .map_err(io_error("read", &path))?;
        if crc32c::crc32c(&footer) != crc {
            return Err(refuse(footer_at, "its footer is damaged"));
        }
        let segment = read_footer(&footer, path.clone(), bytes);
        segment.ok_or_else(|| refuse(footer_at, "its footer has invalid content"))
    }
}

fn read_footer(footer: &[u8], path: PathBuf, bytes: u64) -> Option<Segment> {
    let mut reader = VarintReader::new(footer);
    let partition = reader.number_up_to(crate::partitioning::PARTITION_COUNT - 1)?;
    let mut next = || reader.number();
    let (id, last_lsn, flushed_lsn, rows, points) = (next()?, next()?, next()?, next()?, next()?);
    let (deletions, treated_age_ms, treated_by) = (next()?, next()?, next()?);
    let window = reader.signed()?;
    let window_begin = reader.signed()?;
    let count = reader.number_up_to(footer.len())?;
    let replaces = (0..count).map(|_| reader.number()).collect::<Option<_>>()?;
    let last_device = u32::try_from(reader.number()?).ok()?;
    let count = reader.number_up_to(footer.len())?;
    let mut block = || {
        Some(IndexBlock {
            first_device: u32::try_from(reader.number()?).ok()?,
            offset: reader.number()?,
            len: u32::try_from(reader.number()?).ok()?,
        })
    };
    let index: Vec<_> = (0..count).map(|_| block()).collect::<Option<_>>()?;
    let is_inside = |block: &IndexBlock| {
        block
            .offset
            .checked_add(u64::from(block.len))
            .is_some_and(|end| end <= bytes)
    };
    index.iter().all(is_inside).then_some(Segment {
        path,
        meta: SegmentMeta {
            partition,
            window,
            id,
            last_lsn,
            flushed_lsn,
            rows,
            points,
            deletions,
            policy_age_ms: treated_age_ms,
            policy_revision: treated_by,
            replaces,
        },
        bytes,
        index,
        last_device,
        window_begin,
        checked_deletions: AtomicU64::new(deletions),
        checked_policies: Mutex::new((treated_age_ms, treated_by)),
        is_gone: AtomicBool::new(false),
        uncommitted_file: Mutex::new(None),
        has_failed: AtomicBool::new(false),
        bytes_by_owner: OnceLock::new(),
    })
}
