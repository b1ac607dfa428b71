//! Deletions that may still have rows in segment files.
//!
//! A deletion applies to rows of its partition up to the last number at the time of the deletion. It is kept
//! in an append-only file until no segment file needs it any more: a head line, then per deletion 48 bytes,
//! the last four their CRC32C.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::column_table::ColumnTable;
use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::file_operations::sync_dir;
use crate::file_operations::{open_append_file, read_append_file};
use crate::inspection::{Inspection, InspectionMode};
use crate::partitioning::PARTITION_COUNT;
use crate::partitioning::partition_of;
use crate::point::{DeviceNo, KeyId};

pub(crate) const FILE: &str = "deletions";
const HEAD: &[u8] = b"tidegate series deletions 1\n";
const ENTRY: usize = 48;
const ALL_KEYS: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deletion {
    /// Number among all deletions, ascending.
    pub(crate) number: u64,
    pub(crate) device: u32,
    pub(crate) key: Option<KeyId>,
    pub(crate) from_ms: i64,
    pub(crate) to_ms: i64,
    pub(crate) lsn: u64,
}

impl Deletion {
    fn encode(&self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.device.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.key.map_or(ALL_KEYS, |key| key.0).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.from_ms.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.to_ms.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.lsn.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; ENTRY]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        (crc32c::crc32c(&bytes[..44]) == half(44)).then(|| Self {
            number: word(0),
            device: half(8),
            key: Some(KeyId(half(12))).filter(|key| key.0 != ALL_KEYS),
            from_ms: word(16) as i64,
            to_ms: word(24) as i64,
            lsn: word(32),
        })
    }

    /// Whether it deletes everything of a device.
    pub(crate) fn covers_device(&self) -> bool {
        self.key.is_none() && self.from_ms == i64::MIN && self.to_ms == i64::MAX
    }

    pub(crate) fn apply(&self, table: &mut ColumnTable) {
        table.remove(self.key, self.from_ms, self.to_ms);
    }
}

/// The file with these deletions.
pub(crate) fn encode_file(deletions: &[Deletion]) -> Vec<u8> {
    let mut bytes = HEAD.to_vec();
    deletions
        .iter()
        .for_each(|deletion| bytes.extend_from_slice(&deletion.encode()));
    bytes
}

/// Deletions of one partition by device.
pub(crate) type PartitionDeletions = HashMap<u32, Vec<Deletion>, foldhash::fast::RandomState>;

pub(crate) struct Deletions {
    path: PathBuf,
    file: File,
    end: u64,
    pub(crate) is_synced: bool,
    pub(crate) next_number: u64,
}

/// Entries of a file in order.
struct ParsedDeletions {
    deletions: Vec<Deletion>,
    /// End of the last complete entry.
    end: usize,
    next_number: u64,
    is_changed: bool,
}

/// Parses the entries of a file, which must contain the deletions below `expected`.
fn parse_deletions(
    path: &Path,
    bytes: &[u8],
    expected: u64,
    inspection: &mut Inspection,
) -> Result<ParsedDeletions, SeriesOpenError> {
    let mut parsed = ParsedDeletions {
        deletions: Vec::new(),
        end: HEAD.len(),
        next_number: 1,
        is_changed: false,
    };
    if !bytes.starts_with(HEAD) {
        inspection.report_damage(path, 0, "its head is not that of a list of deletions")?;
        parsed.is_changed = true;
    }
    let mut at = HEAD.len();
    for entry in bytes.get(at..).unwrap_or_default().chunks(ENTRY) {
        let decoded = <&[u8; ENTRY]>::try_from(entry).ok();
        let Some(deletion) = decoded.and_then(Deletion::decode) else {
            if at + ENTRY >= bytes.len() {
                // The deletion was not confirmed, unless a mark says so.
                break;
            }
            let detail = "a deletion is damaged, and further deletions follow";
            inspection.report_damage(path, at as u64, detail)?;
            parsed.is_changed = true;
            at += ENTRY;
            continue;
        };
        at += ENTRY;
        parsed.end = at;
        parsed.next_number = deletion.number + 1;
        parsed.deletions.push(deletion);
    }
    if parsed.next_number < expected {
        let detail = format!(
            "deletions up to number {} are there, and there were {}: values that were deleted would appear again",
            parsed.next_number - 1,
            expected - 1
        );
        inspection.report_damage(path, parsed.end as u64, detail)?;
        parsed.next_number = expected;
        parsed.is_changed = true;
    }
    Ok(parsed)
}

/// Deletions by partition and device.
fn group_by_partition(deletions: &[Deletion]) -> [PartitionDeletions; PARTITION_COUNT] {
    let mut of_parts: [PartitionDeletions; PARTITION_COUNT] = Default::default();
    for deletion in deletions {
        let of_part = &mut of_parts[partition_of(DeviceNo(deletion.device))];
        of_part.entry(deletion.device).or_default().push(*deletion);
    }
    of_parts
}

