//! Windows of a number of events.

use std::collections::BTreeMap;

use super::Added;
use super::codec::{Damaged, Reader, key_of, put_bytes, put_u64};
use super::group::{Close, ClosedGroup, Key, Room, Sums, read_key};
use crate::window::{Aggregate, Sample};

/// Windows of so many events.
pub(super) struct Counts {
    events: u64,
    groups: BTreeMap<Key, Counted>,
}

struct Counted {
    first_ms: u64,
    last_ms: u64,
    events: u64,
    sums: Sums,
}

impl Counts {
    pub(super) fn new(events: u64) -> Self {
        Self {
            events: events.max(1),
            groups: BTreeMap::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        sample: &Sample<'_>,
        aggregates: &[Aggregate],
        room: &mut Room,
        close: Close<'_>,
    ) -> Added {
        let at_ms = sample.timestamp_ms;
        let key = key_of(sample.key);
        if !self.groups.contains_key(&key[..]) {
            if !room.take_group(Sums::empty_bytes(&key, aggregates)) {
                return Added::Full;
            }
            let counted = Counted {
                first_ms: at_ms,
                last_ms: at_ms,
                events: 0,
                sums: Sums::new(aggregates),
            };
            self.groups.insert(key[..].into(), counted);
        }
        let counted = self
            .groups
            .get_mut(&key[..])
            .expect("made if it was not there");
        let added = counted.sums.add(sample.arguments, room);
        counted.first_ms = counted.first_ms.min(at_ms);
        counted.last_ms = counted.last_ms.max(at_ms);
        counted.events += 1;
        if counted.events >= self.events {
            room.give_group(counted.sums.size_bytes(&key));
            close(ClosedGroup {
                start_ms: counted.first_ms,
                end_ms: counted.last_ms,
                key: &key,
                sums: &counted.sums,
            });
            self.groups.remove(&key[..]);
        }
        added
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.groups.len() as u64, out);
        for (key, counted) in &self.groups {
            put_bytes(key, out);
            for number in [counted.first_ms, counted.last_ms, counted.events] {
                put_u64(number, out);
            }
            counted.sums.put(out);
        }
    }

    pub(super) fn read(
        &mut self,
        from: &mut Reader<'_>,
        aggregates: &[Aggregate],
        room: &mut Room,
    ) -> Result<(), Damaged> {
        for _ in 0..from.u64()? {
            let key = read_key(from)?;
            let counted = Counted {
                first_ms: from.u64()?,
                last_ms: from.u64()?,
                events: from.u64()?,
                sums: Sums::read(from, aggregates)?,
            };
            if room.take_group(counted.sums.size_bytes(&key)) {
                self.groups.insert(key, counted);
            }
        }
        Ok(())
    }
}
