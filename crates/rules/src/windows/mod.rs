//! What a rule with GROUP BY has counted so far, until its windows close.
//!
//! An event belongs to windows by its own time; a window closes when the clock of the rule (see `clock.rs`) has passed its end by
//! the allowed lateness. What is late for all its windows is refused. No clock of the machine here: its time comes with every call.
//!
//! The state is bounded by groups and by bytes, and can be written as bytes and read again.

mod accumulator;
mod aligned;
mod clock;
pub(crate) mod codec;
mod counts;
mod due;
mod group;
mod sessions;
mod sliding;

pub use codec::{Damaged, put_sample, read_sample};

use crate::value::Arena;
use crate::window::{Closed, Sample, Window, WindowKind};
use aligned::Aligned;
use clock::Clock;
use counts::Counts;
use group::Room;
use sessions::Sessions;
use sliding::Sliding;

/// More windows than this may not overlap.
pub const MAX_OVERLAPPING: u64 = 1000;
/// Of the bytes of a snapshot.
const VERSION: u8 = 3;

/// How much one rule may keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long after its end a window stays open for events that come late.
    pub lateness_ms: u64,
    /// Groups in all open windows.
    pub max_groups: usize,
    pub max_bytes: usize,
    /// Events say themselves when they happened, and time is what they say. `None`: the node's clock.
    pub event_time: Option<EventClock>,
}

/// What bounds a clock that events move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventClock {
    /// An event further ahead of the node's clock is not counted, and moves nothing.
    pub max_ahead_ms: u64,
    /// When nothing has come for so long, the clock goes on without events.
    pub idle_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lateness_ms: 250,
            max_groups: 100_000,
            max_bytes: 64 << 20,
            event_time: None,
        }
    }
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    Counted,
    /// Every window it belongs to is closed.
    Late,
    /// It says that it is of a time to come: [`EventClock::max_ahead_ms`].
    Ahead,
    /// There is no room for its group, or for what it would add to it.
    Full,
}

/// The open windows of one rule.
pub struct Windows {
    window: Window,
    clock: Clock,
    room: Room,
    kept: Kept,
}

enum Kept {
    Aligned(Aligned),
    Sessions(Sessions),
    Sliding(Sliding),
    Counts(Counts),
}

impl Windows {
    pub fn new(window: &Window, settings: Settings) -> Self {
        let kept = match window.kind {
            WindowKind::Tumbling { size_ms } => {
                Kept::Aligned(Aligned::new(size_ms, size_ms, &window.zone))
            }
            WindowKind::Calendar { size, unit } => {
                Kept::Aligned(Aligned::by_calendar(size, unit, &window.zone))
            }
            WindowKind::Hopping { size_ms, every_ms } => {
                Kept::Aligned(Aligned::new(size_ms, every_ms, &window.zone))
            }
            WindowKind::Session { gap_ms, max_ms } => Kept::Sessions(Sessions::new(gap_ms, max_ms)),
            WindowKind::Sliding { size_ms } => Kept::Sliding(Sliding::new(size_ms)),
            WindowKind::Count { events, step } => Kept::Counts(Counts::new(events, step)),
        };
        Self {
            window: window.clone(),
            clock: Clock::new(&settings),
            room: Room::new(&settings),
            kept,
        }
    }

