//! State of the windows of a rule with GROUP BY, until the windows close.
//!
//! An event belongs to windows by its timestamp. A window closes when the rule's clock (see
//! `window_clock.rs`) has passed its end by the allowed lateness. An event that is too late for all its
//! windows is rejected. This module never reads a clock; the caller passes the time with every call.
//!
//! The state is limited in groups and bytes, and can be serialized and restored.

mod accumulator;
mod aligned_windows;
pub(crate) mod codec;
mod count_windows;
mod due_queue;
mod options;
mod session_windows;
mod sliding_windows;
mod window_clock;
mod window_group;

pub use codec::{DecodeError, put_sample, read_sample};
pub use options::{EventClockLimits, WindowOptions};
pub use window_group::AddOutcome;

use crate::value::Arena;
use crate::window::{ClosedWindow, WindowDefinition, WindowKind, WindowSample};
use aligned_windows::AlignedWindows;
use count_windows::CountWindows;
use session_windows::SessionWindows;
use sliding_windows::SlidingWindows;
use window_clock::WindowClock;
use window_group::WindowBudget;

/// Version of the snapshot format.
const VERSION: u8 = 3;

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

    /// Adds an event. Calls `close` for windows that close because of this event alone.
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

    /// Advances the time: closes the windows that are due, in order of their ends.
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

    /// The next time at which [`OpenWindows::advance`] has work to do.
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

    /// Approximate memory of the state in bytes.
    pub fn size_bytes(&self) -> usize {
        self.room.bytes()
    }

    /// Serializes the state for [`OpenWindows::restore`].
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

    /// Restores a snapshot of the same window. After an error the state is empty, as after
    /// [`OpenWindows::new`].
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

    /// Identifies the window definition that a snapshot belongs to.
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
