//! What a rule with GROUP BY has counted so far, until its windows close.
//!
//! An event belongs to windows by its own time; a window closes when the clock of the rule (see `clock.rs`) has passed its end by
//! the allowed lateness. What is late for all its windows is refused. No clock of the machine here: its time comes with every call.
//!
//! The state is bounded by groups and by bytes, and can be written as bytes and read again.

mod accumulator;
mod aligned_windows;
pub(crate) mod codec;
mod count_windows;
mod due_queue;
mod session_windows;
mod sliding_windows;
mod window_clock;
mod window_group;

pub use codec::{DecodeError, put_sample, read_sample};

use crate::value::Arena;
use crate::window::{ClosedWindow, WindowDefinition, WindowKind, WindowSample};
use aligned_windows::AlignedWindows;
use count_windows::CountWindows;
use session_windows::SessionWindows;
use sliding_windows::SlidingWindows;
use window_clock::WindowClock;
use window_group::WindowBudget;

/// More windows than this may not overlap.
pub const MAX_OVERLAPPING: u64 = 1000;
/// Of the bytes of a snapshot.
const VERSION: u8 = 3;

/// How much one rule may keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowOptions {
    /// How long after its end a window stays open for events that come late.
    pub lateness_ms: u64,
    /// Groups in all open windows.
    pub max_groups: usize,
    pub max_bytes: usize,
    /// Events say themselves when they happened, and time is what they say. `None`: the node's clock.
    pub event_time: Option<EventClockLimits>,
}

/// What bounds a clock that events move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventClockLimits {
    /// An event further ahead of the node's clock is not counted, and moves nothing.
    pub max_ahead_ms: u64,
    /// When nothing has come for so long, the clock goes on without events.
    pub idle_ms: u64,
}

impl Default for WindowOptions {
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
pub enum AddOutcome {
    Counted,
    /// Every window it belongs to is closed.
    Late,
    /// It says that it is of a time to come: [`EventClockLimits::max_ahead_ms`].
    Ahead,
    /// There is no room for its group, or for what it would add to it.
    Full,
}

/// The open windows of one rule.
pub struct OpenWindows {
    window: WindowDefinition,
    clock: WindowClock,
    room: WindowBudget,
    storage: WindowStorage,
}

enum WindowStorage {
    Aligned(AlignedWindows),
    Sessions(SessionWindows),
    Sliding(SlidingWindows),
    Counts(CountWindows),
}

impl OpenWindows {
    pub fn new(window: &WindowDefinition, settings: WindowOptions) -> Self {
        let kept = match window.kind {
            WindowKind::Tumbling { size_ms } => {
                WindowStorage::Aligned(AlignedWindows::new(size_ms, size_ms, &window.zone))
            }
            WindowKind::Calendar { size, unit } => {
                WindowStorage::Aligned(AlignedWindows::by_calendar(size, unit, &window.zone))
            }
            WindowKind::Hopping { size_ms, every_ms } => {
                WindowStorage::Aligned(AlignedWindows::new(size_ms, every_ms, &window.zone))
            }
            WindowKind::Session { gap_ms, max_ms } => {
                WindowStorage::Sessions(SessionWindows::new(gap_ms, max_ms))
            }
            WindowKind::Sliding { size_ms } => WindowStorage::Sliding(SlidingWindows::new(size_ms)),
            WindowKind::Count { events, step } => {
                WindowStorage::Counts(CountWindows::new(events, step))
            }
        };
        Self {
            window: window.clone(),
            clock: WindowClock::new(&settings),
            room: WindowBudget::new(&settings),
            storage: kept,
        }
    }