    /// Takes an event. `close` is called with the windows that it closes by itself.
    pub fn add(
        &mut self,
        sample: &Sample<'_>,
        now_ms: u64,
        arena: &Arena,
        mut close: impl FnMut(Closed<'_>),
    ) -> Added {
        let Self {
            window,
            clock,
            room,
            kept,
        } = self;
        let aggregates = &window.aggregates;
        let at_ms = sample.timestamp_ms;
        let closed_ms = clock.closed_ms(now_ms);
        if clock.is_ahead(at_ms, now_ms) {
            return Added::Ahead;
        }
        let added = match kept {
            Kept::Aligned(kept) => kept.add(sample, closed_ms, aggregates, room),
            Kept::Sessions(kept) => kept.add(sample, closed_ms, aggregates, room),
            Kept::Sliding(kept) => kept.add(sample, closed_ms, aggregates, room, &mut |closed| {
                close(closed.with(aggregates, arena));
            }),
            Kept::Counts(kept) => kept.add(sample, aggregates, room, &mut |closed| {
                close(closed.with(aggregates, arena));
            }),
        };
        clock.saw(at_ms, now_ms);
        added
    }

    /// Time has passed: closes what is due, in the order of its end.
    pub fn advance(&mut self, now_ms: u64, arena: &Arena, mut close: impl FnMut(Closed<'_>)) {
        let closed_ms = self.clock.closed_ms(now_ms);
        let (room, aggregates) = (&mut self.room, &self.window.aggregates);
        match &mut self.kept {
            Kept::Aligned(kept) => kept.advance(closed_ms, room, &mut |closed| {
                close(closed.with(aggregates, arena));
            }),
            Kept::Sessions(kept) => kept.advance(closed_ms, room, &mut |closed| {
                close(closed.with(aggregates, arena));
            }),
            Kept::Sliding(kept) => kept.advance(closed_ms, aggregates, room),
            Kept::Counts(_) => {}
        }
    }

    /// When [`Windows::advance`] has something to do next.
    pub fn due_ms(&self) -> Option<u64> {
        let due = match &self.kept {
            Kept::Aligned(kept) => kept.due_ms(),
            Kept::Sessions(kept) => kept.due_ms(),
            Kept::Sliding(kept) => kept.due_ms(),
            Kept::Counts(_) => None,
        };
        due.map(|end_ms| self.clock.due_ms(end_ms))
    }

    pub fn groups(&self) -> usize {
        self.room.groups()
    }

    /// About how much memory the state takes.
    pub fn size_bytes(&self) -> usize {
        self.room.bytes()
    }

    /// The state as bytes, for [`Windows::restore`].
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        codec::put_bytes(self.shape().as_bytes(), &mut out);
        self.clock.put(&mut out);
        match &self.kept {
            Kept::Aligned(kept) => kept.put(&mut out),
            Kept::Sessions(kept) => kept.put(&mut out),
            Kept::Sliding(kept) => kept.put(&mut out),
            Kept::Counts(kept) => kept.put(&mut out),
        }
        out
    }

    /// Goes on from a snapshot of the same window. After an error there is nothing, as after [`Windows::new`].
    pub fn restore(window: &Window, settings: Settings, snapshot: &[u8]) -> Result<Self, Damaged> {
        let mut restored = Self::new(window, settings);
        let mut from = codec::Reader::new(snapshot);
        if from.u8()? != VERSION || from.bytes()? != restored.shape().as_bytes() {
            return Err(Damaged);
        }
        restored.clock.read(&mut from)?;
        let (room, aggregates) = (&mut restored.room, &window.aggregates);
        match &mut restored.kept {
            Kept::Aligned(kept) => kept.read(&mut from, aggregates, room)?,
            Kept::Sessions(kept) => kept.read(&mut from, aggregates, room)?,
            Kept::Sliding(kept) => kept.read(&mut from, aggregates, room)?,
            Kept::Counts(kept) => kept.read(&mut from, aggregates, room)?,
        }
        match from.is_empty() {
            true => Ok(restored),
            false => Err(Damaged),
        }
    }

    /// What a snapshot has to be of.
    fn shape(&self) -> String {
        let names: Vec<&str> = (self.window.aggregates.iter())
            .map(|aggregate| aggregate.kind.name())
            .collect();
        let time = match self.clock.is_of_events() {
            true => "event_time",
            false => "node_time",
        };
        let (kind, keys) = (self.window.kind, self.window.keys);
        let zone = self.window.zone.name();
        format!("{kind} {keys} {} {time} {zone}", names.join(","))
    }
}

#[cfg(test)]
mod property;
#[cfg(test)]
mod tests;
