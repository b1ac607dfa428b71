//! Cache of recently used devices with their names: bounded, second-chance eviction (CLOCK).
//!
//! A key is a hash of a name or digest. Two names may share a hash, so the caller checks whether the device found has
//! the name. A wrong device costs one read from disk and nothing else.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use series::DeviceNo;

use super::keys::DeviceName;
use crate::device::Device;

const STRIPES: usize = 16;

pub(crate) struct DeviceCache {
    state: RandomState,
    devices: [Mutex<CacheStripe>; STRIPES],
    keys: [Mutex<HashMap<u64, u32, RandomState>>; STRIPES],
    max_per_stripe: usize,
    /// Increases with each change of any device. A record read before a change is not inserted after it.
    changes: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

#[derive(Default)]
struct CacheStripe {
    by_no: HashMap<u32, usize, RandomState>,
    slots: Vec<CacheSlot>,
    clock_hand: usize,
}

struct CacheSlot {
    device: Arc<Device>,
    was_used: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceCache {
    pub(crate) fn new(max_devices: usize) -> Self {
        Self {
            state: RandomState::default(),
            devices: Default::default(),
            keys: Default::default(),
            max_per_stripe: max_devices.div_ceil(STRIPES).max(1),
            changes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// The generation to pass to [`DeviceCache::put`] with records read from now on.
    pub(crate) fn generation(&self) -> u64 {
        self.changes.load(std::sync::atomic::Ordering::Acquire)
    }

    fn stripe_of(&self, no: DeviceNo) -> &Mutex<CacheStripe> {
        &self.devices[no.spread() as usize % STRIPES]
    }

    pub(crate) fn get(&self, no: DeviceNo) -> Option<Arc<Device>> {
        let mut devices = lock(self.stripe_of(no));
        let at = *devices.by_no.get(&no.0)?;
        let slot = &mut devices.slots[at];
        slot.was_used = true;
        Some(Arc::clone(&slot.device))
    }

    pub(crate) fn contains(&self, no: DeviceNo) -> bool {
        lock(self.stripe_of(no)).by_no.contains_key(&no.0)
    }

    /// Returns the device that may have this name; the caller compares the name with the device.
    pub(crate) fn find(&self, name: &DeviceName<'_>) -> Option<Arc<Device>> {
        let key = self.key(name);
        let no = *lock(&self.keys[key as usize % STRIPES]).get(&key)?;
        self.get(DeviceNo(no))
            .filter(|device| name.belongs_to(device))
    }

    pub(crate) fn put(&self, device: &Arc<Device>, generation: u64) {
        let no = device.no.0;
        let mut devices = lock(self.stripe_of(device.no));
        if self.generation() != generation {
            return;
        }
        let mut evicted = None;
        let devices_here = &mut *devices;
        match devices_here.by_no.get(&no) {
            Some(&at) => devices_here.slots[at].device = Arc::clone(device),
            None => {
                let slot = CacheSlot {
                    device: Arc::clone(device),
                    was_used: false,
                };
                let at = match devices_here.slots.len() < self.max_per_stripe {
                    true => {
                        devices_here.slots.push(slot);
                        devices_here.slots.len() - 1
                    }
                    false => {
                        let at = devices_here.next_victim();
                        let old = std::mem::replace(&mut devices_here.slots[at], slot);
                        devices_here.by_no.remove(&old.device.no.0);
                        evicted = Some(old.device);
                        at
                    }
                };
                devices_here.by_no.insert(no, at);
            }
        }
        // The lock on the devices is held, so that this device is not removed before its keys are added.
        if let Some(old) = &evicted {
            self.remove_keys(old);
        }
        for name in DeviceName::names_of(device) {
            let key = self.key(&name);
            lock(&self.keys[key as usize % STRIPES]).insert(key, no);
        }
    }

    /// Removes a device that has changed or was deleted.
    pub(crate) fn remove(&self, no: DeviceNo) {
        let mut devices = lock(self.stripe_of(no));
        self.changes
            .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        if let Some(at) = devices.by_no.remove(&no.0) {
            let old = devices.slots.swap_remove(at);
            if let Some(moved) = devices.slots.get(at) {
                let no = moved.device.no.0;
                devices.by_no.insert(no, at);
            }
            self.remove_keys(&old.device);
        }
    }

    pub(crate) fn clear(&self) {
        self.changes
            .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        for shard in &self.devices {
            *lock(shard) = CacheStripe::default();
        }
        for shard in &self.keys {
            lock(shard).clear();
        }
    }

    pub(crate) fn len(&self) -> usize {
        let shards = self.devices.iter();
        shards.map(|shard| lock(shard).slots.len()).sum()
    }

    pub(crate) fn count_lookup(&self, was_hit: bool) {
        match was_hit {
            true => self.hits.fetch_add(1, Relaxed),
            false => self.misses.fetch_add(1, Relaxed),
        };
    }

    fn remove_keys(&self, device: &Device) {
        for name in DeviceName::names_of(device) {
            let key = self.key(&name);
            let mut keys = lock(&self.keys[key as usize % STRIPES]);
            if keys.get(&key) == Some(&device.no.0) {
                keys.remove(&key);
            }
        }
    }

    fn key(&self, name: &DeviceName<'_>) -> u64 {
        self.state.hash_one(name)
    }
}

impl CacheStripe {
    fn next_victim(&mut self) -> usize {
        loop {
            let at = self.clock_hand % self.slots.len();
            self.clock_hand = at + 1;
            if !std::mem::take(&mut self.slots[at].was_used) {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_steps_use_all_stripes() {
        let cache = DeviceCache::new(1);
        for step in [1, 2, 16, 20, 64, 1000, 4096] {
            let used: std::collections::HashSet<_> = (0..10_000)
                .map(|at| std::ptr::from_ref(cache.stripe_of(DeviceNo(at * step))))
                .collect();
            assert_eq!(used.len(), STRIPES, "by {step}");
        }
    }
}
