//! Where rows go that a rule sends to sinks, and telemetry and alarms of devices. The engine knows neither connectors nor devices;
//! the program gives it these.

use broker::hooks::DurableCallback;
use rules::Value;

/// A sink of an [`SinkPort`], for as long as it has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkId(pub u32);

/// An output of a rule.
#[derive(Debug, Clone, Copy)]
pub struct OutputRow<'a> {
    /// A map.
    pub columns: Value<'a>,
    /// The rule it comes from.
    pub rule: &'a str,
    /// Of an action with fallback actions: where it comes from, to be kept with the row, for [`Engine::run_fallback`](crate::Engine::run_fallback).
    pub origin: Option<OutputRowOrigin>,
}

/// Which action a row comes of, besides its rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputRowOrigin {
    /// Its place in the rule.
    pub action: u8,
    /// How many rules it has come through.
    pub depth: u8,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkPortOutcome {
    Queued,
    /// It is queued, and its sink is full: publishers are to wait while [`SinkPort::is_full`] says so.
    Full,
    /// The sink is full and throws away what is new.
    Dropped,
    /// There is no such sink.
    Unknown,
}

/// Called on shards: never waits.
pub trait SinkPort: Send + Sync {
    /// The sink of this name, if there is one now. A sink keeps its id while it has its name.
    fn find_sink(&self, name: &str) -> Option<SinkId>;
    /// `lane` tells apart who calls: the number of a shard, one more for windows, and one more for what comes in through bridges. Rows of one lane keep their order.
    fn send_row(&self, sink: SinkId, lane: u16, row: OutputRow<'_>) -> SinkPortOutcome;
    /// Whether publishers are to wait for it.
    fn is_full(&self, sink: SinkId) -> bool;

    /// Whether rows of a lane are queued that are to be safe, and are not yet. Asked after each row.
    fn has_unsettled_rows(&self, lane: u16) -> bool {
        let _ = lane;
        false
    }

    /// Calls `done`, from any thread, when all rows of a lane that are to be safe are.
    fn notify_when_durable(&self, lane: u16, done: DurableCallback) {
        let _ = lane;
        done();
    }
}

/// Values of a device that a rule has made.
#[derive(Debug, Clone, Copy)]
pub struct DeviceTelemetry<'a> {
    pub device_id: &'a str,
    pub timestamp_ms: u64,
    /// By name.
    pub values: &'a [(&'a str, Value<'a>)],
    /// The rule it comes from.
    pub rule: &'a str,
    /// For [`DeviceEvent::tag`](crate::DeviceEvent::tag) of what comes of it.
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

    /// By its name, in any case.
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
    /// What kind of alarm it is; a device has one of a name at a time.
    pub name: &'a str,
    pub severity: Severity,
    /// It is over.
    pub is_cleared: bool,
    pub timestamp_ms: u64,
    /// What is to be known of it: a text.
    pub details: &'a str,
    /// The rule it comes from.
    pub rule: &'a str,
    /// For [`DeviceEvent::tag`](crate::DeviceEvent::tag) of what comes of it.
    pub tag: u64,
}

/// What became of telemetry or an alarm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DevicePortOutcome {
    Accepted,
    /// It is taken, and publishers are to wait while [`DevicePort::is_full`] says so.
    Full,
    /// It is not taken: why.
    Rejected(Box<str>),
}

/// Takes what rules make of devices. Called on shards, on the thread of windows and on the control plane, as `lane` says (see
/// [`SinkPort::send_row`]): never waits. What it tells the engine on a shard in turn, it tells with
/// [`Engine::handle_device_event_on`](crate::Engine::handle_device_event_on); elsewhere not before it has returned.
pub trait DevicePort: Send + Sync {
    fn write_telemetry(&self, lane: u16, telemetry: &DeviceTelemetry<'_>) -> DevicePortOutcome;
    fn write_alarm(&self, lane: u16, alarm: &DeviceAlarm<'_>) -> DevicePortOutcome;
    fn is_full(&self) -> bool;

    /// Calls `done`, from any thread, when all that was taken until now is safe.
    fn notify_when_durable(&self, done: DurableCallback) {
        done();
    }
}