    /// Takes an event. `close` is called with the windows that it closes by itself.
    pub fn add(
        &mut self,
        sample: &WindowSample<'_>,
        now_ms: u64,
        arena: &Arena,
        mut close: impl FnMut(ClosedWindow<'_>),
    ) -> AddOutcome {
        let Self {
            window,
            clock,
            room,
            storage: kept,
        } = self;
        let aggregates = &window.aggregates;
        let at_ms = sample.timestamp_ms;
        let closed_ms = clock.closed_ms(now_ms);
        if clock.is_too_far_ahead(at_ms, now_ms) {
            return AddOutcome::Ahead;
        }
        let added = match kept {
            WindowStorage::Aligned(kept) => kept.add(sample, closed_ms, aggregates, room),
            WindowStorage::Sessions(kept) => kept.add(sample, closed_ms, aggregates, room),
            WindowStorage::Sliding(kept) => {
                kept.add(sample, closed_ms, aggregates, room, &mut |closed| {
                    close(closed.to_closed_window(aggregates, arena));
                })
            }
            WindowStorage::Counts(kept) => kept.add(sample, aggregates, room, &mut |closed| {
                close(closed.to_closed_window(aggregates, arena));
            }),
        };
        clock.observe_event(at_ms, now_ms);
        added
    }

    /// Time has passed: closes what is due, in the order of its end.
    pub fn advance(&mut self, now_ms: u64, arena: &Arena, mut close: impl FnMut(ClosedWindow<'_>)) {
        let closed_ms = self.clock.closed_ms(now_ms);
        let (room, aggregates) = (&mut self.room, &self.window.aggregates);
        match &mut self.storage {
            WindowStorage::Aligned(kept) => kept.advance(closed_ms, room, &mut |closed| {
                close(closed.to_closed_window(aggregates, arena));
            }),
            WindowStorage::Sessions(kept) => kept.advance(closed_ms, room, &mut |closed| {
                close(closed.to_closed_window(aggregates, arena));
            }),
            WindowStorage::Sliding(kept) => kept.advance(closed_ms, aggregates, room),
            WindowStorage::Counts(_) => {}
        }
    }

    /// When [`OpenWindows::advance`] has something to do next.
    pub fn due_ms(&self) -> Option<u64> {
        let due = match &self.storage {
            WindowStorage::Aligned(kept) => kept.due_ms(),
            WindowStorage::Sessions(kept) => kept.due_ms(),
            WindowStorage::Sliding(kept) => kept.due_ms(),
            WindowStorage::Counts(_) => None,
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

    /// The state as bytes, for [`OpenWindows::restore`].
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        codec::put_bytes(self.snapshot_signature().as_bytes(), &mut out);
        self.clock.put(&mut out);
        match &self.storage {
            WindowStorage::Aligned(kept) => kept.put(&mut out),
            WindowStorage::Sessions(kept) => kept.put(&mut out),
            WindowStorage::Sliding(kept) => kept.put(&mut out),
            WindowStorage::Counts(kept) => kept.put(&mut out),
        }
        out
    }

    /// Goes on from a snapshot of the same window. After an error there is nothing, as after [`OpenWindows::new`].
    pub fn restore(
        window: &WindowDefinition,
        settings: WindowOptions,
        snapshot: &[u8],
    ) -> Result<Self, DecodeError> {
        let mut restored = Self::new(window, settings);
        let mut from = codec::WindowReader::new(snapshot);
        if from.u8()? != VERSION || from.bytes()? != restored.snapshot_signature().as_bytes() {
            return Err(DecodeError);
        }
        restored.clock.read(&mut from)?;
        let (room, aggregates) = (&mut restored.room, &window.aggregates);
        match &mut restored.storage {
            WindowStorage::Aligned(kept) => kept.read(&mut from, aggregates, room)?,
            WindowStorage::Sessions(kept) => kept.read(&mut from, aggregates, room)?,
            WindowStorage::Sliding(kept) => kept.read(&mut from, aggregates, room)?,
            WindowStorage::Counts(kept) => kept.read(&mut from, aggregates, room)?,
        }
        match from.is_empty() {
            true => Ok(restored),
            false => Err(DecodeError),
        }
    }

    /// What a snapshot has to be of.
    fn snapshot_signature(&self) -> String {
        let names: Vec<&str> = (self.window.aggregates.iter())
            .map(|aggregate| aggregate.kind.name())
            .collect();
        let time = match self.clock.uses_event_time() {
            true => "event_time",
            false => "node_time",
        };
        let (kind, keys) = (self.window.kind, self.window.keys);
        let zone = self.window.zone.name();
        format!("{kind} {keys} {} {time} {zone}", names.join(","))
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
