//! The pipeline: from a message of a device to its stored rows, and to all who want to know.
//!
//! ```text
//!                  sync: on the thread that has the message
//! message ─ route ┬───────────────────────────────▶ Lane: read, validate ─ chain ─ store ─ tell
//!                 └▶ mailbox (a mapped file) ─ worker ▶  (the same, many at once)
//!                  actor
//! ```
//!
//! In both modes the messages of one device are stored in the order of their arrival: a sync device is worked for on the
//! thread of its connection, an actor's device always has the same mailbox, which one worker empties.
//!
//! What holds when [`Pipeline::submit`] has returned: in sync mode the rows are in the store. In actor mode the message is in its
//! mailbox, which is a file mapped into memory: `kill -9` does not touch it, and the next start works it off before anything
//! else ([`Pipeline::open`]). A power failure loses what the operating system had not yet written of it, at most the bytes of
//! the mailboxes; products whose devices may not lose even that are to be `sync`, with the store's fsync policy.
//!
//! What takes longer than a shard may wait, which is syncs of the store and what devices say besides telemetry, is left behind
//! ([`Lane::take_unsettled`]), and [`Pipeline::settle`] says when it is safe: acknowledgements wait for that. A mailbox keeps its messages
//! for as long.

mod decoder;
mod lane;
mod mailbox;
mod mailbox_segment;
mod marks;
mod metrics;
mod pipeline;
mod ports;
mod profile;
mod rejections;
mod series_storage;

#[cfg(test)]
mod tests;

pub use lane::Lane;
pub use metrics::{HistogramSnapshot, LaneCounters, LatencyHistogram, PipelineSnapshot};
pub use pipeline::{
    DeviceMessage, Pipeline, PipelineConfig, PipelineStartError, SubmitOutcome, check_mailboxes,
};
pub use ports::{
    DeviceResolver, NoOutputs, PipelineOutputs, StorageError, StorageErrorKind, StoredRow,
    TelemetryStorage,
};
pub use profile::{
    DeviceHandle, DeviceRef, KeyRule, PermissiveModel, PipelineMode, ProductNo, ProductProfile,
    TelemetryModel,
};
pub use rejections::{DeviceRejections, IngestRejection};
