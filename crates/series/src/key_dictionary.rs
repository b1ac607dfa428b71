//! Dictionary of key names and their numbers, in an append-only file.
//!
//! A look-up takes no lock: slots of an open-addressed table contain numbers, and names never move. File: a
//! head line, then per key the CRC32C of the rest, the length (2 bytes) and the name. The number of a key is
//! its position.
//!
//! New keys are reserved first, in memory only, and written together when they are committed. A sync takes
//! milliseconds, and one message may bring thousands of new keys. Invariant: look-ups and rows know a key only when
//! its name is in the file, and on disk if the policy demands it.

use std::collections::HashMap;
use std::fs::File;
use std::hash::BuildHasher as _;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::{SeriesError, SeriesOpenError, io_error};
use crate::file_operations::{open_append_file, read_append_file};
use crate::inspection::{Inspection, InspectionMode};
use crate::lock::lock;
use crate::point::KeyId;
use crate::series_marks::SeriesMarks;

pub(crate) const FILE: &str = "keys";
const HEAD: &[u8] = b"tidegate series keys 1\n";
const MAX_NAME: usize = 1024;
const PAGE: usize = 1024;

type NamePage = Box<[OnceLock<Box<str>>]>;

pub(crate) struct KeyDictionary {
    hasher: foldhash::fast::RandomState,
    /// Number of the name plus one; 0 for an empty slot.
    slots: Box<[AtomicU32]>,
    names: Box<[OnceLock<NamePage>]>,
    len: AtomicU32,
    max: u32,
    is_synced: bool,
    file: Mutex<KeyFile>,
    path: PathBuf,
    marks: OnceLock<Arc<SeriesMarks>>,
}

struct KeyFile {
    file: File,
    /// End of the committed keys.
    end: u64,
    /// Keys that are not committed: their numbers follow those of the committed keys.
    reserved: HashMap<Box<str>, KeyId>,
}

/// Names of a file in order; `None` for names that a repair found lost.
struct ParsedKeys {
    names: Vec<Option<String>>,
    /// End of the last complete entry.
    end: usize,
    is_changed: bool,
}

/// Parses the entries of a file, which must contain at least `expected` names.
fn parse_keys(
    path: &Path,
    bytes: &[u8],
    expected: u32,
    inspection: &mut Inspection,
) -> Result<ParsedKeys, SeriesOpenError> {
    let mut names = Vec::new();
    let (mut at, mut end, mut is_changed) = (HEAD.len(), HEAD.len(), false);
    if !bytes.starts_with(HEAD) {
        inspection.report_damage(path, 0, "its head is not that of a key dictionary")?;
        is_changed = true;
    }
    let mut gap = None;
    while at < bytes.len() {
        let Some(len) = entry_len(&bytes[at..]) else {
            // A crash interrupted the write of a name: its number was never returned. Names behind it would
            // indicate damage.
            let is_entry = |later: &usize| entry_len(&bytes[*later..]).is_some_and(|len| len > 6);
            let Some(later) = (at + 1..bytes.len()).find(is_entry) else {
                break;
            };
            let detail = "a key name is damaged, and further names follow";
            inspection.report_damage(path, at as u64, detail)?;
            (at, gap, is_changed) = (later, Some(names.len()), true);
            continue;
        };
        let Ok(name) = std::str::from_utf8(&bytes[at + 6..at + len]) else {
            return Err(damaged_name(path, at));
        };
        names.push(Some(name.to_owned()));
        at += len;
        end = at;
    }
    let expected = expected as usize;
    let lost = expected.saturating_sub(names.len());
    if lost > 0 {
        if gap.is_none() {
            let detail = format!(
                "it has {} keys, and there were {expected}: rows are stored of the {lost} that are lost, and their numbers \
                 must not be given to others",
                names.len()
            );
            inspection.report_damage(path, end as u64, detail)?;
        }
        let at = gap.unwrap_or(names.len());
        names.splice(at..at, std::iter::repeat_n(None, lost));
        is_changed = true;
    }
    Ok(ParsedKeys {
        names,
        end,
        is_changed,
    })
}

fn damaged_name(path: &Path, at: usize) -> SeriesOpenError {
    SeriesOpenError::Damaged {
        path: path.to_owned(),
        offset: at as u64,
        detail: "a name is not UTF-8".to_owned(),
    }
}

fn encode(name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The file with these names in order.
pub(crate) fn encode_file<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut bytes = HEAD.to_vec();
    names.for_each(|name| bytes.extend_from_slice(&encode(name)));
    bytes
}

/// Reads the dictionary without opening it and returns the number of keys. A repair gives replacement names
/// to keys whose names are lost.
pub(crate) fn inspect_keys(
    dir: &Path,
    expected: u32,
    inspection: &mut Inspection,
) -> Result<u32, SeriesOpenError> {
    let path = dir.join(FILE);
    let bytes = read_append_file(&path, HEAD)?;
    let parsed = parse_keys(&path, &bytes, expected, inspection)?;
    if parsed.is_changed && inspection.is_repairing() {
        let mut bytes = HEAD.to_vec();
        for (number, name) in parsed.names.iter().enumerate() {
            let lost = || format!("lost-key-{number}");
            bytes.extend_from_slice(&encode(&name.clone().unwrap_or_else(lost)));
        }
        disk::replace_file(dir, FILE, &bytes).map_err(io_error("write", &path))?;
    }
    Ok(parsed.names.len() as u32)
}

