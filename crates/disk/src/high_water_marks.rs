//! High-water marks of logs, stored in a file outside the logs, so that a lost tail or a lost file is detected.
//!
//! The file is mapped into memory: setting a mark is one store instruction without a system call, and it survives the
//! end of the process. After a power failure a mark may be newer than its log, because nothing orders the two on disk.
//! The file therefore contains the id of the boot in which it was written. `is_same_boot` of [`MarksFileState`] says
//! whether marks of unsynced data can be trusted.
//!
//! Layout, little-endian: `TGMARKS1`, CRC32C of bytes 12 to 63 (4), number of marks (4), boot id (36 bytes of text),
//! zeros up to 128; then 8 bytes for each mark, the number in the lower 48 bits and a check of it in the upper 16.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

const MAGIC: &[u8; 8] = b"TGMARKS1";
const HEAD: usize = 128;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const BOOT_BYTES: usize = 36;
const NUMBER_BITS: u32 = 48;
/// The largest value of a mark.
pub const MAX_HIGH_WATER_MARK: u64 = (1 << NUMBER_BITS) - 1;
/// Marks per pair of cache lines. Threads that set marks concurrently should use separate pairs.
pub const MARKS_PER_CACHE_LINE_PAIR: usize = 16;

/// The content of a marks file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarksFileState {
    /// The file does not exist.
    Missing,
    /// The file fails its checks.
    Damaged,
    Intact {
        numbers: Vec<u64>,
        /// The system has not been restarted since the marks were set, so everything written before them is present,
        /// synced or not.
        is_same_boot: bool,
    },
}

/// A mapped marks file.
pub struct HighWaterMarks {
    map: MmapRaw,
    len: usize,
}

#[inline]
fn encode(number: u64) -> u64 {
    let check = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> NUMBER_BITS;
    number | check << NUMBER_BITS
}

fn decode(word: u64) -> Option<u64> {
    let number = word & MAX_HIGH_WATER_MARK;
    (encode(number) == word).then_some(number)
}

/// The id of the current boot; empty if the system provides none, and an empty id matches no boot.
fn boot_id() -> [u8; BOOT_BYTES] {
    let mut id = [0; BOOT_BYTES];
    if let Ok(text) = fs::read(BOOT_ID)
        && let Some(text) = text.first_chunk::<BOOT_BYTES>()
    {
        id = *text;
    }
    id
}

fn encode_head(marks: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[12..16].copy_from_slice(&(marks as u32).to_le_bytes());
    head[16..16 + BOOT_BYTES].copy_from_slice(&boot_id());
    let crc = crc32c::crc32c(&head[12..64]);
    head[8..12].copy_from_slice(&crc.to_le_bytes());
    head
}

fn parse(bytes: &[u8]) -> Option<MarksFileState> {
    let (head, words) = bytes.split_first_chunk::<HEAD>()?;
    let (crc, marks) = (&head[8..12], &head[12..16]);
    let is_whole = head.starts_with(MAGIC)
        && crc32c::crc32c(&head[12..64]).to_le_bytes() == crc
        && head[64..].iter().all(|&byte| byte == 0);
    let marks = u32::from_le_bytes(marks.try_into().ok()?) as usize;
    if !is_whole || words.len() != marks.checked_mul(8)? {
        return None;
    }
    let (words, _) = words.as_chunks::<8>();
    let numbers = words.iter().map(|word| decode(u64::from_le_bytes(*word)));
    let boot = boot_id();
    Some(MarksFileState::Intact {
        numbers: numbers.collect::<Option<_>>()?,
        is_same_boot: boot != [0; BOOT_BYTES] && head[16..16 + BOOT_BYTES] == boot,
    })
}

/// Reads a marks file without changing it.
///
/// # Errors
/// If the file system returns an error.
pub fn read_high_water_marks(path: &Path) -> io::Result<MarksFileState> {
    match fs::read(path) {
        Ok(bytes) => Ok(parse(&bytes).unwrap_or(MarksFileState::Damaged)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(MarksFileState::Missing),
        Err(error) => Err(error),
    }
}

impl HighWaterMarks {
    /// Replaces the file `name` in a directory by one with these marks, and maps it.
    ///
    /// # Errors
    /// If the file system returns an error; the old file may still be in place.
    pub fn create(dir: &Path, name: &str, numbers: &[u64]) -> io::Result<Self> {
        let mut bytes = encode_head(numbers.len()).to_vec();
        for &number in numbers {
            bytes.extend_from_slice(&encode(number.min(MAX_HIGH_WATER_MARK)).to_le_bytes());
        }
        crate::directory::replace_file(dir, name, &bytes)?;
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .open(dir.join(name))?;
        let map = MmapOptions::new().len(bytes.len()).map_raw(&file)?;
        Ok(Self {
            map,
            len: numbers.len(),
        })
    }

    /// Sets a mark. The data it covers must already be written.
    ///
    /// # Panics
    /// If the index of the mark is out of range.
    #[inline]
    pub fn set(&self, mark: usize, number: u64) {
        assert!(mark < self.len, "mark index out of range");
        debug_assert!(number <= MAX_HIGH_WATER_MARK, "a mark has 48 bits");
        // SAFETY: the map begins at a page, has `len` words behind its head, lives as long as `self`, and is only
        // written by whole words here; the directory is locked by this process, so that no other process truncates the
        // file.
        let word = unsafe {
            let words = self.map.as_mut_ptr().add(HEAD).cast::<u64>();
            AtomicU64::from_ptr(words.add(mark))
        };
        word.store(
            encode(number & MAX_HIGH_WATER_MARK).to_le(),
            Ordering::Release,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_back_as_they_were_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marks");
        assert_eq!(
            read_high_water_marks(&path).unwrap(),
            MarksFileState::Missing
        );
        let marks =
            HighWaterMarks::create(dir.path(), "marks", &[0, 5, MAX_HIGH_WATER_MARK]).unwrap();
        marks.set(0, 77);
        marks.set(1, 6);
        drop(marks);
        let MarksFileState::Intact { numbers, .. } = read_high_water_marks(&path).unwrap() else {
            panic!("the marks cannot be read");
        };
        assert_eq!(numbers, [77, 6, MAX_HIGH_WATER_MARK]);
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marks");
        drop(HighWaterMarks::create(dir.path(), "marks", &[3; 20]).unwrap());
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            fs::write(&path, &changed).unwrap();
            assert_eq!(
                read_high_water_marks(&path).unwrap(),
                MarksFileState::Damaged,
                "byte {at}"
            );
            fs::write(&path, &bytes[..at]).unwrap();
            assert_eq!(
                read_high_water_marks(&path).unwrap(),
                MarksFileState::Damaged,
                "cut at {at}"
            );
        }
        fs::write(&path, vec![0; bytes.len()]).unwrap();
        assert_eq!(
            read_high_water_marks(&path).unwrap(),
            MarksFileState::Damaged
        );
    }

    #[test]
    fn another_boot_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        drop(HighWaterMarks::create(dir.path(), "marks", &[1]).unwrap());
        let path = dir.path().join("marks");
        let mut bytes = fs::read(&path).unwrap();
        bytes[16..16 + BOOT_BYTES].copy_from_slice(&[b'7'; BOOT_BYTES]);
        let crc = crc32c::crc32c(&bytes[12..64]).to_le_bytes();
        bytes[8..12].copy_from_slice(&crc);
        fs::write(&path, &bytes).unwrap();
        let whole = MarksFileState::Intact {
            numbers: vec![1],
            is_same_boot: false,
        };
        assert_eq!(read_high_water_marks(&path).unwrap(), whole);
    }
}
