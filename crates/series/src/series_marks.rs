//! Records about the store's files, kept outside them: high-water marks and the list of segment files.
//!
//! `marks` ([`disk::HighWaterMarks`]) contains, per partition, the last row appended and the last row on
//! disk, and the numbers of keys and deletions. `manifest` is replaced whenever segment files are named or
//! removed. It lists the files that must exist, and up to which row they are complete. A start compares both
//! with the directory, so that a lost end, head or file is detected.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use disk::varint::{VarintReader, put, put_signed};
use disk::{HighWaterMarks, MARKS_PER_CACHE_LINE_PAIR, MarksFileState};

use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::partitioning::PARTITION_COUNT;
use crate::segment::Segment;

pub(crate) const MARKS: &str = "marks";
pub(crate) const MANIFEST: &str = "manifest";
const MANIFEST_HEAD: &[u8] = b"tidegate series manifest 1\n";

/// Index of a partition's mark of appended rows. It starts a line; the mark behind it is that of rows on
/// disk.
fn appended_mark_index(partition: usize) -> usize {
    partition * MARKS_PER_CACHE_LINE_PAIR
}
const SYNCED: usize = 1;
const FIRST_LIST_MARK: usize = PARTITION_COUNT * MARKS_PER_CACHE_LINE_PAIR;
const KEYS_MARK: usize = FIRST_LIST_MARK;
const SYNCED_KEYS_MARK: usize = FIRST_LIST_MARK + 1;
const DELETIONS_MARK: usize = FIRST_LIST_MARK + 2;
const SYNCED_DELETIONS_MARK: usize = FIRST_LIST_MARK + 3;
const MARK_COUNT: usize = FIRST_LIST_MARK + MARKS_PER_CACHE_LINE_PAIR;

/// A segment file that must exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ManifestFile {
    pub(crate) partition: usize,
    pub(crate) window: i64,
    pub(crate) id: u64,
}

/// The list of segment files and the extent of their content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Up to this row, all rows of a partition are in segment files, or were deleted or expired since.
    pub(crate) flushed: [u64; PARTITION_COUNT],
    /// Rows in segment files have keys below this number.
    pub(crate) keys: u32,
    /// The number of the next deletion.
    pub(crate) deletions: u64,
    /// All files so far have lower numbers.
    pub(crate) next_file_id: u64,
    pub(crate) files: Vec<ManifestFile>,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MANIFEST_HEAD.to_vec();
        for number in self.flushed {
            put(&mut bytes, number);
        }
        put(&mut bytes, u64::from(self.keys));
        put(&mut bytes, self.deletions);
        put(&mut bytes, self.next_file_id);
        put(&mut bytes, self.files.len() as u64);
        for file in &self.files {
            put(&mut bytes, file.partition as u64);
            put_signed(&mut bytes, file.window);
            put(&mut bytes, file.id);
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (bytes, crc) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(bytes) != u32::from_le_bytes(*crc) {
            return None;
        }
        let bytes = bytes.strip_prefix(MANIFEST_HEAD)?;
        let mut reader = VarintReader::new(bytes);
        let mut manifest = Self::default();
        for number in &mut manifest.flushed {
            *number = reader.number()?;
        }
        manifest.keys = u32::try_from(reader.number()?).ok()?;
        manifest.deletions = reader.number()?;
        manifest.next_file_id = reader.number()?;
        let count = reader.number_up_to(bytes.len())?;
        let mut file = || {
            Some(ManifestFile {
                partition: reader.number_up_to(PARTITION_COUNT - 1)?,
                window: reader.signed()?,
                id: reader.number()?,
            })
        };
        manifest.files = (0..count).map(|_| file()).collect::<Option<_>>()?;
        Some(manifest)
    }

    /// Replaces the file in a directory.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), SeriesError> {
        let written = disk::replace_file(dir, MANIFEST, &self.encode());
        written.map_err(io_error("write", &dir.join(MANIFEST)))
    }
}

/// The content that a start must find.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpectedContents {
    /// The last row of each partition.
    pub(crate) last_lsn: [u64; PARTITION_COUNT],
    pub(crate) manifest: Manifest,
    pub(crate) keys: u32,
    pub(crate) next_deletion: u64,
    /// Files with further expectations that cannot be read.
    pub(crate) unreadable: Vec<(PathBuf, &'static str)>,
}

