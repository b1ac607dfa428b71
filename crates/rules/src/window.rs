//! GROUP BY with windows: which events are grouped together, and which aggregates are computed.

use std::fmt;

use crate::value::Value;
use crate::zone::Zone;

/// Maximum number of overlapping windows.
pub(crate) const MAX_OVERLAPPING: u64 = 1000;

/// The windowed part of a rule. The rule turns an event into a [`WindowSample`]. The owner of the windows
/// aggregates the samples and passes a [`ClosedWindow`] back to the rule.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowDefinition {
    pub kind: WindowKind,
    /// Number of expressions in GROUP BY: the length of [`WindowSample::key`].
    pub keys: usize,
    /// One per distinct aggregate call in SELECT and HAVING, in the order of [`WindowSample::arguments`] and
    /// [`ClosedWindow::aggregates`].
    pub aggregates: Box<[Aggregate]>,
    /// The zone that defines the start of a day for windows of whole days, weeks and months.
    pub zone: Zone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowKind {
    /// Consecutive windows that begin at multiples of their size since 1970. Windows of whole days begin at
    /// midnight in the rule's zone.
    Tumbling { size_ms: u64 },
    /// Consecutive windows by the calendar of the rule's zone.
    Calendar { size: u32, unit: CalendarUnit },
    /// A window begins every `every_ms`. Windows overlap if that is less than `size_ms`.
    Hopping { size_ms: u64, every_ms: u64 },
    /// The time before each event; every event closes a window.
    Sliding { size_ms: u64 },
    /// Ends when no event arrives for `gap_ms`, or `max_ms` after its first event, after which another
    /// begins.
    Session { gap_ms: u64, max_ms: Option<u64> },
    /// A number of events. A window begins every `step` events. Windows overlap if that is less than
    /// `events`.
    Count { events: u64, step: u64 },
}

/// Units whose length depends on the calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalendarUnit {
    /// Begins on Monday.
    Week,
    Month,
}

impl CalendarUnit {
    /// Maximum number of units in one window: a year.
    pub(crate) fn max_size(self) -> u32 {
        match self {
            Self::Week => 52,
            Self::Month => 12,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aggregate {
    pub kind: AggregateKind,
    /// The p of `percentile(x, p)`, 0 to 100.
    pub percentile: f64,
}

/// All aggregates skip nulls. `count(*)` counts events: its argument is never null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AggregateKind {
    Count,
    Sum,
    Avg,
    Min,
    Max,
    First,
    Last,
    Collect,
    Stddev,
    Percentile,
    DistinctCount,
}

/// The values of one event that a window needs.
#[derive(Clone, Copy)]
pub struct WindowSample<'a> {
    /// Time of the event in milliseconds since 1970.
    pub timestamp_ms: u64,
    pub key: &'a [Value<'a>],
    pub arguments: &'a [Value<'a>],
}

/// A window that has closed.
#[derive(Clone, Copy)]
pub struct ClosedWindow<'a> {
    pub start_ms: u64,
    pub end_ms: u64,
    pub key: &'a [Value<'a>],
    pub aggregates: &'a [Value<'a>],
}

impl AggregateKind {
    pub const ALL: [(&'static str, Self); 11] = [
        ("count", Self::Count),
        ("sum", Self::Sum),
        ("avg", Self::Avg),
        ("min", Self::Min),
        ("max", Self::Max),
        ("first", Self::First),
        ("last", Self::Last),
        ("collect", Self::Collect),
        ("stddev", Self::Stddev),
        ("percentile", Self::Percentile),
        ("distinct_count", Self::DistinctCount),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, kind)| *kind == self)
            .map_or("", |(name, _)| name)
    }
}

impl fmt::Display for WindowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tumbling { size_ms } => write!(f, "tumbling({size_ms}ms)"),
            Self::Calendar { size, unit } => {
                let plural = if *size == 1 { "" } else { "s" };
                write!(f, "tumbling({size} {}{plural})", unit.name())
            }
            Self::Hopping { size_ms, every_ms } => write!(f, "hopping({size_ms}ms, {every_ms}ms)"),
            Self::Sliding { size_ms } => write!(f, "sliding({size_ms}ms)"),
            Self::Session {
                gap_ms,
                max_ms: None,
            } => write!(f, "session({gap_ms}ms)"),
            Self::Session {
                gap_ms,
                max_ms: Some(max_ms),
            } => write!(f, "session({gap_ms}ms, {max_ms}ms)"),
            Self::Count { events, step } if events == step => write!(f, "count({events})"),
            Self::Count { events, step } => write!(f, "count({events}, {step})"),
        }
    }
}
