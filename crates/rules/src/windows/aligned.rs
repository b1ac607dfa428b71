//! Tumbling and hopping windows.

use std::collections::BTreeMap;

use super::codec::{Damaged, Reader, key_of, put_bytes, put_u64};
use super::group::{Close, ClosedGroup, Key, Room, Sums, read_key};
use super::{Added, MAX_OVERLAPPING};
use crate::window::{Aggregate, Sample};

/// Windows that begin at multiples of a time: tumbling and hopping.
pub(super) struct Aligned {
    size_ms: u64,
    every_ms: u64,
    /// By their start, which is also the order in which they end.
    windows: BTreeMap<u64, BTreeMap<Key, Sums>>,
}

impl Aligned {
    pub(super) fn new(size_ms: u64, every_ms: u64) -> Self {
        let size_ms = size_ms.max(1);
        let every_ms = every_ms.max(size_ms.div_ceil(MAX_OVERLAPPING)).max(1);
        Self {
            size_ms,
            every_ms,
            windows: BTreeMap::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        sample: &Sample<'_>,
        closed_ms: u64,
        aggregates: &[Aggregate],
        room: &mut Room,
    ) -> Added {
        let at_ms = sample.timestamp_ms;
        let key = key_of(sample.key);
        let mut outcome = Added::Late;
        let mut start_ms = at_ms - at_ms % self.every_ms;
        // From the last window that the event is in to the first. With gaps between windows it may be in none.
        while start_ms.saturating_add(self.size_ms) > at_ms {
            if start_ms.saturating_add(self.size_ms) <= closed_ms {
                break;
            }
            let groups = self.windows.entry(start_ms).or_default();
            let added = match groups.get_mut(&key[..]) {
                Some(sums) => sums.add(sample.arguments, room),
                None if room.take_group(Sums::empty_bytes(&key, aggregates)) => {
                    let mut sums = Sums::new(aggregates);
                    let added = sums.add(sample.arguments, room);
                    groups.insert(key[..].into(), sums);
                    added
                }
                None => Added::Full,
            };
            if groups.is_empty() {
                self.windows.remove(&start_ms);
            }
            if outcome != Added::Full {
                outcome = added;
            }
            match start_ms.checked_sub(self.every_ms) {
                Some(earlier_ms) => start_ms = earlier_ms,
                None => break,
            }
        }
        outcome
    }

    pub(super) fn advance(&mut self, closed_ms: u64, room: &mut Room, close: Close<'_>) {
        while let Some(first) = self.windows.first_entry() {
            let start_ms = *first.key();
            let end_ms = start_ms.saturating_add(self.size_ms);
            if end_ms > closed_ms {
                return;
            }
            for (key, sums) in &first.remove() {
                room.give_group(sums.size_bytes(key));
                close(ClosedGroup {
                    start_ms,
                    end_ms,
                    key,
                    sums,
                });
            }
        }
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        let (start_ms, _) = self.windows.first_key_value()?;
        Some(start_ms.saturating_add(self.size_ms))
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.windows.len() as u64, out);
        for (start_ms, groups) in &self.windows {
            put_u64(*start_ms, out);
            put_u64(groups.len() as u64, out);
            for (key, sums) in groups {
                put_bytes(key, out);
                sums.put(out);
            }
        }
    }

    pub(super) fn read(
        &mut self,
        from: &mut Reader<'_>,
        aggregates: &[Aggregate],
        room: &mut Room,
    ) -> Result<(), Damaged> {
        for _ in 0..from.u64()? {
            let start_ms = from.u64()?;
            let mut groups = BTreeMap::new();
            for _ in 0..from.u64()? {
                let (key, sums) = (read_key(from)?, Sums::read(from, aggregates)?);
                if room.take_group(sums.size_bytes(&key)) {
                    groups.insert(key, sums);
                }
            }
            self.windows.insert(start_ms, groups);
        }
        Ok(())
    }
}
