//! Embedded persistence of a node: keyed state and configuration objects in an LSM library, queued messages in a log.
//!
//! - [`Store`] is one data directory. Shards [`submit`](Store::submit) one [`StoreBatch`] per turn. A [`StoreObserver`] reports
//!   when the batch is in the log; acknowledgements leave only then.
//! - [`Objects`] are configuration (users, rules, connectors) and journals such as the audit log.
//! - [`Tables`] hold large sets of rows of the crates above, such as devices.
//! - [`tools`] work on a store whose node does not run.
//!
//! docs/internals/message-log.md, docs/internals/records.md and docs/internals/keyed-state.md describe the files and their bytes;
//! docs/operations/storage.md describes what each fsync policy can lose. How it works:
//!
//! **Why a log.** A queued message is written once, read at most once and deleted soon. An LSM tree would sort it, rewrite it
//! during compaction, and write a tombstone. The LSM library (`keyed_state.rs`) therefore holds only long-lived data.
//!
//! **Write path.** Shards push encoded batches into slots (`log/shared.rs`). The writer (`log/writer.rs`) takes all of them, adds
//! a frame head to each, writes them with one call, and syncs according to the policy. It then reports `logged` once per shard and
//! applies the batches to the index (`log/index.rs`), which locates every queued message. Batches with keyed records go on to
//! the applier (`log/applier.rs`), which writes them to the LSM library together with the number of the frame. The log is the
//! library's write-ahead log, and a batch is atomic over both.
//!
//! **Other threads.** The maintenance thread (`log/maintenance.rs`) syncs at the interval, removes segments and monitors free space.
//! The reader (`log/reader.rs`) reads bodies for resumed sessions, and old segments for reclaiming. The writer waits for neither.
//!
//! **Copying to another node.** A [`LogTail`] reads the log from its files while the store runs. Notifications may be held until
//! the other node has the batches (`log/held_notifications.rs`).
//!
//! **Reclaiming** (`log/reclaim.rs`) always takes the oldest segment: records refer to earlier entries, so a `done` record is
//! meaningless once all segments before it are gone. Live entries are copied to the end. If a crash leaves an entry twice, the
//! later place wins. A segment is removed once the copies are on disk and the library has its keyed state on disk.
//!
//! **Errors.** After a failed write the segment stays as it is, and the same batches go to a new segment (`log/writer.rs`). After a
//! failed fsync, everything not known to be on disk is read back and written again (`log/fsync_recovery.rs`). Frames keep their
//! numbers, so recovery (`log/recovery.rs`) detects where a segment was abandoned and the next one continues.
//!
//! **Damage of the keyed state** is checked before the library opens its files (`state/`), because the library silently truncates
//! what it cannot read.
//!
//! **Recovery** distinguishes a torn end, which is cut off, from damage, which is refused: frames record up to which number the
//! log was on disk. `log/segment_repair.rs` repairs damage when an operator requests it.

#[cfg(test)]
extern crate self as store;

mod backend;
mod backup;
mod batch;
mod config;
mod copied_batch;
mod directory;
mod error;
mod expected_version;
mod handle;
mod health;
mod journal_entries;
mod keyed_state;
mod log;
mod object_journal;
mod object_replication;
mod objects;
mod observer;
mod queue;
mod repair_report;
mod replicated_objects;
mod row_spool;
mod saved_state;
mod state;
mod table_keyspaces;
mod tables;
pub mod tools;

pub use backend::{BackendError, EntryChange, NewEntry, NewMessage, QueueBackend, QueueGroup};
pub use backup::{ImportError, ImportMode, ImportReport};
pub use batch::{StateKind, StoreBatch};
pub use config::{Fsync, ParseFsyncError, StoreConfig};
pub use copied_batch::InvalidRecords;
pub use error::{ObjectError, StoreError, StoreOpenError};
pub use expected_version::ExpectedVersion;
pub use handle::{Store, StoreOpenReport, StoreStats};
pub use health::StoreHealth;
pub use journal_entries::JournalEntry;
pub use log::tail::{LogTail, TailChunk};
pub use object_replication::ObjectReplication;
pub use objects::{Object, ObjectChange, Objects, WeakObjects};
pub use observer::StoreObserver;
pub use queue::{QueueEntry, QueueFetch, QueuePage, QueueSummary};
pub use saved_state::SavedState;
pub use tables::{Durability, Table, TableBatch, Tables};
