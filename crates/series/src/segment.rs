//! Segment files: rows of one partition and one window of time, sorted by device and time, never changed.
//!
//! `TGSSEG1` and a zero byte · groups (`codec/group.rs`) · blocks of the index · footer · length of the footer (4), its CRC32C
//! (4), `TGSSEG1` and a zero byte. A block of the index has up to 128 groups: how much greater the device is than the one
//! before, length of the group, first time from the window's begin, last time from the first, rows; its CRC32C ends it. The
//! footer is kept in memory: what the file is, and of each index block the first device and its place.
//!
//! A file is written under another name, forced to disk and renamed. It names the files it replaces: those that a crash left
//! behind are removed at the next start.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{self, AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use crate::codec::group;
use crate::error::{Error, OpenError, io_error};
use crate::point::KeyId;
use crate::table::Table;
use crate::varint::{Reader, put, put_signed};

const MAGIC: &[u8; 8] = b"TGSSEG1\0";
const TAIL: usize = 16;
const INDEX_GROUPS: usize = 128;
const MAX_FOOTER: u64 = 256 << 20;
/// Texts in one group at most, unless one row has more.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// What a file is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) partition: usize,
    /// The number of its window: times divided by the window's length.
    pub(crate) window: i64,
    /// Of all files ever written; the name.
    pub(crate) id: u64,
    /// Rows in it were appended with numbers up to this one; among files of a window the higher one is younger.
    pub(crate) last_lsn: u64,
    /// All rows of the partition up to this one are in segment files when this one is.
    pub(crate) flushed_lsn: u64,
    pub(crate) rows: u64,
    pub(crate) points: u64,
    /// Deletions up to this number were applied.
    pub(crate) deletions: u64,
    /// How long its window was over when policies were last applied, and which policies these were; 0 and 0 if never.
    pub(crate) treated_age_ms: u64,
    pub(crate) treated_by: u64,
    pub(crate) replaces: Vec<u64>,
}

/// Where a group is and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
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
    pub(crate) meta: Meta,
    pub(crate) bytes: u64,
    index: Vec<IndexBlock>,
    last_device: u32,
    pub(crate) window_begin: i64,
    /// Up to which deletion it was found to hold nothing that is deleted.
    pub(crate) cleared: AtomicU64,
    /// As `treated_age_ms` and `treated_by`, when looking showed that nothing is to be done.
    pub(crate) looked_at: Mutex<(u64, u64)>,
    /// Nobody needs it any more; removed when the last reader is done.
    pub(crate) is_gone: AtomicBool,
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.is_gone.load(atomic::Ordering::Acquire)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "a replaced telemetry segment stays until the next start");
        }
    }
}

impl Meta {
    /// The name of a file of the same partition and window.
    pub(crate) fn name_of(&self, id: u64) -> String {
        format!("{}-{}-{id}.seg", self.partition, self.window)
    }
}

fn damaged(path: &Path, offset: u64, detail: &'static str) -> Error {
    Error::Damaged {
        path: path.to_owned(),
        offset,
        detail,
    }
}

/// Writes a file; groups come sorted by device and time.
pub(crate) struct Writer {
    path: PathBuf,
    unfinished: PathBuf,
    file: BufWriter<File>,
    offset: u64,
    window_begin: i64,
    pub(crate) meta: Meta,
    block: Vec<u8>,
    in_block: usize,
    block_first: u32,
    last_device: u32,
    blocks: Vec<u8>,
    index: Vec<IndexBlock>,
    buffer: Vec<u8>,
}

