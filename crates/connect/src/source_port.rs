//! Received messages, and where sources pass them.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Map, Value};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Destination of received messages: rules with `FROM "$bridges/TYPE:NAME"`.
pub trait SourcePort: Send + Sync {
    /// Resolves once the message is processed; only then is it acknowledged to its system.
    fn accept<'a>(&'a self, message: SourceMessage) -> BoxFuture<'a, ()>;
}

/// A message received by a source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceMessage {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub key: Option<Vec<u8>>,
    /// Headers or user properties.
    pub properties: Vec<(String, String)>,
    /// Further fields by name, such as `partition` and `offset`.
    pub fields: Map<String, Value>,
    /// Topic under which the message is also published on this node.
    pub local_topic: Option<String>,
}
