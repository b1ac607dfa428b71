//! Sliding windows.

use std::collections::{BTreeMap, VecDeque};

use super::codec::{DecodeError, WindowReader, encode_key, put_bytes, put_owned, put_u64};
use super::due_queue::DueQueue;
use super::options::WindowOptions;
use super::window_group::{
    AddOutcome, CloseCallback, ClosedGroup, GroupAggregates, GroupKey, WindowBudget, read_key,
};
use crate::value::{Arena, OwnedValue, Value};
use crate::window::{Aggregate, WindowSample};

/// Windows over the time before each event. Every event closes a window of its own, so the events themselves
/// are stored, and each window is computed from them.
pub(super) struct SlidingWindows {
    size_ms: u64,
    groups: BTreeMap<GroupKey, VecDeque<SlidingEvent>>,
    due: DueQueue,
}

struct SlidingEvent {
    at_ms: u64,
    arguments: Box<[OwnedValue]>,
}

impl SlidingEvent {
    fn size_bytes(&self) -> usize {
        let values = self.arguments.iter().map(OwnedValue::size_bytes);
        size_of::<Self>() + values.sum::<usize>()
    }
}

impl SlidingWindows {
    pub(super) fn new(size_ms: u64) -> Self {
        Self {
            size_ms: size_ms.max(1),
            groups: BTreeMap::new(),
            due: DueQueue::default(),
        }
    }

    pub(super) fn add(
        &mut self,
        sample: &WindowSample<'_>,
        closed_ms: u64,
        aggregates: &[Aggregate],
        room: &mut WindowBudget,
        close: CloseCallback<'_>,
    ) -> AddOutcome {
        let at_ms = sample.timestamp_ms;
        // The window ends with its event.
        if at_ms < closed_ms {
            return AddOutcome::Late;
        }
        let key = encode_key(sample.key);
        if !self.groups.contains_key(&key[..]) {
            if !room.try_reserve_group(GroupAggregates::empty_bytes(&key, aggregates)) {
                return AddOutcome::Full;
            }
            self.due.push(at_ms.saturating_add(self.size_ms), &key);
            self.groups.insert(key[..].into(), VecDeque::new());
        }
        let events = self
            .groups
            .get_mut(&key[..])
            .expect("the group exists or was just created");
        // Drops the events outside the window of the earliest event that may still arrive.
        drop_until(events, closed_ms.saturating_sub(self.size_ms), room);
        let arguments = sample.arguments.iter().map(|value| value.into_owned());
        let event = SlidingEvent {
            at_ms,
            arguments: arguments.collect(),
        };
        let bytes = event.size_bytes();
        if bytes > room.remaining_bytes() {
            return AddOutcome::Full;
        }
        room.reserve(bytes);
        // Events arrive nearly in order.
        let later = events.iter().rev().take_while(|other| other.at_ms > at_ms);
        let place = events.len() - later.count();
        events.insert(place, event);
        let mut sums = GroupAggregates::new(aggregates);
        let mut apart = WindowBudget::new(&WindowOptions::default());
        let arena = Arena::new();
        for event in events.iter().take(place + 1) {
            if event.at_ms.saturating_add(self.size_ms) > at_ms {
                let values = event.arguments.iter().map(|value| value.to_value(&arena));
                sums.add(&values.collect::<Vec<Value<'_>>>(), &mut apart);
            }
        }
        close(ClosedGroup {
            start_ms: (at_ms + 1).saturating_sub(self.size_ms),
            end_ms: at_ms + 1,
            key: &key,
            sums: &sums,
        });
        AddOutcome::Counted
    }

    /// Drops the events that no later window can contain.
    pub(super) fn advance(
        &mut self,
        closed_ms: u64,
        aggregates: &[Aggregate],
        room: &mut WindowBudget,
    ) {
        while let Some((_, key)) = self.due.pop(closed_ms) {
            let Some(events) = self.groups.get_mut(&key) else {
                continue;
            };
            drop_until(events, closed_ms.saturating_sub(self.size_ms), room);
            match events.back() {
                Some(last) => self.due.push(last.at_ms.saturating_add(self.size_ms), &key),
                None => {
                    self.groups.remove(&key);
                    room.release_group(GroupAggregates::empty_bytes(&key, aggregates));
                }
            }
        }
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        self.due.first_ms()
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        put_u64(self.groups.len() as u64, out);
        for (key, events) in &self.groups {
            put_bytes(key, out);
            put_u64(events.len() as u64, out);
            for event in events {
                put_u64(event.at_ms, out);
                event
                    .arguments
                    .iter()
                    .for_each(|value| put_owned(value, out));
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
            let mut events = VecDeque::new();
            for _ in 0..from.u64()? {
                let at_ms = from.u64()?;
                let arguments = aggregates.iter().map(|_| from.owned());
                let arguments = arguments.collect::<Result<_, _>>()?;
                events.push_back(SlidingEvent { at_ms, arguments });
            }
            let bytes: usize = events.iter().map(SlidingEvent::size_bytes).sum();
            if let Some(last) = events.back()
                && room.try_reserve_group(GroupAggregates::empty_bytes(&key, aggregates))
            {
                room.reserve(bytes);
                self.due.push(last.at_ms.saturating_add(self.size_ms), &key);
                self.groups.insert(key, events);
            }
        }
        Ok(())
    }
}

/// Drops the events up to a time.
fn drop_until(events: &mut VecDeque<SlidingEvent>, until_ms: u64, room: &mut WindowBudget) {
    while let Some(first) = events.front()
        && first.at_ms <= until_ms
    {
        room.release(first.size_bytes());
        events.pop_front();
    }
}
