//! The clock of a rule's windows: decides up to which time windows are closed.
//!
//! A rule without event timestamps uses the node's clock. With event timestamps, the clock follows them
//! forward and never back. It stands still when no events arrive, so that a backlog is counted as if it
//! arrived on time. After a time without events it advances as fast as the node's clock, so that the last
//! windows close, too.

use super::codec::{DecodeError, WindowReader, put_u64};
use super::options::{EventClockLimits, WindowOptions};

pub(super) struct WindowClock {
    lateness_ms: u64,
    events: Option<EventTimeState>,
}

struct EventTimeState {
    bounds: EventClockLimits,
    /// The event clock when the last event arrived.
    newest_ms: Option<u64>,
    /// The node's clock when the last event arrived. Unknown after a restart until the first call, because
    /// downtime does not count as silence.
    arrived_ms: Option<u64>,
    closed_ms: u64,
}

impl WindowClock {
    pub(super) fn new(settings: &WindowOptions) -> Self {
        Self {
            lateness_ms: settings.lateness_ms,
            events: settings.event_time.map(|bounds| EventTimeState {
                bounds,
                newest_ms: None,
                arrived_ms: None,
                closed_ms: 0,
            }),
        }
    }

    pub(super) fn uses_event_time(&self) -> bool {
        self.events.is_some()
    }

    /// Windows that end at or before this time are closed.
    pub(super) fn closed_ms(&mut self, now_ms: u64) -> u64 {
        let Some(events) = &mut self.events else {
            return now_ms.saturating_sub(self.lateness_ms);
        };
        if let Some(at_ms) = events.at_ms(now_ms) {
            let closed_ms = at_ms.saturating_sub(self.lateness_ms);
            events.closed_ms = events.closed_ms.max(closed_ms);
        }
        events.closed_ms
    }

    /// Whether an event is so far ahead of the node's clock that its own clock must be wrong.
    pub(super) fn is_too_far_ahead(&self, at_ms: u64, now_ms: u64) -> bool {
        let bounds = self.events.as_ref().map(|events| events.bounds);
        bounds.is_some_and(|bounds| at_ms > now_ms.saturating_add(bounds.max_ahead_ms))
    }

    /// Records the arrival of an event.
    pub(super) fn observe_event(&mut self, at_ms: u64, now_ms: u64) {
        if let Some(events) = &mut self.events {
            events.newest_ms = events.at_ms(now_ms).max(Some(at_ms));
            events.arrived_ms = Some(now_ms);
        }
    }

    /// The time on the node's clock at which a window with this end must be closed.
    pub(super) fn due_ms(&self, end_ms: u64) -> u64 {
        let wanted_ms = end_ms.saturating_add(self.lateness_ms);
        let Some(events) = &self.events else {
            return wanted_ms;
        };
        match (events.newest_ms, events.arrived_ms) {
            (Some(newest_ms), Some(arrived_ms)) if newest_ms < wanted_ms => {
                let silence_ms = (wanted_ms - newest_ms).max(events.bounds.idle_ms);
                arrived_ms.saturating_add(silence_ms)
            }
            _ => 0,
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let Some(events) = &self.events else { return };
        // 0 means unset: no event that matters is from 1970.
        put_u64(events.newest_ms.unwrap_or(0), out);
        put_u64(events.closed_ms, out);
    }

    pub(super) fn read(&mut self, from: &mut WindowReader<'_>) -> Result<(), DecodeError> {
        if let Some(events) = &mut self.events {
            events.newest_ms = Some(from.u64()?).filter(|&newest_ms| newest_ms > 0);
            events.closed_ms = from.u64()?;
        }
        Ok(())
    }
}

impl EventTimeState {
    /// The time on the event clock.
    fn at_ms(&mut self, now_ms: u64) -> Option<u64> {
        let newest_ms = self.newest_ms?;
        let silence_ms = now_ms.saturating_sub(*self.arrived_ms.get_or_insert(now_ms));
        Some(match silence_ms >= self.bounds.idle_ms {
            true => newest_ms.saturating_add(silence_ms),
            false => newest_ms,
        })
    }
}
