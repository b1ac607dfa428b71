//! Reads the write-ahead log at a start.
//!
//! Each partition's blocks form a chain: a block begins with the row after the last one of the block before.
//! Where the chain breaks, the rest is truncated, as after a power failure. If a later record shows that the
//! missing row was on disk, the log has been damaged since, and nothing is changed.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::varint::VarintReader;

use super::block::{
    BLOCK_BYTES, BLOCK_HEAD, BlockHead, NextRecord, ROW, SHAPE, SYNCED, WORD, later_synced_lsn,
    next_record,
};
use super::wal_file::{WalFile, wal_file_path};
use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::file_operations::sync_dir;
use crate::inspection::Inspection;
use crate::partitioning::PARTITION_COUNT;
use crate::point::KeyId;

/// A row of the log: its values begin at `values`.
pub(crate) struct WalRow<'a> {
    pub(crate) partition: usize,
    pub(crate) lsn: u64,
    pub(crate) device: u32,
    pub(crate) ts_ms: i64,
    pub(crate) keys: &'a Arc<[KeyId]>,
    pub(crate) values: &'a [u8],
    /// The texts of the words in the values.
    pub(crate) words: &'a HashMap<u32, Box<str>>,
}

/// A truncation of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalTruncation {
    pub path: PathBuf,
    pub offset: u64,
    /// Truncated blocks of the same partition that followed.
    pub blocks: usize,
}

pub(crate) struct RecoveredWal {
    pub(crate) segments: Vec<WalFile>,
    pub(crate) next_id: u32,
    pub(crate) next_lsn: [u64; PARTITION_COUNT],
    pub(crate) next_number: [u64; PARTITION_COUNT],
    pub(crate) truncations: Vec<WalTruncation>,
    pub(crate) rows: u64,
}

struct BlockLocation {
    segment: usize,
    offset: u64,
    head: BlockHead,
}

struct OpenWalFiles {
    paths: Vec<PathBuf>,
    files: Vec<File>,
    ids: Vec<u32>,
}

/// What the rest of the store knows about the log.
pub(crate) struct RecoveryBounds {
    /// For each partition, the row up to which all are in segment files.
    pub(crate) flushed: [u64; PARTITION_COUNT],
    /// The last row of each partition that must exist.
    pub(crate) expected: [u64; PARTITION_COUNT],
    /// Rows have keys below this number.
    pub(crate) keys: u32,
}

/// Passes each row that is in no segment file to the caller.
pub(crate) fn recover_wal(
    dir: &Path,
    known: &RecoveryBounds,
    inspection: &mut Inspection,
    each: &mut dyn FnMut(WalRow<'_>) -> Option<()>,
) -> Result<RecoveredWal, SeriesOpenError> {
    let files = open_all(dir, inspection.is_writing())?;
    let flushed = &known.flushed;
    let mut dropped = Vec::new();
    let mut chains: [Vec<BlockLocation>; PARTITION_COUNT] = Default::default();
    for (segment, file) in files.files.iter().enumerate() {
        let path = &files.paths[segment];
        let broken = find_blocks(file, path, segment, &mut chains, inspection)?;
        dropped.extend(broken.into_iter().map(|at| (segment, at, BLOCK_HEAD)));
    }
    let mut recovered = RecoveredWal {
        segments: Vec::new(),
        next_id: files.ids.last().map_or(1, |last| last + 1),
        next_lsn: flushed.map(|lsn| lsn + 1),
        next_number: [1; PARTITION_COUNT],
        truncations: Vec::new(),
        rows: 0,
    };
    let mut up_to = vec![[0; PARTITION_COUNT]; files.files.len()];
    for (partition, chain) in chains.iter_mut().enumerate() {
        chain.sort_unstable_by_key(|found| found.head.number);
        if let Some(last) = chain.last() {
            recovered.next_number[partition] = last.head.number + 1;
        }
        let mut reading = BlockChain {
            files: &files,
            chain,
            partition,
            flushed: flushed[partition],
            keys: known.keys,
            up_to: &mut up_to,
        };
        let problems = inspection.problems.len();
        reading.read(&mut recovered, &mut dropped, inspection, each)?;
        let last_lsn = recovered.next_lsn[partition] - 1;
        let lost = known.expected[partition].saturating_sub(last_lsn);
        if lost > 0 && inspection.problems.len() == problems {
            let (path, offset) = reading.end_position(dir);
            let detail = format!(
                "its end or a file of the log is missing: the last {lost} rows of partition {partition} were stored and are lost"
            );
            inspection.report_damage(&path, offset, detail)?;
        }
    }
    if !inspection.is_writing() {
        return Ok(recovered);
    }
    // The log is changed only after it was found to be undamaged.
    for (segment, offset, len) in dropped {
        let (file, path) = (&files.files[segment], &files.paths[segment]);
        let cut = file
            .write_all_at(&vec![0; len], offset)
            .and_then(|()| file.sync_data());
        cut.map_err(io_error("cut", path))?;
    }
    let mut removed = false;
    for (at, file) in files.files.into_iter().enumerate() {
        let path = files.paths[at].clone();
        let holds = up_to[at];
        if holds
            .iter()
            .zip(flushed)
            .all(|(up_to, flushed)| up_to <= flushed)
        {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
            removed = true;
            continue;
        }
        // The file may never have been forced to disk, but later sync marks will cover it.
        file.sync_all().map_err(io_error("force to disk", &path))?;
        let bytes = file.metadata().map_err(io_error("look at", &path))?.len();
        let segment = WalFile::new(files.ids[at], path, file, bytes);
        for (to, from) in segment.up_to.iter().zip(holds) {
            to.store(from, Ordering::Relaxed);
        }
        recovered.segments.push(segment);
    }
    if removed {
        sync_dir(dir)?;
    }
    Ok(recovered)
}

fn open_all(dir: &Path, writes: bool) -> Result<OpenWalFiles, SeriesError> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let name = entry.map_err(io_error("list", dir))?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(".wal"));
        if let Some(id) = digits
            .filter(|digits| digits.len() == 10)
            .and_then(|digits| digits.parse().ok())
        {
            ids.push(id);
        }
    }
    ids.sort_unstable();
    let paths: Vec<_> = ids.iter().map(|&id| wal_file_path(dir, id)).collect();
    let open = |path: &PathBuf| {
        OpenOptions::new()
            .read(true)
            .write(writes)
            .open(path)
            .map_err(io_error("open", path))
    };
    let files = paths.iter().map(open).collect::<Result<_, _>>()?;
    Ok(OpenWalFiles { paths, files, ids })
}

