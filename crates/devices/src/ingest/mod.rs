//! The telemetry pipeline: decodes device messages, stores their rows and passes them to observers.
//!
//! ```text
//!                  sync: on the thread that has the message
//! message ─ route ┬───────────────────────────────▶ TelemetryProcessor: decode, validate ─ chain ─ store ─ publish
//!                 └▶ mailbox (a mapped file) ─ worker ▶  (the same, in batches)
//!                  actor
//! ```
//!
//! In both modes, the messages of one device are stored in order of arrival. In sync mode the thread of the
//! device's connection processes them. In actor mode a device always uses the same mailbox, which one worker
//! empties.
//!
//! Guarantees when [`Pipeline::submit`] has returned: in sync mode the rows are in the store. In actor mode
//! the message is in its mailbox, a file mapped into memory. It survives `kill -9`, and the next start
//! processes it before anything else ([`Pipeline::open`]). A power failure loses what the operating system
//! had not yet written, at most the bytes of the mailboxes. Products that must not lose even that use `sync`
//! with the store's fsync policy.
//!
//! A shard does not wait for syncs of the store, for device messages other than telemetry, or for messages that
//! rule chains publish; all of them complete on other threads ([`TelemetryProcessor::take_unsettled`]). [`Pipeline::settle`]
//! reports when they are safe, and acknowledgements wait for that. A mailbox keeps its messages until then.
//!
//! A message of a rule chain is safe when it is in the logs of the broker's shards. Two rules prevent a deadlock.
//! The broker reports such a message as stored without waiting for its hooks, of which this pipeline is one
//! ([`PipelineOutputs::republish`]). A shard never waits for a mailbox worker, which may be waiting for the shard:
//! what does not fit into a mailbox is held in memory. Before the broker runs, messages of rule chains wait. The
//! start goes on, and a worker clears the mailbox when they are stored.

mod decoder;
mod mailbox;
mod mailbox_segment;
mod marks;
mod message;
mod metrics;
mod pipeline;
mod pipeline_shared;
mod ports;
mod processor;
mod product_keys;
mod profile;
mod rejections;
mod series_storage;

#[cfg(test)]
mod tests;

pub use message::{DeviceMessage, OwnedDeviceMessage};
pub use metrics::{HistogramSnapshot, LatencyHistogram, PipelineSnapshot, ProcessorCounters};
pub use pipeline::{Pipeline, PipelineConfig, PipelineStartError, SubmitOutcome, check_mailboxes};
pub use ports::{
    DeviceResolver, NoOutputs, PipelineOutputs, SettleScope, StorageError, StorageErrorKind,
    StoredRow, TelemetryStorage,
};
pub use processor::TelemetryProcessor;
pub use profile::{
    DeviceHandle, DeviceRef, KeyRule, PermissiveModel, PipelineMode, ProductNo, ProductProfile,
    TelemetryModel,
};
pub use rejections::{DeviceRejections, IngestRejection};
