//! Rules at work: the rule language hung on the broker's hooks.
//!
//! [`Engine`] keeps the rules of a node, compiles them, and gives every shard the same immutable index of them, replaced as a
//! whole when a rule changes. A shard evaluates what its events meet where they happen; what comes out is published, logged or
//! handed to an [`Outlet`]. Rules with windows are counted on one thread for all shards.

mod action;
mod bound;
mod bridge;
mod counters;
mod definition;
mod devices;
mod engine;
mod error;
mod fallback;
mod families;
mod hooks;
mod keeper;
mod on_devices;
mod outlet;
mod recent;
mod republish;
mod rows;
mod run;
mod saved;
mod schema;
mod settings;
mod shared;
mod stage;
mod template;
mod trace;
mod trial;

pub use bridge::Incoming;
pub use counters::{Count, Totals};
pub use definition::{
    ActionDefinition, ActionKind, AlarmAction, Definition, KIND, Republish, RuleLimits,
    TelemetryAction, WindowLimits,
};
pub use devices::{DeviceEvent, DeviceEventKind};
pub use engine::{Condition, Engine, Status};
pub use error::Invalid;
pub use fallback::FailedRow;
pub use outlet::{
    Alarm, DeviceOutlet, Given, Outlet, Row, RowOrigin, Sent, Severity, SinkId, Telemetry,
};
pub use recent::RuleError;
pub use saved::{MEMORY_KIND, WINDOW_KIND};
pub use settings::Settings;
pub use trial::Trial;

#[cfg(test)]
mod tests;
