//! Names of keys and their numbers, in a file that only grows.
//!
//! Looking a name up takes no lock: slots of an open-addressed table hold numbers, names never move. File: a head line, then
//! per key the CRC32C of the rest, the length (2 bytes) and the name. A number is a name's place.

use std::fs::File;
use std::hash::BuildHasher as _;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::directory::list;
use crate::error::{Error, OpenError, io_error};
use crate::point::KeyId;

const HEAD: &[u8] = b"tidegate series keys 1\n";
const MAX_NAME: usize = 1024;
const PAGE: usize = 1024;

type Page = Box<[OnceLock<Box<str>>]>;

pub(crate) struct Keys {
    hasher: foldhash::fast::RandomState,
    /// Numbers of names plus one, 0 where there is none.
    slots: Box<[AtomicU32]>,
    names: Box<[OnceLock<Page>]>,
    len: AtomicU32,
    max: u32,
    is_synced: bool,
    file: Mutex<(File, u64)>,
    path: PathBuf,
}

impl Keys {
    pub(crate) fn open(dir: &Path, max: u32, is_synced: bool) -> Result<Self, OpenError> {
        let path = dir.join("keys");
        let (file, bytes) = list(&path, HEAD)?;
        let damaged = |offset: usize, detail: &str| OpenError::Damaged {
            path: path.clone(),
            offset: offset as u64,
            detail: detail.to_owned(),
        };
        if !bytes.starts_with(HEAD) {
            return Err(damaged(
                0,
                "it does not begin as the dictionary of keys does",
            ));
        }
        let slots = (max as usize * 2).next_power_of_two();
        let mut keys = Self {
            hasher: foldhash::fast::RandomState::default(),
            slots: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            names: (0..(max as usize).div_ceil(PAGE))
                .map(|_| OnceLock::new())
                .collect(),
            len: AtomicU32::new(0),
            max,
            is_synced,
            file: Mutex::new((file, 0)),
            path: path.clone(),
        };
        let mut at = HEAD.len();
        while at < bytes.len() {
            let Some(end) = entry(&bytes[at..]).map(|len| at + len) else {
                // A crash while a name was written: nobody was given its number. Names behind it show damage.
                if (at + 1..bytes.len())
                    .any(|later| entry(&bytes[later..]).is_some_and(|len| len > 6))
                {
                    return Err(damaged(
                        at,
                        "the name of a key is not what was written, and others follow",
                    ));
                }
                break;
            };
            let name = std::str::from_utf8(&bytes[at + 6..end])
                .map_err(|_| damaged(at, "a name is not UTF-8"))?;
            if keys.len.load(Ordering::Relaxed) == max {
                return Err(OpenError::Setting {
                    field: "max_keys",
                    found: max.to_string(),
                    expected: "no fewer than there are keys already".to_owned(),
                });
            }
            keys.put(name);
            at = end;
        }
        let file = keys.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        file.0.set_len(at as u64).map_err(io_error("cut", &path))?;
        file.1 = at as u64;
        Ok(keys)
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

    /// The key of this name, made if it is not there.
    pub(crate) fn make(&self, name: &str) -> Result<KeyId, Error> {
        if let Some(key) = self.find(name) {
            return Ok(key);
        }
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::KeyName {
                found: name.len(),
                max: MAX_NAME,
            });
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = self.find(name) {
            return Ok(key);
        }
        if self.len() >= self.max {
            return Err(Error::TooManyKeys { max: self.max });
        }
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        let (file, end) = &mut *file;
        let io = |what| io_error(what, &self.path);
        file.seek(SeekFrom::Start(*end)).map_err(io("write"))?;
        file.write_all(&bytes).map_err(io("write"))?;
        if self.is_synced {
            // Rows that name this number may be forced to disk at any time from now on.
            file.sync_data().map_err(io("force to disk"))?;
        }
        *end += bytes.len() as u64;
        Ok(self.put(name))
    }

    fn put(&self, name: &str) -> KeyId {
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

/// The length of the whole entry that stands there.
fn entry(bytes: &[u8]) -> Option<usize> {
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
    fn names_keep_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..3000).map(|number| format!("key{number}")).collect();
        {
            let keys = Keys::open(dir.path(), 4000, false).unwrap();
            for (at, name) in names.iter().enumerate() {
                assert_eq!(keys.find(name), None);
                assert_eq!(keys.make(name).unwrap(), KeyId(at as u32));
            }
        }
        // The end of a name that was never given out.
        let path = dir.path().join("keys");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(&[1, 2, 3, 4, 200, 0, b'x']);
        std::fs::write(&path, &bytes).unwrap();
        let keys = Keys::open(dir.path(), 3001, false).unwrap();
        for (at, name) in names.iter().enumerate() {
            assert_eq!(keys.find(name), Some(KeyId(at as u32)));
            assert_eq!(keys.name(KeyId(at as u32)), Some(name.as_str()));
        }
        assert_eq!(keys.make("one more").unwrap(), KeyId(3000));
        assert!(matches!(
            keys.make("too many"),
            Err(Error::TooManyKeys { max: 3001 })
        ));
        assert!(keys.make("").is_err());
        drop(keys);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(
            Keys::open(dir.path(), 4000, false),
            Err(OpenError::Damaged { .. })
        ));
    }
}
