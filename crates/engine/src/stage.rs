//! What one lane (a shard, or the owner of windows) has at hand while it runs rules: buffers, what waits to be published, which
//! sinks are full.

use std::sync::Arc;

use broker::hooks::Outgoing;
use rules::RuleState;

use crate::outlet::{DeviceOutlet, Outlet, SinkId};
use crate::shared::Shared;

/// Messages to be published before others are let in that wait for nobody.
const MAX_OUTGOING_BYTES: usize = 64 << 20;

pub(crate) struct Stage {
    pub(crate) lane: usize,
    pub(crate) outgoing: Outgoing,
    pub(crate) max_outgoing_bytes: usize,
    /// Sinks that said that publishers are to wait.
    full: Vec<SinkId>,
    are_devices_full: bool,
    /// Rows were sent that answers are to wait for.
    is_unsettled: bool,
    pub(crate) console: Lines,
    pub(crate) topic: Vec<u8>,
    pub(crate) text: Vec<u8>,
    /// For rules that keep nothing.
    pub(crate) spare: RuleState,
    shared: Arc<Shared>,
}

impl Stage {
    pub(crate) fn new(lane: usize, shared: Arc<Shared>) -> Self {
        Self {
            lane,
            outgoing: Outgoing::default(),
            max_outgoing_bytes: MAX_OUTGOING_BYTES,
            full: Vec::new(),
            are_devices_full: false,
            is_unsettled: false,
            console: Lines::new(shared.settings.console_lines_per_s),
            topic: Vec::new(),
            text: Vec::new(),
            spare: RuleState::default(),
            shared,
        }
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

    /// Whether answers are to wait for rows sent since this was asked last.
    pub(crate) fn take_unsettled(&mut self) -> bool {
        std::mem::take(&mut self.is_unsettled)
    }

    /// Publishers are to wait while the devices say so.
    pub(crate) fn note_devices_full(&mut self) {
        self.are_devices_full = true;
    }

    pub(crate) fn note_full(&mut self, sink: SinkId) {
        if !self.full.contains(&sink) {
            self.full.push(sink);
        }
    }

    /// Whether publishers are to wait for a sink or for windows.
    pub(crate) fn is_saturated(&mut self) -> bool {
        if !self.full.is_empty() {
            match self.shared.outlet.get() {
                Some(outlet) => self.full.retain(|sink| outlet.is_full(*sink)),
                None => self.full.clear(),
            }
        }
        if self.are_devices_full {
            let devices = self.shared.devices.get();
            self.are_devices_full = devices.is_some_and(|devices| devices.is_full());
        }
        !self.full.is_empty() || self.are_devices_full || self.shared.rows.is_full()
    }

    pub(crate) fn has_followers(&self) -> bool {
        !self.outgoing.is_empty()
            || !self.full.is_empty()
            || self.are_devices_full
            || self.is_unsettled
            || self.shared.rows.is_full()
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
