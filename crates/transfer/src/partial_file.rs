//! A file that is being received: its bytes, and the log of ranges that were received.
//!
//! Bytes are written to `data` first, then their range to `ranges`. A range is acknowledged when its entry is in the log.
//! An entry whose bytes may not be on disk yet carries their checksum; after a start, such a range counts only if the
//! checksum matches. A checkpoint says that the bytes of all earlier entries are synced. It precedes a change of bytes
//! that have such an entry. Their checksum would not match any more, and all of the range would be lost.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use content::{DigestAlgorithm, PrefixDigest, RangeSet};

use crate::digest::FileDigest;
use crate::record::{RangeEntry, decode_range_log};

pub(crate) const DATA_FILE: &str = "data";
pub(crate) const RANGES_FILE: &str = "ranges";

/// Maximum number of gaps; each costs memory and a line in the log.
pub(crate) const MAX_RANGES: usize = 65_536;
/// Entries from which the log is replaced by a shorter one, if it is four times as long as necessary.
const COMPACT_FROM_ENTRIES: u64 = 4096;
/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// The result of writing a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentOutcome {
    Written,
    /// The same bytes were there already.
    Repeated,
    /// It would leave too many gaps.
    TooManyRanges,
}

pub(crate) struct PartialFile {
    dir: PathBuf,
    data: File,
    log: File,
    log_bytes: u64,
    log_entries: u64,
    /// Ranges in the log.
    recorded: RangeSet,
    /// Ranges that were written and are not in the log yet, with their checksums.
    pending: Vec<(Range<u64>, u32)>,
    /// The log contains entries after its last checkpoint.
    has_unsynced: bool,
    digest: PrefixDigest,
}

fn open_file(path: &Path, is_new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(is_new)
        .truncate(is_new);
    options.mode(0o600).open(path)
}

