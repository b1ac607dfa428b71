//! Who has a name, in memory: for all names of all devices a part of a hash and the device's number, some 20 bytes.
//!
//! A device that connects after the node has started is found with one look at the disk instead of two, and a name that nobody
//! has with none. What stands here only says where to look: two names may have the same part of a hash, and a name that has been
//! taken away may still be here, so that the record of the device is asked whether it has the name. What has a name is here,
//! once the table of names has been read; before that, the table itself is asked.

use std::hash::BuildHasher as _;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use series::DeviceNo;
use store::Table;

use super::keys::{NAME_PREFIXES, no_at_end};

const STRIPES: usize = 16;
/// So many devices are read before the registry is open; more, while it is used.
const MAX_SYNC_LOAD: u32 = 20_000;

type NameTable = HashTable<NameEntry>;

#[derive(Clone, Copy, PartialEq, Eq)]
struct NameEntry {
    part: u32,
    no: u32,
}

impl NameEntry {
    fn hash(part: u32) -> u64 {
        // The upper bits and the lower ones are both used.
        u64::from(part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[derive(Default)]
pub(super) struct NameIndex {
    shared: Arc<NameIndexShared>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct NameIndexShared {
    state: RandomState,
    stripes: [RwLock<NameTable>; STRIPES],
    /// All names are here.
    is_complete: AtomicBool,
    /// Grows when everything is forgotten; who has begun to read before that stops.
    generation: AtomicU64,
}

/// Devices that may have a name.
pub(super) enum NameCandidates {
    /// One of these, or nobody.
    Devices(Vec<DeviceNo>),
    /// The table of names has to be asked.
    NotLoaded,
}

impl NameIndex {
    /// Forgets everything and reads the table of names, on another thread if there are many devices.
    pub(super) fn load(&self, index: &Table, devices: u32) {
        let turn = self.stop();
        // Most devices have an id and one credential with a name.
        let expected = devices as usize * 2 / STRIPES;
        for shard in &self.shared.stripes {
            let mut entries = shard.write().unwrap_or_else(PoisonError::into_inner);
            *entries = NameTable::with_capacity(expected);
        }
        if devices <= MAX_SYNC_LOAD {
            self.shared.fill(index, turn);
            return;
        }
        let (shared, index) = (Arc::clone(&self.shared), index.clone());
        let named = std::thread::Builder::new().name("device-name-index".to_owned());
        let read = move || {
            let started = Instant::now();
            let names = shared.fill(&index, turn);
            let duration_ms = started.elapsed().as_millis() as u64;
            if let Some(names) = names {
                tracing::info!(names, duration_ms, "names of devices are in memory");
            }
        };
        match named.spawn(read) {
            Ok(reader) => {
                let mut place = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
                *place = Some(reader);
            }
            Err(error) => {
                tracing::warn!(%error, "no thread to read names of devices: they are looked up on the disk");
            }
        }
    }

    /// What is here does not hold any more: the table is asked until it is read again.
    pub(super) fn clear(&self) {
        self.stop();
    }

    /// Waits for the thread that reads, which gives up.
    fn stop(&self) -> u64 {
        let turn = self.shared.generation.fetch_add(1, Ordering::AcqRel) + 1;
        self.shared.is_complete.store(false, Ordering::Release);
        let mut place = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = place.take()
            && reader.join().is_err()
        {
            tracing::error!("the thread that reads names of devices has panicked");
        }
        // It may have been done just then.
        self.shared.is_complete.store(false, Ordering::Release);
        turn
    }

    pub(super) fn is_complete(&self) -> bool {
        self.shared.is_complete.load(Ordering::Acquire)
    }

    /// Who may have the name that this row of the table is for.
    pub(super) fn find(&self, row: &[u8]) -> NameCandidates {
        if !self.is_complete() {
            return NameCandidates::NotLoaded;
        }
        let (shard, part) = self.shared.stripe_of(row);
        let entries = shard.read().unwrap_or_else(PoisonError::into_inner);
        let same = entries.iter_hash(NameEntry::hash(part));
        let same = same.filter(|entry| entry.part == part);
        NameCandidates::Devices(same.map(|entry| DeviceNo(entry.no)).collect())
    }

    /// The device has this name, or will have.
    pub(super) fn add(&self, row: &[u8], no: DeviceNo) {
        self.shared.add(row, no);
    }

    /// The device does not have it any more.
    pub(super) fn remove(&self, row: &[u8], no: DeviceNo) {
        let (shard, part) = self.shared.stripe_of(row);
        let mut entries = shard.write().unwrap_or_else(PoisonError::into_inner);
        let entry = NameEntry { part, no: no.0 };
        if let Ok(found) = entries.find_entry(NameEntry::hash(part), |known| *known == entry) {
            found.remove();
        }
    }
}

impl Drop for NameIndex {
    fn drop(&mut self) {
        self.stop();
    }
}

impl NameIndexShared {
    fn stripe_of(&self, row: &[u8]) -> (&RwLock<NameTable>, u32) {
        let hash = self.state.hash_one(row);
        (&self.stripes[hash as usize % STRIPES], (hash >> 32) as u32)
    }

    fn add(&self, row: &[u8], no: DeviceNo) {
        let (shard, part) = self.stripe_of(row);
        let mut entries = shard.write().unwrap_or_else(PoisonError::into_inner);
        let entry = NameEntry { part, no: no.0 };
        let hash = NameEntry::hash(part);
        if entries.find(hash, |known| *known == entry).is_none() {
            entries.insert_unique(hash, entry, |entry| NameEntry::hash(entry.part));
        }
    }

    /// Takes all names in, and says how many. Those that change meanwhile are told as well.
    fn fill(&self, index: &Table, turn: u64) -> Option<u64> {
        let mut names = 0;
        let is_wanted = || self.generation.load(Ordering::Acquire) == turn;
        for kind in NAME_PREFIXES {
            let scanned = index.scan(&[kind], Bound::Unbounded, &mut |row, value| {
                if let Some(no) = no_at_end(value) {
                    self.add(row, no);
                    names += 1;
                }
                is_wanted()
            });
            if let Err(error) = scanned {
                tracing::error!(%error, "names of devices cannot be read: they are looked up one by one");
                return None;
            }
        }
        if !is_wanted() {
            return None;
        }
        self.is_complete.store(true, Ordering::Release);
        Some(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{Durability, Store, StoreConfig};

    fn these(names: &NameIndex, row: &[u8]) -> Vec<u32> {
        match names.find(row) {
            NameCandidates::Devices(found) => found.iter().map(|no| no.0).collect(),
            NameCandidates::NotLoaded => panic!("it was read"),
        }
    }

    #[test]
    fn names_are_found_whether_they_were_read_or_told() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
        let index = store.tables().table("device_index").unwrap();
        let mut batch = store.tables().batch().unwrap();
        let row = |no: u32| format!("iname-{no}").into_bytes();
        for no in 0..50_000_u32 {
            batch.put(&index, &row(no), &no.to_be_bytes()).unwrap();
        }
        batch.put(&index, b"pproduct\0\0\0\0\x01", b"").unwrap();
        batch.commit(Durability::Buffered).unwrap();
        let names = NameIndex::default();
        assert!(matches!(names.find(&row(1)), NameCandidates::NotLoaded));
        // On another thread, while names come and go.
        names.load(&index, 50_000);
        names.add(b"tnew", DeviceNo(70_000));
        names.add(b"tnew", DeviceNo(70_000));
        names.remove(b"tnone", DeviceNo(1));
        names.reader.lock().unwrap().take().unwrap().join().unwrap();
        for no in 0..50_000 {
            assert!(these(&names, &row(no)).contains(&no));
        }
        assert_eq!(these(&names, b"tnew"), [70_000]);
        names.remove(b"tnew", DeviceNo(70_000));
        assert!(these(&names, b"tnew").is_empty());
        // Another name for a product is not one of a device.
        assert!(these(&names, b"pproduct\0\0\0\0\x01").is_empty());
        let unknown = (0..10_000).map(|at| these(&names, format!("u{at}").as_bytes()).len());
        assert!(unknown.sum::<usize>() < 3, "one in 10^5 is found by chance");
        // Everything anew, and at once.
        names.load(&index, 0);
        assert!(these(&names, &row(7)).contains(&7));
        assert!(these(&names, b"tnew").is_empty());
    }

    #[test]
    fn reading_ends_when_it_is_not_wanted_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
        let index = store.tables().table("device_index").unwrap();
        for _ in 0..20 {
            let names = NameIndex::default();
            names.load(&index, MAX_SYNC_LOAD + 1);
            names.load(&index, MAX_SYNC_LOAD + 1);
            drop(names);
        }
        drop(index);
        drop(store);
        // Nobody holds the directory.
        Store::open(dir.path(), StoreConfig::default()).unwrap();
    }
}