fn find_blocks(
    file: &File,
    path: &Path,
    segment: usize,
    chains: &mut [Vec<BlockLocation>; PARTITION_COUNT],
    inspection: &mut Inspection,
) -> Result<Vec<u64>, SeriesOpenError> {
    let mut broken = Vec::new();
    let len = file.metadata().map_err(io_error("look at", path))?.len();
    for offset in (0..len).step_by(BLOCK_BYTES) {
        let mut bytes = [0; BLOCK_HEAD];
        match file.read_exact_at(&mut bytes, offset) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(io_error("read", path)(error).into()),
        }
        if bytes == [0; BLOCK_HEAD] {
            continue;
        }
        // A head is written completely or not at all: it is within one sector.
        let Some(head) = BlockHead::decode(&bytes) else {
            let detail = "the head of a block is damaged";
            inspection.report_damage(path, offset, detail)?;
            broken.push(offset);
            continue;
        };
        chains[usize::from(head.partition)].push(BlockLocation {
            segment,
            offset,
            head,
        });
    }
    Ok(broken)
}

struct BlockChain<'a> {
    files: &'a OpenWalFiles,
    chain: &'a [BlockLocation],
    partition: usize,
    flushed: u64,
    keys: u32,
    up_to: &'a mut [[u64; PARTITION_COUNT]],
}

