//! What a node keeps on disk: keyed state and configuration objects in an LSM library, queued messages in a log of its own.
//!
//! - [`Store`] is one data directory. Shards [`submit`](Store::submit) one [`StoreBatch`] per turn and learn from their [`StoreObserver`]
//!   when it is in the log; only then do acknowledgements leave.
//! - [`Objects`] are configuration: users, rules, connectors ... and journals such as the audit log.
//! - [`Tables`] are for what crates above keep by the million: devices.
//! - [`tools`] are for a store whose node does not run.
//!
//! Files, bytes, and what each fsync policy can lose are in docs/storage.md. How it works:
//!
//! **Why a log.** A queued message is written once, read once or never, and gone soon. An LSM tree would sort it, write it
//! again while compacting, and write a tombstone. So an LSM library (`keyed.rs`) has only what is long-lived.
//!
//! **One way in.** Shards push batches, already encoded, into slots (`log/shared.rs`). The writer (`log/writer.rs`) takes all of
//! them, gives each a frame head, writes them with one call, has them forced to disk by the policy, says `logged` once per
//! shard, and applies them to the index (`log/index.rs`): where each message that waits is. Batches with keyed records go on
//! to the applier (`log/applier.rs`), which gives them to the LSM library with the frame's number in the same write: the log is
//! the library's write-ahead log, and a batch is atomic over both.
//!
//! **Other threads.** The keeper (`log/keeper.rs`) forces to disk at the interval, removes segments and looks at free room; the
//! reader (`log/reader.rs`) reads bodies for those who return, and old segments for reclaiming. The writer waits for none.
//!
//! **Reclaiming** (`log/reclaim.rs`) takes the oldest segment only: records speak of entries before them, so that a `done` has
//! nothing to say when all segments before it are gone. What lives is copied to the end; a copy that is read twice after a
//! crash counts once, the later place wins. A segment is removed when the copies are on disk, and what it says about keyed
//! state is on disk in the library.
//!
//! **Errors.** After a failed write the segment is left as it is, and the same batches go to a new one (`log/writer.rs`); after a
//! failed fsync everything not known to be on disk is read back and written again (`log/rescue.rs`). Frames keep their numbers,
//! so that reading (`log/recover.rs`) sees where a segment was left and the next goes on.
//!
//! **Damage of the keyed state** is looked for before the library opens its files (`state/`): it would cut off what it cannot
//! read without a word.
//!
//! **Reading** tells a torn end, which is cut off, from damage, which is refused: frames say up to which number the log was on
//! disk. `log/rewrite.rs` mends damage when an operator asks for it.

#[cfg(test)]
extern crate self as store;

mod backend;
mod backup;
mod batch;
mod config;
mod directory;
mod error;
mod handle;
mod keyed_state;
mod log;
mod object_journal;
mod objects;
mod queue;
mod row_spool;
mod state;
mod tables;
pub mod tools;

pub use backend::{BackendError, EntryChange, NewEntry, NewMessage, QueueBackend, QueueGroup};
pub use backup::{ImportError, ImportMode, ImportReport};
pub use batch::{StateKind, StoreBatch};
pub use config::{Fsync, ParseFsyncError, StoreConfig};
pub use error::{ObjectError, StoreError, StoreOpenError};
pub use handle::{Store, StoreHealth, StoreObserver, StoreOpenReport, StoreStats};
pub use objects::{ExpectedVersion, Object, ObjectChange, Objects, WeakObjects};
pub use queue::{QueueEntry, QueueFetch, QueuePage, QueueSummary};
pub use tables::{Durability, Table, TableBatch, Tables};
