//! Copies of the telemetry of a node at another one, its standby, so that it can be read while the node is down, and after it
//! was lost. docs/internals/cluster.md describes the mechanism and its invariants.
//!
//! [`CopiedSeries`] queues what is stored. The sender (`sender.rs`) passes it on in batches, one at a time, and completes the copy
//! from the time series when the queue is not enough (`repair.rs`). The standby (`keeper.rs`, `kept_copy.rs`) stores the rows in time series
//! for each node, with its own device numbers. [`TelemetryCopies`] has the threads of both, and tells the other nodes where
//! copies are.

mod batch;
mod copied_series;
mod copies;
mod copy_directory;
mod deletion_journal;
mod keeper;
mod kept_copy;
mod lock;
mod message;
mod own_record;
mod point_codec;
mod ports;
mod product_watch;
mod repair;
mod retries;
mod sender;
mod sender_parts;
mod status;
#[cfg(test)]
mod tests;

pub use copied_series::{CopiedSeries, MAX_QUEUE_BYTES};
pub use copies::{ReadableCopy, TelemetryCopies, TelemetryCopiesParts};
pub use copy_directory::CopyPlace;
pub use keeper::CopyConfig;
pub use message::PlacedCopy;
pub use ports::{CopiedDevices, CopyPeers};
pub use status::{CopyState, KeptCopyStatus, OwnCopyStatus, TelemetryCopyStatus};
