//! The rule language: one SQL statement over the events of a broker, compiled once, evaluated for every message that can match.
//!
//! Pure: no I/O, no threads, no clock, no randomness but what it is given. Everything of one evaluation lives in one arena.

#![allow(
    dead_code,
    reason = "the families of functions that use the rest follow"
)]

mod calendar;
pub mod context;
pub mod fault;
pub mod functions;
pub mod json;
pub mod kv;
pub mod random;
pub mod tools;
pub mod value;
pub mod zone;

pub use context::{Context, Dialect, Limits, Message, Part};
pub use fault::Fault;
pub use kv::{Kv, KvLimits};
pub use random::Rng;
pub use tools::Tools;
pub use value::{Arena, OwnedValue, Value};
pub use zone::Zone;
