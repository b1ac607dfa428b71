//! The seam: what a kind of connector says, and nothing about queues, batches, retries or dead letters.
//!
//! To add a kind, write `kinds/NAME.rs` with a `pub(super) const KIND: Kind` and add a line to the table in `kinds/mod.rs`.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::batch::SinkBatch;
use crate::push::{PushError, PushRequest, RequestHead};
use crate::settings::SettingsError;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub type OpenConnectorResult = Result<Arc<dyn Connector>, SettingsError>;

/// A kind of connector.
pub struct ConnectorKind {
    /// The `type` of a connector's settings.
    pub name: &'static str,
    /// For people: `MySQL and MariaDB`.
    pub title: &'static str,
    /// Sizes of batches where a sink does not say.
    pub batch: BatchDefaults,
    /// Of the connector's settings without `type` and `description`: see [`schema_of`].
    pub connector_schema: fn(&mut SchemaGenerator) -> Schema,
    /// Of what a sink is told besides what all sinks are told.
    pub sink_schema: fn(&mut SchemaGenerator) -> Schema,
    /// Of what a source is told besides what all sources are told. `None`: nothing can be received from these systems.
    pub source_schema: Option<fn(&mut SchemaGenerator) -> Schema>,
    /// Makes a connector from its settings. Connects nowhere yet; runs within a tokio runtime.
    pub open: fn(Map<String, Value>, &ConnectorContext) -> OpenConnectorResult,
}

/// How large batches are where nobody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// What a connector may use of its surroundings.
#[derive(Debug, Clone, Default)]
pub struct ConnectorContext {
    /// The connector's name, for logs.
    pub name: String,
    /// Where the node keeps files; relative paths of settings are below it.
    pub directory: Option<PathBuf>,
}

/// The schema of a type of settings.
pub fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

/// One outside system with its address, credentials, TLS and pool of connections; shared by many sinks.
pub trait Connector: Send + Sync + 'static {
    /// Reads what a sink is told about this kind of system. Connects nowhere yet.
    fn writer(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SinkWriter>, SettingsError>;

    /// Reaches the system with its credentials; says what answered, such as `MariaDB 11.8.3`.
    fn test(&self) -> BoxFuture<'_, Result<String, ConnectorError>>;

    /// Reads what a source is told about this kind of system.
    fn reader(
        self: Arc<Self>,
        settings: Map<String, Value>,
    ) -> Result<Arc<dyn SourceReader>, SettingsError> {
        let _ = settings;
        Err(SettingsError::new(
            "connector",
            "nothing can be received from connectors of this type",
        ))
    }
}

/// How a sink writes.
pub trait SinkWriter: Send + Sync + 'static {
    /// Writes the rows of a batch, in their order. It is called again with what is to be tried again; several batches are
    /// written at the same time unless the sink keeps an order. The future is dropped when it takes too long.
    fn write<'a>(&'a self, batch: &'a SinkBatch) -> BoxFuture<'a, WriteOutcome>;

    /// Asks the system whether the sink's statement or table is right, without writing a row; says what was found. `None`: the
    /// kind has nothing of this sort to ask.
    fn check(&self) -> Option<BoxFuture<'_, Result<String, ConnectorError>>> {
        None
    }

    /// Called when the sink ends: finishes what is open, such as a file that is not yet renamed.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The system has all rows.
    All,
    /// The system has all rows but these, by their place in the batch, each place once.
    Except(Vec<(usize, ConnectorError)>),
    /// The system has none of the rows, or it is not known whether it has.
    Failed(ConnectorError),
}

impl WriteOutcome {
    /// All of so many rows but these. If none is left and all may work later, it is the system that has failed.
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
    /// For people; never with a secret.
    pub message: String,
    /// The system asked to be left alone for so long.
    pub retry_after: Option<Duration>,
}

/// Whether it helps to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retryable {
    /// It may work later: the system is down, too busy, or refuses the password.
    Transient,
    /// It fails whatever is in the rows until a person changes the sink or the system: a statement that is no SQL, a table or
    /// column that is not there. It is tried a few times more, then the rows become dead letters.
    Permanent,
    /// It fails because of what is in the rows. A batch that failed so is cut into halves until the row is found that
    /// is to blame (so the system must have nothing of it); a single row becomes a dead letter.
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

impl fmt::Display for ConnectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// How a source receives. Runs until an error or until it is dropped; the service starts it again after a pause.
pub trait SourceReader: Send + Sync + 'static {
    fn read<'a>(&'a self, inlet: &'a dyn SourcePort) -> BoxFuture<'a, ConnectorError>;

    /// Whether a request of HTTP with this head may come in, of sources that are posted to.
    fn admit(&self, head: &RequestHead) -> Result<Box<dyn PushRequest>, PushError> {
        let _ = head;
        Err(PushError::Unknown)
    }
}

/// Where received messages go: to rules with `FROM "$bridges/TYPE:NAME"`.
pub trait SourcePort: Send + Sync {
    /// Resolves once the message has been taken: only then is it acknowledged to the system it came from.
    fn accept<'a>(&'a self, message: SourceMessage) -> BoxFuture<'a, ()>;
}

/// A message from outside.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceMessage {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub key: Option<Vec<u8>>,
    /// Headers, user properties.
    pub properties: Vec<(String, String)>,
    /// Further fields by name, such as `partition` and `offset`.
    pub fields: Map<String, Value>,
    /// It is to be published here as well, under this topic.
    pub local_topic: Option<String>,
}
