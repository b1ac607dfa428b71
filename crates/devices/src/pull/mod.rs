//! Pull sources: systems that are polled on a schedule for values on behalf of devices.
//!
//! ```text
//! object ─ PullSourceDefinition ─ PullSource ─┐
//!                            PullScheduler ──▶ poll (Prometheus, HTTP, ipmitool) ─▶ Readings ─▶ ReadingIntake ─▶ pipeline
//! ```
//!
//! A source is never polled twice at the same time, and the number of simultaneous polls is limited. A failing source
//! is polled less and less often until it recovers.

mod definition;
mod health;
mod http_endpoint;
mod http_poll;
mod intake;
mod ipmi;
mod json_path;
mod label_template;
mod prometheus;
mod readings;
mod schedule;
mod source;

#[cfg(test)]
mod tests;

pub use definition::{MAX_SOURCES, PullSourceDefinition, PullSourceError};
pub use health::{PullSourceHealth, PullSourceState, PullSourceStatus};
pub use intake::{IntakeOutcome, PollingTurn, ReadingIntake};
pub use readings::{PullError, Reading, Readings};
pub use schedule::{PullOptions, PullScheduler};

/// The kind of the configuration objects that define pull sources.
pub const KIND: &str = "pull_source";
