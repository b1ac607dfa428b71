//! The rule language: one SQL statement over the events of a broker, compiled once and evaluated for every
//! candidate event.
//!
//! The crate is pure: no I/O, no threads, no clock, and only the randomness that the caller supplies. All
//! values of one evaluation live in one arena.

mod calendar;
mod compilation_cache;
mod compile;
pub mod compile_options;
mod compiled_regex;
mod decimals;
mod eval;
pub mod evaluation_error;
pub mod evaluation_resources;
pub mod event;
mod event_field;
pub mod event_time;
pub mod event_view;
pub mod function_context;
pub mod function_limits;
pub mod functions;
pub mod index;
pub mod index_keys;
pub mod json;
pub mod kv_store;
pub mod language_reference;
mod lazy_document;
mod list_positions;
mod plan;
mod program;
mod publish_columns;
pub mod random;
pub mod rule;
pub mod rule_source;
pub mod statement_error;
mod suggestion;
mod syntax;
pub mod template;
pub mod value;
pub mod window;
pub mod windows;
pub mod zone;

pub use compile::compile;
pub use compile_options::{CompileOptions, MAX_SQL_BYTES, StatementLimits};
pub use evaluation_error::EvaluationError;
pub use evaluation_resources::{Environment, EvaluationResources};
pub use event::{ConnectionDetails, RuleEvent, WillDetails};
pub use event_field::spellings;
pub use event_time::EventTime;
pub use event_view::{EvaluationScratch, EventView};
pub use function_context::{Dialect, FunctionContext, MessagePart, MessageSource};
pub use function_limits::FunctionLimits;
pub use index_keys::{IndexKeys, TopicKey};
pub use kv_store::{KvLimits, KvStore};
pub use plan::no_result::ComparedOperand;
pub use random::Rng;
pub use rule::{Rule, RuleOutput, RuleState, RunOutcome};
pub use rule_source::{EventKind, RuleSource};
pub use statement_error::StatementError;
pub use suggestion::{nearest_key, nearest_name, with_suggestion};
pub use template::{RenderSummary, Template, TemplateFormat, ValueTemplate};
pub use value::{Arena, OwnedValue, Value};
pub use window::{
    Aggregate, AggregateKind, CalendarUnit, ClosedWindow, WindowDefinition, WindowKind,
    WindowSample,
};
pub use zone::Zone;
