//! The events of one group in one window, and the room all groups share.

use super::accumulator::Accumulator;
use super::codec::{Damaged, Reader};
use super::{Added, Settings};
use crate::value::{Arena, Value};
use crate::window::{Aggregate, Closed};

/// What a group costs besides its key and what its aggregates keep.
const GROUP_BYTES: usize = 96;

/// The key of a group, as bytes.
pub(super) type Key = Box<[u8]>;

/// How much there is, and how much there may be.
pub(super) struct Room {
    groups: usize,
    bytes: usize,
    max_groups: usize,
    max_bytes: usize,
}

impl Room {
    pub(super) fn new(settings: &Settings) -> Self {
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

    pub(super) fn left(&self) -> usize {
        self.max_bytes.saturating_sub(self.bytes)
    }

    /// Whether there is room for one more group; then it is taken.
    pub(super) fn take_group(&mut self, bytes: usize) -> bool {
        let fits = self.groups < self.max_groups && bytes <= self.left();
        if fits {
            self.groups += 1;
            self.bytes += bytes;
        }
        fits
    }

    pub(super) fn give_group(&mut self, bytes: usize) {
        self.groups -= 1;
        self.give(bytes);
    }

    pub(super) fn take(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    pub(super) fn give(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The aggregates of a group.
pub(super) struct Sums(Box<[Accumulator]>);

impl Sums {
    pub(super) fn new(aggregates: &[Aggregate]) -> Self {
        let sums = aggregates.iter();
        Self(
            sums.map(|aggregate| Accumulator::new(aggregate.kind))
                .collect(),
        )
    }

    /// Bytes of a group with this key before anything is counted.
    pub(super) fn empty_bytes(key: &[u8], aggregates: &[Aggregate]) -> usize {
        GROUP_BYTES + key.len() + aggregates.len() * size_of::<Accumulator>()
    }

    pub(super) fn size_bytes(&self, key: &[u8]) -> usize {
        let own: usize = self.0.iter().map(Accumulator::size_bytes).sum();
        GROUP_BYTES + key.len() + self.0.len() * size_of::<Accumulator>() + own
    }

    /// Counts an event. One of its values may find no room while the others are counted.
    pub(super) fn add(&mut self, arguments: &[Value<'_>], room: &mut Room) -> Added {
        let mut added = Added::Counted;
        for (sum, value) in self.0.iter_mut().zip(arguments) {
            match sum.add(value, room.left()) {
                Ok(more) if more >= 0 => room.take(more as usize),
                Ok(less) => room.give(less.unsigned_abs()),
                Err(_) => added = Added::Full,
            }
        }
        added
    }

    /// Counts what another group of the same key, of later events, has counted; its room has been given back.
    pub(super) fn merge(&mut self, later: Self, room: &mut Room) {
        for (sum, later) in self.0.iter_mut().zip(later.0) {
            let before = sum.size_bytes();
            sum.merge(later);
            room.give(before);
            room.take(sum.size_bytes());
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|sum| sum.put(out));
    }

    pub(super) fn read(from: &mut Reader<'_>, aggregates: &[Aggregate]) -> Result<Self, Damaged> {
        let read = aggregates
            .iter()
            .map(|aggregate| Accumulator::read(aggregate.kind, from));
        Ok(Self(read.collect::<Result<_, _>>()?))
    }
}

/// A window of one group whose time has come.
pub(super) struct ClosedGroup<'s> {
    pub(super) start_ms: u64,
    pub(super) end_ms: u64,
    pub(super) key: &'s [u8],
    pub(super) sums: &'s Sums,
}

impl ClosedGroup<'_> {
    /// As the rule wants it.
    pub(super) fn with<'a>(&self, aggregates: &[Aggregate], arena: &'a Arena) -> Closed<'a> {
        let key = Reader::new(self.key).values(arena);
        let results = self.sums.0.iter().zip(aggregates);
        let results: Vec<Value<'a>> = results
            .map(|(sum, aggregate)| sum.result(aggregate, arena))
            .collect();
        Closed {
            start_ms: self.start_ms,
            end_ms: self.end_ms,
            key: key.expect("keys are written by `key_of`, or checked when they are restored"),
            aggregates: arena.alloc_slice_copy(&results),
        }
    }
}

/// Reads a key that a group was stored under.
pub(super) fn read_key(from: &mut Reader<'_>) -> Result<Key, Damaged> {
    let key = from.bytes()?;
    Reader::new(key).values(&Arena::new())?;
    Ok(key.into())
}

/// Who is told of a closed window.
pub(super) type Close<'c> = &'c mut dyn FnMut(ClosedGroup<'_>);