impl BlockChain<'_> {
    fn load(&self, found: &BlockLocation) -> Result<Vec<u8>, SeriesError> {
        let (file, path) = (
            &self.files.files[found.segment],
            &self.files.paths[found.segment],
        );
        let mut block = vec![0; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            let read = file.read_at(&mut block[filled..], found.offset + filled as u64);
            match read.map_err(io_error("read", path))? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(block)
    }

    /// Position of its last block, or the directory if there is none.
    fn end_position(&self, dir: &Path) -> (PathBuf, u64) {
        let last = self.chain.last();
        last.map_or((dir.to_owned(), 0), |found| {
            (self.files.paths[found.segment].clone(), found.offset)
        })
    }

    fn read(
        &mut self,
        recovered: &mut RecoveredWal,
        dropped: &mut Vec<(usize, u64, usize)>,
        inspection: &mut Inspection,
        each: &mut dyn FnMut(WalRow<'_>) -> Option<()>,
    ) -> Result<(), SeriesOpenError> {
        // Rows that are in segment files may be missing here.
        let mut due = self.flushed + 1;
        for (at, found) in self.chain.iter().enumerate() {
            let next = self.chain.get(at + 1).map(|next| next.head);
            let next_first = next.map(|head| head.first_lsn);
            if next_first.is_some_and(|first| first <= self.flushed + 1) {
                continue;
            }
            let block = self.load(found)?;
            if found.head.follows_lsn >= due {
                let place = (at, 0);
                return self.classify_break(recovered, dropped, inspection, place, &block, due);
            }
            let mut offset = BLOCK_HEAD;
            let read = self.read_block(found, &block, &mut offset, recovered, each);
            let read = match read {
                Ok(read) => read,
                Err((offset, detail)) => {
                    let path = &self.files.paths[found.segment];
                    inspection.report_damage(path, found.offset + offset as u64, detail)?;
                    let place = (at, offset);
                    return self.classify_break(
                        recovered,
                        dropped,
                        inspection,
                        place,
                        &block,
                        u64::MAX,
                    );
                }
            };
            due = due.max(read);
            self.up_to[found.segment][self.partition] = due - 1;
            recovered.next_lsn[self.partition] = due;
            let goes_on = next.is_some_and(|head| head.follows_lsn == due - 1);
            if !goes_on {
                let is_clean = block[offset..].iter().all(|&byte| byte == 0);
                if next_first.is_none() && is_clean {
                    return Ok(());
                }
                let place = (at, offset);
                return self.classify_break(recovered, dropped, inspection, place, &block, due);
            }
        }
        Ok(())
    }

    /// Reads the rows of a block. Returns the number of the next expected row, or where a record is invalid
    /// and why.
    fn read_block(
        &self,
        found: &BlockLocation,
        block: &[u8],
        offset: &mut usize,
        recovered: &mut RecoveredWal,
        each: &mut dyn FnMut(WalRow<'_>) -> Option<()>,
    ) -> Result<u64, (usize, &'static str)> {
        let seed = found.head.seed();
        let mut lsn = found.head.first_lsn;
        let mut shapes: HashMap<u64, Arc<[KeyId]>> = HashMap::new();
        let mut words: HashMap<u32, Box<str>> = HashMap::new();
        let mut ts_ms = 0_i64;
        let mut has_unknown_key = false;
        loop {
            let start = *offset;
            let NextRecord::Record { kind, body } = next_record(block, seed, offset) else {
                return Ok(lsn);
            };
            let mut reader = VarintReader::new(body);
            let mut apply = || {
                match kind {
                    SHAPE => {
                        let number = reader.number()?;
                        let len = reader.number_up_to(BLOCK_BYTES)?;
                        let key = |reader: &mut VarintReader<'_>| {
                            u32::try_from(reader.number()?).ok().map(KeyId)
                        };
                        let keys: Arc<[KeyId]> =
                            (0..len).map(|_| key(&mut reader)).collect::<Option<_>>()?;
                        has_unknown_key |= keys.iter().any(|key| key.0 >= self.keys);
                        shapes.insert(number, keys);
                    }
                    ROW => {
                        let device = u32::try_from(reader.number()?).ok()?;
                        let keys = shapes.get(&reader.number()?)?;
                        ts_ms = ts_ms.wrapping_add(reader.signed()?);
                        if lsn > self.flushed {
                            recovered.rows += 1;
                            each(WalRow {
                                partition: self.partition,
                                lsn,
                                device,
                                ts_ms,
                                keys,
                                values: &body[reader.at..],
                                words: &words,
                            })?;
                        }
                        lsn += 1;
                    }
                    WORD => {
                        let number = u32::try_from(reader.number()?).ok()?;
                        let word = std::str::from_utf8(&body[reader.at..]).ok()?;
                        words.insert(number, word.into());
                    }
                    SYNCED => {}
                    _ => return None,
                }
                Some(())
            };
            let is_applied = apply().is_some();
            if has_unknown_key {
                return Err((start, "rows have a key that is missing in the dictionary"));
            }
            if !is_applied {
                let detail = "a record with a valid checksum has invalid content";
                return Err((start, detail));
            }
        }
    }

    /// The row `due` is missing at this position: decides between a torn end and damage.
    fn classify_break(
        &self,
        recovered: &mut RecoveredWal,
        dropped: &mut Vec<(usize, u64, usize)>,
        inspection: &mut Inspection,
        (at, offset): (usize, usize),
        block: &[u8],
        due: u64,
    ) -> Result<(), SeriesOpenError> {
        let found = &self.chain[at];
        let mut synced_lsn = later_synced_lsn(block, found.head.seed(), offset);
        if offset == 0 {
            synced_lsn = synced_lsn.max(found.head.synced_lsn);
        }
        for later in &self.chain[at + 1..] {
            let block = self.load(later)?;
            let behind = later_synced_lsn(&block, later.head.seed(), BLOCK_HEAD);
            synced_lsn = synced_lsn.max(later.head.synced_lsn).max(behind);
        }
        let path = self.files.paths[found.segment].clone();
        if synced_lsn >= due {
            let detail = "a row is missing; what follows shows that it was on disk once";
            inspection.report_damage(&path, found.offset + offset as u64, detail)?;
        }
        // A block whose rows are kept stays; the next one begins where they end.
        let gone = &self.chain[at + usize::from(offset > 0)..];
        let heads = gone.iter();
        dropped.extend(heads.map(|found| (found.segment, found.offset, BLOCK_HEAD)));
        if offset > 0 {
            let end = found.offset + offset as u64;
            dropped.push((found.segment, end, BLOCK_BYTES - offset));
        }
        recovered.truncations.push(WalTruncation {
            path,
            offset: found.offset + offset as u64,
            blocks: gone.len(),
        });
        Ok(())
    }
}