/// Reads the list without opening it, and returns the number of the next deletion.
pub(crate) fn inspect_deletions(
    dir: &Path,
    expected: u64,
    inspection: &mut Inspection,
) -> Result<([PartitionDeletions; PARTITION_COUNT], u64), SeriesOpenError> {
    let path = dir.join(FILE);
    let bytes = read_append_file(&path, HEAD)?;
    let mut parsed = parse_deletions(&path, &bytes, expected, inspection)?;
    if parsed.is_changed && inspection.is_repairing() {
        // Segment files record up to which number deletions were applied to them: an empty deletion preserves
        // the number.
        if parsed.deletions.last().map_or(1, |last| last.number + 1) < parsed.next_number {
            parsed.deletions.push(Deletion {
                number: parsed.next_number - 1,
                device: u32::MAX,
                key: None,
                from_ms: 0,
                to_ms: 0,
                lsn: 0,
            });
        }
        let entries = parsed.deletions.iter().flat_map(Deletion::encode);
        let bytes: Vec<u8> = HEAD.iter().copied().chain(entries).collect();
        disk::replace_file(dir, FILE, &bytes).map_err(io_error("write", &path))?;
    }
    Ok((group_by_partition(&parsed.deletions), parsed.next_number))
}

impl Deletions {
    /// Opens the list, which must have the deletions below this number.
    pub(crate) fn open(
        dir: &Path,
        is_synced: bool,
        expected: u64,
    ) -> Result<(Self, [PartitionDeletions; PARTITION_COUNT]), SeriesOpenError> {
        let path = dir.join(FILE);
        let bytes = read_append_file(&path, HEAD)?;
        let parsed = parse_deletions(
            &path,
            &bytes,
            expected,
            &mut Inspection::new(InspectionMode::Start),
        )?;
        let end = parsed.end as u64;
        let deletions = Self {
            file: open_append_file(&path, HEAD, end)?,
            path,
            end,
            is_synced,
            next_number: parsed.next_number,
        };
        Ok((deletions, group_by_partition(&parsed.deletions)))
    }

    /// Forces the list to disk; returns the number of the next deletion.
    pub(crate) fn sync(&self) -> Result<u64, SeriesError> {
        if !self.is_synced {
            let synced = self.file.sync_data();
            synced.map_err(io_error("force to disk", &self.path))?;
        }
        Ok(self.next_number)
    }

    /// Records a deletion and numbers it.
    pub(crate) fn add(&mut self, deletions: &mut [Deletion]) -> Result<(), SeriesError> {
        let mut bytes = Vec::new();
        for (deletion, number) in deletions.iter_mut().zip(self.next_number..) {
            deletion.number = number;
            bytes.extend_from_slice(&deletion.encode());
        }
        let io = |what| io_error(what, &self.path);
        self.file
            .seek(SeekFrom::Start(self.end))
            .map_err(io("write"))?;
        self.file.write_all(&bytes).map_err(io("write"))?;
        if self.is_synced {
            self.file.sync_data().map_err(io("force to disk"))?;
        }
        self.end += bytes.len() as u64;
        self.next_number += deletions.len() as u64;
        Ok(())
    }

    /// Rewrites the file with the deletions still needed. The highest number stays, so that none is reused.
    pub(crate) fn rewrite(&mut self, needed: &[Deletion]) -> Result<(), SeriesError> {
        let unfinished = self.path.with_extension("new");
        let write = || {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&unfinished)?;
            let mut bytes = HEAD.to_vec();
            needed
                .iter()
                .for_each(|deletion| bytes.extend_from_slice(&deletion.encode()));
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&unfinished, &self.path)?;
            Ok((file, bytes.len() as u64))
        };
        (self.file, self.end) = write().map_err(io_error("write", &unfinished))?;
        sync_dir(self.path.parent().expect("the file is in a directory"))
    }

    pub(crate) fn len(&self) -> usize {
        (self.end as usize - HEAD.len()) / ENTRY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_stay_until_they_are_not_needed() {
        let dir = tempfile::tempdir().unwrap();
        let deletion = |device, key| Deletion {
            number: 0,
            device,
            key,
            from_ms: -5,
            to_ms: 9,
            lsn: 77,
        };
        let (mut deletions, _) = Deletions::open(dir.path(), true, 0).unwrap();
        let mut two = [deletion(1, None), deletion(9, Some(KeyId(3)))];
        deletions.add(&mut two).unwrap();
        deletions.add(&mut [deletion(2, None)]).unwrap();
        drop(deletions);
        let path = dir.path().join("deletions");
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend_from_slice(&[7; 20]);
        fs::write(&path, &bytes).unwrap();
        let (mut deletions, of_parts) = Deletions::open(dir.path(), true, 0).unwrap();
        let part = |device| partition_of(DeviceNo(device));
        assert_eq!(of_parts[part(1)][&1], two[..1]);
        assert_eq!(of_parts[part(9)][&9], two[1..]);
        assert_eq!((deletions.len(), deletions.next_number), (3, 4));
        deletions.rewrite(&two[1..]).unwrap();
        deletions.add(&mut [deletion(4, None)]).unwrap();
        drop(deletions);
        let (deletions, of_parts) = Deletions::open(dir.path(), true, 0).unwrap();
        assert_eq!((deletions.len(), deletions.next_number), (2, 5));
        assert!(!of_parts[part(1)].contains_key(&1) && of_parts[part(4)].contains_key(&4));
        let mut bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - ENTRY]).unwrap();
        assert!(matches!(
            Deletions::open(dir.path(), true, 5),
            Err(SeriesOpenError::Damaged { .. })
        ));
        bytes[40] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(
            Deletions::open(dir.path(), true, 0),
            Err(SeriesOpenError::Damaged { .. })
        ));
    }
}
