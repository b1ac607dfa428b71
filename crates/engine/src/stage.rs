//! What one lane (a shard, or the owner of windows) has at hand while it runs rules: buffers, what waits to be published, which
//! sinks are full.

use std::sync::Arc;

use broker::hooks::{Backpressure, Outgoing};
use rules::RuleState;

use crate::outlet::{DeviceOutlet, Outlet, SinkId};
use crate::shared::Shared;

/// Messages to be published before others are let in that wait for nobody.
const MAX_OUTGOING_BYTES: usize = 64 << 20;

/// Events of rules that failed, on one lane.
const FAILURE_EVENTS_PER_S: u32 = 100;

pub(crate) struct Stage {
    pub(crate) lane: usize,
    pub(crate) outgoing: Outgoing,
    pub(crate) max_outgoing_bytes: usize,
    /// Sinks that said that publishers are to wait.
    full: Vec<SinkId>,
    are_devices_full: bool,
    are_windows_full: bool,
    /// Rows were sent that answers are to wait for.
    is_unsettled: bool,
    /// Some of it was given to devices.
    settles_devices: bool,
    pub(crate) console: Lines,
    /// Events of rules that failed, and whether one is being told.
    failure_events: Lines,
    is_telling_failure: bool,
    pub(crate) topic: Vec<u8>,
    pub(crate) text: Vec<u8>,
    /// For rules that keep nothing.
    pub(crate) spare: RuleState,
    shared: Arc<Shared>,
    /// The second of the last warning.
    warned_s: u64,
}

impl Stage {
    pub(crate) fn new(lane: usize, shared: Arc<Shared>) -> Self {
        Self {
            lane,
            outgoing: Outgoing::default(),
            max_outgoing_bytes: MAX_OUTGOING_BYTES,
            full: Vec::new(),
            are_devices_full: false,
            are_windows_full: false,
            is_unsettled: false,
            settles_devices: false,
            console: Lines::new(shared.settings.console_lines_per_s),
            failure_events: Lines::new(FAILURE_EVENTS_PER_S),
            is_telling_failure: false,
            topic: Vec::new(),
            text: Vec::new(),
            spare: RuleState::default(),
            shared,
            warned_s: 0,
        }
    }

    /// Whether a warning may be logged now: one a second.
    pub(crate) fn may_warn(&mut self, now_ms: u64) -> bool {
        let is_new = self.warned_s != now_ms / 1000;
        self.warned_s = now_ms / 1000;
        is_new
    }

    pub(crate) fn outlet(&self) -> Option<&Arc<dyn Outlet>> {
        self.shared.outlet.get()
    }

    pub(crate) fn devices(&self) -> Option<&Arc<dyn DeviceOutlet>> {
        self.shared.devices.get()
    }

    /// A row was queued.
    pub(crate) fn note_sent(&mut self, outlet: &dyn Outlet) {
        self.is_unsettled = self.is_unsettled || outlet.is_unsettled(self.lane as u16);
    }

    /// Telemetry or an alarm of a device was taken.
    pub(crate) fn note_given(&mut self) {
        self.is_unsettled = true;
        self.settles_devices = true;
    }

    /// Whether answers are to wait for what was sent since this was asked last.
    pub(crate) fn take_unsettled(&mut self) -> bool {
        std::mem::take(&mut self.is_unsettled)
    }

    /// Whether something was given to devices since this was asked last.
    pub(crate) fn take_settles_devices(&mut self) -> bool {
        std::mem::take(&mut self.settles_devices)
    }

    /// Publishers are to wait while the devices say so.
    pub(crate) fn note_devices_full(&mut self) {
        self.are_devices_full = true;
    }

    /// Whether a failure may be told to other rules now; then [`Stage::end_failure_event`] is called when it has been.
    pub(crate) fn begin_failure_event(&mut self, now_ms: u64) -> bool {
        if self.is_telling_failure || !self.failure_events.take(now_ms) {
            return false;
        }
        self.is_telling_failure = true;
        true
    }

    pub(crate) fn end_failure_event(&mut self) {
        self.is_telling_failure = false;
    }

    pub(crate) fn note_full(&mut self, sink: SinkId) {
        if !self.full.contains(&sink) {
            self.full.push(sink);
        }
    }

    /// Rows wait for windows, and these are behind.
    pub(crate) fn note_windows_full(&mut self) {
        self.are_windows_full = true;
    }

    /// What the publisher is to wait for whose messages were met since this was asked last.
    pub(crate) fn take_backpressure(&mut self) -> Option<Backpressure> {
        let are_devices_full = std::mem::take(&mut self.are_devices_full);
        let are_windows_full = std::mem::take(&mut self.are_windows_full);
        if self.full.is_empty() && !are_devices_full && !are_windows_full {
            return None;
        }
        let (shared, sinks) = (self.shared.clone(), std::mem::take(&mut self.full));
        Some(Box::new(move || {
            let outlet = shared.outlet.get();
            outlet.is_some_and(|outlet| sinks.iter().any(|sink| outlet.is_full(*sink)))
                || are_devices_full
                    && (shared.devices.get()).is_some_and(|devices| devices.is_full())
                || are_windows_full && shared.rows.is_full()
        }))
    }

    pub(crate) fn has_followers(&self) -> bool {
        !self.outgoing.is_empty()
            || !self.full.is_empty()
            || self.are_devices_full
            || self.are_windows_full
            || self.is_unsettled
    }

    pub(crate) fn take_outgoing(&mut self) -> Option<Outgoing> {
        (!self.outgoing.is_empty()).then(|| std::mem::take(&mut self.outgoing))
    }
}

/// So many lines a second.
pub(crate) struct Lines {
    per_s: u32,
    second: u64,
    count: u32,
}

impl Lines {
    fn new(per_s: u32) -> Self {
        Self {
            per_s,
            second: 0,
            count: 0,
        }
    }

    pub(crate) fn take(&mut self, now_ms: u64) -> bool {
        if self.second != now_ms / 1000 {
            (self.second, self.count) = (now_ms / 1000, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= self.per_s
    }
}
