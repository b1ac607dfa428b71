//! Count windows: windows of a number of events.

use std::collections::{BTreeMap, VecDeque};

use super::codec::{DecodeError, WindowReader, encode_key, put_bytes, put_u64};
use super::window_group::{
    AddOutcome, CloseCallback, ClosedGroup, GroupAggregates, GroupKey, WindowBudget, read_key,
};
use crate::window::{Aggregate, MAX_OVERLAPPING, WindowSample};

/// Windows of a number of events; a new one begins every `step` events.
pub(super) struct CountWindows {
    events: u64,
    step: u64,
    groups: BTreeMap<GroupKey, KeyCountWindows>,
}

#[derive(Default)]
struct KeyCountWindows {
    /// Events since the last window began.
    since_start: u64,
    /// Open windows in order of their start, which is also the order in which they end.
    open: VecDeque<CountWindow>,
}

struct CountWindow {
    first_ms: u64,
    last_ms: u64,
    events: u64,
    sums: GroupAggregates,
}

impl CountWindows {
    pub(super) fn new(events: u64, step: u64) -> Self {
        let events = events.max(1);
        Self {
            events,
            step: step.clamp(events.div_ceil(MAX_OVERLAPPING), events),
            groups: BTreeMap::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        sample: &WindowSample<'_>,
        aggregates: &[Aggregate],
        room: &mut WindowBudget,
        close: CloseCallback<'_>,
    ) -> AddOutcome {
        let at_ms = sample.timestamp_ms;
        let key = encode_key(sample.key);
        let begins = (self.groups.get(&key[..])).is_none_or(|of_key| of_key.since_start == 0);
        if begins {
            if room.try_reserve_group(GroupAggregates::empty_bytes(&key, aggregates)) {
                let counted = CountWindow {
                    first_ms: at_ms,
                    last_ms: at_ms,
                    events: 0,
                    sums: GroupAggregates::new(aggregates),
                };
                let of_key = self.groups.entry(key[..].into()).or_default();
                of_key.open.push_back(counted);
            } else if !self.groups.contains_key(&key[..]) {
                return AddOutcome::Full;
            }
        }
        let of_key = self
            .groups
            .get_mut(&key[..])
            .expect("the group exists or was just created");
        let mut added = AddOutcome::Full;
        for counted in &mut of_key.open {
            let outcome = counted.sums.add(sample.arguments, room);
            // The event counts as counted if one of its windows has counted it.
            if outcome != AddOutcome::Full {
                added = outcome;
            }
            counted.first_ms = counted.first_ms.min(at_ms);
            counted.last_ms = counted.last_ms.max(at_ms);
            counted.events += 1;
        }
        of_key.since_start = (of_key.since_start + 1) % self.step;
        if let Some(counted) = of_key
            .open
            .pop_front_if(|counted| counted.events >= self.events)
        {
            room.release_group(counted.sums.size_bytes(&key));
            close(ClosedGroup {
                start_ms: counted.first_ms,
                end_ms: counted.last_ms,
                key: &key,
                sums: &counted.sums,
            });
        }
        if of_key.open.is_empty() {
            self.groups.remove(&key[..]);
        }
        added
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.groups.len() as u64, out);
        for (key, of_key) in &self.groups {
            put_bytes(key, out);
            put_u64(of_key.since_start, out);
            put_u64(of_key.open.len() as u64, out);
            for counted in &of_key.open {
                for number in [counted.first_ms, counted.last_ms, counted.events] {
                    put_u64(number, out);
                }
                counted.sums.put(out);
            }
        }
    }

    pub(super) fn read(
        &mut self,
        from: &mut WindowReader<'_>,
        aggregates: &[Aggregate],
        room: &mut WindowBudget,
    ) -> Result<(), DecodeError> {
        for _ in 0..from.u64()? {
            let key = read_key(from)?;
            let mut of_key = KeyCountWindows {
                since_start: from.u64()?,
                open: VecDeque::new(),
            };
            for _ in 0..from.u64()? {
                let counted = CountWindow {
                    first_ms: from.u64()?,
                    last_ms: from.u64()?,
                    events: from.u64()?,
                    sums: GroupAggregates::read(from, aggregates)?,
                };
                if room.try_reserve_group(counted.sums.size_bytes(&key)) {
                    of_key.open.push_back(counted);
                }
            }
            if !of_key.open.is_empty() {
                self.groups.insert(key, of_key);
            }
        }
        Ok(())
    }
}