/// The CRC-32C of a range of a file; `None`: the file is shorter.
fn crc_of(data: &File, range: &Range<u64>) -> io::Result<Option<u32>> {
    let mut buffer = vec![0; READ_BYTES.min((range.end - range.start) as usize)];
    let (mut at, mut crc) = (range.start, 0);
    while at < range.end {
        let wanted = buffer.len().min((range.end - at) as usize);
        match data.read_exact_at(&mut buffer[..wanted], at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        crc = crc32c::crc32c_append(crc, &buffer[..wanted]);
        at += wanted as u64;
    }
    Ok(Some(crc))
}

/// The ranges that a log proves, and whether it contains entries that must not be believed.
pub(crate) struct VerifiedRanges {
    pub(crate) ranges: RangeSet,
    pub(crate) entries: u64,
    pub(crate) intact_bytes: u64,
    pub(crate) rejected: u64,
    pub(crate) has_unsynced: bool,
}

/// Reads a log, and checks the ranges whose bytes may not have been on disk when the machine stopped.
pub(crate) fn verify_ranges(dir: &Path) -> io::Result<VerifiedRanges> {
    let data = File::open(dir.join(DATA_FILE))?;
    let len = data.metadata()?.len();
    let log = decode_range_log(&std::fs::read(dir.join(RANGES_FILE))?);
    let checkpoint = log
        .entries
        .iter()
        .rposition(|entry| *entry == RangeEntry::Checkpoint);
    let mut verified = VerifiedRanges {
        ranges: RangeSet::default(),
        entries: log.entries.len() as u64,
        intact_bytes: log.intact_bytes,
        rejected: 0,
        has_unsynced: false,
    };
    for (at, entry) in log.entries.iter().enumerate() {
        let is_synced = checkpoint.is_some_and(|checkpoint| at < checkpoint);
        let (range, is_believed) = match entry {
            RangeEntry::Checkpoint => continue,
            RangeEntry::Synced(range) => (range, range.end <= len),
            RangeEntry::Written { range, .. } if is_synced => (range, range.end <= len),
            RangeEntry::Written { range, crc } => {
                verified.has_unsynced = true;
                (
                    range,
                    range.end <= len && crc_of(&data, range)? == Some(*crc),
                )
            }
        };
        match is_believed {
            true => verified.ranges.insert(range.clone()),
            false => verified.rejected += 1,
        }
    }
    Ok(verified)
}

impl PartialFile {
    /// Creates the files in an empty directory.
    pub(crate) fn create(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            data: open_file(&dir.join(DATA_FILE), true)?,
            log: open_file(&dir.join(RANGES_FILE), true)?,
            dir: dir.to_owned(),
            log_bytes: 0,
            log_entries: 0,
            recorded: RangeSet::default(),
            pending: Vec::new(),
            has_unsynced: false,
            digest: PrefixDigest::new(DigestAlgorithm::Sha256),
        })
    }

    /// Opens the files after a start of the node, or after they were closed.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let verified = verify_ranges(dir)?;
        let mut file = Self {
            data: open_file(&dir.join(DATA_FILE), false)?,
            log: open_file(&dir.join(RANGES_FILE), false)?,
            dir: dir.to_owned(),
            log_bytes: verified.intact_bytes,
            log_entries: verified.entries,
            recorded: verified.ranges,
            pending: Vec::new(),
            has_unsynced: verified.has_unsynced,
            digest: PrefixDigest::new(DigestAlgorithm::Sha256),
        };
        if verified.rejected > 0 {
            // The next checkpoint would make them believed.
            file.compact()?;
        } else {
            file.log.set_len(file.log_bytes)?;
        }
        Ok(file)
    }

    /// The ranges that are in the log.
    pub(crate) fn received(&self) -> &RangeSet {
        &self.recorded
    }

    /// Writes a segment. It counts after the next [`commit`](Self::commit).
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<SegmentOutcome> {
        let range = offset..offset + bytes.len() as u64;
        if bytes.is_empty()
            || (self.recorded.covers(range.clone()) && self.is_equal(offset, bytes)?)
        {
            return Ok(SegmentOutcome::Repeated);
        }
        if self.recorded.range_count() + self.pending.len() >= MAX_RANGES {
            self.commit(false)?;
            if self.recorded.range_count() >= MAX_RANGES {
                return Ok(SegmentOutcome::TooManyRanges);
            }
        }
        let digested = usize::try_from(self.digest.at().saturating_sub(offset));
        let digested = &bytes[..digested.unwrap_or(usize::MAX).min(bytes.len())];
        if !digested.is_empty() && !self.is_equal(offset, digested)? {
            self.digest.reset();
        }
        self.prepare_change(offset, bytes)?;
        self.data.write_all_at(bytes, offset)?;
        self.digest.append(offset, bytes);
        self.pending.push((range, crc32c::crc32c(bytes)));
        Ok(SegmentOutcome::Written)
    }

    /// Writes bytes that do not count before [`record_staged`](Self::record_staged).
    pub(crate) fn stage(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.digest.at() > offset {
            self.digest.reset();
        }
        self.prepare_change(offset, bytes)?;
        self.data.write_all_at(bytes, offset)
    }

    /// Makes entries whose bytes are about to change independent of their checksums.
    fn prepare_change(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = offset..offset + bytes.len() as u64;
        let changes = |overlap: Range<u64>| {
            let from = (overlap.start - offset) as usize;
            let to = (overlap.end - offset) as usize;
            Ok::<_, io::Error>(!self.is_equal(overlap.start, &bytes[from..to])?)
        };
        let mut is_pending_changed = false;
        for (pending, _) in &self.pending {
            let overlap = pending.start.max(range.start)..pending.end.min(range.end);
            if !overlap.is_empty() && changes(overlap)? {
                is_pending_changed = true;
                break;
            }
        }
        let mut is_changed = is_pending_changed;
        if self.has_unsynced && !is_changed {
            let mut at = range.start;
            let missing = self.recorded.missing(range.clone());
            for gap in missing.iter().chain(std::iter::once(range.end..range.end)) {
                if at < gap.start && changes(at..gap.start)? {
                    is_changed = true;
                    break;
                }
                at = gap.end;
            }
        }
        if is_pending_changed {
            self.commit(false)?;
        }
        match is_changed {
            true => self.checkpoint(),
            false => Ok(()),
        }
    }

    /// Makes staged bytes count after the next [`commit`](Self::commit).
    pub(crate) fn record_staged(&mut self, range: Range<u64>) -> io::Result<()> {
        if !range.is_empty() {
            let crc = crc_of(&self.data, &range)?;
            let crc = crc.ok_or(io::ErrorKind::UnexpectedEof)?;
            self.pending.push((range, crc));
        }
        Ok(())
    }

    fn is_equal(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        equals(&self.data, offset, bytes)
    }

    /// Records what was written, so that it can be acknowledged. With `sync` it is on disk afterwards.
    pub(crate) fn commit(&mut self, sync: bool) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if sync {
            self.data.sync_data()?;
        }
        let mut entries = Vec::new();
        for (range, crc) in &self.pending {
            let entry = match sync {
                true => RangeEntry::Synced(range.clone()),
                false => RangeEntry::Written {
                    range: range.clone(),
                    crc: *crc,
                },
            };
            entry.encode(&mut entries);
        }
        self.append_to_log(&entries)?;
        if sync {
            self.log.sync_data()?;
        }
        self.has_unsynced |= !sync;
        self.log_entries += self.pending.len() as u64;
        for (range, _) in self.pending.drain(..) {
            self.recorded.insert(range);
        }
        let needed = self.recorded.range_count() as u64;
        if self.log_entries >= COMPACT_FROM_ENTRIES.max(4 * needed) {
            self.compact()?;
        }
        Ok(())
    }

    /// A failed write leaves the end of the log unchanged, and the next one replaces what it left.
    fn append_to_log(&mut self, entries: &[u8]) -> io::Result<()> {
        self.log.write_all_at(entries, self.log_bytes)?;
        self.log_bytes += entries.len() as u64;
        Ok(())
    }

    /// Syncs what was committed.
    pub(crate) fn checkpoint(&mut self) -> io::Result<()> {
        if !self.has_unsynced {
            return Ok(());
        }
        self.data.sync_data()?;
        let mut entry = Vec::new();
        RangeEntry::Checkpoint.encode(&mut entry);
        self.append_to_log(&entry)?;
        self.log_entries += 1;
        self.log.sync_data()?;
        self.has_unsynced = false;
        Ok(())
    }

    /// Replaces the log by the shortest one.
    fn compact(&mut self) -> io::Result<()> {
        self.data.sync_data()?;
        let mut entries = Vec::new();
        for range in self.recorded.iter() {
            RangeEntry::Synced(range).encode(&mut entries);
        }
        disk::replace_file(&self.dir, RANGES_FILE, &entries)?;
        self.log = open_file(&self.dir.join(RANGES_FILE), false)?;
        self.log_bytes = entries.len() as u64;
        self.log_entries = self.recorded.range_count() as u64;
        self.has_unsynced = false;
        Ok(())
    }

    /// Digests up to `budget` bytes more of a file of this size; returns the digest when it is known.
    pub(crate) fn digest(&mut self, size: u64, budget: u64) -> io::Result<Option<FileDigest>> {
        if self.digest.at() > size {
            self.digest.reset();
        }
        self.digest.advance(&self.data, size, budget)?;
        Ok((self.digest.at() == size).then(|| FileDigest(self.digest.finish().bytes)))
    }

    /// Removes what is beyond the size of the complete file, and syncs it.
    pub(crate) fn seal(&self, size: u64, sync: bool) -> io::Result<()> {
        if self.data.metadata()?.len() != size {
            self.data.set_len(size)?;
        }
        match sync {
            true => self.data.sync_all(),
            false => Ok(()),
        }
    }
}

