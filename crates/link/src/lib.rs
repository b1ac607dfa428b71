//! Bulk transport between two peers: messages and streams of any size over interruptible carriers.
//!
//! The wire format and the state machine do no I/O: bytes and the time go in, bytes and events come out. [`net`] runs
//! them on tokio.
//!
//! - [`wire`] is the wire format, described byte by byte in `docs/internals/link.md`.
//! - [`core::LinkCore`] is one end of a link: it queues and numbers messages, sends them by priority, repeats what an
//!   interruption has lost, and excludes duplicates.
//! - [`durable`] stores messages and received files, so that they survive the end of the process;
//!   [`net::connect_with_journal`] and [`net::LinkListener::with_journals`] open links that use it.

pub mod config;
pub mod core;
pub mod durable;
pub mod error_code;
pub mod message;
pub mod net;
pub mod priority;
pub mod size_class;
pub mod wire;
