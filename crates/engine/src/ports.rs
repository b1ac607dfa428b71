//! The interfaces to the broker, to sinks and to the device platform. The engine knows neither shards nor connectors
//! nor devices; the program supplies all ports.

use std::sync::{Arc, OnceLock};

use hooks::{BrokerPort, DurableCallback};
use rules::Value;

/// A sink of a [`SinkPort`]; valid as long as the sink keeps its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkId(pub u32);

/// An output of a rule.
#[derive(Debug, Clone, Copy)]
pub struct OutputRow<'a> {
    /// The columns by name: a map.
    pub columns: Value<'a>,
    /// The rule that produced the row.
    pub rule: &'a str,
    /// For an action with fallback actions: its origin, to be kept with the row for
    /// [`Engine::run_fallback`](crate::Engine::run_fallback).
    pub origin: Option<OutputRowOrigin>,
}

/// The action that produced a row, within its rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputRowOrigin {
    /// Position of the action in the rule.
    pub action: u8,
    /// Number of rules the row has passed through.
    pub depth: u8,
}

/// The result of sending a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkPortOutcome {
    Queued,
    /// The row is queued and the sink is full: publishers wait while [`SinkPort::is_full`] returns true.
    Full,
    /// The sink is full and drops new rows.
    Dropped,
    /// There is no such sink.
    Unknown,
}

/// Receives rows for sinks. Called on shards, so it never blocks.
pub trait SinkPort: Send + Sync {
    /// The current sink of this name. A sink keeps its id as long as it keeps its name.
    fn find_sink(&self, name: &str) -> Option<SinkId>;
    /// Queues a row. `producer` identifies the caller: the number of a shard, then one producer for windows, then one
    /// for events outside the shards. Rows of one producer keep their order.
    fn send_row(&self, sink: SinkId, producer: u16, row: OutputRow<'_>) -> SinkPortOutcome;
    /// Whether publishers must wait for this sink.
    fn is_full(&self, sink: SinkId) -> bool;

    /// Whether queued rows of a producer must become durable and are not yet. Called after each row.
    fn has_unsettled_rows(&self, producer: u16) -> bool {
        let _ = producer;
        false
    }

    /// Calls `done`, from any thread, when all rows of a producer that must become durable are durable.
    fn notify_when_durable(&self, producer: u16, done: DurableCallback) {
        let _ = producer;
        done();
    }
}

/// Telemetry of a device, computed by a rule.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTelemetry<'a> {
    pub device_id: &'a str,
    pub timestamp_ms: u64,
    /// Values by property name.
    pub values: &'a [(&'a str, Value<'a>)],
    /// The rule that computed the values.
    pub rule: &'a str,
    /// [`DeviceEvent::tag`](crate::DeviceEvent::tag) of the resulting events.
    pub tag: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Critical,
    Major,
    Minor,
    Warning,
    Indeterminate,
}

impl Severity {
    pub const ALL: [(&'static str, Self); 5] = [
        ("CRITICAL", Self::Critical),
        ("MAJOR", Self::Major),
        ("MINOR", Self::Minor),
        ("WARNING", Self::Warning),
        ("INDETERMINATE", Self::Indeterminate),
    ];

    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, severity)| *severity == self);
        found.map_or("", |(name, _)| name)
    }

    /// Parses a name, ignoring case.
    pub fn parse(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, severity)| *severity)
    }
}

/// An alarm of a device that a rule raises or clears.
#[derive(Debug, Clone, Copy)]
pub struct DeviceAlarm<'a> {
    pub device_id: &'a str,
    /// The type of the alarm; a device has at most one active alarm per name.
    pub name: &'a str,
    pub severity: Severity,
    /// Whether the alarm is cleared.
    pub is_cleared: bool,
    pub timestamp_ms: u64,
    /// Details of the alarm as text.
    pub details: &'a str,
    /// The rule that raised or cleared the alarm.
    pub rule: &'a str,
    /// [`DeviceEvent::tag`](crate::DeviceEvent::tag) of the resulting events.
    pub tag: u64,
}

/// The result of writing telemetry or an alarm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DevicePortOutcome {
    Accepted,
    /// The write is accepted; publishers wait while [`DevicePort::is_full`] returns true.
    Full,
    /// The write is rejected, for this reason.
    Rejected(Box<str>),
}

/// Receives telemetry and alarms of rules. Called on shards, on the window thread and on the control plane
/// (see `producer` of [`SinkPort::send_row`]), so it never blocks. It reports resulting events with
/// [`Engine::handle_device_event`](crate::Engine::handle_device_event) only after the call has returned.
pub trait DevicePort: Send + Sync {
    fn write_telemetry(&self, producer: u16, telemetry: &DeviceTelemetry<'_>) -> DevicePortOutcome;
    fn write_alarm(&self, producer: u16, alarm: &DeviceAlarm<'_>) -> DevicePortOutcome;
    fn is_full(&self) -> bool;

    /// Calls `done`, from any thread, when everything accepted so far is durable.
    fn notify_when_durable(&self, done: DurableCallback) {
        done();
    }
}

/// The ports of an engine, each set once: the broker when it runs, the others before the first rule.
#[derive(Default)]
pub(crate) struct EnginePorts {
    pub(crate) broker: OnceLock<Arc<dyn BrokerPort>>,
    /// Receives rows for sinks.
    pub(crate) sinks: OnceLock<Arc<dyn SinkPort>>,
    /// Receives telemetry and alarms of devices.
    pub(crate) devices: OnceLock<Arc<dyn DevicePort>>,
}