impl Writer {
    pub(crate) fn create(dir: &Path, meta: Meta, window_ms: i64) -> Result<Self, Error> {
        let path = dir.join(meta.name_of(meta.id));
        let unfinished = path.with_extension("new");
        let file = File::create(&unfinished).map_err(io_error("make", &unfinished))?;
        let mut file = BufWriter::with_capacity(256 << 10, file);
        file.write_all(MAGIC)
            .map_err(io_error("write", &unfinished))?;
        Ok(Self {
            window_begin: meta.window.saturating_mul(window_ms),
            path,
            unfinished,
            file,
            offset: MAGIC.len() as u64,
            meta,
            block: Vec::new(),
            in_block: 0,
            block_first: 0,
            last_device: 0,
            blocks: Vec::new(),
            index: Vec::new(),
            buffer: Vec::new(),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.meta.rows == 0
    }

    /// Appends sorted rows of a device, none of them before those it has already.
    pub(crate) fn put(
        &mut self,
        device: u32,
        table: &Table,
        interval_ms: i64,
    ) -> Result<(), Error> {
        let rows = table.ts.len();
        let texts: usize = table
            .columns
            .iter()
            .map(|column| column.values.text_bytes())
            .sum();
        let most = match texts / MAX_TEXT_BYTES {
            0 => group::MAX_ROWS,
            parts => (rows / (parts + 1)).clamp(1, group::MAX_ROWS),
        };
        // Groups of about the same size rather than a small last one.
        let size = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
        let mut start = 0;
        while start < rows {
            let end = (start + size).min(rows);
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.clear();
            let (first_ts, last_ts) = (table.ts[start], table.ts[end - 1]);
            let points = if start == 0 && end == rows {
                group::encode(&mut buffer, table, interval_ms);
                table.points()
            } else {
                let part = table.slice(start..end);
                group::encode(&mut buffer, &part, interval_ms);
                part.points()
            };
            let place = Place {
                device,
                offset: 0,
                len: buffer.len() as u32,
                first_ts,
                last_ts,
                rows: (end - start) as u32,
            };
            let put = self.put_group(&place, points, &buffer);
            self.buffer = buffer;
            put?;
            start = end;
        }
        Ok(())
    }

    /// Appends a group as it is.
    pub(crate) fn put_group(
        &mut self,
        place: &Place,
        points: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        debug_assert!(
            place.device >= self.last_device || self.meta.rows == 0,
            "devices ascend"
        );
        self.file
            .write_all(bytes)
            .map_err(io_error("write", &self.unfinished))?;
        if self.in_block == 0 {
            self.block_first = place.device;
            self.last_device = place.device;
            put(&mut self.block, self.offset);
        }
        put(&mut self.block, u64::from(place.device - self.last_device));
        put(&mut self.block, bytes.len() as u64);
        put_signed(
            &mut self.block,
            place.first_ts.wrapping_sub(self.window_begin),
        );
        put(
            &mut self.block,
            place.last_ts.wrapping_sub(place.first_ts) as u64,
        );
        put(&mut self.block, u64::from(place.rows));
        self.last_device = place.device;
        self.offset += bytes.len() as u64;
        self.meta.rows += u64::from(place.rows);
        self.meta.points += points;
        self.in_block += 1;
        if self.in_block == INDEX_GROUPS {
            self.end_block();
        }
        Ok(())
    }

    fn end_block(&mut self) {
        if self.in_block == 0 {
            return;
        }
        let crc = crc32c::crc32c(&self.block);
        self.block.extend_from_slice(&crc.to_le_bytes());
        self.index.push(IndexBlock {
            first_device: self.block_first,
            offset: self.blocks.len() as u64,
            len: self.block.len() as u32,
        });
        self.blocks.append(&mut self.block);
        self.in_block = 0;
    }

    /// Ends the file; from then on it is there, whatever happens. Directories are for the caller to sync.
    pub(crate) fn finish(mut self, replaces: Vec<u64>) -> Result<Segment, Error> {
        self.end_block();
        self.meta.replaces = replaces;
        for block in &mut self.index {
            block.offset += self.offset;
        }
        let mut footer = Vec::new();
        let meta = &self.meta;
        for number in [
            meta.partition as u64,
            meta.id,
            meta.last_lsn,
            meta.flushed_lsn,
            meta.rows,
            meta.points,
        ] {
            put(&mut footer, number);
        }
        for number in [meta.deletions, meta.treated_age_ms, meta.treated_by] {
            put(&mut footer, number);
        }
        put_signed(&mut footer, meta.window);
        put_signed(&mut footer, self.window_begin);
        put(&mut footer, meta.replaces.len() as u64);
        meta.replaces.iter().for_each(|&id| put(&mut footer, id));
        put(&mut footer, u64::from(self.last_device));
        put(&mut footer, self.index.len() as u64);
        for block in &self.index {
            put(&mut footer, u64::from(block.first_device));
            put(&mut footer, block.offset);
            put(&mut footer, u64::from(block.len));
        }
        let mut write = || {
            let file = &mut self.file;
            file.write_all(&self.blocks)?;
            file.write_all(&footer)?;
            file.write_all(&(footer.len() as u32).to_le_bytes())?;
            file.write_all(&crc32c::crc32c(&footer).to_le_bytes())?;
            file.write_all(MAGIC)?;
            file.flush()?;
            file.get_ref().sync_all()?;
            fs::rename(&self.unfinished, &self.path)
        };
        write().map_err(io_error("write", &self.unfinished))?;
        let (cleared, looked_at) = (
            self.meta.deletions,
            (self.meta.treated_age_ms, self.meta.treated_by),
        );
        Ok(Segment {
            bytes: self.offset + (self.blocks.len() + footer.len() + TAIL) as u64,
            path: self.path,
            meta: self.meta,
            index: self.index,
            last_device: self.last_device,
            window_begin: self.window_begin,
            cleared: AtomicU64::new(cleared),
            looked_at: Mutex::new(looked_at),
            is_gone: AtomicBool::new(false),
        })
    }

    /// Leaves nothing behind.
    pub(crate) fn discard(self) {
        let _ = fs::remove_file(&self.unfinished);
    }
}

impl Segment {
    /// Reads what a file is.
    pub(crate) fn open(path: PathBuf) -> Result<Self, OpenError> {
        let file = File::open(&path).map_err(io_error("open", &path))?;
        let bytes = file.metadata().map_err(io_error("look at", &path))?.len();
        let refuse = |offset, detail: &str| OpenError::Damaged {
            path: path.clone(),
            offset,
            detail: detail.to_owned(),
        };
        if bytes < (MAGIC.len() + TAIL) as u64 {
            return Err(refuse(0, "it is shorter than any segment file"));
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
                "it does not end as a segment file of this version does",
            ));
        }
        let mut footer = vec![0; len as usize];
        let footer_at = tail_at - len;
        file.read_exact_at(&mut footer, footer_at)
            .map_err(io_error("read", &path))?;
        if crc32c::crc32c(&footer) != crc {
            return Err(refuse(footer_at, "its footer is not what was written"));
        }
        let segment = read_footer(&footer, path.clone(), bytes);
        segment.ok_or_else(|| refuse(footer_at, "its footer holds something that is none"))
    }
}

