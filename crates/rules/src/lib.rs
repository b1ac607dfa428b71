//! The rule language: one SQL statement over the events of a broker, compiled once, evaluated for every message that can match.
//!
//! Pure: no I/O, no threads, no clock, no randomness but what it is given. Everything of one evaluation lives in one arena.

mod calendar;
mod compile;
pub mod context;
pub mod error;
mod eval;
pub mod event;
pub mod event_time;
pub mod fault;
mod field;
pub mod functions;
pub mod index;
pub mod json;
pub mod keys;
pub mod kv;
mod nearest;
pub mod options;
mod payload;
mod plan;
pub mod random;
mod record;
pub mod rule;
pub mod source;
mod syntax;
pub mod template;
pub mod tools;
pub mod value;
pub mod view;
pub mod window;
pub mod windows;
pub mod zone;

pub use calendar::Civil;
pub use compile::compile;
pub use context::{Context, Dialect, Limits, Message, Part};
pub use error::Error;
pub use event::{Connection, Event, Will};
pub use event_time::EventTime;
pub use fault::Fault;
pub use field::spellings;
pub use keys::{Keys, TopicKey};
pub use kv::{Kv, KvLimits};
pub use nearest::{nearest, with_suggestion};
pub use options::{Bounds, Options};
pub use plan::why::Compared;
pub use random::Rng;
pub use rule::{Output, Ran, Rule, RuleState};
pub use source::{EventKind, Source};
pub use template::{Form, Placeholders, Rendered, SqlTemplate, Template};
pub use tools::{Environment, Tools};
pub use value::{Arena, OwnedValue, Value};
pub use view::{Scratch, View};
pub use window::{Aggregate, AggregateKind, CalendarUnit, Closed, Sample, Window, WindowKind};
pub use zone::Zone;
