//! The events of one group in one window, and the budget shared by all groups.

use super::accumulator::Accumulator;
use super::codec::{DecodeError, WindowReader};
use super::options::WindowOptions;
use crate::value::{Arena, Value};
use crate::window::{Aggregate, ClosedWindow};

/// The result of adding an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddOutcome {
    Counted,
    /// All windows of the event are closed already.
    Late,
    /// The timestamp is too far in the future: [`super::EventClockLimits::max_ahead_ms`].
    Ahead,
    /// There is no room for its group or for its values.
    Full,
}

/// Memory of a group in bytes, in addition to its key and its aggregates' state.
const GROUP_BYTES: usize = 96;

/// The encoded key of a group.
pub(super) type GroupKey = Box<[u8]>;

/// Current use and limits of groups and bytes.
pub(super) struct WindowBudget {
    groups: usize,
    bytes: usize,
    max_groups: usize,
    max_bytes: usize,
}

impl WindowBudget {
    pub(super) fn new(settings: &WindowOptions) -> Self {
        Self {
            groups: 0,
            bytes: 0,
            max_groups: settings.max_groups,
            max_bytes: settings.max_bytes,
        }
    }

    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn remaining_bytes(&self) -> usize {
        self.max_bytes.saturating_sub(self.bytes)
    }

    /// Reserves one more group if there is room.
    pub(super) fn try_reserve_group(&mut self, bytes: usize) -> bool {
        let fits = self.groups < self.max_groups && bytes <= self.remaining_bytes();
        if fits {
            self.groups += 1;
            self.bytes += bytes;
        }
        fits
    }

    pub(super) fn release_group(&mut self, bytes: usize) {
        self.groups -= 1;
        self.release(bytes);
    }

    pub(super) fn reserve(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    pub(super) fn release(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The aggregates of a group.
pub(super) struct GroupAggregates(Box<[Accumulator]>);

impl GroupAggregates {
    pub(super) fn new(aggregates: &[Aggregate]) -> Self {
        let sums = aggregates.iter();
        Self(
            sums.map(|aggregate| Accumulator::new(aggregate.kind))
                .collect(),
        )
    }

    /// Bytes of a group with this key before it has counted anything.
    pub(super) fn empty_bytes(key: &[u8], aggregates: &[Aggregate]) -> usize {
        GROUP_BYTES + key.len() + aggregates.len() * size_of::<Accumulator>()
    }

    pub(super) fn size_bytes(&self, key: &[u8]) -> usize {
        let own: usize = self.0.iter().map(Accumulator::size_bytes).sum();
        GROUP_BYTES + key.len() + self.0.len() * size_of::<Accumulator>() + own
    }

    /// Counts an event. It may lack room for one of its values while the others are counted.
    pub(super) fn add(&mut self, arguments: &[Value<'_>], room: &mut WindowBudget) -> AddOutcome {
        let mut added = AddOutcome::Counted;
        for (sum, value) in self.0.iter_mut().zip(arguments) {
            match sum.add(value, room.remaining_bytes()) {
                Ok(more) if more >= 0 => room.reserve(more as usize),
                Ok(less) => room.release(less.unsigned_abs()),
                Err(_) => added = AddOutcome::Full,
            }
        }
        added
    }

    /// Merges a group of the same key with later events, whose budget has already been released.
    pub(super) fn merge(&mut self, later: Self, room: &mut WindowBudget) {
        for (sum, later) in self.0.iter_mut().zip(later.0) {
            let before = sum.size_bytes();
            sum.merge(later);
            room.release(before);
            room.reserve(sum.size_bytes());
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|sum| sum.put(out));
    }

    pub(super) fn read(
        from: &mut WindowReader<'_>,
        aggregates: &[Aggregate],
    ) -> Result<Self, DecodeError> {
        let read = aggregates
            .iter()
            .map(|aggregate| Accumulator::read(aggregate.kind, from));
        Ok(Self(read.collect::<Result<_, _>>()?))
    }
}

/// A closed window of one group.
pub(super) struct ClosedGroup<'s> {
    pub(super) start_ms: u64,
    pub(super) end_ms: u64,
    pub(super) key: &'s [u8],
    pub(super) sums: &'s GroupAggregates,
}

impl ClosedGroup<'_> {
    /// Converts to the form that the rule evaluates.
    pub(super) fn to_closed_window<'a>(
        &self,
        aggregates: &[Aggregate],
        arena: &'a Arena,
    ) -> ClosedWindow<'a> {
        let key = WindowReader::new(self.key).values(arena);
        let results = self.sums.0.iter().zip(aggregates);
        let results: Vec<Value<'a>> = results
            .map(|(sum, aggregate)| sum.result(aggregate, arena))
            .collect();
        ClosedWindow {
            start_ms: self.start_ms,
            end_ms: self.end_ms,
            key: key.expect("keys are written by `key_of`, or checked when they are restored"),
            aggregates: arena.alloc_slice_copy(&results),
        }
    }
}

/// Reads the key of a stored group.
pub(super) fn read_key(from: &mut WindowReader<'_>) -> Result<GroupKey, DecodeError> {
    let key = from.bytes()?;
    WindowReader::new(key).values(&Arena::new())?;
    Ok(key.into())
}

/// Called with each closed window.
pub(super) type CloseCallback<'c> = &'c mut dyn FnMut(ClosedGroup<'_>);