impl KeyDictionary {
    /// Opens the dictionary, which must have this many keys.
    pub(crate) fn open(
        dir: &Path,
        max: u32,
        is_synced: bool,
        expected: u32,
    ) -> Result<Self, SeriesOpenError> {
        let path = dir.join(FILE);
        let bytes = read_append_file(&path, HEAD)?;
        let parsed = parse_keys(
            &path,
            &bytes,
            expected,
            &mut Inspection::new(InspectionMode::Start),
        )?;
        if parsed.names.len() > max as usize {
            return Err(SeriesOpenError::Setting {
                field: "max_keys",
                found: max.to_string(),
                expected: format!(
                    "no fewer than there are keys already, {}",
                    parsed.names.len()
                ),
            });
        }
        let end = parsed.end as u64;
        let file = open_append_file(&path, HEAD, end)?;
        let slots = (max as usize * 2).next_power_of_two();
        let keys = Self {
            hasher: foldhash::fast::RandomState::default(),
            slots: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            names: (0..(max as usize).div_ceil(PAGE))
                .map(|_| OnceLock::new())
                .collect(),
            len: AtomicU32::new(0),
            max,
            is_synced,
            file: Mutex::new(KeyFile {
                file,
                end,
                reserved: HashMap::new(),
            }),
            path,
            marks: OnceLock::new(),
        };
        for name in parsed.names.iter().flatten() {
            keys.insert(name);
        }
        Ok(keys)
    }

    /// New keys are recorded in these marks from now on.
    pub(crate) fn set_marks(&self, guard: &Arc<SeriesMarks>) {
        let _ = self.marks.set(Arc::clone(guard));
    }

    /// Forces all names to disk.
    pub(crate) fn sync(&self) -> Result<u32, SeriesError> {
        let file = lock(&self.file);
        if !self.is_synced {
            let synced = file.file.sync_data();
            synced.map_err(io_error("force to disk", &self.path))?;
        }
        Ok(self.len())
    }

    fn hash(&self, name: &str) -> usize {
        self.hasher.hash_one(name) as usize
    }

    pub(crate) fn find(&self, name: &str) -> Option<KeyId> {
        let mask = self.slots.len() - 1;
        let mut at = self.hash(name) & mask;
        loop {
            let id = self.slots[at].load(Ordering::Acquire).checked_sub(1)?;
            if self.name(KeyId(id)) == Some(name) {
                return Some(KeyId(id));
            }
            at = (at + 1) & mask;
        }
    }

    pub(crate) fn name(&self, key: KeyId) -> Option<&str> {
        let page = self.names.get(key.0 as usize / PAGE)?.get()?;
        Some(page[key.0 as usize % PAGE].get()?)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the key of this name; creates it if it does not exist.
    pub(crate) fn get_or_create(&self, name: &str) -> Result<KeyId, SeriesError> {
        let key = self.reserve(name, &mut |_| true)?;
        self.commit()?;
        // It is rejected only by the closure.
        key.ok_or(SeriesError::TooManyKeys { max: self.max })
    }

    /// Returns the key of this name. A key that does not exist is reserved if `admit`, which gets the number of keys
    /// that can still be created, agrees; `None`: it does not. Rows with the key are accepted, and look-ups find it,
    /// after a [`commit`](Self::commit).
    pub(crate) fn reserve(
        &self,
        name: &str,
        admit: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<KeyId>, SeriesError> {
        if let Some(key) = self.find(name) {
            return Ok(Some(key));
        }
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(SeriesError::KeyName {
                found: name.len(),
                max: MAX_NAME,
            });
        }
        let mut file = lock(&self.file);
        if let Some(key) = file.reserved.get(name).copied().or_else(|| self.find(name)) {
            return Ok(Some(key));
        }
        let count = self.len() + file.reserved.len() as u32;
        if count >= self.max {
            return Err(SeriesError::TooManyKeys { max: self.max });
        }
        if !admit(self.max - count) {
            return Ok(None);
        }
        file.reserved.insert(name.into(), KeyId(count));
        Ok(Some(KeyId(count)))
    }

    /// Writes all reserved keys, of all callers, with one sync. After an error they stay reserved, and the next call
    /// writes them again.
    pub(crate) fn commit(&self) -> Result<(), SeriesError> {
        let mut guard = lock(&self.file);
        let KeyFile {
            file,
            end,
            reserved,
        } = &mut *guard;
        if reserved.is_empty() {
            return Ok(());
        }
        let mut names: Vec<(&str, KeyId)> =
            reserved.iter().map(|(name, key)| (&**name, *key)).collect();
        names.sort_unstable_by_key(|(_, key)| *key);
        let bytes: Vec<u8> = names.iter().flat_map(|(name, _)| encode(name)).collect();
        let io = |what| io_error(what, &self.path);
        file.seek(SeekFrom::Start(*end)).map_err(io("write"))?;
        file.write_all(&bytes).map_err(io("write"))?;
        if self.is_synced {
            // From now on, rows with these numbers may be forced to disk at any time.
            file.sync_data().map_err(io("force to disk"))?;
        }
        *end += bytes.len() as u64;
        for (name, key) in names {
            let inserted = self.insert(name);
            debug_assert_eq!(inserted, key, "numbers are given in the order of the file");
        }
        reserved.clear();
        if let Some(guard) = self.marks.get() {
            guard.set_keys(self.len(), self.is_synced);
        }
        Ok(())
    }

    fn insert(&self, name: &str) -> KeyId {
        let id = self.len.load(Ordering::Relaxed);
        let make_page = || (0..PAGE).map(|_| OnceLock::new()).collect();
        let page = self.names[id as usize / PAGE].get_or_init(make_page);
        let is_new = page[id as usize % PAGE].set(name.into()).is_ok();
        debug_assert!(is_new, "a number is given once");
        let mask = self.slots.len() - 1;
        let mut at = self.hash(name) & mask;
        while self.slots[at].load(Ordering::Relaxed) != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at].store(id + 1, Ordering::Release);
        self.len.store(id + 1, Ordering::Release);
        KeyId(id)
    }
}

