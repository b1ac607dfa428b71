//! In-memory index of names: part of a hash and the device number for each name of each device, about 20 bytes per
//! name.
//!
//! A device that connects after a start is found with one read from disk instead of two, and an unknown name without
//! any. Entries are hints only: two names may share a hash part, and a removed name may still be listed. The caller
//! therefore checks the name against the device record. Once the table of names has been read, every existing name is
//! listed; before that, the table itself is queried.

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
/// Maximum number of devices whose names are read before the registry opens; more are loaded in the background.
const MAX_SYNC_LOAD: u32 = 20_000;

type NameTable = HashTable<NameEntry>;

#[derive(Clone, Copy, PartialEq, Eq)]
struct NameEntry {
    part: u32,
    no: u32,
}

impl NameEntry {
    fn hash(part: u32) -> u64 {
        // The hash map uses both the upper and the lower bits.
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
    /// All names are loaded.
    is_complete: AtomicBool,
    /// Increases when the index is cleared; a loader that started earlier stops.
    generation: AtomicU64,
}

/// Devices that may have a name.
pub(super) enum NameCandidates {
    /// One of these devices has the name, or none does.
    Devices(Vec<DeviceNo>),
    /// The caller has to query the table of names.
    NotLoaded,
}

impl NameIndex {
    /// Clears the index and reads the table of names, on another thread if there are many devices.
    pub(super) fn load(&self, index: &Table, devices: u32) {
        let turn = self.stop();
        // Most devices have an id and one named credential.
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
                tracing::info!(names, duration_ms, "device names loaded into memory");
            }
        };
        match named.spawn(read) {
            Ok(reader) => {
                let mut place = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
                *place = Some(reader);
            }
            Err(error) => {
                tracing::warn!(%error, "starting the loader of device names failed; names are looked up on disk");
            }
        }
    }

    /// Clears the index; lookups use the table until it is read again.
    pub(super) fn clear(&self) {
        self.stop();
    }

    /// Stops the loader thread and waits for it.
    fn stop(&self) -> u64 {
        let turn = self.shared.generation.fetch_add(1, Ordering::AcqRel) + 1;
        self.shared.is_complete.store(false, Ordering::Release);
        let mut place = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = place.take()
            && reader.join().is_err()
        {
            tracing::error!(
                "the loader of device names panicked; names are looked up on disk; this is a bug"
            );
        }
        // The loader may have finished just before.
        self.shared.is_complete.store(false, Ordering::Release);
        turn
    }

    pub(super) fn is_complete(&self) -> bool {
        self.shared.is_complete.load(Ordering::Acquire)
    }

    /// Devices that may have the name of this index row.
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

    /// Adds a name that the device has or is about to get.
    pub(super) fn add(&self, row: &[u8], no: DeviceNo) {
        self.shared.add(row, no);
    }

    /// Removes a name from the device.
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

    /// Loads all names and returns their number. Concurrent changes are applied by `add` and `remove`.
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
                tracing::error!(%error, "reading device names failed; names are looked up on disk");
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
            NameCandidates::NotLoaded => panic!("expected a loaded index"),
        }
    }

    #[test]
    fn names_are_found_whether_loaded_or_added() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
        let index = store.tables().table("device_index");
        let mut batch = store.tables().batch().unwrap();
        let row = |no: u32| format!("iname-{no}").into_bytes();
        for no in 0..50_000_u32 {
            batch.put(&index, &row(no), &no.to_be_bytes()).unwrap();
        }
        batch.put(&index, b"pproduct\0\0\0\0\x01", b"").unwrap();
        batch.commit(Durability::Buffered).unwrap();
        let names = NameIndex::default();
        assert!(matches!(names.find(&row(1)), NameCandidates::NotLoaded));
        // On another thread, while names are added and removed.
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
        // A product index row is not a name of a device.
        assert!(these(&names, b"pproduct\0\0\0\0\x01").is_empty());
        let unknown = (0..10_000).map(|at| these(&names, format!("u{at}").as_bytes()).len());
        assert!(unknown.sum::<usize>() < 3, "one in 10^5 is found by chance");
        // Reload everything, this time synchronously.
        names.load(&index, 0);
        assert!(these(&names, &row(7)).contains(&7));
        assert!(these(&names, b"tnew").is_empty());
    }

    #[test]
    fn loading_stops_when_the_index_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), StoreConfig::default()).unwrap();
        let index = store.tables().table("device_index");
        for _ in 0..20 {
            let names = NameIndex::default();
            names.load(&index, MAX_SYNC_LOAD + 1);
            names.load(&index, MAX_SYNC_LOAD + 1);
            drop(names);
        }
        drop(index);
        drop(store);
        // The directory lock is released.
        Store::open(dir.path(), StoreConfig::default()).unwrap();
    }
}
