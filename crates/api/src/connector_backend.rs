//! What the API asks of the connectors beside their objects: which types there are, whether one is reached, how sinks do,
//! and their dead letters.

use std::future::Future;
use std::pin::Pin;

use axum::body::Bytes;
use axum::http::HeaderMap;
use serde_json::{Map, Value};

use crate::objects::ObjectValidationError;

pub type BackendFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a system said: who it is, or why it cannot be reached.
pub type ConnectionTestResult = Result<String, String>;

/// A request that somebody posted to a source and that may come in; its body is still to be read.
pub trait PendingPush: Send {
    fn max_body_bytes(&self) -> usize;
    /// Resolves once every message in the body has been taken.
    fn accept_body(
        self: Box<Self>,
        body: Bytes,
    ) -> BackendFuture<'static, Result<(), SourcePushError>>;
}

/// Why something posted to a source is not taken; texts are for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourcePushError {
    /// There is no such source, or nothing can be posted to it.
    Unknown,
    /// The source does not receive at the moment.
    SourceClosed(String),
    /// The source's secret is not in the request.
    Credentials(String),
    /// The body is not what the source expects.
    Content(String),
    /// Too much waits to be taken.
    TooManyRequests,
    /// It was not taken in time, and may still be.
    TimedOut,
}

/// The connectors and sinks of a node.
pub trait ConnectorBackend: Send + Sync + 'static {
    /// All types with their schemas.
    fn types(&self) -> Vec<Map<String, Value>>;
    /// How connectors do, sorted by name.
    fn connector_statuses(&self) -> Vec<Value>;
    /// Reaches the system of a connector. `None`: there is no such connector.
    fn test_connector<'a>(
        &'a self,
        name: &'a str,
    ) -> BackendFuture<'a, Option<ConnectionTestResult>>;
    /// Reaches the system of a connector as it would be stored.
    fn test_settings<'a>(
        &'a self,
        settings: &'a Value,
    ) -> BackendFuture<'a, Result<ConnectionTestResult, ObjectValidationError>>;
    /// Reaches the system of a sink and checks its statement. `None`: there is no such sink.
    fn test_sink<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<ConnectionTestResult>>;
    /// How sinks do, sorted by name.
    fn sink_statuses(&self) -> Vec<Value>;
    fn sink_status(&self, name: &str) -> Option<Value>;
    /// How sources do, sorted by name.
    fn source_statuses(&self) -> Vec<Value>;
    /// Whether what is posted to a source may come in, by the head of the request.
    fn admit_push(
        &self,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<Box<dyn PendingPush>, SourcePushError>;
    /// Dead letters of a sink from the oldest on, beginning behind an id. `None`: there is no such sink.
    fn dead_letters(&self, sink: &str, after: u64, limit: usize) -> Option<Vec<Value>>;
    /// Queues dead letters again, all of them if no ids are given; says how many.
    fn replay_dead_letters<'a>(
        &'a self,
        sink: &'a str,
        ids: Option<Vec<u64>>,
    ) -> BackendFuture<'a, Option<usize>>;
    /// Throws dead letters away, all of them if no ids are given; says how many.
    fn discard_dead_letters<'a>(
        &'a self,
        sink: &'a str,
        ids: Option<Vec<u64>>,
    ) -> BackendFuture<'a, Option<usize>>;
}

/// A node without connectors.
pub struct NoConnectorBackend;

impl ConnectorBackend for NoConnectorBackend {
    fn types(&self) -> Vec<Map<String, Value>> {
        Vec::new()
    }

    fn connector_statuses(&self) -> Vec<Value> {
        Vec::new()
    }

    fn test_connector<'a>(
        &'a self,
        _name: &'a str,
    ) -> BackendFuture<'a, Option<ConnectionTestResult>> {
        Box::pin(std::future::ready(None))
    }

    fn test_settings<'a>(
        &'a self,
        _settings: &'a Value,
    ) -> BackendFuture<'a, Result<ConnectionTestResult, ObjectValidationError>> {
        let invalid = ObjectValidationError {
            field: String::new(),
            detail: "This node has no connectors.".to_owned(),
        };
        Box::pin(std::future::ready(Err(invalid)))
    }

    fn test_sink<'a>(&'a self, _name: &'a str) -> BackendFuture<'a, Option<ConnectionTestResult>> {
        Box::pin(std::future::ready(None))
    }

    fn sink_statuses(&self) -> Vec<Value> {
        Vec::new()
    }

    fn sink_status(&self, _name: &str) -> Option<Value> {
        None
    }

    fn source_statuses(&self) -> Vec<Value> {
        Vec::new()
    }

    fn admit_push(
        &self,
        _source: &str,
        _headers: &HeaderMap,
    ) -> Result<Box<dyn PendingPush>, SourcePushError> {
        Err(SourcePushError::Unknown)
    }

    fn dead_letters(&self, _sink: &str, _after: u64, _limit: usize) -> Option<Vec<Value>> {
        None
    }

    fn replay_dead_letters<'a>(
        &'a self,
        _sink: &'a str,
        _ids: Option<Vec<u64>>,
    ) -> BackendFuture<'a, Option<usize>> {
        Box::pin(std::future::ready(None))
    }

    fn discard_dead_letters<'a>(
        &'a self,
        _sink: &'a str,
        _ids: Option<Vec<u64>>,
    ) -> BackendFuture<'a, Option<usize>> {
        Box::pin(std::future::ready(None))
    }
}
