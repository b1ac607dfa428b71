//! What the API asks of the connectors beside their objects: which types there are, whether one is reached, how sinks do,
//! and their dead letters.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Map, Value};

use crate::objects::Invalid;

pub type Asking<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a system said: who it is, or why it cannot be reached.
pub type Tested = Result<String, String>;

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
    /// How sinks do, sorted by name.
    fn sinks(&self) -> Vec<Value>;
    fn sink(&self, name: &str) -> Option<Value>;
    /// How sources do, sorted by name.
    fn sources(&self) -> Vec<Value>;
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

    fn sinks(&self) -> Vec<Value> {
        Vec::new()
    }

    fn sink(&self, _name: &str) -> Option<Value> {
        None
    }

    fn sources(&self) -> Vec<Value> {
        Vec::new()
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