fn read_footer(footer: &[u8], path: PathBuf, bytes: u64) -> Option<Segment> {
    let mut reader = Reader::new(footer);
    let partition = reader.bounded(crate::wal::PARTITIONS - 1)?;
    let mut next = || reader.number();
    let (id, last_lsn, flushed_lsn, rows, points) = (next()?, next()?, next()?, next()?, next()?);
    let (deletions, treated_age_ms, treated_by) = (next()?, next()?, next()?);
    let window = reader.signed()?;
    let window_begin = reader.signed()?;
    let count = reader.bounded(footer.len())?;
    let replaces = (0..count).map(|_| reader.number()).collect::<Option<_>>()?;
    let last_device = u32::try_from(reader.number()?).ok()?;
    let count = reader.bounded(footer.len())?;
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
        meta: Meta {
            partition,
            window,
            id,
            last_lsn,
            flushed_lsn,
            rows,
            points,
            deletions,
            treated_age_ms,
            treated_by,
            replaces,
        },
        bytes,
        index,
        last_device,
        window_begin,
        cleared: AtomicU64::new(deletions),
        looked_at: Mutex::new((treated_age_ms, treated_by)),
        is_gone: AtomicBool::new(false),
    })
}

/// Reads groups of one file; asking for devices in ascending order reads each block of the index once.
pub(crate) struct SegmentReader {
    segment: Arc<Segment>,
    file: File,
    /// Which block of the index is in `places`.
    block: usize,
    places: Vec<Place>,
}

impl SegmentReader {
    pub(crate) fn open(segment: &Arc<Segment>) -> Result<Self, Error> {
        let file = File::open(&segment.path).map_err(io_error("open", &segment.path))?;
        Ok(Self {
            segment: Arc::clone(segment),
            file,
            block: usize::MAX,
            places: Vec::new(),
        })
    }

