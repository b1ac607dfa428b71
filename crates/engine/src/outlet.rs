//! Where the rows go that a rule sends to sinks. The engine knows no connector; the program gives it one of these.

use rules::Value;

/// A sink of an [`Outlet`], for as long as it has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkId(pub u32);

/// An output of a rule.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// A map.
    pub columns: Value<'a>,
    /// The rule it comes from.
    pub rule: &'a str,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    Queued,
    /// It is queued, and its sink is full: publishers are to wait while [`Outlet::is_full`] says so.
    Full,
    /// The sink is full and throws away what is new.
    Dropped,
    /// There is no such sink.
    Unknown,
}

/// Called on shards: never waits.
pub trait Outlet: Send + Sync {
    /// The sink of this name, if there is one now. A sink keeps its id while it has its name.
    fn sink(&self, name: &str) -> Option<SinkId>;
    /// `lane` tells apart who calls: the number of a shard, one more for windows, and one more for what comes in through bridges. Rows of one lane keep their order.
    fn send(&self, sink: SinkId, lane: u16, row: Row<'_>) -> Sent;
    /// Whether publishers are to wait for it.
    fn is_full(&self, sink: SinkId) -> bool;
}
