//! The interface between the API and the connectors, beyond their objects: types, connection tests,
//! states of sinks and sources, and dead letters.

use std::future::Future;
use std::pin::Pin;

use axum::body::Bytes;
use axum::http::HeaderMap;
use serde_json::{Map, Value};

use crate::objects::ObjectValidationError;

pub type BackendFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of a connection test: the identity of the system, or an error.
pub type ConnectionTestResult = Result<String, String>;

/// An admitted push request to a source; its body has not been read yet.
pub trait PendingPush: Send {
    fn max_body_bytes(&self) -> usize;
    /// Resolves when every message in the body has been accepted.
    fn accept_body(
        self: Box<Self>,
        body: Bytes,
    ) -> BackendFuture<'static, Result<(), SourcePushError>>;
}

/// Why a push to a source failed; texts are for humans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourcePushError {
    /// The source does not exist or does not accept pushes.
    Unknown,
    /// The source does not receive at the moment.
    SourceClosed(String),
    /// The request does not contain the source's secret.
    Credentials(String),
    /// The body is not in the form the source expects.
    Content(String),
    /// Too many requests are waiting.
    TooManyRequests,
    /// The messages were not accepted in time and may still be accepted later.
    TimedOut,
}

/// The connectors and sinks of a node.
pub trait ConnectorBackend: Send + Sync + 'static {
    /// All types with their schemas.
    fn types(&self) -> Vec<Map<String, Value>>;
    /// The states of connectors, sorted by name.
    fn connector_statuses(&self) -> Vec<Value>;
    /// Tests the connection of a connector. `None`: the connector does not exist.
    fn test_connector<'a>(
        &'a self,
        name: &'a str,
    ) -> BackendFuture<'a, Option<ConnectionTestResult>>;
    /// Tests the connection of a connector that is not stored yet.
    fn test_settings<'a>(
        &'a self,
        settings: &'a Value,
    ) -> BackendFuture<'a, Result<ConnectionTestResult, ObjectValidationError>>;
    /// Tests the connection of a sink and checks its statement. `None`: the sink does not exist.
    fn test_sink<'a>(&'a self, name: &'a str) -> BackendFuture<'a, Option<ConnectionTestResult>>;
    /// The states of sinks, sorted by name.
    fn sink_statuses(&self) -> Vec<Value>;
    fn sink_status(&self, name: &str) -> Option<Value>;
    /// The states of sources, sorted by name.
    fn source_statuses(&self) -> Vec<Value>;
    /// Decides from the request head whether a push to a source is admitted.
    fn admit_push(
        &self,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<Box<dyn PendingPush>, SourcePushError>;
    /// Dead letters of a sink, oldest first, after an id. `None`: the sink does not exist.
    fn dead_letters(&self, sink: &str, after: u64, limit: usize) -> Option<Vec<Value>>;
    /// Queues dead letters again, all if no ids are given; returns their number.
    fn replay_dead_letters<'a>(
        &'a self,
        sink: &'a str,
        ids: Option<Vec<u64>>,
    ) -> BackendFuture<'a, Option<usize>>;
    /// Deletes dead letters, all if no ids are given; returns their number.
    fn discard_dead_letters<'a>(
        &'a self,
        sink: &'a str,
        ids: Option<Vec<u64>>,
    ) -> BackendFuture<'a, Option<usize>>;
}

/// The backend of a node without connectors.
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