/// Reads marks and manifest, which every directory has.
pub(crate) fn read_expected(dir: &Path) -> Result<ExpectedContents, SeriesError> {
    let mut expected = ExpectedContents::default();
    let path = dir.join(MANIFEST);
    let lost = match fs::read(&path) {
        Ok(bytes) => match Manifest::decode(&bytes) {
            Some(manifest) => {
                expected.manifest = manifest;
                None
            }
            None => Some("it is damaged"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some("it is missing"),
        Err(error) => return Err(io_error("read", &path)(error)),
    };
    expected
        .unreadable
        .extend(lost.map(|detail| (path, detail)));
    expected.keys = expected.manifest.keys;
    expected.next_deletion = expected.manifest.deletions;
    let path = dir.join(MARKS);
    let reading = disk::read_high_water_marks(&path).map_err(io_error("read", &path))?;
    match reading {
        MarksFileState::Intact {
            numbers,
            is_same_boot,
        } if numbers.len() == MARK_COUNT => expected.apply_marks(&numbers, is_same_boot),
        MarksFileState::Missing => expected.unreadable.push((path, "it is missing")),
        MarksFileState::Intact { .. } | MarksFileState::Damaged => {
            (expected.unreadable).push((path, "it is damaged"));
        }
    }
    Ok(expected)
}

impl ExpectedContents {
    /// After a power failure only synced data must be there.
    fn apply_marks(&mut self, numbers: &[u64], is_same_boot: bool) {
        let known = |appended: usize, synced: usize| match is_same_boot {
            true => numbers[appended].max(numbers[synced]),
            false => numbers[synced],
        };
        for (partition, last_lsn) in self.last_lsn.iter_mut().enumerate() {
            let mark = appended_mark_index(partition);
            *last_lsn = known(mark, mark + SYNCED);
        }
        let keys = u32::try_from(known(KEYS_MARK, SYNCED_KEYS_MARK)).unwrap_or(u32::MAX);
        self.keys = self.keys.max(keys);
        let deletions = known(DELETIONS_MARK, SYNCED_DELETIONS_MARK);
        self.next_deletion = self.next_deletion.max(deletions);
    }

    /// Describes what cannot be detected because a file is missing.
    pub(crate) fn problems(&self) -> Vec<String> {
        let problem = |(path, detail): &(PathBuf, &str)| {
            format!(
                "{}: {detail}; it is recreated; earlier losses of log ends or segment files cannot be detected",
                path.display()
            )
        };
        self.unreadable.iter().map(problem).collect()
    }

    /// Files of the manifest that neither exist nor were replaced by an existing file.
    pub(crate) fn missing_files(
        &self,
        found: &[Segment],
        replaced: &HashSet<u64>,
    ) -> Vec<ManifestFile> {
        let there: HashSet<u64> = found.iter().map(|segment| segment.meta.id).collect();
        let is_missing =
            |file: &&ManifestFile| !there.contains(&file.id) && !replaced.contains(&file.id);
        let files = self.manifest.files.iter();
        files.filter(is_missing).copied().collect()
    }
}

/// The marks of an open store.
pub(crate) struct SeriesMarks {
    marks: HighWaterMarks,
}

impl SeriesMarks {
    /// Creates the marks from what a start has found, all of which is on disk.
    pub(crate) fn create(
        dir: &Path,
        last_lsn: [u64; PARTITION_COUNT],
        keys: u32,
        next_deletion: u64,
    ) -> Result<Self, SeriesOpenError> {
        let mut numbers = vec![0; MARK_COUNT];
        for (partition, lsn) in last_lsn.into_iter().enumerate() {
            let mark = appended_mark_index(partition);
            (numbers[mark], numbers[mark + SYNCED]) = (lsn, lsn);
        }
        (numbers[KEYS_MARK], numbers[SYNCED_KEYS_MARK]) = (keys.into(), keys.into());
        (numbers[DELETIONS_MARK], numbers[SYNCED_DELETIONS_MARK]) = (next_deletion, next_deletion);
        let marks = HighWaterMarks::create(dir, MARKS, &numbers);
        let marks = marks.map_err(io_error("write", &dir.join(MARKS)))?;
        Ok(Self { marks })
    }

    #[inline]
    pub(crate) fn set_appended(&self, partition: usize, lsn: u64) {
        self.marks.set(appended_mark_index(partition), lsn);
    }

    pub(crate) fn set_synced(&self, partition: usize, lsn: u64) {
        self.marks.set(appended_mark_index(partition) + SYNCED, lsn);
    }

    pub(crate) fn set_keys(&self, count: u32, is_synced: bool) {
        self.marks.set(KEYS_MARK, count.into());
        if is_synced {
            self.marks.set(SYNCED_KEYS_MARK, count.into());
        }
    }

    pub(crate) fn set_deletions(&self, next_number: u64, is_synced: bool) {
        self.marks.set(DELETIONS_MARK, next_number);
        if is_synced {
            self.marks.set(SYNCED_DELETIONS_MARK, next_number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_round_trips_and_changes_are_detected() {
        let manifest = Manifest {
            flushed: [9; PARTITION_COUNT],
            keys: 300,
            deletions: 4,
            next_file_id: 99,
            files: vec![ManifestFile {
                partition: 7,
                window: -3,
                id: 98,
            }],
        };
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Some(manifest));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(Manifest::decode(&changed), None, "byte {at}");
            assert_eq!(Manifest::decode(&bytes[..at]), None, "cut at {at}");
        }
    }
}
