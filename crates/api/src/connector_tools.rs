//! What the API asks of the connectors beside their objects: which types there are, whether one is reached, how sinks do,
//! and their dead letters.

use std::future::Future;
use std::pin::Pin;

use axum::body::Bytes;
use axum::http::HeaderMap;
use serde_json::{Map, Value};

use crate::objects::Invalid;

pub type Asking<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a system said: who it is, or why it cannot be reached.
pub type Tested = Result<String, String>;

/// A request that somebody posted to a source and that may come in; its body is still to be read.
pub trait Posted: Send {
    fn max_body_bytes(&self) -> usize;
    /// Resolves once every message in the body has been taken.
    fn take(self: Box<Self>, body: Bytes) -> Asking<'static, Result<(), PostRefused>>;
}

/// Why something posted to a source is not taken; texts are for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostRefused {
    /// There is no such source, or nothing can be posted to it.
    Unknown,
    /// The source does not receive at the moment.
    Closed(String),
    /// The source's secret is not in the request.
    Credentials(String),
    /// The body is not what the source expects.
    Content(String),
    /// Too much waits to be taken.
    Crowded,
    /// It was not taken in time, and may still be.
    Late,
}

/// The connectors and sinks of a node.
pub trait ConnectorTools: Send + Sync + 'static {
    /// All types with their schemas.
    fn types(&self) -> Vec<Map<String, Value>>;
    /// How connectors do, sorted by name.
    fn connectors(&self) -> Vec<Value>;
    /// Reaches the system of a connector. `None`: there is no such connector.
    fn test<'a>(&'a self, name: &'a str) -> Asking<'a, Option<Tested>>;
    /// Reaches the system of a connector as it would be stored.
    fn test_settings<'a>(&'a self, settings: &'a Value) -> Asking<'a, Result<Tested, Invalid>>;
    /// Reaches the system of a sink and checks its statement. `None`: there is no such sink.
    fn test_sink<'a>(&'a self, name: &'a str) -> Asking<'a, Option<Tested>>;
    /// How sinks do, sorted by name.
    fn sinks(&self) -> Vec<Value>;
    fn sink(&self, name: &str) -> Option<Value>;
    /// How sources do, sorted by name.
    fn sources(&self) -> Vec<Value>;
    /// Whether what is posted to a source may come in, by the head of the request.
    fn admit(&self, source: &str, headers: &HeaderMap) -> Result<Box<dyn Posted>, PostRefused>;
    /// Dead letters of a sink from the oldest on, beginning behind an id. `None`: there is no such sink.
    fn dead_letters(&self, sink: &str, after: u64, limit: usize) -> Option<Vec<Value>>;
    /// Queues dead letters again, all of them if no ids are given; says how many.
    fn replay<'a>(&'a self, sink: &'a str, ids: Option<Vec<u64>>) -> Asking<'a, Option<usize>>;
    /// Throws dead letters away, all of them if no ids are given; says how many.
    fn discard<'a>(&'a self, sink: &'a str, ids: Option<Vec<u64>>) -> Asking<'a, Option<usize>>;
}

/// A node without connectors.
pub struct NoConnectorTools;

impl ConnectorTools for NoConnectorTools {
    fn types(&self) -> Vec<Map<String, Value>> {
        Vec::new()
    }

    fn connectors(&self) -> Vec<Value> {
        Vec::new()
    }

    fn test<'a>(&'a self, _name: &'a str) -> Asking<'a, Option<Tested>> {
        Box::pin(std::future::ready(None))
    }

    fn test_settings<'a>(&'a self, _settings: &'a Value) -> Asking<'a, Result<Tested, Invalid>> {
        let invalid = Invalid {
            field: String::new(),
            detail: "This node has no connectors.".to_owned(),
        };
        Box::pin(std::future::ready(Err(invalid)))
    }

    fn test_sink<'a>(&'a self, _name: &'a str) -> Asking<'a, Option<Tested>> {
        Box::pin(std::future::ready(None))
    }

    fn sinks(&self) -> Vec<Value> {
        Vec::new()
    }

    fn sink(&self, _name: &str) -> Option<Value> {
        None
    }

    fn sources(&self) -> Vec<Value> {
        Vec::new()
    }

    fn admit(&self, _source: &str, _headers: &HeaderMap) -> Result<Box<dyn Posted>, PostRefused> {
        Err(PostRefused::Unknown)
    }

    fn dead_letters(&self, _sink: &str, _after: u64, _limit: usize) -> Option<Vec<Value>> {
        None
    }

    fn replay<'a>(&'a self, _sink: &'a str, _ids: Option<Vec<u64>>) -> Asking<'a, Option<usize>> {
        Box::pin(std::future::ready(None))
    }

    fn discard<'a>(&'a self, _sink: &'a str, _ids: Option<Vec<u64>>) -> Asking<'a, Option<usize>> {
        Box::pin(std::future::ready(None))
    }
}
