//! The interface of a connector kind, which knows nothing about queues, batch forming, retries or dead letters.
//!
//! To add a kind, write `kinds/NAME.rs` with a `pub(super) const KIND: ConnectorKind` and add a line to the table in `kinds/mod.rs`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::batch::SinkBatch;
use crate::content::{AfterExport, ContentExport};
use crate::push::{PushError, PushRequest, RequestHead};
use crate::row::SinkRow;
use crate::settings::SettingsError;
pub use crate::source_port::{BoxFuture, SourceMessage, SourcePort};

pub type OpenConnectorResult = Result<Arc<dyn Connector>, SettingsError>;

/// A kind of connector.
pub struct ConnectorKind {
    /// The `type` of a connector's settings.
    pub name: &'static str,
    /// Display name: `MySQL and MariaDB`.
    pub title: &'static str,
    /// Its page in the documentation, relative to `docs/guides`.
    pub page: &'static str,
    /// Default batch limits of sinks.
    pub batch: BatchDefaults,
    /// Schema of the connector's settings without `type` and `description`: see [`schema_of`].
    pub connector_schema: fn(&mut SchemaGenerator) -> Schema,
    /// Schema of the sink settings that are specific to this kind.
    pub sink_schema: fn(&mut SchemaGenerator) -> Schema,
    /// Schema of the source settings that are specific to this kind. `None`: the kind has no sources.
    pub source_schema: Option<fn(&mut SchemaGenerator) -> Schema>,
    /// Creates a connector from its settings without connecting. Runs within a tokio runtime.
    pub open: fn(Map<String, Value>, &ConnectorContext) -> OpenConnectorResult,
}

/// Default batch limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BatchDefaults {
    pub max_rows: usize,
    pub max_bytes: usize,
    pub max_wait_ms: u64,
}

impl BatchDefaults {
    pub const DEFAULT: Self = Self {
        max_rows: 500,
        max_bytes: 1 << 20,
        max_wait_ms: 10,
    };
}

/// Parts of the node that a connector may use.
#[derive(Debug, Clone, Default)]
pub struct ConnectorContext {
    /// The connector's name, for logs.
    pub name: String,
    /// The node's data directory; relative paths of settings are resolved against it.
    pub directory: Option<PathBuf>,
    /// The name of the node in its cluster. All nodes of a cluster have the same connectors.
    pub node: Option<String>,
}

/// The schema of a settings type.
pub fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

/// One outside system with its address, credentials, TLS and connection pool; shared by many sinks.
pub trait Connector: Send + Sync + 'static {
    /// Parses the sink settings of this kind and creates a writer without connecting.
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError>;

    /// Connects to the system with its credentials; returns a description of it, such as `MariaDB 11.8.3`.
    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>>;

    /// Parses the source settings of this kind and creates a reader.
    fn reader(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SourceReader>, SettingsError> {
        let _ = settings;
        Err(SettingsError::new(
            "connector",
            "connectors of this type have no sources",
        ))
    }
}

/// Writes the batches of a sink.
pub trait SinkWriter: Send + Sync + 'static {
    /// Writes the rows of a batch, in their order. Retries call it again with the remaining rows. Several batches are written
    /// concurrently unless the sink keeps an order. On a time-out the future is dropped.
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome>;

    /// Checks with the system whether the sink's statement or table is valid, without writing a row; returns a description of the
    /// result. `None`: the kind has no such check.
    fn check(&self) -> Option<BoxFuture<'_, Result<String, ConnectorError>>> {
        None
    }

    /// The writer of files, if the sink exports files instead of rows.
    fn content_writer(&self) -> Option<&dyn ContentWriter> {
        None
    }

    /// Called when the sink ends: completes open work, such as a file that is not yet renamed.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Sends the contents of files to a system.
pub trait ContentWriter: Send + Sync + 'static {
    fn after(&self) -> AfterExport;

    /// Sends a file; returns where it is, for people. A repetition replaces what an earlier attempt has sent. It may take
    /// any time as long as it [notes progress](ContentExport::sent_bytes); otherwise the future is dropped after the time-out
    /// of the sink.
    fn write_content<'a>(
        &'a self,
        row: SinkRow<'a>,
        export: &'a ContentExport,
    ) -> BoxFuture<'a, Result<String, ConnectorError>>;

    /// Removes from the system what attempts have sent of a file whose export was cancelled. `position` is what they stored
    /// last. A repetition changes nothing.
    fn discard<'a>(&'a self, _position: &'a str) -> BoxFuture<'a, Result<(), ConnectorError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Result of writing a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The system stored all rows.
    All,
    /// The system stored all rows except these, given by their position in the batch, each position once.
    Except(Vec<(usize, ConnectorError)>),
    /// The system stored none of the rows, or the result is unknown.
    Failed(ConnectorError),
}

impl WriteOutcome {
    /// The outcome for `rows` rows of which these failed. If all failed and all failures are transient, the system itself failed.
    pub fn all_except(rows: usize, failures: Vec<(usize, ConnectorError)>) -> Self {
        let is_passing =
            |(_, failure): &(usize, ConnectorError)| failure.retryable == Retryable::Transient;
        if failures.is_empty() {
            return Self::All;
        }
        match failures.len() == rows && failures.iter().all(is_passing) {
            true => Self::Failed(failures[0].1.clone()),
            false => Self::Except(failures),
        }
    }
}

impl From<Result<(), ConnectorError>> for WriteOutcome {
    fn from(result: Result<(), ConnectorError>) -> Self {
        match result {
            Ok(()) => Self::All,
            Err(failure) => Self::Failed(failure),
        }
    }
}

/// Why rows were not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectorError {
    pub retryable: Retryable,
    /// Error text for people; never contains a secret.
    pub message: String,
    /// The pause that the system requested.
    pub retry_after: Option<Duration>,
}

/// Whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retryable {
    /// A later attempt may succeed: the system is down, overloaded, or rejects the password.
    Transient,
    /// Every row fails until an operator changes the sink or the system: an invalid statement, a missing table or column. A few
    /// more attempts are made, then the rows become dead letters.
    Permanent,
    /// The content of a row is the cause. A batch that failed so is split into halves until the row is found, so the system must
    /// not have stored any of it. A single row becomes a dead letter.
    BadRows,
}

impl ConnectorError {
    pub fn transient(message: impl fmt::Display) -> Self {
        Self {
            retryable: Retryable::Transient,
            message: message.to_string(),
            retry_after: None,
        }
    }

    pub fn bad_rows(message: impl fmt::Display) -> Self {
        Self {
            retryable: Retryable::BadRows,
            ..Self::transient(message)
        }
    }

    pub fn permanent(message: impl fmt::Display) -> Self {
        Self {
            retryable: Retryable::Permanent,
            ..Self::transient(message)
        }
    }

    pub fn with_retry_after(self, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..self
        }
    }
}

#[cfg(any(feature = "email", feature = "mqtt", feature = "nats"))]
impl From<outbound::stream::StreamError> for ConnectorError {
    fn from(error: outbound::stream::StreamError) -> Self {
        Self::transient(error)
    }
}

impl fmt::Display for ConnectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Receives the messages of a source. Runs until an error or until it is dropped; the service restarts it after a pause.
pub trait SourceReader: Send + Sync + 'static {
    fn read<'a>(&'a self, port: &'a dyn SourcePort) -> BoxFuture<'a, ConnectorError>;

    /// For sources that receive HTTP requests: whether a request with this head is accepted.
    fn admit(&self, head: &RequestHead) -> Result<Box<dyn PushRequest>, PushError> {
        let _ = head;
        Err(PushError::Unknown)
    }
}
