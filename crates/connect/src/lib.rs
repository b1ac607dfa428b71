//! Connectors to outside systems, and the one machine that queues, batches, retries and keeps what cannot be written.
//!
//! A rule hands rows to a [`Service`] by the number of a sink ([`Service::push`], called on a shard: it never waits). The
//! sink's queue is emptied on the control plane by the machine (`machine/`), which forms batches and gives them to the
//! sink's [`Writer`]. A kind of connector only says how to reach a system, how to write a batch and which errors can pass:
//! see [`connector`]. What sources receive goes to a [`Listener`].

pub mod batch;
#[cfg(feature = "parquet")]
pub mod columns;
pub mod connector;
#[cfg(feature = "http")]
mod dated;
mod kinds;
mod machine;
#[cfg(any(
    feature = "email",
    feature = "kafka",
    feature = "mqtt",
    feature = "nats"
))]
mod net;
pub mod objects;
pub mod post;
pub mod row;
pub mod secret;
mod service;
pub mod settings;
pub mod template;
pub mod tls;
#[cfg(feature = "http")]
mod web;

pub use batch::{Batch, RowId};
pub use connector::Received;
pub use connector::{Connector, Context, Failure, Kind, Lasting, Reader, Writer, Written};
pub use kinds::{KINDS, kind};
pub use machine::circuit::{CircuitState, Health};
pub use machine::dead::{Letter, Mourner, check as check_dead_letters};
pub use machine::disk::check as check_disk_queue;
pub use machine::metrics::{LATENCY_BOUNDS_MS, SinkMetrics};
pub use machine::queue::Pushed;
pub use row::{Row, RowWriter, Value};
pub use secret::Secret;
pub use service::{
    ConnectorStatus, Listener, Options, Service, SinkId, SinkState, SinkStatus, SourceSettings,
    SourceState, SourceStatus,
};
pub use settings::Invalid;
pub use template::Template;
