//! GROUP BY over windows: what is counted together, and what of it.

use std::fmt;

use crate::value::Value;
use crate::zone::Zone;

/// The windowed part of a rule. The rule turns an event into a [`WindowSample`]; who keeps the windows adds it up and gives a
/// [`ClosedWindow`] window back to the rule.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowDefinition {
    pub kind: WindowKind,
    /// Expressions of GROUP BY: the length of [`WindowSample::key`].
    pub keys: usize,
    /// One for each different call of an aggregate in SELECT and HAVING: the order of [`WindowSample::arguments`] and
    /// [`ClosedWindow::aggregates`].
    pub aggregates: Box<[Aggregate]>,
    /// Where the days of windows of whole days, weeks and months begin.
    pub zone: Zone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowKind {
    /// One after the other, beginning at multiples of their size since 1970; those of whole days at midnight in the rule's zone.
    Tumbling { size_ms: u64 },
    /// The same by the calendar of the rule's zone.
    Calendar { size: u32, unit: CalendarUnit },
    /// One begins every `every_ms`; they overlap if that is less than `size_ms`.
    Hopping { size_ms: u64, every_ms: u64 },
    /// The time before each event; each event closes one.
    Sliding { size_ms: u64 },
    /// Ends when nothing came for `gap_ms`, or `max_ms` after its first event, after which another begins.
    Session { gap_ms: u64, max_ms: Option<u64> },
    /// So many events. One begins every `step` events; they overlap if that is less than `events`.
    Count { events: u64, step: u64 },
}

/// What only a calendar knows the length of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalendarUnit {
    /// Begins on Monday.
    Week,
    Month,
}

impl CalendarUnit {
    /// No more than these are in one window: a year.
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

/// Nulls are left out of all of them; `count(*)` counts events, its argument is never null.
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

/// One event as a window sees it.
#[derive(Clone, Copy)]
pub struct WindowSample<'a> {
    /// When it happened.
    pub timestamp_ms: u64,
    pub key: &'a [Value<'a>],
    pub arguments: &'a [Value<'a>],
}

/// A window whose time has come.
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
