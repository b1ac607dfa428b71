//! Counts events per key; a key with too many events within a window is locked out for a while. The number of keys is
//! bounded; those that expire first are evicted.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

pub(crate) struct LockoutCounters<K> {
    /// Events within the window; 0 disables counting.
    limit: AtomicU32,
    window_ms: AtomicU64,
    lockout_ms: AtomicU64,
    max_entries: usize,
    entries: Mutex<HashMap<K, LockoutEntry>>,
}

#[derive(Clone, Copy)]
struct LockoutEntry {
    window_start_ms: u64,
    count: u32,
    locked_until_ms: u64,
}

impl<K: Eq + Hash + Clone> LockoutCounters<K> {
    pub(crate) fn new(limit: u32, window_s: u32, lockout_s: u32, max_entries: usize) -> Self {
        let windows = Self {
            limit: AtomicU32::default(),
            window_ms: AtomicU64::default(),
            lockout_ms: AtomicU64::default(),
            max_entries,
            entries: Mutex::default(),
        };
        windows.set_limits(limit, window_s, lockout_s);
        windows
    }

    /// Changes the limits. Current lockouts remain; a limit of 0 clears all counts.
    pub(crate) fn set_limits(&self, limit: u32, window_s: u32, lockout_s: u32) {
        self.window_ms.store(u64::from(window_s) * 1000, Relaxed);
        self.lockout_ms.store(u64::from(lockout_s) * 1000, Relaxed);
        self.limit.store(limit, Relaxed);
        if limit == 0 {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.clear();
        }
    }

    pub(crate) fn is_disabled(&self) -> bool {
        self.limit.load(Relaxed) == 0
    }

    /// Records an event. Returns true if it caused a lockout.
    pub(crate) fn record(&self, key: K, now_ms: u64) -> bool {
        if self.is_disabled() {
            return false;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= self.max_entries && !entries.contains_key(&key) {
            self.make_room(&mut entries, now_ms);
        }
        let entry = entries.entry(key).or_insert(LockoutEntry {
            window_start_ms: now_ms,
            count: 0,
            locked_until_ms: 0,
        });
        if now_ms.saturating_sub(entry.window_start_ms) > self.window_ms.load(Relaxed) {
            entry.window_start_ms = now_ms;
            entry.count = 0;
        }
        entry.count += 1;
        if entry.count < self.limit.load(Relaxed) {
            return false;
        }
        entry.count = 0;
        entry.window_start_ms = now_ms;
        entry.locked_until_ms = now_ms + self.lockout_ms.load(Relaxed);
        true
    }

    pub(crate) fn is_locked_out(&self, key: &K, now_ms: u64) -> bool {
        if self.is_disabled() {
            return false;
        }
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries
            .get(key)
            .is_some_and(|entry| entry.locked_until_ms > now_ms)
    }

    /// Clears the count of a key.
    pub(crate) fn reset(&self, key: &K) {
        if !self.is_disabled() {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.remove(key);
        }
    }

    fn make_room(&self, entries: &mut HashMap<K, LockoutEntry>, now_ms: u64) {
        let window_ms = self.window_ms.load(Relaxed);
        let ends_ms =
            |entry: &LockoutEntry| entry.locked_until_ms.max(entry.window_start_ms + window_ms);
        entries.retain(|_, entry| ends_ms(entry) > now_ms);
        if entries.len() < self.max_entries {
            return;
        }
        // No entry has expired: evict the half that would expire first. This is rare enough to be slow.
        let mut ends: Vec<u64> = entries.values().map(ends_ms).collect();
        let half = ends.len() / 2;
        let (_, &mut median, _) = ends.select_nth_unstable(half);
        entries.retain(|_, entry| ends_ms(entry) > median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_often_within_the_window_is_held_for_a_while() {
        let windows = LockoutCounters::new(3, 10, 60, 100);
        assert!(!windows.record("a", 0) && !windows.record("a", 1));
        assert!(!windows.is_locked_out(&"a", 1));
        assert!(windows.record("a", 2));
        assert!(windows.is_locked_out(&"a", 60_001) && !windows.is_locked_out(&"a", 60_002));
        assert!(!windows.is_locked_out(&"b", 2));
    }

    #[test]
    fn old_events_do_not_count() {
        let windows = LockoutCounters::new(2, 10, 60, 100);
        assert!(!windows.record("a", 0));
        assert!(!windows.record("a", 10_001));
        assert!(windows.record("a", 10_002));
        windows.reset(&"a");
        assert!(!windows.is_locked_out(&"a", 10_003));
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let windows = LockoutCounters::new(2, 1_000, 60, 100);
        for n in 0..10_000_u64 {
            windows.record(n, n);
        }
        assert!(windows.entries.lock().unwrap().len() <= 100);
    }

    #[test]
    fn other_bounds_hold_from_now_on() {
        let windows = LockoutCounters::new(3, 10, 60, 100);
        assert!(!windows.record("a", 0));
        windows.set_limits(2, 10, 5);
        assert!(windows.record("a", 1), "what was counted counts");
        windows.set_limits(0, 10, 5);
        assert!(!windows.is_locked_out(&"a", 2));
        windows.set_limits(2, 10, 5);
        assert!(!windows.is_locked_out(&"a", 2), "all was forgotten");
    }

    #[test]
    fn nothing_is_counted_without_a_limit() {
        let windows = LockoutCounters::new(0, 10, 60, 100);
        assert!(!windows.record("a", 0) && !windows.is_locked_out(&"a", 0));
        assert!(windows.entries.lock().unwrap().is_empty());
    }
}