    /// Reads a group's rows, with these keys, and the interval they were downsampled to.
    pub(crate) fn table(
        &self,
        place: &Place,
        keys: Option<&[KeyId]>,
        bytes: &mut Vec<u8>,
    ) -> Result<(Table, i64), Error> {
        self.read(place, bytes)?;
        let group = group::open(bytes).ok_or_else(|| self.not_a_group(place))?;
        let table = group.table(keys).ok_or_else(|| self.not_a_group(place))?;
        Ok((table, group.interval_ms))
    }

    fn load(&mut self, block: usize) -> Result<(), Error> {
        if self.block == block {
            return Ok(());
        }
        let IndexBlock {
            first_device,
            offset,
            len,
        } = self.segment.index[block];
        let segment = Arc::clone(&self.segment);
        let path = &segment.path;
        let mut bytes = vec![0; len as usize];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(io_error("read", path))?;
        self.block = usize::MAX;
        self.places.clear();
        let Some((rest, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(damaged(
                path,
                offset,
                "a block of its index is not what was written",
            ));
        };
        if crc32c::crc32c(rest) != u32::from_le_bytes(*crc)
            || self.parse(rest, first_device).is_none()
        {
            return Err(damaged(
                path,
                offset,
                "a block of its index is not what was written",
            ));
        }
        self.block = block;
        Ok(())
    }

    fn parse(&mut self, bytes: &[u8], first_device: u32) -> Option<()> {
        let mut reader = Reader::new(bytes);
        let mut offset = reader.number()?;
        let mut device = first_device;
        while !reader.is_empty() {
            device = device.checked_add(u32::try_from(reader.number()?).ok()?)?;
            let len = u32::try_from(reader.number()?).ok()?;
            let first_ts = self.segment.window_begin.wrapping_add(reader.signed()?);
            let last_ts = first_ts.wrapping_add(reader.number()? as i64);
            let rows = u32::try_from(reader.number()?).ok()?;
            self.places.push(Place {
                device,
                offset,
                len,
                first_ts,
                last_ts,
                rows,
            });
            offset = offset
                .checked_add(u64::from(len))
                .filter(|&end| end <= self.segment.bytes)?;
        }
        Some(())
    }

    /// Gives the places of a device's groups, in the order of their times.
    pub(crate) fn find(&mut self, device: u32, each: &mut dyn FnMut(Place)) -> Result<(), Error> {
        let segment = Arc::clone(&self.segment);
        let index = &segment.index;
        if index.is_empty() || device > segment.last_device {
            return Ok(());
        }
        // Groups of one device may begin at the end of the block before.
        let begin = index
            .partition_point(|block| block.first_device < device)
            .saturating_sub(1);
        let end = index.partition_point(|block| block.first_device <= device);
        for block in begin..end {
            self.load(block)?;
            let from = self
                .places
                .partition_point(|place| place.device.cmp(&device) == Ordering::Less);
            let of_device = self.places[from..]
                .iter()
                .take_while(|place| place.device == device);
            of_device.for_each(|place| each(*place));
        }
        Ok(())
    }

    /// Gives all places, in the order of devices and times.
    pub(crate) fn each_place(
        &mut self,
        each: &mut dyn FnMut(Place) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for block in 0..self.segment.index.len() {
            self.load(block)?;
            for at in 0..self.places.len() {
                each(self.places[at])?;
            }
        }
        Ok(())
    }

    /// The block of the index by its number, `None` behind the last one.
    pub(crate) fn places(&mut self, block: usize) -> Result<Option<&[Place]>, Error> {
        if block >= self.segment.index.len() {
            return Ok(None);
        }
        self.load(block)?;
        Ok(Some(&self.places))
    }

    /// Reads the bytes of a group and makes sure that they are what was written.
    pub(crate) fn read(&self, place: &Place, into: &mut Vec<u8>) -> Result<(), Error> {
        into.resize(place.len as usize, 0);
        let path = &self.segment.path;
        let read = self.file.read_exact_at(into, place.offset);
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(damaged(path, place.offset, "it was cut"));
            }
            read => read.map_err(io_error("read", path))?,
        }
        if !group::is_whole(into) {
            return Err(damaged(
                path,
                place.offset,
                "a group is not what was written",
            ));
        }
        Ok(())
    }

    pub(crate) fn not_a_group(&self, place: &Place) -> Error {
        let detail = "a group with a right checksum holds something that is none";
        damaged(&self.segment.path, place.offset, detail)
    }
}
