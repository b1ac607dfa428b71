//! Connectors to outside systems, and the sink machine that queues, batches and retries rows and keeps dead letters.
//!
//! A rule passes rows to a [`ConnectorService`] by sink number ([`ConnectorService::push`], called on a shard: it never waits). The
//! sink's machine (`sink_machine/`) runs on the control plane. It drains the queue, forms batches and passes them to the
//! sink's [`SinkWriter`]. A kind of connector only defines how to reach a system, how to write a batch and which errors are
//! retryable: see [`connector`]. Messages received by sources go to a [`SourceMessageHandler`].

pub mod batch;
#[cfg(feature = "parquet")]
pub mod columns;
pub mod connector;
pub mod content;
mod content_sink;
mod dated_template;
#[cfg(feature = "http")]
mod http_servers;
mod kinds;
pub mod objects;
pub mod push;
pub mod row;
pub mod service;
pub mod settings;
mod sink_machine;
mod source_port;
pub mod template;
pub mod tls;

pub use batch::{RowId, SinkBatch};
pub use connector::SourceMessage;
pub use connector::{
    Connector, ConnectorContext, ConnectorError, ConnectorKind, Retryable, SinkWriter,
    SourceReader, WriteOutcome,
};
pub use content::{AfterExport, ContentPort, FileContent};
pub use kinds::{CONNECTOR_KINDS, find_kind};
pub use row::{SinkRow, SinkRowWriter, SinkValue};
pub use service::{
    ConnectorService, ConnectorServiceOptions, ConnectorStatus, SinkId, SinkState, SinkStatus,
    SourceMessageHandler, SourceSettings, SourceState, SourceStatus,
};
pub use settings::SettingsError;
pub use sink_machine::circuit_breaker::{CircuitState, SinkHealth};
pub use sink_machine::dead_letters::{DeadLetter, DeadLetterObserver, check as check_dead_letters};
pub use sink_machine::disk_queue::check_disk_queue;
pub use sink_machine::memory_queue::PushOutcome;
pub use sink_machine::metrics::{LATENCY_BOUNDS_MS, SinkMetrics};
pub use sink_machine::sink_files::check_sink_inventory;
pub use template::Template;