/// Length of the complete entry at the start of the bytes.
fn entry_len(bytes: &[u8]) -> Option<usize> {
    let len = u16::from_le_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let end = 6 + usize::from(len);
    let rest = bytes.get(4..end)?;
    let crc = u32::from_le_bytes(bytes[..4].try_into().expect("4 were taken"));
    (len > 0 && crc32c::crc32c(rest) == crc).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_committed_together_and_not_visible_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let keys = KeyDictionary::open(dir.path(), 10, true, 0).unwrap();
        let reserve = |name: &str| keys.reserve(name, &mut |_| true).unwrap();
        let empty = std::fs::read(&path).unwrap();
        for (name, number) in [("a", 0), ("b", 1), ("a", 0)] {
            assert_eq!(reserve(name), Some(KeyId(number)));
        }
        assert_eq!(std::fs::read(&path).unwrap(), empty);
        assert_eq!((keys.find("a"), keys.len()), (None, 0));
        keys.commit().unwrap();
        assert_eq!((keys.find("b"), keys.len()), (Some(KeyId(1)), 2));
        // A key of another caller follows those that are reserved, and commits them, too.
        assert_eq!(reserve("c"), Some(KeyId(2)));
        assert_eq!(keys.get_or_create("d").unwrap(), KeyId(3));
        assert_eq!(keys.find("c"), Some(KeyId(2)));
        let mut room = 0;
        let rejected = keys.reserve("e", &mut |free| {
            room = free;
            false
        });
        assert_eq!((rejected.unwrap(), room), (None, 6));
        assert_eq!(
            keys.reserve("a", &mut |_| false).unwrap(),
            Some(KeyId(0)),
            "only new keys need room"
        );
        // It was never written: its number is free again.
        assert_eq!(reserve("lost"), Some(KeyId(4)));
        drop(keys);
        let keys = KeyDictionary::open(dir.path(), 10, true, 4).unwrap();
        assert_eq!((keys.len(), keys.find("d")), (4, Some(KeyId(3))));
    }

    #[test]
    fn names_keep_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..3000).map(|number| format!("key{number}")).collect();
        {
            let keys = KeyDictionary::open(dir.path(), 4000, false, 0).unwrap();
            for (at, name) in names.iter().enumerate() {
                assert_eq!(keys.find(name), None);
                assert_eq!(keys.get_or_create(name).unwrap(), KeyId(at as u32));
            }
        }
        // The beginning of a name whose number was never returned.
        let path = dir.path().join("keys");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(&[1, 2, 3, 4, 200, 0, b'x']);
        std::fs::write(&path, &bytes).unwrap();
        let keys = KeyDictionary::open(dir.path(), 3001, false, 3000).unwrap();
        for (at, name) in names.iter().enumerate() {
            assert_eq!(keys.find(name), Some(KeyId(at as u32)));
            assert_eq!(keys.name(KeyId(at as u32)), Some(name.as_str()));
        }
        assert_eq!(keys.get_or_create("one more").unwrap(), KeyId(3000));
        assert!(matches!(
            keys.get_or_create("too many"),
            Err(SeriesError::TooManyKeys { max: 3001 })
        ));
        assert!(keys.get_or_create("").is_err());
        drop(keys);
        let mut bytes = std::fs::read(&path).unwrap();
        let cut = &bytes[..bytes.len() - 3];
        std::fs::write(&path, cut).unwrap();
        assert!(matches!(
            KeyDictionary::open(dir.path(), 4000, false, 3001),
            Err(SeriesOpenError::Damaged { .. })
        ));
        assert_eq!(std::fs::read(&path).unwrap(), cut, "nothing is changed");
        bytes[1000] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(
            KeyDictionary::open(dir.path(), 4000, false, 0),
            Err(SeriesOpenError::Damaged { .. })
        ));
    }
}