/// Whether a file contains these bytes.
pub(crate) fn equals(file: &File, offset: u64, bytes: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; READ_BYTES.min(bytes.len())];
    let mut at = offset;
    for piece in bytes.chunks(READ_BYTES) {
        let read = &mut buffer[..piece.len()];
        match file.read_exact_at(read, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            done => done?,
        }
        if read != piece {
            return Ok(false);
        }
        at += piece.len() as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(file: &PartialFile) -> Vec<(u64, u64)> {
        let ranges = file.received().iter();
        ranges.map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn committed_segments_outlive_the_process_and_others_do_not() {
        for sync in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let mut file = PartialFile::create(dir.path()).unwrap();
            assert_eq!(file.write(10, b"later").unwrap(), SegmentOutcome::Written);
            assert!(file.received().is_empty(), "not committed");
            file.commit(sync).unwrap();
            file.write(0, b"first").unwrap();
            drop(file);
            let mut file = PartialFile::open(dir.path()).unwrap();
            assert_eq!(received(&file), [(10, 15)]);
            file.write(0, b"0123456789").unwrap();
            file.commit(sync).unwrap();
            let digest = file.digest(15, u64::MAX).unwrap();
            assert_eq!(digest, Some(FileDigest::of(b"0123456789later")));
        }
    }

    #[test]
    fn bytes_that_were_lost_are_missing_after_a_power_failure() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = PartialFile::create(dir.path()).unwrap();
        file.write(0, b"synced").unwrap();
        file.commit(false).unwrap();
        file.checkpoint().unwrap();
        file.write(6, b"kept").unwrap();
        file.write(10, b"lost").unwrap();
        file.commit(false).unwrap();
        drop(file);
        let data = OpenOptions::new()
            .write(true)
            .open(dir.path().join(DATA_FILE))
            .unwrap();
        data.write_all_at(&[0; 4], 10).unwrap();
        let mut file = PartialFile::open(dir.path()).unwrap();
        assert_eq!(received(&file), [(0, 10)]);
        // The lost range must not be believed because of a later checkpoint.
        file.write(20, b"more").unwrap();
        file.commit(false).unwrap();
        file.checkpoint().unwrap();
        drop(file);
        let file = PartialFile::open(dir.path()).unwrap();
        assert_eq!(received(&file), [(0, 10), (20, 24)]);
        data.set_len(5).unwrap();
        drop(file);
        assert!(PartialFile::open(dir.path()).unwrap().received().is_empty());
    }

    #[test]
    fn a_change_of_a_part_does_not_lose_the_rest() {
        for (commits_first, commits_change) in
            [(true, false), (true, true), (false, true), (false, false)]
        {
            for is_staged in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                let mut file = PartialFile::create(dir.path()).unwrap();
                file.write(0, b"0123456789").unwrap();
                if commits_first {
                    file.commit(false).unwrap();
                }
                if is_staged {
                    file.stage(4, b"xyz").unwrap();
                } else {
                    file.write(4, b"xyz").unwrap();
                }
                // The same bytes as before, and more.
                file.write(8, b"89ab").unwrap();
                if commits_change {
                    file.commit(false).unwrap();
                }
                drop(file);
                let end = if commits_change { 12 } else { 10 };
                let file = PartialFile::open(dir.path()).unwrap();
                assert_eq!(received(&file), [(0, end)]);
            }
        }
    }

    #[test]
    fn a_torn_end_of_the_log_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = PartialFile::create(dir.path()).unwrap();
        for at in 0..3_u64 {
            file.write(at * 8, b"x").unwrap();
            file.commit(false).unwrap();
        }
        drop(file);
        let log = OpenOptions::new()
            .write(true)
            .open(dir.path().join(RANGES_FILE))
            .unwrap();
        log.set_len(60).unwrap();
        let mut file = PartialFile::open(dir.path()).unwrap();
        assert_eq!(received(&file), [(0, 1), (8, 9)]);
        file.write(16, b"x").unwrap();
        file.commit(false).unwrap();
        drop(file);
        let file = PartialFile::open(dir.path()).unwrap();
        assert_eq!(received(&file), [(0, 1), (8, 9), (16, 17)]);
    }

    #[test]
    fn repeated_and_changed_segments() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = PartialFile::create(dir.path()).unwrap();
        file.write(0, b"abcdef").unwrap();
        file.commit(false).unwrap();
        assert_eq!(file.write(2, b"cd").unwrap(), SegmentOutcome::Repeated);
        assert_eq!(file.write(4, b"efgh").unwrap(), SegmentOutcome::Written);
        file.commit(false).unwrap();
        let whole = file.digest(8, u64::MAX).unwrap();
        assert_eq!(whole, Some(FileDigest::of(b"abcdefgh")));
        assert_eq!(file.write(1, b"XY").unwrap(), SegmentOutcome::Written);
        file.commit(false).unwrap();
        assert_eq!(file.digest(8, 3).unwrap(), None, "begins anew");
        let whole = file.digest(8, u64::MAX).unwrap();
        assert_eq!(whole, Some(FileDigest::of(b"aXYdefgh")));
        let start = file.digest(3, u64::MAX).unwrap();
        assert_eq!(start, Some(FileDigest::of(b"aXY")), "a smaller size");
    }

    #[test]
    fn the_log_stays_short() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = PartialFile::create(dir.path()).unwrap();
        for round in 0..10_000_u32 {
            file.write(0, &round.to_le_bytes()).unwrap();
            file.commit(false).unwrap();
        }
        let len = std::fs::metadata(dir.path().join(RANGES_FILE))
            .unwrap()
            .len();
        assert!(len <= COMPACT_FROM_ENTRIES * 24, "{len}");
        drop(file);
        let file = PartialFile::open(dir.path()).unwrap();
        assert_eq!(received(&file), [(0, 4)]);
    }

    #[test]
    fn gaps_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = PartialFile::create(dir.path()).unwrap();
        for at in 0..MAX_RANGES as u64 {
            assert_eq!(file.write(at * 2, b"x").unwrap(), SegmentOutcome::Written);
        }
        let more = file.write(2 * MAX_RANGES as u64, b"x").unwrap();
        assert_eq!(more, SegmentOutcome::TooManyRanges);
        assert_eq!(file.received().range_count(), MAX_RANGES);
    }
}
