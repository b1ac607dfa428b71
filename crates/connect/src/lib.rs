//! Connectors to outside systems, and the one machine that queues, batches, retries and keeps what cannot be written.
//!
//! A rule hands rows to a [`ConnectorService`] by the number of a sink ([`ConnectorService::push`], called on a shard: it never waits). The
//! sink's queue is emptied on the control plane by the machine (`machine/`), which forms batches and gives them to the
//! sink's [`SinkWriter`]. A kind of connector only says how to reach a system, how to write a batch and which errors can pass:
//! see [`connector`]. What sources receive goes to a [`SourceMessageHandler`].

pub mod batch;
#[cfg(feature = "parquet")]
pub mod columns;
pub mod connector;
#[cfg(feature = "http")]
mod dated_template;
#[cfg(feature = "http")]
mod http_servers;
mod kinds;
#[cfg(any(
    feature = "email",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats"
))]
mod net;
pub mod objects;
pub mod push;
pub mod row;
pub mod secret;
mod service;
pub mod settings;
mod sink_machine;
pub mod template;
pub mod tls;

pub use batch::{RowId, SinkBatch};
pub use connector::SourceMessage;
pub use connector::{
    Connector, ConnectorContext, ConnectorError, ConnectorKind, Retryable, SinkWriter,
    SourceReader, WriteOutcome,
};
pub use kinds::{CONNECTOR_KINDS, find_kind};
pub use row::{SinkRow, SinkRowWriter, SinkValue};
pub use secret::Secret;
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
pub use template::Template;
