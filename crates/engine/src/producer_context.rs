//! The context in which one producer (a shard, or the thread that owns windows) runs rules: buffers, messages to
//! publish, and the full sinks.

use std::sync::Arc;

use hooks::{BackpressureCheck, OutgoingMessages};
use rules::RuleState;

use crate::ports::{DevicePort, EnginePorts, SinkId, SinkPort};
use crate::window_queue_level::WindowQueueLevel;

/// Limit of messages waiting to be published whose publisher cannot be made to wait.
const MAX_OUTGOING_BYTES: usize = 64 << 20;

/// Failure events per second on one producer.
const FAILURE_EVENTS_PER_S: u32 = 100;

pub(crate) struct ProducerContext {
    pub(crate) producer: usize,
    pub(crate) outgoing: OutgoingMessages,
    pub(crate) max_outgoing_bytes: usize,
    /// A rule has matched the message, up to its WHERE clause.
    pub(crate) has_matched: bool,
    /// Sinks that reported backpressure.
    full_sinks: Vec<SinkId>,
    are_devices_full: bool,
    are_windows_full: bool,
    /// Rows were sent that acknowledgements must wait for.
    is_unsettled: bool,
    /// Some of them are device writes.
    has_unsettled_devices: bool,
    pub(crate) console_limiter: LineRateLimiter,
    /// Rate limit of failure events, and whether one is being emitted.
    failure_events: LineRateLimiter,
    is_emitting_failure: bool,
    pub(crate) topic: Vec<u8>,
    pub(crate) text: Vec<u8>,
    /// State shared by stateless rules.
    pub(crate) stateless_state: RuleState,
    ports: Arc<EnginePorts>,
    window_queue: Arc<WindowQueueLevel>,
    /// The second of the last warning.
    warned_s: u64,
}

impl ProducerContext {
    pub(crate) fn new(
        producer: usize,
        console_lines_per_s: u32,
        ports: Arc<EnginePorts>,
        window_queue: Arc<WindowQueueLevel>,
    ) -> Self {
        Self {
            producer,
            outgoing: OutgoingMessages::default(),
            max_outgoing_bytes: MAX_OUTGOING_BYTES,
            has_matched: false,
            full_sinks: Vec::new(),
            are_devices_full: false,
            are_windows_full: false,
            is_unsettled: false,
            has_unsettled_devices: false,
            console_limiter: LineRateLimiter::new(console_lines_per_s),
            failure_events: LineRateLimiter::new(FAILURE_EVENTS_PER_S),
            is_emitting_failure: false,
            topic: Vec::new(),
            text: Vec::new(),
            stateless_state: RuleState::default(),
            ports,
            window_queue,
            warned_s: 0,
        }
    }

    /// Whether a warning may be logged now: at most one per second.
    pub(crate) fn may_warn(&mut self, now_ms: u64) -> bool {
        let is_new = self.warned_s != now_ms / 1000;
        self.warned_s = now_ms / 1000;
        is_new
    }

    pub(crate) fn sink_port(&self) -> Option<&Arc<dyn SinkPort>> {
        self.ports.sinks.get()
    }

    pub(crate) fn device_port(&self) -> Option<&Arc<dyn DevicePort>> {
        self.ports.devices.get()
    }

    /// Records that a row was queued.
    pub(crate) fn record_row_sent(&mut self, port: &dyn SinkPort) {
        self.is_unsettled = self.is_unsettled || port.has_unsettled_rows(self.producer as u16);
    }

    /// Records that telemetry or an alarm of a device was accepted.
    pub(crate) fn record_device_write(&mut self) {
        self.is_unsettled = true;
        self.has_unsettled_devices = true;
    }

    /// Whether acknowledgements must wait for rows or device writes sent since the last call.
    pub(crate) fn take_unsettled(&mut self) -> bool {
        std::mem::take(&mut self.is_unsettled)
    }

    /// Whether telemetry or alarms were written since the last call.
    pub(crate) fn take_unsettled_devices(&mut self) -> bool {
        std::mem::take(&mut self.has_unsettled_devices)
    }

    /// Makes publishers wait while the device port is full.
    pub(crate) fn set_devices_full(&mut self) {
        self.are_devices_full = true;
    }

    /// Whether a failure event may be emitted now. If so, the caller calls [`ProducerContext::end_failure_event`]
    /// afterwards.
    pub(crate) fn begin_failure_event(&mut self, now_ms: u64) -> bool {
        if self.is_emitting_failure || !self.failure_events.try_acquire(now_ms) {
            return false;
        }
        self.is_emitting_failure = true;
        true
    }

    pub(crate) fn end_failure_event(&mut self) {
        self.is_emitting_failure = false;
    }

    pub(crate) fn add_full_sink(&mut self, sink: SinkId) {
        if !self.full_sinks.contains(&sink) {
            self.full_sinks.push(sink);
        }
    }

    /// Makes publishers wait while the window queue is full.
    pub(crate) fn set_windows_full(&mut self) {
        self.are_windows_full = true;
    }

    /// The condition to wait for, for the publisher whose messages were evaluated since the last call.
    pub(crate) fn take_backpressure(&mut self) -> Option<BackpressureCheck> {
        let are_devices_full = std::mem::take(&mut self.are_devices_full);
        let are_windows_full = std::mem::take(&mut self.are_windows_full);
        if self.full_sinks.is_empty() && !are_devices_full && !are_windows_full {
            return None;
        }
        let (ports, sinks) = (self.ports.clone(), std::mem::take(&mut self.full_sinks));
        let window_queue = self.window_queue.clone();
        Some(Box::new(move || {
            let port = ports.sinks.get();
            port.is_some_and(|port| sinks.iter().any(|sink| port.is_full(*sink)))
                || are_devices_full
                    && (ports.devices.get()).is_some_and(|devices| devices.is_full())
                || are_windows_full && window_queue.is_full()
        }))
    }

    pub(crate) fn has_pending_effects(&self) -> bool {
        !self.outgoing.is_empty()
            || !self.full_sinks.is_empty()
            || self.are_devices_full
            || self.are_windows_full
            || self.is_unsettled
    }

    pub(crate) fn take_outgoing(&mut self) -> Option<OutgoingMessages> {
        (!self.outgoing.is_empty()).then(|| std::mem::take(&mut self.outgoing))
    }
}

/// Limits lines per second.
pub(crate) struct LineRateLimiter {
    per_s: u32,
    second: u64,
    count: u32,
}

impl LineRateLimiter {
    fn new(per_s: u32) -> Self {
        Self {
            per_s,
            second: 0,
            count: 0,
        }
    }

    pub(crate) fn try_acquire(&mut self, now_ms: u64) -> bool {
        if self.second != now_ms / 1000 {
            (self.second, self.count) = (now_ms / 1000, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= self.per_s
    }
}
