//! What a node keeps on disk: keyed state and configuration objects in an LSM library, queued messages in a log of its own.
//!
//! - [`Store`] is one data directory. Shards [`submit`](Store::submit) one [`Batch`] per turn and learn from their [`Owner`]
//!   when it is in the log; only then do acknowledgements leave.
//! - [`Objects`] are configuration: users, rules, connectors ... and journals such as the audit log.

#[cfg(test)]
extern crate self as store;

mod batch;
mod config;
mod directory;
mod error;
mod handle;
mod journal;
mod keyed;
mod log;
mod objects;
mod queue;
mod transfer;

pub use batch::{Batch, Space};
pub use config::{Config, Fsync, ParseFsyncError};
pub use error::{Error, ObjectError, OpenError};
pub use handle::{Health, OpenReport, Owner, Stats, Store};
pub use objects::{Change, Expected, Object, Objects};
pub use queue::{Fetch, Page, QueueSummary, Stored};
pub use transfer::{ImportError, ImportMode, Imported};
